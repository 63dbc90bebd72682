"""A kernel that panics: QEMU itself ends with 0 then."""

KERNELS = "6.1"
SCRIPT = "echo c >/proc/sysrq-trigger"
MUST_SAY = r"^Kernel panic"
