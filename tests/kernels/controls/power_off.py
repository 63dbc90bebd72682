"""A guest that goes before it has reported; all that it printed was fine."""

KERNELS = "6.12"
SCRIPT = "echo ok; poweroff -f"
MUST_SAY = r"^the guest ended without a report"
