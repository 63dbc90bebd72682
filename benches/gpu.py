"""What recording a device costs: CPU time and wall time per decoded token, without a recording and with `--gpu split`,
`op` and `kernel`, in turn. The devices are software (Mesa's lavapipe for Vulkan, Intel's OpenCL runtime for CPUs), so that
the device's own work is in the process's CPU time; on a real device the same cost is a larger share of the host's time
and a smaller one of the token's.

How right the layers' times are: a program of ours (tests/gpu) repeats one kernel n times. Its sum by the layer against a
truth gives alpha = 1 - |sum - truth| / truth. Truths:
- "own": the same times as the program itself takes them. OpenCL: its profiling events, in the same run. Vulkan: its
  timestamps around each dispatch, in a run without the layer, in turn with it
- "batch": the device's account of the whole batch in the same run. OpenCL: the sum of the profiling events; Vulkan: from a
  timestamp before the first dispatch to one after the last, so the time between kernels too, which the sum has not
- "wall": from before the first kernel is enqueued (Vulkan: before the submission) until the host knows that the last has
  ended, so also with the time between kernels
"span" compares the layer's time from the first kernel's start to the last one's end with the same by the device.

Whether `--gpu op` sees all there is: a row for each packaged engine with a device, on a dense model and a mixture of experts
(gpu_truth.py). A count that differs is an error (exit status 1), with or without --strict.
"""

import json
import os
import statistics
import subprocess
import sys

import gpu_truth
from common import (ROOT, Bench, BenchError, Scratch, binary, driver, engine, main, model, quartiles, records_of, sh,
                    target_dir)  # fmt: skip
from profinfer.wire import unzigzag, varints

ICD = "/usr/share/vulkan/icd.d"
# Targets of the op level and of the layers, on the larger model: CPU time per token against none.
OP, LAYER = 1.01, 1.05
SMALL, LARGE = "tiny-q4_0", "llama1b-L4-q4_0"


def vulkan(name="vulkan-v0.5.0"):
    icd = next((os.path.join(ICD, f) for f in sorted(os.listdir(ICD)) if f.startswith("lvp_icd")), None)
    if not icd:
        raise BenchError("no Vulkan device in software: apt-get install mesa-vulkan-drivers")
    return engine(name), {"VK_DRIVER_FILES": icd, "VK_ICD_FILENAMES": icd, "GGML_VK_VISIBLE_DEVICES": "0"}


def opencl():
    where = sh([os.path.join(ROOT, "tests", "gpu", "opencl.sh")]).split()[1]
    return where, {"LD_LIBRARY_PATH": f"{where}:{where}/runtime", "OCL_ICD_VENDORS": f"{where}/vendors",
                   "GGML_OPENCL_OPFILTER": "SOFT_MAX", "LD_PRELOAD": f"{where}/device_name.so"}


# Each with its program that repeats a kernel.
BEDS = {"OpenCL": (opencl, "load"), "Vulkan": (vulkan, "vk_load")}
KINDS = {"none": None, "split": ["--gpu", "split"], "op": ["--gpu", "op"], "kernel": ["--gpu", "kernel"]}


def run(where, env, name, tokens, flags, out):
    """CPU ms and wall ms per decoded token."""
    target = ["env", *(f"{k}={v}" for k, v in env.items()), driver(), "--engine", where, "--model", model(name), "-p", "4",
              "-n", str(tokens), "-t", "1", "--gpu-layers", "99", "--warmup", "4", "--json"]
    cmd = target if flags is None else [binary("profinfer"), "record", "-q", "--force", "-o", out, *flags, "--", *target]
    done = subprocess.run(cmd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise BenchError(f"{' '.join(cmd)} failed: {done.stderr.strip()[-300:]}")
    said = json.loads(done.stdout.strip().splitlines()[-1])["decode"]
    return said["cpu_ms"] / said["n"], said["wall_ms"] / said["n"]


def compare(bench, backend, bed, name, tokens, rounds, wanted):
    where, env = bed()
    figures = {kind: [] for kind in KINDS if kind in wanted}
    with Scratch() as scratch:
        run(where, env, name, 1, None, None)
        for i in range(rounds):
            kinds = list(figures)
            for kind in kinds[i % len(kinds):] + kinds[:i % len(kinds)]:
                figures[kind].append(run(where, env, name, tokens, KINDS[kind], scratch.file("run.pfi")))
    print(f"{backend}, {name}: {rounds} rounds of {tokens} tokens; medians, quartiles of the ratio in one round")
    print(f"{'':8}{'CPU ms/token':>14}{'wall ms/token':>15}{'CPU ratio':>12}{'wall ratio':>12}")
    for kind, all_of in figures.items():
        cpu, wall = (statistics.median(f[i] for f in all_of) for i in (0, 1))
        ratios = [[f[i] / none[i] for f, none in zip(all_of, figures["none"])] for i in (0, 1)]
        low, mid, high = quartiles(ratios[0])
        print(f"{kind:8}{cpu:14.3f}{wall:15.3f}{mid:12.4f}{statistics.median(ratios[1]):12.4f}  ({low:.4f} to {high:.4f})")
        if kind in ("op", "kernel") and name != SMALL:
            most = OP if kind == "op" else LAYER
            bench.judge(mid <= most, f"{backend}, {name}: {kind} takes {mid:.4f} of the CPU time, {most} wanted")


LENGTHS = [15, 80, 800, 4000, 12000]
REPEATS = [50, 1000]
# What is wanted: of single kernels against the program's own times, and of the time from the first to the last; of kernels
# that are at least this long (us), against all truths. The count must always be exact.
ALPHA = 0.99
LONG, LONG_ALPHA = 4000, 0.95
# Runs of a row: short kernels feel other work more.
ALPHA_ROUNDS, SHORT_ROUNDS = 3, 11


def kernels_of(trace):
    """(host's time, start, ns on the device) of each kernel in a trace."""
    found = []
    for record in records_of(trace).of("DeviceKernels"):
        host, values = record.t, varints(record.data)
        for i in range(0, len(values), 6):
            to_host, *to_start, end = map(unzigzag, values[i + 1:i + 6])
            host += to_host
            found.append((host, host + sum(to_start), end))
    return found


def programs(name):
    """The program that repeats a kernel."""
    fixtures, out = (os.path.join(target_dir(), "tests", d) for d in ("fixtures", "gpu"))
    sh([os.path.join(ROOT, "tests", "fixtures", "build.sh"), fixtures, "modern"])
    sh([os.path.join(ROOT, "tests", "gpu", "load.sh"), out, os.path.join(fixtures, "modern")])
    return os.path.join(out, name)


def recorded(level, trace, load, scenario, n, steps, env):
    """What the program says."""
    command = [binary("profinfer"), "record", "-q", "--force", "-o", trace, "--gpu", level, "--", load, scenario, str(n), steps]
    return json.loads(sh(command, env=env).strip().splitlines()[-1])


def repeated(load, env, n, steps):
    """What the program says of n kernels, and what the layer says: their sum and the time from the first's start to the last's
    end, ns; None if it did not see n."""
    with Scratch() as scratch:
        trace = scratch.file("run.pfi")
        said = recorded("kernel", trace, load, "repeat", n, steps, env)
        # What was enqueued before is to warm up.
        times = sorted(kernels_of(trace))[said["others"]:]
    if len(times) != n:
        return said, len(times), None
    return said, n, (sum(ns for *_, ns in times), times[-1][1] + times[-1][2] - times[0][1])


def stamped(load, env, n, steps):
    """What the program says that takes its own timestamps. Recorded too, without the layer: the recorder uses a processor that
    the device in software then lacks."""
    with Scratch() as scratch:
        return recorded("op", scratch.file("run.pfi"), load, "stamped", n, steps, env)


def near(ours, truth):
    return 1 - abs(ours - truth) / truth


def alpha(bench, backend, name, bed, lengths):
    env = {**os.environ, **bed()[1]}
    env.pop("LD_PRELOAD", None)
    load = programs(name)
    print(f"{backend}: alpha of the layer's times, one kernel n times, us a kernel; medians of runs")
    print(f"{'':2}{'kernel':>7}{'n':>6}{'seen':>6}{'layer':>10}" +
          "".join(f"{of:>10}{'alpha':>9}" for of in ("own", "batch", "wall", "span")), flush=True)
    for length in lengths:
        steps = sh([load, "steps", str(length)], env=env).strip()
        for n in REPEATS:
            row(bench, backend, load, env, length, n, steps)


def row(bench, backend, load, env, length, n, steps):
    rows, layers = [], []
    for _ in range(ALPHA_ROUNDS if length >= LONG else SHORT_ROUNDS):
        said, seen, layer = repeated(load, env, n, steps)
        if layer is None:
            return bench.require(False, f"{backend}: {seen} kernels of {n}")
        own = stamped(load, env, n, steps) if backend == "Vulkan" else said
        (total, span), wall = layer, said["end"] - said["begin"]
        layers.append(total)
        rows.append([(total, own["device_ns"]), (total, said["device_ns"]), (total, wall), (span, said["span_ns"])])
    truths = [statistics.median(r[i][1] for r in rows) for i in range(4)]
    ours = statistics.median(layers)
    # Of the ratio: two runs may differ either way.
    alphas = [near(statistics.median(r[i][0] / r[i][1] for r in rows), 1) for i in range(4)]
    print(f"{'':2}{length:7}{n:6}{n:6}{ours / n / 1e3:10.2f}" +
          "".join(f"{t / n / 1e3:10.2f}{a:9.2%}" for t, a in zip(truths, alphas)), flush=True)
    what = f"{backend}, {length} us, {n} times"
    bench.judge(min(alphas[0], alphas[3]) >= ALPHA, f"{what}: {alphas[0]:.2%} of the program's own times, {alphas[3]:.2%} from "
                f"the first to the last, {ALPHA:.0%} wanted")
    if length >= LONG:
        bench.judge(min(alphas) >= LONG_ALPHA, f"{what}: {min(alphas):.2%}, {LONG_ALPHA:.0%} wanted")


def bench():
    b = Bench("gpu", __doc__)
    b.parser.add_argument("--alpha", action="store_true", help="only how right the layers' times are")
    b.parser.add_argument("--cost", action="store_true", help="only what a recording costs")
    b.parser.add_argument("--truth", action="store_true", help="only whether nodes and kernels are counted and calls timed right")
    b.parser.add_argument("--backend", choices=list(BEDS), help="only this backend")
    b.parser.add_argument("--model", choices=[SMALL, LARGE], help="only the cost on this model")
    b.parser.add_argument("--kinds", default=",".join(KINDS), help="recordings to compare with none [default: all]")
    b.parser.add_argument("--rounds", type=int, help="rounds of the cost's comparison")
    args = b.begin()
    wanted = {"none", *args.kinds.split(",")}
    if not wanted <= set(KINDS):
        raise BenchError(f"--kinds: {', '.join(sorted(wanted - set(KINDS)))} is none of {', '.join(KINDS)}")
    rounds = args.rounds or (5 if args.quick else 15)
    lengths = LENGTHS[:3] if args.quick else LENGTHS
    if args.truth:
        with Scratch() as scratch:
            gpu_truth.truth(b, scratch, vulkan, opencl, 8 if args.quick else 24, args.backend)
        return b.end()
    beds = {name: bed for name, bed in BEDS.items() if args.backend in (None, name)}
    for backend, (bed, program) in beds.items():
        if not args.cost:
            alpha(b, backend, program, bed, lengths)
    for backend, (bed, _) in beds.items():
        if args.alpha:
            break
        if args.model != LARGE:
            compare(b, backend, bed, SMALL, 64, rounds, wanted)
        if args.model != SMALL:
            compare(b, backend, bed, LARGE, 8 if args.quick else 16, rounds, wanted)
    return b.end()


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    main(bench)
