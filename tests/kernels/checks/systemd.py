"""As a service under a real systemd: `profinfer install`, its hardened unit, and a run of another user's engine;
reload, stop, and kill -9."""

HERE = "tests/kernels/systemd"
KERNELS = "6.1"
# Units that have nothing to do without devices, and take seconds here.
IDLE = "systemd-udevd.service systemd-udev-trigger.service systemd-udevd-control.socket systemd-udevd-kernel.socket"
BOOT = {
    "limit": 240,
    "append": " ".join(["systemd.unit=job.service systemd.show_status=0", *(f"systemd.mask={unit}" for unit in IDLE.split())]),
}
TREES = ["systemd"]
FILES = {
    "/job/first": f"{HERE}/first",
    "/etc/systemd/system/job.service": f"{HERE}/job.service",
    **{f"/etc/{name}": f"{HERE}/{name}" for name in ["passwd", "group", "machine-id", "os-release"]},
}
BOARDS = True
SECONDS = 80
SCRIPT = """
trap 'journalctl -q --no-pager -o cat -u profinfer >journal.txt' EXIT
of() { systemctl show --value -p "$1" profinfer; }
bytes() { cat /var/lib/profinfer/*.pfi 2>/dev/null | wc -c; }

# Another user's engine, in a directory only that user can access.
mkdir -p /home/llm /var/lib
cp /job/ggml-runner /home/llm/runner
ggml-runner synth tiny /home/llm/m.gguf --type q4_0 >/dev/null
chown -R 1000:1000 /home/llm && chmod 700 /home/llm

profinfer install >install.txt
# All ops, at any cost.
printf '[[rule]]\\nname = "all"\\nbudget = "100%%"\\n' >>/etc/profinfer/profinfer.toml
systemctl daemon-reload
systemctl start profinfer
systemctl show profinfer >started.txt
first=$(of MainPID)

su llm -s /bin/sh -c 'exec /home/llm/runner run -m /home/llm/m.gguf -p 8 -n 100000 -t 1 --no-warmup --no-roofline' >/dev/null 2>&1 &
within 60 '[ $(bytes) -gt 8000 ]'
systemctl reload profinfer
systemctl show profinfer >reloaded.txt
[ "$(of MainPID)" = "$first" ]
more=$(bytes)
within 60 '[ $(bytes) -gt $more ]'
stat -c '%a %U' /var/lib/profinfer /run/profinfer /var/lib/profinfer/*.pfi >modes.txt
systemctl stop profinfer
systemctl show profinfer >stopped.txt
kill $!
for file in /var/lib/profinfer/*.pfi; do profinfer report --json "$file" >report.json; done

systemctl start profinfer
systemctl kill --kill-who=main -s KILL profinfer
within 30 '[ "$(of NRestarts)" = 1 ] && systemctl -q is-active profinfer'
systemctl stop profinfer
systemctl show profinfer >ended.txt
cat /sys/kernel/tracing/uprobe_events >left.txt
profinfer install --uninstall >removed.txt
"""


def judge(run, book):
    def shown(name):
        return dict(line.split("=", 1) for line in run.text(name).splitlines() if "=" in line)

    book.expect("init system: systemd" in run.text("install.txt"), f"systemd was not found: {run.text('install.txt')}")
    started = shown("started.txt")
    for key, value in {"ActiveState": "active", "SubState": "running", "Type": "notify", "WatchdogUSec": "30s"}.items():
        book.expect(started.get(key) == value, f"{key} is {started.get(key)} when started")
    book.expect("recording 1" in shown("reloaded.txt").get("StatusText", ""), "the service did not report its status to systemd")
    for name in ["stopped.txt", "ended.txt"]:
        ended = shown(name)
        state = (ended.get("ActiveState"), ended.get("Result"))
        book.expect(state == ("inactive", "success"), f"{name}: {state}: {run.text('journal.txt')[-2000:]}")
    for line in run.text("modes.txt").splitlines():
        book.expect(line in ("700 root", "600 root"), f"mode and owner of what it writes: {line}")
    book.expect(not run.text("left.txt"), f"probes were left: {run.text('left.txt')}")
    book.kept(run.json("report.json"))
