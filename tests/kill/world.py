"""What a stopped recorder may leave (BPF objects and probe events in the kernel, breakpoints in the target's text, the file)
and the engine it recorded, with its own call counts. Uses the project's programs and Python's standard library."""

import collections
import ctypes
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILT = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
PROFINFER = pathlib.Path(os.environ.get("PROFINFER", BUILT / "debug/profinfer"))
FIXTURE = pathlib.Path(os.environ.get("FIXTURE", BUILT / "tests/fixtures/modern"))
EVENTS = pathlib.Path("/sys/kernel/tracing/uprobe_events")
# Two seconds after a recorder's end, nothing of it remains on an idle machine. The kernel frees its objects asynchronously, so
# a loaded machine gets longer. What is still there after that will stay.
PROMISED, GRACE = 2.0, 30.0
FILE_HEADER = 16
STALE = "breakpoints in the text"
libc = ctypes.CDLL(None, use_errno=True)
BPF = {"x86_64": 321, "aarch64": 280}[os.uname().machine]
# Commands of bpf(2) that open an object by its id. Maps have no effect by themselves, and the kernel frees them asynchronously.
OPEN_BY_ID = {"prog": 13, "link": 30}


def tool(directory):
    """Builds the tracer; returns its path."""
    made = pathlib.Path(directory) / "kill_at"
    here = pathlib.Path(__file__).parent
    sources = [here / "kill_at.c", here / "stops.c"]
    subprocess.run([os.environ.get("CC", "cc"), "-O1", "-o", made, *sources], check=True)
    return made


def names_of_calls():
    """Names of system calls by number, from the system's header."""
    made = subprocess.run([os.environ.get("CC", "cc"), "-E", "-dM", "-include", "asm/unistd.h", "-x", "c", "/dev/null"],
                          capture_output=True, text=True, check=True)
    return {int(n): name for name, n in re.findall(r"#define __NR_(\w+) (\d+)", made.stdout)}


def adopt():
    """Makes orphaned descendants children of this process (PR_SET_CHILD_SUBREAPER)."""
    libc.prctl(36, 1, 0, 0, 0)


def is_there(kind, number):
    attr = (ctypes.c_uint32 * 32)(number)
    fd = libc.syscall(BPF, OPEN_BY_ID[kind], attr, ctypes.sizeof(attr))
    if fd >= 0:
        os.close(fd)
    # Any error but "no such object" may mean that it exists.
    return fd >= 0 or ctypes.get_errno() != 2


def defined(pid):
    """Probe events of a recorder's group that the kernel still has."""
    try:
        return [line for line in EVENTS.read_text().splitlines() if re.search(rf":profinfer_{pid}[_/]", line)]
    except OSError:
        return []


def breakpoints(pid, directory):
    """Number of bytes in a process's text, from files under `directory`, that differ from the file; None: it has ended."""
    wrong = 0
    try:
        with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
            for line in maps:
                span, how, offset, _, _, *path = line.split(None, 5)
                path = path[0].strip() if path else ""
                if "x" not in how or not path.startswith(str(directory)):
                    continue
                begin, end = (int(x, 16) for x in span.split("-"))
                memory.seek(begin)
                there = memory.read(end - begin)
                with open(path, "rb") as file:
                    file.seek(int(offset, 16))
                    ours = file.read(len(there))
                wrong += sum(a != b for a, b in zip(there, ours)) if there[:len(ours)] != ours else 0
    except (OSError, ValueError):
        return None
    return wrong


def switches(pid):
    """Voluntary context switches of a process; None: it has ended."""
    total = 0
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            text = pathlib.Path(f"/proc/{pid}/task/{task}/status").read_text()
            if "State:\tZ" in text:
                return None
            total += int(re.search(r"^voluntary_ctxt_switches:\s*(\d+)", text, re.M)[1])
    except (OSError, TypeError):
        return None
    return total


def children():
    """Child processes of this one, with the program that each runs."""
    found = {}
    for task in os.listdir("/proc/self/task"):
        try:
            text = pathlib.Path(f"/proc/self/task/{task}/children").read_text()
        except OSError:
            continue
        for pid in map(int, text.split()):
            try:
                found[pid] = os.readlink(f"/proc/{pid}/exe")
            except OSError:
                found[pid] = ""
    return found


class Engine:
    """A private copy of the fake engine, and the call counts it reports when it is not recorded."""

    def __init__(self, directory, tokens=1000):
        self.directory = pathlib.Path(directory) / "engine"
        shutil.copytree(FIXTURE, self.directory)
        self.program = self.directory / "fakellama"
        self.tokens = tokens

    def args(self, tokens=None):
        tokens = tokens or self.tokens
        return [str(self.program), "-t", "2", "-p", "4", "-n", str(tokens), "--op-ns", "100000", "--sleep"]

    def account(self, tokens=None):
        """Its call counts after an undisturbed full run. All calls do the same, so a run of two gives the counts of any number."""
        said = subprocess.run(self.args(1), capture_output=True, check=True).stdout
        return {name: n * ((tokens or self.tokens) + 1) // 2 for name, n in json.loads(said)["calls"].items()}


def said(path):
    """Call counts that an engine printed at its end; None: it printed none."""
    text = pathlib.Path(path).read_text()
    line = next((l for l in reversed(text.splitlines()) if l.startswith("{")), None)
    return json.loads(line)["calls"] if line else None


class Trace:
    """A trace file in the state in which it was left."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        size = self.path.stat().st_size if self.path.exists() else None
        self.kind = "no file" if size is None else "empty" if size == 0 else "header" if size <= FILE_HEADER else "blocks"

    def wrong(self):
        """Why `report --json` cannot read it; None: it can, or the file has no content yet."""
        if self.kind in ("no file", "empty", "header"):
            return None
        done = subprocess.run([PROFINFER, "report", "--json", self.path], capture_output=True, text=True)
        if done.returncode == 0:
            json.loads(done.stdout)
            return None
        # A file without any hit has no run to report.
        return f"report: {done.returncode}: {done.stderr.strip()[-300:]}"

    def unexplained(self):
        """Unexplained loss in a recording that ended well; None: it is complete, or says what is missing."""
        done = subprocess.run([PROFINFER, "report", "--json", self.path], capture_output=True, text=True)
        if done.returncode:
            return f"the file is {self.kind}, and report ends with {done.returncode}"
        books = json.loads(done.stdout)["quality"]
        return None if books["complete"] or books["verdict"] else "the books do not close and no verdict says why"

    def last(self):
        """End of the last recorded event, CLOCK_BOOTTIME s; None: nothing was recorded."""
        out = self.path.with_suffix(".json")
        done = subprocess.run([PROFINFER, "export", "--force", "--chrome", out, self.path], capture_output=True)
        if done.returncode or not out.exists():
            return None
        events = json.loads(out.read_text())["traceEvents"]
        out.unlink()
        ends = [e["ts"] + e.get("dur", 0) for e in events if e.get("ph") in ("X", "B", "E") and "ts" in e]
        return max(ends) / 1e6 if ends else None


def leaks():
    """Number of kernel messages about probes that could not be removed, by thread and message."""
    text = subprocess.run(["dmesg"], capture_output=True, text=True, errors="replace").stdout
    found = re.findall(r"uprobe: (.*):(\d+) failed to (.*)", text)
    return collections.Counter((int(pid), what.strip()) for _, pid, what in found)


def left(state, texts, recorders):
    """What remains of recorders: BPF objects, probe events, and breakpoints in the text of engines {pid: directory}."""
    found = [f"{kind} {n}" for kind, n in state["held"] if kind in OPEN_BY_ID and is_there(kind, n)]
    if lines := [line for pid in [state["pid"], *recorders] for line in defined(pid)]:
        found.append(f"{len(lines)} definitions such as {lines[0][:60]}")
    for pid, directory in texts.items():
        if n := breakpoints(pid, directory):
            found.append(f"{n} {STALE} of {pid}")
    return found


def admitted(found, state):
    """Whether only breakpoints remain, at most as many as the kernel logged that the recorder's threads could not remove:
    each thread was killed while it removed one (docs/TROUBLE.md)."""
    remain = [int(what.split()[0]) for what in found if STALE in what]
    logged = sum(n for (tid, _), n in leaks().items() if tid in state["threads"])
    return len(remain) == len(found) and sum(remain) <= logged


def wait_until_gone(state, texts, recorders=()):
    """Waits until nothing remains, at most GRACE; returns what remains, and the time since the recorder's end."""
    end = time.clock_gettime(time.CLOCK_BOOTTIME) + GRACE
    while True:
        found = left(state, texts, recorders)
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        if not found or now > end:
            return found, now - state["over"]
        time.sleep(0.03)


def kill_children():
    for pid in children():
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
