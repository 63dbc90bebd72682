"""How long a recording takes to start and to end.

`running`: from the start of `profinfer record -p PID` to the first event in the trace, with an engine that computes
all the time. `ending`: from SIGINT to the exit of that recorder; `perf`: the same without BPF. `command`: from the start of
the command to its first decode, alone and as `profinfer record -- COMMAND`, which stops the command until its probes are
attached; the difference is printed. `whole`: the same from the start to the end. `shell`: `command` through `sh -c`.

PROFINFER_OTHER names another build: both are measured in turn, and `running` is judged by the ratio of the two.
"""

import json
import os
import shlex
import signal
import statistics
import subprocess
import time

from common import Bench, BenchError, Scratch, binary, driver, engine, main, model, spread

ENGINES = ["b3889", "v0.5.0"]
# A decode of this model takes well under a millisecond.
MODEL = "tiny-q4_0"
# After this time, probes are attached and some tokens recorded.
LONG_ENOUGH = 2
# A recording of one engine ends within this time, in milliseconds, on an idle machine with uprobe_multi links.
MOST_TO_END = 300


def command(path, *args):
    return [driver(), "--engine", path, "--model", model(MODEL), "--ctx", "512", *args]


def begin_and_end(program, pid, tmp, source="auto"):
    """Milliseconds from the recorder's start to the first event in its file, and from SIGINT to its exit."""
    # The kernel may still be busy with the probes of the one before.
    while subprocess.run(["pgrep", "profinfer-guard"], stdout=subprocess.DEVNULL).returncode == 0:
        time.sleep(0.1)
    trace, out = tmp.file("start.pfi"), tmp.file("start.json")
    begin = time.clock_gettime(time.CLOCK_BOOTTIME)
    recorder = subprocess.Popen([program, "record", "-q", "--force", "--source", source, "-o", trace, "-p", str(pid)],
                                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    time.sleep(LONG_ENOUGH)
    asked = time.monotonic()
    recorder.send_signal(signal.SIGINT)
    _, said = recorder.communicate(timeout=60)
    ending = (time.monotonic() - asked) * 1e3
    if recorder.returncode:
        raise BenchError(f"{program} record -p: {said.decode().strip()}")
    subprocess.run([program, "export", "--chrome", out, trace], check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)
    with open(out) as f:
        events = json.load(f)["traceEvents"]
    os.remove(out)
    starts = [e["ts"] for e in events if e.get("ph") in ("X", "B", "I") and e.get("ts")]
    if not starts:
        raise BenchError(f"{trace} has no event")
    return min(starts) / 1e3 - begin * 1e3, ending


def first_decode(before, args, tmp):
    """Milliseconds from the start of a command to the start of its first decode, by the driver's own clock, and to its end."""
    tokens = tmp.file("tokens")
    begin = time.monotonic_ns()
    # A recorder that attached too late exits with an error, but the command has still run.
    done = subprocess.run([*before, *args, "--per-token", tokens], capture_output=True, text=True)
    end = time.monotonic_ns()
    try:
        with open(tokens) as f:
            first = int(f.readline().split()[0])
    except (OSError, IndexError) as e:
        raise BenchError(f"{shlex.join([*before, *args])}: {done.stderr.strip()}") from e
    os.unlink(tokens)
    return (first - begin) / 1e6, (end - begin) / 1e6


def running(programs, path, rounds, tmp):
    """Milliseconds until the first event, of the end, and of the end without BPF, by program."""
    engine_process = subprocess.Popen(command(path, "-p", "7", "-n", "1000000"), stdout=subprocess.DEVNULL)
    try:
        time.sleep(1)
        got = {p: [] for p in programs}
        for i in range(rounds):
            for program in programs[:: 1 if i % 2 else -1]:
                by_bpf = begin_and_end(program, engine_process.pid, tmp)
                got[program].append((*by_bpf, begin_and_end(program, engine_process.pid, tmp, "perf")[1]))
        return [{p: [times[i] for times in all_times] for p, all_times in got.items()} for i in range(3)]
    finally:
        engine_process.kill()
        engine_process.wait()


def held(programs, path, rounds, tmp):
    """Milliseconds that a command waits, by start method and program."""
    args = command(path, "-p", "0", "-n", "1")
    shell = ["sh", "-c", 'exec "$0" "$@"']
    got = {(way, p): [] for way in ("command", "whole", "shell") for p in programs}
    for _ in range(rounds):
        first, whole = first_decode([], args, tmp)
        for program in programs:
            record = [program, "record", "-q", "--force", "-o", tmp.file("start.pfi"), "--"]
            recorded = first_decode(record, args, tmp)
            got["command", program].append(recorded[0] - first)
            got["whole", program].append(recorded[1] - whole)
            got["shell", program].append(first_decode([*record, *shell], args, tmp)[0] - first)
    return got


def run():
    bench = Bench("start", __doc__)
    bench.parser.add_argument("--rounds", type=int, help="times that each is measured (10; 3 with --quick)")
    args = bench.begin()
    rounds = args.rounds or (3 if args.quick else 10)
    other = os.environ.get("PROFINFER_OTHER")
    programs = [binary("profinfer")] + ([other] if other else [])
    names = dict(zip(programs, ["this build", "the other"]))
    print(f"{'ms':<22}" + "".join(f"{names[p]:>26}" for p in programs))
    with Scratch() as tmp:
        for name in ENGINES:
            path = engine(name)
            rows = dict(zip(["running", "ending", "perf"], running(programs, path, rounds, tmp)))
            for (way, program), values in held(programs, path, rounds, tmp).items():
                rows.setdefault(way, {})[program] = values
            for way, by in rows.items():
                print(f"{name + ', ' + way:<22}" + "".join(f"{spread(by[p], 0):>26}" for p in programs), flush=True)
            for way in ("ending", "perf"):
                end = statistics.median(rows[way][programs[0]])
                bench.judge(end < MOST_TO_END, f"{name}: a recording takes {end:.0f} ms to end ({way}), {MOST_TO_END} allowed")
            if other:
                ratio = statistics.median(rows["running"][programs[0]]) / statistics.median(rows["running"][other])
                bench.judge(ratio <= 1.2, f"{name}: the first event comes {ratio:.2f} times as late as the other's, 1.2 allowed")
    return bench.end()


if __name__ == "__main__":
    main(run)
