"""Hits by the library in the engine's process, and by bpftrace in another run of the same work.

Two runs: a uprobe and a jump on the same function do not go together. Both decode the same tokens with the same threads,
so that each thread has the same number of hits, whatever its id.
"""

import collections
import csv
import glob
import io
import json
import os
import shutil
import subprocess

from common import BenchError, Scratch, binary, driver, engine, model, report, sh

EXTRA, FUSED = "ggml_cpu_extra_compute_forward", "ggml_compute_forward_rms_norm_mul_fused"
# Called equally often on each thread; of the others, the sum is compared.
BY_THREAD = {EXTRA: "op", FUSED: "fused"}
CALLS = {"ggml_graph_compute": "cpu-graph", "ggml_backend_sched_graph_compute_async": "graph", "llama_decode": "token"}
WORK = ["-p", "32", "-n", "64"]


def command(name, weights, threads):
    return [driver(), "--engine", engine(name), "--model", model(weights), *WORK, "-t", str(threads)]


def inside(args):
    """Hits of each thread, by kind, and of all functions that are called once a graph or call."""
    with Scratch() as tmp:
        trace = tmp.file("inside.pfi")
        sh([binary("profinfer"), "record", "-q", "--source", "inside", "--force", "-o", trace, "--", *args],
           stderr=subprocess.DEVNULL)
        threads = collections.defaultdict(collections.Counter)
        for row in csv.DictReader(io.StringIO(sh([binary("profinfer"), "export", "--csv", "ops", trace]))):
            threads["fused" if row["op"] == "RMS_NORM+MUL" else "op"][row["tid"]] += 1
        quality = report(trace)["quality"]
        if not quality["complete"]:
            raise BenchError(f"the recording is not complete: {quality['verdict']}")
        rungs = {rung["role"]: rung["seen"] for rung in quality["rungs"] if rung["used"]}
    hits = {kind: sorted(of.values()) for kind, of in threads.items()}
    return hits | {role: rungs[role] for role in CALLS.values()}


def files(name):
    """Each function's files, as the engine may load any of its CPU variants."""
    path = engine(name)
    paths = glob.glob(os.path.join(path, "*.so*")) if os.path.isdir(path) else [path]
    found = collections.defaultdict(list)
    for file in paths:
        symbols = {line.split()[-1] for line in sh(["nm", "-D", "--defined-only", file]).splitlines()}
        for function in symbols & {*BY_THREAD, *CALLS}:
            found[function].append(file)
    return found


def bpftrace(name, args):
    """The same by bpftrace."""
    probes = []
    for function, paths in files(name).items():
        kind = (BY_THREAD | CALLS)[function].replace("-", "_")
        probes.append(",".join(f"uprobe:{path}:{function}" for path in paths) + f" {{ @{kind}[tid] = count(); }}")
    with Scratch() as tmp:
        script, out, ran = tmp.file("hits.bt"), tmp.file("hits.json"), tmp.file("run.sh")
        open(script, "w").write("\n".join(probes))
        # bpftrace splits a command at spaces, and starts no script.
        open(ran, "w").write("exec \"$@\" >/dev/null 2>&1\n")
        sh(["bpftrace", "-q", "-f", "json", "-o", out, script, "-c", " ".join(["/bin/sh", ran, *args])],
           stderr=subprocess.DEVNULL)
        maps = {}
        for line in filter(None, open(out).read().splitlines()):
            told = json.loads(line)
            if told["type"] == "map":
                maps |= told["data"]
    of = {kind: maps.get("@" + kind.replace("-", "_"), {}) for kind in (BY_THREAD | CALLS).values()}
    return {kind: sorted(of[kind].values()) if kind in BY_THREAD.values() else sum(of[kind].values()) for kind in of}


def truth(bench, name):
    if not shutil.which("bpftrace"):
        print("----  hits by bpftrace: not compared, it is not installed (apt-get install bpftrace)")
        return
    for weights in ("tiny-q4_0", "moe-q4_0"):
        for threads in (1, 2):
            args = command(name, weights, threads)
            own, other = inside(args), bpftrace(name, args)
            bench.require(own == other, f"{weights}, {threads} threads: hits {own}, by bpftrace {other}")
            same = "as" if own == other else "not as"
            print(f"{weights}, engine {name}, {threads} threads: {sum(own['op'])} op and {sum(own['fused'])} "
                  f"fused hits on {len(own['op'])} threads, graphs {own['cpu-graph']}, calls {own['token']}: {same} by bpftrace", flush=True)
