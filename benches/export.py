"""How fast `profinfer export` writes, and how much memory it uses: the complete command on a synthetic trace of 10
million op slices, as a timeline, as a table and as a data set.

Runs the Rust bench `export` (benches/export.rs), which generates the trace and times the command. Targets, with ops that
end by interval and by barrier: --perfetto at most 20 s, 256 MB of memory and 32 bytes per slice; --parquet at most 10 s of
one core, 6 bytes per slice, and 64 MB more memory than --csv.
"""

import re

from common import ROOT, Bench, BenchError, main, sh

FIGURES = (r"export --(\w+), (\w+) mode: .* median ([\d.]+) s, ([\d.]+) s of a core, (\d+) MB at most, "
           r"([\d.]+) bytes a slice")


def run():
    bench = Bench("export", __doc__)
    bench.parser.add_argument("--slices", type=int, help="slices of the trace (10 million; 1 million with --quick)")
    args = bench.begin()
    slices = args.slices or (1_000_000 if args.quick else 10_000_000)
    out = sh(["cargo", "bench", "--quiet", "--bench", "export", "--", str(slices)], cwd=ROOT)
    print(out.strip())
    found = {(kind, mode): [float(n) for n in rest] for kind, mode, *rest in re.findall(FIGURES, out)}
    if len(found) != 6:
        raise BenchError("the Rust bench printed no figures")
    part = slices / 10_000_000
    for mode in ["interval", "barrier"]:
        seconds, _, memory, size = found["perfetto", mode]
        what = f"--perfetto, {mode} mode"
        bench.judge(seconds <= 20 * part, f"{what}: {seconds} s, target <= 20 for 10 million")
        bench.judge(memory <= 256, f"{what}: {memory:.0f} MB of memory, target <= 256")
        bench.judge(size <= 32, f"{what}: {size} bytes a slice, target <= 32")
        _, core, memory, size = found["parquet", mode]
        what = f"--parquet, {mode} mode"
        more = memory - found["csv", mode][2]
        bench.judge(core <= 10 * part, f"{what}: {core} s of a core, target <= 10 for 10 million")
        bench.judge(more <= 64, f"{what}: {more:.0f} MB more memory than --csv, target <= 64")
        bench.judge(size <= 6, f"{what}: {size} bytes a slice, target <= 6")
    return bench.end()


if __name__ == "__main__":
    main(run)
