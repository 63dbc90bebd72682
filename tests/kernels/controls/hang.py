"""A program that never ends."""

KERNELS = "5.10"
BOOT = {"limit": 10}
SCRIPT = "sleep 1000"
SECONDS = 10
MUST_SAY = r"^no end within \d+ s"
