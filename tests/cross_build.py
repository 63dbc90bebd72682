#!/usr/bin/env python3
"""Runs `cross build` for AArch64 as docs/BUILDING.md gives it, in the image of cross/Dockerfile, with podman, and looks at
the two programs: they are static, and under QEMU they tell the commit that was given to the build.

Link-time optimization and size are not tested here but by `make test-dist`: variables turn them off. The image that the
Dockerfile begins with is made by debootstrap, not taken from a registry of images. Cross, its images and podman's settings
are in $XDG_CACHE_HOME/profinfer/cross; images of the user are not touched. In the container programs are compiled, never run.

usage: cross_build.py
Exits 0 after "skipped: why" where podman runs no container, 1 with PROFINFER_REQUIRE=1 or CI=true.
"""

import fcntl
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from podman import settings
from skips import REQUIRED, note

ROOT = Path(__file__).resolve().parents[1]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "profinfer"
HOME = CACHE / "cross"
OUT = ROOT / "target" / "tests" / "cross"
TARGET = "aarch64-unknown-linux-musl"
PROGRAMS = ["profinfer", "ggml-runner"]
COMMIT = "of-cross"
# What the Dockerfile begins with, under its full name, and its name for debootstrap.
BASE, SUITE = "docker.io/library/debian:12", "bookworm"
# The image that was used last, whatever checkout it was built for: it keeps the layers.
KEPT = "profinfer-cross"
# Most of the time goes into optimization.
FAST = {"CARGO_PROFILE_SMALL_LTO": "off", "CARGO_PROFILE_SMALL_OPT_LEVEL": "0", "CARGO_PROFILE_SMALL_CODEGEN_UNITS": "16"}

# Cross 0.2.5 does not understand how rustup 1.28 and later mark the active toolchain, and would install it again, that is,
# update it. It gets the name of the toolchain; nothing is installed.
RUSTUP = """#!/bin/sh
case "$*" in
"toolchain list") basename "$(${RUSTC:-rustc} --print sysroot)" ;;
*" list "*) ;;
*) echo "rustup $*: nothing is installed by a test" >&2; exit 1 ;;
esac
"""


class Unable(Exception):
    """Why the test cannot run here."""


class Failure(Exception):
    pass


def ends(done):
    """The last lines that a command printed."""
    return "\n".join((done.stdout + done.stderr).strip().splitlines()[-20:])


def run(command, error=Failure, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)
    if done.returncode:
        raise error(f"{' '.join(map(str, command[:4]))} ...: exit {done.returncode}\n{ends(done)}")
    return done.stdout


def documented():
    """The command of docs/BUILDING.md as words."""
    text = (ROOT / "docs/BUILDING.md").read_text().replace("\\\n", " ")
    return shlex.split(re.search(r"^    (cross build .*)$", text, re.MULTILINE).group(1))


def need_programs():
    if os.uname().sysname != "Linux" or os.uname().machine != "x86_64":
        raise Unable(f"cross runs toolchains for Linux x86-64, this is {os.uname().sysname} {os.uname().machine}")
    if os.geteuid() != 0:
        raise Unable("not root, which debootstrap and podman's images need")
    for program in ["cargo", "podman", "debootstrap"]:
        if not shutil.which(program):
            raise Unable(f"no {program}" + ("" if program == "cargo" else ": scripts/setup.sh installs it"))
    if not qemu():
        raise Unable("no qemu-aarch64: scripts/setup.sh installs it")


def qemu():
    return shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")


def cross():
    """The program, in the version of the workflow."""
    flow = (ROOT / ".github/workflows/ci.yml").read_text()
    version = re.search(r"install cross --locked --version (\S+)", flow).group(1)
    program = HOME / f"cross-{version}" / "bin" / "cross"
    if not program.exists():
        print(f"cross: compiling cross {version}", flush=True)
        # Not in our target directory, which CARGO_TARGET_DIR may name.
        with tempfile.TemporaryDirectory() as built:
            environment = {**os.environ, "CARGO_TARGET_DIR": built}
            command = ["cargo", "install", "--quiet", "cross", "--locked", "--version", version, "--root", program.parents[1]]
            run(command, Unable, env=environment, cwd="/")
    return program


def base(environment):
    """Debian with nothing but what is essential, as the image that the Dockerfile begins with."""
    if subprocess.run(["podman", "image", "exists", BASE], env=environment).returncode:
        print(f"cross: making {BASE} by debootstrap", flush=True)
        mirror = [os.environ["PROFINFER_DEBIAN_MIRROR"]] if os.environ.get("PROFINFER_DEBIAN_MIRROR") else []
        with tempfile.TemporaryDirectory(dir=HOME) as place:
            root, archive = Path(place) / "root", Path(place) / "root.tar"
            run(["debootstrap", "--variant=minbase", SUITE, root, *mirror], Unable)
            run(["tar", "-C", root, "--numeric-owner", "--exclude=./var/cache/apt/archives/*.deb", "-cf", archive, "."], Unable)
            run(["podman", "import", archive, BASE], Unable, env=environment)
    done = subprocess.run(["podman", "run", "--rm", BASE, "true"], env=environment, capture_output=True, text=True)
    if done.returncode:
        raise Unable(f"podman runs no container here: {ends(done)}")


def rust(environment):
    """Adds the Rust of cross/std.sh, and fetches the crates that it and the programs need: nothing is fetched in the container,
    which does not know what certificates this machine trusts."""
    try:
        assignments = run([ROOT / "cross/std.sh", TARGET], Unable)
    except Unable as why:
        raise Unable(f"no Rust for {TARGET}: {why}") from None
    told = run(["bash", "-c", f"{assignments}\nenv -0"], env=environment)
    environment = dict(pair.split("=", 1) for pair in told.split("\0") if "=" in pair)
    # It is a path of this machine; the image has its own.
    environment.pop("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER", None)
    sysroot = Path(run([environment.get("RUSTC", "rustc"), "--print", "sysroot"], env=environment).strip())
    if "LD_LIBRARY_PATH" in environment and "RUSTC" in environment:
        environment["CROSS_CONTAINER_OPTS"] = "--env LD_LIBRARY_PATH=/rust/lib/x86_64-linux-gnu"
    for manifest in [ROOT / "Cargo.toml", sysroot / "lib/rustlib/src/rust/library/Cargo.toml"]:
        fetch = [environment.get("CARGO", "cargo"), "fetch", "--locked", "--manifest-path", manifest]
        run(fetch, Unable, env={**environment, "RUSTC_BOOTSTRAP": "1"})
    return environment


def build(program, environment):
    with tempfile.TemporaryDirectory() as place:
        rustup = Path(place) / "rustup"
        rustup.write_text(RUSTUP)
        rustup.chmod(0o755)
        environment = environment | FAST | {
            "PATH": f"{place}:{environment['PATH']}",
            "CROSS_CONTAINER_ENGINE": "podman",
            "CROSS_CUSTOM_TOOLCHAIN": "1",
            "CARGO_NET_OFFLINE": "true",
            "CARGO_TARGET_DIR": str(OUT),
            "PROFINFER_COMMIT": COMMIT,
        }
        log = OUT / "log"
        print(f"cross: building the image and the programs; what is said goes to {log}", flush=True)
        with open(log, "w") as to:
            command = [program, *documented()[1:]]
            code = subprocess.run(command, cwd=ROOT, env=environment, stdout=to, stderr=subprocess.STDOUT).returncode
    said = log.read_text(errors="replace")
    if code or "Falling back to `cargo`" in said:
        last = "\n".join(said.splitlines()[-40:])
        raise Failure(f"exit {code} of {shlex.join(documented())}\n{last}\nall of it: {log}")


def keep(environment):
    """Leaves one image, with its layers, for the next run."""
    names = ["podman", "images", "--filter", "reference=cross-custom-*", "--format", "{{.Repository}}:{{.Tag}}"]
    # All names of each image: it may have been kept before.
    found = [name for name in run(names, env=environment).split() if "/cross-custom-" in name]
    if not found:
        raise Failure("cross has built no image: cross/Dockerfile was not used")
    run(["podman", "tag", found[0], KEPT], env=environment)
    run(["podman", "rmi", *found], env=environment)
    run(["podman", "image", "prune", "--force"], env=environment)


def look(name):
    file = OUT / TARGET / "small" / name
    headers = run(["readelf", "--wide", "--file-header", "--program-headers", "--dynamic", file])
    if not re.search(r"Machine: +AArch64", headers) or re.search("INTERP|NEEDED", headers):
        raise Failure(f"{file} is not a static program for AArch64\n{headers}")
    version = re.search(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.MULTILINE).group(1)
    said = run([qemu(), file, "--version"]).strip()
    if said != f"{name} {version} ({COMMIT})":
        raise Failure(f"{file} --version says '{said}'")
    print(f"cross: {said}: static, for AArch64, {file.stat().st_size} bytes")


def test():
    need_programs()
    program, environment = cross(), settings(HOME)
    base(environment)
    environment = rust(environment)
    for name in PROGRAMS:
        (OUT / TARGET / "small" / name).unlink(missing_ok=True)
    build(program, environment)
    keep(environment)
    for name in PROGRAMS:
        look(name)


def main():
    CACHE.mkdir(parents=True, exist_ok=True)
    OUT.mkdir(parents=True, exist_ok=True)
    # Another checkout uses the same images.
    with open(CACHE / "cross.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            test()
        except Unable as why:
            note("tests/cross_build.py", why)
            return 1 if REQUIRED else 0
        except Failure as why:
            print(f"tests/cross_build.py: {why}", file=sys.stderr)
            return 1
    return 0


sys.exit(main())
