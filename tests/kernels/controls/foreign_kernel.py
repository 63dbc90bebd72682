"""A file that is not an arm64 kernel."""

import bed

IMAGE = str(bed.ROOT / "Makefile")
KERNELS = "5.10"
MUST_SAY = r"is no arm64 kernel Image"
