#!/usr/bin/env python3
"""Runs test programs again and again beside two busy loops and a disk writer; prints what failed and how often.

usage: flaky.py N PROGRAM [FILTER...]      (make flaky N=20 SUITE=live)

PROGRAM is one of rust.py's, FILTER libtest's. Output of the first failure of each test goes to target/tests/flaky/.
Exit code: 0 no test failed, 1 some did.
"""

import contextlib
import subprocess
import sys
import time
from collections import Counter

import rust
from kernel import for_tests

OUT = rust.ROOT / "target" / "tests" / "flaky"
BUSY = "while :; do :; done"
WRITER = 'while :; do dd if=/dev/zero of="$0" bs=1M count=64 conv=fsync status=none; done'


@contextlib.contextmanager
def load():
    """Two busy loops and a writer, until the end."""
    file = OUT / "written"
    started = [subprocess.Popen(["sh", "-c", BUSY]) for _ in range(2)]
    started.append(subprocess.Popen(["sh", "-c", WRITER, file]))
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()
        file.unlink(missing_ok=True)


def main(arguments):
    if len(arguments) < 2 or not arguments[0].isdigit():
        sys.exit(__doc__)
    times, name, filters = int(arguments[0]), arguments[1], arguments[2:]
    OUT.mkdir(parents=True, exist_ok=True)
    programs = rust.build([name])
    run = rust.run_in_turns if name == "live" else rust.run
    failures, ran = Counter(), Counter()
    with load(), for_tests():
        for n in range(1, times + 1):
            begin = time.monotonic()
            now = 0
            for program in programs:
                outcome = run(program, filters)
                ran.update(test for _, test in outcome.times)
                now += len(outcome.failed)
                for test, output in outcome.failed:
                    if not failures[test]:
                        (OUT / f"{test.replace('::', '.').replace('/', '.')[:100]}.txt").write_text(output)
                    failures[test] += 1
            print(f"run {n} of {times}: {now} failed, in {time.monotonic() - begin:.0f} s", flush=True)
    for test, number in failures.most_common():
        print(f"  {number:4} of {ran[test]}  {test}")
    print(f"{sum(ran.values())} tests run, {sum(failures.values())} failed; output: {OUT.relative_to(rust.ROOT)}/")
    return 1 if failures or not ran else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
