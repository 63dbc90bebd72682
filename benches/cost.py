"""Recording overhead: decode time of one engine process, with probes on and off in alternating windows.

Every round runs the windows off, op with structure, off, token+graph, off, the published method (entry and return
probe at the function's first instruction, full structure at every hit), off; the order of the three changes from
round to round. A model with experts runs op with structure, and the same with the experts chosen. Each window is one
prefill, some tokens that are discarded (the first ones send the structure) and N tokens that count; the recorder is
attached before the window and detached after it. A window's ratio is relative to the mean of the two adjacent off
windows; the verdict uses the median of all rounds' ratios.

A second process of the same engine (a copy of its files, so that it never contains a probe) decodes a token between
every two tokens of the first, on the same CPU. A window's figure is the median of CPU time of a token / CPU time of
the other process's next token. This cancels whatever slows both, above all other work on the machine. The same ratios
without the second process ("plain") are printed next to them.
"""

import os
import shutil
import statistics

from common import Bench, BenchError, Driver, Recorder, Scratch, engine, main, model, report, spread

# name, flags of record
KINDS = {
    "op": ("op + structure", []),
    "experts": ("op + experts", ["--experts"]),
    "graph": ("token + graph", ["--level", "graph"]),
    "published": ("published method", ["--site", "published"]),
}
PROMPT = 32
# Tokens before the ones that count: rungs are verified, structure is sent.
SETTLE = 6


class Windows:
    """The two processes, and windows on them: (figure, plain CPU time of a token in us, plain wall time in us, figure
    for all tokens together)."""

    def __init__(self, tmp, name, model_name, tokens):
        self.out, self.tokens = tmp.file("cost.pfi"), tokens
        # How many times a window refills the context: tokens get slower as the context grows.
        self.turns = 1
        path, where = engine(name), tmp.file("copy")
        folder = path if os.path.isdir(path) else os.path.dirname(path)
        shutil.copytree(folder, where)
        copy = where if folder == path else os.path.join(where, os.path.basename(path))
        self.drv = Driver(path, model(model_name), 1, tmp.file("tokens"))
        self.other = Driver(copy, model(model_name), 1, tmp.file("other"))
        cpu = min(os.sched_getaffinity(0))
        for d in (self.drv, self.other):
            os.sched_setaffinity(d.pid, {cpu})

    def close(self):
        self.drv.close()
        self.other.close()

    def measure(self):
        """One window. Every window has the same positions in the context."""
        cpu, wall, other = [], [], []
        for _ in range(self.turns):
            for d in (self.drv, self.other):
                d.tell(f"prefill {PROMPT}")
                d.run(SETTLE)
            for _ in range(self.tokens):
                c, w = self.drv.run(1)
                cpu += c
                wall += w
                other += self.other.run(1)[0]
        paired = statistics.median(a / b for a, b in zip(cpu, other))
        return paired, statistics.median(cpu) / 1e3, statistics.median(wall) / 1e3, sum(cpu) / sum(other)

    def recorded(self, flags):
        rec = Recorder(self.drv.pid, self.out, *flags)
        # The recorder removes the probes it no longer needs after the first graphs: before the window, not in it.
        self.drv.run(SETTLE)
        figure = self.measure()
        rec.stop()
        return figure


def rounds(win, kinds, n):
    """By kind (name: flags of record), (off before, on, off after) of each round; and all off windows in order."""
    found, offs, names = {k: [] for k in kinds}, [win.measure()], list(kinds)
    for i in range(n):
        turn = i % len(names)
        for kind in names[turn:] + names[:turn]:
            on = win.recorded(kinds[kind])
            offs.append(win.measure())
            found[kind].append((offs[-2], on, offs[-1]))
    return found, offs


def ratios(triples, which):
    return [on[which] * 2 / (a[which] + b[which]) for a, on, b in triples]


def hits(quality, kinds):
    return sum(e["seen"] for e in quality["events"] if e["kind"] in kinds)


def hits_per_token(path):
    """Probe hits per token: at the op functions, and at all others."""
    run = report(path)
    graphs = run["quality"]["hits"]["graphs"] or max(run["phases"][0]["calls"], 1)
    ops = hits(run["quality"], {"op"}) / graphs
    rest = hits(run["quality"], {f"{r}-{e}" for r in ("token", "sched", "split", "graph") for e in ("enter", "exit")})
    return ops, rest / graphs


def one_model(args, name, tokens, n, kinds):
    """Median ratio by kind; CPU time of an unprofiled token, us; hits per token."""
    with Scratch() as tmp:
        win = Windows(tmp, args.engine, name, tokens)
        try:
            win.measure()
            found, offs = rounds(win, {k: KINDS[k][1] for k in kinds}, n)
            # One more op window, to count the hits per token.
            win.recorded(KINDS["op"][1])
            per_token = hits_per_token(win.out)
        finally:
            win.close()
    base = statistics.median(w[1] for w in offs)
    print(f"\n{name}, engine {args.engine}, 1 thread, {n} rounds of windows of {tokens} tokens")
    print(f"unprofiled: {spread([w[1] for w in offs], 1)} us CPU a token; a token hits {per_token[0]:.1f} op probes and "
          f"{per_token[1]:.1f} others")
    print("median of paired ratios [quartiles]:")
    result = {}
    for kind, triples in found.items():
        figure = result[kind] = statistics.median(ratios(triples, 0))
        print(f"  {KINDS[kind][0]:18}{spread(ratios(triples, 0))}   plain CPU {spread(ratios(triples, 1))}   plain wall "
              f"{spread(ratios(triples, 2))}   adds {(figure - 1) * base:.1f} us a token")
    # Off windows compared with each other: the same figure from noise alone.
    null = list(zip(offs, offs[1:], offs[2:]))
    print(f"  {'off against off':18}{spread(ratios(null, 0))}   plain CPU {spread(ratios(null, 1))}   plain wall "
          f"{spread(ratios(null, 2))}", flush=True)
    return result, base, per_token


def probe_costs(args, n):
    """ns per op hit and per other hit, from the time they add to the smallest model, where their share is largest."""
    result, base, (ops, rest) = one_model(args, "tiny-q4_0", 150, n, ["op", "graph"])
    added = {k: (r - 1) * base * 1e3 for k, r in result.items()}
    return (added["op"] - added["graph"]) / ops, added["graph"] / rest


def judge_1b(bench, name, found, hit):
    result, base, (ops, rest) = found
    op, graph, published = (result[k] for k in ("op", "graph", "published"))
    bench.judge(op <= 1.03, f"{name}: op + structure {op:.4f} x, target <= 1.03")
    bench.judge(graph <= 1.005, f"{name}: token + graph {graph:.4f} x, target <= 1.005")
    third = (published - 1) / 3
    bench.judge(op - 1 <= third, f"{name}: op + structure slows by {op - 1:.4f}, a third of the published method's "
                f"{published - 1:.4f} is {third:.4f}")
    if hit:
        above = max(hit[1], 0) * rest / 1e3 / base
        print(f"      predicted, not measured: op {1 + above + hit[0] * ops / 1e3 / base:.4f} x, graph {1 + above:.4f} x "
              f"(hits a token x ns a hit as found on tiny-q4_0: {hit[0]:.0f} an op hit, {hit[1]:.0f} each other)")


def run():
    bench = Bench("cost", __doc__)
    p = bench.parser
    p.add_argument("--engine", default="v0.5.0", help="engine of tests/engines/fetch.sh (v0.5.0)")
    p.add_argument("--full", action="store_true", help="llama1b-L12 as well as llama1b-L4")
    p.add_argument("--rounds", type=int, help="rounds of windows (12; 4 with --quick)")
    p.add_argument("--model", choices=["llama1b-L4-q4_0", "llama1b-L12-q4_0", "moe-q4_0"], help="only this model")
    args = bench.begin()
    n = args.rounds or (4 if args.quick else 12)
    if n < 2:
        raise BenchError("--rounds must be at least 2")
    names = [args.model] if args.model else ["llama1b-L4-q4_0"] + ["llama1b-L12-q4_0"] * args.full + ["moe-q4_0"]
    hit = None if args.model else probe_costs(args, n)
    for name in names:
        if name == "moe-q4_0":
            result, base, _ = one_model(args, name, 100, n, ["op", "experts"])
            op, experts = result["op"], result["experts"]
            bench.judge(op <= 1.25, f"{name}: op + structure {op:.4f} x, target <= 1.25")
            bench.judge(experts - op <= 0.05, f"{name}: experts add {experts - op:.4f} x ({(experts - op) * base:.1f} us a "
                        f"token), target <= 0.05")
        else:
            tokens = 15 if "L12" in name else 40
            judge_1b(bench, name, one_model(args, name, tokens, n, ["op", "graph", "published"]), hit)
    return bench.end()


if __name__ == "__main__":
    main(run)
