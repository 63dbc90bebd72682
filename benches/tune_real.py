"""The parts of tune.py that run the program itself: boards in a directory, and real engines."""

import json
import os
import shlex
import subprocess
import sys

from common import ROOT, BenchError, Scratch, binary, driver, engine, model, quartiles, sh, target_dir

BOARD = os.path.join(ROOT, "tests", "tune", "board.py")


def tune(flags, command):
    cmd = [binary("profinfer"), "tune", "--json", "--no-keep", "--knobs", "none", *flags, "--", *command]
    done = subprocess.run(cmd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise BenchError(f"{shlex.join(cmd)} failed with status {done.returncode}: {done.stderr.strip()[-500:]}")
    return json.loads(done.stdout)


def fakellama():
    out = os.path.join(target_dir(), "tests", "fixtures")
    sh([os.path.join(ROOT, "tests", "fixtures", "build.sh"), out, "modern"])
    return os.path.join(out, "modern", "fakellama")


def known(bench, args):
    count = args.count or (3 if args.quick else 25)
    print(f"\n== {count} boards in a directory, through the command line", flush=True)
    program, right = fakellama(), 0
    for seed in range(1, count + 1):
        with Scratch() as scratch:
            at = scratch.file("board")
            sh([sys.executable, BOARD, "make", at, str(seed)])
            best = json.loads(sh([sys.executable, BOARD, "best", at]))
            found = tune(["--for", "energy", "--phase", "decode", "--sysfs", at, "--foreign-load", "200%", "--time", "10min"],
                         [sys.executable, BOARD, "run", at, "--cpus", "{cpus}", "--threads", "{threads}", "-n", "160",
                          "--engine", program])
            chosen = found["works"][0]["tried"][found["works"][0]["chosen"]]
            truth = json.loads(sh([sys.executable, BOARD, "figures", at, "--cpus", chosen["cpus"], "--threads",
                                   str(chosen["threads"])]))
            energy = truth["joules"] / best["thriftiest"]["joules"] - 1
            speed = truth["tok_s"] / best["fastest"]["tok_s"]
            good = energy <= 0.03 and speed >= 0.92
            right += good
            print(f"  board {seed:2}: CPUs {chosen['cpus']:8} {energy:+6.1%} energy, {speed:6.1%} of the fastest, "
                  f"{found['runs']} runs, {found['seconds']:.0f} s{'' if good else '  WRONG'}", flush=True)
    bench.judge(right == count, f"{right} of {count}: within 3 % of the least energy, and fast enough")


def own_speed(output):
    """Decode tok/s by the engine's own clock: of driver --json or ggml-runner --json."""
    said = json.loads(output.strip().splitlines()[-1])
    decode = said["decode"]
    return decode["tok_s"] if "tok_s" in decode else decode["tokens_per_s"]


def engines(bench, args):
    print("\n== real engines on this machine", flush=True)
    name = model("llama1b-L4-q4_0")
    lib = engine("v0.5.0")
    work = {
        "ggml-runner": ([binary("ggml-runner"), "run", "-m", name, "-t", "{threads}"],
                        ["-p", "32", "-n", "96", "--no-roofline", "--json"]),
        "llama.cpp v0.5.0": ([driver(), "--engine", lib, "--model", name, "-t", "{threads}", "--hold", "1"],
                             ["-p", "32", "-n", "96", "--json"]),
    }
    for program, (command, own) in work.items():
        for case, busy in [("quiet", None), ("a busy CPU", "1")]:
            other = busy and subprocess.Popen(["taskset", "-c", busy, sys.executable, "-c", "while True: pass"])
            try:
                one_case(bench, f"{program}, {case}", command, own, args)
            finally:
                if other:
                    other.kill()
                    other.wait()


def one_case(bench, title, command, own, args):
    template = command + own
    found = tune(["--phase", "decode", "--foreign-load", "150%", "--no-energy", "--rounds", "2"], template)
    lines = {"chosen": shlex.split(found["lines"][0]["command"])}
    cpus = os.sched_getaffinity(0)
    for n in range(1, len(cpus) + 1):
        lines[f"{n} threads"] = [w.replace("{threads}", str(n)) for w in template]
    for cpu in sorted(cpus):
        lines[f"1 thread on CPU {cpu}"] = ["taskset", "-c", str(cpu), *(w.replace("{threads}", "1") for w in template)]
    # More threads than CPUs spin for one another, or are refused; once is enough.
    lines["4 threads"] = [w.replace("{threads}", "4") for w in template] if len(cpus) < 4 else None
    speeds = {name: [] for name in lines if lines[name]}
    for i in range(2 if args.quick else 3):
        for name in speeds:
            if name == "4 threads" and i:
                continue
            try:
                speeds[name].append(own_speed(sh(lines[name], stderr=subprocess.DEVNULL, timeout=120)))
            except (subprocess.TimeoutExpired, BenchError):
                speeds[name].append(0.0)
    # The chosen command may be one of the others: they share their runs.
    for name in [n for n in speeds if n != "chosen" and lines[n] == lines["chosen"]]:
        speeds[name] = speeds["chosen"] = speeds[name] + speeds["chosen"]
    medians = {name: quartiles(all)[1] for name, all in speeds.items()}
    for name, speed in medians.items():
        print(f"    {name:20} {speed:8.2f} tok/s", flush=True)
    best = max(medians.values())
    bench.judge(medians["chosen"] >= 0.95 * best,
                f"{title}: {found['lines'][0]['command'].split(' --')[0][:60]}: {medians['chosen'] / best:.1%} of the best")
