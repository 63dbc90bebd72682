"""What a context switch costs in the programs of record --sched, and whether a very high switch rate loses any.

Two loads, in turn: unrelated processes that send each other a byte through pipes, on the CPU where a recorded engine
is stopped; and the recorded engine itself, with both its threads on one CPU. The cost is the kernel's own accounting
of the programs on the tracepoints (kernel.bpf_stats_enabled): time and runs, one for each switch and two for each
wake-up.
"""

import os
import signal
import subprocess
import sys
import time

from common import Bench, BenchError, Recorder, Scratch, binary, main, model, report, spread

STATS = "/proc/sys/kernel/bpf_stats_enabled"
TRACEPOINT = "5"  # BPF_PROG_TYPE_TRACEPOINT, include/uapi/linux/bpf.h
CHILD = """
import os, sys
n = int(sys.argv[1])
os.sched_setaffinity(0, {int(sys.argv[2])})
a, b = os.pipe(), os.pipe()
if os.fork() == 0:
    for _ in range(n):
        os.read(a[0], 1)
        os.write(b[1], b"x")
    os._exit(0)
for _ in range(n):
    os.write(a[1], b"x")
    os.read(b[0], 1)
"""


def programs(pid):
    """(ns, runs) so far of each of a recorder's tracepoint programs, once they are attached."""
    found = {}
    # The recorder attaches its process-tracking links before it has located the kernel's functions.
    for _ in range(200):
        found = found or programs_now(pid)
        time.sleep(0 if found else 0.05)
    if not found:
        raise BenchError("the recorder has no programs on tracepoints: does profinfer doctor find the scheduler's?")
    return programs_now(pid)


def programs_now(pid):
    found = {}
    for fd in os.listdir(f"/proc/{pid}/fdinfo"):
        try:
            info = dict(line.split(":", 1) for line in open(f"/proc/{pid}/fdinfo/{fd}") if ":" in line)
        except OSError:
            continue
        if info.get("prog_type", "").strip() == TRACEPOINT:
            found[info["prog_id"].strip()] = (int(info["run_time_ns"]), int(info["run_cnt"]))
    return found


def switches():
    return next(int(line.split()[1]) for line in open("/proc/stat") if line.startswith("ctxt"))


def measured(recorder, what):
    """ns per run of all programs, and the machine's context switches per second, while `what` runs."""
    before, first, begin = programs(recorder.pid), switches(), time.monotonic()
    what()
    seconds, after = time.monotonic() - begin, programs(recorder.pid)
    ns, runs = (sum(after[p][i] - before[p][i] for p in before) for i in (0, 1))
    return ns / max(runs, 1), (switches() - first) / seconds


def storm(tmp, stopped, rounds, seconds):
    args = ["run", "--no-roofline", "-m", model("tiny-q4_0"), "-p", "7", "-n", "1000000", "--ctx", "1000010", "-t", "2"]
    cpu = max(os.sched_getaffinity(0))
    engine = subprocess.Popen([binary("ggml-runner"), *args], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(1)
        for thread in os.listdir(f"/proc/{engine.pid}/task"):
            os.sched_setaffinity(int(thread), {cpu})
        out = tmp.file("sched.pfi")
        # Recording ops would add overhead that is not measured here.
        recorder = Recorder(engine.pid, out, "--sched", "--level", "token", "--buffer-size", "64MiB")
        if stopped:
            engine.send_signal(signal.SIGSTOP)
            foreign = [sys.executable, "-c", CHILD, str(rounds), str(cpu)]
            got = measured(recorder, lambda: subprocess.run(foreign, check=True))
            engine.send_signal(signal.SIGCONT)
            time.sleep(0.5)
        else:
            got = measured(recorder, lambda: time.sleep(seconds))
        recorder.stop()
    finally:
        engine.kill()
        engine.wait()
    events = next(e for e in report(out)["quality"]["events"] if e["kind"] in ("offcpu", "away"))
    return *got, events["seen"], events["lost"]


def run():
    bench = Bench("switches", __doc__)
    bench.parser.add_argument("--pairs", type=int, help="storms of each kind (5; 2 with --quick)")
    args = bench.begin()
    stats = open(STATS).read()
    open(STATS, "w").write("1")
    rows = {"foreign": [], "own": []}
    try:
        with Scratch() as tmp:
            for _ in range(args.pairs or (2 if args.quick else 5)):
                rows["foreign"].append(storm(tmp, True, 100_000, 3))
                rows["own"].append(storm(tmp, False, 0, 3))
    finally:
        open(STATS, "w").write(stats)
    print("switches of     ns a run               switches/s             times away  lost")
    for name, all_of in rows.items():
        ns, rate, seen, lost = zip(*all_of)
        print(f"{name:12}{spread(ns, 1):>22}{spread(rate, 0):>24}{sum(seen):14}{sum(lost):6}", flush=True)
        bench.judge(sorted(ns)[len(ns) // 2] <= 1000, f"{name}: at most 1 us a run")
        bench.judge(sum(lost) == 0, f"{name}: no time away lost")
    bench.judge(min(r[1] for rs in rows.values() for r in rs) >= 10_000, "10,000 switches a second and more")
    return bench.end()


if __name__ == "__main__":
    main(run)
