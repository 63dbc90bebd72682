"""A guest that powers off before it has reported; its output was fine."""

SCRIPT = "echo ok; poweroff -f"
MUST_SAY = r"^the guest ended without a report"
