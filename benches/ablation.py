"""What does each part of ggml-runner gain?

Each part is left out on its own (`ggml-runner run --ablate`), and all runs of a round take turns with the complete
program: the loss is the median, over the rounds, of its tokens/s divided by those of the run without the part. 1.00 means
that the part gains nothing here. There is no target: which part gains how much depends on the machine.

The steps that a graph goes through are measured as well on a model whose graph is as an exporter writes it
(`ggml-runner synth --graph exported`): its nodes after each step, tokens/s without each step, and the logits without it
compared with those of the complete program, whose logits must be those of the graph that llama.cpp builds.
"""

import array
import json
import shlex

from common import Bench, BenchError, Scratch, binary, main, model, quartiles, sh

PARTS = ["fuse", "plan", "layout", "hugepages", "uint4", "prefetch", "attention", "halves"]
# Those that remove nodes, in the order in which they are done.
STEPS = ["fold", "shapes", "cse", "dead", "fuse"]


def told(args, path, threads, without, more=()):
    """What a run says about itself."""
    return json.loads(sh([*shlex.split(args.prefix), binary("ggml-runner"), "run", "-m", path, "-p", str(args.prompt), "-n",
                          str(args.decode), "-t", str(threads), "-r", str(args.repeat), "--pin", "--no-roofline", "--json", *more,
                          *(["--ablate", without] if without else [])]))


def speeds(args, path, threads, part):
    """(prefill, decode) tokens/s without a part; None: complete."""
    run = told(args, path, threads, part)
    return (run["prefill"]["tok_s"], run["decode"]["tok_s"]), run["tokens"]


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


def logits(scratch, args, path, threads, without):
    """A run, and the logits of its prompt's last token."""
    file = scratch.file("logits")
    run = told(args, path, threads, without, ["--logits", file, "--force"])
    values = array.array("f")
    with open(file, "rb") as f:
        values.frombytes(f.read())
    return run, values


def compared(truth, other):
    """Logits compared with others: the normalised square error."""
    if truth.tobytes() == other.tobytes():
        return "same bits"
    wrong = sum((a - b) ** 2 for a, b in zip(truth, other))
    return f"error {wrong / sum(a * a for a in truth):.1e}"


def exported(args, name, threads):
    """The steps on a graph as an exporter writes it."""
    path, ordinary = model(name, "exported"), model(name)
    everything = ",".join([*STEPS, "plan"])
    # What a row leaves out of which model.
    rows = {"nothing": (path, None), **{step: (path, step) for step in [*STEPS, "plan"]}, "all of them": (path, everything),
            "llama's graph": (ordinary, None), "llama's, all": (ordinary, everything)}
    runs, said = {row: [] for row in rows}, {}
    with Scratch() as scratch:
        for _ in range(args.rounds):
            for row, (of, without) in rows.items():
                run, said[row] = logits(scratch, args, of, threads, without)
                runs[row].append(run)
    for row in ("shapes", "cse", "dead", "plan", "llama's graph"):
        if compared(said["nothing"], said[row]) != "same bits":
            raise BenchError(f"{row}: other logits than those of the exported graph after all steps")
    print(f"\n{name} as an exporter writes it, {threads} thread{'s' * (threads > 1)}: prompt of {args.prompt}, {args.decode} decoded, "
          f"medians of {args.rounds} rounds in turn (and as multiples of the first row, with quartiles)")
    heads = "".join(f"{step:>7}" for step in STEPS)
    print(f"{'without':<14}{'built':>6}{heads}{'fused':>7}{'MB':>7}  {'logits':<14}{'prefill tok/s':>28}{'decode tok/s':>28}")
    for row, all_ in runs.items():
        graph = all_[0]["graph"]
        after = {step["step"]: step["after"] for step in graph["steps"]}
        nodes = "".join(f"{after.get(step, '-'):>7}" for step in STEPS)
        cells = []
        for phase in ("prefill", "decode"):
            speed = quartiles([run[phase]["tok_s"] for run in all_])[1]
            low, middle, high = quartiles([run[phase]["tok_s"] / whole[phase]["tok_s"] for run, whole in zip(all_, runs["nothing"])])
            cells.append(f"{speed:.1f}  {middle:.2f} [{low:.2f}, {high:.2f}]")
        print(f"{row:<14}{graph['built']:>6}{nodes}{graph['fused']:>7}{graph['bytes'] / 1e6:>7.2f}  "
              f"{compared(said['nothing'], said[row]):<14}{cells[0]:>28}{cells[1]:>28}", flush=True)


def run():
    bench = Bench("ablation", __doc__)
    bench.parser.add_argument("--rounds", type=int, help="rounds (5; 2 with --quick)")
    bench.parser.add_argument("--repeat", type=int, default=2, help="repetitions in a process (2)")
    bench.parser.add_argument("--prompt", type=int, default=64, help="length of the prompt (64)")
    bench.parser.add_argument("--decode", type=int, default=32, help="tokens to decode (32)")
    bench.parser.add_argument("--threads", default="1,2", help="numbers of threads (1,2)")
    bench.parser.add_argument("--types", default="q4_0,q4_K", help="types of the weights (q4_0,q4_K)")
    bench.parser.add_argument("--exported", default="tiny-f32,tiny-q4_0,llama1b-L4-q4_0", metavar="MODELS",
                              help="models for the graph of an exporter (tiny-f32,tiny-q4_0,llama1b-L4-q4_0)")
    bench.parser.add_argument("--prefix", default="", help="command to run all under, such as 'chrt -f 10' on a busy machine")
    args = bench.begin()
    args.rounds = args.rounds or (2 if args.quick else 5)
    for kind in filter(None, args.types.split(",")):
        for threads in map(int, args.threads.split(",")):
            table(args, kind, threads)
    for name in filter(None, args.exported.split(",")):
        for threads in map(int, args.threads.split(",")):
            exported(args, name, threads)
    return bench.end()


if __name__ == "__main__":
    main(run)
