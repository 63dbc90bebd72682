"""What the Python reader says of traces: all columns of all its tables, as JSON."""

import json
import sys

import profinfer

TABLES = ("ops", "calls", "graphs", "splits", "cpu_graphs", "threads", "counters", "op_counts", "offcpu", "sensors", "samples",
          "experts", "kernels")


def said(path):
    run = profinfer.open(path)
    tables = {name: getattr(run, name).to_dicts() for name in TABLES}
    return {"complete": run.complete, **tables}


json.dump({path: said(path) for path in sys.argv[1:]}, sys.stdout, default=str)
