"""Building blocks of a check: the job for a guest, and the Book in which its judge records the results.

A check is one file in checks/ (and one in controls/ is a check that must fail). Its contents, all optional:

    \"\"\"One line: the property that is checked.\"\"\"
    KERNELS = "5.10 7.2"        kernels by name, else the oldest; with the newest where the kernel decides: ALL_BPF is here
    ALSO = "6.1 6.12"           more kernels, for `matrix.py --all-kernels` before a release
    BOOT = {"mode": "det"}      fields of boot.Guest (cross/qemu/boot.py): mode cpus clusters memory limit modules
                                append env cpu
    FILES = {"/models/a": path} guest path: local file, relative to the repository; TREES = ["llama"]: directories of the cache
    BOARDS = True               services, devices, clusters, tuning: what a board needs around a recorder
    SECONDS = 30                approximate duration; the longest start first
    SCRIPT = "..."              run by the guest's shell in /out; profinfer and ggml-runner are in its PATH;
                                `within 30 CONDITION` waits for at most 30 s times QEMU_SLOW
    def judge(run, book): ...   checks the outcome; without it only the script's exit code counts
    def prepare(guest): ...     fields of the Guest that differ from run to run; guest.out is there, and empty
    def beside(guest, runs): ... what happens on this machine while the guest runs; runs() tells whether it does
    AGAIN = "..."               the script of a second boot; /out/disk.tar of the first is its /job/disk.tar
    def judge_again(run, book): ...

The judge is called when the script ended with 0 (or with one of EXIT_CODES). It reports failures with
book.expect, and fills the kernel's row with book.supported, book.degraded, book.hits and book.losses, or for a
JSON report with book.recorded.
"""

import importlib.util
import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "cross" / "qemu"))

import boot  # noqa: E402

OLDEST, BETWEEN, NEWEST = "5.10", "6.1 6.12", "7.2"
DEBIAN = f"{OLDEST} {BETWEEN} {NEWEST}"
ALL_BPF = f"{OLDEST} {NEWEST} 5.10-nobtf"
ALL = f"{DEBIAN} 5.10-nobtf 5.10-nobpf"
# For `make test`: the checks that show at once whether a kernel is still understood.
SHORT = ({"record", "doctor"}, {OLDEST, NEWEST})
# If set, a check that cannot run is a failure.
REQUIRED = os.environ.get("CI") == "true" or os.environ.get("PROFINFER_REQUIRE") == "1"
BINARIES = ROOT / "dist" / "aarch64-unknown-linux-musl"
# A whole number that all patience is multiplied by: an emulated processor on a busy machine is slow. What ends in time
# takes no longer for it.
SLOW = int(os.environ.get("QEMU_SLOW") or 3)
WITHIN = """
within() { # seconds, condition
    for _ in $(seq $(($1 * 5 * QEMU_SLOW))); do
        ! eval "$2" || return 0
        sleep 0.2
    done
    echo "in vain, for $1 s times $QEMU_SLOW: $2" >&2
    exit 1
}
"""


@dataclass
class Book:
    """The results of one check on one kernel."""

    supported: set = field(default_factory=set)
    # Degraded feature: how it was reported.
    degraded: dict = field(default_factory=dict)
    hits_expected: int = 0
    hits_seen: int = 0
    # None: not counted.
    lost: int = None
    failures: list = field(default_factory=list)
    # Why it could not run here; a failure if skipping is not allowed.
    skipped: str = ""
    notes: list = field(default_factory=list)

    def expect(self, true, otherwise):
        """Records a failure unless `true`."""
        if not true:
            self.failures.append(otherwise)

    def hits(self, expected, seen):
        """Adds to the row, and requires that all were seen. `expected` must come from the work the engine had to do,
        never from the recording."""
        self.hits_expected += expected
        self.hits_seen += seen
        self.expect(expected > 0, "no hit was expected: the check proves nothing")
        self.expect(seen == expected, f"{seen} hits seen of {expected} expected")

    def losses(self, lost):
        """Adds to the row, and requires that there are none."""
        self.lost = (self.lost or 0) + lost
        self.expect(lost == 0, f"{lost} lost")

    def recorded(self, report):
        """Hits and losses of a `profinfer report --json`, which must be complete."""
        books = report["quality"]
        counted = [rung for rung in books["rungs"] if rung["expected"] is not None]
        self.expect("op" in {rung["role"] for rung in counted}, "the ops were not counted")
        for rung in counted:
            self.hits(rung["expected"], rung["seen"])
        for kind in books["events"]:
            self.expect(kind["closes"], f"{kind['kind']} counts disagree: seen is not recorded + lost")
            self.losses(kind["lost"])
        self.expect(books["complete"], f"not complete: {books['verdict']}")

    def selftest(self, found):
        """The checks of a `profinfer selftest --json`. The accuracy of the times is noted, but not judged: on an
        emulated processor a probe hit takes much longer than on a real one, and even longer on a busy host."""
        for row in found["checks"]:
            if row["check"].endswith(": accuracy") and " should reach " in row["detail"]:
                self.notes.append(f"{row['check']}: {row['detail']}")
                continue
            self.expect(row["verdict"] == "ok", f"{row['check']}: {row['verdict']}: {row['detail']}")
        self.expect(len(found["recordings"]) > 0, "the self-test recorded nothing")

    def kept(self, report):
        """A service's recording, in which the budget may omit ops: no event is lost, and there are some ops."""
        for kind in report["quality"]["events"]:
            self.expect(kind["closes"], f"{kind['kind']} counts disagree: seen is not recorded + lost")
            self.losses(kind["lost"])
        ops = sum(kind["recorded"] for kind in report["quality"]["events"] if kind["kind"] == "op")
        self.expect(ops > 0, "no op was recorded")


class Outcome:
    """The files of a run, for a judge. Raises LookupError for a missing file."""

    def __init__(self, run, kernel):
        self.run = run
        self.kernel = kernel
        self.stdout = run.text("stdout.txt")
        self.stderr = run.text("stderr.txt")

    def text(self, name):
        """The content of a file that the guest left in /out."""
        path = self.run.out / "out" / name
        if not path.is_file():
            raise LookupError(f"the guest left no {name}")
        return path.read_text(errors="replace")

    def json(self, name):
        try:
            return json.loads(self.text(name))
        except ValueError as wrong:
            raise LookupError(f"{name} is no JSON: {wrong}") from wrong

    def path(self, name):
        return self.run.out / "out" / name


class Check:
    """A file of checks/ or controls/."""

    def __init__(self, path):
        self.name = path.stem
        spec = importlib.util.spec_from_file_location(f"check_{path.stem}", path)
        self.module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.module)
        self.kernels = self.option("KERNELS", OLDEST).split()
        self.all_kernels = [*self.kernels, *self.option("ALSO", "").split()]
        self.seconds = self.option("SECONDS", 5)
        self.boards = self.option("BOARDS", False)
        # Controls: expected failure message.
        self.must_say = self.option("MUST_SAY", None)

    def option(self, name, otherwise):
        return getattr(self.module, name, otherwise)

    def guest(self, kernel, out, script="SCRIPT", more=None):
        """The job. Raises boot.Unusable if something is missing here."""
        binaries = self.option("BINARIES", BINARIES)
        files = {f"/job/{name}": boot.program_for_arm64(binaries / name) for name in ("profinfer", "ggml-runner")}
        files |= {inside: ROOT / here for inside, here in self.option("FILES", {}).items()} | (more or {})
        trees = [boot.CACHE / name for name in self.option("TREES", [])]
        script = "set -eu\n" + WITHIN + self.option(script, "")
        here = {name: self.option(name, None) for name in ("prepare", "beside")}
        guest = boot.Guest(kernel, script, out, files=files, trees=trees, **here, **self.option("BOOT", {}))
        guest.limit *= SLOW
        guest.env["QEMU_SLOW"] = SLOW
        return guest

    def run(self, kernel, out):
        """The Book of one kernel, and the duration in seconds. Every error becomes a failure in the Book."""
        book = Book()
        seconds = 0.0
        try:
            run = boot.run(self.guest(self.option("IMAGE", kernel), out))
            seconds = run.seconds
            self.judge(run, kernel, book)
            if self.option("AGAIN", None) and not book.failures:
                disk = {"/job/disk.tar": run.out / "out" / "disk.tar"}
                run = boot.run(self.guest(kernel, out.with_name(f"{out.name}-again"), "AGAIN", disk))
                seconds += run.seconds
                self.judge(run, kernel, book, "judge_again")
        except boot.Absent as why:
            if REQUIRED:
                book.failures.append(str(why))
            else:
                book.skipped = str(why)
        except boot.Unusable as why:
            book.failures.append(str(why))
        except Exception as wrong:  # noqa: BLE001 - an error in one check must not affect the others' rows
            book.failures.append(f"{type(wrong).__name__}: {wrong}")
        return book, seconds

    def judge(self, run, kernel, book, name="judge"):
        if run.died:
            book.failures.append(f"{run.died}\n{run.tail()}")
        elif run.code not in self.option("EXIT_CODES", [0]):
            book.failures.append(f"exit code {run.code}\n{run.tail()}")
        elif judge := self.option(name, None):
            judge(Outcome(run, kernel), book)


def checks(folder):
    """All checks of a directory, by name."""
    return [Check(path) for path in sorted((Path(__file__).parent / folder).glob("*.py"))]
