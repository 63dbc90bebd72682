"""The cost of each recording feature: decode time of one engine process, recorded in turn with each set of features.

All eight combinations of structure, counters (task-clock, page-faults: software counters, so that every machine has
them) and buffer type at level op, then the scheduler, the experts (with a model that has some), and everything
together. Windows, pairing and figures are those of `cost` (see cost.py). Next to the ratio: the recorder's own share
of a core, and the time in the BPF programs as accounted by the kernel, as a share of the recorded time.
"""

import os
import statistics

import cost
from common import Bench, BenchError, Scratch, main, report, spread

STATS = "/proc/sys/kernel/bpf_stats_enabled"
PMC = ["--pmc", "task-clock,page-faults"]
# name, flags of record
KINDS = {
    f"{'pbuf' if pbuf else 'ring'}{' +structure' if s else ''}{' +counters' if pmc else ''}":
        ["--pbuf"] * pbuf + ([] if s else ["--no-str"]) + PMC * pmc
    for pbuf in (False, True) for s in (False, True) for pmc in (False, True)
}
KINDS["ring +structure +sched"] = ["--sched"]
EXPERTS = ("ring +structure +experts", ["--experts"])
ALL = ("everything", PMC + ["--sched", "--faults", "--phases"])


class Accounted:
    """Enables the kernel's accounting of time in BPF programs."""

    def __enter__(self):
        with open(STATS) as f:
            self.was = f.read()
        self.set("1")

    def __exit__(self, *_):
        self.set(self.was)

    @staticmethod
    def set(value):
        with open(STATS, "w") as f:
            f.write(value)


def kinds_of(name):
    kinds = dict(KINDS)
    experts = name.startswith("moe")
    if experts:
        kinds[EXPERTS[0]] = EXPERTS[1]
    kinds[ALL[0]] = ALL[1] + ["--experts"] * experts
    return kinds


def own_load(win, flags):
    """For one more window: the recorder's share of a core, the BPF programs' share of the time, events/s, lost."""
    with Accounted():
        win.recorded(flags)
    run = report(win.out)
    quality, seconds = run["quality"], run["run"]["span_ns"] / 1e9
    events = sum(e["recorded"] for e in quality["events"])
    lost = sum(e["lost"] for e in quality["events"])
    # Time per hit; each event is one hit, except the additional events for structure.
    bpf = quality["bpf_ns"]["value"]
    share = None if bpf is None else bpf * sum(e["seen"] for e in quality["events"]) / seconds / 1e9
    return quality["agent_cpu_share"]["value"], share, events / seconds, lost


def one_model(args, name, tokens, n):
    kinds = kinds_of(name)
    with Scratch() as tmp:
        win = cost.Windows(tmp, args.engine, name, tokens)
        try:
            win.measure()
            found, offs = cost.rounds(win, kinds, n)
            loads = {k: own_load(win, flags) for k, flags in kinds.items()}
        finally:
            win.close()
    base = statistics.median(w[1] for w in offs)
    print(f"\n{name}, engine {args.engine}, 1 thread, {n} rounds of windows of {tokens} tokens, {base:.0f} us CPU a token")
    print(f"{'':28}{'slow-down [quartiles]':30}{'adds us':>8}{'recorder %':>12}{'BPF %':>8}{'events/s':>10}{'lost':>6}")
    result = {}
    for kind, triples in found.items():
        figure = result[kind] = statistics.median(cost.ratios(triples, 0))
        recorder, bpf, events, lost = loads[kind]
        shown = "-" if bpf is None else f"{bpf:.2%}"
        print(f"  {kind:26}{spread(cost.ratios(triples, 0)):30}{(figure - 1) * base:8.1f}{recorder:12.2%}{shown:>8}"
              f"{events:10.0f}{lost:6}", flush=True)
    null = list(zip(offs, offs[1:], offs[2:]))
    print(f"  {'off against off':26}{spread(cost.ratios(null, 0))}", flush=True)
    return result


def run():
    bench = Bench("causes", __doc__)
    p = bench.parser
    p.add_argument("--engine", default="v0.5.0", help="engine of tests/engines/fetch.sh (v0.5.0)")
    p.add_argument("--rounds", type=int, help="rounds of windows (6; 2 with --quick)")
    p.add_argument("--model", choices=["llama1b-L4-q4_0", "moe-q4_0"], help="only this model")
    args = bench.begin()
    n = args.rounds or (2 if args.quick else 6)
    if n < 2:
        raise BenchError("--rounds must be at least 2")
    if not os.access(STATS, os.W_OK):
        raise BenchError(f"{STATS} cannot be written: run as root")
    for name in [args.model] if args.model else ["llama1b-L4-q4_0", "moe-q4_0"]:
        result = one_model(args, name, 40 if "1b" in name else 100, n)
        if "1b" in name:
            everything = result[ALL[0]]
            bench.judge(everything <= 1.05, f"{name}: everything {everything:.4f} x, target <= 1.05")
    return bench.end()


if __name__ == "__main__":
    main(run)
