#!/usr/bin/env python3
"""Runs parts of the test suite, and ends with a table of their minutes, the slowest tests and what was skipped.

usage: run.py test | all | change | PART...

test    the parts of `make test`
all     every part
change  those of `make test`, those that the change can touch, and a turn of the others (.ci/run), within MINUTES: what
        is left out then is owed, and comes first in the next run
PART    by name; parts.py lists them

With CI=true or PROFINFER_REQUIRE=1, a test that is skipped is a failure. An oops of the kernel, or a warning of it about
uprobes, tracing, perf or BPF, ends the run and names the test.
Exit code: 0 all passed, 1 something failed, 2 no such part.
"""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import choose
import deps
from kernel import Watch
from parts import PARTS, SHORT

OUT = choose.ROOT / "target" / "tests" / "suite"
KINDS = ["times", "skips", "failed", "running"]
SLOWEST = 15
# Of a part that runs beside another one: it gets a tenth of a processor that both want (sched(7)).
NICE = 10
# A run of a change begins no part of the rest that would not end within these.
MINUTES = 60


START = time.monotonic()


@dataclass
class Result:
    part: object
    code: int
    seconds: float

    def lines(self, kind):
        """Of a file that the part's tests appended to."""
        try:
            return (OUT / f"{self.part.name}.{kind}").read_text().splitlines()
        except OSError:
            return []


def clock(seconds):
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def running_tests():
    """Those of test programs that run now."""
    names = [name for file in OUT.glob("*.running") for name in file.read_text().splitlines()]
    return ", ".join(names) or "before any test of a test program"


def groups(parts):
    """In the order of `parts`, those that run at the same time; the first one decides, the other has a low priority."""
    beside = {part.beside for part in parts}
    return [[part, *(p for p in parts if p.name == part.beside)] for part in parts if part.name not in beside]


class Runner:
    def __init__(self):
        self.children = []
        # What the kernel said, and the test during which it did.
        self.broken = None
        self.watch = Watch(self.found)
        if self.watch.why_not:
            print(f"suite: {self.watch.why_not}")
        self.watch.start()

    def found(self, lines):
        self.broken = (running_tests(), lines)
        self.stop()

    def stop(self):
        for child in self.children:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGTERM)

    def begin(self, part, nice):
        files = {f"PROFINFER_{kind.upper()}": str(OUT / f"{part.name}.{kind}") for kind in KINDS}
        print(f"\n== {part.name}: {part.about}", flush=True)
        command = ["nice", f"-{nice}", "make", "--no-print-directory", part.make]
        # A session of its own: all of it is ended if the kernel is not well.
        child = subprocess.Popen(command, cwd=choose.ROOT, env={**os.environ, **files}, start_new_session=True)
        self.children.append(child)

    def run(self, group):
        """The results of parts that run at the same time."""
        for old in OUT.glob("*.running"):
            old.unlink()
        for part in group:
            for old in OUT.glob(f"{part.name}.*"):
                old.unlink()
        begin, self.children = time.monotonic(), []
        for part in group:
            self.begin(part, NICE if self.children else 0)
        with ThreadPoolExecutor() as threads:
            try:
                results = list(threads.map(self.end, group, self.children, [begin] * len(group)))
            except KeyboardInterrupt:
                self.stop()
                raise
        if not self.broken and self.watch.oops():
            self.broken = (running_tests(), ["the kernel is tainted by an oops (bit 7 of /proc/sys/kernel/tainted); see dmesg"])
        return results

    def end(self, part, child, begin):
        result = Result(part, child.wait(), time.monotonic() - begin)
        verdict = "ok" if result.code == 0 else f"FAILED ({result.code})"
        print(f"== {part.name}: {verdict} in {clock(result.seconds)}", flush=True)
        return result


def summary(results, broken):
    print("\npart           minutes  tests  skipped  result")
    for result in results:
        tests, skips = len(result.lines("times")), len(result.lines("skips"))
        verdict = "ok" if result.code == 0 else "FAILED"
        print(f"{result.part.name:14} {clock(result.seconds):>7} {tests or '-':>6} {skips or '-':>8}  {verdict}")
    print(f"{'all':14} {clock(time.monotonic() - START):>7}")
    times = sorted(((float(line.split("\t")[0]), line.split("\t")[1]) for r in results for line in r.lines("times")), reverse=True)
    if times:
        print("\nslowest tests")
        for seconds, name in times[:SLOWEST]:
            print(f"  {seconds:6.1f} s  {name}")
    skips = [line.partition("\t") for r in results for line in r.lines("skips")]
    if skips:
        print("\nskipped")
        for name, _, why in skips:
            print(f"  {name}: {why}")
    failed = [f"{r.part.name}: {line}" for r in results if r.code for line in r.lines("failed") or ["see above"]]
    if failed:
        print("\nfailed", *failed, sep="\n  ")
    if broken:
        test, lines = broken
        print(f"\nThe kernel is not well since {test}; nothing was run after it:", *lines[:40], sep="\n  ")
    passed = len(times) - len(skips) - len(failed) + sum(1 for r in results if not r.lines("times") and r.code == 0)
    print(f"\n{max(passed, 0)} passed, {len(failed) + bool(broken)} failed, {len(skips)} skipped")


def selected(arguments):
    """(parts, lines about the choice, what to keep after success)"""
    if arguments == ["test"]:
        return SHORT, ["make test"], None
    if arguments == ["all"]:
        return PARTS, ["make test-all"], None
    if arguments == ["change"]:
        state = choose.State()
        parts, told, turn = choose.by_change(state)
        return parts, told, lambda owed: state.keep(choose.git("rev-parse", "HEAD")[0], turn, owed)
    return choose.by_names(arguments), [], None


def main(arguments):
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if arguments else 2
    try:
        parts, told, keep = selected(arguments)
    except LookupError as wrong:
        print(f"run.py: {wrong.args[0]}", file=sys.stderr)
        return 2
    print("parts:", ", ".join(part.name for part in parts))
    for line in told:
        print(f"  {line}")
    deps.attempt(deps.restore)
    OUT.mkdir(parents=True, exist_ok=True)
    runner, results, owed = Runner(), [], []
    for group in groups(parts):
        part = group[0]
        if keep and part.turn and time.monotonic() - START > 60 * (MINUTES - part.minutes):
            owed.append(part.name)
            continue
        results += runner.run(group)
        if runner.broken:
            break
    summary(results, runner.broken)
    if owed:
        print(f"left out for want of time, and first in the next run: {', '.join(owed)}")
    if runner.broken or any(result.code for result in results):
        return 1
    if keep:
        keep(owed)
    if set(SHORT) <= set(parts):
        deps.attempt(deps.save)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
