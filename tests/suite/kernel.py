"""The kernel while tests run: an oops, or a warning about what a recorder uses, ends the suite; and its settings meanwhile."""

import contextlib
import os
import re
import select
import threading
from pathlib import Path

TAINTED = Path("/proc/sys/kernel/tainted")
# Documentation/admin-guide/tainted-kernels.rst: bit 7, the kernel died recently (an oops or a BUG).
DIED = 1 << 7
# Where a report begins, and where a warning ends. A lockup or a stall is no oops: a busy machine has them, too.
OOPS = re.compile(r"BUG: (unable to handle|kernel NULL|KASAN|Bad page)|Oops: |Internal error: |general protection fault|kernel BUG at ")
WARNING = re.compile(r"WARNING: ")
END = "---[ end trace"
# Functions of uprobes, tracing, perf and BPF, as a stack names them. Not those that print the stack itself.
OURS = re.compile(r"\b\w*(uprobe|tracefs|ftrace|trace_(event|array|probe)|tracing_|perf_|bpf)\w*\+0x")
# Checks that fail for what the kernel itself does, and harm nothing: Linux 6.16 and later with CONFIG_EXT4_DEBUG want a lock
# held as a page of a file is read, and install_breakpoint() reads one, where the code is not in memory, without it.
HARMLESS = re.compile(r"WARNING: .* ext4_check_map_extents_env\+0x")

# Documentation/admin-guide/kernel-parameters.txt, rcupdate.rcu_expedited: short grace periods. A recorder waits for one as it
# places and removes each probe, half of a short test's time.
EXPEDITED = Path("/sys/kernel/rcu_expedited")
# Linux 6.18 up to 6.18.44 starves whole groups of tasks for a minute while others wake each other (reweight_entity() places the
# running group anew; reverted in 6.18.45): a session of processes is no group then.
AUTOGROUP = Path("/proc/sys/kernel/sched_autogroup_enabled")
SETTINGS = [(EXPEDITED, "1"), (AUTOGROUP, "0")]


@contextlib.contextmanager
def for_tests():
    """Settings of the kernel while tests run. Guests of `make test-arm64` keep theirs as they are."""
    before = []
    for file, value in SETTINGS:
        try:
            before.append((file, file.read_text()))
            file.write_text(value)
        except OSError:
            # Not root, or not this kernel: slower, and the same.
            continue
    try:
        yield
    finally:
        for file, value in before:
            with contextlib.suppress(OSError):
                file.write_text(value)


def died():
    """Whether the kernel has had an oops since boot; False if that cannot be read."""
    try:
        return bool(int(TAINTED.read_text()) & DIED)
    except (OSError, ValueError):
        return False


class Reports:
    """Finds reports in the lines of the kernel's log."""

    def __init__(self):
        self.warning = []

    def line(self, text):
        """(severe, lines) once a report is known for what it is, else None."""
        if OOPS.search(text):
            return True, [*self.warning, text]
        if WARNING.search(text):
            self.warning = [text]
        elif self.warning:
            self.warning.append(text)
            if END in text or len(self.warning) > 200:
                lines, self.warning = self.warning, []
                return not HARMLESS.search(lines[0]) and any(OURS.search(line) for line in lines), lines
        return None


class Watch(threading.Thread):
    """Calls `found(lines)` at the first severe report; shows others. `why_not` says why nothing is watched."""

    def __init__(self, found):
        super().__init__(daemon=True)
        self.found, self.why_not, self.log = found, "", None
        self.before = died()
        try:
            self.log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
            os.lseek(self.log, 0, os.SEEK_END)
        except OSError as wrong:
            self.why_not = f"the kernel's log is not watched: {wrong}"

    def run(self):
        reports = Reports()
        while self.log is not None:
            select.select([self.log], [], [])
            try:
                record = os.read(self.log, 8192).decode(errors="replace")
            except BrokenPipeError:
                # Records were overwritten before they were read.
                continue
            except OSError:
                return
            report = reports.line(record.partition(";")[2].split("\n")[0])
            if report and report[0]:
                return self.found(report[1])
            if report:
                print("suite: a warning of the kernel that is no fault of a recorder:", *report[1][:3], sep="\n  ", flush=True)

    def oops(self):
        """Whether the kernel has had an oops since this was made."""
        return died() and not self.before
