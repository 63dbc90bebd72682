"""Cost of being recorded: decode time of one engine process, with probes on and off in alternating windows.

Every round runs the windows off, op with structure, off, token+graph, off, the published method (entry and return probe
at the function's first instruction, full structure at every hit), off. Each window is one prefill, some tokens that are
thrown away (the first ones send the structure) and N tokens that count; the recorder is attached before it and gone
after it. A window's figure is the median CPU time of its tokens; its ratio is to the mean of the two off windows
beside it. What is judged is the median of all rounds' ratios.
"""

import statistics

from common import Bench, BenchError, Driver, Recorder, Scratch, engine, main, model, report, spread

# name, flags of record
KINDS = {
    "op": ("op + structure", []),
    "graph": ("token + graph", ["--level", "graph"]),
    "published": ("published method", ["--site", "published"]),
}
PROMPT = 32
# Tokens before those that count: rungs are verified, structure is sent.
SETTLE = 6


class Windows:
    def __init__(self, drv, out, tokens):
        self.drv, self.out, self.tokens = drv, out, tokens

    def measure(self):
        """Median CPU and wall time of a token, us. Every window has the same positions in the context."""
        self.drv.tell(f"prefill {PROMPT}")
        self.drv.run(SETTLE)
        cpu, wall = self.drv.run(self.tokens)
        return statistics.median(cpu) / 1e3, statistics.median(wall) / 1e3

    def recorded(self, flags):
        rec = Recorder(self.drv.pid, self.out, *flags)
        # The recorder takes down what it does not need after the first graphs: before the window, not in it.
        self.drv.run(SETTLE)
        figure = self.measure()
        rec.stop()
        return figure


def rounds(win, kinds, n):
    """Per kind: list of (off before, on, off after), each (cpu, wall)."""
    found = {k: [] for k in kinds}
    before = win.measure()
    for _ in range(n):
        for kind in kinds:
            on = win.recorded(KINDS[kind][1])
            after = win.measure()
            found[kind].append((before, on, after))
            before = after
    return found


def ratios(triples, which):
    return [on[which] / ((a[which] + b[which]) / 2) for a, on, b in triples]


def added_us(triples):
    return [on[0] - (a[0] + b[0]) / 2 for a, on, b in triples]


def hits(books, kinds):
    return sum(e["seen"] for e in books["events"] if e["kind"] in kinds)


def hits_per_token(path):
    """Probe hits of a token: at the op functions, and at all others."""
    run = report(path)
    graphs = run["books"]["hits"]["graphs"] or max(run["phases"][0]["calls"], 1)
    ops = hits(run["books"], {"op"}) / graphs
    rest = hits(run["books"], {f"{r}-{e}" for r in ("token", "sched", "split", "graph") for e in ("enter", "exit")})
    return ops, rest / graphs


def one_model(bench, args, name, tokens, n, kinds):
    with Scratch() as tmp:
        drv = Driver(engine(args.engine), model(name), 1, tmp.file("tokens"))
        try:
            win = Windows(drv, tmp.file("cost.pfi"), tokens)
            win.measure()
            found = rounds(win, kinds, n)
            # One more of the op windows, for what a token hits.
            win.recorded(KINDS["op"][1])
            per_token = hits_per_token(win.out)
        finally:
            drv.close()
    off = [w[0] for t in found.values() for triple in t for w in (triple[0], triple[2])]
    print(f"\n{name}, engine {args.engine}, 1 thread, {n} rounds of windows of {tokens} tokens")
    print(f"unprofiled: {spread(off, 1)} us CPU a token; op hits a token {per_token[0]:.1f}, others {per_token[1]:.1f}")
    print("median of paired ratios [quartiles]:")
    result = {}
    for kind, triples in found.items():
        cpu, wall, added = ratios(triples, 0), ratios(triples, 1), added_us(triples)
        result[kind] = (statistics.median(cpu), statistics.median(added), per_token)
        print(f"  {KINDS[kind][0]:18} CPU {spread(cpu)}   wall {spread(wall)}   added {spread(added, 1)} us a token")
    # Off windows against each other: what the machine's noise alone makes of the same figure.
    flat = [t[0] for k in kinds for t in found[k]]
    null = [flat[i][0] * 2 / (flat[i - 1][0] + flat[i + 1][0]) for i in range(1, len(flat) - 1)]
    if len(null) > 1:
        print(f"  {'off against off':18} CPU {spread(null)}   (noise of one pair)")
    return result, statistics.median(off)


def probe_costs(args, bench, n):
    """ns of one op hit and of one hit above, on the smallest model, where they weigh most; beside what they add to it."""
    result, _ = one_model(bench, args, "tiny-q4_0", 400, n, ["op", "graph"])
    ops, rest = result["op"][2]
    graph_hit = result["graph"][1] / rest
    return (result["op"][1] - result["graph"][1]) / ops * 1e3, graph_hit * 1e3


def judge_1b(bench, name, result, off, hit):
    op, graph, published = (result[k][0] for k in ("op", "graph", "published"))
    ops, rest = result["op"][2]
    bench.judge(op <= 1.03, f"{name}: op + structure {op:.4f} x, target <= 1.03")
    bench.judge(graph <= 1.005, f"{name}: token + graph {graph:.4f} x, target <= 1.005")
    third = (published - 1) / 3
    bench.judge(op - 1 <= third, f"{name}: op + structure slows by {op - 1:.4f}, a third of the published method's "
                f"{published - 1:.4f} is {third:.4f}")
    print(f"      predicted, not measured: op {1 + (ops * hit[0] + rest * hit[1]) / 1e3 / off:.4f} x, graph "
          f"{1 + rest * hit[1] / 1e3 / off:.4f} x (hits a token x ns a hit as measured on tiny-q4_0: "
          f"{hit[0]:.0f} an op hit, {hit[1]:.0f} each other)")


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
    hit = probe_costs(args, bench, max(2, n // 2))
    for name in names:
        if name == "moe-q4_0":
            result, _ = one_model(bench, args, name, 200, n, ["op"])
            ratio = result["op"][0]
            bench.judge(ratio <= 1.25, f"{name}: op + structure {ratio:.4f} x, target <= 1.25")
        else:
            result, off = one_model(bench, args, name, 20 if "L12" in name else 60, n, list(KINDS))
            judge_1b(bench, name, result, off, hit)
    return bench.end()


main(run)
