#!/usr/bin/env python3
"""Runs the steps of the action .github/actions/compare as a workflow would, with ggml-runner as both builds of an engine: the
same twice is no difference, an op that takes four times as long is one. What would be sent to GitHub is taken by a program
of the test. Records as whoever runs it, from inside the process without privileges."""

import re
import subprocess
import sys
import unittest
from pathlib import Path

import yaml

sys.path.append(str(Path(__file__).resolve().parents[1] / "service"))
from common import PROFINFER, ROOT, Test  # noqa: E402

ACTION = ROOT / ".github/actions/compare"
# Takes the calls of gh and answers the list of comments as its --jq does.
GH = """#!/bin/sh
echo "$*" >>"$CALLS"
for word; do case $word in body=@*) cat "${word#body=@}" >"$CALLS.body" ;; esac done
case $* in *--jq*) cat "$CALLS.ids" ;; esac
"""


class Compare(Test):
    def setUp(self):
        super().setUp()
        self.need_profinfer()
        self.runner = PROFINFER.parent / "ggml-runner"
        if not self.runner.is_file():
            self.skip(f"{self.runner} does not exist: run cargo build")
        self.model = self.dir / "tiny.gguf"
        self.run_it(self.runner, "synth", "tiny", self.model, "--type", "q8_0")
        (self.dir / "bin").mkdir()
        self.script("bin/gh", GH)
        self.action = yaml.safe_load((ACTION / "action.yml").read_text())

    def engine(self, *more):
        words = [self.runner, "run", "-m", self.model, "-p", "8", "-n", "200", "-t", "1", *more]
        return " ".join(f"'{word}'" for word in words)

    def steps(self, event="pull_request", comments="", **inputs):
        """Runs the steps; returns their output, and the exit code of the last one."""
        given = {name: str(of.get("default", "")) for name, of in self.action["inputs"].items()} | inputs
        known = {f"inputs.{name}": value for name, value in given.items()}
        known |= {"github.token": "secret", "github.repository": "o/r", "github.event.pull_request.number": "7"}
        output, summary = self.dir / "output", self.dir / "summary"
        output.write_text("")
        summary.write_text("")
        (self.dir / "calls").write_text("")
        (self.dir / "calls.ids").write_text(comments)
        said, code = "", None
        for step in self.action["runs"]["steps"]:
            if "if" in step:
                self.assertEqual(step["if"], "inputs.comment == 'true' && github.event_name == 'pull_request'")
                if (given["comment"], event) != ("true", "pull_request"):
                    continue
            known |= {f"steps.compare.outputs.{k}": v for k, v in re.findall("(?m)^(.*?)=(.*)$", output.read_text())}
            own = {name: re.sub(r"\$\{\{ (.*?) \}\}", lambda m: known[m[1]], text) for name, text in step["env"].items()}
            done = subprocess.run(
                ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
                cwd=self.dir, capture_output=True, text=True, timeout=300,
                env={"PATH": f"{self.dir}/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": str(self.dir),
                     "CALLS": f"{self.dir}/calls", "GITHUB_ACTION_PATH": str(ACTION), "GITHUB_OUTPUT": str(output),
                     "GITHUB_STEP_SUMMARY": str(summary), **own},
            )
            said += done.stdout + done.stderr
            code = done.returncode
        return said, code

    def test_no_difference_passes_and_a_slow_op_fails(self):
        inputs = {"profinfer": str(PROFINFER), "base": self.engine(), "directory": "of it"}
        # Wide enough for any machine: what is tested is the way there.
        said, code = self.steps(head=self.engine(), **inputs, **{"fail-above": "100%", "diff-args": "--allow-undecided"})
        print(said)
        self.assertEqual(code, 0, said)
        recorded = re.findall(r"recording (\w+), (\d) of 3", said)
        self.assertEqual(recorded, [(side, str(n)) for n in (1, 2, 3) for side in ("base", "head")])
        comment = (self.dir / "of it/comment.md").read_text()
        self.assertTrue(comment.startswith("<!-- profinfer compare -->\n### "), comment)
        self.assertIn("\n\n**Passed: ", comment)
        self.assertIn("Runs of each, recorded alternately: 3.", comment)
        self.assertEqual((self.dir / "summary").read_text(), comment)
        self.assertEqual((self.dir / "calls.body").read_text(), comment)
        self.assertIn("repos/o/r/issues/7/comments --field", (self.dir / "calls").read_text())
        self.assertNotIn("PATCH", (self.dir / "calls").read_text())

        slow = self.engine("--slow", "ffn_up-{L}:300%")
        said, code = self.steps(comments="41\n42\n", head=slow, **inputs, **{"fail-above": "3%"})
        print(said)
        self.assertEqual(code, 3, said)
        comment = (self.dir / "of it/comment.md").read_text()
        first = r"first `MUL_MAT  ffn_up-\{L\}`"
        self.assertRegex(comment, rf"\n\*\*Failed: ops add \+\d+\.\d+ % to a call, more than 3 %, {first}\*\*\n")
        rows = [line for line in comment.splitlines() if line.startswith("|")]
        self.assertRegex(rows[2], r"\| slower \|.*\| `MUL_MAT  ffn_up-\{L\}` \|$")
        self.assertIn("--method PATCH repos/o/r/issues/comments/41 ", (self.dir / "calls").read_text())

    def test_what_fails_is_no_result(self):
        inputs = {"profinfer": str(PROFINFER), "base": self.engine(), "head": self.engine("--no-such-flag"), "runs": "1"}
        said, code = self.steps(**inputs)
        self.assertEqual(code, 1, said)
        self.assertIn("recording head failed: exit ", said)
        self.assertEqual((self.dir / "calls").read_text(), "")
        for wrong, why in [({"profinfer": "/no/such"}, "no program '/no/such'"), ({"runs": "x"}, "RUNS is 'x'")]:
            said, code = self.steps("push", **(inputs | wrong))
            self.assertEqual(code, 1, said)
            self.assertIn(why, said)


if __name__ == "__main__":
    unittest.main()
