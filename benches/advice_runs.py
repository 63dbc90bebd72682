"""How bench-advice runs an engine: its command, CPUs, control groups (version 1), company and client, recorded by
profinfer; and how a run changes when a piece of advice is followed.

Engines and their company run in scheduling groups of top weight, so that other programs of the machine disturb them little.
"""

import atexit
import contextlib
import dataclasses
import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from common import BenchError, binary, driver, engine, model, read_ahead

# Its own session has a scheduling group of its own (sched(7), autogroup); nice values do nothing between such groups.
TOP = "echo -20 > /proc/self/autogroup 2>/dev/null; "
GROUPS = "/sys/fs/cgroup"
# The same in a control group, where TOP does nothing.
SHARES = {"cpu.shares": 262144}
# Computes for a time and sleeps for a time, for ever.
BURSTS = """import sys, time
on, off = map(float, sys.argv[1:])
while True:
    end = time.perf_counter() + on
    while time.perf_counter() < end: pass
    if off: time.sleep(off)
"""
# Writes a line at a fixed interval in ms, as a client that asks for one token at a time.
CLIENT = """import sys, time
what, n, ms = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
print("prefill 8", flush=True)
for _ in range(n):
    print(what.replace(";", chr(10)), flush=True)
    time.sleep(ms / 1e3)
print("quit", flush=True)
"""


@functools.cache
def hog():
    """The interpreter under a name of its own: threads are named after their program's file."""
    path = os.path.join(tempfile.mkdtemp(prefix="profinfer-advice-"), "hog")
    os.symlink(os.path.realpath(sys.executable), path)
    atexit.register(shutil.rmtree, os.path.dirname(path), True)
    return path


@dataclasses.dataclass
class Busy:
    """A program that keeps CPUs busy: all the time, or `on` of every `on + off` seconds."""

    cpus: str
    on: float = 1.0
    off: float = 0.0
    nice: int = 0
    realtime: bool = False
    in_group: bool = False

    def command(self, enter):
        change = ["chrt", "-f", "10"] if self.realtime else ["nice", "-n", str(self.nice)]
        run = ["taskset", "-c", self.cpus, *change, hog(), "-c", BURSTS, str(self.on), str(self.off)]
        return ["sh", "-c", f'{enter if self.in_group else TOP}exec "$@"', "sh", *run]


@dataclasses.dataclass
class Forks:
    """A shell that starts short programs on a CPU without end."""

    cpus: str

    def command(self, _):
        return ["sh", "-c", f'{TOP}exec "$@"', "sh", "taskset", "-c", self.cpus, "sh", "-c",
                "while :; do /bin/true; done"]


@dataclasses.dataclass
class Other:
    """Another program, over and over: such as a second engine."""

    args: list

    def command(self, _):
        return ["sh", "-c", f'{TOP}while :; do "$@" >/dev/null; done', "sh", *self.args]


class Group:
    """A control group in several hierarchies: {"cpu": {"cpu.cfs_quota_us": 60000}}."""

    def __init__(self, limits):
        self.dirs = [os.path.join(GROUPS, kind, f"profinfer-advice-{os.getpid()}") for kind in limits]
        for path, values in zip(self.dirs, limits.values()):
            os.makedirs(path, exist_ok=True)
            for name, value in values.items():
                with open(os.path.join(path, name), "w") as f:
                    f.write(str(value))

    def enter(self):
        return "".join(f"echo $$ > {path}/tasks; " for path in self.dirs)

    def close(self):
        for path in self.dirs:
            for _ in range(100):
                try:
                    os.rmdir(path)
                    break
                except OSError:
                    time.sleep(0.05)


@dataclasses.dataclass
class Run:
    """An engine's run. `change` runs beside it as a shell command, with its PID in $1."""

    args: list
    cpus: str = None
    limits: dict = dataclasses.field(default_factory=dict)
    company: tuple = ()
    cold: str = None
    flags: tuple = ()
    env: dict = dataclasses.field(default_factory=dict)
    client: tuple = ()
    inside: tuple = ()
    # KiB, of the disk with the file `cold`.
    read_ahead: int = 128

    def but(self, **changes):
        return dataclasses.replace(self, **changes)

    def threads(self, n):
        return self.but(args=changed(self.args, "-t", n))

    def record(self, out, env):
        """Records it into the file `out`."""
        with contextlib.ExitStack() as held:
            enter = ""
            if self.limits:
                group = Group(self.limits)
                held.callback(group.close)
                enter = group.enter()
            for one in self.company:
                held.callback(end, subprocess.Popen(one.command(enter), start_new_session=True,
                                                    stdout=subprocess.DEVNULL))
            # Another case may have left it to storage, which is a cause of its own.
            for path in self.args if not self.cold else ():
                if path.endswith(".gguf"):
                    warm(path)
            if self.cold:
                held.enter_context(read_ahead(self.cold, self.read_ahead))
                drop(self.cold)
            client = None
            if self.client:
                client = subprocess.Popen([sys.executable, "-c", CLIENT, *map(str, self.client)], stdout=subprocess.PIPE)
                held.callback(end, client)
            pin = ["taskset", "-c", self.cpus] if self.cpus else []
            command = ["setsid", "-w", *self.inside, "sh", "-c", f'{TOP}{enter}exec "$@"', "sh", *pin, *self.args]
            record = [binary("profinfer"), "record", "-q", "--force", *self.flags, "-o", out, "--", *command]
            done = subprocess.run(record, stdin=client.stdout if client else subprocess.DEVNULL,
                                  stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                  env=dict(env, **self.env), timeout=240)
            if done.returncode:
                raise BenchError(f"recording failed with status {done.returncode}: {done.stderr.strip()[-400:]}")


def end(process):
    """Ends a process and its session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL) if os.getpgid(process.pid) == process.pid else process.kill()
    process.wait()


def changed(args, flag, value):
    at = args.index(flag) + 1
    return [*args[:at], str(value), *args[at + 1:]]


def warm(path):
    """Brings a file into the page cache."""
    with open(path, "rb") as f:
        while f.read(1 << 22):
            pass


def drop(path):
    """Drops a file from the page cache."""
    with open(path) as f:
        os.fdatasync(f.fileno())
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def llama(name, model_name, threads, n=48, p=8, *more):
    """An unmodified build of llama.cpp, by the driver."""
    return [driver(), "--engine", engine(name), "--model", model(model_name), "-p", str(p), "-n", str(n), "-t",
            str(threads), *more]


def runner(model_name, threads, n=48, p=8, *more):
    return [binary("ggml-runner"), "run", "-m", model(model_name), "-p", str(p), "-n", str(n), "-t", str(threads),
            "--no-roofline", "--no-warmup", *more]


def quota(cpus):
    return {"cpu": {**SHARES, "cpu.cfs_period_us": 100000, "cpu.cfs_quota_us": int(cpus * 100000)}}


def memory(size):
    return {"memory": {"memory.limit_in_bytes": int(size)}}


def followed(advice, run):
    """The run after the first action of a piece of advice; None if nothing follows from it here."""
    action = advice["actions"][0] if advice["actions"] else ""
    if threads := re.fullmatch(r"-t (\d+)", action):
        return run.threads(threads[1])
    if not isinstance(run, Run):
        return None
    if action.startswith("stop "):
        return run.but(company=())
    if action.startswith("find what keeps the other CPUs busy") and run.company:
        return run.but(company=())
    if action.startswith("raise the quota"):
        return run.but(limits={**run.limits, "cpu": SHARES})
    if action.startswith("raise the memory limit"):
        return run.but(limits={k: v for k, v in run.limits.items() if k != "memory"}, cold=None)
    if lower := re.fullmatch(r"echo (\d+) \| sudo tee \S+/read_ahead_kb", action):
        return run.but(read_ahead=int(lower[1]))
    if action.startswith("record --level graph"):
        return run.but(flags=("--level", "graph"))
    if action.startswith("-fa on") and "--flash" in run.args:
        return run.but(args=changed(run.args, "--flash", 1))
    return None
