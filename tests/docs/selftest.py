#!/usr/bin/env python3
"""Tests of how pages are read: what is a command, where it ends, which code it must exit with, headings and links; and that
what commands leave running is ended."""

import contextlib
import os
import select
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

import book
import bounded
import commands
import pages
from scratch import Scratch, named


class Pages(unittest.TestCase):
    def read(self, text):
        with tempfile.TemporaryDirectory() as directory, mock.patch.object(pages, "ROOT", Path(directory).resolve()):
            page = pages.ROOT / "page.md"
            page.write_text(text)
            found = [[c.text for c in pages.commands(block)] for block in pages.blocks(page)]
            return found, pages.anchors(page), list(pages.links(page))

    def test_a_session_has_the_lines_after_a_dollar(self):
        self.assertEqual(self.read("```\n$ make demo\nmake it so\n$ ls \\\n  -l\n```\n")[0], [["make demo", "ls \\\n-l"]])

    def test_a_block_of_commands_has_all_its_lines(self):
        text = "a\n\n    while true; do\n        exit\n    done\n    make x   # why\n\nb\n"
        self.assertEqual(self.read(text)[0], [["while true; do\nexit\ndone", "make x   # why"]])

    def test_output_and_other_languages_are_no_commands(self):
        text = "```\nDecode 3 tok/s\n```\n\n    profinfer: no\n\n```toml\nmake = 1\n```\n"
        self.assertEqual(self.read(text)[0], [[], [], []])

    def test_a_program_that_is_not_known_is_told(self):
        block = pages.Block("page.md", 1, "", ["    sort x"])
        self.assertEqual(pages.unknown_program(block), "sort")
        self.assertIsNone(pages.unknown_program(pages.Block("page.md", 1, "text", ["    sort x"])))

    def test_headings_become_anchors(self):
        names = self.read("# A `b`: c, d\n\n## x\n## x\n\n```\n# no\n```\n")[1]
        self.assertEqual(names, {"a-b-c-d", "x", "x-1"})

    def test_links_in_code_are_none(self):
        found = self.read("[a](b.md#c) `[x](y)`\n\n    [x](y)\n\n![p](q.png)\n")[2]
        self.assertEqual(found, [(1, "b.md#c"), (5, "q.png")])


class Commands(unittest.TestCase):
    def command(self, text):
        return pages.Command("docs/PAGE.md", 1, text)

    def test_a_comment_states_the_exit_code(self):
        self.assertEqual(commands.expected(self.command("false   # exits with 1")), {1})
        self.assertEqual(commands.expected(self.command("true   # 1")), {0})

    def test_what_is_not_run_is_still_looked_at(self):
        for text in ["make no-such-target", "tests/no-such.py x", "for x in"]:
            self.assertTrue(commands.fault_of_not_run(self.command(text)), text)
        self.assertIsNone(commands.fault_of_not_run(self.command("make demo   # why")))

    def test_files_are_found_by_their_whole_name(self):
        self.assertTrue(named("run.pfi", "report run.pfi --all"))
        for text in ["x/run.pfi", "my-run.pfi", "run.pfi/x"]:
            self.assertFalse(named("run.pfi", text), text)
        self.assertTrue(named("runs/", "runs/*.pfi"))

    def test_what_a_block_writes_first_is_not_prepared(self):
        asked = []
        scratch = mock.Mock(spec=Scratch, place=Path(tempfile.gettempdir()), blocks=0)
        scratch.table = [("*", "run.pfi", ""), ("*", "old.pfi", "")]
        scratch.recipe.return_value = "x"
        scratch.make.side_effect = lambda page, name: asked.append(name)
        with tempfile.TemporaryDirectory() as directory:
            scratch.place = Path(directory)
            block = pages.Block("page.md", 1, "", [])
            Scratch.block(scratch, block, ["profinfer record -o run.pfi -- x", "profinfer diff old.pfi run.pfi"])
        self.assertEqual(asked, ["old.pfi"])


class Book(unittest.TestCase):
    def test_each_page_of_the_index_is_one_chapter(self):
        found = [page for _, part in book.chapters() for page in part]
        self.assertEqual(len(found), len(set(found)))
        of_docs = set((pages.ROOT / "docs").rglob("*.md")) - {book.INDEX}
        self.assertEqual(of_docs - set(found), set())

    def test_links_that_lead_nowhere_are_found(self):
        with tempfile.TemporaryDirectory() as directory:
            html = Path(directory).resolve()
            (html / "a.html").write_text('<h2 id="x">X</h2><a href="#x"></a><a href="b.html#y"></a><a href="https://c/d"></a>')
            (html / "b.html").write_text('<a href="a.html#x"></a><img src="no.png"><a class="header" href="a.html#z"></a>')
            found = list(book.broken(html))
        wrong = ["a.html: b.html#y: no such heading", "b.html: no.png: no such file", "b.html: a.html#z: no such heading"]
        self.assertEqual(found, wrong)


class Ends(unittest.TestCase):
    def results(self, *texts):
        """(code, what was said) of each command of a block."""
        with tempfile.TemporaryDirectory() as directory:
            place = Path(directory) / "block"
            place.mkdir()
            scratch = mock.Mock(spec=Scratch, environment=dict(os.environ))
            scratch.block.return_value = place
            scratch.servers.return_value = contextlib.nullcontext()
            found = [pages.Command("page.md", number, text) for number, text in enumerate(texts, 1)]
            results = commands.run_block(scratch, pages.Block("page.md", 1, "", []), found, time.monotonic() + 60)
            return [(result.code, result.said) for result in results]

    def test_each_command_has_its_code_and_output(self):
        self.assertEqual(self.results("echo a", "false", "x=b", "echo $x"), [(0, "a\n"), (1, ""), (0, ""), (0, "b\n")])

    def test_nothing_waits_for_what_is_left_running(self):
        begin = time.monotonic()
        self.assertEqual([code for code, _ in self.results("sleep 1000 &", "echo $!")], [0, 0])
        self.assertLess(time.monotonic() - begin, bounded.GRACE)

    def test_a_command_that_does_not_end_is_named(self):
        with mock.patch.object(commands, "LONG", 0.5):
            codes = [code for code, _ in self.results("true", "sleep 1000", "true")]
        self.assertEqual(codes[0], 0)
        self.assertRegex(codes[1], "not ended within")
        self.assertRegex(codes[2], "not run, as page.md:2 did not end")

    def test_a_command_that_ends_the_shell_is_named(self):
        codes = [code for code, _ in self.results("exit 0", "true")]
        self.assertRegex(codes[0], "the shell")
        self.assertRegex(codes[1], "page.md:1 ended the shell")

    def test_what_ignores_its_end_is_killed(self):
        with mock.patch.object(bounded, "GRACE", 0.5):
            code, said = bounded.run(["bash", "-c", "trap '' TERM; sleep 1000 & echo $!; wait; wait"], 0.5)
        self.assertIsNone(code)
        with contextlib.suppress(ProcessLookupError):
            left = os.pidfd_open(int(said))
            self.assertTrue(select.select([left], [], [], commands.LONG)[0])
            os.close(left)


if __name__ == "__main__":
    unittest.main()
