"""Without bpf(): doctor reports it, the self-test passes and a real engine is recorded, all through perf events."""

KERNELS = "5.10-nobpf"
BOOT = {"limit": 300}
SECONDS = 60
TREES = ["llama"]
SCRIPT = """
profinfer doctor --json >doctor.json
profinfer selftest --json >selftest.json || [ $? = 1 ]
ggml-runner synth tiny /tmp/m.gguf --type q4_0 >/dev/null
profinfer record -o /tmp/run.pfi -- llama-bench -m /tmp/m.gguf -t 2 -p 8 -n 4 -r 1 >/dev/null
profinfer report --json /tmp/run.pfi >report.json
# A recorder ends before its probes are removed: its guard does that.
within 60 '! grep -q profinfer_ /sys/kernel/tracing/uprobe_events'
"""


def judge(run, book):
    doctor = run.json("doctor.json")
    book.expect(doctor["fit"] and doctor["source"] == "perf", f"not fit by perf events: {doctor['reason']}")
    book.degraded["bpf"] = doctor["lacks"]
    book.supported |= {row["id"] for row in doctor["kernel"] if row["state"] == "ok"}
    selftest = run.json("selftest.json")
    book.selftest(selftest)
    # The expected hits are known only for graphs that were read in time, which on a slow machine is not all of them.
    read = [recording for recording in selftest["recordings"] if recording["hits_expected"]]
    book.hits(sum(r["hits_expected"] for r in read), sum(r["hits_seen"] for r in read))
    report = run.json("report.json")
    books = report["quality"]
    book.expect(report["run"]["source"] == "perf", "the trace does not say that it was made without BPF")
    for kind in books["events"]:
        book.expect(kind["closes"], f"{kind['kind']} counts disagree: seen is not recorded + lost")
        book.losses(kind["lost"])
    ops = next((kind for kind in books["events"] if kind["kind"] == "op"), {"recorded": 0})
    book.expect(ops["recorded"] > 0, "no op of the engine was recorded")
    hits = books["hits"]
    book.expect(hits["seen"] == hits["expected"], f"{hits['seen']} hits seen of {hits['expected']} in the graphs read in time")
    if hits["checked_graphs"] < hits["graphs"]:
        book.degraded["demand"] = f"unknown for {hits['graphs'] - hits['checked_graphs']} of {hits['graphs']} graphs"
