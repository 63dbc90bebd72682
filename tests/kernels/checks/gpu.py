"""Submissions by the kernel's GPU scheduler: a real driver on a GPU in software tells each of them, of its process, in order
with the device's own times. The three kernels differ in the names and fields of the tracepoints."""

import json
import os
import shutil
import subprocess
import sys

import boot
from bed import ROOT

sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "gpu")]
import soft_gpu  # noqa: E402
from profinfer.blocks import Scan, Store  # noqa: E402
from profinfer.load import Records  # noqa: E402
from profinfer.wire import unzigzag, varints  # noqa: E402

# Drivers whose handlers read a register once: registers in software do not change while one runs.
DRIVERS = {"5.10": "panfrost", "6.12": "v3d", "7.2": "v3d"}
# The name of the device, where the tracepoints tell it, and of the ring, where they do not tell a pointer.
NAMES = {
    "5.10": ("", "ring 0 (in the order in which they were seen)"),
    "6.12": ("", "v3d_tfu"),
    "7.2": ("70000000.gpu", "v3d_tfu"),
}
KERNELS = "5.10 7.2"
ALSO = "6.12"
# The device's registers are mapped twice.
BOOT = {"append": "iomem=relaxed", "limit": 180}
SECONDS = 25
PLACE = "target/tests/arm64/fixtures/modern"
LIBRARY = "/usr/aarch64-linux-gnu/lib"
FILES = {f"/usr/lib/{name}": f"{LIBRARY}/{name}" for name in ("ld-linux-aarch64.so.1", "libc.so.6")}
FILES |= {f"/fixtures/{path.name}": path for path in (ROOT / PLACE).glob("*")}
JOBS = 60
# The engine computes from 4 s on, for some seconds; the jobs are given to the device in between.
SCRIPT = f"""
[ -e /fixtures/fakellama ] || {{ echo "no {PLACE}: make test-arm64 builds it" >&2; exit 1; }}
# A device that sleeps waits for its caches, which are never clean.
for control in /sys/bus/platform/devices/*.gpu/power/control; do echo on >$control; done
export SOFT_GPU_JOBS={JOBS} SOFT_GPU_DELAY=5 SOFT_GPU_LOG=/out/jobs.txt
profinfer record --force -o /out/run.pfi -- env LD_PRELOAD=/job/soft_gpu.so \\
    /fixtures/fakellama --split -t 1 -n 130 --op-ns 2000000 --sleep --hold 4 >/out/engine.txt 2>said.txt
profinfer report --json /out/run.pfi >report.json
"""


def prepare(guest):
    driver = DRIVERS[guest.kernel]
    compiler = "cc" if os.uname().machine == "aarch64" else "aarch64-linux-gnu-gcc"
    if not shutil.which(compiler):
        raise boot.Absent(f"no {compiler}: scripts/setup.sh installs it")
    library, registers = guest.out / "soft_gpu.so", guest.out / "registers"
    source = ROOT / "tests" / "gpu" / "soft_gpu.c"
    command = [compiler, *"-O2 -Wall -Wextra -Werror -shared -fPIC".split(), "-o", library, source, "-lpthread"]
    made = subprocess.run(command, capture_output=True, text=True)
    if made.returncode:
        raise boot.Unusable(f"{source} does not compile: {made.stderr.strip()}")
    registers.write_bytes(soft_gpu.registers(driver))
    guest.files["/job/soft_gpu.so"] = library
    guest.modules = [driver]
    guest.nodes = soft_gpu.DEVICES[driver][0]
    guest.loads = {soft_gpu.REGISTERS: registers}
    guest.env["SOFT_GPU"] = driver


def submissions(trace):
    """Names of the rings, and of each submission its ring, process, and times: queued, handed to the device, end."""
    scan = Scan(Store(trace))
    records, found = Records(scan), []
    assert not scan.damage + records.damage, f"{trace} is damaged"
    for record in records.of("Submissions"):
        end, values = record.t, varints(record.data)
        # The last two numbers of a submission are other figures.
        for i in range(0, len(values), 7):
            pid, to_end, *before = values[i:i + 5]
            end += unzigzag(to_end)
            queued, run, _ = (end - unzigzag(b - 1) if b else None for b in before)
            found.append((record.ring, pid, queued, run, end))
    return {ring.id: (ring.device, ring.name) for ring in records.of("DeviceRing")}, found


def in_order(before, after, seen, raised, queued, run, end):
    """The scheduler tells that it hands a job over before the device can see it."""
    return None not in (queued, run) and before <= queued <= after and before <= run <= seen < raised <= end


def judge(run, book):
    jobs = [tuple(map(int, line.split())) for line in run.text("jobs.txt").splitlines()]
    rings, found = submissions(run.path("run.pfi"))
    book.expect(len(jobs) == JOBS, f"the device had {len(jobs)} jobs of {JOBS}")
    book.hits(len(jobs), len(found))
    book.expect(list(rings.values()) == [NAMES[run.kernel]], f"rings: {rings}")
    engine = json.loads(run.text("engine.txt").splitlines()[-1])["pid"]
    pids = {row[1] for row in found}
    book.expect(pids == {engine}, f"submitted by {pids}, the engine is {engine}")
    wrong = [(job, row) for job, row in zip(jobs, found) if not in_order(*job, *row[2:])]
    book.expect(not wrong, f"{len(wrong)} of {len(jobs)} submissions do not fit the device's own times, the first: {wrong[:1]}")
    # A job's end is recorded before the device sees the next one.
    late = [n for n, (row, following) in enumerate(zip(found, jobs[1:])) if row[-1] > following[2]]
    book.expect(not late, f"ends recorded after the device had the next job: {late}")
    judge_report(run.json("report.json"), jobs, found, book)


def judge_report(report, jobs, found, book):
    [ring] = report["submissions"]["rings"]
    book.expect((ring["submissions"], ring["own"]) == (JOBS, JOBS), f"in the report: {ring}")
    book.expect((ring["source"], ring["basis"]) == ("gpu_scheduler", "kernel"), f"from {ring}")
    # From the hand-over to the end; what overlaps counts once.
    busy, last = 0, 0
    for *_, handed, end in found:
        busy, last = busy + end - max(last, handed), end
    device = sum(raised - seen for _, _, seen, raised in jobs)
    book.expect(ring["busy_ns"] == busy >= device > 0, f"busy for {ring['busy_ns']} ns of {busy}, by the device's own clock {device}")
    [feature] = [f for f in report["quality"]["features"] if f["name"] == "submissions"]
    book.expect(feature["state"] == "whole", f"{feature}")
