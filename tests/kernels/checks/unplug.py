"""A CPU goes offline and comes back while ops are counted and threads followed: the recording continues, and reports
it."""

KERNELS = "5.10 7.2"
BOOT = {"mode": "par", "limit": 120}
SECONDS = 15
SCRIPT = r"""
cpu=/sys/devices/system/cpu/cpu1/online
ggml-runner synth tiny /tmp/m.gguf --type q4_0 >/dev/null
ggml-runner run -m /tmp/m.gguf -p 8 -n 100000 -t 2 --no-warmup --no-roofline >/dev/null &
engine=$!
profinfer record --pmc task-clock,context-switches --sched -p $engine -o /tmp/run.pfi 2>said.txt &
recorder=$!
# The duration of each step depends on the machine; a missing one ends with the guest's time limit.
until [ $(ls -l /proc/$recorder/fd 2>/dev/null | grep -c 'bpf_link\|perf_event') -gt 12 ]; do sleep 1; done
sleep 2
echo 0 >$cpu
until grep -q offline said.txt; do sleep 1; done
echo 1 >$cpu
until grep -q 'came online' said.txt; do sleep 1; done
sleep 2
kill -TERM $recorder
wait $recorder
kill $engine
profinfer report --json /tmp/run.pfi >report.json
"""


def judge(run, book):
    said = run.text("said.txt")
    for words in ("CPU 1 went offline", "CPU 1 came online"):
        book.expect(words in said, f"no message '{words}': {said}")
    report = run.json("report.json")
    book.losses(sum(event["lost"] for event in report["quality"]["events"]))
    counters = {counter["name"]: counter["state"] for counter in report["counters"]}
    book.expect(set(counters.values()) == {"whole"}, f"counters: {counters}")
    # Calls already running when the recording started have an unknown phase.
    decode = next(phase for phase in report["phases"] if phase["phase"] == "decode")
    book.expect(decode["calls"] > 10, f"only {decode['calls']} calls of {decode['phase']}")
