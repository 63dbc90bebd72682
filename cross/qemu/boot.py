#!/usr/bin/env python3
"""Boots a real arm64 kernel in QEMU, runs one program in it as root, and brings back its output, files and exit code.

usage: boot.py [options] KERNEL PROGRAM [ARGUMENTS]
  KERNEL   a name that images.sh knows (5.10, 6.1, 6.12, 7.2, 5.10-nobtf, 5.10-nobpf), or the path of an arm64 Image
  PROGRAM  a static aarch64 program or a script of this machine, or guest:/PATH for one inside

Exit code: the program's own; 124 the limit was reached, 125 the guest died or never reported, 2 wrong use. In the last
three cases the end of the guest's console is shown.

Used by tests/kernels as a module: fill in a Guest, call `run`. Besides its job, the guest has busybox, and init.sh as
its first process.
"""

import argparse
import hashlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import clusters
import initrd

HERE = Path(__file__).resolve().parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "profinfer" / "qemu"
MODES = ("det", "rr", "par")
# Modules of QEMU's network card.
NETWORK = ["virtio_mmio", "virtio_net"]
ELF_AARCH64 = 183


class Unusable(Exception):
    """The guest cannot be started: the reason and the next step."""


class Absent(Unusable):
    """A file that images.sh or setup.sh provides is missing on this machine."""


@dataclass
class Guest:
    """What to boot. Paths in `files` and `trees` are on this machine."""

    kernel: str
    # A shell script, run by busybox in /out; /job comes first in its PATH.
    script: str
    out: Path
    # Guest path: local file. Executable files stay executable.
    files: dict = field(default_factory=dict)
    # Directories whose content is copied over the guest's root.
    trees: list = field(default_factory=list)
    env: dict = field(default_factory=dict)
    modules: list = field(default_factory=list)
    # det: one host thread, guest time = instructions; rr: one host thread, real time; par: one host thread per CPU.
    mode: str = "rr"
    cpus: int = 2
    # MiB
    memory: int = 1024
    cpu: str = "cortex-a76"
    # Unequal clusters of CPUs instead of `cpus` equal ones: see clusters.py.
    clusters: str = ""
    # More nodes of the device tree, as its source, and what is in the guest's memory when it starts: address: local file.
    nodes: str = ""
    loads: dict = field(default_factory=dict)
    append: str = ""
    # Seconds on this machine's clock, boot included.
    limit: float = 120
    # Echo the guest's output as it arrives.
    echo: bool = False
    # TCP port of 127.0.0.1 here: port of the guest, which reaches nothing outside. Needs a kernel with NETWORK.
    ports: dict = field(default_factory=dict)
    # Called with this Guest when `out` is there and empty; may add files and variables.
    prepare: Callable = None
    # Called in a thread while the guest runs, with this Guest and a function that tells whether it still does. An
    # exception ends the guest, and is raised by `run`.
    beside: Callable = None


@dataclass
class Run:
    """How it ended: `code` is the program's own, or None, with the reason in `died`."""

    code: int
    died: str
    seconds: float
    out: Path

    def text(self, name):
        """An output file of the guest, or a log of the run: stdout.txt, stderr.txt, dmesg.txt, console.txt."""
        return (self.out / name).read_text(errors="replace") if (self.out / name).is_file() else ""

    def tail(self, lines=20):
        """The last lines of the guest's console and of the program's errors."""
        parts = [(name, self.text(name).rstrip().splitlines()[-lines:]) for name in ("console.txt", "stderr.txt")]
        return "\n".join(f"  {name}: {line}" for name, text in parts for line in text)


def image(kernel):
    """The file of a kernel, by name or path."""
    path = Path(kernel) if "/" in kernel else CACHE / "kernels" / kernel / "Image"
    if not path.is_file():
        kind = Unusable if "/" in kernel else Absent
        raise kind(f"no kernel {kernel} ({path}): 'cross/qemu/images.sh {kernel}' fetches those it knows")
    with path.open("rb") as file:
        if file.read(64)[56:60] != b"ARM\x64":
            raise Unusable(f"{path} is no arm64 kernel Image (a compressed one has to be unpacked)")
    return path.resolve()


def program_for_arm64(path):
    """`path`, if it is a script or a program that an arm64 kernel can run."""
    path = Path(path)
    if not path.is_file():
        raise Unusable(f"{path} is missing")
    with path.open("rb") as file:
        head = file.read(20)
    if head[:2] == b"#!" or (head[:6] == b"\x7fELF\x02\x01" and int.from_bytes(head[18:20], "little") == ELF_AARCH64):
        return path
    raise Unusable(f"{path} is no program for arm64: build it for aarch64-unknown-linux-musl ('make dist')")


def busybox():
    path = CACHE / "busybox"
    if not path.is_file():
        raise Absent(f"{path} is missing: 'cross/qemu/images.sh busybox' fetches it")
    return path.read_bytes()


def host_program():
    """host.c, compiled once."""
    source = HERE / "host.c"
    path = CACHE / f"host-{hashlib.sha256(source.read_bytes()).hexdigest()[:12]}"
    if not path.is_file():
        compiler = "cc" if os.uname().machine == "aarch64" else "aarch64-linux-gnu-gcc"
        if not shutil.which(compiler):
            raise Absent(f"no {compiler}: scripts/setup.sh installs it")
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
        flags = "-O2 -Wall -Werror -static -nostdlib -ffreestanding -fno-stack-protector".split()
        made = subprocess.run([compiler, *flags, "-o", new, source], capture_output=True, text=True)
        if made.returncode:
            raise Unusable(f"{source} does not compile: {made.stderr.strip()}")
        new.replace(path)
    return path.read_bytes()


def write_initrd(guest, path):
    with open(path, "wb") as out:
        cpio = initrd.Cpio(out)
        cpio.character_device("dev/console", 5, 1)
        cpio.link("lib", "usr/lib")
        cpio.file("bin/busybox", busybox(), 0o755)
        cpio.file("bin/host", host_program(), 0o755)
        cpio.file("init", (HERE / "init.sh").read_bytes(), 0o755)
        for tree in guest.trees:
            if not Path(tree).is_dir():
                raise Absent(f"no folder {tree}: 'cross/qemu/images.sh {Path(tree).name}' fetches those it knows")
            cpio.tree(tree)
        for inside, here in guest.files.items():
            here = Path(here)
            if not here.is_file():
                raise Unusable(f"{here} is missing")
            cpio.file(inside, here.read_bytes(), 0o755 if os.access(here, os.X_OK) else 0o644)
        exports = "".join(f"export {name}={shlex.quote(str(value))}\n" for name, value in guest.env.items())
        cpio.file("job/run", (exports + guest.script).encode())
        add_modules(cpio, guest)
        cpio.close()


def add_modules(cpio, guest):
    wanted = guest.modules + (NETWORK if guest.ports else [])
    if not wanted:
        return
    try:
        found = initrd.modules_in_order(CACHE / "kernels" / guest.kernel / "modules", wanted)
    except LookupError as missing:
        raise Unusable(str(missing)) from missing
    for name, data in found:
        cpio.file(f"job/{name}.ko", data)
    cpio.file("job/modules", "".join(f"/job/{name}.ko\n" for name, _ in found).encode())


def qemu():
    """QEMU's path and version."""
    path = shutil.which(os.environ.get("QEMU_SYSTEM_AARCH64", "qemu-system-aarch64"))
    if not path:
        raise Absent("no qemu-system-aarch64: scripts/setup.sh installs it")
    text = subprocess.run([path, "--version"], capture_output=True, text=True).stdout
    number = re.search(r"version (\d+)\.(\d+)", text)
    if not number:
        raise Unusable(f"{path} --version says {text!r}")
    return path, (int(number[1]), int(number[2]))


def machine(guest, path):
    """QEMU's command as far as the device tree depends on it, plus the option for a custom device tree."""
    number, unequal = guest.cpus, []
    try:
        if guest.clusters:
            unequal = clusters.parse(guest.clusters)
            number = clusters.cpus(unequal)
        command = [path, "-M", "virt,gic-version=3", "-cpu", guest.cpu, "-smp", str(number), "-m", f"{guest.memory}M"]
        if not unequal and not guest.nodes:
            return command
        (guest.out / "dtb").write_bytes(clusters.device_tree(command, unequal, guest.nodes))
        return [*command, "-dtb", "dtb"]
    except FileNotFoundError as missing:
        raise Absent(f"no {missing.filename}: scripts/setup.sh installs it") from missing
    except subprocess.CalledProcessError as refused:
        raise Unusable(f"no device tree: {refused.stderr.decode(errors='replace').strip()}") from refused
    except clusters.BadClusters as wrong:
        raise Unusable(str(wrong)) from wrong


def network(guest):
    """A card for a guest whose ports are forwarded. Its address is the one that QEMU forwards to; see init.sh."""
    if not guest.ports:
        return ["-nic", "none"]
    forwards = [f"hostfwd=tcp:127.0.0.1:{here}-:{there}" for here, there in guest.ports.items()]
    return ["-netdev", ",".join(["user", "id=net", "restrict=on", *forwards]), "-device", "virtio-net-device,netdev=net"]


def command_line(guest, first_files):
    path, version = qemu()
    if guest.mode not in MODES:
        raise Unusable(f"mode {guest.mode}: one of {', '.join(MODES)}")
    # Idle time is skipped; with QEMU 11.1 this was seen to hang kernel 5.10.
    sleep = "off" if version <= (10, 0) else "on"
    speed = {
        "det": ["-accel", "tcg,thread=single", "-icount", f"shift=0,sleep={sleep}"],
        "rr": ["-accel", "tcg,thread=single"],
        "par": ["-accel", "tcg,thread=multi"],
    }[guest.mode]
    return [
        *machine(guest, path),
        *speed,
        *network(guest),
        *(word for at, file in guest.loads.items() for word in ("-device", f"loader,addr={at:#x},file={file},force-raw=on")),
        *("-display", "none", "-monitor", "none", "-serial", "file:console.txt", "-no-reboot"),
        *("-semihosting-config", "enable=on,userspace=on,target=native"),
        *("-kernel", str(image(guest.kernel)), "-initrd", first_files),
        *("-append", f"console=ttyAMA0 quiet panic=-1 cryptomgr.notests=1 nokaslr {guest.append}".strip()),
    ]


def relay(source, path, echo):
    """A thread that copies a pipe to a file, and on to `echo`."""

    def copy():
        with open(path, "wb") as file:
            while data := source.read1(1 << 16):
                file.write(data)
                file.flush()
                if echo:
                    echo.buffer.write(data)
                    echo.flush()

    thread = threading.Thread(target=copy, daemon=True)
    thread.start()
    return thread


def accompany(guest, process):
    """The thread of guest.beside, if it has one, and where its exception goes."""
    wrong = []

    def work():
        try:
            guest.beside(guest, lambda: process.poll() is None)
        except Exception as error:  # noqa: BLE001 - raised again by `run`
            wrong.append(error)
            process.terminate()

    companion = [threading.Thread(target=work, daemon=True)] if guest.beside else []
    for thread in companion:
        thread.start()
    return companion, wrong


def run(guest):
    """Boots the guest and waits. Raises Unusable if it cannot even start, and what guest.beside raised."""
    out = guest.out = Path(guest.out).resolve()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    if guest.prepare:
        guest.prepare(guest)
    first_files = out / "initrd"
    command = command_line(guest, str(first_files))
    write_initrd(guest, first_files)
    began = time.monotonic()
    # Ends QEMU even if this program is killed.
    guard = ["timeout", "-k", "5", str(int(guest.limit) + 60)]
    process = subprocess.Popen(
        guard + command, cwd=out, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    relays = [
        relay(process.stdout, out / "stdout.txt", sys.stdout if guest.echo else None),
        relay(process.stderr, out / "stderr.txt", sys.stderr if guest.echo else None),
    ]
    companion, wrong = accompany(guest, process)
    late = False
    try:
        process.wait(guest.limit)
    except subprocess.TimeoutExpired:
        late = True
    finally:
        process.terminate()
        process.wait()
        for thread in [*relays, *companion]:
            thread.join()
        first_files.unlink(missing_ok=True)
    seconds = time.monotonic() - began
    unpack(out)
    if wrong:
        raise wrong[0]
    code, died = ending(guest, out, process.returncode, late)
    return Run(code, died, seconds, out)


def unpack(out):
    """Unpacks the files that the guest left in /out, next to its output."""
    archive = out / "out.tar"
    if not archive.is_file():
        return
    try:
        with tarfile.open(fileobj=io.BytesIO(archive.read_bytes())) as tar:
            for member in tar.getmembers():
                # Names from the guest must not leave this directory.
                if member.isfile() and not member.name.startswith("/") and ".." not in Path(member.name).parts:
                    target = out / "out" / member.name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(tar.extractfile(member).read())
    except tarfile.TarError:
        pass  # cut off with the guest; `ending` says so
    archive.unlink()


def ending(guest, out, qemu_code, late):
    """The program's exit code, or None and the reason."""
    status = out / "status"
    text = status.read_text().strip() if status.is_file() else ""
    if text.isdigit():
        return int(text), ""
    console = out / "console.txt"
    panic = re.search(r"Kernel panic[^\n\r]*", console.read_text(errors="replace")) if console.is_file() else None
    if panic:
        return None, panic[0]
    if late:
        return None, f"no end within {guest.limit:g} s; the guest was stopped"
    if qemu_code:
        return None, f"QEMU ended with {qemu_code} before the guest reported"
    return None, "the guest ended without a report"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--mode", choices=MODES, default="rr", help="det: guest time = instructions; rr; par")
    parser.add_argument("-c", "--cpus", type=int, default=2)
    parser.add_argument("--memory", type=int, default=1024, metavar="MIB")
    parser.add_argument("--cpu", default="cortex-a76", help="processor that QEMU plays (cortex-a76)")
    parser.add_argument("-t", "--limit", type=float, default=120, metavar="S", help="seconds on this machine's clock")
    parser.add_argument("-f", "--file", action="append", default=[], metavar="HERE[:THERE]", help="default /job/NAME")
    parser.add_argument("-x", "--tree", action="append", default=[], metavar="FOLDER", help="laid over the guest's root")
    parser.add_argument("-e", "--env", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--modules", default="", help="kernel modules to load, by name")
    parser.add_argument("--clusters", default="", help="unequal CPUs: COUNTxCAPACITY[@MHZ,MHZ...[*COEFFICIENT]][:COMPATIBLE] ...")
    parser.add_argument("--append", default="", help="more for the kernel's command line")
    parser.add_argument("-o", "--out", type=Path, help="where files go; without it none are kept")
    parser.add_argument("kernel")
    parser.add_argument("program")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    return parser.parse_args()


def guest_of(args, out):
    files = {}
    for spec in args.file:
        here, _, there = spec.partition(":")
        files[there or f"/job/{Path(here).name}"] = here
    if args.program.startswith("guest:"):
        program = args.program[len("guest:"):]
    else:
        here = program_for_arm64(args.program)
        program = f"/job/{here.name}"
        files[program] = here
    command = " ".join(shlex.quote(word) for word in [program, *args.arguments])
    return Guest(
        kernel=args.kernel, script=f"exec {command}\n", out=out, files=files, trees=args.tree,
        env=dict(pair.split("=", 1) for pair in args.env), modules=args.modules.split(), mode=args.mode,
        cpus=args.cpus, memory=args.memory, cpu=args.cpu, clusters=args.clusters, append=args.append, limit=args.limit, echo=True,
    )  # fmt: skip


def main():
    args = arguments()
    with tempfile.TemporaryDirectory(prefix="profinfer-qemu-") as passing:
        try:
            ended = run(guest_of(args, args.out or Path(passing, "run")))
        except Unusable as why:
            print(f"boot.py: {why}", file=sys.stderr)
            return 2
        if ended.died:
            print(f"boot.py: {ended.died}\n{ended.tail()}", file=sys.stderr)
            return 124 if ended.died.startswith("no end within") else 125
        return ended.code


if __name__ == "__main__":
    sys.exit(main())
