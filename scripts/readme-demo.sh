#!/usr/bin/env bash
# Writes the output of `make demo` between README.md's demo markers: whole sections as they are, other sections left
# out with a mark, long lines cut, paths made short.
#
# usage: readme-demo.sh [FILE]   FILE: output of an earlier `make demo 2>&1`, instead of running it
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ $# -gt 0 ]; then text=$(cat "$1"); else text=$(make --no-print-directory demo 2>&1); fi

DEMO_TEXT=$text python3 - <<'PY'
import os, re, sys

WIDTH = 132
KEEP = ("[", "Accuracy", "Targets", "Run", "Model", "Prefill and decode", "Operators by op", "Operators by name", "How far")
MARK = "<!-- demo: begin", "<!-- demo: end -->"

text = os.environ["DEMO_TEXT"]
cache = (os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) + "/profinfer"
text = text.replace(cache, "~/.cache/profinfer").replace(os.getcwd() + "/", "")
text = re.sub(r"\x1b\[[0-9;]*m", "", text)
if "How far to trust this" not in text:
    sys.exit("readme-demo.sh: this is no complete output of make demo:\n" + text[-2000:])

sections = re.split(r"\n{2,}", text.strip("\n"))
start = next(i for i, s in enumerate(sections) if s.startswith("[0:00]"))
out = []
for section in sections[start:]:
    if section.startswith(KEEP):
        out.append("\n".join(l if len(l) <= WIDTH else l[: WIDTH - 1] + "…" for l in section.splitlines()))
    elif out[-1] != "[…]":
        out.append("[…]")

with open("README.md", encoding="utf-8") as f:
    readme = f.read()
begin = readme.index("\n", readme.index(MARK[0])) + 1
end = readme.index(MARK[1])
body = "```\n$ make demo\n" + "\n\n".join(out) + "\n```\n"
with open("README.md", "w", encoding="utf-8") as f:
    f.write(readme[:begin] + body + readme[end:])
PY
