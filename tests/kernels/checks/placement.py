"""Two clusters of CPUs: `tune` runs an engine on the CPUs that it names, and leaves the machine as it was, also after a
kill; a service's rule moves threads between the clusters, and they have all CPUs again after its end and after a kill."""

import json

ALSO = "7.2"
BOOT = {"clusters": "2x446@600,1800:arm,cortex-a55 2x1024@900,2900:arm,cortex-a76", "modules": ["cpufreq_dt"], "limit": 500}
BOARDS = True
SECONDS = 300
SCRIPT = r"""
mode=/sys/kernel/mm/transparent_hugepage/enabled
masks() { grep -h Cpus_allowed_list /proc/$engine/task/*/status | cut -f 2 | sort -u | tr '\n' ' '; }
ggml-runner synth tiny /tmp/m.gguf --type q4_0 >/dev/null
mkdir -p /tmp/bin /tmp/d /run

# Engines that write down which CPUs they were given. The second has settings, as tune knows its name.
cat >/tmp/bin/ggml-runner <<'END'
#!/bin/sh
[ "$2" = --help ] || echo "$(grep Cpus_allowed_list /proc/self/status | cut -f 2) $*" >>ran.txt
exec /job/ggml-runner "$@"
END
cat >/tmp/bin/llama-bench <<'END'
#!/bin/sh
case $1 in --help) exit ;; esac
while [ $# -gt 0 ]; do
    case $1 in -n) tokens=$2 ;; -t) threads=$2 ;; esac
    shift
done
mode=$(cat /sys/kernel/mm/transparent_hugepage/enabled)
echo "$mode" >>modes.txt
if [ -e /tmp/hold ] && [ "$mode" != "$(cat before.txt)" ]; then
    touch /tmp/held
    exec sleep 1000
fi
exec /job/ggml-runner run -m /tmp/m.gguf -p 4 -n $tokens -t ${threads:-1} --no-warmup --no-roofline
END
chmod +x /tmp/bin/*
# The time is patience: emulated, a run takes 20 s.
quick="--phase decode --rounds 0 --prompt 4 --tokens 16 --time 30min --no-energy --no-keep --foreign-load 100000%"
# The first of the settings that are tried is another one.
echo never >$mode
cat $mode >before.txt
# A CPU of each cluster: few choices. All of them, as how fast each is depends on the host.
profinfer tune --json $quick --exhaustive --cpus 1,2 --knobs none -- /tmp/bin/ggml-runner run -m /tmp/m.gguf -t 1 --no-warmup >tune.json
pages="$quick --cpus 2 --knobs huge-pages"
profinfer tune $pages -- /tmp/bin/llama-bench >/dev/null 2>&1 &
tune=$!
within 120 '[ $(sort -u modes.txt 2>/dev/null | wc -l) -gt 1 ]'
kill -TERM $tune
wait $tune || true
cat $mode >after.txt
# Killed while the mode is another one.
touch /tmp/hold
profinfer tune $pages -- /tmp/bin/llama-bench >/dev/null 2>&1 &
tune=$!
within 120 '[ -e /tmp/held ]'
kill -9 $tune
within 20 '! pidof sleep >/dev/null'
cat $mode >killed.txt
profinfer tune --restore >restore.txt
cat $mode >restored.txt

cat >/tmp/conf.toml <<'END'
[service]
directory = "/tmp/d"
socket = "/run/control"
status = "/run/status"
[[rule]]
name = "clusters"
exe = "ggml-runner"
budget = "100%"
level = "graph"
decode-cpus = "2-3"
prefill-cpus = "0-1"
END
serve() {
    profinfer serve --conf /tmp/conf.toml 2>>serve.txt &
    service=$!
    within 30 'profinfer status --socket /run/control >/dev/null 2>&1'
}
serve
profinfer watch --socket /run/control >watch.txt &
ggml-runner run -m /tmp/m.gguf -p 64 -n 64 -r 100000 -t 2 --no-warmup --no-roofline >/dev/null &
engine=$!
masks >masks-begin.txt
within 60 '[ "$(masks)" = "0-1 " ]'
within 60 '[ "$(masks)" = "2-3 " ]'
kill -9 $service
# Nothing of the service is left that could change them again.
within 20 '! pidof profinfer >/dev/null'
masks >masks-killed.txt
cat /proc/$engine/stat | cut -d ' ' -f 14 >ticks.txt
serve
within 60 '[ "$(masks)" = "0-1 " ]'
within 60 '[ "$(masks)" = "2-3 " ]'
kill -TERM $service
wait $service
masks >masks-stopped.txt
cat /proc/$engine/stat | cut -d ' ' -f 14 >>ticks.txt
ls -A /tmp/d >left.txt
kill $engine
"""


def cpus(text):
    """`0-1,3` as a set."""
    ranges = [part.split("-") for part in text.split(",") if part]
    return {cpu for ends in ranges for cpu in range(int(ends[0]), int(ends[-1]) + 1)}


def judge(run, book):
    judge_tune(run, book)
    judge_pages(run, book)
    judge_service(run, book)


def judge_tune(run, book):
    found = run.json("tune.json")
    book.expect([c["cpus"] for c in found["clusters"]] == ["2", "1"], f"clusters: {found['clusters']}")
    rows = [row for row in found["works"][0]["tried"] if row["measured"]]
    book.expect(len(rows) > 1, f"{len(rows)} choices were measured")
    ran = [line.split(" ", 1) for line in run.text("ran.txt").splitlines()]
    for row in rows:
        seen = row["measured"]["seen_on"]
        book.expect(cpus(seen) <= cpus(row["cpus"]), f"told CPUs {row['cpus']}, seen on {seen}")
        given = [where for where, words in ran if words.endswith(f"-t {row['threads']}")]
        book.expect(row["cpus"] in given, f"told CPUs {row['cpus']} for {row['threads']} threads, ran on {given}")
    book.expect(any(row["measured"]["seen_on"] for row in rows), "no thread was seen running")
    book.expect({row["cpus"] for row in rows} >= {"1", "2"}, f"choices: {[row['cpus'] for row in rows]}")
    line = found["lines"][0]["command"] if found["lines"] else ""
    book.expect("/tmp/bin/ggml-runner run -m /tmp/m.gguf" in line, f"the line to copy: {line}")


def judge_pages(run, book):
    before = run.text("before.txt")
    book.expect(len(set(run.text("modes.txt").splitlines())) > 1, f"modes of huge pages: {run.text('modes.txt')}")
    book.expect(run.text("after.txt") == before, f"huge pages after tune: {run.text('after.txt')}")
    book.expect(run.text("killed.txt") != before, "the kill came before the mode was changed")
    book.expect(run.text("restored.txt") == before, f"huge pages: {run.text('restored.txt')}: {run.text('restore.txt')}")


def judge_service(run, book):
    for when in ("begin", "killed", "stopped"):
        masks = run.text(f"masks-{when}.txt").strip()
        book.expect(masks == "0-3", f"{when}: the engine's threads may run on {masks}")
    first, second = (int(ticks) for ticks in run.text("ticks.txt").split())
    book.expect(second > first, f"the engine computed no more after the kill: {first}, then {second} ticks")
    left = run.text("left.txt").split()
    book.expect(".affinity" not in left, f"left in the directory: {left}")
    told = [json.loads(line) for line in run.text("watch.txt").splitlines()]
    given = {(event["work"], event["cpus"]) for event in told if event["event"] == "affinity" and event["state"] == "set"}
    book.expect(given == {("prefill", "0-1"), ("decode", "2-3")}, f"CPUs given: {given}")
    # The event `run` comes before all others of a run.
    begun = set()
    for event in told:
        begun |= {event["pid"]} if event["event"] == "run" else {run["pid"] for run in event.get("runs", [])}
        book.expect("pid" not in event or event["pid"] in begun, f"before the event of its run: {event}")
