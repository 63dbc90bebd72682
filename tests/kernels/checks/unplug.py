"""A CPU goes offline and comes back while ops are counted and threads followed: the recording continues, and reports
it."""

ALSO = "7.2"
BOOT = {"mode": "par", "limit": 120}
BOARDS = True
SECONDS = 15
SCRIPT = r"""
cpu=/sys/devices/system/cpu/cpu1/online
ggml-runner synth tiny /tmp/m.gguf --type q4_0 >/dev/null
ggml-runner run -m /tmp/m.gguf -p 8 -n 100000 -t 2 --no-warmup --no-roofline >/dev/null &
engine=$!
profinfer record --pmc task-clock,context-switches --sched -p $engine -o /tmp/run.pfi 2>said.txt &
recorder=$!
# Until enough more is recorded to contain some tokens.
tokens() {
    before=$(wc -c </tmp/run.pfi)
    within 60 '[ $(wc -c </tmp/run.pfi) -gt $((before + 20000)) ]'
}
within 60 'grep -q "ready: recording" said.txt'
tokens
echo 0 >$cpu
within 60 'grep -q offline said.txt'
echo 1 >$cpu
within 60 'grep -q "came online" said.txt'
tokens
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
