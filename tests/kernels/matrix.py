#!/usr/bin/env python3
"""Real arm64 kernels, each booted in QEMU with our two programs: one row per kernel, followed by the failures.

usage: matrix.py [-j JOBS] [-k KERNEL,... | --all-kernels | --short] [--boards | --not-boards] [--binaries DIR] [CHECK...]

The checks are the files of checks/; bed.py describes how to add one. The controls are checks that must fail,
each in a specific way: if one passes, the matrix is not reliable. A check runs on the oldest kernel, and on the newest
if the kernel decides its result; before a release, --all-kernels adds those between. QEMU_SLOW=6 in the environment
allows twice the time. The files of every run are kept in target/tests/kernels.
Exit code: 0 success, 1 something failed, 2 it could not run.
"""

import argparse
import os
import re
import sys
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import bed

OUT = bed.ROOT / "target" / "tests" / "kernels"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count() or 1)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("-k", "--kernels", default="", help="only these, separated by commas")
    which.add_argument("--all-kernels", action="store_true", help="each check on every kernel that it knows")
    which.add_argument("--short", action="store_true", help=" and ".join(sorted(bed.SHORT[0])) + " on the oldest and the newest")
    boards = parser.add_mutually_exclusive_group()
    boards.add_argument("--boards", action="store_true", help="only checks of what a board needs around a recorder")
    boards.add_argument("--not-boards", action="store_true", help="only the others, and the controls")
    parser.add_argument("--binaries", type=Path, default=bed.BINARIES, help="directory of the two programs (dist/...)")
    parser.add_argument("checks", nargs="*", help="only these checks; 'controls' selects the controls")
    return parser.parse_args()


def chosen(args):
    """(check, kernel) pairs, longest first."""
    every = bed.checks("checks")
    controls = bed.checks("controls")
    if not every or not controls:
        sys.exit("matrix.py: no checks, or no controls, next to this file")
    unknown = set(args.checks) - {check.name for check in every} - {"controls"}
    if unknown:
        sys.exit(f"matrix.py: no check {', '.join(sorted(unknown))}; available: {', '.join(c.name for c in every)}, controls")
    wanted = [check for check in every if not args.checks or check.name in args.checks]
    if not args.checks or "controls" in args.checks:
        wanted += controls
    if args.boards or args.not_boards:
        wanted = [check for check in wanted if check.boards == args.boards]
    if args.short:
        wanted = [check for check in every if check.name in bed.SHORT[0]]
    named = {name for name in args.kernels.split(",") if name} or (bed.SHORT[1] if args.short else None)
    pairs = [
        (check, kernel)
        for check in wanted
        for kernel in (check.all_kernels if named or args.all_kernels else check.kernels)
        if not named or kernel in named
    ]
    if not pairs:
        sys.exit("matrix.py: nothing to run")
    return sorted(pairs, key=lambda pair: -pair[0].seconds)


def run_all(pairs, jobs):
    """(check, kernel): (book, seconds); prints a line for each as it ends."""
    results = {}
    with ThreadPoolExecutor(jobs) as pool:
        running = {
            pool.submit(check.run, kernel, OUT / f"{check.name}-{kernel}"): (check, kernel) for check, kernel in pairs
        }
        for done in as_completed(running):
            check, kernel = running[done]
            results[check, kernel] = done.result()
            book, seconds = results[check, kernel]
            print(f"  {verdict(check, book):7} {kernel:10} {check.name} ({seconds:.1f} s)", file=sys.stderr, flush=True)
    return results


def verdict(check, book):
    return "FAILED" if problems(check, book) else "skipped" if book.skipped else "ok"


def problems(check, book):
    """The problems of a result; for a control, that it did not fail or not in the expected way."""
    if check.must_say is None or book.skipped:
        return book.failures
    if not book.failures:
        return ["this control must fail, and passed"]
    if not any(re.search(check.must_say, failure) for failure in book.failures):
        return [f"failed without saying /{check.must_say}/:", *book.failures]
    return []


def rows(results):
    """One row per kernel."""
    by_kernel = defaultdict(list)
    for (check, kernel), (book, seconds) in results.items():
        if check.must_say is None:
            by_kernel[kernel].append((check, book, seconds))
    table = [["kernel", "result", "checks", "supported", "degraded", "hits expected", "seen", "lost", "s"]]
    for kernel in sorted(by_kernel, key=lambda name: bed.ALL.split().index(name) if name in bed.ALL.split() else 99):
        books = [book for _, book, _ in by_kernel[kernel]]
        passed = sum(not book.failures and not book.skipped for book in books)
        supported = set().union(*(book.supported for book in books))
        degraded = set().union(*(book.degraded for book in books))
        lost = [book.lost for book in books if book.lost is not None]
        expected = sum(book.hits_expected for book in books)
        table.append([
            kernel,
            "FAILED" if any(book.failures for book in books) else "ok" if passed == len(books) else "skipped",
            f"{passed} of {len(books)}",
            f"{len(supported - degraded)} of {len(supported | degraded)}" if supported or degraded else "-",
            ", ".join(sorted(degraded)) or "-",
            str(expected) if lost else "-",
            str(sum(book.hits_seen for book in books)) if lost else "-",
            str(sum(lost)) if lost else "-",
            f"{sum(seconds for _, _, seconds in by_kernel[kernel]):.0f}",
        ])  # fmt: skip
    return table


def print_table(table):
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())


def print_details(results):
    """Each missing feature as reported, once for all kernels that reported the same; then the failures."""
    said = defaultdict(list)
    for (check, kernel), (book, _) in results.items():
        if check.must_say is None:
            for what, how in book.degraded.items():
                if kernel not in said[what, how]:
                    said[what, how].append(kernel)
    if said:
        print("\nDegraded, in its own words:")
    for (what, how), kernels in sorted(said.items()):
        print(f"  {what} ({', '.join(sorted(kernels))}): {how}")
    for (check, kernel), (book, _) in results.items():
        for note in book.notes:
            print(f"  {check.name} on {kernel}: {note}")
        if book.skipped:
            print(f"skipped: {check.name} on {kernel}: {book.skipped}")
    for (check, kernel), (book, _) in results.items():
        for problem in problems(check, book):
            print(f"\nFAILED {check.name} on {kernel}: {problem}")
        if problems(check, book):
            print(f"  files: {(OUT / f'{check.name}-{kernel}').relative_to(bed.ROOT)}")


def main():
    args = arguments()
    bed.BINARIES = args.binaries.resolve()
    began = time.monotonic()
    results = run_all(chosen(args), max(1, args.jobs))
    print()
    print_table(rows(results))
    controls = [(check, book) for (check, _), (book, _) in results.items() if check.must_say is not None]
    if controls:
        good = sum(not problems(check, book) and not book.skipped for check, book in controls)
        print(f"controls: {good} of {len(controls)} failed as they must")
    print_details(results)
    failed = sum(bool(problems(check, book)) for (check, _), (book, _) in results.items())
    skipped = sum(bool(book.skipped) for book, _ in results.values())
    left_out = f", {skipped} skipped" if skipped else ""
    print(f"\n{len(results) - failed - skipped} of {len(results)} as they should be{left_out}, in {time.monotonic() - began:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
