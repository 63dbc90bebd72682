"""A kernel that is not there."""

IMAGE = "/nowhere/Image"
KERNELS = "5.10"
MUST_SAY = r"^no kernel /nowhere/Image"
