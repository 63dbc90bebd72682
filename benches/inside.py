"""Recording overhead from inside the engine's process, and by BPF: CPU time of a token against an engine that is not
recorded.

Each round starts four processes of one engine on one CPU: two that are not recorded, one recorded from inside, one by BPF
(all at level op with structure), and lets them decode one token each in turn, in another order each time. A figure is the median of CPU time of a
token / CPU time of the first process's token; of all rounds, the median. The second process gives what differs between two
equal ones by chance.

Before that, hits of each thread are compared with bpftrace's, of another run of the same work (`--truth`: only this).
"""

import os
import random
import shutil
import statistics

import inside_truth
from common import Bench, BenchError, Driver, Recorder, Scratch, binary, engine, main, model, report, spread

PROMPT = 32
# Tokens before the ones that count: rungs are verified, structure is sent.
SETTLE = 20


def copy_of(name, where):
    """A copy of an engine's files: probes of one are not in the other."""
    path = engine(name)
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    shutil.copytree(folder, where)
    return where if folder == path else os.path.join(where, os.path.basename(path))


def one_round(args, name, tokens):
    """By kind, the ratio to the first process; and the first one's CPU time of a token, us."""
    cpu = str(min(os.sched_getaffinity(0)))
    pinned = ["taskset", "-c", cpu]
    with Scratch() as tmp:
        trace = tmp.file("inside.pfi")
        record = [binary("profinfer"), "record", "-q", "--source", "inside", "--force", "-o", trace, "--"]
        files = {kind: copy_of(args.engine, tmp.file(f"engine-{kind}")) for kind in ("plain", "again", "inside", "bpf")}
        drivers = {
            kind: Driver(path, model(name), 1, tmp.file(f"tokens-{kind}"), (record if kind == "inside" else []) + pinned)
            for kind, path in files.items()
        }
        bpf = Recorder(drivers["bpf"].pid, tmp.file("bpf.pfi"))
        try:
            for driver in drivers.values():
                driver.tell(f"prefill {PROMPT}")
                driver.run(SETTLE)
            times = {kind: [] for kind in drivers}
            kinds = list(drivers)
            for _ in range(tokens):
                for kind in kinds:
                    times[kind] += drivers[kind].run(1)[0]
                # What the caches hold depends on who came before.
                random.shuffle(kinds)
        finally:
            for driver in drivers.values():
                driver.close()
            bpf.stop()
        quality = report(trace)["quality"]
        if not quality["complete"]:
            raise BenchError(f"the recording from inside is not complete: {quality['verdict']}")
    plain = times.pop("plain")
    return {kind: statistics.median(a / b for a, b in zip(of, plain)) for kind, of in times.items()}, \
        statistics.median(plain) / 1e3


def run():
    bench = Bench("inside", __doc__)
    p = bench.parser
    p.add_argument("--engine", default="v0.5.0", help="engine of tests/engines/fetch.sh (v0.5.0)")
    p.add_argument("--rounds", type=int, help="rounds (7; 3 with --quick)")
    p.add_argument("--truth", action="store_true", help="only compare hits with bpftrace's")
    args = bench.begin()
    inside_truth.truth(bench, args.engine)
    if args.truth:
        return bench.end()
    rounds = args.rounds or (3 if args.quick else 7)
    for name, tokens, most in (("llama1b-L4-q4_0", 60, 1.003), ("moe-q4_0", 300, 1.02)):
        found = [one_round(args, name, tokens) for _ in range(rounds)]
        base = statistics.median(cpu for _, cpu in found)
        print(f"\n{name}, engine {args.engine}, 1 thread, {rounds} rounds of {tokens} tokens, {base:.1f} us CPU a token")
        for kind in ("again", "inside", "bpf"):
            label = "not recorded" if kind == "again" else kind
            print(f"  {label:14}{spread([ratios[kind] for ratios, _ in found], 4)}", flush=True)
        figure, chance = (statistics.median(ratios[kind] for ratios, _ in found) for kind in ("inside", "again"))
        if abs(chance - 1) > most - 1:
            print(f"----  {name}: from inside {figure:.4f} x, target <= {most}: two that are not recorded differ by "
                  f"{abs(chance - 1):.4f}, so this machine cannot tell", flush=True)
        else:
            bench.judge(figure <= most, f"{name}: from inside {figure:.4f} x, target <= {most}")
    return bench.end()


if __name__ == "__main__":
    main(run)
