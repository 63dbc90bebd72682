"""Instructions of ops with loops of known length, on a PMU that counts them: accurate to 0.1 %."""

from bed import ALL_BPF, BETWEEN, ROOT

KERNELS = ALL_BPF
ALSO = BETWEEN
# Only guests whose time is derived from executed instructions count instructions.
BOOT = {"mode": "det", "cpus": 1, "limit": 300}
SECONDS = 25
# `make test-arm64` builds them; the C library is the cross compiler's.
PLACE = "target/tests/arm64/fixtures/modern"
LIBRARY = "/usr/aarch64-linux-gnu/lib"
FILES = {f"/usr/lib/{name}": f"{LIBRARY}/{name}" for name in ("ld-linux-aarch64.so.1", "libc.so.6")}
FILES |= {f"/fixtures/{path.name}": path for path in (ROOT / PLACE).glob("*")}
LOOPS = 100_000
SCRIPT = f"""
[ -e /fixtures/fakellama ] || {{ echo "no {PLACE}: make test-arm64 builds it" >&2; exit 1; }}
profinfer record --pmc list --json >list.json
profinfer record --pmc instructions,cycles,rffff,context-switches --faults -o /tmp/run.pfi -- \\
    /fixtures/fakellama -t 1 -n 4 --op-loops {LOOPS} >/dev/null 2>said.txt
profinfer report --json /tmp/run.pfi >report.json
"""
# A loop iteration has two instructions; ops on rows of 64 and 256 run it twice, those on rows of 8 and 128 three
# times.
LONG = ("ffn_gate", "ffn_swiglu", "kq-", "kq_soft_max")


def judge(run, book):
    cores = next(cluster for cluster in run.json("list.json") if cluster["pmu"].startswith("armv8"))
    state = {offer["name"]: offer["state"] for offer in cores["offers"]}
    for name, due in {"instructions": "counts", "cycles": "counts", "stall_frontend": "unsupported"}.items():
        book.expect(state.get(name) == due, f"{name} is {state.get(name)}, not {due}")
    report = run.json("report.json")
    book.recorded(report)
    counters = {counter["name"]: counter for counter in report["counters"]}
    book.expect(counters["instructions"]["state"] == "whole", f"{counters['instructions']}")
    book.expect("stays 0" in counters["rffff"]["why"], f"an event number that counts nothing: {counters['rffff']}")
    decode = next(phase for phase in report["phases"] if phase["phase"] == "decode")
    rows = [row for row in decode["by_name"] if row["name"] != "(gaps)"]
    book.expect(len(rows) > 10, f"only {len(rows)} names of ops")
    for row in rows:
        counted = next(c for c in row["counted"]["counters"] if c["name"] == "instructions")
        # An op that is preempted while its counters are read has no counts, and says so.
        total, calls = counted["total"], round(counted["share"] * row["calls"])
        book.expect(2 * calls >= row["calls"], f"{row['name']}: counts of only {calls} of {row['calls']}")
        due = 2 * LOOPS * (3 if row["name"].split()[-1].startswith(LONG) else 2) * calls
        book.expect(0 <= total - due <= due / 1000, f"{row['name']}: {total} instructions, {due} in its loops")
