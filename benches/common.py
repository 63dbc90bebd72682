"""Shared by all benches: engines, models and programs; a driver in lock-step; a recorder; figures and their printing.

Uses only Python's standard library. Everything fetched or generated is kept outside the tree, under $PROFINFER_CACHE
(else ${XDG_CACHE_HOME:-~/.cache}/profinfer), except for the programs built from it, under target/. Each of these can
be set directly instead: PROFINFER (the binary), PROFINFER_DRIVER, PROFINFER_ENGINES, PROFINFER_MODELS.
"""

import argparse
import contextlib
import json
import os
import platform
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# The reader for Python shares no code with the recorder's.
sys.path.insert(0, os.path.join(ROOT, "python"))
from profinfer.blocks import Scan, Store  # noqa: E402
from profinfer.load import Records  # noqa: E402

CACHE = os.environ.get("PROFINFER_CACHE") or os.path.join(
    os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "profinfer")
ENGINES = ["b3889", "b4753", "b8121", "v0.5.0", "b11549"]
# Models that an engine cannot run at all (tests/engines/README.md).
UNFIT = {("b3889", "gemma2"), ("b4753", "gemma2"), ("b4753", "moe-q4_0")}


class BenchError(Exception):
    """The bench itself could not run; the message says what to do next."""


def records_of(path, kind=Records):
    """All records of a trace, which must be whole."""
    scan = Scan(Store(path))
    found = kind(scan)
    if damage := scan.damage + found.damage:
        raise BenchError(f"{path} is damaged: {damage[0]}")
    return found


def fits(engine, model):
    return not any(engine == e and model.startswith(m) for e, m in UNFIT)


def sh(args, **kw):
    """Runs a command to its end and returns its standard output; a failure ends the bench."""
    done = subprocess.run(args, stdout=subprocess.PIPE, text=True, **kw)
    if done.returncode:
        raise BenchError(f"{shlex.join(args)} failed with status {done.returncode}")
    return done.stdout


def target_dir():
    return os.environ.get("CARGO_TARGET_DIR") or os.path.join(ROOT, "target")


def binary(name):
    """A program of this package, as a release build; built if missing."""
    named = os.environ.get("PROFINFER") if name == "profinfer" else None
    path = named or os.path.join(target_dir(), "release", name)
    if not os.path.exists(path):
        print(f"building {name} ...", file=sys.stderr)
        sh(["cargo", "build", "--release", "--bins"], cwd=ROOT)
    if not os.path.exists(path):
        raise BenchError(f"{path} does not exist: build it with cargo build --release")
    return path


def driver():
    path = os.environ.get("PROFINFER_DRIVER")
    if path:
        return path
    out = os.path.join(target_dir(), "tests", "engines")
    sh(["make", "-s", "-C", os.path.join(ROOT, "tests", "engines"), f"OUT={out}"])
    return os.path.join(out, "driver")


def engine(name):
    """Path of an engine, as the driver takes it."""
    where = os.environ.get("PROFINFER_ENGINES") or os.path.join(CACHE, "engines")
    line = sh([os.path.join(ROOT, "tests", "engines", "fetch.sh"), where, name])
    return line.strip().split(" ", 1)[1]


def model(name, graph="llama"):
    """Path of a generated model; name is PRESET-TYPE, such as llama1b-L4-q4_0. `graph` is that of `synth --graph`."""
    where = os.environ.get("PROFINFER_MODELS") or os.path.join(CACHE, "models")
    path = os.path.join(where, name + ("" if graph == "llama" else f"-{graph}") + ".gguf")
    if not os.path.exists(path):
        os.makedirs(where, exist_ok=True)
        preset, kind = name.rsplit("-", 1)
        part = f"{path}.{os.getpid()}"
        sh([binary("ggml-runner"), "synth", preset, part, "--type", kind, "--graph", graph, "--force"], stderr=subprocess.DEVNULL)
        os.replace(part, path)
    return path


class Scratch(tempfile.TemporaryDirectory):
    def __init__(self):
        super().__init__(prefix="profinfer-bench-")

    def __enter__(self):
        return self

    def file(self, name):
        return os.path.join(self.name, name)


class Driver:
    """An engine process that runs on command. `run` returns the CPU and wall time of each token, ns."""

    def __init__(self, engine_path, model_path, threads, tokens_file, under=()):
        self.tokens = open(tokens_file, "w+")
        self.proc = subprocess.Popen(
            [*under, driver(), "--engine", engine_path, "--model", model_path, "-t", str(threads), "--control",
             "--per-token", tokens_file], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self.proc.pid
        self._answer()

    def _answer(self):
        line = self.proc.stdout.readline()
        if not line:
            raise BenchError(f"the engine ended with status {self.proc.wait()}")
        return json.loads(line)

    def tell(self, line):
        self.proc.stdin.write(line + "\n")
        self.proc.stdin.flush()
        return self._answer()

    def run(self, n):
        self.tokens.seek(0, os.SEEK_END)
        self.tell(f"run {n}")
        rows = [line.split() for line in self.tokens.readlines()]
        if len(rows) != n:
            raise BenchError(f"the driver wrote {len(rows)} tokens, not {n}")
        return [int(r[2]) for r in rows], [int(r[1]) for r in rows]

    def close(self):
        try:
            self.proc.stdin.close()
            self.proc.wait(10)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            self.proc.kill()
            self.proc.wait()
        self.tokens.close()


class Recorder:
    """`profinfer record -p PID`, from attached to ended."""

    def __init__(self, pid, out, *flags):
        self.out = out
        self.log = open(out + ".log", "w+")
        self.proc = subprocess.Popen(
            [binary("profinfer"), "record", "-q", "--force", "-o", out, "-p", str(pid), *flags],
            stdout=self.log, stderr=self.log)
        self.pid = self.proc.pid
        self._wait_attached()

    def _links(self):
        fds = f"/proc/{self.pid}/fd"
        try:
            names = [os.readlink(f"{fds}/{f}") for f in os.listdir(fds)]
        except OSError:
            return 0
        return sum("bpf_link" in n or "perf_event" in n for n in names)

    def _wait_attached(self):
        """Attached: it has more links than measuring the cost of a hit needs, and their number is stable."""
        last, since, begin = 0, time.monotonic(), time.monotonic()
        while time.monotonic() - begin < 30:
            if self.proc.poll() is not None:
                break
            now = self._links()
            if now != last:
                last, since = now, time.monotonic()
            elif last > 4 and time.monotonic() - since > 0.3:
                return
            time.sleep(0.01)
        self.fail("did not attach")

    def fail(self, what):
        self.proc.kill()
        self.proc.wait()
        self.log.seek(0)
        raise BenchError(f"profinfer record {what}: {self.log.read().strip()}")

    def stop(self):
        if self.proc.poll() is None:
            self.proc.send_signal(signal.SIGINT)
        try:
            code = self.proc.wait(60)
        except subprocess.TimeoutExpired:
            self.fail("did not end within 60 s of SIGINT")
        if code:
            self.fail(f"ended with status {code}")
        self.log.close()


# The driver loads its engine late, by dlopen; it waits this long before its first token, for the probes.
HOLD_SECONDS = "2"


def record_command(out, flags, args):
    """Records a driver run from its first token. Returns the driver's output."""
    cmd = [binary("profinfer"), "record", "-q", "--force", "-o", out, *flags, "--", driver(), *args, "--json",
           "--hold", HOLD_SECONDS]
    done = subprocess.run(cmd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise BenchError(f"{shlex.join(cmd)} failed with status {done.returncode}: {done.stderr.strip()}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def report(path):
    """The report as JSON; reports with a schema below 2 are converted to the current names."""
    found = json.loads(sh([binary("profinfer"), "report", "--json", path]))
    return {"quality": found.get("books"), **found}


def quartiles(values):
    """25 %, 50 % and 75 %."""
    if len(values) < 2:
        return (values[0],) * 3
    return tuple(statistics.quantiles(values, n=4, method="inclusive"))


def spread(values, digits=4):
    low, mid, high = quartiles(values)
    return f"{mid:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def cpu_ticks():
    """(busy, stolen, all) of the machine, from /proc/stat."""
    with open("/proc/stat") as f:
        t = [int(x) for x in f.readline().split()[1:9]]
    return sum(t) - t[3] - t[4], t[7], sum(t)


class Noise:
    """Load and stolen time of the machine between two points in time."""

    def __init__(self):
        self.start = cpu_ticks()

    def line(self):
        busy, stolen, total = (b - a for a, b in zip(self.start, cpu_ticks()))
        total = max(total, 1)
        text = (f"load {' '.join(open('/proc/loadavg').read().split()[:3])}, {busy / total:.0%} of all CPUs busy, "
                f"{stolen / total:.1%} stolen by the host")
        return text + ("  ** NOISY: other work was running **" if self.noisy(stolen / total) else "")

    def noisy(self, stolen):
        return stolen > 0.02 or os.getloadavg()[0] > os.cpu_count()


def machine():
    cpu = "unknown CPU"
    with open("/proc/cpuinfo") as f:
        for line in f:
            if line.startswith(("model name", "Model")):
                cpu = line.split(":", 1)[1].strip()
                break
    return f"{cpu}, {os.cpu_count()} CPUs, Linux {platform.release()} {platform.machine()}"


class Bench:
    """Collects verdicts and sets the final exit status."""

    def __init__(self, what, doc):
        self.parser = argparse.ArgumentParser(prog=f"benches/{what}.sh", description=doc,
                                              formatter_class=argparse.RawDescriptionHelpFormatter)
        self.parser.add_argument("--strict", action="store_true", help="exit 1 when a target is missed")
        self.parser.add_argument("--quick", action="store_true", help="fewer rounds: about a minute")
        self.missed = 0
        self.wrong = 0

    def begin(self):
        self.args = self.parser.parse_args()
        print(f"$ {shlex.join([self.parser.prog, *sys.argv[1:]])}\n{machine()}", flush=True)
        self.noise = Noise()
        return self.args

    def judge(self, good, text):
        self.missed += not good
        print(f"{'PASS' if good else 'MISS'}  {text}", flush=True)

    def require(self, good, otherwise):
        """What must hold on any machine, however busy: without it the bench fails."""
        if not good:
            self.wrong += 1
            print(f"WRONG {otherwise}", flush=True)

    def end(self):
        print(f"machine during the bench: {self.noise.line()}")
        return 1 if self.wrong or self.missed and self.args.strict else 0


@contextlib.contextmanager
def read_ahead(path, kib):
    """Sets the read-ahead of a file's disk, until the end."""
    device = os.stat(path).st_dev
    setting = f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb"
    with open(setting, "r+") as f:
        before = f.read()
        f.write(str(kib))
    try:
        yield
    finally:
        with open(setting, "w") as f:
            f.write(before)


def main(run):
    """Runs a bench; exit status 2 if it could not run."""
    try:
        sys.exit(run())
    except (BenchError, OSError, subprocess.SubprocessError) as e:
        print(f"bench failed: {e}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
