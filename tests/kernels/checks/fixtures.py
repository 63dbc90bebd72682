"""Every engine variant that the ladder supports, built for arm64: hits as counted by the engine, tensors as dumped by
it."""

import json
import os
import re
import subprocess

from bed import ROOT

# Differences between engines do not depend on the kernel.
ALSO = "7.2"
BOOT = {"limit": 300}
SECONDS = 40
# `make test-arm64` builds them; the C library is the cross compiler's.
PLACE = "target/tests/arm64/fixtures"
LIBRARY = "/usr/aarch64-linux-gnu/lib"
FILES = {f"/usr/lib/{name}": f"{LIBRARY}/{name}" for name in ("ld-linux-aarch64.so.1", "libc.so.6")}
FILES |= {f"/fixtures/{path.relative_to(ROOT / PLACE)}": path for path in (ROOT / PLACE).glob("*/*")}
# Variants without any name of an op function.
NAMELESS = "static-stripped old-stripped"
SCRIPT = f"""
[ -d /fixtures ] || {{ echo "no {PLACE}: make test-arm64 builds it" >&2; exit 1; }}
for form in $(ls /fixtures); do
    case " {NAMELESS} " in *" $form "*) continue ;; esac
    # Both transports must carry every kind of event.
    case $form in late | old) transport=--pbuf ;; *) transport= ;; esac
    profinfer record $transport -o $form.pfi -- /fixtures/$form/fakellama --dump $form.dump -n 4 --moe --split >$form.json
done
profinfer record -o /tmp/refused.pfi -- /fixtures/static-stripped/fakellama >/dev/null 2>refused.txt && exit 1
profinfer record -o /tmp/graphs.pfi -- /fixtures/old-stripped/fakellama --split >graphs.said 2>&1
profinfer report --json /tmp/graphs.pfi >graphs.json
"""


def judge(run, book):
    # The expected content of a trace is defined in Rust, both for engines recorded on this machine and for these.
    command = "cargo test --locked --workspace --test live -- --exact --ignored --nocapture fixtures::recorded_elsewhere".split()
    env = os.environ | {"PROFINFER_RECORDINGS": str(run.path(""))}
    judged = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    book.expect(judged.returncode == 0, "differs from the engine's account: " + judged.stdout[-2000:] + judged.stderr[-2000:])
    for _, expected, seen, lost in re.findall(r"^hits (\S+) (\d+) (\d+) (\d+)$", judged.stdout, re.MULTILINE):
        book.hits(int(expected), int(seen))
        book.losses(int(lost))
    refused = run.text("refused.txt")
    book.expect("statically linked and stripped" in refused, f"a static and stripped engine: {refused}")
    nameless(run, book)


def nameless(run, book):
    said = json.loads(next((line for line in run.text("graphs.said").splitlines() if line.startswith("{")), "null"))
    rungs = {rung["role"]: rung for rung in run.json("graphs.json")["quality"]["rungs"]}
    book.expect(rungs["cpu-graph"]["seen"] == said["calls"]["graph_compute"], f"graphs without names of ops: {rungs}")
    book.expect(not rungs["op"]["used"] and rungs["op"]["why"], f"no op can be recorded there, but no reason is given: {rungs}")
