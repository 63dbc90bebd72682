"""A device tree with unequal clusters of CPUs for QEMU's virt machine, which only supports equal ones.

A cluster is COUNTxCAPACITY[@MHZ,MHZ...[*COEFFICIENT]][:COMPATIBLE], separated by spaces:

    4x446@600,1200,1800*100:arm,cortex-a55 3x871@800,1600,2400:arm,cortex-a76 1x1024@900,2000,2900:arm,cortex-x1

CAPACITY is the device tree's capacity-dmips-mhz; the kernel scales it by the highest frequency. Frequencies need the module
cpufreq_dt. With a COEFFICIENT (dynamic-power-coefficient) the kernel has an Energy Model: at 1 V a CPU takes COEFFICIENT x MHZ
microwatts. Only the tree differs: all CPUs behave alike and have the same MIDR.
"""

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

# The tree numbers CPUs by MPIDR, which continues in another field from here.
MOST_CPUS = 16


class BadClusters(ValueError):
    """Not a cluster, or more than the tree can hold."""


@dataclass
class Cluster:
    count: int
    capacity: int
    mhz: list
    compatible: str
    # 0: the kernel has no Energy Model of it.
    coefficient: int = 0


def parse(text):
    """The clusters of a description."""
    found = []
    for word in text.split():
        match = re.fullmatch(r"(\d+)x(\d+)(?:@(\d+(?:,\d+)*)(?:\*(\d+))?)?(?::(\S+))?", word)
        if not match:
            raise BadClusters(f"'{word}' is no cluster: COUNTxCAPACITY[@MHZ,MHZ...[*COEFFICIENT]][:COMPATIBLE]")
        count, capacity, mhz, coefficient, compatible = match.groups()
        mhz = [int(number) for number in mhz.split(",")] if mhz else []
        found.append(Cluster(int(count), int(capacity), mhz, compatible or "arm,armv8", int(coefficient or 0)))
    if not 1 <= cpus(found) <= MOST_CPUS:
        raise BadClusters(f"{cpus(found)} CPUs: 1 to {MOST_CPUS} are possible")
    return found


def cpus(clusters):
    return sum(cluster.count for cluster in clusters)


def node(clusters):
    """The tree's /cpus, and the clocks and frequency tables that it refers to."""
    numbers = iter(range(MOST_CPUS))
    groups, cores, tables = [], [], []
    for k, cluster in enumerate(clusters):
        own = [next(numbers) for _ in range(cluster.count)]
        group = " ".join(f"core{j} {{ cpu = <&CPU{i}>; }};" for j, i in enumerate(own))
        groups.append(f"cluster{k} {{ {group} }};")
        speed = f"clocks = <&CLOCK{k}>; operating-points-v2 = <&SPEED{k}>;" if cluster.mhz else ""
        if cluster.coefficient:
            speed += f" dynamic-power-coefficient = <{cluster.coefficient}>;"
        volts = "opp-microvolt = <1000000>; " if cluster.coefficient else ""
        cores += [
            f'CPU{i}: cpu@{i:x} {{ device_type = "cpu"; compatible = "{cluster.compatible}"; reg = <{i}>; '
            f'enable-method = "psci"; capacity-dmips-mhz = <{cluster.capacity}>; {speed} }};'
            for i in own
        ]
        if cluster.mhz:
            hertz = [mhz * 1_000_000 for mhz in cluster.mhz]
            points = " ".join(f"opp-{hz} {{ opp-hz = /bits/ 64 <{hz}>; {volts}}};" for hz in hertz)
            tables += [
                f'CLOCK{k}: cpu-clock{k} {{ compatible = "fixed-clock"; #clock-cells = <0>; clock-frequency = <{max(hertz)}>; }};',
                f'SPEED{k}: opp-table-{k} {{ compatible = "operating-points-v2"; opp-shared; {points} }};',
            ]
    map_ = f"cpu-map {{ {' '.join(groups)} }};"
    return "\n".join(["cpus { #size-cells = <0>; #address-cells = <1>;", map_, *cores, "};", *tables])


def device_tree(machine, clusters, nodes=""):
    """The blob, with these clusters if there are any, and with more nodes. `machine`: QEMU's command with machine,
    processor, number of CPUs and memory, as the guest will have them. Raises OSError if dtc is missing,
    CalledProcessError if QEMU or dtc fails."""
    with tempfile.TemporaryDirectory() as work:
        blob = Path(work, "dtb")
        at = machine.index("-M") + 1
        command = [*machine[:at], f"{machine[at]},dumpdtb={blob}", *machine[at + 1 :], "-nic", "none", "-display", "none"]
        subprocess.run(command, check=True, capture_output=True)
        text = dtc("dtb", "dts", blob.read_bytes()).decode()
    if clusters:
        begin = text.index("\tcpus {")
        end = text.index("\n\t};", begin) + len("\n\t};")
        text = text[:begin] + node(clusters) + text[end:]
    end = text.rindex("};")
    return dtc("dts", "dtb", f"{text[:end]}{nodes}\n}};".encode())


def dtc(have, want, data):
    return subprocess.run(["dtc", "-q", "-I", have, "-O", want], input=data, check=True, capture_output=True).stdout
