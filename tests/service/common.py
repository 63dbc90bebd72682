"""Shared by the tests of the service's files: paths, running programs, and skipping tests that cannot run here."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests"))
from skips import REQUIRED, note  # noqa: E402

CONF = ROOT / "conf"
# The program to install; where it is only copied, it just has to exist.
PROFINFER = Path(os.environ.get("PROFINFER_BINARY") or ROOT / "target" / "debug" / "profinfer")
RUNNER = PROFINFER.with_name("ggml-runner")
TARGET = f"{os.uname().machine}-unknown-linux-musl"
# `make layers` builds them.
LAYERS = [ROOT / "target/release" / name
          for name in ("libprofinfer-cl.so", "libprofinfer-vk.so", "libprofinfer-cu.so", "VkLayer_profinfer.json")]


class Test(unittest.TestCase):
    def setUp(self):
        self.dir = Path(tempfile.mkdtemp(prefix="profinfer-test-"))
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)

    def skip(self, why):
        if REQUIRED:
            self.fail(f"not to be skipped here: {why}")
        self.lacking(why)

    def lacking(self, why):
        """Skips a test whose needs nobody can install: a failure nowhere."""
        note(self.id().removeprefix("__main__."), why)
        self.skipTest(why)

    def need(self, *programs):
        for program in programs:
            if not shutil.which(program):
                self.skip(f"no {program}: scripts/setup.sh installs it")

    def need_root(self):
        if os.geteuid() != 0:
            self.skip("not root")

    def need_profinfer(self):
        if not PROFINFER.is_file():
            self.skip(f"{PROFINFER} does not exist: run cargo build")

    def run_it(self, *command, code=0, **options):
        """Output and errors of a command that must exit with this code."""
        options.setdefault("timeout", 60)
        ended = subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)
        said = ended.stdout + ended.stderr
        self.assertEqual(ended.returncode, code, f"{command}: {said}")
        return said

    def script(self, name, text):
        """A program written by the test."""
        path = self.dir / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def made_dist(self, version=""):
        """A dist/ with the files of this machine, whose programs run those of a debug build: only manual pages and
        completions depend on them, and building the static ones takes minutes. `version` is what profinfer says then."""
        folder = self.dir / "dist" / TARGET
        folder.mkdir(parents=True)
        for file in [PROFINFER, RUNNER, *LAYERS]:
            if not file.is_file():
                self.skip(f"{file} does not exist: run cargo build and make layers")
        for program in [PROFINFER, RUNNER]:
            said = f'[ "$1" != --version ] || exec echo "{version}"\n' if version else ""
            self.script(f"dist/{TARGET}/{program.name}", f'#!/bin/sh\n{said}exec {program} "$@"\n')
        for file in LAYERS:
            shutil.copy(file, folder)
        return folder
