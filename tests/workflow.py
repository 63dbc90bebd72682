#!/usr/bin/env python3
"""Checks the workflows: they parse, request only read permission (a job may write that runs nothing of the sources), pin
their actions and what they install, and call existing make targets; and that the other files for the forge parse. The steps of
actions get foreign text in variables only, never within a script."""

import re
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = ROOT / ".github" / "workflows"


def targets():
    """Target names in the Makefile."""
    rules = re.findall(r"^([a-z0-9 -]+):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return {name for rule in rules for name in rule.split()}


def called(job):
    """Make targets called by a job's steps, for each value of its matrix."""
    matrix = job.get("strategy", {}).get("matrix", {}).get("include", [{}])
    for step in job["steps"]:
        for name in re.findall(r"^\s*make ((?:\$\{\{[^}]*\}\}|[a-z0-9-])+)", step.get("run", ""), re.MULTILINE):
            for row in matrix:
                yield re.sub(r"\$\{\{ matrix\.(\w+) \}\}", lambda m: str(row.get(m.group(1), "?")), name)


def faults(path, makes):
    flow = yaml.safe_load(path.read_text())
    if flow.get("permissions") != {"contents": "read"}:
        yield "permissions must be contents: read"
    for name, job in flow["jobs"].items():
        if "timeout-minutes" not in job:
            yield f"{name}: no time limit"
        used = [step.get("uses", "") for step in job["steps"]]
        if "permissions" in job and (job["permissions"] != {"contents": "write"} or any("checkout" in use for use in used)):
            yield f"{name}: a job may have contents: write if it checks nothing out, and no other permission"
        for step in job["steps"]:
            if "uses" in step and not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", step["uses"]):
                yield f"{name}: {step['uses']} is not pinned to a commit"
        for target in called(job):
            if target not in makes:
                yield f"{name}: the Makefile has no target {target}"


def unparsed(path):
    try:
        yaml.safe_load(path.read_text())
    except yaml.YAMLError as why:
        yield f"{path.relative_to(ROOT)}: {why}"


def faults_of_action(path):
    action = yaml.safe_load(path.read_text())
    for name, of in action["inputs"].items():
        if not of.get("required") and "default" not in of:
            yield f"{name}: neither required nor with a default"
    for step in action["runs"]["steps"]:
        if "shell" not in step or "${{" in step["run"]:
            yield f"a step without shell, or with an expression in its script: {step['run']}"


def main():
    makes = targets()
    others = [ROOT / "CITATION.cff", *(ROOT / ".github").glob("*.yml"), *(ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")]
    actions = sorted((ROOT / ".github" / "actions").glob("*/action.yml"))
    found = [fault for path in others for fault in unparsed(path)]
    found += [f"{path.relative_to(ROOT)}: {what}" for path in actions for what in faults_of_action(path)]
    found += [f"{path.relative_to(ROOT)}: {what}" for path in sorted(WORKFLOWS.glob("*.yml")) for what in faults(path, makes)]
    print("\n".join(found), file=sys.stderr, end="\n" if found else "")
    return 1 if found else 0


sys.exit(main())
