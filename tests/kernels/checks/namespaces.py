"""A recorder beside one that records: in another PID namespace, in another time namespace, in the same, and one that dies.
The first one's engine, its recording and the kernel's tracing stay well; what a killed one leaves is removed by the next."""

import os
import shutil
import subprocess

import boot
from bed import ROOT

KERNELS = "5.10 7.2"
ALSO = "6.1 6.12"
# In parallel: a probe must not be removed while another CPU hits it.
BOOT = {"mode": "par", "cpus": 2, "limit": 900}
SECONDS = 200
# The others beside the first recorder, and how each must end.
REFUSED = {"pid": "--pid=host", "time": "time namespace", "same": None}
FIRST = ["beside", "kill"]
SCRIPT = """
events=/sys/kernel/tracing/uprobe_events
ggml-runner synth tiny /tmp/m.gguf --type q4_0 >/dev/null
step() { echo "$(cut -d. -f1 /proc/uptime) s: $*" >&2; }
guards() { grep -ls profinfer-guard /proc/[0-9]*/comm | cut -d/ -f3; }
other() { # its name, and what precedes a second recorder
    way=$1
    shift
    "$@" profinfer record --force -o /tmp/b.pfi -- ggml-runner run -m /tmp/m.gguf -p 4 -n 4 -t 1 --no-roofline \\
        >b-$way.txt 2>&1 && echo 0 >code-$way.txt || echo $? >code-$way.txt
}
for first in beside kill; do
    step $first
    ggml-runner run -m /tmp/m.gguf -p 4 -n 20000 -t 1 --no-roofline >/dev/null 2>&1 &
    engine=$!
    # Its perf events are definitions, also where BPF programs need none.
    [ $first != kill ] || { profinfer record --force --source perf -o /tmp/perf.pfi -p $engine 2>perf.txt & perf=$!; }
    within 30 'grep -q ggml-runner /proc/$engine/maps'
    # Emulation translates what runs anew for each probe.
    kill -STOP $engine
    profinfer record --force --duration 400s -o /tmp/a.pfi -p $engine >a-$first.txt 2>&1 &
    recorder=$!
    within 60 'grep -q ready: a-$first.txt'
    kill -CONT $engine
    step ready
    case $first in
    beside)
        other pid unshare -p -f --mount-proc=/proc
        unshare -p -f --mount-proc=/proc profinfer doctor --no-probe >doctor.txt || true
        other time /job/time_namespace 1000
        other same env
        ;;
    kill)
        within 60 'grep -q ready: perf.txt'
        kill -9 $(guards) $perf
        ;;
    esac
    step beside
    # The engine goes on through all that is still probed.
    size=$(stat -c %s /tmp/a.pfi)
    within 60 '[ $(stat -c %s /tmp/a.pfi) -gt $((size + 4000)) ]'
    kill -INT $recorder
    wait $recorder || true
    step ended
    profinfer report --json /tmp/a.pfi >a-$first.json
    ! kill $engine || echo $first >>alive.txt
done
within 60 '[ -z "$(guards)" ]'
profinfer doctor --no-probe >killed.txt || true
cp $events between.txt
other after env
within 60 '! grep -q profinfer_ $events'
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
    book.expect(run.text("alive.txt").split() == FIRST, f"the engine lived through {run.text('alive.txt').split()}")
    book.expect(int(run.text("tainted.txt")) & 1 << 7 == 0, "the kernel had an oops")
    for word in ["Oops", "handler_chain", "list_add", "WARNING:"]:
        book.expect(word not in run.text("kernel.txt"), f"the kernel said {word}")
    for first in FIRST:
        for kind in run.json(f"a-{first}.json")["quality"]["events"]:
            book.expect(kind["closes"], f"{first}: {kind}")
    for way, refused in REFUSED.items():
        said, code = run.text(f"b-{way}.txt"), int(run.text(f"code-{way}.txt"))
        if refused:
            book.expect(code == 1 and refused in said and "ready:" not in said, f"{way}: {code}: {said}")
        else:
            book.expect(code == 0, f"{way}: {code}: {said}")
    book.expect("--pid=host" in run.text("doctor.txt"), f"doctor: {run.text('doctor.txt')}")
    left = run.text("between.txt").count("profinfer_")
    book.expect(left > 0, "a killed recorder without its guard left nothing: the check proves nothing")
    book.expect(f"{left} left by killed recorders" in run.text("killed.txt"), f"doctor after a kill: {run.text('killed.txt')}")
    book.expect(f"removed {left} probes" in run.text("b-after.txt"), f"the next one: {run.text('b-after.txt')}")
    book.expect("profinfer_" not in run.text("left.txt"), f"left: {run.text('left.txt')}")
