#!/usr/bin/env python3
"""Checks that all files name one version, and tags a release of it.

usage: release.py              the checks of the version (a part of lint)
       release.py --names TAG  also that TAG is that of the version and in CHANGELOG.md (release.yml)
       release.py --tag        also that this commit can be released, and tags it vVERSION (make release): nothing is changed
                               or untracked, CHANGELOG.md has a section of the version, no such tag exists, the programs that
                               clang compiles are kept as of these sources (cross/keep.sh), and the suite has passed here
                               on this very commit, with nothing owed (make test-change or test-all)
"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests" / "suite"))
import choose  # noqa: E402

# Files that name the version, with a pattern for it; all matches count.
NAMED = [
    ("crates/layers/Cargo.toml", r'^version = "(.*)"'),
    ("python/profinfer/__init__.py", r'^__version__ = "(.*)"'),
    ("CITATION.cff", r"^version: (.*)"),
]
LOCKS = ["Cargo.lock", "crates/layers/Cargo.lock", "fuzz/Cargo.lock"]
# Files that cannot read the project's address in Cargo.toml.
ADDRESSED = ["CITATION.cff", "docs/SECURITY.md", ".github/ISSUE_TEMPLATE/config.yml"]
# Compiled programs that are kept with the sources (cross/keep.sh), and what they are compiled from, as their build scripts say.
KEPT = [(".", "src/bpf/kept", ["build.rs", "src/bpf"]),
        ("crates/inside", "kept", ["build.rs", "lib", "../../src/bpf"])]
# Our own packages that are never released.
NEVER = "0.0.0"


def manifest():
    return tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]


def disagreements(version, repository):
    """Files that name another version, or another address of the project."""
    for name, pattern in NAMED:
        found = re.findall(pattern, (ROOT / name).read_text(), re.MULTILINE)
        if found != [version]:
            yield f"{name} has version {', '.join(found) or 'none'}, and Cargo.toml {version}"
    for name in LOCKS:
        packages = tomllib.loads((ROOT / name).read_text())["package"]
        other = {p["name"] for p in packages if "source" not in p and p["version"] not in (version, NEVER)}
        if other:
            yield f"{name} has another version of {', '.join(sorted(other))}: run cargo metadata in its directory"
    for name in ADDRESSED:
        for address in re.findall(r"https://[^\s\"'<>)]+/profinfer\b", (ROOT / name).read_text()):
            if address != repository:
                yield f"{name} has the address {address}, and Cargo.toml {repository}"


def unlogged(version):
    if not re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE):
        yield f"CHANGELOG.md has no section '## [{version}] - YYYY-MM-DD'"


def source_sum(folder, sources):
    """As `sum` of crates/inside/kept.rs."""
    files = {}
    for source in sources:
        path = ROOT / folder / source
        found = [path] if path.is_file() else [p for p in path.rglob("*") if p.suffix in (".c", ".h", ".S")]
        # Ordered by the parts of the path as it was written.
        files |= {tuple(source.split("/")) + p.relative_to(path).parts: p for p in found}
    state = 0xCBF29CE484222325
    for _, file in sorted(files.items()):
        for byte in file.name.encode() + file.read_bytes():
            state = (state ^ byte) * 0x100000001B3 % 2**64
    return f"{state:016x}"


def outdated():
    """Compiled programs that builds without clang would refuse."""
    for folder, kept, sources in KEPT:
        file = ROOT / folder / kept / "SUM"
        if not file.is_file() or file.read_text().strip() != source_sum(folder, sources):
            yield f"{file.parent.relative_to(ROOT)} was not compiled from these sources: run cross/keep.sh and commit"


def unreleasable(version, state):
    """Why this commit cannot be tagged."""
    head = choose.git("rev-parse", "HEAD")
    if not head:
        yield "these sources are not in git"
        return
    if choose.git("status", "--porcelain"):
        yield "the tree has changes or untracked files: commit them"
    if choose.git("rev-parse", "--verify", "--quiet", f"refs/tags/v{version}"):
        yield f"there is a tag v{version} already: raise the version in Cargo.toml"
    if state.passed != head[0]:
        yield f"the suite passed here on {state.passed[:12] or 'no commit'}, not on {head[0][:12]}: run make test-change"
    elif state.owed:
        yield f"the suite passed without {', '.join(state.owed)}: run make test-change again, or make test-all"


def main(arguments):
    tag = arguments == ["--tag"]
    if arguments and not tag and (arguments[0] != "--names" or len(arguments) != 2):
        print(__doc__, file=sys.stderr)
        return 2
    version, repository = manifest()["version"], manifest()["repository"]
    found = [*disagreements(version, repository), *(unlogged(version) if arguments else [])]
    if tag:
        found += [*outdated(), *unreleasable(version, choose.State())]
    elif arguments and arguments[1] != f"v{version}":
        found.append(f"the tag is {arguments[1]}, and the version {version}")
    for fault in found:
        print(f"release.py: {fault}", file=sys.stderr)
    if found or not tag:
        return 1 if found else 0
    command = ["git", "-C", ROOT, "tag", "--annotate", f"v{version}", "--message", f"profinfer {version}"]
    done = subprocess.run(command, check=False)
    if done.returncode == 0:
        print(f"tagged v{version}; to publish it: git push origin v{version}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
