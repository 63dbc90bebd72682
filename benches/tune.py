"""Does `profinfer tune` find the best choice of CPUs and threads?

Boards (--boards): on boards of a closed formula, whose best set is known (crates/tune/benches): 1600 seeded random ones of 2
to 4 clusters and 14 to 71 sets, whose threads share work evenly or steal it; the same with a deviation of 2 % a set from the
formula ("rough"); and the phones of the MNN-AECS paper. Each sample has no noise, the published noise (speed 2 %, energy
5 %), or the noise with speeds from the times of single tokens (speed 0.5 %, energy 5 %). Compared: all sets once, AECS as
published, and the search. The goal is the least energy among the sets at least 0.92 times as fast as the fastest.

Columns: number of tests (median and most); how often the best set was chosen; how often one that is truly fast enough and
within 3 % of the best energy; "tellable", how often there is such a set at all whose speed lies two standard errors of seven
samples above the slowest allowed (no search of 22 tests that keeps to the slack can be expected to do much better); how
often the chosen is truly slower than the slack allows, and by how much at most.

Known (--known): the whole program on 25 boards (--count; --quick: 3) in a directory, with an engine of known speed and a
battery (tests/tune/board.py). Target: all within 3 % of the least energy and fast enough.

Engines (--engines): real engines on this machine, quiet and with a busy CPU. The command that tune prints is run in turn
with all other choices, by their own clocks. Target: at least 95 % of the best.

Targets, for random boards with both ways of sharing, at the noise of token times and at the published noise: within 3 % on
88 %; never too slow; at most 22 tests. For each of the phones at the published noise: the published set in 95 % of 200
searches, with no more tests than AECS as published needs (medians).
"""

import json

import tune_real
from common import ROOT, Bench, BenchError, main, sh

COLUMNS = [("boards", 14), ("sharing", 9), ("noise %", 8), ("search", 18), ("tests", 6), ("max", 4), ("best", 6),
           ("<= 3 %", 7), ("tellable", 9), ("slow", 5), ("by %", 5)]


def line(values):
    left = {"boards", "sharing", "noise %", "search"}
    return " ".join(str(v).ljust(w) if name in left else str(v).rjust(w) for v, (name, w) in zip(values, COLUMNS))


def row(r):
    noise = f"{r['speed_noise_percent']:g}, {r['energy_noise_percent']:g}"
    return line([r["boards"], r["sharing"], noise, r["search"], r["tests_median"], r["tests_max"],
                 f"{r['exact_percent']:.1f}", f"{r['within_3_percent']:.1f}", f"{r['tellable_percent']:.1f}", r["too_slow"],
                 f"{r['too_slow_by_percent']:.2f}"])


def boards(bench, args):
    n = 100 if args.quick else 1600
    out = sh(["cargo", "bench", "--quiet", "--locked", "--package", "tune", "--bench", "tune", "--", "--json", "--boards", str(n),
              "--seed", str(args.seed)], cwd=ROOT)
    rows = [json.loads(text) for text in out.splitlines() if text.startswith("{")]
    if not rows:
        raise BenchError("the Rust bench printed no figures")
    if args.json:
        print("\n".join(json.dumps(r) for r in rows))
    else:
        print(line([name for name, _ in COLUMNS]))
        print("\n".join(row(r) for r in rows))
    phones(bench, rows)
    for r in rows:
        if r["boards"] != "random" or r["search"] != "tune" or not r["energy_noise_percent"]:
            continue
        name = f"sharing {r['sharing']}, speed noise {r['speed_noise_percent']:g} %"
        bench.judge(r["within_3_percent"] >= 88, f"{name}: within 3 % on {r['within_3_percent']:.1f} %, target >= 88 %")
        bench.judge(r["too_slow"] == 0, f"{name}: {r['too_slow']} of {r['n']} too slow"
                    f" (by {r['too_slow_by_percent']:.2f} % at most), target 0")
        bench.judge(r["tests_max"] <= 22, f"{name}: at most {r['tests_max']} tests, target <= 22")


def phones(bench, rows):
    noisy = [r for r in rows if not r["boards"].startswith("random") and r["speed_noise_percent"] == 2]
    published = {r["boards"]: r["tests_median"] for r in noisy if r["search"] != "tune"}
    for r in noisy:
        if r["search"] == "tune":
            name, tests = r["boards"], r["tests_median"]
            bench.judge(r["exact_percent"] >= 95, f"{name}: found in {r['exact_percent']:.1f} %, target >= 95 %")
            bench.judge(tests <= published[name], f"{name}: {tests} tests, target <= {published[name]}")


PARTS = {"boards": boards, "known": tune_real.known, "engines": tune_real.engines}


def run():
    bench = Bench("tune", __doc__)
    for name in PARTS:
        bench.parser.add_argument(f"--{name}", action="store_true", help=f"only the part {name}, or those named")
    bench.parser.add_argument("--seed", type=int, default=700_000, help="of the random boards (700000)")
    bench.parser.add_argument("--json", action="store_true", help="print rows as JSON")
    bench.parser.add_argument("--count", type=int, metavar="N", help="boards of the part known")
    args = bench.begin()
    chosen = [name for name in PARTS if getattr(args, name)]
    for name in chosen or PARTS:
        PARTS[name](bench, args)
    return bench.end()


if __name__ == "__main__":
    main(run)
