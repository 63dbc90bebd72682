"""Unequal CPU clusters: the trace lists them, the recorder stays on a small core, the engine may use all of them, and the
kernel's Energy Model of them is read in its unit, which differs between kernels."""

import re

KERNELS = "5.10 7.2"
BOOT = {"clusters": "2x446@600,1800*100:arm,cortex-a55 2x1024@900,2900*400:arm,cortex-a76", "modules": ["cpufreq_dt"]}
BOARDS = True
SECONDS = 10
# By the model, of one CPU at 2.9 GHz: its coefficient times frequency and voltage squared.
BIG_WATTS = 1.16
SCRIPT = """
ggml-runner synth tiny /tmp/m.gguf --type q4_0 >/dev/null
cat >/tmp/engine <<'END'
grep Cpus_allowed_list /proc/$PPID/status >recorder.txt
grep Cpus_allowed_list /proc/self/status >engine.txt
END
# Nothing is recorded of a shell that only prints.
profinfer record -o /tmp/none.pfi -- sh /tmp/engine 2>/dev/null || true
profinfer record -o /tmp/run.pfi -- ggml-runner run -m /tmp/m.gguf -p 8 -n 4 -t 2 --no-warmup --no-roofline >/dev/null
profinfer report --json /tmp/run.pfi >report.json
profinfer report --verbose /tmp/run.pfi >report.txt
ggml-runner peak -t 1 --json >peak.json
# One thread on a big core at 2.9 GHz: 1.16 W by the model.
for governor in /sys/devices/system/cpu/cpufreq/policy*/scaling_governor; do echo performance >$governor; done
cat /sys/devices/system/cpu/cpufreq/policy*/scaling_cur_freq >mhz.txt
grep -r . /sys/kernel/debug/energy_model >model.txt
grep '^cpu[23]' /proc/stat >before.txt
profinfer record --sensors -o /tmp/energy.pfi -- taskset 8 ggml-runner run -m /tmp/m.gguf -p 8 -n 200 -t 1 --no-warmup --no-roofline >/dev/null
grep '^cpu[23]' /proc/stat >after.txt
profinfer report --json /tmp/energy.pfi >energy.json
profinfer report --by energy /tmp/energy.pfi >energy.txt
"""


def judge(run, book):
    report = run.json("report.json")
    book.recorded(report)
    # The kernel scales capacity by the highest frequency: 446 at 1.8 GHz next to 1024 at 2.9 GHz.
    wanted = [
        {"cpus": [2, 3], "capacity": 1024, "max_khz": 2_900_000},
        {"cpus": [0, 1], "capacity": 276, "max_khz": 1_800_000},
    ]
    book.expect(report["run"]["clusters"] == wanted, f"clusters: {report['run']['clusters']}")
    cores = re.search(r"^ *cores .*", run.text("report.txt"), re.MULTILINE)
    book.expect(cores and "capacity 276" in cores[0] and "1.8 GHz" in cores[0], f"cores in the report: {cores}")
    allowed = {who: run.text(f"{who}.txt").split()[-1] for who in ("recorder", "engine")}
    book.expect(allowed == {"recorder": "0", "engine": "0-3"}, f"CPUs of each: {allowed}")
    # QEMU emulates one kind of core, so only capacity distinguishes them.
    found = [(cluster["cpus"], cluster["name"].split(", ")[-1]) for cluster in run.json("peak.json")["clusters"]]
    book.expect(found == [([2, 3], "capacity 1024"), ([0, 1], "capacity 276"), ([2, 3, 0, 1], "all")], f"ggml-runner's clusters: {found}")
    judge_energy(run, book)


def busy_seconds(stat):
    """By CPU in these lines of /proc/stat: user, nice, system, irq, softirq."""
    lines = [line.split() for line in stat.splitlines()]
    return {name: sum(int(numbers[i]) for i in (0, 1, 2, 5, 6)) / 100 for name, *numbers in lines}


def judge_energy(run, book):
    """The energy of the cluster that computed: that of its busy time at the model's power."""
    energy = run.json("energy.json")["energy"]
    models = {source["name"]: source for source in energy["sources"] if source["model"]}
    book.expect(set(models) == {"model of CPUs 0-1", "model of CPUs 2-3"}, f"Energy Model: {list(models)}")
    # A host without time for all of its guest's CPUs takes ticks from them, so that a thread that always computes is not
    # busy all the time: the guest's own count says how long its CPU was, and how long both were. Before
    # the engine is found nothing is read.
    big = models.get("model of CPUs 2-3", {})
    before, after = (busy_seconds(run.text(f"{when}.txt")) for when in ("before", "after"))
    seconds = [after[cpu] - before[cpu] for cpu in ("cpu3", "cpu2")]
    book.expect(
        seconds[0] > 1 and 0.5 * seconds[0] < big.get("joules", 0) / BIG_WATTS < 1.1 * sum(seconds),
        f"{big.get('joules')} J of {seconds} s at {BIG_WATTS} W",
    )
    watts = [p["watts"] for p in big.get("phases", []) if p["phase"] == "decode"]
    book.expect(watts and 0 < watts[0] < 1.5 * BIG_WATTS, f"{watts} W in decode")
    primary = energy["primary"] or {}
    book.expect(primary.get("model") is True and primary.get("decode_j_per_token"), f"the preferred source: {primary}")
    book.expect("model" in run.text("energy.txt"), "the report does not say that it is a model")
