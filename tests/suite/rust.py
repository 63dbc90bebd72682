#!/usr/bin/env python3
"""Builds test programs of the workspace, once for all, and runs them; prints each failure, skip and slow test.

usage: rust.py [--without-agent] [--turns] [--build] PROGRAM... [-- [--skip FILTER]... [FILTER...]]

PROGRAM is `lib` (the unit tests of all crates) or a file of tests/. The filters are libtest's.
--turns is for tests that record: each is printed. Those that may run beside others (`live!` in tests/common/mod.rs) come
first: as they wait for the kernel as long as they compute, twice as many at a time as there are processors. The others follow,
one at a time.
--build runs none.
Times, without those of waiting for a turn, and skips are also written to the files that the environment names (run.py sets
them): PROFINFER_TIMES and PROFINFER_SKIPS; the tests that run now are in PROFINFER_RUNNING.
Exit code: 0 all passed, 1 a test failed, 2 nothing could be run.
"""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from kernel import for_tests

ROOT = Path(__file__).resolve().parents[2]
# Shown although they passed.
SLOW = 20
BESIDE = f"--test-threads={2 * (os.cpu_count() or 1)}"


@dataclass
class Outcome:
    """Of one test program."""

    passed: int = 0
    # (seconds, name)
    times: list = field(default_factory=list)
    # (name, why)
    skipped: list = field(default_factory=list)
    # (name, output)
    failed: list = field(default_factory=list)
    # Names of those that run alone, later.
    later: list = field(default_factory=list)


@dataclass
class Program:
    name: str
    file: str
    directory: Path


def build(names, without_agent=False):
    """The programs, compiled with the features of the whole workspace, so that each crate is compiled once."""
    # Cargo builds a program only for the tests of its own package; others run ggml-runner too.
    every = dict.fromkeys(["runner_alloc", *names])
    targets = [part for name in every for part in (["--lib"] if name == "lib" else ["--test", name])]
    only = ["--no-default-features", "--package", "profinfer", "--package", "ggml-runner"]
    what = ["--locked", *(only if without_agent else ["--workspace"])]
    cargo = os.environ.get("CARGO", "cargo")
    test = [cargo, "test", *what, "--no-run", "--message-format=json-render-diagnostics", *targets]
    done = subprocess.run(test, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(2)
    messages = (json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
    made = [m for m in messages if m["reason"] == "compiler-artifact" and m["executable"] and m["profile"]["test"]
            and ("runner_alloc" in names or m["target"]["name"] != "runner_alloc")]
    return [Program(m["target"]["name"], m["executable"], Path(m["manifest_path"]).parent) for m in made]


def say_running(running):
    if place := os.environ.get("PROFINFER_RUNNING"):
        Path(place).write_text("\n".join(sorted(running)))


def run_in_turns(program, filters, ended=lambda name, event, seconds, output: None):
    """As `run`, of tests that record."""
    outcome = run(program, [BESIDE, *filters], ended, {"PROFINFER_ALONE_LATER": "1"})
    if not outcome.later:
        return outcome
    alone = run(program, ["--test-threads=1", "--exact", *outcome.later], ended)
    whole = {name: getattr(outcome, name) + getattr(alone, name) for name in ("passed", "times", "skipped", "failed")}
    return Outcome(**whole)


def run(program, filters, ended=lambda name, event, seconds, output: None, variables=()):
    """The outcome of a program's tests; `ended` is called after each."""
    # libtest's machine-readable output is unstable; the variable admits it to a stable toolchain's.
    environment = dict(os.environ, RUSTC_BOOTSTRAP="1", CARGO_MANIFEST_DIR=str(program.directory), **dict(variables))
    environment.pop("PROFINFER_SKIPS", None)
    unstable = ["-Zunstable-options", "--format", "json", "--report-time", "--show-output"]
    child = subprocess.Popen([program.file, *unstable, *filters], cwd=program.directory, env=environment,
                             stdout=subprocess.PIPE, text=True, errors="replace")  # fmt: skip
    outcome, running = Outcome(), set()
    for line in child.stdout:
        try:
            event = json.loads(line)
        except ValueError:
            # Written by a test's child, past libtest.
            print(line, end="", flush=True)
            continue
        if event.get("type") != "test":
            continue
        name, what = event["name"], event["event"]
        if what == "started":
            running.add(name)
        elif what in ("ok", "failed", "ignored"):
            running.discard(name)
            if what == "ok" and lines(event, "later: "):
                outcome.later.append(name)
                continue
            note(outcome, event)
            ended(name, what, seconds(event), event.get("stdout", ""))
        say_running(running)
    code = child.wait()
    if code and not outcome.failed:
        names, output = ", ".join(sorted(running)) or program.name, f"the test program ended with {code}"
        outcome.failed.append((names, output))
        ended(names, "failed", 0, output)
    return outcome


def lines(event, kind):
    """What a test said of itself, past `kind`."""
    return [line.removeprefix(kind) for line in event.get("stdout", "").splitlines() if line.startswith(kind)]


def seconds(event):
    """How long a test took, once it had its turn."""
    return max((event.get("exec_time") or 0) - sum(map(float, lines(event, "waited: "))), 0)


def note(outcome, event):
    name, output, skipped = event["name"], event.get("stdout", ""), lines(event, "skipped: ")
    if event["event"] == "failed":
        outcome.failed.append((name, output))
    elif skipped:
        outcome.skipped.append((name, "; ".join(skipped)))
    elif event["event"] == "ok":
        outcome.passed += 1
    outcome.times.append((seconds(event), name))


def append(variable, lines):
    if place := os.environ.get(variable):
        with open(place, "a") as file:
            file.writelines(f"{line}\n" for line in lines)


def report(program, outcome, seconds):
    for name, why in outcome.skipped:
        print(f"skipped: {program.name} {name}: {why}")
    parts = [f"{outcome.passed} passed", f"{len(outcome.failed)} failed", f"{len(outcome.skipped)} skipped"]
    print(f"{program.name}: {', '.join(parts)}, in {seconds:.0f} s", flush=True)
    append("PROFINFER_TIMES", [f"{seconds:.3f}\t{program.name} {name}" for seconds, name in outcome.times])
    append("PROFINFER_SKIPS", [f"{program.name} {name}\t{' '.join(why.split())}" for name, why in outcome.skipped])
    append("PROFINFER_FAILED", [f"{program.name} {name}" for name, _ in outcome.failed])


def main(arguments):
    own, _, filters = " ".join(arguments).partition(" -- ")
    flags = [word for word in own.split() if word.startswith("--")]
    names = [word for word in own.split() if not word.startswith("--")]
    if not names or set(flags) - {"--without-agent", "--turns", "--build"}:
        sys.exit(__doc__)
    programs = build(names, "--without-agent" in flags)
    if "--build" in flags:
        return 0
    total, failed = 0, 0

    def ended(name, what, seconds, output):
        if what == "failed":
            print(f"\n---- FAILED {name}\n{output.rstrip()}", flush=True)
        if "--turns" in flags or seconds > SLOW:
            print(f"  {what:7} {seconds:6.1f} s  {name}", flush=True)

    for program in programs:
        begin = time.monotonic()
        outcome = (run_in_turns if "--turns" in flags else run)(program, filters.split(), ended)
        if outcome.times or outcome.failed:
            report(program, outcome, time.monotonic() - begin)
        total += len(outcome.times)
        failed += len(outcome.failed)
    if not total:
        print(f"rust.py: no test of {', '.join(names)} matches {filters or 'anything'}", file=sys.stderr)
        return 2
    return 1 if failed else 0


if __name__ == "__main__":
    with for_tests():
        sys.exit(main(sys.argv[1:]))
