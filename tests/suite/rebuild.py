#!/usr/bin/env python3
"""Checks what is compiled again: nothing after no change; after a change of a program's file, nothing that it depends on.

Asks clippy, whose results `make lint` has just made. Cargo says which packages are fresh before it begins with the one that
changed; it is stopped there.
"""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# A file of a program, and the only package that may depend on it.
PROGRAM = ROOT / "programs" / "profinfer" / "src" / "top.rs"
PACKAGE = "profinfer"
CLIPPY = ["cargo", "clippy", "--locked", "--workspace", "--all-targets", "--verbose", "--", "-D", "warnings"]


def compiled():
    """Packages that cargo begins to compile, the first of PACKAGE last."""
    # A group of its own: cargo runs in a child of clippy's.
    child = subprocess.Popen(CLIPPY, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, start_new_session=True)
    found = []
    for line in child.stderr:
        if begun := re.match(r"\s*(?:Checking|Compiling) (\S+)", line):
            found.append(begun[1])
            # The package's build script, which knows the commit, comes before it.
            if begun[1] == PACKAGE and line.lstrip().startswith("Checking"):
                os.killpg(child.pid, signal.SIGTERM)
                break
    child.wait()
    return found


def main():
    again = compiled()
    if again:
        print(f"rebuild.py: compiled again although nothing changed: {', '.join(again)}", file=sys.stderr)
        return 1
    was = PROGRAM.stat()
    os.utime(PROGRAM)
    try:
        again = compiled()
    finally:
        os.utime(PROGRAM, ns=(was.st_atime_ns, was.st_mtime_ns))
    if set(again) != {PACKAGE}:
        name = PROGRAM.relative_to(ROOT)
        print(f"rebuild.py: after a change of {name} only {PACKAGE} may be compiled, not {', '.join(again) or 'nothing'}",
              file=sys.stderr)  # fmt: skip
        return 1
    print("nothing is compiled again after no change, and only the program's package after a change of a subcommand")
    return 0


sys.exit(main())
