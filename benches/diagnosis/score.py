#!/usr/bin/env python3
"""Scores what a tool says of the cases of this directory.

usage: score.py ANSWERS.jsonl [--json]

A line of ANSWERS is one run: {"case": "05-sampler", "kind": "case", "causes": [{"id": "between-calls", "evidence": "...",
"advice": "...", "gain": null}]}. `kind` is case or control. `causes` are in the tool's order, the first one first; `gain` is
a promised factor, or null. Ids are those of causes.tsv; `healthy` says that nothing is wrong, and no cause at all is taken as
the same. `also` in answers.json are causes that are true of the run besides.

right: the cause is the first. half: it is named, not first. none: nothing is named. wrong: something false is first, or
advice that makes it worse. A control is right if nothing false is named and no gain promised.
"""

import json
import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
POINTS = {"right": 1.0, "half": 0.5, "none": 0.0, "wrong": -1.0}


def answers():
    with open(os.path.join(HERE, "answers.json")) as f:
        return json.load(f)


def causes():
    """The ids, with a sentence on each."""
    with open(os.path.join(HERE, "causes.tsv")) as f:
        return dict(line.rstrip("\n").split("\t") for line in f if not line.startswith("#"))


def judge(run, answer):
    """The score of one run."""
    said = [c for c in run["causes"] if c["id"] != "healthy"]
    ids = [c["id"] for c in said]
    if unknown := sorted(set(ids) - set(causes())):
        raise SystemExit(f"{run['case']}: no such cause: {', '.join(unknown)} (see causes.tsv)")
    also = answer.get("also", [])
    harm = answer.get("never")
    if harm and any(re.search(harm, c.get("advice") or "") for c in said):
        return "wrong"
    if run["kind"] == "control" or answer["cause"] == ["healthy"]:
        # Advice without a promise, such as another setting to measure, names no fault.
        promises = any(c.get("gain") for c in said if c["id"] not in also)
        blamed = run["kind"] == "control" and set(ids) & set(answer["cause"])
        return "wrong" if promises or blamed else "right"
    if not ids or all(id in also for id in ids):
        return "none"
    if ids[0] in answer["cause"]:
        return "right"
    if ids[0] not in also:
        return "wrong"
    return "half"


def table(runs):
    """(case, kind, score, first cause with its sentence), in the order of the answers."""
    known = answers()
    for run in runs:
        if run["case"] not in known:
            raise SystemExit(f"no such case: {run['case']}")
        first = run["causes"][0] if run["causes"] else {"id": "-", "evidence": ""}
        yield run["case"], run["kind"], judge(run, known[run["case"]]), first


def summary(rows):
    """Counts by kind and score."""
    counts = {kind: {score: 0 for score in POINTS} for kind in ("case", "control")}
    for _, kind, score, _ in rows:
        counts[kind][score] += 1
    return counts


def main(args):
    names = [a for a in args if not a.startswith("-")]
    if len(names) != 1 or "--help" in args:
        sys.exit(__doc__)
    with open(names[0]) as f:
        rows = list(table([json.loads(line) for line in f if line.strip()]))
    if "--json" in args:
        print(json.dumps({"runs": [{"case": c, "kind": k, "score": s} for c, k, s, _ in rows], "counts": summary(rows)}))
        return
    for case, kind, score, first in rows:
        print(f"{case:22} {kind:8} {score:6} {first['id']:18} {first.get('evidence') or ''}"[:200])
    for kind, counts in summary(rows).items():
        print(f"{kind}s: " + ", ".join(f"{n} {score}" for score, n in counts.items()))


if __name__ == "__main__":
    main(sys.argv[1:])
