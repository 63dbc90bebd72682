"""gpu.sh --truth: what a recording with `--gpu op` says of a run on a device, beside three accounts that are not ours.

- speed: the driver's own clock around the same decoding
- nodes that compute: from the engine's eval callback, in a second run
- kernels given to the device: hits of a plain uprobe event of the kernel on the API's function, in the same run. Those by
  which a backend converts weights while it loads them are of no node, and not ours to count
"""

import glob
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter

from common import CACHE, HOLD_SECONDS, BenchError, binary, driver, model, report, sh

TRACEFS = "/sys/kernel/tracing"
GROUP = "gpu_truth"
# Nodes of these ops are no work: they only say where data is.
NO_WORK = {"NONE", "RESHAPE", "VIEW", "PERMUTE", "TRANSPOSE"}
MODELS = ["tiny-q4_0", "moe-q4_0"]
# GGML_TENSOR_FLAG_COMPUTE
COMPUTE = 16
# Decode speed against the driver's.
SPEED = 0.01
PROMPT = 16
ROW = "{:16}{:10}{:>10}{:>10}{:>8}{:>8}{:>7}{:>11}{:>7}{:>9}{:>9}{:>9}"
HEAD = ROW.format("engine", "model", "driver", "ours", "", "nodes", "seen", "on device", "seen", "at load", "kernels", "counted")


class Hits:
    """A uprobe event of the kernel on a function of a library. It counts hits of all processes."""

    def __init__(self, library, symbol):
        self.event = f"{GROUP}/{symbol}"
        self.define(f"p:{self.event} {library}:{offset(library, symbol):#x}")
        self.enable(1)

    def define(self, line):
        # Python's append mode seeks, which tracefs refuses.
        file = os.open(f"{TRACEFS}/uprobe_events", os.O_WRONLY | os.O_APPEND)
        try:
            os.write(file, line.encode() + b"\n")
        finally:
            os.close(file)

    def enable(self, on):
        with open(f"{TRACEFS}/events/{self.event}/enable", "w") as f:
            f.write(str(on))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.enable(0)
        self.define(f"-:{self.event}")

    def count(self):
        """Hits so far."""
        with open(f"{TRACEFS}/uprobe_profile") as f:
            rows = [line.split() for line in f]
        # On some kernels the first word is the file.
        name = self.event.split("/")[1]
        row = next(row for row in rows if name in row)
        return int(row[row.index(name) + 1])


def offset(library, symbol):
    """Offset of a function in its file."""
    text = sh(["readelf", "--wide", "--dyn-syms", "--segments", library], env=os.environ | {"LC_ALL": "C"})
    address = re.search(rf"^ *\d+: ([0-9a-f]+) .* {symbol}(@.*)?$", text, re.MULTILINE)
    if not address:
        raise BenchError(f"{library} has no function {symbol}")
    address = int(address[1], 16)
    for at, virtual, size in re.findall(r"^ *LOAD +0x(\w+) 0x(\w+) 0x\w+ 0x(\w+)", text, re.MULTILINE):
        at, virtual, size = (int(x, 16) for x in (at, virtual, size))
        if virtual <= address < virtual + size:
            return address - virtual + at
    raise BenchError(f"{symbol} of {library} is in no segment")


def library(name, folders):
    """The file that a program with this search path loads."""
    for folder in folders:
        if os.path.exists(os.path.join(folder, name)):
            return os.path.realpath(os.path.join(folder, name))
    for line in sh(["ldconfig", "-p"]).splitlines():
        if line.split()[:1] == [name]:
            return os.path.realpath(line.split("=> ")[1])
    raise BenchError(f"{name} is not installed")


def engines(vulkan, opencl):
    """Of each engine that is there: name, backend, function that returns its path and environment, library, function."""
    where = os.environ.get("PROFINFER_ENGINES") or os.path.join(CACHE, "engines")
    for path in sorted(glob.glob(os.path.join(where, "vulkan-*"))):
        name = os.path.basename(path)
        yield name, "Vulkan", lambda name=name: vulkan(name), "libvulkan.so.1", "vkCmdDispatch"
    yield "opencl-v0.5.0", "OpenCL", opencl, "libOpenCL.so.1", "clEnqueueNDRangeKernel"


def command(where, env, name):
    return ["env", *(f"{k}={v}" for k, v in env.items()), driver(), "--engine", where, "--model", model(name), "-p", str(PROMPT),
            "-t", "1", "--gpu-layers", "99", "--json"]


def dumped(cmd, tokens, dump):
    """Whether the engine can run this model; its nodes are in `dump` then. Compiles shaders or kernels, too."""
    more = ["-n", str(tokens), "--dump", dump]
    return subprocess.run([*cmd, *more], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


def recorded(cmd, tokens, trace, hits):
    """Decode tok/s by the driver, hits while it loaded the model, and after."""
    record = [binary("profinfer"), "record", "-q", "--force", "-o", trace, "--gpu", "op", "--", *cmd, "--control"]
    with open(trace + ".log", "w+") as log:
        with subprocess.Popen(record, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True) as engine:
            def tell(line):
                if line:
                    engine.stdin.write(line + "\n")
                    engine.stdin.flush()
                return json.loads(engine.stdout.readline() or "null")

            ready = tell("")
            if ready:
                # For the probes.
                time.sleep(float(HOLD_SECONDS))
                loading = hits.count()
                tell(f"prefill {PROMPT}")
                said = tell(f"run {tokens}")
            engine.stdin.close()
        log.seek(0)
        if engine.returncode or not ready or not said:
            raise BenchError(f"{' '.join(record)} failed: {log.read().strip()[-300:]}")
    return said["decode"]["tok_s"], loading, hits.count() - loading


def computing(dump):
    """Nodes that compute in the decode graphs of a dump, by op. Versions that mark nodes (GGML_TENSOR_FLAG_COMPUTE) leave
    those without the mark out."""
    graphs, graph = [], None
    with open(dump) as f:
        for row in map(json.loads, f):
            if "graph" in row:
                graph = [] if row["phase"] == "decode" else None
                graphs += [] if graph is None else [graph]
            elif graph is not None:
                graph.append(row)
    found = Counter()
    for graph in graphs:
        marks = any(node["flags"] & COMPUTE for node in graph)
        found.update(n["desc"] for n in graph if n["op"] not in NO_WORK and (n["flags"] & COMPUTE or not marks))
    return found


def seen(found, backend):
    """Of a report: decode tok/s; computing nodes of decode by op; nodes of all phases on the device, and those that were
    seen being enqueued; kernels of all phases, None if one split's are not known."""
    decode = next(phase for phase in found["phases"] if phase["phase"] == "decode")
    nodes = Counter()
    for row in decode["offload"]["backends"]:
        for op in row["ops"]:
            if op["op"] not in NO_WORK:
                nodes[op["op"]] += op["nodes"]
    on_device = enqueued = kernels = 0
    for phase in found["phases"]:
        for row in (phase["offload"] or {"backends": []})["backends"]:
            if row["backend"] != backend:
                continue
            on_device += row["nodes"]
            enqueued += sum(group["nodes"] for group in row.get("enqueued") or [])
            given = row.get("dispatched") or {"splits": 0, "kernels": 0}
            known = kernels is not None and given["splits"] == row["splits"]
            kernels = kernels + given["kernels"] if known else None
    return decode["tokens_per_s"], nodes, on_device, enqueued, kernels


def differing(ours, theirs):
    """Ops whose counts differ, for a message."""
    rows = [f"{op} {ours[op]} for {theirs[op]}" for op in sorted(ours | theirs) if ours[op] != theirs[op]]
    return ", ".join(rows)


def one(bench, scratch, engine, name, tokens):
    label, backend, bed, file, symbol = engine
    where, env = bed()
    cmd = command(where, env, name)
    dump, trace = scratch.file("dump"), scratch.file("run.pfi")
    if not dumped(cmd, tokens, dump):
        print(f"{label:16}{name:10}  not run: the engine fails without a recording, too", flush=True)
        return
    with Hits(library(file, env.get("LD_LIBRARY_PATH", "").split(":")), symbol) as hits:
        theirs, loading, counted = recorded(cmd, tokens, trace, hits)
    found = report(trace)
    speed, nodes, on_device, enqueued, kernels = seen(found, backend)
    truth = computing(dump)
    print(ROW.format(label, name, f"{theirs:.3f}", f"{speed:.3f}", f"{speed / theirs - 1:+.2%}", sum(truth.values()),
                     sum(nodes.values()), on_device, enqueued, loading, counted, "?" if kernels is None else kernels), flush=True)
    what = f"{label}, {name}"
    bench.require(found["quality"]["complete"], f"{what}: the recording is not complete: {found['quality']['verdict']}")
    bench.require(nodes == truth, f"{what}: nodes: {differing(nodes, truth)}")
    bench.require(enqueued == on_device, f"{what}: {enqueued} nodes seen being enqueued of {on_device} on the device")
    bench.require(kernels == counted > 0, f"{what}: {kernels} kernels counted, {counted} by a plain uprobe event")
    if abs(speed / theirs - 1) > SPEED:
        bench.judge(False, f"{what}: decode differs from the driver's by {speed / theirs - 1:+.2%}, {SPEED:.0%} wanted")


def truth(bench, scratch, vulkan, opencl, tokens, only):
    """Prints a row for each engine and model."""
    # The events are removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    print(f"""decode tok/s by the driver and by us; nodes that compute in {tokens} decode graphs, by the engine's callback, and those
seen; nodes on the device in the whole run, and those seen being enqueued; kernels given to it, by a plain uprobe event
while the model is loaded, and after, and by us
{HEAD}""", flush=True)
    for engine in engines(vulkan, opencl):
        if only in (None, engine[1]):
            for name in MODELS:
                one(bench, scratch, engine, name, tokens)
