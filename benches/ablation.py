"""What does each part of ggml-runner gain?

Each part is left out on its own (`ggml-runner run --ablate`), and all runs of a round take turns with the complete
program: the loss is the median, over the rounds, of its tokens/s divided by those of the run without the part. 1.00 means
that the part gains nothing here. There is no target: which part gains how much depends on the machine.
"""

import json
import shlex

from common import Bench, BenchError, binary, main, model, quartiles, sh

PARTS = ["fuse", "plan", "layout", "hugepages", "uint4", "prefetch", "attention", "halves"]


def speeds(args, path, threads, part):
    """(prefill, decode) tokens/s without a part; None: complete."""
    told = json.loads(sh([*shlex.split(args.prefix), binary("ggml-runner"), "run", "-m", path, "-p", str(args.prompt), "-n",
                          str(args.decode), "-t", str(threads), "-r", str(args.repeat), "--pin", "--no-roofline", "--json",
                          *(["--ablate", part] if part else [])]))
    return (told["prefill"]["tok_s"], told["decode"]["tok_s"]), told["tokens"]


def table(args, kind, threads):
    path, gains, complete = model(f"llama1b-L4-{kind}"), {part: [] for part in PARTS}, []
    for _ in range(args.rounds):
        whole, tokens = speeds(args, path, threads, None)
        complete.append(whole)
        for part in PARTS:
            without, same = speeds(args, path, threads, part)
            # Attention without vectors or with f16 values rounds otherwise.
            if same != tokens and part not in ("attention", "halves"):
                raise BenchError(f"without {part}, other tokens were generated")
            gains[part].append([a / b for a, b in zip(whole, without)])
    prefill, decode = (quartiles([c[phase] for c in complete])[1] for phase in (0, 1))
    print(f"\n{kind}, {threads} thread{'s' * (threads > 1)}: complete {prefill:.1f} tok/s prefill {args.prompt}, {decode:.1f} decode")
    print(f"{'part':<10} {'prefill':>24} {'decode':>24}   (times as fast with it, median and quartiles)")
    for part, rounds in gains.items():
        cells = []
        for phase in (0, 1):
            low, middle, high = quartiles([r[phase] for r in rounds])
            cells.append(f"{middle:.2f} [{low:.2f}, {high:.2f}]")
        print(f"{part:<10} {cells[0]:>24} {cells[1]:>24}", flush=True)


def run():
    bench = Bench("ablation", __doc__)
    bench.parser.add_argument("--rounds", type=int, help="rounds (5; 2 with --quick)")
    bench.parser.add_argument("--repeat", type=int, default=2, help="repetitions in a process (2)")
    bench.parser.add_argument("--prompt", type=int, default=64, help="length of the prompt (64)")
    bench.parser.add_argument("--decode", type=int, default=32, help="tokens to decode (32)")
    bench.parser.add_argument("--threads", default="1,2", help="numbers of threads (1,2)")
    bench.parser.add_argument("--types", default="q4_0,q4_K", help="types of the weights (q4_0,q4_K)")
    bench.parser.add_argument("--prefix", default="", help="command to run all under, such as 'chrt -f 10' on a busy machine")
    args = bench.begin()
    args.rounds = args.rounds or (2 if args.quick else 5)
    for kind in args.types.split(","):
        for threads in map(int, args.threads.split(",")):
            table(args, kind, threads)
    return bench.end()


if __name__ == "__main__":
    main(run)
