"""Changes that `profinfer diff` reports for real recordings: for pairs of equal starts of ggml-runner, and for pairs
in which the second has an op that is 5 % slower (`ggml-runner run --slow`).

Starts are recorded in turn, one of A, one with the slow op, one of B, on one thread. Each A is compared with its B
(equal: a reported change is a false positive) and with its slow one (the slow op must be reported, and first). With
--starts K the same recordings are then compared K per side. --keep writes the recordings into a directory, from which
--again compares them anew.
"""

import json
import math
import os

from common import Bench, BenchError, Scratch, binary, main, model, quartiles, sh

# The stated rate: at most this share of pairs of equal runs may have any change reported.
RATE = 0.05
# Share of the slow ops that must be found, and listed first.
FOUND = 0.9


def record(out, args, slow):
    engine = [binary("ggml-runner"), "run", "--no-roofline", "-m", model(args.model), "-t", "1", "-p", "8",
              "-n", str(args.tokens)]
    sh([binary("profinfer"), "record", "-q", "--force", "-o", out, "--", *engine, *(["--slow", slow] if slow else [])])


def recordings(where, args, n):
    """The files by kind, in chronological order."""
    kinds = {"a": None, "slow": args.slow, "b": None}
    files = {kind: [os.path.join(where, f"{i}-{kind}.pfi") for i in range(n)] for kind in kinds}
    for i in range(n):
        # Rotate the order, so that no kind is always the first after a pause.
        turn = list(kinds)[i % 3:] + list(kinds)[:i % 3]
        for kind in turn:
            if not args.again:
                record(files[kind][i], args, kinds[kind])
    missing = [f for all_of in files.values() for f in all_of if not os.path.exists(f)]
    if missing:
        raise BenchError(f"{missing[0]} is not there: --again needs what --keep wrote, for as many --pairs")
    return files


def compared(a, b):
    return json.loads(sh([binary("profinfer"), "diff", "--json", ",".join(a), ",".join(b)]))


def in_groups(files, k):
    return [files[i:i + k] for i in range(0, len(files) - k + 1, k)]


def told(diff):
    return [op for op in diff["ops"] if op["verdict"]]


def shown(op):
    return f"{op['name']} {op['own']:+.1%} (q {op['q']:.4f})"


def one_size(bench, args, files, k):
    a, b, slow = (in_groups(files[kind], k) for kind in ("a", "b", "slow"))
    equal = [compared(x, y) for x, y in zip(a, b)]
    slowed = [compared(x, y) for x, y in zip(a, slow)]
    name = args.slow.rsplit(":", 1)[0]
    alarms = [(i, told(d)) for i, d in enumerate(equal) if told(d)]
    mine = [next(op for op in d["ops"] if op["name"].endswith(name)) for d in slowed]
    found = sum(bool(op["verdict"]) for op in mine)
    first = [bool(op["verdict"]) and d["ops"][0] is op for op, d in zip(mine, slowed)]
    print(f"\n{k} start{'s'[:k > 1]} a side, {len(equal)} pairs")
    for kind in (s["ops"] for s in equal[0]["scatter"]):
        rows = [s for d in equal for s in d["scatter"] if s["ops"] == kind]
        scatter, least = ([100 * s[what] for s in rows] for what in ("between_starts", "found"))
        print(f"  {kind}: scatter between starts {quartiles(scatter)[1]:.2f} %, finds {quartiles(least)[1]:.1f} %")
    print(f"  {name}: measured {quartiles([100 * op['own'] for op in mine])[1]:+.2f} %, its smallest found "
          f"{quartiles([100 * op['found'] for op in mine])[1]:.1f} %")
    for i, ops in alarms:
        print(f"  equal pair {i} told: {', '.join(shown(op) for op in ops)}")
    for i, (d, op, hit) in enumerate(zip(slowed, mine, first)):
        others = [o for o in told(d) if o is not op]
        if not hit or others:
            print(f"  slowed pair {i}: {shown(op)}{'' if op['verdict'] else ' not told'}"
                  f"{''.join('; also told: ' + shown(o) for o in others)}")
    most = math.ceil(RATE * len(equal))
    bench.judge(len(alarms) <= most, f"{k} a side: {len(alarms)} of {len(equal)} equal pairs told something, at most {most}")
    least = math.floor(FOUND * len(slowed))
    bench.judge(sum(first) >= least,
                f"{k} a side: {args.slow} found in {found} of {len(slowed)}, first in {sum(first)}, at least {least}")


def run():
    bench = Bench("diff", __doc__)
    p = bench.parser
    p.add_argument("--pairs", type=int, help="pairs of each kind (50; 9 with --quick)")
    p.add_argument("--starts", type=int, nargs="+", default=[1, 3], help="starts a side (1 and 3)")
    p.add_argument("--slow", default="ffn_up-{L}:5%", help="the slow op (ffn_up-{L}:5%%)")
    p.add_argument("--model", default="llama1b-L4-q4_0", help="PRESET-TYPE to generate (llama1b-L4-q4_0)")
    p.add_argument("--tokens", type=int, default=128, help="decoded in each run (128)")
    p.add_argument("--keep", metavar="DIR", help="write the recordings into this directory")
    p.add_argument("--again", action="store_true", help="record nothing: compare what --keep wrote")
    args = bench.begin()
    n = args.pairs or (9 if args.quick else 50)
    if args.again and not args.keep:
        raise BenchError("--again needs --keep DIR")
    if n < max(args.starts):
        raise BenchError("--pairs must be at least as many as --starts")
    with Scratch() as tmp:
        if args.keep:
            os.makedirs(args.keep, exist_ok=True)
        print(f"{args.model}, 1 thread, {args.tokens} tokens a run, {args.slow}")
        files = recordings(args.keep or tmp.name, args, n)
        for k in args.starts:
            one_size(bench, args, files, k)
    return bench.end()


if __name__ == "__main__":
    main(run)
