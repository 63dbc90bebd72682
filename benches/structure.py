"""Is every op that ran in the trace? Expected and seen op hits, on every engine, model shape and number of threads.

Expected is what the recorded graph's own nodes demand; the tests compare names, types, dims and sources with the engine's
own dump. Here: all hits seen, none lost, every graph checked.
"""

import itertools

from common import ENGINES, Bench, Scratch, engine, fits, main, model, record_command, report

MODELS = ["llama1b-L4-q4_0", "moe-q4_0", "gemma2-q4_0"]


def one(tmp, name, model_name, threads, tokens):
    out = tmp.file("structure.pfi")
    record_command(out, [], ["--engine", engine(name), "--model", model(model_name), "-p", "32", "-n", str(tokens),
                             "-t", str(threads)])
    return report(out)["books"]


def row(name, model_name, threads, tokens, books):
    h = books["hits"]
    lost = sum(e["lost"] for e in books["events"])
    good = (h["expected"] == h["seen"] == h["slices"] > 0 and lost == 0 and h["graphs_off"] == 0
            and h["graphs"] == h["checked_graphs"] == tokens + 1 and not books["damage"] and books["complete"])
    print(f"{name:8}{model_name:18}{threads:3}{h['graphs']:8}{h['checked_graphs']:9}{h['expected']:10}{h['seen']:10}"
          f"{h['slices']:10}{lost:6}{books['orphans']['value'] or 0:9.0f}  {'ok' if good else 'DIFFERS'}", flush=True)
    return good


def run():
    bench = Bench("structure", __doc__)
    bench.parser.add_argument("--engine", action="append", help="only this engine (may be repeated)")
    bench.parser.add_argument("--tokens", type=int, help="decoded tokens of a run (32; 8 with --quick)")
    args = bench.begin()
    tokens = args.tokens or (8 if args.quick else 32)
    print("engine  model             thr  graphs  checked  expected      seen    slices  lost  orphans")
    runs = good = 0
    with Scratch() as tmp:
        for name, m, threads in itertools.product(args.engine or ENGINES, MODELS, (1, 2)):
            if not fits(name, m):
                print(f"{name:8}{m:18}{threads:3}  not run: the engine does not run this model")
                continue
            runs += 1
            good += row(name, m, threads, tokens, one(tmp, name, m, threads, tokens))
    bench.judge(good == runs, f"seen = expected = in the file and nothing lost in {good} of {runs} runs")
    return bench.end()


if __name__ == "__main__":
    main(run)
