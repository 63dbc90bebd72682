"""Compares a trace's structure, read by the reader written from docs/FORMAT.md alone, with the engine's own dump."""

import json
import os
import sys

from common import ROOT

sys.path.insert(0, os.path.join(ROOT, "tests"))
import format_second_reader as pfi  # noqa: E402

OPDEF, TYPEDEF, TENSOR, PLAN, GRAPH = 5, 6, 7, 8, 13
# Field indices: plan + 1 and t of a CpuGraph, ty of a Tensor.
PLAN_OF, T, TYPE = 5, 9, 7
# Nodes that newer engines do not run at all, and the flag that a node needs to run.
NO_WORK = {"NONE", "RESHAPE", "VIEW", "PERMUTE", "TRANSPOSE"}
COMPUTE = 16
OLD = {"b3889", "b4753"}


class Trace:
    """Tensors by id, plans by id, and the plan of each CPU graph in order."""

    def __init__(self, path):
        self.ops, self.types, self.tensors, self.plans, graphs = {}, {}, {}, {}, []
        for payload, first in pfi.blocks(path):
            told, calls = pfi.Tensors(), pfi.Calls(first)
            for kind, r in pfi.records(payload):
                if kind == OPDEF:
                    op, name, desc = r.fields("uss")
                    self.ops[op] = (name, desc)
                elif kind == TYPEDEF:
                    ty, name = r.fields("us")
                    self.types[ty] = name
                elif kind == TENSOR:
                    self._tensor(*told.take(r))
                elif kind == PLAN:
                    plan, _, _, hits = r.fields("uuuy")
                    self.plans[plan] = list(flat(hits))
                elif kind in pfi.RULES:
                    values, _ = calls.take(kind, r)
                    if kind == GRAPH:
                        graphs.append((values[T], values[PLAN_OF] - 1))
        self.graphs = [plan for _, plan in sorted(graphs)]

    def _tensor(self, v, name):
        slots = [v[i] for i in pfi.SRC[:v[pfi.N_SRC]]]
        sources = [v[pfi.ID] - (0 if s == 0xFFFFFFFF else s) & 0xFFFFFFFF for s in slots if s]
        self.tensors[v[pfi.ID]] = {"addr": v[pfi.ADDR], "name": name.decode(), "op": self.ops.get(v[pfi.OP]),
                                   "type": self.types.get(v[TYPE]), "ne": [v[i] for i in pfi.NE], "src": sources,
                                   "nb": [v[i] for i in pfi.NB] if v[pfi.STRIDED] else [], "known": v[pfi.KNOWN]}

    def nodes(self, plan):
        return [self.tensors[t] for t in self.plans[plan]]

    def described(self, node):
        """The compared properties of a node, and of its sources."""
        sources = [self.tensors[s] for s in node["src"]]
        return (node["addr"], node["name"], node["op"], node["type"], node["ne"],
                [(s["addr"], s["name"], s["op"] and s["op"][0], s["type"], s["ne"]) for s in sources])


def flat(hits):
    """Ids of the tensors of a plan; those of a fused op follow one another."""
    hits, tensor = pfi.Bytes(hits), 0
    while hits.more():
        v = hits.u()
        tensor = tensor + pfi.unzigzag(v >> 1) & 0xFFFFFFFF
        yield tensor
        if v & 1:
            yield tensor + pfi.unzigzag(hits.u()) & 0xFFFFFFFF


def dump(path, engine):
    """The nodes that run, in order, for each graph."""
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
    """(ops compared, ops that differ, the first difference)."""
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
