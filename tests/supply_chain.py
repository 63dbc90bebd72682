#!/usr/bin/env python3
"""Checks of third-party code: licences, advisories, sources, and that scripts install nothing unverified.
Needs Python 3.11 and cargo.

usage: supply_chain.py                     run a self-test, then all checks
       supply_chain.py --copyright         write the crates into conf/debian/copyright
       supply_chain.py --refresh CHECKOUT  write tests/advisories.tsv from a checkout of github.com/rustsec/advisory-db
"""

import json
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ADVISORIES = ROOT / "tests" / "advisories.tsv"
LOCKS = ["Cargo.lock", "crates/layers/Cargo.lock", "fuzz/Cargo.lock"]
COPYRIGHT = ROOT / "conf" / "debian" / "copyright"
LINUX = ["--filter-platform", "x86_64-unknown-linux-gnu"]
REGISTRY = "registry+https://github.com/rust-lang/crates.io-index"

# The program that has the dependencies of both.
PROGRAM = "programs/profinfer"
# The features of the programs that we distribute (cross/dist.sh).
STATIC = ["--no-default-features", "--features", "vendored"]
# Licences accepted in the programs that we distribute. They contain libelf, used under GPL-2+, whose version 2 does not go
# with Apache-2.0.
DISTRIBUTED = {"MIT", "BSD-2-Clause", "BSD-3-Clause", "0BSD", "ISC", "Zlib", "Unlicense", "Unicode-3.0"}
# Licences compatible with ours, MIT or Apache-2.0, in programs that a user builds.
SHIPPED = DISTRIBUTED | {"Apache-2.0"}
# Licences accepted in tools that only build or test.
TOOLS = SHIPPED | {"Apache-2.0 WITH LLVM-exception", "CC0-1.0", "NCSA"}
# Crates that may be in a lock file in several versions, and why.
TWICE = {"syn": "derive macros are between two versions of it; it only builds",
         "getrandom": "that of parquet's hash, of the macro that it builds with, and of proptest, which only tests",
         "r-efi": "two versions of getrandom; on UEFI only"}
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


def sources(lock, ours):
    """Crates that are neither ours nor from crates.io, or have no checksum."""
    for package in lock.get("package", []):
        name = f"{package['name']} {package['version']}"
        if "source" not in package:
            if package["name"] not in ours:
                yield f"{name} is taken from a path and is not ours"
        elif package["source"] != REGISTRY:
            yield f"{name} comes from {package['source']}: crates.io only"
        elif not re.fullmatch(r"[0-9a-f]{64}", package.get("checksum", "")):
            yield f"{name} has no SHA-256"


def twice(lock):
    """Crates in several versions: each adds code to review and to ship."""
    found = defaultdict(set)
    for package in lock.get("package", []):
        found[package["name"]].add(package["version"])
    for name, versions in sorted(found.items()):
        if len(versions) > 1 and name not in TWICE:
            yield f"{name} in versions {', '.join(sorted(versions))}: bring them together, or say why in TWICE"


def allowed(expression, licences):
    """Whether these licences satisfy an SPDX licence expression."""
    words = re.findall(r"[()]|[\w.+-]+", expression.replace("/", " OR "))
    at = 0

    def one():
        nonlocal at
        word = words[at]
        at += 1
        if word == "(":
            value = either()
            at += 1
            return value
        if at < len(words) and words[at] == "WITH":
            word += f" WITH {words[at + 1]}"
            at += 2
        return word in licences

    def both():
        nonlocal at
        value = one()
        while at < len(words) and words[at] == "AND":
            at += 1
            value = one() and value
        return value

    def either():
        nonlocal at
        value = both()
        while at < len(words) and words[at] == "OR":
            at += 1
            value = both() or value
        return value

    return bool(words) and either() and at == len(words)


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


def licences(metadata, linked=SHIPPED):
    """Packages whose licence is not accepted in the programs, or for building and testing; without `linked`, nothing is
    linked into a program."""
    inside = shipped(metadata) if linked else set()
    for package in metadata["packages"]:
        words, of = package["license"] or "", linked if package["id"] in inside else TOOLS
        own = package["id"] in metadata["workspace_members"] or package["source"] is None
        if not own and not allowed(words, of):
            where = "the programs" if of is linked else "what builds or tests them"
            yield f"{package['name']} {package['version']}: licence '{words}' is none for {where}"


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
            taken = next((name for of, name in [("MIT", "Expat"), ("BSD-2-Clause", "BSD-2-Clause"), ("Zlib", "Zlib")]
                          if allowed(package["license"] or "", {of})), package["license"])
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
    sum_ = "0" * 64
    package = {"name": "a", "version": "1.2.3", "source": REGISTRY, "checksum": sum_}

    def lock(**other):
        return {"package": [{k: v for k, v in (package | other).items() if v is not None}]}

    list_, day = known("# as of 2026-01-02\na\tRUSTSEC-1\t>=1.2.4;~1.1.9\t<1.0.0\tvulnerability\n")
    assert day == "2026-01-02"
    for number, bad in [("1.2.3", True), ("1.2.4", False), ("1.1.9", False), ("1.1.10", False), ("0.9.0", False),
                        ("1.2.4-rc.1", True), ("1.1.8", True), ("1.3.0", False)]:
        assert bool(list(faults(lock(version=number), list_))) == bad, number
    assert list(faults(lock(), known("a\tRUSTSEC-2\t\t\tunmaintained\n")[0]))
    for wanted, number, is_in in [("^1.2.3", "1.9.0", True), ("^1.2.3", "2.0.0", False), ("^0.2.3", "0.3.0", False),
                                  ("^0.0.3", "0.0.4", False), ("~1.2.3", "1.2.9", True), ("~1.2.3", "1.3.0", False),
                                  (">=1, <2", "1.5.0", True), (">=1, <2", "2.0.0", False), ("=1.2.3", "1.2.3", True),
                                  ("< 0.1.2", "0.1.2-alpha", True), ("> 1.0", "1.0.1", True), ("1.2", "1.3.0", True)]:
        assert within(wanted, number) == is_in, (wanted, number)
    assert not list(sources(lock(), set()))
    assert list(sources(lock(source="git+https://github.com/a/a#1"), set()))
    assert list(sources(lock(checksum=None), set()))
    assert list(sources(lock(source=None, checksum=None), {"b"}))
    assert not list(twice(lock())) and list(twice({"package": [package, package | {"version": "2.0.0"}]}))
    for words, good in [("MIT OR Apache-2.0", True), ("MIT/Apache-2.0", True), ("Apache-2.0", False), ("", False),
                        ("(MIT OR Apache-2.0) AND Unicode-3.0", True), ("MIT AND GPL-3.0-only", False), ("MIT OR", False),
                        ("Apache-2.0 WITH LLVM-exception OR MIT", True), ("LGPL-2.1-only OR BSD-2-Clause", True)]:
        try:
            found = allowed(words, DISTRIBUTED)
        except IndexError:
            found = False
        assert found == good, words

    def of(kind, target="lib"):
        members = [{"id": "us", "name": "us", "version": "1", "license": "MIT", "source": None, "targets": []},
                   {"id": "a", "name": "a", "version": "1", "license": "Apache-2.0", "source": REGISTRY,
                    "targets": [{"kind": [target]}]}]
        nodes = [{"id": "us", "deps": [{"pkg": "a", "dep_kinds": [{"kind": kind}]}]}, {"id": "a", "deps": []}]
        return {"packages": members, "resolve": {"nodes": nodes}, "workspace_members": ["us"]}

    assert not list(licences(of(None))) and list(licences(of(None), DISTRIBUTED))
    assert not list(licences(of("dev"), DISTRIBUTED)) and not list(licences(of(None, "proc-macro"), DISTRIBUTED))
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
    ours = {tomllib.loads(p.read_text())["package"]["name"]
            for p in [ROOT / "Cargo.toml", ROOT / "fuzz/Cargo.toml", ROOT / "tests/dist/panic/Cargo.toml",
                      *(p for folder in ("crates", "crates/layers", "programs") for p in ROOT.glob(f"{folder}/*/Cargo.toml"))]
            if "[package]" in p.read_text()}
    crates = set()
    for name in LOCKS:
        lock = tomllib.loads((ROOT / name).read_text())
        crates |= {(p["name"], p["version"]) for p in lock.get("package", [])}
        for fault in [*sources(lock, ours), *twice(lock), *faults(lock, advisories)]:
            found.append(f"{name}: {fault}")
    for each in (r for all_ in advisories.values() for _, ranges, _ in all_ for r in ranges):
        within(each, "1.0.0")
    found += licences(metadata_of(PROGRAM))
    found += [f"static programs: {fault}" for fault in licences(metadata_of(PROGRAM, *STATIC), DISTRIBUTED)]
    found += [f"crates/layers: {fault}" for fault in licences(metadata_of("crates/layers"), DISTRIBUTED)]
    found += [f"fuzz: {fault}" for fault in licences(metadata_of("fuzz"), linked=None)]
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
