"""The runs of bench-advice: those with a planted cause, and healthy ones."""

import dataclasses
import os
import shutil

from advice_runs import SHARES, Busy, Forks, Other, Run, llama, memory, quota, runner
from advice_server import Clients, Serving, root
from common import engine, model

Q4, Q8, F16, F32 = (f"llama1b-L4-{kind}" for kind in ("q4_0", "q8_0", "f16", "f32"))
Q4K = "llama1b-L4-q4_k"
V5, OMP = "v0.5.0", "b11549"


@dataclasses.dataclass
class Planted:
    """A run with a cause, the rules that name it, and the run as advised (where `followed` does not know it).

    `measure` is what the advice changes: a phase's speed in calls, `wall` (with the time between calls), `ttft` or
    `tail` (of a server's requests)."""

    name: str
    rules: list
    run: object
    mended: object = None
    measure: str = "decode"


def poor_variant(tmp):
    """v0.5.0 with the CPU backend for processors of 2011 alone."""
    whole, poor = engine(V5), tmp.file("poor")
    where = whole if os.path.isdir(whole) else os.path.dirname(whole)
    if not os.path.exists(poor):
        shutil.copytree(where, poor)
        for name in os.listdir(poor):
            if name.startswith("libggml-cpu-") and "sandybridge" not in name:
                os.remove(os.path.join(poor, name))
    return os.path.join(poor, os.path.relpath(whole, where)) if where != whole else poor


def v5(threads, weights=Q4, n=48, p=8, *more):
    return llama(V5, weights, threads, n, p, *more)


def omp(threads, weights=Q4, n=24, p=8, *more):
    return llama(OMP, weights, threads, n, p, *more)


def threads():
    """Threads and the CPUs that they may use."""
    spread = {"OMP_PROC_BIND": "true"}
    return [
        Planted("2 threads by mask on 1 CPU, own pool", ["oversubscribed"], Run(v5(2, n=24), cpus="0")),
        Planted("2 threads by mask on 1 CPU, OpenMP", ["oversubscribed"], Run(omp(2), cpus="0")),
        Planted("2 threads by mask on 1 CPU, b8121", ["oversubscribed"], Run(llama("b8121", Q4, 2, 24), cpus="1")),
        Planted("each thread bound to CPU 0, OpenMP", ["oversubscribed"],
                Run(omp(2), env={"GOMP_CPU_AFFINITY": "0 0"})),
        Planted("2 threads in a cpuset of 1 CPU", ["oversubscribed"],
                Run(v5(2, n=24), limits={"cpuset": {"cpuset.cpus": "1", "cpuset.mems": "0"}})),
        Planted("4 threads on 2 CPUs, own pool", ["oversubscribed"], Run(v5(4, n=24))),
        Planted("3 threads on 2 CPUs, OpenMP", ["oversubscribed"], Run(omp(3, n=16))),
        Planted("1 thread where 2 CPUs are free", ["more-threads"], Run(v5(1))),
        Planted("1 thread where 2 CPUs are free, ggml-runner", ["more-threads"], Run(runner(Q4, 1))),
        Planted("calls from a new thread each, OpenMP", ["changing-callers"], Run(omp(2, Q4, 24, 8, "--callers")),
                Run(omp(2))),
        Planted("threads bound in pairs of 1 CPU, 3 threads", ["oversubscribed"],
                Run(omp(3, n=16), env={**spread, "OMP_PLACES": "{0},{1}"})),
    ]


def quotas():
    return [
        Planted("a quota of 0.6 CPUs", ["cpu-quota"], Run(v5(2), limits=quota(0.6))),
        Planted("a quota of 1 CPU, 2 threads", ["cpu-quota"], Run(v5(2), limits=quota(1))),
        Planted("a quota of 1.2 CPUs, OpenMP", ["cpu-quota"], Run(omp(2), limits=quota(1.2))),
        Planted("a quota of half a CPU, 1 thread, ggml-runner", ["cpu-quota"], Run(runner(Q4, 1), limits=quota(0.5))),
    ]


def company():
    """Other programs on the CPUs of the engine."""
    shares = {"cpu": SHARES}
    beside = lambda **more: Busy(**{"cpus": "1", **more})
    contention = ["cpu-contention"]
    return [
        Planted("a busy program on CPU 1", contention, Run(v5(2), company=(beside(),))),
        Planted("a busy program, ggml-runner", contention, Run(runner(Q4, 2), company=(beside(),))),
        Planted("a busy program, OpenMP that spins", contention,
                Run(omp(2), company=(beside(),), env={"OMP_WAIT_POLICY": "active"})),
        Planted("a busy program on each CPU", contention,
                Run(v5(2, n=24), company=(beside(cpus="0"), beside(cpus="1")))),
        Planted("a busy program on the CPU of 1 thread", contention, Run(v5(1), cpus="0", company=(beside(cpus="0"),))),
        Planted("a program in bursts of 30 ms", contention, Run(v5(2), company=(beside(on=0.03, off=0.03),))),
        Planted("a busy program of nice 5", contention,
                Run(v5(2), limits=shares, company=(beside(nice=5, in_group=True),))),
        Planted("an engine of nice 10 beside a busy program", contention,
                Run(["nice", "-n", "10", *v5(2, n=24)], limits=shares, company=(beside(in_group=True),))),
        Planted("a real-time program in bursts", contention,
                Run(v5(2), company=(beside(on=0.01, off=0.01, realtime=True),))),
        Planted("short programs without end", contention, Run(v5(2), company=(Forks("1"),))),
        Planted("a second engine", contention, Run(v5(2, n=24), company=(Other(omp(2, n=400)),))),
    ]


def memories():
    size = lambda name: os.path.getsize(model(name))
    return [
        Planted("less memory than the model", ["major-faults"],
                Run(v5(2, Q8, 4), limits=memory(size(Q8) * 0.7), cold=model(Q8)), Run(v5(2, Q8))),
        Planted("less memory than the model, ggml-runner", ["major-faults"],
                Run(runner(Q8, 2, 4, 8, "--placement", "mapped"), limits=memory(size(Q8) * 0.7), cold=model(Q8)),
                Run(runner(Q8, 2, 8, 8, "--placement", "mapped"))),
        Planted("less memory than the experts", ["major-faults", "experts"],
                Run(v5(2, "moe-f16", 48), limits=memory(size("moe-f16") * 0.5), cold=model("moe-f16")),
                Run(v5(2, "moe-f16", 48))),
        Planted("a read-ahead of 8 MiB, less memory than the experts", ["read-ahead"],
                Run(v5(2, "moe-f16", 24), limits=memory(size("moe-f16") * 0.5), cold=model("moe-f16"), read_ahead=8192)),
        Planted("a read-ahead of 8 MiB, ggml-runner", ["read-ahead"],
                Run(runner("moe-f16", 1, 24, 8, "--placement", "mapped"), limits=memory(size("moe-f16") * 0.5),
                    cold=model("moe-f16"), read_ahead=8192)),
        Planted("a file that is not in memory yet, ggml-runner", ["cold-start"],
                Run(runner(Q4K, 2, 24, 8, "--placement", "mapped"), cold=model(Q4K)),
                Run(runner(Q4K, 2, 24, 8, "--placement", "mapped")), "prefill"),
        Planted("Q8_0 instead of Q4_0", ["fewer-bytes"], Run(v5(2, Q8)), Run(v5(2, Q4K))),
        Planted("F16 instead of Q4_0", ["fewer-bytes"], Run(v5(2, F16, 24)), Run(v5(2, Q4K))),
        Planted("F16, ggml-runner", ["fewer-bytes"], Run(runner(F16, 2, 24)), Run(runner(Q4K, 2))),
        Planted("F32 instead of Q4_0", ["fewer-bytes"], Run(omp(2, F32, 16)), Run(omp(2, Q4K))),
    ]


def settings(tmp):
    """Flags of the engine, its build, and the recorder."""
    small = llama(V5, "moe-q4_0", 1, 200)
    poor = v5(2)
    poor[2] = poor_variant(tmp)
    slow = Run(v5(2, Q4, 1, 8, "--control"), client=("run 1", 200, 25))
    return [
        Planted("flash attention off, 2000 tokens", ["attention"], Run(v5(2, Q4, 48, 2000, "--flash", "0")),
                measure="prefill"),
        Planted("micro-batches of 8 tokens", ["small-batches"], Run(v5(2, Q4, 8, 512, "--ubatch", "8")),
                Run(v5(2, Q4, 8, 512)), "prefill"),
        Planted("operators of 1 us, all recorded", ["recorder-cost"], Run(small)),
        Planted("CPU backend of 2011", ["cpu-variant"], Run(poor), Run(v5(2))),
        Planted("a client that waits between tokens", ["between-calls"], slow,
                slow.but(client=("run 1", 200, 0)), "wall"),
        Planted("a program that samples for long", ["between-calls"], slow.but(client=("run 1;phases 300", 80, 0)),
                slow.but(client=("run 1", 200, 0)), "wall"),
    ]


def servers():
    if root() is None:
        return []
    many = Clients((40,) * 8, at_once=2, tokens=32)
    turns = Clients((60,), turns=6, tokens=24)
    mixed = Clients((5, 700) * 6, at_once=2, tokens=32)
    return [
        Planted("a server with 1 slot for 2 clients", ["one-slot"], Serving(Q4, many), Serving(Q4, many, slots=2)),
        Planted("a conversation computed again", ["prompt-again"], Serving(Q4, turns),
                Serving(Q4, dataclasses.replace(turns, cache=True)), "ttft"),
        Planted("prompts that stall others", ["slot-starvation"], Serving(Q4, mixed, slots=2),
                Serving(Q4, mixed, slots=2, args=("-b", "256", "-ub", "256")), "tail"),
    ]


def planted(tmp):
    return threads() + quotas() + company() + memories() + settings(tmp) + servers()


# What this machine cannot show, and what it would take.
NOT_HERE = {
    "a clock that is held down": "the kernel must tell frequencies (cpufreq)",
    "threads on slow cores": "cores of two speeds",
    "more threads than the memory feeds": "more than 2 CPUs",
    "weights on the wrong NUMA node": "two nodes",
    "layers beside a device that is faster": "a device that is not computed in software",
    "weights in swap": "a swap area",
}


def healthy():
    """(name, run): no gain may be promised for it."""
    for t in (1, 2):
        yield f"v0.5.0, {t} threads", Run(v5(t))
        yield f"b11549, {t} threads", Run(omp(t, n=48))
        yield f"b8121, {t} threads", Run(llama("b8121", Q4, t))
        yield f"ggml-runner, {t} threads", Run(runner(Q4, t))
        yield f"v0.5.0, prompt of 500, {t} threads", Run(v5(t, Q4, 48, 500))
    bound = {"OMP_PROC_BIND": "true"}
    yield "pinned: each thread its CPU, OpenMP", Run(omp(2, n=48), env=bound)
    yield "pinned: each thread its CPU, ggml-runner", Run(runner(Q4, 2, 48, 8, "--pin"))
    yield "pinned: 1 thread on CPU 1", Run(v5(1), cpus="1")
    yield "a quota of 2 CPUs met exactly", Run(v5(2), limits=quota(2))
    yield "a quota of 1 CPU met exactly", Run(v5(1), limits=quota(1))
    size = os.path.getsize(model(Q4))
    yield "a memory limit far away", Run(v5(2), limits=memory(size * 8))
    yield "a memory limit that just suffices", Run(v5(2), limits=memory(size * 1.5))
    container = ("unshare", "--pid", "--fork", "--mount-proc", "--uts", "--ipc")
    limits = {**quota(2), **memory(size * 8), "cpuset": {"cpuset.cpus": "0-1", "cpuset.mems": "0"}}
    yield "a container with all limits", Run(v5(2), limits=limits, inside=container)
    yield "another program on the other CPU", Run(v5(1), cpus="0", company=(Busy("1"),))
    yield "a background program of nice 19", Run(
        v5(2), limits={"cpu": SHARES}, company=(Busy("0-1", nice=19, in_group=True),))
    yield "experts, ggml-runner", Run(runner("moe-q4_0", 2, 100), flags=("--level", "op"))
    yield "a short run", Run(v5(2, Q4, 3))
    yield "a long context", Run(v5(2, Q4, 24, 1500))
    if root() is not None:
        one = Clients((40, 90, 20, 60), tokens=32, cache=True)
        yield "a server, one request at a time", Serving(Q4, one)
        yield "a server, 2 slots, 2 clients", Serving(Q4, dataclasses.replace(one, at_once=2), slots=2)
        yield "embeddings of growing documents", Serving(
            Q4, Clients((20, 30, 45, 60, 90, 120, 160), embed=True), args=("--embeddings", "--pooling", "mean"))
