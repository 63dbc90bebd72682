"""Compares a trace's structure, read by the reader written from docs/FORMAT.md alone, with the engine's own dump."""

import json
import os
import sys

from common import ROOT

sys.path.insert(0, os.path.join(ROOT, "tests"))
import format_second_reader as pfi  # noqa: E402

OPDEF, TYPEDEF, TENSOR, PLAN, GRAPH = 5, 6, 7, 8, 13
# Nodes that newer engines do not run at all; and the flag without which they do not run a node.
NO_WORK = {"NONE", "RESHAPE", "VIEW", "PERMUTE", "TRANSPOSE"}
COMPUTE = 16
OLD = {"b3889", "b4753"}


class Trace:
    """Tensors by id, plans by id, and the plan of each CPU graph in order."""

    def __init__(self, path):
        self.ops, self.types, self.tensors, self.plans, self.graphs = {}, {}, {}, {}, []
        for payload, first in pfi.blocks(path):
            records, self.addr, self.name = pfi.Bytes(payload), 0, b""
            while records.more():
                r = pfi.Bytes(records.bytes())
                self._record(r.u(), r, first)
        self.graphs = [plan for _, plan in sorted(self.graphs)]

    def _record(self, kind, r, first):
        if kind == OPDEF:
            op, name, desc = r.fields("uss")
            self.ops[op] = (name, desc)
        elif kind == TYPEDEF:
            ty, name = r.fields("us")
            self.types[ty] = name
        elif kind == TENSOR:
            self._tensor(r)
        elif kind == PLAN:
            plan, _, _, hits = r.fields("uuuy")
            self.plans[plan] = list(flat(hits))
        elif kind == GRAPH:
            _, _, _, _, _, plan, _, _, _, t = r.fields("uoouuouuui")
            self.graphs.append((first + t, plan))

    def _tensor(self, r):
        tid, _, delta, known, op, ty, _ = r.fields("uuibuuu")
        shared, rest, ne, nb, src, _ = r.b(), *r.fields("sllyu")
        self.addr = self.addr + delta & 0xFFFFFFFFFFFFFFFF
        self.name = self.name[:shared] + rest.encode()
        slots, sources = pfi.Bytes(src), []
        while slots.more():
            sources.append(slots.u())
        self.tensors[tid] = {"addr": self.addr, "name": self.name.decode(), "op": self.ops.get(op), "known": known,
                             "type": self.types.get(ty), "ne": (ne + [1] * 4)[:4], "nb": nb,
                             "src": [s - 1 for s in sources if s]}

    def nodes(self, plan):
        return [self.tensors[t] for t in self.plans[plan]]

    def described(self, node):
        """What is compared, sources by what they are."""
        sources = [self.tensors[s] for s in node["src"]]
        return (node["addr"], node["name"], node["op"], node["type"], node["ne"],
                [(s["addr"], s["name"], s["op"] and s["op"][0], s["type"], s["ne"]) for s in sources])


def flat(hits):
    """Ids of the tensors of a plan, those that a fused op computes one after the other."""
    hits, tensor = pfi.Bytes(hits), 0
    while hits.more():
        v = hits.u()
        tensor = tensor + pfi.unzigzag(v >> 1) & 0xFFFFFFFF
        yield tensor
        if v & 1:
            yield tensor + pfi.unzigzag(hits.u()) & 0xFFFFFFFF


def dump(path, engine):
    """Per graph, the nodes that run, in order."""
    graphs = []
    with open(path) as f:
        for line in f:
            row = json.loads(line)
            if "graph" in row:
                graphs.append([])
            elif engine in OLD or row["op"] not in NO_WORK and row["flags"] & COMPUTE:
                graphs[-1].append(row)
    return graphs


def told(row):
    return (int(row["addr"], 16), row["name"], (row["op"], row["desc"]), row["type"], row["ne"],
            [(int(s["addr"], 16), s["name"], s["op"], s["type"], s["ne"]) for s in row["src"]])


def compare(trace_path, dump_path, engine):
    """(ops compared, ops that differ, what the first difference is)."""
    trace, own = Trace(trace_path), dump(dump_path, engine)
    if len(trace.graphs) != len(own):
        return 0, 1, f"{len(trace.graphs)} graphs in the trace, {len(own)} in the dump"
    compared, differ, first = 0, 0, ""
    for number, (plan, rows) in enumerate(zip(trace.graphs, own)):
        nodes = trace.nodes(plan)
        if len(nodes) != len(rows):
            differ, first = differ + 1, first or f"graph {number}: {len(nodes)} ops in the trace, {len(rows)} in the dump"
            continue
        for node, row in zip(nodes, rows):
            compared += 1
            if trace.described(node) != told(row) or node["nb"] and node["nb"] != row["nb"]:
                differ += 1
                first = first or f"graph {number}: trace {trace.described(node)}, dump {told(row)}"
    return compared, differ, first
