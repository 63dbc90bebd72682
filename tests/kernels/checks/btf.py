"""Children are followed with the kernel's own types or those of a file; types of another kernel are detected, and
tracefs is used."""

import boot
from bed import DEBIAN

# The oldest and the newest, and one without its own BTF.
KERNELS = "5.10 7.2 5.10-nobtf"
SECONDS = 40
# A shell whose only child is the engine, which runs long enough to be seen on a slow machine: with types one process
# is reported, with tracefs also its threads.
SCRIPT = """
ggml-runner synth tiny /tmp/m.gguf --type q4_0 >/dev/null
family() { # name record's-arguments...
    name=$1; shift
    profinfer record --level graph -o $name.pfi "$@" -- sh -c 'ggml-runner run --no-roofline -m /tmp/m.gguf -p 4 -n 128 -t 2; true'
    profinfer report --json $name.pfi >$name.json
}
# The file for this kernel's version, and the first of another version.
mine= other=
for btf in /btf/*; do
    case $(uname -r) in
    ${btf##*/}.*) mine=$btf ;;
    *) other=${other:-$btf} ;;
    esac
done
family own
for btf in $mine $other; do family with-${btf##*/} --btf $btf; done
mount -t tmpfs none /sys/kernel/btf 2>/dev/null || true
family hidden
for btf in $mine $other; do family hidden-with-${btf##*/} --btf $btf; done
"""
MAGIC = b"\x9f\xeb\x01\x00\x18\x00\x00\x00"


def btf_of(image):
    """The BTF in an uncompressed kernel image."""
    kernel = image.read_bytes()
    at = -1
    while (at := kernel.find(MAGIC, at + 1)) >= 0:
        head = kernel[at : at + 24]
        strings, length = (int.from_bytes(head[i : i + 4], "little") for i in (16, 20))
        # The longest is that of the kernel itself; those of modules are elsewhere.
        if strings > 1 << 20:
            return kernel[at : at + 24 + strings + length]
    raise boot.Unusable(f"no BTF in {image}")


def files():
    """Guest path: BTF of each Debian kernel in the cache."""
    made = {}
    for name in DEBIAN.split():
        image = boot.CACHE / "kernels" / name / "Image"
        kept = image.with_name("vmlinux.btf")
        if image.is_file() and not kept.is_file():
            part = kept.with_suffix(".part")
            part.write_bytes(btf_of(image))
            part.replace(kept)
        if kept.is_file():
            made[f"/btf/{name}"] = kept
    return made


FILES = files()


def tried(kernel):
    """Names of the files that the script passes to the recorder."""
    names = sorted(path.rpartition("/")[2] for path in FILES)
    version = kernel.partition("-")[0]
    return [name for name in names if name == version] + [name for name in names if name != version][:1]


def judge(run, book):
    has_own = run.kernel in DEBIAN.split()
    for name in ["own", "hidden"] + [f"{how}-{b}" for b in tried(run.kernel) for how in ("with", "hidden-with")]:
        report = run.json(f"{name}.json")["quality"]
        forks = next(kind["seen"] for kind in report["events"] if kind["kind"] == "fork")
        notices = [n for n in report["notices"] if "is not used" in n]
        hidden, given = name.startswith("hidden"), name.rpartition("with-")[2] if "with-" in name else None
        mine = given == run.kernel
        by_types = mine or (has_own and not hidden)
        book.expect((forks == 1) == by_types, f"{name}: {forks} children announced")
        book.expect(bool(notices) == (given is not None and not mine), f"{name}: notices {notices}")
        for notice in notices:
            book.expect("not of the running kernel" in notice, f"{name}: {notice}")
            by = "/sys/kernel/btf/vmlinux" if by_types else "by formats of tracefs"
            book.expect(notice.endswith(by), f"{name}: {notice}")
    book.supported.add("BTF given by file" if has_own else "children without BTF")
