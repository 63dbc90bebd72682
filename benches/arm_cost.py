"""The cost of tracing an op on arm64 kernels, in guest instructions. Each kernel is booted in QEMU with a clock that
counts instructions, so the figures do not depend on this machine and repeat within 0.1 %.

"hit": a probe hit with an empty program; our op program, and its ratio to the empty one; the cost added by our
barrier hit. "op": the op's hits together (with its barrier's), the published method's (entry and return probe, full
structure each time), and the ratio of the two. Each is measured on an instruction that the kernel emulates and on one
that it single-steps; the published method probes the first instruction. Then the hits per token of ggml-runner on two
threads, and the bytes.
"""

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "kernels"))
import bed  # noqa: E402
import boot  # noqa: E402

# Bytes of an op's event in the ring buffer: 56 plus the buffer's own header of 8.
RING_BYTES = 64
SCRIPT = """set -eu
profinfer doctor --compare --json >doctor.json
ggml-runner synth tiny /tmp/m.gguf --type q4_0 >/dev/null
profinfer record -o run.pfi -- ggml-runner run -m /tmp/m.gguf -p 8 -n 64 -t 2 --no-warmup --no-roofline >/dev/null
profinfer report --json run.pfi >report.json
"""


def measure(kernel):
    out = bed.ROOT / "target" / "bench" / f"arm-cost-{kernel}"
    files = {f"/job/{name}": boot.program_for_arm64(bed.BINARIES / name) for name in ("profinfer", "ggml-runner")}
    run = boot.run(boot.Guest(kernel, SCRIPT, out, files=files, mode="det", cpus=2, limit=600))
    if run.code != 0:
        sys.exit(f"arm-cost: {kernel}: {run.died or f'exit code {run.code}'}\n{run.tail()}")
    return bed.Outcome(run, kernel)


def costs(kernel, outcome):
    ns = {(way["way"], way["instruction"]): way["ns"] for way in outcome.json("doctor.json")["hit"]["ways"]}
    published = ns["published", "first"]
    for instruction in ("emulated", "single-stepped"):
        empty, op, both, looked, new = (
            ns[way, instruction] for way in ("empty", "op", "op-and-barrier", "op-looked-at", "op-new")
        )
        print(
            f"{kernel:8}{instruction:16}{empty:8.0f}{op:8.0f}{op / empty:7.2f}{both - op:9.0f}{both:8.0f}"
            f"{published:11.0f}{op / published:7.2f}{both / published:9.2f}{looked:9.0f}{new:8.0f}"
        )


def hits(kernel, outcome):
    quality = outcome.json("report.json")["quality"]
    seen = {kind["kind"]: kind["seen"] for kind in quality["events"]}
    tokens = seen["token-enter"]
    size = outcome.path("run.pfi").stat().st_size
    print(
        f"{kernel:8}a token hits each of two threads {seen['op'] / tokens / 2:.1f} times by ops, and the first one "
        f"{quality['busiest_thread_hits'] / tokens:.1f} times in all, by barriers and calls too; an op hit is {RING_BYTES} "
        f"bytes in the ring, {size / seen['op']:.1f} in the trace (all of it)"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernels", nargs="*", default=bed.DEBIAN.split())
    args = parser.parse_args()
    with ThreadPoolExecutor(2) as pool:
        outcomes = dict(zip(args.kernels, pool.map(measure, args.kernels)))
    print(f"{'kernel':8}{'instruction':16}{'empty':>8}{'op':>8}{'ratio':>7}{'barrier':>9}{'both':>8}{'published':>11}"
          f"{'ratio':>7}{'(both)':>9}{'looked':>9}{'new':>8}")  # fmt: skip
    for kernel, outcome in outcomes.items():
        costs(kernel, outcome)
    print("\nggml-runner, tiny model, 64 tokens on 2 threads")
    for kernel, outcome in outcomes.items():
        hits(kernel, outcome)


if __name__ == "__main__":
    main()
