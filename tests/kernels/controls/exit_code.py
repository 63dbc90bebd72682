"""A program that fails."""

KERNELS = "5.10"
SCRIPT = "exit 3"
MUST_SAY = r"^exit code 3\b"
