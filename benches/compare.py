"""Two builds beside each other, in alternating pairs: the speed of an engine alone and recorded, bytes of a trace, the time of
report and export, and ggml-runner.

OLD and NEW are directories with `profinfer` and `ggml-runner`, or commits, which are built first, each in a tree of its own in
the cache. A figure is worse only if three quarters of the pairs say so.
"""

import json
import os
import statistics
import subprocess
import time

from common import CACHE, ROOT, Bench, BenchError, Scratch, main, model, quartiles, sh

MODEL = "llama1b-L4-q4_0"


def build_of(name):
    """The directory of a build's programs."""
    if os.path.isdir(name):
        return os.path.abspath(name)
    commit = sh(["git", "rev-parse", "--verify", "--short=12", f"{name}^{{commit}}"], cwd=ROOT).strip()
    tree = os.path.join(CACHE, "compare", commit)
    programs = os.path.join(tree, "target", "release")
    if not all(os.path.exists(os.path.join(programs, program)) for program in ("profinfer", "ggml-runner")):
        print(f"building {commit} ...", flush=True)
        sh(["git", "worktree", "prune"], cwd=ROOT)
        if not os.path.isdir(tree):
            sh(["git", "worktree", "add", "--detach", tree, commit], cwd=ROOT)
        sh(["cargo", "build", "--release", "--locked", "--bins", "--target-dir", os.path.join(tree, "target")], cwd=tree)
    return programs


def seconds_of(command):
    begin = time.monotonic()
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise BenchError(f"{' '.join(command)}: {done.stderr.strip()}")
    return time.monotonic() - begin


def speed_of(command):
    """Tokens per second of decoding, as ggml-runner says itself."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise BenchError(f"{' '.join(command)}: {done.stderr.strip()}")
    return json.loads(done.stdout.strip().splitlines()[-1])["decode"]["tok_s"]


def figures(build, engine, tokens, tmp):
    """Name -> value of one round; of recording and reading, with the same engine for both builds."""
    profinfer, out = os.path.join(build, "profinfer"), tmp.file("compare.pfi")

    def run(runner):
        return [runner, "run", "-m", model(MODEL), "-p", "32", "-n", str(tokens), "-t", "2", "--no-roofline", "--json"]

    found = {"ggml-runner alone, tok/s": speed_of(run(os.path.join(build, "ggml-runner")))}
    record = [profinfer, "record", "-q", "--force", "-o", out, "--", *run(engine)]
    found["an engine recorded, tok/s"] = speed_of(record)
    slices = json.loads(sh([profinfer, "report", "--json", out]))["quality"]["hits"]["slices"]
    found["bytes of a slice"] = os.path.getsize(out) / slices
    found["report, s"] = seconds_of([profinfer, "report", out])
    found["export --perfetto, s"] = seconds_of([profinfer, "export", "--force", "--perfetto", tmp.file("out.pftrace"), out])
    found["size of profinfer, MB"] = os.path.getsize(profinfer) / 1e6
    return found


def run():
    bench = Bench("compare", __doc__)
    bench.parser.add_argument("old", metavar="OLD", help="a directory of programs, or a commit")
    bench.parser.add_argument("new", metavar="NEW", help="the same, compared with it")
    bench.parser.add_argument("--rounds", type=int, help="pairs (9; 3 with --quick)")
    args = bench.begin()
    builds = [build_of(args.old), build_of(args.new)]
    rounds, tokens = args.rounds or (3 if args.quick else 9), 64 if args.quick else 192
    pairs = {}
    with Scratch() as tmp:
        for i in range(rounds):
            values = {}
            # Each comes first as often as the other.
            for which in (0, 1) if i % 2 == 0 else (1, 0):
                values[which] = figures(builds[which], os.path.join(builds[0], "ggml-runner"), tokens, tmp)
            for name, value in values[0].items():
                pairs.setdefault(name, []).append((value, values[1][name]))
    print(f"{'':28} {'old':>10} {'new':>10}  new / old [quartiles]")
    for name, values in pairs.items():
        low, mid, high = quartiles([new / old for old, new in values])
        old, new = (statistics.median(column) for column in zip(*values))
        worse = high < 1 if name.endswith("tok/s") else low > 1
        bench.judge(not worse, f"{name:28} {old:10.3f} {new:10.3f}  {mid:.3f} [{low:.3f}, {high:.3f}]")
    return bench.end()


if __name__ == "__main__":
    main(run)
