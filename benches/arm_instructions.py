"""The AArch64 instructions that ggml-runner needs for a token, on any machine: QEMU translates the program block by block
and logs each block that runs, so the figures do not depend on this machine and repeat.

Runs of different length are subtracted, so that loading the model and printing do not count: a prompt of --prompt tokens
from one of twice as many, and one decoded token from --decode more. "products" are the quantised matrix products alone, and
"per 64" their instructions for 64 multiply-accumulates with all scaling. An instruction set runs on a processor that has
nothing newer. An instruction is not a unit of time; these are figures to compare builds with.
"""

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter

from common import ROOT, BenchError, sh

PROGRAM = os.path.join(ROOT, "target/dist/aarch64-unknown-linux-musl/aarch64-unknown-linux-musl/small/ggml-runner")
# Instruction set and a processor that QEMU emulates.
PROCESSORS = {"neon": "cortex-a53", "dot": "cortex-a76", "i8mm": "max"}
PRODUCTS = ("3arm4tile", "3arm4wide")
# Multiply-accumulates of a token of the generated model, prefill (without the last layer's output) and decode.
MACS = {"prefill": 4_718_592, "decode": 5_767_168}
PACKING = "5panel9pack_type"


def without_packing(program):
    """The program's addresses but for the functions that repack weights at load, which are most of a short run."""
    symbols = [line.split() for line in sh(["nm", "-nS", "--defined-only", program]).splitlines()]
    code = [(int(s[0], 16), int(s[1], 16), s[3]) for s in symbols if len(s) == 4 and s[2] in "tT"]
    start, ranges = code[0][0], []
    for at, size, name in code:
        if PACKING in name:
            ranges.append((start, at - 1))
            start = at + size
    ranges.append((start, code[-1][0] + code[-1][1]))
    return ",".join(f"{a:#x}..{b:#x}" for a, b in ranges if a <= b)


def executed(log):
    """Instructions by function, from QEMU's log: translated blocks, then a line for each block that runs."""
    blocks, function, at, size, counts = {}, "", None, 0, Counter()
    for line in log:
        if line.startswith("Trace"):
            if at is not None:
                blocks[at], at = (function, size), None
            pc = int(line.split("[", 1)[1].split("/", 2)[1], 16)
            counts[pc] += 1
        elif line.startswith("0x"):
            if at is None:
                at, size = int(line[: line.index(":")], 16), 0
            size += 1
        elif line.startswith("IN:"):
            if at is not None:
                blocks[at], at = (function, size), None
            function = line[3:].strip()
    if at is not None:
        blocks[at] = (function, size)
    found = Counter()
    for pc, times in counts.items():
        name, size = blocks[pc]
        found[name] += size * times
    return found


def run(args, model, isa, prompt, decode):
    """Instructions of a run by function, and its tokens."""
    with tempfile.TemporaryDirectory(prefix="profinfer-bench-") as scratch:
        pipe, out = os.path.join(scratch, "log"), []
        os.mkfifo(pipe)
        command = [args.qemu, "-cpu", PROCESSORS[isa], "-d", "in_asm,exec,nochain", "-dfilter", args.ranges, "-D", pipe, args.program, "run", "-m",
                   model, "-p", str(prompt), "-n", str(decode), "-t", "1", "--isa", isa, "--no-warmup", "--no-roofline",
                   "--json", *args.options]  # fmt: skip
        reader = threading.Thread(target=lambda: out.append(executed(open(pipe, errors="replace"))))
        reader.start()
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            # The reader ends when the last writer does; without one it would wait forever.
            os.close(os.open(pipe, os.O_RDWR | os.O_NONBLOCK))
            raise BenchError(f"{' '.join(command)}: {done.stderr.strip()}")
        reader.join()
        return out[0], json.loads(done.stdout)["tokens"]


def per_token(short, long, tokens):
    return {name: (long[name] - short[name]) / tokens for name in long.keys() | short.keys()}


def measure(args, kind, isa):
    """(prefill, decode) instructions per token by function, and the tokens generated."""
    with tempfile.TemporaryDirectory(prefix="profinfer-bench-") as scratch:
        model = os.path.join(scratch, "model.gguf")
        sh([args.qemu, args.program, "synth", "tiny", model, "--type", kind, "--force"], stderr=subprocess.DEVNULL)
        n, prompt = args.decode, args.prompt
        base, (more, tokens) = run(args, model, isa, prompt, 1)[0], run(args, model, isa, prompt, 1 + n)
        return per_token(base, run(args, model, isa, 2 * prompt, 1)[0], prompt), per_token(base, more, n), tokens


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=PROGRAM, help="static ggml-runner with symbols (of cross/dist.sh)")
    parser.add_argument("--types", default="q4_0,q8_0,q4_k,q6_k", help="types of the weights (q4_0,q8_0,q4_k,q6_k)")
    parser.add_argument("--isas", default=",".join(PROCESSORS), help="instruction sets (neon,dot,i8mm)")
    parser.add_argument("--prompt", type=int, default=16, help="tokens of the prompt (16)")
    parser.add_argument("--decode", type=int, default=4, help="tokens to decode (4)")
    parser.add_argument("--functions", type=int, default=0, metavar="N", help="also list the N largest functions")
    parser.add_argument("--json", action="store_true", help="print one object, to compare builds")
    parser.add_argument("options", nargs="*", metavar="-- OPTION", help="for ggml-runner run, such as -- --ablate f16")
    args = parser.parse_args()
    args.qemu = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
    if not args.qemu:
        sys.exit("arm-instructions: no qemu-aarch64: install qemu-user-static")
    if not os.path.exists(args.program):
        sys.exit(f"arm-instructions: {args.program} does not exist: build it with cross/dist.sh aarch64-unknown-linux-musl")
    args.ranges = without_packing(args.program)
    rows = []
    if not args.json:
        print(f"$ {shlex.join(['benches/arm-instructions.sh', *sys.argv[1:]])}")
        print(f"thousands of instructions per token, tiny model, one thread, {sh([args.qemu, '--version']).splitlines()[0]}")
        print(f"{'type':6}{'isa':6}{'prefill':>12}{'products':>10}{'per 64':>8}{'decode':>12}{'products':>10}{'per 64':>8}")
    for kind in args.types.split(","):
        for isa in args.isas.split(","):
            prefill, decode, tokens = measure(args, kind, isa)
            row = {"type": kind, "isa": isa, "tokens": tokens}
            for phase, found in (("prefill", prefill), ("decode", decode)):
                row[phase] = sum(found.values())
                row[f"{phase}_products"] = sum(n for name, n in found.items() if any(of in name for of in PRODUCTS))
            rows.append(row)
            if args.json:
                continue
            text = f"{kind:6}{isa:6}"
            for phase, macs in MACS.items():
                products = row[f"{phase}_products"]
                text += f"{row[phase] / 1e3:12.1f}{products / 1e3:10.1f}{products * 64 / macs:8.2f}"
            print(text, flush=True)
            for phase, found in (("prefill", prefill), ("decode", decode)):
                for name, n in sorted(found.items(), key=lambda item: -item[1])[: args.functions]:
                    print(f"    {phase:8}{n / 1e3:10.1f}  {name}")
    if args.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    try:
        main()
    except BenchError as error:
        sys.exit(f"arm-instructions: {error}")
