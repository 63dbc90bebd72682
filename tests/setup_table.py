#!/usr/bin/env python3
"""Checks scripts/packages.tsv, and what scripts/setup.sh says and does on machines that lack things."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "service"))
from common import ROOT, Test  # noqa: E402

SETUP = ROOT / "scripts" / "setup.sh"
COLUMNS = ["need", "seen", "levels", "debian", "fedora", "alpine", "arch", "purpose"]
LEVELS = {"build", "deb", "demo", "dist", "fuzz", "image", "test"}
SEEN = re.compile(r"python:\w+|machine:\w+|/[\w./*-]+|[\w.+-]+")
# What setup.sh itself runs, besides the programs that it looks for.
BASE = ["awk", "basename", "cat", "cut", "dirname", "find", "grep", "head", "mkdir", "mktemp", "rm", "sed", "sh", "sort", "tail",
        "touch", "tr", "uname"]


def table():
    for line in (ROOT / "scripts/packages.tsv").read_text().splitlines():
        if not line.startswith("#"):
            yield dict(zip(COLUMNS, line.split("\t"), strict=True))


class Table(Test):
    def test_rows_are_complete(self):
        rows = list(table())
        self.assertGreater(len(rows), 40)
        self.assertEqual(len({row["need"] for row in rows}), len(rows), "a need stands twice")
        for row in rows:
            self.assertTrue(all(value == value.strip() and value for value in row.values()), row)
            self.assertLessEqual(set(row["levels"].split(",")), LEVELS, row)
            for part in re.split("[|,]", row["seen"]):
                self.assertTrue(SEEN.fullmatch(part), f"{row['need']}: {part}")
            for family in COLUMNS[3:7]:
                self.assertRegex(row[family], r"^(-|[\w.+-]+([ |][\w.+-]+)*)$", row)
                self.assertFalse(row[family] == "-" and "build" in row["levels"], f"{row['need']}: nothing builds there")

    def test_debian_has_the_packages(self):
        if not list(Path("/var/lib/apt/lists").glob("*_Packages*")) or not re.search(
            "^ID=debian$", Path("/etc/os-release").read_text(), re.MULTILINE
        ):
            self.lacking("no package lists of Debian here")
        names = {name for row in table() for name in re.split("[ |]", row["debian"])}
        said = self.run_it("apt-cache", "policy", *names, env={**os.environ, "LC_ALL": "C"})
        there = {name for name, candidate in re.findall(r"^(\S+):\n.*\n  Candidate: (.*)", said, re.MULTILINE)
                 if candidate != "(none)"}
        for row in table():
            alternatives = [set(each.split()) for each in row["debian"].split("|")]
            self.assertTrue(any(each <= there for each in alternatives), f"{row['need']}: {row['debian']}")


class Machines(Test):
    """A machine that has nothing but the programs in a directory, which the test writes."""

    def setUp(self):
        super().setUp()
        self.programs = self.dir / "bin"
        self.programs.mkdir()
        for name in BASE:
            (self.programs / name).symlink_to(shutil.which(name))
        self.program("cargo", "echo cargo 1.999.0")
        self.program("python3", "exit 1")

    def program(self, name, text="exit 0"):
        path = self.programs / name
        path.write_text(f"#!{shutil.which('sh')}\n{text}\n")
        path.chmod(0o755)

    def can_build(self):
        for row in table():
            if row["levels"] == "build" and not row["seen"].startswith("/"):
                self.program(row["seen"].split("|")[0])

    def setup_says(self, system, user=1000, level="test", code=0, **environment):
        self.program("id", f"echo {user}")
        (self.dir / "os-release").write_text(system)
        # As if no directory of the machine had programs.
        text = re.sub(r"\nPATH=\$PATH:.*", "", SETUP.read_text())
        (self.dir / "scripts").mkdir(exist_ok=True)
        (self.dir / "scripts/setup.sh").write_text(text)
        for name in ["setup-tests.sh", "packages.tsv"]:
            shutil.copy(ROOT / "scripts" / name, self.dir / "scripts")
        shutil.copy(ROOT / "Cargo.toml", self.dir)
        if not (self.dir / "tests").exists():
            (self.dir / "tests").symlink_to(ROOT / "tests")
        environment = {"PATH": self.programs, "HOME": self.dir, "CARGO_HOME": self.dir,
                       "PROFINFER_OS_RELEASE": self.dir / "os-release", **environment}
        return self.run_it(shutil.which("sh"), self.dir / "scripts/setup.sh", level, code=code, env=environment)

    def test_without_a_compiler_nothing_builds(self):
        said = self.setup_says("ID=fedora\n", code=1)
        self.assertIn("run: sudo dnf install ", said)
        self.assertRegex(said, "nothing builds without: C compiler, .*clang")
        self.assertIn("clang-tools-extra", said)

    def test_other_distributions_have_their_own_names(self):
        self.can_build()
        for system, command, package in [
            ("ID=fedora\n", "sudo dnf install ", "ShellCheck"),
            ('ID="rocky"\nID_LIKE="rhel centos fedora"\n', "sudo dnf install ", "ShellCheck"),
            ("ID=alpine\n", "sudo apk add ", "py3-yaml"),
            ("ID=arch\n", "sudo pacman -S --needed ", "python-yaml"),
            ("ID=nixos\n", "Debian's names", "device-tree-compiler"),
        ]:
            said = self.setup_says(system)
            self.assertIn(command, said)
            self.assertRegex(said, rf"(?m)^    .*\b{package}\b.*  ", system)
            self.assertIn("tests that need these are skipped: ", said)
            self.assertNotRegex(said, r"(install|add|needed) (.* )?(-|\S+\|\S*) ", system)

    def test_what_is_required_is_not_left_out(self):
        self.can_build()
        for required in [{"CI": "true"}, {"PROFINFER_REQUIRE": "1"}]:
            self.assertIn("may not be skipped", self.setup_says("ID=arch\n", code=1, **required))
        self.assertRegex(self.setup_says("ID=arch\n", level="dist", code=1), "nothing builds without: .*autoconf")
        self.assertEqual(self.setup_says("ID=arch\n", level="build"), "")

    def apt(self, install):
        """apt whose release has no headless Chromium, and what it was called with."""
        self.program("apt-get", f'echo "$*" >>{self.dir}/calls\ncase $* in *--assume-no*) echo Need to get 5 MB of archives. ;;'
                                f"\n*install*) {install} ;; esac")
        self.program("apt-cache", "case $2 in chromium*) echo '  Candidate: (none)' ;; *) echo '  Candidate: 1' ;; esac")

    def calls(self):
        calls = self.dir / "calls"
        text = calls.read_text() if calls.exists() else ""
        calls.unlink(missing_ok=True)
        return text

    def test_without_root_apt_installs_nothing(self):
        self.can_build()
        self.apt("exit 1")
        said = self.setup_says("ID=ubuntu\nID_LIKE=debian\n")
        self.assertRegex(said, "run: sudo apt-get install --no-install-recommends .*shellcheck")
        self.assertNotIn("install", self.calls())

    def test_what_apt_cannot_fetch_is_named(self):
        self.can_build()
        self.apt("echo E: Failed to fetch it; exit 100")
        said = self.setup_says("ID=debian\n", user=0)
        self.assertRegex(said, "(?s)installing these packages:.* 5 MB of archives.*Failed to fetch.*are skipped: .*shellcheck")
        # Tried once, not for each package.
        self.assertEqual(len(re.findall("install.*archives", self.calls())), 1)

    def test_one_bad_package_keeps_no_other_away(self):
        self.can_build()
        place = self.programs / "zsh"
        self.apt(f"case $* in *lintian*) exit 100 ;; *' zsh') echo 'exit 0' >{place}; chmod 755 {place} 2>/dev/null || : ;; esac")
        (self.programs / "chmod").symlink_to(shutil.which("chmod"))
        said = self.setup_says("ID=debian\n", user=0)
        self.assertIn("apt-get does not install lintian", said)
        skipped = said.split("are skipped: ")[1]
        self.assertIn("lintian", skipped)
        self.assertNotIn("zsh", skipped)

    def test_a_package_that_the_release_lacks_is_named(self):
        if not list(Path("/var/lib/apt/lists").glob("*_Packages*")):
            self.lacking("no package lists here")
        self.can_build()
        self.apt("exit 0")
        said = self.setup_says("ID=ubuntu\nID_LIKE=debian\n", user=0)
        self.assertIn("browser: not packaged", said)
        self.assertNotIn("chromium", self.calls())


if __name__ == "__main__":
    unittest.main()
