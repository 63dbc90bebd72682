"""Compares a trace's structure, read by the reader for Python, with the engine's own dump."""

import json

from common import records_of

# Nodes that newer engines do not run at all, and the flag that a node needs to run.
NO_WORK = {"NONE", "RESHAPE", "VIEW", "PERMUTE", "TRANSPOSE"}
COMPUTE = 16
OLD = {"b3889", "b4753"}


class Trace:
    """Tensors by id, plans by id, and the plan of each CPU graph in order."""

    def __init__(self, path):
        records = records_of(path)
        ops = {op.id: (op.name, op.desc) for op in records.of("OpDef")}
        types = {of.id: of.name for of in records.of("TypeDef")}
        # Tensors of a fused op follow one another.
        self.plans = {plan.id: [t for both in records.plan(plan.id) for t in both if t is not None]
                      for plan in records.of("Plan")}
        self.graphs = [plan for _, plan in sorted((graph.t, graph.plan) for graph in records.of("CpuGraph"))]
        self.tensors = {t.id: {"addr": t.addr, "name": t.name, "op": ops.get(t.op), "type": types.get(t.type),
                               "ne": list(t.ne), "src": [s for s in t.src if s is not None], "nb": list(t.nb or ())}
                        for t in records.tensors.values()}

    def nodes(self, plan):
        return [self.tensors[t] for t in self.plans[plan]]

    def described(self, node):
        """The compared properties of a node, and of its sources."""
        sources = [self.tensors[s] for s in node["src"]]
        return (node["addr"], node["name"], node["op"], node["type"], node["ne"],
                [(s["addr"], s["name"], s["op"] and s["op"][0], s["type"], s["ne"]) for s in sources])


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
