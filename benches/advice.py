"""Whether advice keeps its promises: records a run with a planted cause, takes the first piece of advice, runs the same
engine as the advice says, and compares the predicted gain with the measured one. Then records healthy runs, which must
get no advice that promises a gain.

Scored are: the first advice names the planted cause (28 of 30); the measured gain is in the promised range or above it
(9 of 10); no advice that was followed made the run slower than 0.98 of what it was, or ended it; healthy runs are promised
nothing; and on all of them the first advice removes the limit, or the verdict says why nothing does.

Engines are unmodified llama.cpp builds, run by tests/engines/driver, Debian's llama-server, and ggml-runner (advice_runs.py);
the cases are in advice_cases.py. Each case runs `--rounds` times, the bad and the mended run in turn; the figures are those
of the round with the median gain. Needs root, and control groups of version 1.
"""

import dataclasses
import json
import os
import re
import subprocess

from advice_cases import NOT_HERE, healthy, planted
from advice_runs import TOP, Run, changed, followed
from common import Bench, BenchError, Scratch, binary, main, report, sh

# A followed advice below this share of the speed before is harm.
HARM = 0.98
# A mended run that waited for a CPU for this share of its time is repeated, so often.
CALM, TRIES = 0.02, 5
# Tokens of a mended run.
LONG = 128


@dataclasses.dataclass
class Outcome:
    """What came of a case; `planted`: a planted one, else a healthy one."""

    name: str
    planted: bool
    first: str = "none"
    right: bool = False
    promised: tuple = None
    measured: float = None
    ended: bool = False
    limit: str = ""
    agrees: bool = True

    def kept(self):
        """None: nothing was promised, or by another rule than the right one."""
        if not (self.planted and self.right and self.promised and self.measured):
            return None
        return self.measured >= self.promised[0]

    def harm(self):
        return self.ended or self.measured is not None and self.measured < HARM

    def line(self):
        said = "{:.2f} to {:.2f}".format(*self.promised) if self.promised else "none"
        measured = "ended" if self.ended else "-" if self.measured is None else f"{self.measured:.2f}"
        above = self.promised and self.measured and self.measured > self.promised[1]
        state = {None: "", True: "above" if above else "kept", False: "BELOW"}[self.kept()]
        wrong = "" if self.right else "WRONG"
        apart = "" if self.agrees else "LIMIT APART"
        marks = " ".join(filter(None, (state, wrong, "HARM" if self.harm() else "", apart)))
        return f"  {self.name:44} {self.limit:17} {self.first:16} {said:15} {measured:>8}  {marks}"


def speed(found, what):
    """Of a phase in tokens per second, of a server's requests in requests per second."""
    # A run without tokens has calls.
    phase = lambda name: next((p for p in found["phases"] if p["phase"] == name), found["phases"][0])
    if what == "ttft":
        return 1e9 / found["sequences"]["ttft"]["p50_ns"]
    if what == "tail":
        # The longest time between two tokens.
        return 1e9 / max(r["tpot"]["p99_ns"] for r in found["sequences"]["requests"] if r["tpot"])
    return phase("decode")["tokens_per_s_wall"] if what == "wall" else phase(what)["tokens_per_s"]


def agrees(verdict):
    """Whether the first advice removes the limit, or the verdict says what would have to change."""
    return bool(verdict["limit"]) and (verdict["first_removes_limit"] or bool(verdict["no_advice"]))


def outcome(name, is_planted, found, rules=()):
    verdict = found["verdict"]
    first = verdict["advice"][0] if verdict["advice"] else None
    promised = next((a["gain"] for a in verdict["advice"] if a["gain"]), None) if not is_planted else \
        first and first["gain"]
    rule = first["rule"] if first else "none"
    right = rule in rules if is_planted else promised is None
    return Outcome(name, is_planted, rule, right, promised and (promised["least"], promised["most"]),
                   limit=(verdict["limit"] or {"kind": "unknown"})["kind"], agrees=agrees(verdict))


def play(tmp, env, name, run, after, measure, rules=None):
    """A round. `after` takes the first advice, and says how the run is with it."""
    file = lambda when: tmp.file(re.sub(r"\W+", "-", name) + f".{when}.pfi")
    record = lambda run, to: (run.record(to, env), report(to))[1]
    before = record(run, file("before"))
    result = outcome(name, rules is not None, before, rules or ())
    advice = before["verdict"]["advice"]
    mended = after(advice[0], result.right) if advice else None
    if mended is None:
        return result
    try:
        after_it = calm(lambda: record(mended, file("after")))
        result.measured = speed(after_it, measure) / speed(before, measure)
    except BenchError as why:
        print(f"    {why}", flush=True)
        result.ended = True
    return result


def waited(found):
    """Share of the time for which threads waited for a CPU."""
    bar = found["verdict"]["phases"][0]["bar"]
    return bar["waiting_for_cpu"] or 0.0 if bar else 0.0


def calm(record):
    """A mended run in which threads hardly waited for a CPU, of several; else the one with the least waits: a team that
    spins is many times slower beside any other program of the machine."""
    best = None
    for _ in range(TRIES):
        found = record()
        best = found if best is None or waited(found) < waited(best) else best
        if waited(best) < CALM:
            break
    return best


def middle(rounds):
    """The round with the median gain; right if most were, harmful if all were."""
    rounds.sort(key=lambda r: r.measured or 0.0)
    found = rounds[len(rounds) // 2]
    found.right = sum(r.right for r in rounds) * 2 > len(rounds)
    return found


def case(tmp, env, c, rounds):
    after = lambda advice, right: longer(c.mended if right and c.mended else followed(advice, c.run))
    return middle([play(tmp, env, c.name, c.run, after, c.measure, c.rules) for _ in range(rounds)])


def longer(run):
    """A mended run is fast: it has tokens enough to be measured."""
    if isinstance(run, Run) and "-n" in run.args and not run.client:
        return run.but(args=changed(run.args, "-n", max(LONG, int(run.args[run.args.index("-n") + 1]))))
    return run


def healthy_case(tmp, env, name, run):
    return play(tmp, env, name, run, lambda advice, _: longer(followed(advice, run)), "decode")


def load(path):
    if not path or not os.path.exists(path):
        return {}
    with open(path) as f:
        rows = [json.loads(line) for line in f]
    return {r["name"]: Outcome(**{**r, "promised": r["promised"] and tuple(r["promised"])}) for r in rows}


def score(bench, results):
    bad, good = ([r for r in results if r.planted is kind] for kind in (True, False))
    kept = [r.kept() for r in bad if r.kept() is not None]
    share = lambda n, of: f"{n} of {of}"
    if bad:
        right = sum(r.right for r in bad)
        bench.judge(right * 30 >= 28 * len(bad), f"first advice names the cause: {share(right, len(bad))}, target 28 of 30")
        bench.judge(sum(kept) * 10 >= 9 * len(kept), f"promised gains kept: {share(sum(kept), len(kept))}, target 9 of 10")
    harmed = [r.name for r in results if r.harm()]
    bench.judge(not harmed, f"harm by a followed first advice: {len(harmed)}, target 0 {harmed or ''}")
    if good:
        promising = [r.name for r in good if not r.right]
        bench.judge(not promising, f"healthy runs with a promised gain: {share(len(promising), len(good))}, target 0")
    apart = [r.name for r in results if not r.agrees]
    bench.judge(not apart, f"limits that the first advice neither removes nor explains: {len(apart)}, target 0")


def run():
    bench = Bench("advice", __doc__)
    bench.parser.add_argument("--rounds", type=int, help="runs of each planted case (3; 1 with --quick)")
    bench.parser.add_argument("--only", metavar="TEXT,...", help="only cases with one of these texts in their names")
    bench.parser.add_argument("--list", action="store_true", help="print the names of all cases")
    bench.parser.add_argument("--results", metavar="FILE", help="add the outcomes to FILE, and score all that are in it")
    bench.parser.add_argument("--keep", metavar="DIR", help="keep the recordings there")
    args = bench.begin()
    rounds = args.rounds or (1 if args.quick else 3)
    texts = [text.strip() for text in (args.only or "").split(",") if text.strip()]
    wanted = lambda name: not texts or any(text in name for text in texts)
    results = load(args.results)
    with Scratch() as tmp:
        bad, good = planted(tmp), list(healthy())
        if args.list:
            print("\n".join([f"planted  {c.name}" for c in bad] + [f"healthy  {name}" for name, _ in good] +
                            [f"skipped  {name}: needs {what}" for name, what in NOT_HERE.items()]))
            return 0
        if args.keep:
            os.makedirs(args.keep, exist_ok=True)
            tmp.file = lambda name: os.path.join(args.keep, name)
        env = dict(os.environ, XDG_CACHE_HOME=tmp.file("cache"))
        print(sh(["setsid", "-w", "sh", "-c", f'{TOP}exec "$@"', "sh", binary("profinfer"), "doctor", "--peaks"], env=env,
                 stderr=subprocess.DEVNULL))
        print(f"  {'planted cause':44} {'limit':17} {'first advice':16} {'promised':15} {'measured':>8}")
        jobs = [(c.name, lambda c=c: case(tmp, env, c, rounds)) for c in bad]
        jobs += [(name, lambda name=name, r=r: healthy_case(tmp, env, name, r)) for name, r in good]
        for name, job in jobs:
            if not wanted(name):
                continue
            try:
                found = job()
            except BenchError as why:
                print(f"  {name}: {why}", flush=True)
                bench.wrong += 1
                continue
            print(found.line(), flush=True)
            results[name] = found
            if args.results:
                with open(args.results, "a") as f:
                    f.write(json.dumps(dataclasses.asdict(found)) + "\n")
    if args.only is None:
        for name, what in NOT_HERE.items():
            print(f"  skipped: {name}: needs {what}")
    score(bench, list(results.values()))
    return bench.end()


if __name__ == "__main__":
    main(run)
