#!/usr/bin/env python3
"""Checks that all files name one version, and tags a release of it.

usage: release.py              the checks of the version (a part of lint)
       release.py --names TAG  also that TAG is that of the version and in CHANGELOG.md (release.yml)
       release.py --tag        also that this commit can be released, and tags it vVERSION (make release): nothing is changed
                               or untracked, CHANGELOG.md has a section of the version, no such tag exists, and the suite has
                               passed here on this very commit, with nothing owed (make test-change or test-all)
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
ADDRESSED = ["CITATION.cff", ".github/ISSUE_TEMPLATE/config.yml"]
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
        yield f"the suite has not passed here on {head[0][:12]}, but on {state.passed[:12] or 'no commit'}: run make test-change"
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
        found += unreleasable(version, choose.State())
    elif arguments and arguments[1] != f"v{version}":
        found.append(f"the tag is {arguments[1]}, and the version {version}")
    for fault in found:
        print(f"release.py: {fault}", file=sys.stderr)
    if found or not tag:
        return 1 if found else 0
    done = subprocess.run(["git", "-C", ROOT, "tag", "--annotate", f"v{version}", "--message", f"profinfer {version}"], check=False)
    if done.returncode == 0:
        print(f"tagged v{version}; to publish it: git push origin v{version}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
