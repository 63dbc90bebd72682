"""How fast is ggml-runner compared with llama.cpp, and how near to the machine's peaks?

Both run the same model (1B-shaped, four layers) in turn, so that both see the same machine conditions: a prompt of 64
or 512 tokens, then decoding. In each round the peaks are measured as well (`ggml-runner peak`, same threads), and ratios
are those of a round; the figures are medians over the rounds. llama.cpp is a packaged release that picks its kernels for
this processor; ik_llama.cpp is compared as its packaged Python bindings have it (benches/ik.py), and another build with --other,
the command of its llama-bench.

Targets: decode 1.3 times llama.cpp's tokens/s (1.1 where llama.cpp itself reads at more than 75 % of the bandwidth),
prefill 1.2 times; weights read in decode at 88 % of the bandwidth, prefill products at 80 % of the peak of the int8 dot
product.
"""

import json
import os
import shlex
import subprocess
import sys

from common import CACHE, Bench, binary, driver, engine, main, model, quartiles, sh

ENGINE = "v0.5.0"
# The package with ik_llama.cpp.
IK = ("ik-llama-cpp-python", "0.1.5")
# Hidden, feed-forward and key/value sizes, layers and vocabulary of llama1b-L4.
HIDDEN, FFN, KV, LAYERS, VOCABULARY = 2048, 8192, 512, 4, 32000
WEIGHTS = LAYERS * (2 * HIDDEN * HIDDEN + 2 * HIDDEN * KV + 3 * HIDDEN * FFN)
HEAD = HIDDEN * VOCABULARY
BYTES = {"q4_0": 18 / 32, "q8_0": 34 / 32, "q4_K": 144 / 256, "q5_K": 176 / 256, "q6_K": 210 / 256, "iq4_nl": 18 / 32,
         "iq4_xs": 136 / 256, "mxfp4": 17 / 32}


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


def ik_package():
    """Where the bindings of ik_llama.cpp are, installed if missing; None, with a line that says so, if that fails."""
    name, version = IK
    where = os.path.join(CACHE, f"{name}-{version}-{sys.version_info.major}.{sys.version_info.minor}")
    if not os.path.isdir(where):
        part = f"{where}.{os.getpid()}"
        done = subprocess.run([sys.executable, "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--only-binary",
                               ":all:", "--root-user-action", "ignore", "--target", part, f"{name}=={version}"])
        if done.returncode:
            print(f"ik_llama.cpp is not compared: pip could not install {name} {version}, see above")
            return None
        os.replace(part, where)
    return where


def ik(package, prefix, path, prompt, decode, threads, repeat):
    """Like `ours`."""
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ik.py")
    command = [*prefix, sys.executable, program, path, *map(str, (threads, prompt, decode, repeat))]
    told = json.loads(sh(command, env={**os.environ, "PYTHONPATH": package}, stderr=subprocess.DEVNULL).splitlines()[-1])
    return tuple(median([t[phase] for t in told]) for phase in range(2))


def bench_of(command, prefix, path, prompt, decode, threads, repeat):
    """The same of a llama-bench."""
    told = json.loads(sh([*prefix, *command, "-m", path, "-p", str(prompt), "-n", str(decode), "-t", str(threads), "-r", str(repeat),
                          "-o", "json"]))
    return tuple(next(t["avg_ts"] for t in told if t[f"n_{phase}"]) for phase in ("prompt", "gen"))


def peaks(prefix, threads):
    """(GB/s read, int8 Gop/s)."""
    told = json.loads(sh([*prefix, binary("ggml-runner"), "peak", "-t", str(threads), "--json"]))
    row = told["clusters"][0]["peaks"][0]
    return row["read"], max(row[kind] or 0 for kind in ("int8_dot", "int8_matrix", "int8_widening"))


def median(values):
    return quartiles(values)[1]


def compare(bench, kind, threads, prompt):
    args = bench.args
    prefix, path = shlex.split(args.prefix), model(f"llama1b-L4-{kind}")
    other = shlex.split(args.other)
    rounds = []
    for _ in range(args.rounds):
        size = (prefix, path, prompt, args.decode, threads, args.repeat)
        rounds.append({"peaks": peaks(prefix, threads), "own": ours(*size), "llama.cpp": theirs(*size),
                       **({"ik_llama.cpp": ik(args.ik, *size)} if args.ik else {}),
                       **({other[0]: bench_of(other, *size)} if other else {})})
    name = f"{kind} {threads} thread{'s' * (threads > 1)}"
    bytes_of = (WEIGHTS + HEAD) * BYTES[kind] / 1e9
    read = {who: median([r[who][1] * bytes_of / r["peaks"][0] for r in rounds]) for who in rounds[0] if who != "peaks"}
    for phase, title in enumerate((f"prefill {prompt}", f"decode at {prompt}")):
        own = quartiles([r["own"][phase] for r in rounds])
        for who in [w for w in rounds[0] if w not in ("peaks", "own")]:
            theirs_ = median([r[who][phase] for r in rounds])
            ratio = median([r["own"][phase] / r[who][phase] for r in rounds])
            target = 1.2 if phase == 0 else 1.1 if read[who] > 0.75 else 1.3
            bench.judge(ratio >= target, f"{name} {title}: {own[1]:.1f} [{own[0]:.1f}, {own[2]:.1f}] tok/s, {who} {theirs_:.1f}, "
                                         f"ratio {ratio:.2f}, target >= {target}")
    rate = median([r["own"][0] * 2 * (WEIGHTS + HEAD / prompt) / 1e9 / r["peaks"][1] for r in rounds])
    bench.judge(rate >= 0.8, f"  products of prefill: {rate:.0%} of the int8 peak, target >= 80%")
    others = ", ".join(f"{who} {share:.0%}" for who, share in read.items() if who != "own")
    bench.judge(read["own"] >= 0.88, f"  weights of decode: {read['own']:.0%} of the read bandwidth, target >= 88% ({others})")


def run():
    bench = Bench("runner", __doc__)
    bench.parser.add_argument("--rounds", type=int, help="processes of each program (5; 2 with --quick)")
    bench.parser.add_argument("--repeat", type=int, default=5, help="repetitions in a process (5)")
    bench.parser.add_argument("--decode", type=int, default=32, help="tokens to decode (32)")
    bench.parser.add_argument("--threads", default="1,2", help="numbers of threads (1,2)")
    bench.parser.add_argument("--prompts", default="64,512", help="lengths of the prompt (64,512)")
    bench.parser.add_argument("--types", default="q4_0,q8_0,q4_K,q6_K,mxfp4",
                              help=f"types of the weights (q4_0,q8_0,q4_K,q6_K,mxfp4), of {', '.join(BYTES)}")
    bench.parser.add_argument("--other", default="", metavar="CMD", help="llama-bench of another build, to compare as well")
    bench.parser.add_argument("--prefix", default="", help="command to run all under, such as 'chrt -f 10' on a busy machine")
    args = bench.begin()
    args.rounds = args.rounds or (2 if args.quick else 5)
    args.ik = ik_package()
    for threads in map(int, args.threads.split(",")):
        for kind in args.types.split(","):
            for prompt in map(int, args.prompts.split(",")):
                compare(bench, kind, threads, prompt)
    return bench.end()


if __name__ == "__main__":
    main(run)
