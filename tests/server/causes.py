#!/usr/bin/env python3
"""Records cases of benches/diagnosis whose causes do not depend on how busy the machine is, and their controls: the cause is the
first advice of its case, and is not named in its control.

usage: causes.py [--keep DIR] [--only NAME] [--profinfer FILE] [--root DIR]
Needs root and BPF. Exits 77 with "skipped: why" where Debian's llama.cpp cannot be had, unless PROFINFER_REQUIRE=1 or CI=true.
"""

import json
import os
import subprocess
import sys

from debian import TOP, Failure, play, sh

CASES = os.path.join(TOP, "benches", "diagnosis")
NAMES = ["10-crumbs", "15-plain-weights", "17-adapter", "19-sleeping-barriers", "20-idle-spin", "21-saved-states"]
# Seconds after which something that is certain to happen has not.
LONG = 300


def rules(bed, name, kind):
    """The rules of the advice on a run, in order."""
    out = os.path.join(bed.out, f"{name}.{kind}.pfi")
    env = dict(os.environ, GGML_RUNNER=os.path.join(os.path.dirname(bed.profinfer), "ggml-runner"), DIAGNOSIS_LOG=out + ".log")
    script = [os.path.join(CASES, "cases", f"{name}.sh"), kind]
    done = subprocess.run([*script, bed.profinfer, "record", "-q", "--force", "-o", out, "--"], env=env,
                          capture_output=True, text=True, timeout=LONG)
    if done.returncode:
        raise Failure(f"{name} {kind}: exit {done.returncode}\n{done.stderr[-2000:]}")
    verdict = json.loads(sh([bed.profinfer, "report", "--json", "--peak", "2000,50", out]))["verdict"]
    return [a["rule"] for a in verdict["advice"]]


def check(name):
    with open(os.path.join(CASES, "answers.json")) as f:
        cause = json.load(f)[name]["cause"]

    def run(bed):
        case, control = rules(bed, name, "case"), rules(bed, name, "control")
        if not set(cause) & set(case) or set(cause) & set(control):
            raise Failure(f"expected {cause} in the case and not in the control: {case}, {control}")
        return f"{case} in the case, {control} in the control"

    return run


if __name__ == "__main__":
    sys.exit(play(__doc__, "server", {name: check(name) for name in NAMES}))
