#!/usr/bin/env python3
"""A board in a directory: a sysfs look-alike with clusters and a battery, and an engine whose speed and power follow a
closed formula of the CPUs and threads that it is given. The best choice is thereby known, and `profinfer tune` has to
find it through its real command line.

usage: board.py make DIR SEED [--cores N,N[,N]]    writes DIR and prints the board as JSON
       board.py best DIR [--slack 0.08]         prints the fastest set of CPUs and the thriftiest, by trying all
       board.py figures DIR --cpus LIST --threads N
                                                prints its speed and energy
       board.py run DIR --cpus LIST --threads N [-n TOKENS] --engine FAKELLAMA
                                                decodes at the board's speed while the battery reports its power

The formula: each thread does an equal share, so a team is as fast as its slowest core; memory sets a limit that falls
with the number of cores that read; a barrier costs time for each thread. Power is a floor, plus each busy core's, plus
a share of it for each idle core of a cluster in use (its clock is up).
"""

import argparse
import itertools
import json
import os
import random
import subprocess
import sys
import threading
import time

# Milliseconds of a token on one core of capacity 1024, and what memory and barriers allow.
COMPUTE_MS, BARRIER_MS = 24.0, 0.12
# The battery reports a new current after this time, as Android's do.
REFRESH_S = 0.25
VOLTS = 4.0


def board_of(seed, cores=None):
    """A board: clusters from small to large, as Linux numbers them."""
    rng = random.Random(seed)
    sizes = cores or rng.choice([[4, 4], [4, 4], [4, 3, 1]])
    shapes = zip(sizes, {2: [320, 1024], 3: [320, 780, 1024]}[len(sizes)])
    found, first = [], 0
    for cores, capacity in shapes:
        capacity = 1024 if capacity == 1024 else round(capacity * rng.uniform(0.8, 1.2))
        # Power grows faster than speed: that is why small cores exist.
        watts = rng.uniform(1.5, 2.6) * (capacity / 1024) ** rng.uniform(1.6, 2.4)
        found.append({"cpus": list(range(first, first + cores)), "capacity": capacity,
                      "khz": 1000 * round(3000 * capacity / 1024), "watts": watts})
        first += cores
    return {"seed": seed, "clusters": found, "memory_ms": rng.uniform(6, 14), "floor_watts": rng.uniform(0.3, 0.8),
            "idle_share": rng.uniform(0.08, 0.25)}


def cluster_of(board, cpu):
    return next(c for c in board["clusters"] if cpu in c["cpus"])


def figures(board, cpus, threads):
    """(milliseconds, watts) of a token decoded by these threads on the largest of these CPUs."""
    if threads > len(cpus):
        # Threads that spin for one another on too few CPUs.
        ms, watts = figures(board, cpus, len(cpus))
        return 40 * ms, watts
    used = sorted(cpus, key=lambda c: -cluster_of(board, c)["capacity"])[:threads]
    slowest = min(cluster_of(board, c)["capacity"] for c in used)
    compute = COMPUTE_MS / threads * 1024 / slowest
    ms = max(compute, board["memory_ms"] * (1 + 0.03 * threads)) + BARRIER_MS * threads
    watts = board["floor_watts"]
    for c in board["clusters"]:
        busy = sum(cpu in c["cpus"] for cpu in used)
        if busy:
            watts += c["watts"] * (busy + board["idle_share"] * (len(c["cpus"]) - busy))
    return ms, watts


def every_set(board):
    """All sets by cluster, one thread on each CPU."""
    counts = itertools.product(*(range(len(c["cpus"]) + 1) for c in board["clusters"]))
    for count in counts:
        cpus = [cpu for n, c in zip(count, board["clusters"]) for cpu in c["cpus"][:n]]
        if cpus:
            yield cpus


def best(board, slack):
    rows = []
    for cpus in every_set(board):
        ms, watts = figures(board, cpus, len(cpus))
        rows.append({"cpus": cpus, "threads": len(cpus), "tok_s": 1000 / ms, "joules": watts * ms / 1000})
    fastest = max(rows, key=lambda r: r["tok_s"])
    allowed = [r for r in rows if r["tok_s"] >= (1 - slack) * fastest["tok_s"]]
    return {"fastest": fastest, "thriftiest": min(allowed, key=lambda r: r["joules"]), "sets": len(rows)}


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as f:
        f.write(f"{text}\n")


def overwrite(path, number):
    """In place and of one length, as in sysfs: a reader has the file open."""
    fd = os.open(path, os.O_WRONLY)
    os.pwrite(fd, f"{number:9d}\n".encode(), 0)
    os.close(fd)


def ranges(cpus):
    return ",".join(map(str, cpus))


def make(root, board):
    cpu = f"{root}/devices/system/cpu"
    everything = [n for c in board["clusters"] for n in c["cpus"]]
    write(f"{cpu}/online", ranges(everything))
    for c in board["clusters"]:
        for n in c["cpus"]:
            write(f"{cpu}/cpu{n}/cpu_capacity", c["capacity"])
            write(f"{cpu}/cpu{n}/cpufreq/cpuinfo_max_freq", c["khz"])
            write(f"{cpu}/cpu{n}/topology/core_cpus_list", n)
    battery = f"{root}/class/power_supply/battery"
    write(f"{battery}/type", "Battery")
    write(f"{battery}/status", "Discharging")
    write(f"{battery}/capacity", 80)
    write(f"{battery}/voltage_now", int(VOLTS * 1e6))
    write(f"{battery}/current_now", f"{int(board['floor_watts'] / VOLTS * 1e6):9d}")
    write(f"{root}/board.json", json.dumps(board))


def load(root):
    with open(f"{root}/board.json") as f:
        return json.load(f)


def parse_cpus(text):
    found = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def refresh(root, board, now, end):
    """The battery's current: the mean of the last interval, with the scatter of a real one."""
    rng, last = random.Random(), board["floor_watts"]
    while not end.wait(REFRESH_S):
        power, last = (now["watts"] + last) / 2 if last != now["watts"] else now["watts"], now["watts"]
        overwrite(f"{root}/class/power_supply/battery/current_now", int(power * rng.gauss(1, 0.01) / VOLTS * 1e6))


def run(args):
    board = load(args.dir)
    ms, watts = figures(board, parse_cpus(args.cpus), args.threads)
    now, end = {"watts": watts}, threading.Event()
    thread = threading.Thread(target=refresh, args=(args.dir, board, now, end), daemon=True)
    thread.start()
    rng = random.Random()
    ns = int(ms * 1e6 * rng.gauss(1, 0.004))
    # One op of each graph sleeps in every thread; the others take no time worth counting.
    done = subprocess.run([args.engine, "-t", str(args.threads), "-n", str(args.tokens), "-p", "4", "--layers", "1",
                           "--op-ns", "0", "--sleep", "--slow", f"result_output={ns}"], stdout=subprocess.DEVNULL)
    end.set()
    thread.join()
    time.sleep(0.01)
    return done.returncode


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["make", "best", "figures", "run"])
    parser.add_argument("dir")
    parser.add_argument("seed", nargs="?", type=int, default=1)
    parser.add_argument("--cores", type=lambda text: [int(n) for n in text.split(",")])
    parser.add_argument("--slack", type=float, default=0.08)
    parser.add_argument("--cpus")
    parser.add_argument("--threads", type=int)
    parser.add_argument("-n", "--tokens", type=int, default=64)
    parser.add_argument("--engine")
    args = parser.parse_args()
    if args.what == "run":
        return run(args)
    if args.what == "figures":
        ms, watts = figures(load(args.dir), parse_cpus(args.cpus), args.threads)
        print(json.dumps({"tok_s": 1000 / ms, "joules": watts * ms / 1000}))
        return 0
    board = load(args.dir) if args.what == "best" else board_of(args.seed, args.cores)
    if args.what == "make":
        make(args.dir, board)
        print(json.dumps(board))
    else:
        print(json.dumps(best(board, args.slack)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
