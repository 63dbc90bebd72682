"""What a check of the matrix is made of: the job for a guest, and the book in which its judge writes.

A check is one file in checks/ (and one in controls/ is a check that must fail). It says, all but `judge` optional:

    \"\"\"One line: what is proven.\"\"\"
    KERNELS = "5.10 6.12"       kernels by name, else the four of Debian's; ALL_BPF and ALL are here
    BOOT = {"mode": "det"}      fields of boot.Guest (cross/qemu/boot.py): mode cpus clusters memory limit modules
                                append env cpu
    FILES = {"/models/a": path} guest path: file here, from the repository's root; TREES = ["llama"]: folders of the cache
    SECONDS = 30                about how long it takes; the longest start first
    SCRIPT = "..."              what the guest's shell runs in /out; profinfer and ggml-runner are in its PATH
    def judge(run, book): ...   looks at the outcome; without it the script's exit code alone decides
    AGAIN = "..."               the script of a second boot, which has as /job/disk.tar what the first left in /out/disk.tar
    def judge_again(run, book): ...

The judge is called when the script ended with 0 (or with one of EXIT_CODES). What it finds wrong it says with
book.expect; what goes into the kernel's row with book.supported, book.degraded, book.hits and book.losses, or for a
report in JSON with book.recorded.
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

DEBIAN = "5.10 6.1 6.12 7.2"
ALL_BPF = f"{DEBIAN} 5.10-nobtf"
ALL = f"{ALL_BPF} 5.10-nobpf"
# A check that cannot run is a failure then.
REQUIRED = os.environ.get("CI") == "true" or os.environ.get("PROFINFER_REQUIRE") == "1"
BINARIES = ROOT / "dist" / "aarch64-unknown-linux-musl"


@dataclass
class Book:
    """What one check found on one kernel."""

    supported: set = field(default_factory=set)
    # What: how it was said.
    degraded: dict = field(default_factory=dict)
    hits_expected: int = 0
    hits_seen: int = 0
    # None: nobody counted.
    lost: int = None
    failures: list = field(default_factory=list)
    # Why it could not run here; where skipping is not allowed that is a failure.
    skipped: str = ""
    notes: list = field(default_factory=list)

    def expect(self, true, otherwise):
        """A failure unless `true`."""
        if not true:
            self.failures.append(otherwise)

    def hits(self, expected, seen):
        """Adds to the row, and demands that all came. `expected` comes from what the engine had to run, never from
        what was seen."""
        self.hits_expected += expected
        self.hits_seen += seen
        self.expect(expected > 0, "no hit was expected: nothing is proven")
        self.expect(seen == expected, f"{seen} hits seen of {expected} expected")

    def losses(self, lost):
        """Adds to the row, and demands that there are none."""
        self.lost = (self.lost or 0) + lost
        self.expect(lost == 0, f"{lost} lost")

    def recorded(self, report):
        """Hits and losses of a `profinfer report --json`, which must call itself complete."""
        books = report["quality"]
        counted = [rung for rung in books["rungs"] if rung["expected"] is not None]
        self.expect("op" in {rung["role"] for rung in counted}, "nobody counted the ops")
        for rung in counted:
            self.hits(rung["expected"], rung["seen"])
        for kind in books["events"]:
            self.expect(kind["closes"], f"the books of {kind['kind']} do not close")
            self.losses(kind["lost"])
        self.expect(books["complete"], f"not complete: {books['verdict']}")

    def selftest(self, found):
        """The checks of a `profinfer selftest --json`. The accuracy of the times is noted, not judged: on an
        emulated processor a probe hit takes much longer than on a real one, and longer still on a busy host."""
        for row in found["checks"]:
            if row["check"].endswith(": accuracy") and " should reach " in row["detail"]:
                self.notes.append(f"{row['check']}: {row['detail']}")
                continue
            self.expect(row["verdict"] == "ok", f"{row['check']}: {row['verdict']}: {row['detail']}")
        self.expect(len(found["recordings"]) > 0, "the self-test recorded nothing")

    def kept(self, report):
        """What the service recorded, whose budget may leave ops out: all that came is in the file, and ops are among it."""
        for kind in report["quality"]["events"]:
            self.expect(kind["closes"], f"the books of {kind['kind']} do not close")
            self.losses(kind["lost"])
        ops = sum(kind["recorded"] for kind in report["quality"]["events"] if kind["kind"] == "op")
        self.expect(ops > 0, "no op was recorded")


class Outcome:
    """A run's files, for a judge. Raises LookupError for one that did not come out."""

    def __init__(self, run, kernel):
        self.run = run
        self.kernel = kernel
        self.stdout = run.text("stdout.txt")
        self.stderr = run.text("stderr.txt")

    def text(self, name):
        """What the guest left in /out under this name."""
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
        self.kernels = self.option("KERNELS", DEBIAN).split()
        self.seconds = self.option("SECONDS", 5)
        # Controls: what the failure must say.
        self.must_say = self.option("MUST_SAY", None)

    def option(self, name, otherwise):
        return getattr(self.module, name, otherwise)

    def guest(self, kernel, out, script="SCRIPT", more=None):
        """The job. Raises boot.Unusable for what is missing here."""
        binaries = self.option("BINARIES", BINARIES)
        files = {f"/job/{name}": boot.program_for_arm64(binaries / name) for name in ("profinfer", "ggml-runner")}
        files |= {inside: ROOT / here for inside, here in self.option("FILES", {}).items()} | (more or {})
        trees = [boot.CACHE / name for name in self.option("TREES", [])]
        script = "set -eu\n" + self.option(script, "")
        return boot.Guest(kernel, script, out, files=files, trees=trees, **self.option("BOOT", {}))

    def run(self, kernel, out):
        """The book of one kernel, and the seconds it took. Whatever goes wrong is a failure in the book."""
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
        except Exception as wrong:  # noqa: BLE001 - one check's mistake is not to take the others' rows away
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
    """All of a folder, by name."""
    return [Check(path) for path in sorted((Path(__file__).parent / folder).glob("*.py"))]
