"""Programs of another architecture, detected before booting."""

import bed

# ELF header for x86-64.
BINARIES = bed.ROOT / "target" / "tests" / "kernels" / "foreign"
BINARIES.mkdir(parents=True, exist_ok=True)
for name in ("profinfer", "ggml-runner"):
    (BINARIES / name).write_bytes(b"\x7fELF\2\1\1" + bytes(9) + b"\2\0\x3e\0")

KERNELS = "5.10"
MUST_SAY = r"is no program for arm64"
