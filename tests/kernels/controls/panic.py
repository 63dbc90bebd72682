"""A kernel that panics: QEMU itself then exits with 0."""

KERNELS = "6.1"
SCRIPT = "echo c >/proc/sysrq-trigger"
MUST_SAY = r"^Kernel panic"
