"""Bytes of a trace per op slice, and the recorder's own resource use: memory and CPU.

Size: a complete trace, including structure, of 200 decoded tokens of the 1B-shaped model at 2 threads, divided by its
op slices; target: at most 6. Recorder: resident memory in addition to its mappings of the kernel's event buffer,
target at most 12 MB; CPU time while it records one thread's decode, as a share of one core at 130 tokens/s, target at
most 2 %.
"""

import os
import time

from common import (Bench, BenchError, Driver, Records, Recorder, Scratch, engine, main, model, record_command, records_of,
                    report)  # fmt: skip

MODEL = "llama1b-L4-q4_0"
RATE = 130


# Record kinds (docs/FORMAT.md) by purpose.
GROUPS = {14: "slices", **dict.fromkeys((10, 11, 12, 13), "tokens, graphs, splits"),
          **dict.fromkeys((5, 6, 7, 8, 9), "structure")}


class Sizes(Records):
    """Bytes of the records by purpose."""

    def __init__(self, scan):
        self.found = {}
        super().__init__(scan)

    def _record(self, body, *_):
        # All kinds are below 128: a byte.
        group, size = GROUPS.get(body[0], "the rest"), len(body)
        self.found[group] = self.found.get(group, 0) + size + (1 if size < 128 else 2)


def parts(path):
    """Number of blocks, and bytes of the records by purpose."""
    sizes = records_of(path, Sizes)
    return sizes.blocks, sizes.found


def bytes_per_slice(bench, tmp, name, tokens):
    out = tmp.file("size.pfi")
    told = record_command(out, [], ["--engine", engine(name), "--model", model(MODEL), "-p", "32", "-n", str(tokens),
                                    "-t", "2"])
    size, quality = os.path.getsize(out), report(out)["quality"]
    slices, graphs = quality["hits"]["slices"], quality["hits"]["graphs"]
    each = size / max(slices, 1)
    blocks, found = parts(out)
    print(f"{name}: {slices} slices of {graphs} graphs (expected {tokens + 1}), 2 threads, "
          f"{told['decode']['tok_s']:.1f} tokens/s, {quality['verdict']}; {size} bytes in {blocks} blocks; bytes a slice: "
          + ", ".join(f"{group} {n / max(slices, 1):.3f}" for group, n in sorted(found.items())))
    if told["decode"]["tok_s"] < RATE / 4:
        print("      the two threads waited for each other most of the time (a busy machine): long waits take more bytes, "
              "and blocks closed by time repeat the structure")
    bench.judge(each <= 6.0 and graphs == tokens + 1, f"{name}: {each:.3f} bytes a slice, target <= 6.0")


def resident(pid):
    """Resident bytes: all, and those of the kernel's event buffer (the rest is the recorder's own)."""
    total = buffer = 0
    inside = False
    with open(f"/proc/{pid}/smaps") as f:
        for line in f:
            words = line.split()
            if not words[0].endswith(":"):
                inside = "bpf-map" in line or "[perf_event]" in line
            elif words[0] == "Rss:":
                total += int(words[1]) * 1024
                buffer += int(words[1]) * 1024 * inside
    return total, buffer


def high_water(pid):
    with open(f"/proc/{pid}/status") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith("VmHWM"))


def cpu_ns(pid):
    """CPU time of all its threads, ns, by the scheduler's accounting."""
    total = 0
    for tid in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{tid}/schedstat") as f:
            total += int(f.read().split()[0])
    return total


def recorder(bench, tmp, name, tokens):
    drv = Driver(engine(name), model(MODEL), 1, tmp.file("tokens"))
    try:
        rec = Recorder(drv.pid, tmp.file("recorder.pfi"))
        drv.tell("prefill 32")
        drv.run(20)
        cpu, start, peak = cpu_ns(rec.pid), time.monotonic(), 0
        for _ in range(0, tokens, 50):
            drv.run(50)
            total, buffer = resident(rec.pid)
            peak = max(peak, total - buffer)
        cpu, wall = cpu_ns(rec.pid) - cpu, time.monotonic() - start
        # A peak during attach counts as well: no more of the buffer was resident then than now.
        peak = max(peak, high_water(rec.pid) - buffer)
        rec.stop()
    finally:
        drv.close()
    n = -(-tokens // 50) * 50
    footer = report(rec.out)["quality"]
    share, rate = cpu / 1e9 / wall, n / wall
    at_rate = share * max(RATE / rate, 1)
    print(f"{name}: recorder while 1 thread decodes {rate:.1f} tokens/s: {share:.3%} of one core, {cpu / n / 1e3:.1f} us a "
          f"token; all of the recording, attach included: {footer['agent_cpu_ms']['value']:.0f} ms CPU; resident "
          f"{total / 1e6:.1f} MB, {buffer / 1e6:.1f} of it the event buffer (mapped twice)")
    bench.judge(peak <= 12e6, f"{name}: recorder's peak memory without buffer {peak / 1e6:.2f} MB, target <= 12")
    how = "measured" if rate >= RATE else f"scaled up from {rate:.1f} tokens/s, idle wake-ups and all"
    bench.judge(at_rate <= 0.02, f"{name}: recorder at {RATE} tokens/s {at_rate:.3%} of one core ({how}), target <= 2 %")


def run():
    bench = Bench("size", __doc__)
    bench.parser.add_argument("--engine", action="append", help="engines (v0.5.0 and b11549)")
    bench.parser.add_argument("--tokens", type=int, default=200, help="decoded tokens (200)")
    args = bench.begin()
    if args.tokens < 1:
        raise BenchError("--tokens must be at least 1")
    with Scratch() as tmp:
        for name in args.engine or ["v0.5.0", "b11549"]:
            bytes_per_slice(bench, tmp, name, args.tokens)
            recorder(bench, tmp, name, args.tokens if args.quick else 3 * args.tokens)
    return bench.end()


if __name__ == "__main__":
    main(run)
