"""How fast `profinfer export --perfetto` writes, and how much memory it uses: the complete command on a synthetic
trace of 10 million op slices.

Runs the Rust bench `export` (benches/export.rs), which generates the trace and times the command; target: at most 20
s, 256 MB of memory and 32 bytes per slice, with ops that end by interval and by barrier.
"""

import re

from common import ROOT, Bench, BenchError, main, sh


def run():
    bench = Bench("export", __doc__)
    bench.parser.add_argument("--slices", type=int, help="slices of the trace (10 million; 1 million with --quick)")
    args = bench.begin()
    slices = args.slices or (1_000_000 if args.quick else 10_000_000)
    out = sh(["cargo", "bench", "--quiet", "--bench", "export", "--", str(slices)], cwd=ROOT)
    print(out.strip())
    found = re.findall(r"export, (\w+) mode: .* median ([\d.]+) s, (\d+) MB at most, ([\d.]+) bytes a slice", out)
    if len(found) != 2:
        raise BenchError("the Rust bench printed no figures")
    for mode, seconds, memory, size in found:
        bench.judge(float(seconds) <= 20 * slices / 10_000_000, f"{mode} mode: {seconds} s, target <= 20 for 10 million")
        bench.judge(int(memory) <= 256, f"{mode} mode: {memory} MB of memory, target <= 256")
        bench.judge(float(size) <= 32, f"{mode} mode: {size} bytes a slice, target <= 32")
    return bench.end()


if __name__ == "__main__":
    main(run)
