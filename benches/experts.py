"""Are the caches of experts that `profinfer experts` predicts those that an engine then has?

For generated models whose experts do not fit into the memory of a control group: recorded once without a limit and with a slot for each expert, and run by
`ggml-runner run --expert-slots` within it, with each policy and three numbers of slots. Compared are the share of decode's
experts that were in a slot, and tokens/s; predicted with the reads of this disk (--storage). The expert list of `pin` is
that of a recording of another prompt. The plain run has the model mapped, in a group that may hold as much as the one with slots did,
and a disk that reads --read-ahead KiB ahead.

Runs of one number of slots follow each other, in --rounds rounds; tokens/s are medians. One thread computes, so that there
is a CPU for the readers.
"""

import json
import os
import statistics
import subprocess

from common import CACHE, Bench, BenchError, Scratch, binary, main, read_ahead, sh

# Experts, used, width of each, routing.
MODELS = [(8, 2, 4096, "even"), (32, 4, 512, "topics"), (60, 4, 256, "skewed"), (128, 8, 256, "even")]
TYPE = "q8_0"
POLICIES = ["lru", "lfu", "next", "pin"]
PROMPT, DECODE = 32, 300
GROUPS = "/sys/fs/cgroup"
# The limit is what the process needs with `lru` when there is none, and this much more.
ROOM = 1.1


class Group:
    """A control group with a limit of memory, of version 1 or 2."""

    def __init__(self, limit):
        old = os.path.join(GROUPS, "memory")
        self.path = os.path.join(old if os.path.isdir(old) else GROUPS, f"profinfer-bench-{os.getpid()}")
        self.limit = limit
        self.name = "memory.limit_in_bytes" if os.path.isdir(old) else "memory.max"

    def __enter__(self):
        os.mkdir(self.path)
        with open(os.path.join(self.path, self.name), "w") as f:
            f.write(str(self.limit))
        return self

    def __exit__(self, *_):
        os.rmdir(self.path)

    def join(self):
        with open(os.path.join(self.path, "cgroup.procs"), "w") as f:
            f.write(str(os.getpid()))


def model(experts, used, width, routing):
    where = os.environ.get("PROFINFER_MODELS") or os.path.join(CACHE, "models")
    path = os.path.join(where, f"moe-{experts}-{used}-{width}-{routing}-{TYPE}.gguf")
    if not os.path.exists(path):
        os.makedirs(where, exist_ok=True)
        part = f"{path}.{os.getpid()}"
        sh([binary("ggml-runner"), "synth", "moe", part, "--type", TYPE, "--experts", str(experts), "--experts-used", str(used),
            "--expert-width", str(width), "--routing", routing], stderr=subprocess.DEVNULL)
        os.replace(part, path)
    return path


def command(path, *more):
    return [binary("ggml-runner"), "run", "-m", path, "-p", str(PROMPT), "-n", str(DECODE), "-t", "1", "--temp", "1",
            "--no-roofline", "--no-warmup", "--json", *more]


def needed(args):
    """Memory that a command needs, without a limit, bytes."""
    child = subprocess.Popen(args, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise BenchError(f"{' '.join(args)}: status {child.returncode}")
    return used.ru_maxrss << 10


def limited(limit, args):
    """Runs within the limit; the pages of the model are not in the page cache before."""
    path = args[args.index("-m") + 1]
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    with Group(limit) as group:
        done = subprocess.run(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=group.join)
    if done.returncode:
        raise BenchError(f"{' '.join(args)} in {limit >> 20} MiB: status {done.returncode}: {done.stderr.strip()[-200:]}")
    return json.loads(done.stdout)


def recorded(path, trace, *more):
    # Probes of the kernel would make a token of a small model a tenth longer.
    record = [binary("profinfer"), "record", "-q", "--force", "--experts", "--source", "inside", "-o", trace]
    # As with slots: experts in slots are not repacked, and a token takes longer.
    slots = ["--expert-slots", path.split("moe-")[1].split("-")[0], "--experts-from", "memory"]
    sh([*record, "--", *command(path, *slots, *more)], stderr=subprocess.DEVNULL)
    return trace


def predictions(path, scratch, slots):
    """Rows of `profinfer experts` by slots and policy, the list of experts of another prompt, and all that was said."""
    pins = scratch.file("pins.csv")
    with open(pins, "w") as f:
        f.write(sh([binary("profinfer"), "experts", recorded(path, scratch.file("other.pfi"), "--seed", "7"), "--csv"]))
    flags = ["--slots", ",".join(map(str, slots)), "--storage", path, "--pins", pins]
    found = json.loads(sh([binary("profinfer"), "experts", recorded(path, scratch.file("run.pfi")), "--json", *flags]))
    rows = {(r["slots"], r["policy"]): (r["hit_rate"], r["tokens_per_s"]) for r in found["caches"]}
    return rows, pins, found


def of_model(scratch, shape, args):
    path = model(*shape)
    # What a disk reads ahead for a mapping that jumps would be the whole difference.
    with read_ahead(path, args.read_ahead):
        yield from of_file(scratch, path, shape, args.rounds)


def of_file(scratch, path, shape, rounds):
    experts, used, width, routing = shape
    slots = sorted({max(used, experts // 8), max(used + 1, experts // 4), experts // 2})
    rows, pins, found = predictions(path, scratch, slots)
    reads = ", ".join(f"{ns / 1e3:.0f}" for ns in found["reads_ns"])
    print(f"\n{experts} experts of width {width}, {used} used, {routing}: {os.path.getsize(path) >> 20} MiB, {found['all_bytes'] >> 20} MiB of experts; "
          f"{1e9 / found['token_ns']:.1f} tok/s recorded; reads of 1 to {len(found['reads_ns'])} experts: {reads} us")
    print("slots  MiB  policy  hit % predicted     had      tok/s predicted      had    plain")
    for n in slots:
        limit = int(needed(command(path, "--expert-slots", str(n))) * ROOM)
        speeds, rates = {p: [] for p in [*POLICIES, "plain"]}, {}
        for _ in range(rounds):
            for policy in POLICIES:
                name = f"pin:{pins}" if policy == "pin" else policy
                run = limited(limit, command(path, "--expert-slots", str(n), "--expert-policy", name))
                counts = run["expert_slots"]["decode"]
                rates[policy] = counts["hits"] / counts["needed"]
                speeds[policy].append(run["decode"]["tok_s"])
            speeds["plain"].append(limited(limit, command(path, "--placement", "mapped"))["decode"]["tok_s"])
        plain = statistics.median(speeds["plain"])
        for policy in POLICIES:
            yield judged(n, limit, policy, rows[n, policy], rates[policy], statistics.median(speeds[policy]), plain)


def judged(slots, limit, policy, row, rate, speed, plain):
    predicted, (least, most) = row
    print(f"{slots:5}  {limit >> 20:3}  {policy:6}  {predicted:15.2%}  {rate:6.2%}  {least:7.2f} to {most:7.2f}  {speed:7.2f}  {plain:7.2f}", flush=True)
    near = min(max(speed, least), most)
    return policy, abs(predicted - rate), abs(speed / near - 1), speed / plain


def run():
    bench = Bench("experts", __doc__)
    bench.parser.add_argument("--rounds", type=int, default=3, metavar="N", help="runs of each kind (3; --quick: 1)")
    bench.parser.add_argument("--read-ahead", type=int, default=128, metavar="KIB", help="read-ahead of the models' disk (128, the kernel's default)")
    args = bench.begin()
    args.rounds = 1 if args.quick else args.rounds
    found = []
    with Scratch() as scratch:
        for shape in MODELS:
            found += of_model(scratch, shape, args)
    worst = max(error for _, error, _, _ in found)
    bench.judge(worst <= 0.01, f"hit rates: at most {worst:.2%} off, target <= 1 %")
    for policy in POLICIES:
        errors = [error for p, _, error, _ in found if p == policy]
        close = sum(error <= 0.1 for error in errors)
        bench.judge(close == len(errors), f"{policy}: tok/s within 10 % in {close} of {len(errors)}, at most {max(errors):.0%} off")
    gains = [gain for p, _, _, gain in found if p == "next"]
    bench.judge(min(gains) >= 1.3, f"next: {statistics.median(gains):.2f} times plain mapping, at least {min(gains):.2f}, target >= 1.3")
    return bench.end()


if __name__ == "__main__":
    main(run)
