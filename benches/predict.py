"""How far off are the predictions of `predict`?

For each case, a small model is recorded, another one predicted from the recording (and the recorded one itself), and the
other one measured unrecorded, on a real llama.cpp and on ggml-runner: a model of three times the layers and another
vocabulary, other quantisations, a mixture of experts; with one and two threads. Each process decodes after a prompt of 64
tokens; measured is the median over several processes, which take turns with those of all other models, so that all see the
same machine. Of each eight tokens in a row the slower half is left out, as `predict` does with recorded calls: other work
disturbed them. (ggml-runner prints means; of its repetitions the fastest is taken.) Processes run in a scheduling group of
top weight, because two threads that wait for each other suffer most from other work. The recording is made before and
after, and the errors of both are shown.

With --seconds the whole bench ends in about that time: each combination of program and threads gets an equal share of what
is left, and takes as many rounds as fit, at least two. Progress goes to standard error.

Targets: decode within 10 % of the measured speed, and the measured speed in the predicted range. The time of the prompt is
shown and not judged.
"""

import json
import os
import statistics
import subprocess
import sys
import time

from common import HOLD_SECONDS, Bench, BenchError, Scratch, binary, driver, engine, main, model

ENGINE = "v0.5.0"
PROMPT = 64
# recorded, predicted
CASES = [
    ("llama1b-L4-q4_0", "llama1b-L4-q4_0"),
    ("llama1b-L4-q4_0", "llama1b-L12-q4_0"),
    ("llama1b-L4-q4_0", "llama1b-L4-q8_0"),
    ("llama1b-L4-q8_0", "llama1b-L4-q4_0"),
    ("moe-q4_0", "moe-q4_0"),
    ("moe-q4_0", "moe-q8_0"),
    ("moe-q8_0", "moe-q4_0"),
    ("llama1b-L4-q4_0", "moe-q4_0"),
]


def favoured():
    """In a session, and so a scheduling group, of its own, of top weight where the kernel has such groups."""
    os.setsid()
    try:
        with open("/proc/self/autogroup", "w") as f:
            f.write("-20")
    except OSError:
        pass


def output(cmd):
    done = subprocess.run(cmd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=favoured)
    if done.returncode:
        raise BenchError(f"{' '.join(cmd)} failed with status {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def undisturbed(times):
    """Median of the faster half of each eight in a row."""
    kept = []
    for i in range(0, len(times), 8):
        part = sorted(times[i:i + 8])
        kept += part[:(len(part) + 1) // 2]
    return statistics.median(kept)


class Llama:
    """llama.cpp, by the driver."""
    name = f"llama.cpp {ENGINE}"

    def __init__(self, tmp):
        self.per_token = tmp.file("tokens")

    def command(self, path, tokens, threads):
        return [driver(), "--engine", engine(ENGINE), "--model", path, "-p", str(PROMPT), "-n", str(tokens), "-t",
                str(threads), "--json"]

    def record(self, path, tokens, threads):
        return self.command(path, tokens, threads) + ["--hold", HOLD_SECONDS]

    def measure(self, path, tokens, threads):
        """Milliseconds of each token, and of the prompt."""
        open(self.per_token, "w").close()
        told = output(self.command(path, tokens, threads) + ["--warmup", "2", "--per-token", self.per_token])
        told = json.loads(told.strip().splitlines()[-1])
        with open(self.per_token) as f:
            rows = [int(line.split()[1]) / 1e6 for line in f]
        return rows[-tokens:], told["prefill"]["wall_ms"]


class Runner:
    """ggml-runner."""
    name = "ggml-runner"

    def __init__(self, _):
        pass

    def record(self, path, tokens, threads):
        return [binary("ggml-runner"), "run", "-m", path, "-p", str(PROMPT), "-n", str(tokens), "-t", str(threads),
                "--no-roofline", "--json"]

    def measure(self, path, tokens, threads):
        runs = []
        for _ in range(3):
            told = json.loads(output(self.record(path, tokens, threads)).strip().splitlines()[-1])
            runs.append((1e3 / told["decode"]["tok_s"], PROMPT * 1e3 / told["prefill"]["tok_s"]))
        best = min(runs)
        return [best[0]], best[1]


class Progress:
    """Lines on standard error, and the time that is left."""

    def __init__(self, seconds):
        self.begin = time.monotonic()
        self.limit = seconds

    def elapsed(self):
        return time.monotonic() - self.begin

    def share(self, parts):
        """End of the time for the next of the remaining parts; None: no limit."""
        now = self.elapsed()
        return self.limit and now + max(self.limit - now, 0) / parts

    def say(self, text):
        print(f"[{self.elapsed():5.0f} s] {text}", file=sys.stderr, flush=True)


def record(tmp, program, name, tokens, threads, turn):
    out = tmp.file(f"{type(program).__name__}-{name}-{threads}-{turn}.pfi")
    output([binary("profinfer"), "record", "-q", "--force", "-o", out, "--", *program.record(model(name), tokens, threads)])
    return out


def predicted(trace, name, tokens):
    """(tokens/s, least, most, seconds of the prompt, confidence)."""
    cmd = [binary("profinfer"), "predict", model(name), "--from", trace, "--prompt", str(PROMPT), "--context",
           str(PROMPT + tokens // 2), "--json"]
    found = json.loads(output(cmd))
    speed, prompt = found["decode"][-1], found["first_token"]["seconds"]
    rate = speed["tokens_per_s"]
    return rate["value"], rate["least"], rate["most"], prompt and prompt["value"], speed["confidence"]


def all_rounds(program, wanted, threads, args, progress, until):
    """Of each model, ms per token and ms of the prompt, of each round."""
    tokens, prompts = {b: [] for b in wanted}, {b: [] for b in wanted}
    last = 0
    for turn in range(args.rounds):
        begin = progress.elapsed()
        # The recordings that follow take about a round's time.
        if until and turn >= 2 and begin + 2 * last > until:
            progress.say(f"{program.name}, {threads} threads: no time for more than {turn} of {args.rounds} rounds")
            break
        for name in wanted:
            rows, prompt = program.measure(model(name), args.tokens, threads)
            tokens[name].append(undisturbed(rows))
            prompts[name].append(prompt)
        last = progress.elapsed() - begin
        progress.say(f"{program.name}, {threads} threads: round {turn + 1} of {args.rounds}, {last:.0f} s")
    return tokens, prompts


def one_setting(bench, tmp, program, threads, progress, until):
    args = bench.args
    cases = [c for c in CASES if args.only in " ".join(c)]
    recorded = sorted({a for a, _ in cases})
    wanted = sorted({b for _, b in cases})
    progress.say(f"{program.name}, {threads} threads: {len(recorded)} recordings, {len(wanted)} models")
    traces = {a: [record(tmp, program, a, args.tokens, threads, 0)] for a in recorded}
    tokens, prompts = all_rounds(program, wanted, threads, args, progress, until)
    for a in recorded:
        traces[a].append(record(tmp, program, a, args.tokens, threads, 1))
    rounds = min(map(len, tokens.values()))
    print(f"\n{program.name}, {threads} thread{'s' * (threads > 1)}, {rounds} rounds; load {os.getloadavg()[0]:.1f}", flush=True)
    for a, b in cases:
        measured = 1e3 / statistics.median(tokens[b])
        low, high = 1e3 / max(tokens[b]), 1e3 / min(tokens[b])
        found = [predicted(t, b, args.tokens) for t in traces[a]]
        errors = [f[0] / measured - 1 for f in found]
        value, least, most, prompt, sure = found[0]
        inside = all(f[1] <= measured <= f[2] for f in found)
        ms = statistics.median(prompts[b])
        first = f"prompt {prompt * 1e3:.0f} ms for {ms:.0f}" if prompt else "no prompt"
        both = " and ".join(f"{e:+.1%}" for e in errors)
        bench.judge(all(abs(e) <= 0.10 for e in errors),
                    f"{a} -> {b}: {value:.1f} [{least:.1f}, {most:.1f}] tok/s ({sure}), measured {measured:.1f} "
                    f"[{low:.1f}, {high:.1f}], off by {both}, {'in' if inside else 'OUT OF'} range; {first}")
        yield a, b, errors, inside


def run():
    bench = Bench("predict", __doc__)
    p = bench.parser
    p.add_argument("--rounds", type=int, help="processes of each model (7; 3 with --quick)")
    p.add_argument("--tokens", type=int, default=96, help="tokens to decode (96)")
    p.add_argument("--threads", default="1,2", help="numbers of threads (1,2)")
    p.add_argument("--programs", default="llama,runner", help="what runs the models (llama,runner)")
    p.add_argument("--seconds", type=float, default=900, help="end in about this time, with fewer rounds; 0: all rounds (900)")
    p.add_argument("--only", default="", help="only cases that contain this text")
    args = bench.begin()
    args.rounds = args.rounds or (3 if args.quick else 7)
    results = []
    progress = Progress(args.seconds)
    settings = [(name, int(threads)) for name in args.programs.split(",") for threads in args.threads.split(",")]
    with Scratch() as tmp:
        for i, (name, threads) in enumerate(settings):
            program = {"llama": Llama, "runner": Runner}[name](tmp)
            until = progress.share(len(settings) - i)
            results += one_setting(bench, tmp, program, threads, progress, until)
    errors = [e for _, _, both, _ in results for e in both]
    inside = sum(r[3] for r in results)
    print(f"\n{len(results)} cases: median error {statistics.median(map(abs, errors)):.1%}, worst "
          f"{max(map(abs, errors)):.1%}; measured speed in the predicted range of {inside}")
    return bench.end()


if __name__ == "__main__":
    main(run)
