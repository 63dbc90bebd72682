"""A kernel that does not exist."""

IMAGE = "/nowhere/Image"
KERNELS = "5.10"
MUST_SAY = r"^no kernel /nowhere/Image"
