"""How long a warm `cargo build` takes after an edit.

A line is added to one file and removed again, so that only what depends on that file is compiled. Each row gives the seconds
of the build and the packages that were compiled. The profile is `dev`, with incremental compilation as on a developer's
machine. The tree must not be edited meanwhile.
"""

import os
import re
import statistics
import subprocess
import time

from common import ROOT, Bench, BenchError, main, spread

# What is edited, and a file of it.
EDITS = {
    "a subcommand": "programs/profinfer/src/top.rs",
    "the recorder": "src/recorder/drain/mod.rs",
    "render": "crates/render/src/text.rs",
    "pfi": "crates/pfi/src/record.rs",
}
# Seconds after an edit in a subcommand, with two processors.
MOST = 15


def build():
    """Seconds, and the packages that were compiled."""
    begin = time.monotonic()
    environment = dict(os.environ, CARGO_INCREMENTAL="1")
    done = subprocess.run(["cargo", "build", "--locked"], cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise BenchError(f"cargo build failed:\n{done.stderr[-2000:]}")
    return time.monotonic() - begin, re.findall(r"Compiling (\S+)", done.stderr)


def edited(path):
    """The result of a build with another line in the file, which is then as before."""
    file = os.path.join(ROOT, path)
    with open(file, "rb") as f:
        before = f.read()
    try:
        with open(file, "ab") as f:
            f.write(b"\n// An edit.\n")
        return build()
    finally:
        with open(file, "wb") as f:
            f.write(before)


def run():
    bench = Bench("build", __doc__)
    bench.parser.add_argument("--rounds", type=int, help="times that each is measured (5; 2 with --quick)")
    args = bench.begin()
    rounds = args.rounds or (2 if args.quick else 5)
    build()
    seconds, packages = {name: [] for name in EDITS}, {}
    for _ in range(rounds):
        for name, path in EDITS.items():
            took, packages[name] = edited(path)
            seconds[name].append(took)
    build()
    print(f"{'edit of':<14}{'seconds':>22}  compiled")
    for name in EDITS:
        print(f"{name:<14}{spread(seconds[name], 1):>22}  {' '.join(packages[name])}")
    found = statistics.median(seconds["a subcommand"])
    bench.judge(found < MOST, f"{found:.1f} s after an edit in a subcommand, {MOST} allowed")
    bench.judge(packages["a subcommand"] == ["profinfer"], "an edit in a subcommand compiles its program alone")
    return bench.end()


if __name__ == "__main__":
    main(run)
