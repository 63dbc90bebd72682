#!/usr/bin/env python3
"""Keeps compiled dependencies outside the tree, so that a clean clone compiles the workspace's own crates only.

usage: deps.py restore | save

A copy of target/debug, and of its like for arm64, without anything of the workspace, made of hard links where the file
system allows, in $XDG_CACHE_HOME/profinfer/deps, by compiler and Cargo.lock without the workspace's own version. Cargo itself
decides whether a restored file is current: its fingerprint holds version, features, profile and compiler.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "profinfer" / "deps"
# Within the target directory.
BUILDS = ["debug", "aarch64-unknown-linux-musl/debug"]
# Of cargo's layout of each; each entry's name begins with that of its crate.
PARTS = [".fingerprint", "build", "deps"]
ENTRY = re.compile(r"(?:lib)?(.+)-[0-9a-f]{16}(?:\..*)?")


def target():
    return Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target")


def key():
    compiler = subprocess.run(["rustc", "-vV"], capture_output=True, check=True).stdout
    # A package without a source is the workspace's.
    packages = (ROOT / "Cargo.lock").read_text().split("\n\n")
    foreign = "\n\n".join(package for package in packages if "\nsource = " in package)
    return hashlib.sha256(compiler + foreign.encode()).hexdigest()[:16]


def own_names():
    """Of the workspace's packages and their targets, as files are named after them."""
    metadata = ["cargo", "metadata", "--locked", "--offline", "--no-deps", "--format-version=1"]
    packages = json.loads(subprocess.run(metadata, cwd=ROOT, capture_output=True, check=True).stdout)["packages"]
    names = {name for p in packages for name in [p["name"], *(t["name"] for t in p["targets"])]}
    return names | {name.replace("-", "_") for name in names}


def link(source, to):
    try:
        os.link(source, to)
    except OSError:
        shutil.copy2(source, to)


def copy(source, to, wanted=lambda name: True):
    for part in [f"{build}/{part}" for build in BUILDS for part in PARTS if (source / build).is_dir()]:
        (to / part).mkdir(parents=True, exist_ok=True)
        for entry in os.scandir(source / part) if (source / part).is_dir() else []:
            new = to / part / entry.name
            if not wanted(entry.name) or new.exists():
                continue
            if entry.is_dir():
                shutil.copytree(entry.path, new, copy_function=link, symlinks=True)
            else:
                link(entry.path, new)


def restore():
    if (target() / BUILDS[0]).exists():
        return f"{BUILDS[0]} is there already"
    kept = CACHE / key()
    if not kept.is_dir():
        return "no compiled dependencies of this Cargo.lock and compiler"
    copy(kept, target())
    return f"compiled dependencies from {kept}"


def save():
    """Replaces what other versions of Cargo.lock or the compiler left."""
    kept, own = CACHE / key(), own_names()
    new = CACHE / f"{kept.name}.{os.getpid()}"

    def foreign(name):
        matched = ENTRY.fullmatch(name)
        return bool(matched) and matched[1] not in own

    copy(target(), new, foreign)
    for old in CACHE.iterdir():
        if old != new:
            shutil.rmtree(old, ignore_errors=True)
    new.rename(kept)
    return f"compiled dependencies are in {kept}"


def attempt(action):
    """Of `restore` or `save`; a failure costs only time."""
    try:
        print("deps.py:", action(), flush=True)
    except (OSError, ValueError, subprocess.CalledProcessError) as wrong:
        print(f"deps.py: {action.__name__}: {wrong}", file=sys.stderr)


if __name__ == "__main__":
    actions = {"restore": restore, "save": save}
    if len(sys.argv) != 2 or sys.argv[1] not in actions:
        sys.exit(__doc__)
    attempt(actions[sys.argv[1]])
