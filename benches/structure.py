"""Is every op that ran in the trace? Expected and seen op hits, on every engine, model shape and number of threads.

The expected hits follow from the recorded graph's own nodes. A second run of each compares the trace with the
engine's own dump of its nodes (the driver's --dump): order, addresses, names, ops, types, dims, strides and sources
of all ops.
"""

import itertools

import truth
from common import ENGINES, Bench, Scratch, engine, fits, main, model, record_command, report

MODELS = ["llama1b-L4-q4_0", "moe-q4_0", "gemma2-q4_0"]


def one(tmp, name, model_name, threads, tokens):
    out, dump = tmp.file("structure.pfi"), tmp.file("dump.jsonl")
    args = ["--engine", engine(name), "--model", model(model_name), "-p", "32", "-n", str(tokens), "-t", str(threads)]
    record_command(out, [], args)
    quality = report(out)["quality"]
    record_command(out, [], [*args, "--dump", dump])
    return quality, truth.compare(out, dump, name)


def row(name, model_name, threads, tokens, quality, compared):
    h = quality["hits"]
    lost = sum(e["lost"] for e in quality["events"])
    same, differ, first = compared
    good = (h["expected"] == h["seen"] == h["slices"] > 0 and lost == 0 and h["graphs_off"] == 0
            and h["graphs"] == h["checked_graphs"] == tokens + 1 and not quality["damage"] and quality["complete"])
    print(f"{name:8}{model_name:18}{threads:3}{h['graphs']:8}{h['checked_graphs']:9}{h['expected']:10}{h['seen']:10}"
          f"{h['slices']:10}{lost:6}{quality['orphans']['value'] or 0:9.0f}{same:11}{differ:8}  "
          f"{'ok' if good and not differ else 'DIFFERS'}", flush=True)
    if first:
        print(f"        first difference from the dump: {first}")
    return good, same > 0 and not differ


def run():
    bench = Bench("structure", __doc__)
    bench.parser.add_argument("--engine", action="append", help="only this engine (may be repeated)")
    bench.parser.add_argument("--tokens", type=int, help="decoded tokens of a run (32; 8 with --quick)")
    args = bench.begin()
    tokens = args.tokens or (8 if args.quick else 32)
    print("engine  model             thr  graphs  checked  expected      seen    slices  lost  orphans   compared  differ")
    runs = good = same = 0
    with Scratch() as tmp:
        for name, m, threads in itertools.product(args.engine or ENGINES, MODELS, (1, 2)):
            if not fits(name, m):
                print(f"{name:8}{m:18}{threads:3}  not run: the engine does not run this model")
                continue
            runs += 1
            hits, structure = row(name, m, threads, tokens, *one(tmp, name, m, threads, tokens))
            good, same = good + hits, same + structure
    bench.judge(good == runs, f"seen = expected = in the file and nothing lost in {good} of {runs} runs")
    bench.judge(same == runs, f"every op as the engine's own dump has it in {same} of {runs} runs")
    return bench.end()


if __name__ == "__main__":
    main(run)
