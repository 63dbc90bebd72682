"""Whether advice keeps its promises: records a run with a planted cause, takes the first piece of advice, runs the same
engine as the advice says, and compares the predicted gain with the measured one. Then records healthy runs, which must
get no advice that promises a gain.

Engines are unmodified llama.cpp builds, run by tests/engines/driver, and ggml-runner. Each case runs `--rounds` times,
the bad and the mended run in turn; the figures are those of the round with the median gain. Engines and interferers run
in scheduling groups of top weight, so that other programs of this machine disturb them little. Needs root.
"""

import json
import os
import shutil
import signal
import statistics
import subprocess
import time

from common import Bench, BenchError, Scratch, binary, driver, engine, main, model, sh

# Its own session has a scheduling group of its own (sched(7), autogroup); nice values do nothing between such groups.
TOP = "echo -20 > /proc/self/autogroup 2>/dev/null; "
CPU_GROUPS = "/sys/fs/cgroup/cpu"
MEMORY_GROUPS = "/sys/fs/cgroup/memory"


class Hog:
    """A busy loop on one CPU."""

    def __init__(self, cpu):
        self.proc = subprocess.Popen(
            ["setsid", "sh", "-c", f"{TOP}exec taskset -c {cpu} sh -c 'while :; do :; done'"])

    def close(self):
        self.proc.send_signal(signal.SIGKILL)
        self.proc.wait()


class Group:
    """A control group (version 1) with one limit."""

    def __init__(self, root, values):
        self.dir = os.path.join(root, f"profinfer-advice-{os.getpid()}")
        os.makedirs(self.dir, exist_ok=True)
        for name, value in values:
            with open(os.path.join(self.dir, name), "w") as f:
                f.write(str(value))

    def enter(self):
        return f"echo $$ > {self.dir}/tasks; "

    def close(self):
        for _ in range(100):
            try:
                return os.rmdir(self.dir)
            except OSError:
                time.sleep(0.05)


class Run:
    """How an engine is run: its command, CPUs, control group, company, and flags of `record`."""

    def __init__(self, args, cpus=None, group=None, hog=None, cold=None, flags=()):
        self.args, self.cpus, self.group, self.hog, self.cold, self.flags = args, cpus, group, hog, cold, flags

    def record(self, out, env):
        """Records it; returns nothing, the trace is the result."""
        held = []
        try:
            if self.hog is not None:
                held.append(Hog(self.hog))
            enter = ""
            if self.group:
                held.append(Group(*self.group))
                enter = held[-1].enter()
            if self.cold:
                drop(self.cold)
            pin = ["taskset", "-c", self.cpus] if self.cpus else []
            command = ["setsid", "-w", "sh", "-c", f'{TOP}{enter}exec "$@"', "sh", *pin, *self.args]
            record = [binary("profinfer"), "record", "-q", "--force", *self.flags, "-o", out, "--", *command]
            done = subprocess.run(record, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=env,
                                  timeout=240)
            if done.returncode:
                raise BenchError(f"recording failed with status {done.returncode}: {done.stderr.strip()[-400:]}")
        finally:
            for h in held:
                h.close()


def drop(path):
    """Drops a file from the page cache."""
    with open(path) as f:
        os.fdatasync(f.fileno())
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def llama(name, model_name, threads, n=48, p=8):
    return [driver(), "--engine", engine(name), "--model", model(model_name), "-p", str(p), "-n", str(n), "-t",
            str(threads)]


def runner(model_name, threads, n=48, p=8):
    return [binary("ggml-runner"), "run", "-m", model(model_name), "-p", str(p), "-n", str(n), "-t", str(threads),
            "--no-roofline", "--no-warmup"]


def poor_variant(tmp):
    """v0.5.0 with the CPU backend for processors of 2011 alone."""
    whole, poor = engine("v0.5.0"), tmp.file("poor")
    where = whole if os.path.isdir(whole) else os.path.dirname(whole)
    shutil.copytree(where, poor)
    for name in os.listdir(poor):
        if name.startswith("libggml-cpu-") and "sandybridge" not in name:
            os.remove(os.path.join(poor, name))
    return os.path.join(poor, os.path.relpath(whole, where)) if where != whole else poor


def cases(tmp):
    """(name, the rules that name the planted cause, the bad run, the run as advised[, the phase, else decode])"""
    q4, q8 = "llama1b-L4-q4_0", "llama1b-L4-q8_0"
    quota = (CPU_GROUPS, [("cpu.cfs_period_us", 100000), ("cpu.cfs_quota_us", 60000)])
    # Weights of this type are computed from where the file is mapped, not copied first.
    little = (MEMORY_GROUPS, [("memory.limit_in_bytes", int(os.path.getsize(model(q8)) * 0.7))])
    v5, omp = (lambda t, m=q4, n=48: llama("v0.5.0", m, t, n)), (lambda t: llama("b11549", q4, t, 24))
    long = lambda flash: llama("v0.5.0", q4, 2, 48, 2000) + ["--flash", str(flash)]
    small = llama("v0.5.0", "moe-q4_0", 1, 200)
    poor = v5(2)
    poor[2] = poor_variant(tmp)
    return [
        ("2 threads by mask on 1 CPU, own pool", ["oversubscribed"], Run(v5(2, n=24), cpus="0"), Run(v5(1), cpus="0")),
        ("2 threads by mask on 1 CPU, OpenMP", ["oversubscribed"], Run(omp(2), cpus="0"), Run(omp(1), cpus="0")),
        ("4 threads on 2 CPUs", ["oversubscribed"], Run(v5(4, n=24)), Run(v5(2))),
        ("a quota of 0.6 CPUs", ["cpu-quota"], Run(v5(2), group=quota), Run(v5(2))),
        ("a busy program on CPU 1", ["cpu-contention"], Run(v5(2), hog=1), Run(v5(2))),
        ("a busy program, ggml-runner", ["cpu-contention"], Run(runner(q4, 2), hog=1), Run(runner(q4, 2))),
        ("Q8_0 instead of Q4_0", ["fewer-bytes"], Run(v5(2, q8)), Run(v5(2, q4))),
        ("flash attention off, 2000 tokens", ["attention"], Run(long(0)), Run(long(1)), "prefill"),
        ("less memory than the model", ["major-faults"], Run(v5(2, q8, 4), group=little, cold=model(q8)),
         Run(v5(2, q8))),
        ("operators of 1 us, all recorded", ["recorder-cost"], Run(small), Run(small, flags=["--level", "graph"])),
        ("CPU backend of 2011", ["cpu-variant"], Run(poor), Run(v5(2))),
    ]


def healthy():
    q4 = "llama1b-L4-q4_0"
    for t in (1, 2):
        yield f"v0.5.0, {t} threads", Run(llama("v0.5.0", q4, t))
        yield f"b11549, {t} threads", Run(llama("b11549", q4, t))
        yield f"b8121, {t} threads", Run(llama("b8121", q4, t))
        yield f"ggml-runner, {t} threads", Run(runner(q4, t))
        yield f"v0.5.0, prompt of 500, {t} threads", Run(llama("v0.5.0", q4, t, 48, 500))


def verdict(path, *more):
    """The verdict of a trace, or the check of its first advice against another trace."""
    done = subprocess.run([binary("profinfer"), "advise", "--json", path, *more], stdout=subprocess.PIPE, text=True)
    if done.returncode not in (0, 3):
        raise BenchError(f"profinfer advise failed with status {done.returncode}")
    return json.loads(done.stdout)


def speed(found, phase):
    """Tokens per second of a phase."""
    return next(p["tokens_per_s"] for p in found["phases"] if p["phase"] == phase)


def one_case(tmp, env, case, rounds):
    """(whether the first advice is the planted cause, whether the gain is in range or none was promised)"""
    name, rules, bad, good, phase = (*case, "decode")[:5]
    found = []
    for i in range(rounds):
        a, b = tmp.file("bad.pfi"), tmp.file("good.pfi")
        bad.record(a, env)
        good.record(b, env)
        before, after = verdict(a), verdict(b)
        first = before["advice"][0]["rule"] if before["advice"] else "none"
        check = verdict(a, "--check", b) if before["advice"] else None
        found.append((speed(after, phase) / speed(before, phase), first, check))
    found.sort(key=lambda f: f[0])
    measured, first, check = found[len(found) // 2]
    named = sum(f[1] in rules for f in found)
    right = named * 2 > len(found)
    promised = check and check["promised"]
    kept = None
    if right and promised:
        kept = promised["least"] <= measured <= promised["most"]
    said = f"{promised['least']:.2f} to {promised['most']:.2f}" if promised else "none"
    state = "-" if kept is None else "kept" if kept else "above" if measured > promised["most"] else "below"
    print(f"  {name:38} {first:16} {named}/{len(found)}   {said:16} {measured:8.2f}   {state}", flush=True)
    return right, kept


def run():
    bench = Bench("advice", __doc__)
    bench.parser.add_argument("--rounds", type=int, help="runs of each case (3; 1 with --quick)")
    bench.parser.add_argument("--only", metavar="TEXT", help="only cases with this text in their name")
    args = bench.begin()
    rounds = args.rounds or (1 if args.quick else 3)
    wanted = lambda name: args.only is None or args.only in name
    with Scratch() as tmp:
        env = dict(os.environ, XDG_CACHE_HOME=tmp.file("cache"))
        print(sh(["setsid", "-w", "sh", "-c", f'{TOP}exec "$@"', "sh", binary("profinfer"), "doctor", "--peaks"], env=env,
                 stderr=subprocess.DEVNULL))
        print(f"  {'planted cause':38} {'first advice':16} rounds  {'predicted':16} {'measured':>8}   promise")
        results = [one_case(tmp, env, c, rounds) for c in cases(tmp) if wanted(c[0])]
        promising = []
        print("\nhealthy runs: advice that promises a gain")
        for name, r in (h for h in healthy() if wanted(h[0])):
            path = tmp.file("healthy.pfi")
            r.record(path, env)
            gains = [(a["rule"], a["gain"]["most"]) for a in verdict(path)["advice"] if a["gain"]]
            promising += [name] if gains else []
            print(f"  {name:38} {', '.join(f'{rule} up to {most:.2f}' for rule, most in gains) or 'none'}", flush=True)
    right, kept = [r for r, _ in results], [k for _, k in results if k is not None]
    if results:
        bench.judge(sum(right) >= 0.9 * len(right), f"first advice names the cause: {sum(right)} of {len(right)}, target 9 of 10")
        bench.judge(sum(kept) >= 0.8 * len(kept), f"promised gains kept: {sum(kept)} of {len(kept)}, target 8 of 10")
    bench.judge(not promising, f"healthy runs with a promised gain: {len(promising)}, target 0")
    return bench.end()


if __name__ == "__main__":
    main(run)
