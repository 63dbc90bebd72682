"""How fast is ggml-runner compared with llama.cpp, and how near to the machine's peaks?

Both run the same model (1B-shaped, four layers) in turn, so that both see the same machine conditions: a prompt of 64
or 512 tokens, then decoding. llama.cpp is a packaged release that picks its kernels for this processor. Each process
warms up and then repeats; the figures are medians over all processes. Targets: decode 1.3 times llama.cpp's tokens/s,
prefill 1.2 times; weights read in decode at 90 % of the bandwidth that `ggml-runner peak` measures for that number of
threads, prefill products at 70 % of the measured peak of the int8 dot product.
"""

import json
import shlex

from common import Bench, binary, driver, engine, main, model, quartiles, sh

ENGINE = "v0.5.0"
# Hidden, feed-forward and key/value sizes, layers and vocabulary of llama1b-L4.
HIDDEN, FFN, KV, LAYERS, VOCABULARY = 2048, 8192, 512, 4, 32000
WEIGHTS = LAYERS * (2 * HIDDEN * HIDDEN + 2 * HIDDEN * KV + 3 * HIDDEN * FFN)
HEAD = HIDDEN * VOCABULARY
BYTES = {"q4_0": 18 / 32, "q8_0": 34 / 32}


def ours(prefix, path, prompt, decode, threads, repeat):
    """(prefill, decode) tokens/s, medians of one process."""
    told = json.loads(sh([*prefix, binary("ggml-runner"), "run", "-m", path, "-p", str(prompt), "-n", str(decode), "-t",
                          str(threads), "-r", str(repeat), "--pin", "--json"]))
    return told["prefill"]["tok_s"], told["decode"]["tok_s"]


def theirs(prefix, path, prompt, decode, threads, repeat):
    """Like `ours`; the first prompt of a process is its warm-up."""
    lines = sh([*prefix, driver(), "--engine", engine(ENGINE), "--model", path, "-p", str(prompt), "-n", str(decode), "-t",
                str(threads), "--repeat", str(repeat + 1), "--warmup", "2", "--json"]).splitlines()
    told = [json.loads(line) for line in lines if line.startswith("{")][1:]
    return tuple(quartiles([t[phase]["tok_s"] for t in told])[1] for phase in ("prefill", "decode"))


def peaks(prefix, threads):
    """(GB/s read, int8 Gop/s)."""
    told = json.loads(sh([*prefix, binary("ggml-runner"), "peak", "-t", str(threads), "--json"]))
    row = told["clusters"][0]["peaks"][0]
    return row["read"], row["int8_dot"]


def compare(bench, kind, threads, prompt):
    args = bench.args
    prefix = shlex.split(args.prefix)
    path = model(f"llama1b-L4-{kind}")
    rounds = [(ours(prefix, path, prompt, args.decode, threads, args.repeat),
               theirs(prefix, path, prompt, args.decode, threads, args.repeat)) for _ in range(args.rounds)]
    for phase, target in enumerate((1.2, 1.3)):
        own, other = (quartiles([r[who][phase] for r in rounds]) for who in (0, 1))
        ratio = quartiles([r[0][phase] / r[1][phase] for r in rounds])[1]
        name = f"{kind} {threads} thread{'s' * (threads > 1)} {f'prefill {prompt}' if phase == 0 else f'decode at {prompt}'}"
        bench.judge(ratio >= target, f"{name}: {own[1]:.1f} [{own[0]:.1f}, {own[2]:.1f}] tok/s, llama.cpp {other[1]:.1f} "
                                     f"[{other[0]:.1f}, {other[2]:.1f}], ratio {ratio:.2f}, target >= {target}")
        yield own[1]


def run():
    bench = Bench("runner", __doc__)
    bench.parser.add_argument("--rounds", type=int, help="processes of each program (5; 2 with --quick)")
    bench.parser.add_argument("--repeat", type=int, default=5, help="repetitions in a process (5)")
    bench.parser.add_argument("--decode", type=int, default=32, help="tokens to decode (32)")
    bench.parser.add_argument("--threads", default="1,2", help="numbers of threads (1,2)")
    bench.parser.add_argument("--prompts", default="64,512", help="lengths of the prompt (64,512)")
    bench.parser.add_argument("--types", default="q4_0,q8_0", help="types of the weights (q4_0,q8_0)")
    bench.parser.add_argument("--prefix", default="", help="command to run all under, such as 'chrt -f 10' on a busy machine")
    args = bench.begin()
    args.rounds = args.rounds or (2 if args.quick else 5)
    for threads in map(int, args.threads.split(",")):
        read, dot = peaks(shlex.split(args.prefix), threads)
        print(f"{threads} thread{'s' * (threads > 1)}: reads {read:.1f} GB/s, int8 dot product {dot:.0f} Gop/s")
        for kind in args.types.split(","):
            for prompt in map(int, args.prompts.split(",")):
                prefill, decode = compare(bench, kind, threads, prompt)
                rate = prefill * 2 * (WEIGHTS + HEAD / prompt) / 1e9
                bench.judge(rate >= 0.7 * dot, f"  products of prefill: {rate:.0f} Gop/s, {rate / dot:.0%} of the peak, target >= 70%")
                rate = decode * (WEIGHTS + HEAD) * BYTES[kind] / 1e9
                bench.judge(rate >= 0.9 * read, f"  weights of decode: {rate:.1f} GB/s, {rate / read:.0%} of the peak, target >= 90%")
    return bench.end()


if __name__ == "__main__":
    main(run)
