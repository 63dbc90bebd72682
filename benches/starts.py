"""Starts of recordings from inside the engine's process, of which two in three are disturbed: the engine, or the recorder,
is killed (SIGKILL) at a random point.

Each start takes an engine at random (the fake one's variants, with threads, threads of one graph only, children by fork;
now and then a real one) and asks afterwards:
- Not killed: the engine has ended with 0 and has said and written the same, byte by byte, as without a recorder (the
  logits of a real one); the recording is complete, or says how many events it lost.
- Engine killed: the recorder has ended by itself, and its file can be read.
- Recorder killed: the engine has ended by itself, and has said and written the same.
- Nothing is left: no process, no file in TMPDIR, none of profinfer's in /dev/shm.

`--seed` repeats a run; a start that goes wrong is named by its seed. The fake engine is built by `make fixtures`.
"""

import functools
import hashlib
import json
import os
import random
import shlex
import signal
import subprocess
import time

from common import Bench, BenchError, Scratch, binary, driver, engine, main, model, target_dir

VARIANTS = ["modern", "modern-clang", "stripped", "local-forward", "old", "late", "linked", "lto"]
# One start in this many is of the real engine.
REAL = 12
# Nothing takes longer, however busy the machine is.
PATIENCE = 120


def fake(rng):
    """A command of the fake engine, and the file that it writes besides (none)."""
    path = os.path.join(target_dir(), "tests", "fixtures", rng.choice(VARIANTS), "fakellama")
    if not os.path.exists(path):
        raise BenchError(f"{path} does not exist: make fixtures")
    args = ["-n", str(rng.randint(1, 200)), "-t", str(rng.randint(1, 4)), "--op-ns", str(rng.choice([0, 500]))]
    for flag in ("--fresh-threads", "--roam", "--moe"):
        if rng.random() < 0.3:
            args.append(flag)
    if rng.random() < 0.4:
        args += ["--fork", str(rng.randint(1, 4))]
    return [path, *args], None


@functools.cache
def parts():
    return driver(), engine("v0.5.0"), model("tiny-q4_0")


def real(rng, where):
    """A command of the real engine, and its logits of each token."""
    program, library, weights = parts()
    ids = ",".join(str(rng.randint(3, 250)) for _ in range(rng.randint(1, 12)))
    file = os.path.join(where, "logits")
    return [program, "--engine", library, "--model", weights, "--ids", ids, "-n", str(rng.randint(1, 12)), "-t",
            str(rng.randint(1, 2)), "--every", file], file


def said(out, file):
    """What an engine has said, without its process's number, and the sum of what it has written."""
    lines = [json.loads(line) for line in open(out) if line.startswith("{")]
    for line in lines:
        # The first is the fake engine's, the others are times of the driver.
        for name in [name for name in line if name == "pid" or name.endswith(("_ns", "_s", "_ms"))]:
            del line[name]
    lines.sort(key=lambda line: line.get("child", 0))
    return lines, file and hashlib.sha256(open(file, "rb").read()).hexdigest()


def of_session(sid):
    """Processes of a session that have not ended."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as f:
                fields = f.read().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[3]) == sid and fields[0] != "Z":
            found.append(int(pid))
    return found


def wait_for_end(sid):
    begin = time.monotonic()
    while left := of_session(sid):
        if time.monotonic() - begin > PATIENCE:
            return left
        time.sleep(0.002)
    return []


class Start:
    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.kills = self.rng.choice(["nobody", "engine", "recorder"])

    def shell(self, where, command):
        """Writes its number, and becomes the engine."""
        return ["sh", "-c", f"echo $$ >{where}/pid; exec {shlex.join(command)} >{where}/out 2>{where}/err"]

    def run(self, scratch):
        """None, or what is wrong."""
        rng, is_real = self.rng, self.rng.randrange(REAL) == 0
        where = scratch.file("start")
        for name in ("start", "tmp"):
            subprocess.run(["rm", "-rf", scratch.file(name)], check=True)
            os.mkdir(scratch.file(name))
        command, file = real(rng, where) if is_real else fake(rng)
        begin = time.monotonic()
        subprocess.run(self.shell(where, command), check=True, timeout=PATIENCE)
        took = time.monotonic() - begin
        wanted = said(f"{where}/out", file)
        for name in os.listdir(where):
            os.remove(f"{where}/{name}")
        # A killed recorder leaves its unfinished file beside it.
        trace = f"{where}/trace.pfi"
        buffer = rng.choice(["64K", "1M"])
        record = [binary("profinfer"), "record", "-q", "--source", "inside", "--force", "-o", trace, "--buffer-size",
                  buffer, "--", *self.shell(where, command)]
        shm = set(os.listdir("/dev/shm"))
        with open(scratch.file("log"), "w+") as log:
            child = subprocess.Popen(record, stdout=log, stderr=log, start_new_session=True,
                                     env={**os.environ, "TMPDIR": scratch.file("tmp")})
            # The engine from its first instruction on; the recorder also before it has begun.
            delay = rng.uniform(0, 2 * took + (0.5 if self.kills == "recorder" else 0))
            code = self.disturb(child, where, delay)
            left = wait_for_end(child.pid)
            log.seek(0)
            told = log.read().strip()
        wrong = self.wrong(code, told, wanted, (where, file), trace)
        shm = [name for name in set(os.listdir("/dev/shm")) - shm if "profinfer" in name]
        for found, what in ((left, "processes"), (os.listdir(scratch.file("tmp")), "files"), (shm, "shared memory")):
            if found and not wrong:
                wrong = f"{what} left: {found}"
        return wrong and f"{wrong}: {shlex.join(command)}, {self.kills} killed after {delay:.3f} s; {told}"

    def disturb(self, child, where, delay):
        """Kills whom it is to kill, waits for the recorder and returns its status."""
        if self.kills == "engine":
            while not os.path.exists(f"{where}/pid") and child.poll() is None:
                time.sleep(0.001)
        if self.kills != "nobody":
            try:
                child.wait(delay)
            except subprocess.TimeoutExpired:
                self.kill(child, where)
        try:
            return child.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            child.kill()
            return f"no end in {PATIENCE} s"

    def kill(self, child, where):
        pid = child.pid
        if self.kills == "engine":
            try:
                pid = int(open(f"{where}/pid").read())
            except (OSError, ValueError):
                # Not begun yet: it is not killed.
                self.kills = "nobody"
                return
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def wrong(self, code, told, wanted, engine, trace):
        where, file = engine
        if self.kills == "recorder" and code == -signal.SIGKILL:
            if not os.path.exists(f"{where}/pid"):
                return None  # Killed before it has started the engine.
        elif self.kills == "engine" and code == 137:
            return None if self.report(trace) else "its file cannot be read"
        elif self.kills == "engine" and "status 137" in told:
            return None  # Before it had computed anything.
        elif code != 0:
            return f"status {code}"
        else:
            report = self.report(trace)
            if not report or not (report["quality"]["complete"] or "events lost" in report["quality"]["verdict"]):
                return f"the recording is not complete: {report and report['quality']['verdict']}"
        try:
            found = said(f"{where}/out", file)
        except (OSError, ValueError) as e:
            return f"the engine has not ended well: {e}"
        return None if found == wanted else f"the engine says something else: {found} instead of {wanted}"

    def report(self, trace):
        done = subprocess.run([binary("profinfer"), "report", "--json", trace], stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL)
        return json.loads(done.stdout) if done.returncode == 0 else None


def run():
    bench = Bench("starts", __doc__)
    p = bench.parser
    p.add_argument("--starts", type=int, help="how many (10000; 100 with --quick)")
    p.add_argument("--seed", type=int, help="of the first; each start has the next")
    args = bench.begin()
    starts = args.starts or (100 if args.quick else 10000)
    first = random.randrange(1 << 40) if args.seed is None else args.seed
    print(f"starts with the seeds {first} to {first + starts - 1}", flush=True)
    killed = {"nobody": 0, "engine": 0, "recorder": 0}
    with Scratch() as scratch:
        for seed in range(first, first + starts):
            start = Start(seed)
            wrong = start.run(scratch)
            killed[start.kills] += 1
            bench.require(not wrong, f"seed {seed}: {wrong}")
    print(f"{starts} starts: " + ", ".join(f"{who} killed in {n}" for who, n in killed.items()))
    bench.judge(not bench.wrong, f"{bench.wrong} of {starts} starts went wrong")
    return bench.end()


if __name__ == "__main__":
    main(run)
