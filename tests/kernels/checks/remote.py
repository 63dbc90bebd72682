"""`record --on ssh:` of this machine against the guest, over its network card and Debian's dropbear: the program is
copied once, the trace comes back whole, and an interrupted recording leaves nothing in the guest."""

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import time

import bed
import boot
from bed import ROOT, SLOW

# The engine must not keep the ssh server from its CPU.
BOOT = {"limit": 240, "mode": "par"}
TREES = ["dropbear"]
BOARDS = True
SECONDS = 55
PROMPT, TOKENS = 8, 8
MODEL = "/tmp/m.gguf"
# The host key is printed once the server listens.
SCRIPT = f"""
grep -c bpf_jit /proc/vmallocinfo >/tmp/compiled
mkdir -p /etc /root/.ssh && chmod 700 /root /root/.ssh
echo 'root:x:0:0::/root:/bin/sh' >/etc/passwd
echo "$CLIENT_KEY" >/root/.ssh/authorized_keys
ggml-runner synth tiny {MODEL} --type q4_0 >/dev/null
dropbearkey -t ed25519 -f /tmp/host-key >/dev/null
dropbear -E -s -r /tmp/host-key 2>dropbear.txt
dropbearkey -y -f /tmp/host-key | grep ^ssh-
until [ -e /tmp/done ]; do sleep 0.2; done
"""
# What a recording needs in the guest, by name. Each BPF program has memory for its machine code; the kernel has a
# program of its own.
STATE = """
for exe in /proc/[0-9]*/exe; do
    case $(readlink $exe) in */profinfer*) echo recorder ;; */ggml-runner) echo engine ;; esac
done
[ $(grep -c bpf_jit /proc/vmallocinfo) = $(cat /tmp/compiled) ] || echo bpf
cat /sys/kernel/tracing/uprobe_events
find /root/.cache/profinfer -mindepth 1 | sed 's/profinfer-[0-9a-f]*$/program/; s/run\\.[0-9a-f]*/run/; s/.*cache.profinfer.//'
"""
ENGINE = f"/job/ggml-runner run -m {MODEL} -p {PROMPT} -t 2 --no-warmup --no-roofline"
# Seconds that one step may take.
PATIENCE = 60 * SLOW


class Machine:
    """The guest as it is seen from here. Its files are in `here`."""

    def __init__(self, guest, runs):
        self.here = guest.out / "ssh"
        (self.port,) = guest.ports
        self.runs = runs

    def until(self, what, done):
        end = time.monotonic() + PATIENCE
        while not done():
            if not self.runs():
                raise RuntimeError(f"the guest ended, before: {what}")
            if time.monotonic() > end:
                raise RuntimeError(f"in vain, for {PATIENCE} s: {what}")
            time.sleep(0.2)

    def ssh(self, script):
        """Standard output of a script in the guest."""
        command = [self.here / "ssh", "-p", str(self.port), "root@127.0.0.1", script]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE).stdout

    def state(self):
        return sorted(set(self.ssh(STATE).splitlines()))

    def start(self, name, *options, tokens):
        """`record --on`, in a process group of its own."""
        command = [program(), "record", "--on", f"ssh:root@127.0.0.1:{self.port}", "-o", self.here / f"{name}.pfi"]
        command += ["--remote-program", bed.BINARIES / "profinfer"]
        engine = f"{ENGINE} -n {tokens}".split()
        env = os.environ | {"SSH": str(self.here / "ssh"), "XDG_RUNTIME_DIR": str(self.here)}
        with (self.here / f"{name}.txt").open("wb") as said:
            return subprocess.Popen(
                [*command, *options, "--", *engine], env=env, stdin=subprocess.DEVNULL, stdout=said, stderr=said,
                start_new_session=True,
            )  # fmt: skip

    def said(self, name):
        return (self.here / f"{name}.txt").read_text(errors="replace")

    def write(self, name, value):
        (self.here / f"{name}.json").write_text(json.dumps(value))


def program():
    return ROOT / "target" / "debug" / "profinfer"


def prepare(guest):
    """Builds the program of this machine, which copies the static one; makes a key, and finds a free port."""
    for tool in ("ssh", "ssh-keygen"):
        if not shutil.which(tool):
            raise boot.Absent(f"no {tool}: scripts/setup.sh installs it")
    subprocess.run("cargo build --locked --quiet --bin profinfer".split(), cwd=ROOT, check=True)
    here = guest.out / "ssh"
    here.mkdir()
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", here / "key"], check=True)
    guest.env["CLIENT_KEY"] = (here / "key.pub").read_text().strip()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        guest.ports[free.getsockname()[1]] = 22


def beside(guest, runs):
    machine = Machine(guest, runs)
    configure(guest, machine)
    for name in ("first", "second"):
        code = machine.start(name, tokens=TOKENS).wait(PATIENCE)
        # Its guard closes what the kernel is slow to close, and ends after it.
        machine.until(f"nothing is left after {name}", lambda: machine.state() == ["program"])
        machine.write(name, {"code": code, "left": machine.state()})
    for name, number in (("stopped", signal.SIGINT), ("killed", signal.SIGKILL)):
        interrupt(machine, name, number)
    machine.ssh("touch /tmp/done")


def configure(guest, machine):
    """A client that trusts the guest's key alone and reads nothing of the user's."""
    console = guest.out / "stdout.txt"
    machine.until("the ssh server prints its key", lambda: console.is_file() and "ssh-ed25519 " in console.read_text())
    (machine.here / "known").write_text(f"[127.0.0.1]:{machine.port} {console.read_text()}")
    config = {
        "IdentityFile": f'"{machine.here / "key"}"', "IdentitiesOnly": "yes", "IdentityAgent": "none",
        "UserKnownHostsFile": f'"{machine.here / "known"}"', "GlobalKnownHostsFile": "none", "StrictHostKeyChecking": "yes",
    }  # fmt: skip
    (machine.here / "config").write_text("".join(f"{name} {value}\n" for name, value in config.items()))
    client = machine.here / "ssh"
    client.write_text(f'#!/bin/sh\nexec ssh -F {shlex.quote(str(machine.here / "config"))} "$@"\n')
    client.chmod(0o755)


def interrupt(machine, name, number):
    """A recording without end, which this signal ends while it is going on."""
    recorder = machine.start(name, tokens=100_000)
    machine.until("the recording began", lambda: "ready: recording" in machine.said(name) or recorder.poll() is not None)
    during = machine.state()
    os.kill(recorder.pid, number)
    code = recorder.wait(PATIENCE)
    machine.until(f"nothing is left after {number.name}", lambda: machine.state() == ["program"])
    machine.write(name, {"code": code, "during": during})


def judge(run, book):
    here = run.run.out / "ssh"
    for name in ("first", "second"):
        said, result = (here / f"{name}.txt").read_text(), json.loads((here / f"{name}.json").read_text())
        book.expect(result["code"] == 0, f"{name}: exit code {result['code']}: {said}")
        book.expect(result["left"] == ["program"], f"{name}: left in the guest: {result['left']}")
        book.expect(("copying " in said) == (name == "first"), f"{name}: copied or not: {said}")
        book.expect("\nDecode " in said and "none lost" in said, f"{name}: no verdict: {said}")
        report = read(here / f"{name}.pfi")
        book.recorded(report)
        arch = report["run"]["arch"]
        book.expect(arch == "aarch64", f"{name}: recorded on {arch}")
    for name in ("stopped", "killed"):
        result = json.loads((here / f"{name}.json").read_text())
        needed = {"recorder", "engine", "bpf", "run", "run/run.pfi", "program"}
        book.expect(needed <= set(result["during"]), f"{name}: it was not recording: {result['during']}")
    stopped = json.loads((here / "stopped.json").read_text())
    book.expect(stopped["code"] == 0, f"stopped: exit code {stopped['code']}: {(here / 'stopped.txt').read_text()}")
    book.kept(read(here / "stopped.pfi"))


def read(trace):
    command = [program(), "report", "--json", trace]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
