"""Debian's llama.cpp in its own root directory (setup.sh), as tests use it."""

import argparse
import ctypes
import os
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
sys.path.append(os.path.join(TOP, "tests"))
from skips import REQUIRED, note  # noqa: E402


class Failure(Exception):
    pass


def sh(args, **more):
    done = subprocess.run(args, capture_output=True, text=True, **more)
    if done.returncode:
        raise Failure(f"{' '.join(map(str, args))}: exit {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def skipped(why):
    """Says why a test does not run; its exit status."""
    note(os.path.relpath(sys.argv[0], TOP), why)
    return 1 if REQUIRED else 77


def need_to_record():
    """Raises Failure where nothing can be recorded: the same as `turn` of tests/common/mod.rs."""
    if os.geteuid() != 0:
        raise Failure("not root")
    uprobes = "/sys/bus/event_source/devices/uprobe/type"
    if not os.path.exists(uprobes):
        raise Failure(f"this kernel has no uprobes ({uprobes} is not there)")
    # BPF_MAP_CREATE of an array of one word; bpf() has two numbers on the machines that we know.
    attributes = (ctypes.c_uint32 * 32)(2, 4, 4, 1)
    libc = ctypes.CDLL(None, use_errno=True)
    number = 321 if os.uname().machine == "x86_64" else 280
    fd = libc.syscall(number, 0, attributes, ctypes.sizeof(attributes))
    if fd < 0:
        raise Failure(f"no BPF here: {os.strerror(ctypes.get_errno())}")
    os.close(fd)


# In a namespace of its own, so that nothing stays mounted whatever happens: someone may delete the directory.
ENTER = """root=$1; shift
for what in proc sys dev; do mount --rbind /$what "$root/$what" || exit 125; done
exec chroot "$root" "$@"
"""


def play(doc, kind, checks, prepare=lambda bed: None):
    """A test's command line: runs its checks, by name, each with a Root. `prepare` may return why none can run."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", metavar="DIR", help="keep traces and logs there")
    parser.add_argument("--only", metavar="NAME", choices=checks, help="one check: " + ", ".join(checks))
    parser.add_argument("--profinfer", default=os.path.join(TOP, "target/debug/profinfer"), metavar="FILE")
    parser.add_argument("--root", metavar="DIR", help="root directory with Debian's llama.cpp")
    args = parser.parse_args()
    try:
        bed = Root(kind, args.profinfer, args.root)
    except Failure as why:
        return skipped(why)
    bed.out = args.keep or tempfile.mkdtemp(prefix=f"profinfer-{kind}-")
    os.makedirs(bed.out, exist_ok=True)
    failed = 0
    try:
        if why := prepare(bed):
            return skipped(why)
        for name, check in checks.items():
            if args.only in (None, name):
                try:
                    print(f"  {name}: {check(bed)}", flush=True)
                except Failure as why:
                    failed += 1
                    print(f"  {name}: FAILED\n{why}", flush=True)
    finally:
        if not args.keep:
            shutil.rmtree(bed.out, ignore_errors=True)
    return 1 if failed else 0


class Root:
    """The root directory, and where a test's own files are (`out`)."""

    out = None

    def __init__(self, kind, profinfer, directory=None):
        need_to_record()
        self.profinfer = profinfer
        self.dir = directory or sh([os.path.join(HERE, "setup.sh"), kind]).strip().splitlines()[-1]

    def command(self, *args):
        """Runs a program of the root directory, with /proc, /sys and /dev of this system."""
        return ["unshare", "--mount", "sh", "-c", ENTER, "sh", self.dir, *args]

    def path(self, inside):
        return os.path.join(self.dir, inside.lstrip("/"))

    def model(self, name, preset, seed="42"):
        """Path, in the root directory, of a generated model."""
        at = f"/models/{name}.gguf"
        path = self.path(at)
        if not os.path.exists(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            runner = os.path.join(os.path.dirname(self.profinfer), "ggml-runner")
            sh([runner, "synth", preset, path + ".part", "--type", "q4_0", "--seed", seed, "--force"])
            os.replace(path + ".part", path)
        return at

    def copy(self, file, inside):
        os.makedirs(os.path.dirname(self.path(inside)), exist_ok=True)
        # A program that runs cannot be written to.
        shutil.copy(file, self.path(inside) + ".part")
        os.replace(self.path(inside) + ".part", self.path(inside))
        return inside
