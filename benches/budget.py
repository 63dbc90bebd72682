"""Does `record --budget 1%` stay within its budget? Decode time with and without, in long alternating windows, for
three models.

Pairing and figures are those of `cost` (see cost.py). The windows with the recorder are long enough to add up to
about a minute. A window's figure covers all its tokens together, since ops may be recorded for only some of them. The
verdict uses the median of the paired ratios: at most 1.012.
"""

import statistics
import time

import cost
from common import Bench, Scratch, main, report, spread

BUDGET = ["--budget", "1%"]
MODELS = ["tiny-q4_0", "moe-q4_0", "llama1b-L4-q4_0"]
SECONDS = 60


def one_model(args, bench, name, windows, seconds):
    with Scratch() as tmp:
        win = cost.Windows(tmp, args.engine, name, 100)
        try:
            win.measure()
            before = time.monotonic()
            wall = win.measure()[2]
            win.turns = max(1, round(seconds / windows / (time.monotonic() - before)))
            found, offs = cost.rounds(win, {"budget": BUDGET}, windows)
            run = report(win.out)
        finally:
            win.close()
    ratios = cost.ratios(found["budget"], 3)
    null = list(zip(offs, offs[1:], offs[2:]))
    print(f"\n{name}: {windows} windows of {win.turns} times {win.tokens} tokens, {wall:.0f} us a token")
    print(f"  budget 1 %       {spread(ratios)}   median token {spread(cost.ratios(found['budget'], 0))}")
    print(f"  off against off  {spread(cost.ratios(null, 3))}")
    told = [f for f in run["quality"]["features"] if f["name"] == "budget"]
    print(f"  last window      {told[0]['why'] if told else 'no word on the budget'}", flush=True)
    figure = statistics.median(ratios)
    bench.judge(figure <= 1.012, f"{name}: {figure:.4f} x with --budget 1%, target <= 1.012")


def run():
    bench = Bench("budget", __doc__)
    bench.parser.add_argument("--engine", default="v0.5.0", help="engine of tests/engines/fetch.sh (v0.5.0)")
    bench.parser.add_argument("--model", choices=MODELS, help="only this model")
    args = bench.begin()
    windows, seconds = (2, 10) if args.quick else (4, SECONDS)
    for name in [args.model] if args.model else MODELS:
        one_model(args, bench, name, windows, seconds)
    return bench.end()


if __name__ == "__main__":
    main(run)
