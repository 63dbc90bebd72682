"""Does the trace agree with the engine's own speed, and do a graph's parts add up to the graph?

Speed: decode tokens/s by the trace compared with the engine's own report for the same run; target: within 0.5 %. Sum:
for every decode graph, thread 0's ops, the gaps between them and the gaps before the first and after the last one, as
read from the trace by an independent reader, compared with the graph's own duration; target: within 1 %. Parts that
run backwards count as errors, not as negative parts.
"""

import itertools
import statistics

from common import ENGINES, Bench, Scratch, engine, fits, main, model, quartiles, record_command, records_of, report
from profinfer.wire import busy_slices, wall_slices

MODELS = ["llama1b-L4-q4_0", "moe-q4_0", "gemma2-q4_0"]


def slices_of(record):
    """(start, length or None) of each slice of a record."""
    if record.barrier:
        starts, ends, _, unseen, _ = busy_slices(record.data, record.n, record.t)
        return [(start, None if i in unseen else end - start) for i, (start, end) in enumerate(zip(starts, ends))]
    # The next slice begins where one ends.
    starts, ends, _ = wall_slices(record.data, record.n, record.t)
    last = None if ends[-1] is None else ends[-1] - starts[-1]
    return [*((start, None) for start in starts[:-1]), (starts[-1], last)]


def graphs(path):
    """(start, duration, whether ops end at a barrier, thread 0's slices) of each complete CPU graph of one token."""
    parts, records = {}, records_of(path)
    for record in records.of("Slices"):
        if record.ith == 0:
            parts.setdefault(record.graph, []).extend(slices_of(record))
    for graph in records.of("CpuGraph"):
        if graph.ubatch == 1 and not graph.cut and graph.seq in parts:
            yield graph.t, graph.dur, graph.barrier, parts.pop(graph.seq)


def parts_of(start, dur, slices):
    """(ops, waits and gaps between, head, tail), each the sum of absolute values."""
    ops = between = 0
    at = slices[0][0]
    for i, (begin, busy) in enumerate(slices):
        between += abs(begin - at)
        after = slices[i + 1][0] if i + 1 < len(slices) else start + dur
        ops += busy if busy is not None else abs(after - begin)
        at = begin + busy if busy is not None else after
    return ops, between, abs(slices[0][0] - start), abs(start + dur - at)


def sums(path):
    """Worst relative error of a graph's sum, and the shares of head, tail and the gaps between ops."""
    worst, total, shares, n = 0.0, 0, [0, 0, 0, 0], 0
    for start, dur, _, slices in graphs(path):
        found = parts_of(start, dur, slices)
        worst = max(worst, abs(sum(found) - dur) / dur)
        shares = [a + b for a, b in zip(shares, found)]
        total, n = total + dur, n + 1
    return worst, [s / max(total, 1) for s in shares], n


def one(tmp, name, model_name, threads, tokens):
    out = tmp.file("fidelity.pfi")
    told = record_command(out, [], ["--engine", engine(name), "--model", model(model_name), "-p", "32", "-n",
                                    str(tokens), "-t", str(threads)])
    phase = next(p for p in report(out)["phases"] if p["phase"] == "decode")
    return told["perf"]["decode_tok_s"], phase["tokens_per_s"], phase["calls"], sums(out)


def config(tmp, name, m, threads, tokens, runs):
    """Prints a line; returns the median speed difference and the worst sum. A run with missing tokens counts as 100 % off."""
    differ, worst, shares, own_rates = [], 0.0, [], []
    note = ""
    for _ in range(runs):
        own, trace, calls, (error, share, n) = one(tmp, name, m, threads, tokens)
        if not calls == n == tokens:
            note = f"  ONLY {calls} CALLS, {n} GRAPHS OF {tokens}"
            error = trace = 1.0
        differ.append(trace / own - 1)
        worst = max(worst, error)
        own_rates.append(own)
        shares.append(share)
    share = [statistics.median(s) for s in zip(*shares)]
    low, mid, high = quartiles(differ)
    print(f"{name:8}{m:18}{threads:3}{statistics.median(own_rates):14.3f}   {mid:+8.3%} [{low:+.3%}, {high:+.3%}]"
          f"{worst:13.4%}   " + "".join(f"{s:{w}.2%}" for s, w in zip(share, (7, 11, 8, 8))) + note, flush=True)
    return abs(mid), worst


def run():
    bench = Bench("fidelity", __doc__)
    p = bench.parser
    p.add_argument("--engine", action="append", choices=ENGINES, help="engine (b8121, v0.5.0 and b11549; repeatable)")
    p.add_argument("--all", action="store_true", help="all engines")
    p.add_argument("--tokens", type=int, help="decoded tokens of a run (100; 30 with --quick; a third at 2 threads)")
    p.add_argument("--runs", type=int, help="runs of which the median counts (3; 1 with --quick)")
    args = bench.begin()
    tokens, runs = args.tokens or (30 if args.quick else 100), args.runs or (1 if args.quick else 3)
    names = ENGINES if args.all else args.engine or ["b8121", "v0.5.0", "b11549"]
    print(f"{runs} runs of {tokens} tokens, a third at 2 threads; shares are of the decode graphs' time, thread 0")
    print("engine  model             thr  engine tok/s   trace differs, median [quartiles]  worst sum     ops %  "
          "between %  head %  tail %")
    found = []
    with Scratch() as tmp:
        for name, m, threads in itertools.product(names, MODELS, (1, 2)):
            if fits(name, m):
                # Two threads on a busy machine wait for each other at every op: use fewer tokens to limit the run time.
                found.append(config(tmp, name, m, threads, tokens if threads == 1 else max(tokens // 3, 1), runs))
            else:
                print(f"{name:8}{m:18}{threads:3}  not run: the engine does not run this model")
    speed, worst = [f[0] for f in found], max(f[1] for f in found)
    bench.judge(max(speed) <= 0.005, f"tokens/s: {sum(s <= 0.005 for s in speed)} of {len(speed)} within 0.5 %, worst "
                f"{max(speed):.3%}, median {statistics.median(speed):.3%}")
    bench.judge(worst <= 0.01, f"ops and gaps add up within {worst:.4%} of every graph, target 1 %")
    return bench.end()


if __name__ == "__main__":
    main(run)
