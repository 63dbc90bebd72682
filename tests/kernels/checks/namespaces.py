"""A recorder beside one that records: in another PID namespace, in another time namespace, in the same, and one that dies.
The first one's engine, its recording and the kernel's tracing stay well; what a killed one leaves is removed by the next."""

import os
import shutil
import subprocess

import boot
from bed import ROOT

KERNELS = "5.10 7.2"
ALSO = "6.1 6.12"
BOOT = {"limit": 400}
SECONDS = 90
WAYS = ["pid", "time", "same", "kill"]
SCRIPT = """
events=/sys/kernel/tracing/uprobe_events
ggml-runner synth tiny /tmp/m.gguf --type q4_0 >/dev/null
other() { # what precedes a second recorder
    "$@" profinfer record --force -o /tmp/b.pfi -- ggml-runner run -m /tmp/m.gguf -p 4 -n 4 -t 1 --no-roofline \\
        >b-$way.txt 2>&1 && echo 0 >code-$way.txt || echo $? >code-$way.txt
}
ggml-runner run -m /tmp/m.gguf -p 4 -n 1000000 -t 1 --no-roofline >/dev/null 2>&1 &
engine=$!
for way in pid time same kill; do
    # The perf events of each are definitions, also where BPF programs need none.
    profinfer record --force --source perf -o /tmp/perf.pfi -p $engine 2>perf-$way.txt &
    perf=$!
    profinfer record --force -o /tmp/a.pfi -p $engine >a-$way.txt 2>&1 &
    first=$!
    within 60 'grep -q ready: a-$way.txt && grep -q ready: perf-$way.txt'
    case $way in
    pid) other unshare -p -f --mount-proc=/proc; unshare -p -f --mount-proc=/proc profinfer doctor >doctor.txt || true ;;
    time) other /job/time_namespace 1000 ;;
    same) other env ;;
    kill) killall -9 profinfer-guard; kill -9 $perf ;;
    esac
    # The engine goes on through all that is still probed.
    size=$(stat -c %s /tmp/a.pfi)
    within 60 '[ $(stat -c %s /tmp/a.pfi) -gt $((size + 4000)) ]'
    kill -INT $first
    wait $first || true
    profinfer report --json /tmp/a.pfi >a-$way.json
    kill -0 $engine && echo $way >>alive.txt
    [ $way = kill ] || { kill -INT $perf; wait $perf || true; }
done
within 60 '! kill -0 $perf 2>/dev/null && ! grep -qs profinfer-guard /proc/[0-9]*/comm'
profinfer doctor >killed.txt || true
cp $events between.txt
way=after
other env
cat $events >left.txt
cat /proc/sys/kernel/tainted >tainted.txt
dmesg >kernel.txt
"""


def prepare(guest):
    compiler = "cc" if os.uname().machine == "aarch64" else "aarch64-linux-gnu-gcc"
    if not shutil.which(compiler):
        raise boot.Absent(f"no {compiler}: scripts/setup.sh installs it")
    program, source = guest.out / "time_namespace", ROOT / "tests" / "kernels" / "time_namespace.c"
    subprocess.run([compiler, "-O2", "-Wall", "-Wextra", "-Werror", "-static", "-o", program, source], check=True)
    guest.files["/job/time_namespace"] = program


def judge(run, book):
    book.expect(run.text("alive.txt").split() == WAYS, f"the engine lived through {run.text('alive.txt').split()}")
    book.expect(int(run.text("tainted.txt")) & 1 << 7 == 0, "the kernel had an oops")
    for word in ["Oops", "handler_chain", "list_add", "WARNING:"]:
        book.expect(word not in run.text("kernel.txt"), f"the kernel said {word}")
    for way in WAYS:
        report = run.json(f"a-{way}.json")
        for kind in report["quality"]["events"]:
            book.expect(kind["closes"] and not kind["lost"], f"beside {way}: {kind}")
        said, code = run.text(f"b-{way}.txt") if way != "kill" else "", way != "kill" and int(run.text(f"code-{way}.txt"))
        refused = {"pid": "--pid=host", "time": "time namespace"}.get(way)
        if refused:
            book.expect(code == 1 and refused in said and "ready:" not in said, f"{way}: {code}: {said}")
        else:
            book.expect(code == 0, f"{way}: {code}: {said}")
    book.expect("--pid=host" in run.text("doctor.txt").splitlines()[-1], f"doctor: {run.text('doctor.txt')}")
    left = run.text("between.txt").count("profinfer_")
    book.expect(left > 0, "a killed recorder without its guard left nothing: the check proves nothing")
    book.expect(f"{left} left by killed recorders" in run.text("killed.txt"), f"doctor after a kill: {run.text('killed.txt')}")
    book.expect(f"removed {left} probes" in run.text("b-after.txt"), f"the next one: {run.text('b-after.txt')}")
    book.expect("profinfer_" not in run.text("left.txt"), f"left: {run.text('left.txt')}")
