#!/usr/bin/env python3
"""Finds waits by time in tests: sleeps outside the list waits.tsv, which has a reason for each file that may have some.

A test waits for an event: a line on a pipe, the end of a process, a file that appears, a record of the trace. A row of
waits.tsv is a path, how many sleeps it may have, and why.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_name("waits.tsv")
SLEEP = {
    ".rs": re.compile(r"\bsleep\("),
    ".py": re.compile(r"\b(?:time|asyncio)\.sleep\("),
    ".sh": re.compile(r"(?:^|[;&|({]|\bdo|\bthen|\belse)\s*sleep\s"),
    ".c": re.compile(r"\b(?:u|nano|clock_nano)?sleep\("),
}
# Also commands that a test has a shell run.
SHELL = re.compile(r"[;\"'\s(]sleep (?:0?\.\d+|[1-9])(?![\d.])")
# A process that is only there, until a test ends it.
STAYS = re.compile(r"sleep\(1000\)")


def is_test(path):
    """Files of tests/, and the tests inside src, crates and programs."""
    inside = path.name == "tests.rs" or "tests" in path.parts[1:-1]
    return path.parts[0] == "tests" and path.parts[1] != "suite" or path.parts[0] in ("src", "crates", "programs") and inside


def code_of(path):
    """The lines that are a test's: of a source file, those after `mod tests`."""
    lines = (ROOT / path).read_text(errors="replace").splitlines()
    if path.parts[0] == "tests" or is_test(path):
        return list(enumerate(lines, 1))
    begin = next((i for i, line in enumerate(lines) if re.match(r"\s*mod tests \{", line)), len(lines))
    return list(enumerate(lines, 1))[begin:]


def sleeps(path):
    pattern = SLEEP[path.suffix]
    for number, line in code_of(path):
        code = re.sub(r"^\s*(//|#|\*).*", "", line)
        if STAYS.search(code):
            continue
        if pattern.search(code) or path.suffix in (".rs", ".py") and SHELL.search(code):
            yield number, line.strip()


def allowed():
    rows = [line.split("\t") for line in LIST.read_text().splitlines() if line and not line.startswith("#")]
    return {path: (int(number), why) for path, number, why in rows}


def main():
    listing = subprocess.run(["git", "-C", ROOT, "ls-files", "tests", "src", "crates", "programs"], capture_output=True, text=True)
    files = [Path(line) for line in listing.stdout.splitlines() if Path(line).suffix in SLEEP and "suite" not in line.split("/")]
    known, faults, seen = allowed(), [], set()
    for path in files:
        if not (ROOT / path).is_file():
            continue
        found = list(sleeps(path)) if path.suffix == ".rs" or path.parts[0] == "tests" else []
        number, why = known.get(str(path), (0, ""))
        seen.add(str(path))
        if len(found) > number:
            faults += [f"{path}:{line}: {code}" for line, code in found]
        elif len(found) < number or number and not why:
            faults.append(f"{LIST.name}: {path} has {len(found)} sleeps, not {number}, or no reason")
    faults += [f"{LIST.name}: no file {path}" for path in known.keys() - seen]
    if faults:
        print("Tests wait for events, not for a time to pass. Await the event, or add a row to waits.tsv:", *faults, sep="\n", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
