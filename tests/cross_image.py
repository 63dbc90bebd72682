#!/usr/bin/env python3
"""The image that cross builds in (Cross.toml, cross/Dockerfile) has the settings of cross/cc.sh, and its compiler
names; calls of cross build the standard library with the same flags as cross/cargo.sh."""

import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def image_variables():
    """Name and value of each variable of the Dockerfile's ENV."""
    text = (ROOT / "cross/Dockerfile").read_text().replace("\\\n", " ")
    line = next(line for line in text.splitlines() if line.startswith("ENV "))
    return {name: quoted or plain for name, quoted, plain in re.findall(r'(\w+)=(?:"([^"]*)"|(\S+))', line)}


def script_variables(target):
    """Name and value of each variable that cc.sh exports."""
    before = {k: v for k, v in os.environ.items() if not k.startswith(("CC_", "AR", "RANLIB", "ac_cv_"))}
    text = subprocess.run([ROOT / "cross/cc.sh", target], env=before, check=True, capture_output=True, text=True).stdout
    shown = subprocess.run(["bash", "-c", f"{text}\nenv"], env=before, check=True, capture_output=True, text=True).stdout
    pairs = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
    return {k: v for k, v in pairs.items() if k.startswith(("CC_", "AR", "RANLIB", "ac_cv_"))}


def std_flags():
    """The cargo flags with which cross/cargo.sh builds the standard library."""
    return re.findall(r"^ *echo (-Zbuild-std\S*)$", (ROOT / "cross/cargo.sh").read_text(), re.M)


def faults():
    flags = std_flags()
    if len(flags) != 2:
        yield f"cross/cargo.sh: flags of the standard library: {flags}"
    for path in ["docs/BUILDING.md", ".github/workflows/ci.yml"]:
        if " ".join(flags) not in (ROOT / path).read_text():
            yield f"{path}: cross build without {' '.join(flags)}"
    image = image_variables()
    cross = tomllib.loads((ROOT / "Cross.toml").read_text())
    with tempfile.TemporaryDirectory() as place:
        # This machine's compilers: the same script with the same cache as cc.sh below.
        cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        subprocess.run([ROOT / "cross/image.sh", place], check=True, env={**os.environ, "XDG_CACHE_HOME": cache})
        for target, table in cross["target"].items():
            if table != {"dockerfile": {"file": "cross/Dockerfile", "context": "."}}:
                yield f"Cross.toml: {target} has another image"
            for name, value in script_variables(target).items():
                told = image.get(name)
                if told is None:
                    yield f"cross/Dockerfile lacks {name}={value}"
                elif name.startswith("CC_"):
                    link = Path(place) / Path(told).name
                    if not link.exists() or os.readlink(link) != value:
                        yield f"{name}: cross/image.sh makes no {told}"
                elif name.startswith("ac_cv_") and told != value:
                    yield f"{name}: '{told}' in the image, '{value}' by cc.sh"


found = list(faults())
print("\n".join(found), file=sys.stderr, end="\n" if found else "")
sys.exit(1 if found else 0)
