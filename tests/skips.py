"""What a test that cannot run here says: the same as tests/common/skips.rs."""

import os

# If set, a test that cannot run is a failure.
REQUIRED = os.environ.get("CI") == "true" or os.environ.get("PROFINFER_REQUIRE") == "1"


def note(test, why):
    """Says why a test does not run, also in the file that PROFINFER_SKIPS names."""
    why = " ".join(str(why).split())
    # On a line of its own: unittest shows its progress as letters.
    print(f"\nskipped: {why}", flush=True)
    if os.environ.get("PROFINFER_SKIPS"):
        with open(os.environ["PROFINFER_SKIPS"], "a") as skips:
            skips.write(f"{test}\t{why}\n")
