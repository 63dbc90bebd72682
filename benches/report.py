"""How fast `profinfer report` reads: the complete command, start to end, on a synthetic trace of 10 million op
slices.

Runs the Rust bench `report` (benches/report.rs), which generates the trace and times the command; target: at least 10
million slices per second, with ops that end by interval and by barrier.
"""

import re

from common import ROOT, Bench, BenchError, main, sh


def run():
    bench = Bench("report", __doc__)
    bench.parser.add_argument("--slices", type=int, help="slices of the trace (10 million; 1 million with --quick)")
    args = bench.begin()
    slices = args.slices or (1_000_000 if args.quick else 10_000_000)
    out = sh(["cargo", "bench", "--quiet", "--bench", "report", "--", str(slices)], cwd=ROOT)
    print(out.strip())
    found = re.findall(r"report, (\w+) mode: .* ([\d.]+) M slices/s", out)
    if len(found) != 2:
        raise BenchError("the Rust bench printed no figures")
    for mode, rate in found:
        bench.judge(float(rate) >= 10, f"{mode} mode: {rate} million slices/s, target >= 10")
    return bench.end()


if __name__ == "__main__":
    main(run)
