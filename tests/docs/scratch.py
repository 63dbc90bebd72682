"""Directories in which the commands of pages are run, and what lies in them: programs, stand-ins, models, recordings."""

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
from fnmatch import fnmatchcase
from pathlib import Path

import bounded

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILT = Path(os.environ.get("PROFINFER_BINARY") or ROOT / "target/debug/profinfer").parent
PROFINFER, RUNNER = BUILT / "profinfer", BUILT / "ggml-runner"
# Of these sources, as a command run in their directory meets them.
SOURCES = ["conf", "docs", "examples", "python", "tests", "scripts"]
# What a block writes where one of these precedes its name.
WRITTEN = r"(?:-o |>>? ?|synth \S+ |--ground-truth |--out )"

# Seconds within which each command has to end.
LONG = 180

# What a server does here: it computes without requests, under its own name, until it is ended.
SERVES = "run -p 8 -n 64 -t 1 --repeat 1000000 --no-roofline --no-warmup".split()
# Stands in for llama.cpp's programs: ggml-runner, with their options for model, prompt, tokens and threads.
STAND_IN = """#!/bin/bash
# Made by tests/docs: stands in for {name}.
model=model.gguf prompt=8 decode=16 threads=1 name={name}
while [ $# -gt 0 ]; do
    case $1 in
        -m) model=$2; shift ;;
        -p) [[ $2 =~ ^[0-9]+$ ]] && prompt=$2; shift ;;
        -n) decode=$2; shift ;;
        -t) threads=$2; shift ;;
        -h | --help) echo "usage: $name -m FILE -p PROMPT -n TOKENS -t THREADS"; exit ;;
    esac
    shift
done
[ "$prompt" -gt 0 ] || prompt=1
[ "$decode" -gt 0 ] || decode=1
exec {runner} run -m "$model" -p "$prompt" -n "$decode" -t "$threads" --no-roofline
"""
NAMES = ["llama-bench", "llama-cli"]
# Itself under this name, which pidof finds.
SERVER = "llama-server"
# Commands that record what runs.
NEEDS_SERVER = rf"(?:pidof |--exe .*){SERVER}|profinfer diagnose --json *(?:#|$)"


def rows(path, columns):
    """Rows of a table of columns that tabs separate; lines that begin with # are comments."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            row = line.split("\t")
            if len(row) != columns or not all(row):
                raise SystemExit(f"{path}:{number}: {len(row)} columns, not {columns}, or an empty one")
            yield row


def named(name, text):
    """Where a text names a file, or a directory (its name ends with /)."""
    return re.search(rf"(?<![\w./-]){re.escape(name)}" + ("" if name.endswith("/") else r"(?![\w/-])"), text)


def ending(code):
    return f"not ended within {LONG} s" if code is None else f"exit {code}"


class Unmade(Exception):
    """A file of the table that its command does not make."""


class Scratch:
    def __init__(self, place):
        self.place, self.failed, self.blocks = place, {}, 0
        self.table = list(rows(HERE / "files.tsv", 3))
        bin_, home = place / "bin", place / "home"
        for directory in (bin_, home, place / "made"):
            directory.mkdir(parents=True, exist_ok=True)
        for program in (PROFINFER, RUNNER):
            if not program.is_file():
                raise SystemExit(f"{program} does not exist: run cargo build --locked")
            (bin_ / program.name).symlink_to(program)
        for name in NAMES:
            self.script(bin_ / name, STAND_IN.format(name=name, runner=RUNNER))
        (bin_ / SERVER).symlink_to(RUNNER)
        if not shutil.which("sudo"):
            self.script(bin_ / "sudo", '#!/bin/sh\n# Made by tests/docs: all is done by root here.\nexec "$@"\n')
        self.environment = {
            **os.environ, "PATH": f"{bin_}:{os.environ['PATH']}", "HOME": str(home), "PAGER": "cat", "MANPAGER": "cat",
            "PYTHONPATH": str(ROOT / "python"), "XDG_CACHE_HOME": str(home / ".cache"),
        }  # fmt: skip
        for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "SUDO_UID", "SUDO_GID"):
            self.environment.pop(name, None)

    def measure_peaks(self):
        """Once per machine, as pages tell their readers to."""
        code, said = bounded.run([PROFINFER, "doctor", "--peaks"], LONG, env=self.environment)
        if code != 0:
            raise SystemExit(f"profinfer doctor --peaks: {ending(code)}\n{said}")

    @staticmethod
    def script(path, text):
        path.write_text(text)
        path.chmod(0o755)

    def recipe(self, page, name):
        return next((command for where, file, command in self.table if file == name and fnmatchcase(page, where)), None)

    def make(self, page, name):
        """The file that a page's commands read, made once for all pages with the same recipe."""
        command = self.recipe(page, name)
        needs = [other for _, other, _ in self.table if other != name and named(other, command)]
        parts = {other: self.make(page, other) for other in dict.fromkeys(needs)}
        key = hashlib.sha256(repr((command, sorted(map(str, parts.values())))).encode()).hexdigest()[:12]
        path = self.place / "made" / key / name
        if key in self.failed:
            raise Unmade(self.failed[key])
        if not path.exists():
            path.parent.mkdir()
            self.fill(path.parent, parts)
            code, said = bounded.run(["bash", "-c", command], LONG, cwd=path.parent, env=self.environment)
            if code != 0 or not path.exists():
                self.failed[key] = f"files.tsv: {name}: {command}: {ending(code)}\n{said}"
                raise Unmade(self.failed[key])
        return path

    def fill(self, directory, files):
        """With copies, and links to the sources."""
        for name, path in files.items():
            target = directory / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(path, target) if path.is_dir() else shutil.copy(path, target)
        for name in SOURCES:
            (directory / name).symlink_to(ROOT / name)
        for name in NAMES:
            (directory / name).symlink_to(self.place / "bin" / name)
        release = directory / "target" / "release"
        release.mkdir(parents=True)
        for program in (PROFINFER, RUNNER):
            (release / program.name).symlink_to(program)

    def block(self, block, texts):
        """A new directory for a block, with the files that its commands read before they write them."""
        self.blocks += 1
        directory = self.place / f"{self.blocks:03}-{block.page.replace('/', '-')}-{block.line}"
        directory.mkdir()
        text, files = "\n".join(texts), {}
        for _, name, _ in self.table:
            found = named(name, text)
            written = found and re.search(WRITTEN + "$", text[: found.start()])
            # A command without a file reads the newest recording: one of its block, if that makes one.
            newest = name == "run.pfi" and not found and "profinfer record " not in text
            if self.recipe(block.page, name) and (found and not written or newest):
                files[name] = self.make(block.page, name)
        self.fill(directory, files)
        return directory

    @contextlib.contextmanager
    def servers(self, commands, place):
        """A server that computes, for blocks that record a running one."""
        wanted = any(re.search(NEEDS_SERVER, command.text) for command in commands)
        if not wanted:
            yield
            return
        command = [self.place / "bin" / SERVER, *SERVES, "-m", self.make("", "model.gguf")]
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield
        finally:
            server.kill()
            server.wait()
