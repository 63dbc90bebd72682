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
from dataclasses import dataclass
from pathlib import Path

import choose
import deps
from kernel import Watch
from parts import PARTS, SHORT

OUT = choose.ROOT / "target" / "tests" / "suite"
RUNNING = OUT / "running"
SLOWEST = 15
# A run of a change begins no part of the rest that would not end within these.
MINUTES = 60


START = time.monotonic()


@dataclass
class Result:
    part: object
    seconds: float
    code: int

    def lines(self, kind):
        """Of a file that the part's tests appended to."""
        try:
            return (OUT / f"{self.part.name}.{kind}").read_text().splitlines()
        except OSError:
            return []


def clock(seconds):
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def running_tests():
    """Those of a test program that run now; one for the tests that record."""
    return (RUNNING.read_text() if RUNNING.is_file() else "").replace("\n", ", ") or "before any test of a test program"


class Runner:
    def __init__(self):
        self.child = None
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
        if self.child and self.child.poll() is None:
            os.killpg(self.child.pid, signal.SIGTERM)

    def run(self, part):
        for old in OUT.glob(f"{part.name}.*"):
            old.unlink()
        RUNNING.unlink(missing_ok=True)
        files = {f"PROFINFER_{kind.upper()}": OUT / f"{part.name}.{kind}" for kind in ("times", "skips", "failed")}
        environment = {**os.environ, **{name: str(file) for name, file in files.items()}, "PROFINFER_RUNNING": str(RUNNING)}
        begin = time.monotonic()
        print(f"\n== {part.name}: {part.about}", flush=True)
        command = ["make", "--no-print-directory", part.make]
        # A session of its own: all of it is ended if the kernel is not well.
        self.child = subprocess.Popen(command, cwd=choose.ROOT, env=environment, start_new_session=True)
        try:
            code = self.child.wait()
        except KeyboardInterrupt:
            self.stop()
            raise
        if not self.broken and self.watch.oops():
            self.broken = (running_tests(), ["the kernel is tainted by an oops (bit 7 of /proc/sys/kernel/tainted); see dmesg"])
        result = Result(part, time.monotonic() - begin, code)
        print(f"== {part.name}: {'ok' if code == 0 else f'FAILED ({code})'} in {clock(result.seconds)}", flush=True)
        return result


def summary(results, broken):
    print("\npart           minutes  tests  skipped  result")
    for result in results:
        tests, skips = len(result.lines("times")), len(result.lines("skips"))
        verdict = "ok" if result.code == 0 else "FAILED"
        print(f"{result.part.name:14} {clock(result.seconds):>7} {tests or '-':>6} {skips or '-':>8}  {verdict}")
    print(f"{'all':14} {clock(sum(r.seconds for r in results)):>7}")
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


def keeper(turn):
    """What keeps the commit that is checked out now as one that passed; a changed tree is no commit's."""
    commit = choose.git("rev-parse", "HEAD")
    if not commit or choose.git("status", "--porcelain"):
        return lambda owed: print("not kept as a commit that passed: the tree is not that of a commit")
    return lambda owed: choose.State().keep(commit[0], turn, owed)


def selected(arguments):
    """(parts, lines about the choice, what to keep after success)"""
    if arguments == ["test"]:
        return SHORT, ["make test"], None
    if arguments == ["all"]:
        return PARTS, ["make test-all"], keeper(0)
    if arguments == ["change"]:
        parts, told, turn = choose.by_change(choose.State())
        return parts, told, keeper(turn)
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
    for part in parts:
        if arguments == ["change"] and part.turn and time.monotonic() - START > 60 * (MINUTES - part.minutes):
            owed.append(part.name)
            continue
        results.append(runner.run(part))
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
