#!/usr/bin/env python3
"""Runs the commands of README.md, docs/, python/README.md and CONTRIBUTING.md as they are written.

Each block of commands is read by one shell, in a directory with what the page assumes: the programs in PATH, the models and
recordings that files.tsv makes, `target`, `conf` and the like of these sources, and stand-ins for llama.cpp's programs
(scratch.py). Each command has to exit with 0, or with the code that a comment beside it names ("exits with 3"). not_run.tsv
names the commands that cannot be run, and why; of these, the options of ours and the syntax of all are checked, and
that `make` has the target. A row that no command matches is an error.

usage: commands.py [--list] [--only TEXT] [--keep DIR]
  --list       print what would be run and what not, and run nothing
  --only TEXT  blocks whose page, or one of whose commands, contains it
  --keep DIR   make the directories there, and keep them

Each command has to end within LONG seconds, and all together within WHOLE; what a block leaves running is ended after it.

Recording processes that run already needs root and BPF: without them only the tables are checked, with "skipped: why".
Exit code: 0, 1 if a command failed or a table is wrong.
"""

import argparse
import fcntl
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from fnmatch import fnmatchcase
from pathlib import Path

import bounded
import pages
from scratch import HERE, LONG, PROFINFER, Scratch, Unmade, rows

sys.path += [str(HERE.parent), str(HERE.parent / "server")]
from debian import Failure, need_to_record  # noqa: E402
from skips import REQUIRED, note  # noqa: E402

# Programs of others that commands of pages run.
OTHERS = ["curl", "jq", "man", "pidof", "python3", "taskset"]
# Seconds within which all commands have to end.
WHOLE = 30 * 60
# Of a command that only complains about an option.
SHORT = 20
# Above the descriptors that commands of pages use.
SAYS = 50
# Runs each command, given as files, in one shell; says on a descriptor which one ended how.
SHELL = f"""shopt -s expand_aliases
set -o pipefail
for command_file in "$@"; do
    eval "$(cat "$command_file")" {SAYS}>&-
    echo "$command_file $?" >&{SAYS}
done
"""
# Before it, in a mount namespace of its own: a service that records nothing, at its usual place.
SERVICE = """mount -t tmpfs none /run || exit 1
exec {log}< <(exec profinfer serve --conf "$1" 2>&1 SAYS>&-)
shift
while read -r line <&"$log" && [[ $line != *"waiting for engines"* ]]; do echo "$line"; done
""".replace("SAYS", str(SAYS))
SETTINGS = """[service]
directory = "/run/profinfer/recordings"
peaks-after = "never"

[[rule]]
name = "none"
exe = "/nonexistent"
"""


class NotRun:
    """The table of commands that are not run: page and command as patterns, and why."""

    def __init__(self):
        self.rows = list(rows(HERE / "not_run.tsv", 3))
        self.used = set()

    def why(self, command):
        for number, (page, pattern, why) in enumerate(self.rows):
            if fnmatchcase(command.page, page) and fnmatchcase(command.short, pattern):
                self.used.add(number)
                return why
        return None

    def unused(self):
        return [row for number, row in enumerate(self.rows) if number not in self.used]


def lacking(command):
    """A program of others that a command runs, and this machine lacks."""
    programs = [name for name in OTHERS if re.search(rf"(?:^|[\s(;|&]){name}\s", command.text)]
    return next((f"no {name}: make setup installs it" for name in programs if not shutil.which(name)), None)


def expected(command):
    """Exit codes: the one that a comment states, else 0; 3 also where what other programs use decides: the end of a search
    (docs/TUNE.md), whether a gain was kept (docs/ADVICE.md)."""
    stated = re.search(r"#.*\bexits? with (\d+)", command.text)
    return {int(stated[1])} if stated else {0, 3} if re.search(r"profinfer (tune |advise .*--check )", command.text) else {0}


def targets():
    text = (pages.ROOT / "Makefile").read_text()
    benches = re.search(r"(?m)^BENCHES := (.*)$", text)[1].split()
    return set(re.findall(r"(?m)^([a-z][a-z0-9-]*):", text)) | {f"bench-{name}" for name in benches}


def fault_of_not_run(command):
    """What is wrong with a command that is not run, as far as can be told without running it."""
    read = subprocess.run(["bash", "-n", "-c", command.text], capture_output=True, text=True)
    if read.returncode:
        return read.stderr.strip()
    words = command.short.split()
    if words[0] == "make":
        unknown = [word for word in words[1:] if re.fullmatch(r"[a-z][a-z0-9-]*", word) and word not in targets()]
        return f"no target {unknown[0]} in the Makefile" if unknown else None
    if words[0].startswith(pages.PLACES) and not (pages.ROOT / words[0]).exists():
        return f"no {words[0]} in these sources"
    ours = re.search(r"(?:^|sudo |\./|[;&|] *)profinfer( [a-z]+)((?: [^;&|>]*?)?)(?= -- | [;&|>]|$)", command.short)
    if ours and PROFINFER.exists():
        # One more option, that is not known, is the only thing it complains about.
        words = re.sub(r"\$\([^)]*\)", "1", ours[2])
        try:
            options = shlex.split(words)
        except ValueError:
            # A quote is open where another command was cut off.
            options = words.replace('"', "").split()
        code, said = bounded.run([PROFINFER, ours[1].strip(), *options, "--no-such-flag"], SHORT)
        if code is None or "unknown option '--no-such-flag'" not in said:
            return f"not ended within {SHORT} s" if code is None else said.strip()
    return None


class Result:
    def __init__(self, command, code, seconds, said):
        self.command, self.code, self.seconds, self.said = command, code, seconds, said
        # On a machine that others use `tune` finds nothing, and says so.
        busy = code == 1 and "profinfer tune " in command.text and "no run had a result: other programs used" in said
        self.ok = code in expected(command) or busy


def shell_of(commands, place):
    """The shell that runs commands, and before them a service if one asks for it."""
    if not any(re.search(r"\bprofinfer (?:status|stop)\b", command.text) for command in commands):
        return ["bash", "-c", SHELL, "bash"]
    settings = place.with_suffix(".toml")
    settings.write_text(SETTINGS)
    return ["unshare", "--mount", "bash", "-c", SERVICE + SHELL, "bash", settings]


def run_block(scratch, block, commands, until):
    """Results of the commands of a block, in the order in which they are written; after a failure the rest is run too."""
    try:
        if time.monotonic() > until:
            raise Unmade(f"those before it took more than {WHOLE} s")
        place = scratch.block(block, [command.text for command in commands])
    except Unmade as why:
        yield from [Result(command, "not run", 0.0, str(why)) for command in commands]
        return
    files = []
    for number, command in enumerate(commands):
        files.append(place.with_name(f"{place.name}.{number:02}"))
        files[-1].write_text(command.text + "\n")
    says, first = os.pipe()
    said_to = fcntl.fcntl(first, fcntl.F_DUPFD, SAYS)
    assert said_to == SAYS, said_to
    os.close(first)
    shell = [*shell_of(commands, place), *files]
    more = {"cwd": place, "env": scratch.environment, "pass_fds": [said_to]}
    at, stopped = 0, ""
    with (
        open(says, "rb", buffering=0) as answers, open(place.with_suffix(".out"), "w+") as out,
        scratch.servers(commands, place), bounded.Bounded(shell, stdout=out, stderr=out, **more),
    ):  # fmt: skip
        os.close(said_to)
        for command, file in zip(commands, files):
            if stopped:
                yield Result(command, f"not run, as {stopped}", 0.0, "")
                continue
            begin = time.monotonic()
            limit = min(LONG, max(until - begin, 0))
            answer = bounded.line(answers, limit)
            if answer:
                code = int(answer.split()[-1])
            elif answer is None:
                code, stopped = f"not ended within {limit:.0f} s", f"{command.where} did not end"
            else:
                code, stopped = "that of the shell, which ended", f"{command.where} ended the shell"
            said = Path(out.name).read_text(errors="replace")
            file.with_name(f"{file.name}.out").write_text(said[at:])
            yield Result(command, code, time.monotonic() - begin, said[at:])
            at = len(said)


def sessions(page):
    """Blocks with their commands; those of a page of the tutorial are one, since each step goes on from the one before."""
    found = [(block, commands) for block in pages.blocks(page) if (commands := pages.commands(block))]
    if found and found[0][0].page.startswith("docs/tutorial/"):
        return [(found[0][0], [command for _, commands in found for command in commands])]
    return found


def chosen(only):
    for page in pages.pages():
        for block, commands in sessions(page):
            if not only or only in block.page or any(only in command.text for command in commands):
                yield block, commands


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--only", metavar="TEXT")
    parser.add_argument("--keep", metavar="DIR")
    args = parser.parse_args()
    table, faults, ran, failed = NotRun(), [], 0, 0
    found = [(block, [(command, table.why(command)) for command in commands]) for block, commands in chosen(args.only)]
    for _, commands in found:
        for command, why in commands:
            if why:
                print(f"not run  {command.where}  {command.short}\n           {why}")
                if fault := fault_of_not_run(command):
                    faults.append(f"{command.where}: {command.short}\n{fault}")
            elif args.list:
                print(f"run      {command.where}  {command.short}")
    if not args.only:
        blocks = [block for page in pages.pages() for block in pages.blocks(page)]
        faults += [f"{b.page}:{b.line}: {name} is a program" for b in blocks if (name := pages.unknown_program(b))]
        faults += [f"not_run.tsv: no command of a page is this: {page}: {pattern}" for page, pattern, _ in table.unused()]
    runs = [(block, [command for command, why in commands if not why]) for block, commands in found]
    for block, commands in runs:
        for command in [command for command in commands if lacking(command)]:
            commands.remove(command)
            note(f"docs {command.where}", lacking(command))
            faults += [f"{command.where}: {lacking(command)}"] if REQUIRED else []
    runs = [(block, commands) for block, commands in runs if commands]
    if not args.list:
        # Programs that blocks have started end, too.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        until = time.monotonic() + WHOLE
        try:
            need_to_record()
        except Failure as why:
            note("docs", why)
            faults += [f"not to be skipped here: {why}"] if REQUIRED else []
            runs = []
        with tempfile.TemporaryDirectory(prefix="profinfer-docs-") as kept:
            scratch = Scratch(Path(args.keep or kept).resolve())
            if runs:
                scratch.measure_peaks()
            for block, commands in runs:
                for result in run_block(scratch, block, commands, until):
                    ran += 1
                    verdict = "run     " if result.ok else "FAILED  "
                    print(f"{verdict} {result.command.where}  {result.command.short}  ({result.seconds:.1f} s)", flush=True)
                    if not result.ok:
                        failed += 1
                        print(f"exit {result.code}, expected {min(expected(result.command))}:\n{result.said[-2000:]}", flush=True)
    for fault in faults:
        print(f"FAILED   {fault}")
    left_out = sum(1 for _, commands in found for _, why in commands if why)
    print(f"{ran} commands run, {failed} failed; {left_out} not run; {len(faults)} faults of the tables")
    return 1 if failed or faults else 0


if __name__ == "__main__":
    sys.exit(main())
