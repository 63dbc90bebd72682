#!/usr/bin/env python3
"""Checks of third-party code: licences, versions and sources of crates with cargo-deny (deny.toml), and without it
advisories, what is linked into the programs that we distribute, and that scripts install nothing unverified.
Needs Python 3.11 and cargo; cargo-deny is that of scripts/setup.sh, or one in PATH.

usage: supply_chain.py                     run a self-test, then all checks
       supply_chain.py --copyright         write the crates into conf/debian/copyright
       supply_chain.py --refresh CHECKOUT  write tests/advisories.tsv from a checkout of github.com/rustsec/advisory-db
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from pathlib import Path

from skips import REQUIRED, note

ROOT = Path(__file__).resolve().parents[1]
ADVISORIES = ROOT / "tests" / "advisories.tsv"
COPYRIGHT = ROOT / "conf" / "debian" / "copyright"
LINUX = ["--filter-platform", "x86_64-unknown-linux-gnu"]
# Each has a lock file.
WORKSPACES = [".", "crates/layers", "fuzz"]
LOCKS = [f"{folder}/Cargo.lock".removeprefix("./") for folder in WORKSPACES]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "profinfer"

# The program that has the dependencies of both.
PROGRAM = "programs/profinfer"
# The features of the programs that we distribute (cross/dist.sh).
STATIC = ["--no-default-features", "--features", "vendored"]
# Advisories that do not affect us, and why.
IGNORED = {}
# Files that install something, and patterns that none of their lines may match.
INSTALLERS = ["Makefile", ".ci/*", ".github/workflows/*", "scripts/*.sh", "cross/*.sh", "cross/qemu/*.sh",
              "cross/Dockerfile", "conf/*.sh", "fuzz/*.sh", "benches/*.sh", "tests/*/*.sh"]
UNCHECKED = [
    (r"\|\s*(sudo\s+)?(ba)?sh\b", "a download piped to a shell"),
    (r"\bpip\d?\s+install\b(?!.*--require-hashes)", "pip install without --require-hashes"),
    (r"\bnpm\s+(install|i|ci|exec)\b|\bnpx\b", "npm installs without a sum of ours: npm pack, then sha256sum"),
    (r"\bcargo\b.*\binstall\b(?!(?=.*--locked)(?=.*--version))", "cargo install without --locked and --version"),
    (r"\brustup\s+(toolchain\s+install|default|update)\s+(stable|beta|nightly)\b", "a toolchain without a version"),
    (r"\bgo\s+install\b.*@latest|:latest\b", "the latest of something"),
]
# Downloads by curl or wget must be verified against a checksum in the same file.
FETCHES = r"\b(curl|wget)\s+-"


def version(text):
    """A version as a sort key; a pre-release sorts before its release."""
    core, _, pre = text.split("+")[0].partition("-")
    numbers = tuple(int(n) for n in core.split("."))
    parts = tuple((0, int(p), "") if p.isdigit() else (1, 0, p) for p in pre.split(".")) if pre else ((2, 0, ""),)
    return numbers + (0,) * (3 - len(numbers)), parts


def within(wanted, found):
    """Whether a version meets a Cargo requirement such as `>=1.2, <2` or `^1.2.3`."""
    found = version(found)
    for part in filter(None, (p.strip() for p in wanted.split(","))):
        sign, number = re.fullmatch(r"(>=|<=|>|<|=|\^|~)?\s*([0-9][0-9A-Za-z.+-]*?)(?:\.\*)?", part).groups()
        low = version(number)
        given = len(number.split("-")[0].split("."))
        if sign in (None, "^", "~"):
            fixed = given - 1 if sign == "~" and given > 1 else next((i for i, n in enumerate(low[0]) if n), 2)
            fixed = min(fixed, 1) if sign == "~" else fixed
            high = list(low[0][: fixed + 1]) + [0] * (2 - fixed)
            high[fixed] += 1
            if not (low <= found and found[0] < tuple(high)):
                return False
        elif sign == "=" and found != low:
            return False
        elif sign == ">=" and not found >= low or sign == ">" and not found > low:
            return False
        elif sign == "<=" and not found <= low or sign == "<" and not found < low:
            return False
    return True


def known(text):
    """Advisories by crate, and the date of the list. Its tab-separated columns: crate, id, patched, unaffected, kind."""
    by_crate, day = defaultdict(list), ""
    for line in text.splitlines():
        if line.startswith("#"):
            day = (re.findall(r"as of (\d{4}-\d\d-\d\d)", line) or [day])[0]
        else:
            crate, name, patched, unaffected, kind = line.split("\t")
            ranges = [r for r in (patched + ";" + unaffected).split(";") if r]
            by_crate[crate].append((name, ranges, kind))
    return by_crate, day


def faults(lock, advisories):
    """Advisories that apply to the versions in a lock file."""
    for package in lock.get("package", []):
        for name, ranges, kind in advisories.get(package["name"], []):
            if name not in IGNORED and not any(within(r, package["version"]) for r in ranges):
                safe = " or ".join(ranges) or "none"
                yield f"{package['name']} {package['version']} has {name} ({kind}); versions without it: {safe}"


def shipped(metadata):
    """Ids of the packages linked into the programs: reached by normal dependencies, not by those for building or testing."""
    macros = {p["id"] for p in metadata["packages"] if any("proc-macro" in t["kind"] for t in p["targets"])}
    nodes = {n["id"]: n for n in metadata["resolve"]["nodes"]}
    root = metadata["resolve"].get("root")
    found, todo = set(), [root] if root else list(metadata["workspace_members"])
    while todo:
        package = todo.pop()
        if package not in found and package not in macros:
            found.add(package)
            normal = [d["pkg"] for d in nodes[package]["deps"] if any(k["kind"] is None for k in d["dep_kinds"])]
            todo.extend(normal)
    return found


def denied(config=ROOT / "deny.toml"):
    """What cargo-deny finds in each workspace; None without it."""
    kept = CACHE / "deny/bin/cargo-deny"
    program = kept if kept.is_file() else shutil.which("cargo-deny")
    if program is None:
        return None
    found = []
    for folder in WORKSPACES:
        command = [program, "--log-level", "error", "--format", "json", "--locked", "--workspace", "--config", config, "check",
                   "licenses", "bans", "sources"]
        done = subprocess.run(command, cwd=ROOT / folder, capture_output=True, text=True)
        told = [json.loads(line)["fields"] for line in done.stderr.splitlines() if line.startswith("{")]
        faults = [f"{graph['Krate']['name']}: {each['message']}: {' '.join(label['span'] for label in each['labels'])}"
                  for each in told if each.get("severity") == "error" for graph in each.get("graphs", [])[:1]]
        if done.returncode and not faults:
            faults = [done.stderr.strip() or f"cargo-deny failed ({done.returncode})"]
        found += [f"{folder}: {' '.join(fault.split())}" for fault in faults]
    return found


def exceptional(packages):
    """Of packages that we distribute, those that deny.toml makes an exception for."""
    names = {one["crate"] for one in tomllib.loads((ROOT / "deny.toml").read_text())["licenses"]["exceptions"]}
    for name in sorted(names & {package["name"] for package in packages}):
        yield f"{name} is in the programs that we distribute, under a licence that does not go with libelf's"


def installs(name, text):
    """Lines that install something unverified."""
    # A command may continue on the next line.
    text = re.sub(r"\\\n\s*", lambda m: " " * len(m.group()), text)
    for number, line in enumerate(text.splitlines(), 1):
        # Instructions in messages are not commands of the script.
        line = re.sub(r"(^|\s)#.*|\bdie\b.*", "", line)
        for pattern, why in UNCHECKED:
            if re.search(pattern, line):
                yield f"{name}:{number}: {why}: {line.strip()}"
        if re.search(FETCHES, line) and "sha256sum" not in text:
            yield f"{name}:{number}: a download that is compared with no sum: {line.strip()}"


def metadata_of(folder, *more):
    command = ["cargo", "metadata", "--locked", "--format-version", "1", *more]
    return json.loads(subprocess.run(command, cwd=ROOT / folder, check=True, stdout=subprocess.PIPE).stdout)


def distributed():
    """The packages linked into the programs and the layers."""
    everything = [metadata_of(PROGRAM, *LINUX, *STATIC), metadata_of("crates/layers", *LINUX)]
    return [p for metadata in everything for p in metadata["packages"] if p["id"] in shipped(metadata)]


def paragraphs(packages):
    """A paragraph in Debian's format for each of these crates; of alternative licences, the one chosen."""
    for package in sorted(packages, key=lambda p: p["name"]):
        if package["source"] is not None:
            choice = re.split(r"\s+OR\s+|/", package["license"] or "")
            taken = next((name for of, name in [("MIT", "Expat"), ("BSD-2-Clause", "BSD-2-Clause"), ("Zlib", "Zlib")]
                          if of in choice), package["license"])
            authors = ", ".join(package["authors"]) or f"the authors of {package['name']}"
            yield f"Files: crates/{package['name']}/*\nCopyright: {authors}\nLicense: {taken}\n"


def copyright_file(text, packages):
    """The expected file: all crates between its first crate and its licences."""
    before = text.split("@CRATES@")[0].split("\nFiles: crates/")[0].rstrip("\n")
    after = text[text.index("\nLicense: Expat\n@MIT@"):]
    return before + "\n\n" + "\n".join(paragraphs(packages)) + after


def refresh(checkout):
    """Rewrites the list. It covers all crates, so that it also applies to crates added later."""
    git = ["git", "-C", checkout]
    day = subprocess.run([*git, "log", "-1", "--format=%cs"], check=True, capture_output=True, text=True).stdout.strip()
    names = subprocess.run([*git, "ls-tree", "-r", "--name-only", "HEAD", "crates"], check=True, capture_output=True,
                           text=True).stdout.split()
    batch = "".join(f"HEAD:{n}\n" for n in names).encode()
    blobs = subprocess.run([*git, "cat-file", "--batch"], input=batch, check=True, capture_output=True).stdout
    lines, at = [], 0
    for _ in names:
        end = blobs.index(b"\n", at)
        size = int(blobs[at:end].split()[2])
        text = blobs[end + 1:end + 1 + size].decode()
        at = end + size + 2
        front = re.match(r"```toml\n(.*?)\n```", text, re.DOTALL)
        if not front:
            continue
        told = tomllib.loads(front.group(1))
        what, versions = told["advisory"], told.get("versions", {})
        if "withdrawn" in what:
            continue
        ranges = [";".join(versions.get(kind, [])) for kind in ("patched", "unaffected")]
        lines.append("\t".join([what["package"], what["id"], *ranges, what.get("informational", "vulnerability")]))
    head = f"# Known faults of crates as of {day}, from github.com/rustsec/advisory-db (CC0); tests/supply_chain.py --refresh"
    ADVISORIES.write_text("\n".join([head, "# crate, id, patched, unaffected, kind", *sorted(lines)]) + "\n")


def self_test():
    """Tests that each check finds its faults."""
    def lock(version):
        return {"package": [{"name": "a", "version": version}]}

    list_, day = known("# as of 2026-01-02\na\tRUSTSEC-1\t>=1.2.4;~1.1.9\t<1.0.0\tvulnerability\n")
    assert day == "2026-01-02"
    for number, bad in [("1.2.3", True), ("1.2.4", False), ("1.1.9", False), ("1.1.10", False), ("0.9.0", False),
                        ("1.2.4-rc.1", True), ("1.1.8", True), ("1.3.0", False)]:
        assert bool(list(faults(lock(number), list_))) == bad, number
    assert list(faults(lock("1.2.3"), known("a\tRUSTSEC-2\t\t\tunmaintained\n")[0]))
    for wanted, number, is_in in [("^1.2.3", "1.9.0", True), ("^1.2.3", "2.0.0", False), ("^0.2.3", "0.3.0", False),
                                  ("^0.0.3", "0.0.4", False), ("~1.2.3", "1.2.9", True), ("~1.2.3", "1.3.0", False),
                                  (">=1, <2", "1.5.0", True), (">=1, <2", "2.0.0", False), ("=1.2.3", "1.2.3", True),
                                  ("< 0.1.2", "0.1.2-alpha", True), ("> 1.0", "1.0.1", True), ("1.2", "1.3.0", True)]:
        assert within(wanted, number) == is_in, (wanted, number)

    def of(kind, target="lib"):
        members = [{"id": "us", "name": "us", "targets": []}, {"id": "a", "name": "parquet", "targets": [{"kind": [target]}]}]
        nodes = [{"id": "us", "deps": [{"pkg": "a", "dep_kinds": [{"kind": kind}]}]}, {"id": "a", "deps": []}]
        linked = shipped({"packages": members, "resolve": {"nodes": nodes}, "workspace_members": ["us"]})
        return list(exceptional(p for p in members if p["id"] in linked))

    assert of(None) and not of("dev") and not of("build") and not of(None, "proc-macro")
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as config:
        text = (ROOT / "deny.toml").read_text()
        config.write(re.sub(r"(exceptions|skip) = \[\n(.*\n)*?\]", "", text))
        config.flush()
        found = denied(config.name)
        words = ["duplicate", "getrandom", "license", "parquet", "libfuzzer-sys"]
        assert found is None or all(any(word in fault for fault in found) for word in words), found
    for bad in ["curl https://x | sh", "curl -sSf https://x |  bash -s", "pip install x==1", "python3 -m pip install \\\n  x",
                "npm install x", "npx x", "cargo install x --locked", "cargo install x --version 1", "curl -o a https://x",
                "rustup toolchain install stable", "docker run x:latest"]:
        assert list(installs("x", bad)), bad
    for good in ["pip install --require-hashes -r x", "pip install \\\n --require-hashes -r x", "# curl x | sh",
                 "cargo install x --locked --version 1", "curl -o a x\nsha256sum a", "rustup component add rustfmt"]:
        assert not list(installs("x", good)), good


def check():
    found = []
    advisories, day = known(ADVISORIES.read_text())
    crates = set()
    for name in LOCKS:
        lock = tomllib.loads((ROOT / name).read_text())
        crates |= {(p["name"], p["version"]) for p in lock.get("package", [])}
        found += [f"{name}: {fault}" for fault in faults(lock, advisories)]
    for each in (r for all_ in advisories.values() for _, ranges, _ in all_ for r in ranges):
        within(each, "1.0.0")
    denied_here = denied()
    if denied_here is None:
        note("supply_chain", "no cargo-deny: scripts/setup.sh fetches it")
        found += ["no cargo-deny, and nothing is to be skipped here"] if REQUIRED else []
    found += denied_here or []
    found += exceptional(distributed())
    if copyright_file(COPYRIGHT.read_text(), distributed()) != COPYRIGHT.read_text():
        found.append(f"{COPYRIGHT.relative_to(ROOT)} lacks crates or has others: tests/supply_chain.py --copyright writes it")
    for pattern in INSTALLERS:
        for path in sorted(ROOT.glob(pattern)):
            if path.is_file():
                found += installs(path.relative_to(ROOT), path.read_text())
    print("\n".join(found), file=sys.stderr, end="\n" if found else "")
    count = sum(map(len, advisories.values()))
    print(f"{len(crates)} crates against {count} advisories as of {day}: {len(found) or 'no'} faults")
    return 1 if found else 0


def main():
    if sys.argv[1:2] == ["--refresh"] and len(sys.argv) == 3:
        refresh(sys.argv[2])
        return 0
    if sys.argv[1:] == ["--copyright"]:
        COPYRIGHT.write_text(copyright_file(COPYRIGHT.read_text(), distributed()))
        return 0
    if len(sys.argv) > 1:
        print(__doc__, file=sys.stderr)
        return 2
    self_test()
    return check()


if __name__ == "__main__":
    sys.exit(main())
