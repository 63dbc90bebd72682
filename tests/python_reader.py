#!/usr/bin/env python3
"""Installs the reader for Python (python/) into an environment of its own and runs its tests (python/tests), also against
`profinfer report` and `profinfer export` on synthetic traces.

usage: python_reader.py [TEST...]

The environment has pandas and pyarrow and is kept in the cache. Without a package registry the tests run with this
interpreter and without them; PROFINFER_REQUIRE=1 makes that a failure."""

import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

from skips import REQUIRED, note

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGES = ROOT / "python/tests/requirements.txt"
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "profinfer"


# The same files as above it, where a package of python/ needs them.
LICENCES = ["LICENSE-MIT", "LICENSE-APACHE"]


class Missing(Exception):
    """What the environment needs and does not get."""


def call(*command, **options):
    """Runs a command; its output is shown only if it fails."""
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if done.returncode:
        raise Missing(f"{pathlib.Path(command[0]).name} failed: {done.stdout.strip() or done.returncode}")


def pip(python, *args):
    call(python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *args)


def environment(work):
    """The interpreter of an environment with the package and what it may use."""
    named = hashlib.sha256(PACKAGES.read_bytes() + sys.version.encode() + sys.prefix.encode()).hexdigest()[:12]
    place = CACHE / f"python-{named}"
    python = place / "bin/python3"
    if not (place / "complete").exists():
        shutil.rmtree(place, ignore_errors=True)
        call(sys.executable, "-m", "venv", place)
        pip(python, "--require-hashes", "--only-binary", ":all:", "-r", PACKAGES)
        (place / "complete").touch()
    # What builds it is in the environment, with a sum of ours.
    before = beside_the_sources()
    call(python, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-index", "--no-deps",
         "--no-build-isolation", "--wheel-dir", work / "wheel", ROOT / "python")
    if left := beside_the_sources() - before:
        sys.exit(f"building the package left files in python/: {', '.join(sorted(left))}")
    (wheel,) = (work / "wheel").iterdir()
    check(wheel)
    pip(python, "--no-index", "--no-deps", "--force-reinstall", wheel)
    return python


def beside_the_sources():
    return {str(path.relative_to(ROOT / "python")) for path in (ROOT / "python").rglob("*")}


def check(wheel):
    """All modules, the licences, and the version of the module are in the package, and nothing else."""
    version = re.search('^__version__ = "(.*)"', (ROOT / "python/profinfer/__init__.py").read_text(), re.MULTILINE)[1]
    about = f"profinfer-{version}"
    expected = {path.relative_to(ROOT / "python").as_posix() for path in (ROOT / "python/profinfer").glob("*.py")}
    licences = [f"licenses/{name}" for name in LICENCES]
    expected |= {f"{about}.dist-info/{name}" for name in ["METADATA", "RECORD", "WHEEL", *licences]}
    with zipfile.ZipFile(wheel) as files:
        if set(files.namelist()) != expected or wheel.name != f"{about}-py3-none-any.whl":
            sys.exit(f"{wheel.name} differs in {', '.join(sorted(set(files.namelist()) ^ expected)) or 'its name'}")
    for name in LICENCES:
        if (ROOT / "python" / name).read_bytes() != (ROOT / name).read_bytes():
            sys.exit(f"python/{name} differs from {name}: copy it")


def traces(work):
    """Writes the synthetic traces."""
    place = work / "traces"
    place.mkdir()
    cargo = os.environ.get("CARGO", "cargo")
    done = subprocess.run([cargo, "test", "--quiet", "--locked", "--test", "plain", "python_traces::", "--", "--ignored"],
                          cwd=ROOT, env={**os.environ, "PROFINFER_TRACES": str(place)}, stdout=subprocess.PIPE, text=True,
                          check=False)
    if done.returncode or not list(place.iterdir()):
        sys.exit(f"no synthetic traces: {done.stdout}")
    return place


def main():
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        env = {**os.environ, "PROFINFER_TRACES": str(traces(work)), "PYTHONDONTWRITEBYTECODE": "1"}
        env.setdefault("PROFINFER", str(ROOT / "target/debug/profinfer"))
        try:
            python = environment(work)
            env.pop("PYTHONPATH", None)
        except Missing as why:
            if REQUIRED:
                sys.exit(f"not to be skipped here: {why}")
            note("python_reader, with pandas and pyarrow", why)
            python, env["PYTHONPATH"] = sys.executable, str(ROOT / "python")
        command = [python, "-m", "unittest", "discover", "-s", ROOT / "python/tests", *[f"-k={name}" for name in sys.argv[1:]]]
        return subprocess.run(command, cwd=work, env=env, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
