#!/usr/bin/env python3
"""Tests of the suite's own rules: what is chosen, what ends it, what counts as a wait."""

import re
import subprocess
import tempfile
import unittest
from pathlib import Path

import choose
import kernel
import parts
import rust
import waits

OOPS = """\
BUG: unable to handle page fault for address: ffff8881
#PF: supervisor read access in kernel mode
Oops: Oops: 0000 [#1] SMP
RIP: 0010:handler_chain+0x6d/0x2b0
Call Trace:
 uprobe_notify_resume+0x4a1/0x1240"""
WARNING = """\
WARNING: CPU: 1 PID: 4711 at {where}
Modules linked in:
RIP: 0010:{function}+0x20b/0x250
Call Trace:
 {caller}+0x10/0x20
 show_trace_log_lvl+0x1b0/0x2f0
---[ end trace 0000000000000000 ]---"""


def report(text):
    reports = kernel.Reports()
    return [found for line in text.splitlines() if (found := reports.line(line))]


class Kernel(unittest.TestCase):
    def test_an_oops_is_severe_at_its_first_line(self):
        self.assertEqual(report(OOPS)[0], (True, [OOPS.splitlines()[0]]))

    def test_a_warning_is_severe_if_its_stack_names_what_a_recorder_uses(self):
        for caller in ["__uprobe_unregister", "tracefs_create_file", "perf_event_release_kernel", "__bpf_prog_put", "trace_event_reg"]:
            text = WARNING.format(where="kernel/x.c:1", function="do_work", caller=caller)
            self.assertEqual([severe for severe, _ in report(text)], [True], caller)

    def test_another_warning_is_only_shown(self):
        text = WARNING.format(where="fs/ext4/inode.c:3000", function="ext4_dirty_folio", caller="ext4_writepages")
        self.assertEqual([severe for severe, _ in report(text)], [False])

    def test_a_check_that_uprobes_themselves_fail_harmlessly_is_only_shown(self):
        where, function = "fs/ext4/inode.c:460 ext4_check_map_extents_env+0xbc/0xd0", "ext4_check_map_extents_env"
        text = WARNING.format(where=where, function=function, caller="uprobe_mmap")
        self.assertEqual([severe for severe, _ in report(text)], [False])

    def test_other_lines_are_nothing(self):
        self.assertEqual(report("BUG: workqueue lockup - pool cpus=1 node=0 flags=0x0 nice=0 stuck for 30s!"), [])
        self.assertEqual(report("uprobe: profinfer:4711 failed to unregister, leaking uprobe\neth0: link up"), [])


class Choice(unittest.TestCase):
    def tracked(self):
        done = subprocess.run(["git", "-C", choose.ROOT, "ls-files"], capture_output=True, text=True)
        if done.returncode:
            self.skipTest("these sources are not in git")
        return done.stdout.splitlines()

    def test_each_tracked_path_is_in_the_table(self):
        self.assertEqual([path for path in self.tracked() if parts.touched(path) is None], [])

    def test_each_row_of_the_table_is_the_first_for_some_path(self):
        unused = dict(parts.PATHS)
        for path in self.tracked():
            row = next((p for p, _ in parts.PATHS if parts.fnmatchcase(path, p)), None)
            unused.pop(row, None)
        self.assertEqual(list(unused), [])

    def test_the_table_names_parts_of_the_rest(self):
        rest = {part.name for part in parts.REST}
        for pattern, names in parts.PATHS:
            self.assertLessEqual(set(names.split()), rest, pattern)

    def test_a_change_of_a_page_runs_the_commands_of_pages(self):
        for page in ["README.md", "CONTRIBUTING.md", "python/README.md", "docs/SQL.md", "docs/recipes/ollama.md"]:
            self.assertIn("docs", parts.touched(page), page)

    def test_any_runs_of_as_many_as_there_are_turns_have_covered_all(self):
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "suite.json"
            turns = []
            for _ in range(3 * parts.TURNS):
                state = choose.State(path)
                turns.append(state.next_turn())
                state.keep("commit", turns[-1], ["arm"])
            self.assertEqual(choose.State(path).owed, ["arm"])
        for first in range(len(turns) - parts.TURNS):
            self.assertEqual(set(turns[first : first + parts.TURNS]), {part.turn for part in parts.REST})

    def test_what_was_left_out_comes_first(self):
        self.tracked()
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "suite.json"
            choose.State(path).keep(choose.git("rev-parse", "HEAD")[0], 4, ["spark", "arm"])
            chosen, told, turn = choose.by_change(choose.State(path))
        names = [part.name for part in chosen[len(parts.SHORT) :]]
        self.assertEqual((names, turn), (["spark", "arm", "guests", "docs"], 1), told)

    def test_a_damaged_state_is_that_of_a_new_machine(self):
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "suite.json"
            for text in ["", "{", "[]", '{"passed": "x", "run": "y", "turns": {}}']:
                path.write_text(text)
                state = choose.State(path)
                self.assertEqual((state.passed, state.run, state.turns, state.owed), ("", 0, {}, []), text)

    def test_each_part_is_a_target_of_the_makefile(self):
        makefile = (choose.ROOT / "Makefile").read_text()
        for part in parts.PARTS:
            self.assertTrue(re.search(rf"(?m)^{re.escape(part.make)}:", makefile), part.name)


class Tests(unittest.TestCase):
    def outcome(self, **event):
        outcome = rust.Outcome()
        rust.note(outcome, {"name": "suite::test", "exec_time": 1.0, **event})
        return outcome

    def test_a_skipped_test_is_not_a_passed_one(self):
        outcome = self.outcome(event="ok", stdout="before\nskipped: no KVM\n")
        self.assertEqual((outcome.passed, outcome.skipped), (0, [("suite::test", "no KVM")]))
        self.assertEqual(self.outcome(event="ok", stdout="not skipped: x").passed, 1)

    def test_a_failed_one_keeps_its_output(self):
        self.assertEqual(self.outcome(event="failed", stdout="why").failed, [("suite::test", "why")])


class Waits(unittest.TestCase):
    def found(self, name, text):
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / name
            path.write_text(text)
            pattern = waits.SLEEP[path.suffix]
            return [line for line in text.splitlines() if pattern.search(line) or waits.SHELL.search(line)]

    def test_sleeps_of_each_language_are_found(self):
        for name, text in [
            ("a.rs", "thread::sleep(TICK);"), ("a.py", "    time.sleep(0.2)"), ("a.sh", "while x; do sleep 0.2; done"),
            ("a.c", "nanosleep(&t, NULL);"), ("b.rs", 'record(&["sh", "-c", "sleep 0.2; exit 3"])'),
        ]:  # fmt: skip
            self.assertEqual(self.found(name, text), [text])

    def test_what_only_keeps_a_process_alive_is_none(self):
        self.assertEqual(self.found("a.rs", 'Target::start("sleep", &["1000"])'), [])


if __name__ == "__main__":
    unittest.main()
