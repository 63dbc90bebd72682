"""As on a board: the init script starts the service at boot, it records our runner and Debian's llama.cpp; power
fails during a recording, and with the same disk the service starts again, keeps the recordings, and continues
recording."""

import json

BOOT = {"limit": 300, "memory": 2048}
TREES = ["llama"]
BOARDS = True
SECONDS = 110
COMMON = """
trap 'cat /var/log/profinfer.log >log.txt 2>/dev/null || true' EXIT
# Like init at boot.
boot() {
    mkdir -p /run /var/log
    mount -t tmpfs tmpfs /run
    for script in /etc/rc5.d/S*; do $script start; done
    /etc/init.d/profinfer status
}
files() { ls /var/lib/profinfer/*.pfi 2>/dev/null; }
# An engine, until enough of it is recorded to contain some tokens. The file of the one before may still grow.
engine() { # command...
    before=$(files | wc -l)
    "$@" >/dev/null 2>&1 &
    within 60 '[ $(files | wc -l) -gt $before ] && [ $(wc -c <$(files | tail -n 1)) -gt 8000 ]'
}
runner() { engine ggml-runner run -m /tmp/m.gguf -p 8 -n 100000 -t 1 --no-warmup --no-roofline; }
reports() { # name
    for file in /var/lib/profinfer/*.pfi; do
        number=$((number + 1))
        profinfer report --json $file >$1-$number.json || echo "$file" >>unread.txt
    done
}
number=0
ggml-runner synth tiny /tmp/m.gguf --type q4_0 >/dev/null
"""
SCRIPT = COMMON + """
mkdir -p /etc/init.d /etc/rc5.d /usr/local
profinfer install --init sysv >install.txt
# All ops, at any cost.
printf '[[rule]]\\nname = "all"\\nbudget = "100%%"\\n' >>/etc/profinfer/profinfer.toml
ln -s ../init.d/profinfer /etc/rc5.d/S95profinfer
boot >boot.txt

runner
kill $!
engine llama-bench -m /tmp/m.gguf -t 2 -p 8 -n 100000 -r 1
kill $!
/etc/init.d/profinfer restart >>boot.txt
reports whole

# And power fails while it records another run.
runner
tar cf /out/disk.tar -C / etc/init.d etc/rc5.d etc/profinfer usr/local var/lib/profinfer
"""
AGAIN = COMMON + """
tar xf /job/disk.tar -C /
boot >boot.txt
reports old
runner
/etc/init.d/profinfer stop >>boot.txt
reports all
cat /sys/kernel/tracing/uprobe_events >left.txt
"""


def reports(run, name):
    return [json.loads(path.read_text()) for path in sorted(run.path("").glob(f"{name}-*.json"))]


def programs(reports):
    return {process["exe"].rsplit("/", 1)[-1] for report in reports for process in report["run"]["processes"]}


def judge(run, book):
    book.expect("profinfer: runs (pid" in run.text("boot.txt"), f"it does not run after the boot: {run.text('boot.txt')}")
    whole = reports(run, "whole")
    missing = {"ggml-runner", "llama-bench"} - programs(whole)
    book.expect(not missing, f"not recorded: {missing}: {run.text('log.txt')}")
    for report in whole:
        book.kept(report)


def judge_again(run, book):
    book.expect("profinfer: runs (pid" in run.text("boot.txt"), f"it does not run after the reboot: {run.text('boot.txt')}")
    book.expect(not run.path("unread.txt").exists(), "an earlier recording is unreadable")
    old, after = reports(run, "old"), reports(run, "all")
    book.expect({"ggml-runner", "llama-bench"} <= programs(old), f"remaining earlier recordings: {programs(old)}")
    book.expect(len(after) > len(old), f"nothing was recorded after the reboot: {run.text('log.txt')}")
    # The one before the last was cut off by the power failure, and has no event statistics.
    book.kept(after[-1])
    book.expect(not run.text("left.txt"), f"probes were left: {run.text('left.txt')}")
