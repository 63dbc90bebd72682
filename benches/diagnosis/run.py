#!/usr/bin/env python3
"""Runs the cases with profinfer and writes what it says of each, for score.py; or runs them alone, for the size of their effect.

Without --effects each case and its control are recorded. A case whose effect is below 10 % on this machine is void; --effects
tells. Needs root; takes some minutes.
"""

import json
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(HERE), HERE, os.path.join(os.path.dirname(os.path.dirname(HERE)), "tests", "suite")]
import score  # noqa: E402
from common import CACHE, Bench, BenchError, Scratch, binary, driver, main, report, sh  # noqa: E402
from kernel import for_tests  # noqa: E402

TIMEOUT_S = 280
# Of llama.cpp's tools: milliseconds and tokens.
PERF = {
    "prefill": re.compile(r"prompt eval time =\s*([\d.]+) ms /\s*(\d+) tokens"),
    "decode": re.compile(r"  eval time =\s*([\d.]+) ms /\s*(\d+) runs"),
    "total": re.compile(r"total time =\s*([\d.]+) ms"),
}


def speeds(log):
    """Tokens per second that the engine or its client says, by phase; `wall` includes the time between calls."""
    found = {}
    for line in log.splitlines():
        if line.startswith("{"):
            said = json.loads(line)
            if "avg_ts" in said:
                found["decode" if said["n_gen"] else "prefill"] = said["avg_ts"]
            elif "lib" in said:
                found |= {phase: said[phase]["tok_s"] for phase in ("prefill", "decode")}
            else:
                found |= said
    read = {name: list(map(float, all_[-1])) if isinstance(all_[-1], tuple) else float(all_[-1])
            for name, form in PERF.items() if (all_ := form.findall(log))}
    if len(read) == len(PERF):
        (prompt_ms, prompt), (ms, n) = read["prefill"], read["decode"]
        found = {"prefill": prompt * 1e3 / max(prompt_ms, 1e-3), "decode": n * 1e3 / ms,
                 "wall": n * 1e3 / (read["total"] - prompt_ms)}
    return found


def play(name, kind, tool, tmp):
    """Runs a case or its control; the engine's own speeds."""
    log = tmp.file(f"{name}.{kind}.log")
    env = dict(os.environ, DIAGNOSIS_LOG=log, PROFINFER_DRIVER=driver(),
               GGML_RUNNER=os.environ.get("GGML_RUNNER") or binary("ggml-runner"))
    done = subprocess.run([os.path.join(HERE, "cases", f"{name}.sh"), kind, *tool], env=env, capture_output=True, text=True,
                          timeout=TIMEOUT_S)
    said = open(log, errors="replace").read() if os.path.exists(log) else ""
    if done.returncode:
        raise BenchError(f"{name} {kind}: status {done.returncode}: {(done.stderr or said)[-600:]}")
    return speeds(said)


def diagnosis(name, kind, out):
    """What profinfer says of a recording, as score.py takes it."""
    verdict = report(out)["verdict"]
    limit = verdict["limit"] or {"kind": "unknown", "text": "not known"}
    causes = [{"id": a["rule"], "evidence": a["evidence"], "advice": "; ".join([a["title"], *a["actions"]]), "gain": a["gain"] and a["gain"]["most"]}
              for a in verdict["advice"]]
    return {"case": name, "kind": kind, "causes": causes, "limit": limit["kind"], "text": limit["text"],
            "no_advice": verdict["no_advice"]}


def effects(bench, names, tmp, known):
    for name in names:
        both = {kind: play(name, kind, [], tmp) for kind in ("control", "case")}
        what = known[name]["speed"]
        factor = both["control"][what] / both["case"][what]
        bench.judge(factor >= 1.1, f"{name:22} {what:8} {both['control'][what]:10.2f} {both['case'][what]:10.2f}  {factor:5.2f} x")


def recorded(args, names, tmp):
    """Yields what is said of each run."""
    # The machine's peaks are measured for this; what is downloaded and generated stays where it is.
    os.environ.update(PROFINFER_CACHE=CACHE, XDG_CACHE_HOME=args.peaks or tmp.file("cache"))
    if not os.path.exists(os.path.join(os.environ["XDG_CACHE_HOME"], "profinfer", "peaks.json")):
        sh([binary("profinfer"), "doctor", "--peaks"], stderr=subprocess.DEVNULL)
    for name in names:
        for kind in ("case", "control"):
            out = os.path.join(args.keep or tmp.name, f"{name}.{kind}.pfi")
            play(name, kind, [binary("profinfer"), "record", "-q", "--force", "-o", out, "--"], tmp)
            yield diagnosis(name, kind, out)


def run():
    bench = Bench("diagnosis", __doc__)
    bench.parser.add_argument("--only", metavar="TEXT,...", help="only cases with one of these texts in their names")
    bench.parser.add_argument("--effects", action="store_true", help="how much each cause costs here, without a recorder")
    bench.parser.add_argument("--out", metavar="FILE", help="write what is said, for score.py")
    bench.parser.add_argument("--keep", metavar="DIR", help="keep the recordings there")
    bench.parser.add_argument("--peaks", metavar="DIR", help="directory for profinfer/peaks.json, measured where it is missing")
    args = bench.begin()
    known = score.answers()
    texts = [text for text in (args.only or "").split(",") if text]
    names = [name for name in known if not texts or any(text in name for text in texts)]
    with Scratch() as tmp, for_tests():
        if args.keep:
            os.makedirs(args.keep, exist_ok=True)
        if args.effects:
            effects(bench, names, tmp, known)
            return bench.end()
        runs = []
        for said in recorded(args, names, tmp):
            runs.append(said)
            (row,) = score.table([said])
            print(f"{row[0]:22} {row[1]:8} {row[2]:6} {row[3]['id']:18} {said['text']}", flush=True)
            if args.out:
                with open(args.out, "a") as f:
                    f.write(json.dumps(said) + "\n")
    counts = score.summary(list(score.table(runs)))
    bench.judge(not counts["case"]["wrong"], f"cases: {counts['case']}, target no wrong one")
    bench.judge(counts["control"]["right"] == len(names), f"controls: {counts['control']}, target all right")
    return bench.end()


if __name__ == "__main__":
    main(run)
