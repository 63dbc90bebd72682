#!/usr/bin/env python3
"""Records llama-bench of Debian, whose Vulkan backend is stripped, on a device in software, and compares the recording with
accounts that are not ours:

- the function for one node has no name: it must be found while the prompts are computed, for all nodes of decode to be seen
- nodes that compute: from the engine's eval callback, in another run
- kernels given to the device: hits of a plain uprobe event of the kernel on vkCmdDispatch, in the same run
- speed: llama-bench's own clock around the same calls. Half of the runs must be within 1 %

usage: debian_vulkan.py [--keep DIR] [--only NAME] [--profinfer FILE] [--root DIR]
Needs root and BPF. Exits 77 with "skipped: why" where Debian's build cannot be had, unless PROFINFER_REQUIRE=1 or CI=true.
"""

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
from collections import Counter

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(TOP, "tests", "server"), os.path.join(TOP, "benches")]
from debian import Failure, play, sh  # noqa: E402
from gpu_truth import Hits, computing, differing, seen  # noqa: E402

LIBRARIES = "/usr/lib/x86_64-linux-gnu"
BACKENDS = LIBRARIES + "/ggml/backends0"
ENGINE = "/engine"
DEVICE = ["env", "VK_DRIVER_FILES=/usr/share/vulkan/icd.d/lvp_icd.json", "GGML_VK_VISIBLE_DEVICES=0"]
# llama-bench computes each prompt and each sequence REPEATS times; seconds before the first of either, for the probes.
PROMPT, TOKENS, REPEATS, DELAY = 16, 12, 4, 1
RUNS = 3
SPEED = 0.01
MODELS = {"dense": "tiny", "experts": "moe"}


def engine(bed):
    """The libraries under the names that our driver looks for."""
    at = bed.path(ENGINE)
    shutil.rmtree(at, ignore_errors=True)
    os.makedirs(at)
    for name in ("ggml-base", "ggml", "llama"):
        os.symlink(f"{LIBRARIES}/lib{name}.so.0", f"{at}/lib{name}.so")
    for name in os.listdir(bed.path(BACKENDS)):
        os.symlink(f"{BACKENDS}/{name}", f"{at}/{name}")
    out = os.path.join(TOP, "target", "tests", "engines")
    sh(["make", "-s", "-C", os.path.join(TOP, "tests", "engines"), f"OUT={out}"])
    return bed.copy(os.path.join(out, "driver"), ENGINE + "/driver")


def is_stripped(bed):
    sections = sh(["readelf", "--wide", "--sections", bed.path(BACKENDS + "/libggml-vulkan.so")])
    return not re.search(r"\.symtab\b", sections)


def nodes_of_a_token(bed, driver, model):
    """Nodes that compute in one decode graph, by op; compiles the shaders, too."""
    dump = ENGINE + "/dump"
    sh(bed.command(*DEVICE, driver, "--engine", ENGINE, "--model", model, "-p", str(PROMPT), "-n", "1", "-t", "1",
                   "--gpu-layers", "99", "--old-api", "--dump", dump))
    return computing(bed.path(dump))


def bench(bed, model, trace):
    """A recording of llama-bench: what the report says, what llama-bench says of each test, and kernels by the kernel's
    event."""
    program = bed.command(*DEVICE, "llama-bench", "-m", model, "-ngl", "99", "-t", "1", "-p", str(PROMPT), "-n", str(TOKENS),
                          "-r", str(REPEATS), "--delay", str(DELAY), "--no-warmup", "-o", "json")
    with Hits(os.path.realpath(bed.path(LIBRARIES + "/libvulkan.so.1")), "vkCmdDispatch") as hits:
        done = subprocess.run([bed.profinfer, "record", "-q", "--force", "-o", trace, "--gpu", "op", "--", *program],
                              capture_output=True, text=True)
        counted = hits.count()
    if done.returncode:
        raise Failure(f"exit {done.returncode}\n{done.stderr[-3000:]}")
    said = json.loads(done.stdout)
    return json.loads(sh([bed.profinfer, "report", "--json", trace])), said, counted


def unseen(found):
    """Splits on the device whose nodes were not seen, of each phase."""
    rows = {p["phase"]: (p["offload"] or {"backends": []})["backends"] for p in found["phases"]}
    return {phase: sum(row.get("unseen_splits") or 0 for row in of if row["backend"] == "Vulkan") for phase, of in rows.items()}


def compare(bed, driver, kind, directory):
    model = bed.model(kind, MODELS[kind])
    truth = Counter({op: n * TOKENS * REPEATS for op, n in nodes_of_a_token(bed, driver, model).items()})
    problems, apart, last = [], [], None
    for i in range(RUNS):
        trace = os.path.join(directory, f"{kind}-{i}.pfi")
        found, said, counted = bench(bed, model, trace)
        speed, nodes, on_device, enqueued, kernels = seen(found, "Vulkan")
        own = next(TOKENS * REPEATS * 1e9 / sum(test["samples_ns"]) for test in said if test["n_gen"])
        apart.append(abs(speed / own - 1))
        missed = unseen(found)
        last = f"{sum(nodes.values())} nodes that compute in {TOKENS * REPEATS} tokens, {enqueued} of {on_device} on the device seen, {kernels} kernels"
        if not found["quality"]["complete"]:
            problems.append(f"the recording is not complete: {found['quality']['verdict']}")
        if nodes != truth:
            problems.append(f"nodes: {differing(nodes, truth)}")
        if missed["decode"] or not 0 < missed["prefill"] < REPEATS:
            problems.append(f"splits whose nodes were not seen: {missed}")
        if not kernels == counted > 0:
            problems.append(f"{kernels} kernels, {counted} by a plain uprobe event")
    middle = statistics.median(apart)
    if middle > SPEED:
        problems.append(f"tok/s differ from llama-bench's by {', '.join(f'{a:.2%}' for a in apart)}")
    if problems:
        raise Failure("\n".join(problems))
    return f"{last}; tok/s within {middle:.2%} of llama-bench's"


def prepare(bed):
    if not is_stripped(bed):
        return "Debian's Vulkan backend has symbols: nothing is searched for"
    bed.driver = engine(bed)
    return None


def check(kind):
    return lambda bed: compare(bed, bed.driver, kind, bed.out)


if __name__ == "__main__":
    sys.exit(play(__doc__, "vulkan", {kind: check(kind) for kind in MODELS}, prepare))
