#!/usr/bin/env bash
# Writes the output of `make demo` between README.md's demo markers: its steps and the verdict. Only
# full lines are omitted, with a marker; long lines are truncated, paths shortened.
#
# usage: readme-demo.sh [FILE]   FILE: output of an earlier `make demo 2>&1`, instead of running it
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ $# -gt 0 ]; then text=$(cat "$1"); else text=$(make --no-print-directory demo 2>&1); fi

DEMO_TEXT=$text python3 - <<'PY'
import os, re, sys

WIDTH = 132
STEP = re.compile(r"\[\d+:\d\d\] ")
# Lines kept of a section, identified by its heading: selected by line number and text. Of all others only the steps
# are kept.
KEEP = {
    # The engine's last lines, and the verdict.
    "tokens: ": lambda at, line: re.match(r"(profinfer:|Model|Recording|Decode|Prefill|A token|A call|Limit|Advice|Details| )", line),
}
CUT = "[…]"
MARK = "<!-- demo: begin", "<!-- demo: end -->"


def kept(section):
    rule = next((rule for title, rule in KEEP.items() if section.startswith(title)), lambda at, line: False)
    lines = []
    for at, line in enumerate(section.splitlines()):
        if not (STEP.match(line) or rule(at, line)):
            line = CUT
        if line != CUT or lines[-1:] != [CUT]:
            lines.append(line if len(line) <= WIDTH else line[: WIDTH - 1] + "…")
    return lines


text = os.environ["DEMO_TEXT"]
cache = (os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) + "/profinfer"
text = text.replace(cache, "~/.cache/profinfer").replace(os.getcwd() + "/", "")
text = re.sub(r"\x1b\[[0-9;]*m", "", text)

first = re.search(r"^\[0:00\] ", text, re.M)
sections = re.split(r"\n{2,}", text[first.start() if first else 0 :].strip("\n"))
for title in KEEP:
    if not any(s.startswith(title) for s in sections):
        sys.exit(f"readme-demo.sh: no section '{title}' in this output of make demo:\n" + text[-2000:])
out = []
for section in sections:
    lines = kept(section)
    if out and lines == [CUT]:
        out[-1].extend(lines if out[-1][-1] != CUT else [])
    else:
        out.append(lines[1:] if out and out[-1][-1] == lines[0] == CUT else lines)

with open("README.md", encoding="utf-8") as f:
    readme = f.read()
begin = readme.index("\n", readme.index(MARK[0])) + 1
end = readme.index(MARK[1])
body = "```\n$ make demo\n" + "\n\n".join("\n".join(lines) for lines in out) + "\n```\n"
with open("README.md", "w", encoding="utf-8") as f:
    f.write(readme[:begin] + body + readme[end:])
PY
