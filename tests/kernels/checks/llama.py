"""Debian's own llama.cpp for arm64, stripped, which opens its CPU code at run time: every level, both transports, experts."""

import itertools

from bed import Book

# What differs between engines does not differ between kernels: the oldest and the newest.
KERNELS = "5.10 7.2"
BOOT = {"mode": "det", "limit": 300, "memory": 2048}
TREES = ["llama"]
SECONDS = 45
# Model, threads, level, other options.
LEGS = [
    ("tiny", 2, "token", ""),
    ("tiny", 2, "graph", ""),
    ("tiny", 2, "op", "--pbuf"),
    ("moe", 2, "op", ""),
]
PROMPT, TOKENS = 8, 6
SCRIPT = f"""
ggml-runner synth tiny /tmp/tiny --type q4_0 >/dev/null
ggml-runner synth moe /tmp/moe --type q4_0 >/dev/null
profinfer doctor --json /usr/bin/llama-bench >doctor.json
record() {{ # leg, model, threads, level, options
    profinfer record $5 --level $4 -o /tmp/$1.pfi -- llama-bench -m /tmp/$2 -t $3 -p {PROMPT} -n {TOKENS} -r 1 >/dev/null 2>&1
    profinfer report --json /tmp/$1.pfi >$1.json
}}
""" + "".join(
    f'record {leg} {model} {threads} {level} "{options}"\n' for leg, (model, threads, level, options) in enumerate(LEGS)
)
# As ggml-runner's synth makes them.
SHAPES = {
    "tiny": {"layers": 6, "embedding": 256, "feed_forward": 768, "heads": 8, "kv_heads": 4, "vocabulary": 4096},
    "moe": {"layers": 4, "embedding": 512, "heads": 8, "vocabulary": 4096, "experts": 60, "experts_used": 4},
}
OPS = {
    "tiny": {"MUL_MAT", "RMS_NORM+MUL", "ROPE", "SET_ROWS", "GET_ROWS", "SWIGLU", "ADD"},
    "moe": {"MUL_MAT", "MUL_MAT_ID", "RMS_NORM+MUL", "ROPE", "SOFT_MAX", "ARGSORT"},
}
NAMES = {"tiny": "ffn_out-{L}", "moe": "ffn_moe_down-{L}"}
# Bytes that the recorder may have beside its buffer.
MEMORY = 10_000_000
# The ring of 4 MiB is mapped twice in a row, and counts twice as resident; perf buffers are one a CPU.
BUFFERS = 2 * (4 << 20)


def judge(run, book):
    doctor = run.json("doctor.json")
    book.expect(doctor["fit"], f"doctor: not fit: {doctor['reason']}")
    for leg, (model, threads, level, options) in enumerate(LEGS):
        one = Book()
        judge_leg(run.json(f"{leg}.json"), one, model, level)
        book.hits_expected += one.hits_expected
        book.hits_seen += one.hits_seen
        book.losses(one.lost or 0)
        book.failures += [f"{model}, {threads} threads, {level} {options}: {failure}" for failure in one.failures]


def judge_leg(report, book, model, level):
    books = report["quality"]
    # A warm-up of each comes first: a prompt, and one token. How wide a call is shows in its graphs only.
    phases = {phase["phase"]: (phase["calls"], phase["tokens"]) for phase in report["phases"]}
    if level == "token":
        wanted = {"unknown": (3 + TOKENS, None)}
    else:
        wanted = {"prefill": (2, 2 * PROMPT), "decode": (1 + TOKENS, 1 + TOKENS)}
    book.expect(phases == wanted, f"calls: {phases}")
    peak = books["agent_peak_rss_bytes"]["value"]
    book.expect(peak <= MEMORY + BUFFERS, f"the recorder took {peak / 1e6:.1f} MB")
    if level != "op":
        book.expect(books["complete"], f"not complete: {books['verdict']}")
        return
    book.recorded(report)
    seen = {rung["role"]: rung["seen"] for rung in books["rungs"] if rung["used"]}
    calls = 3 + TOKENS
    wanted = {role: calls for role in ("token", "graph", "split", "cpu-graph")}
    book.expect(wanted.items() <= seen.items(), f"calls, graphs and splits: {seen}, {calls} of each expected")
    shape = {name: report["model"][name] for name in SHAPES[model]}
    book.expect(shape == SHAPES[model], f"shape of the model: {shape}")
    rows = list(itertools.chain.from_iterable(phase["by_op"] for phase in report["phases"]))
    book.expect(OPS[model] <= {row["name"] for row in rows}, f"ops: {sorted({row['name'] for row in rows})}")
    names = {row["name"] for phase in report["phases"] for row in phase["by_name"]}
    book.expect(any(NAMES[model] in name for name in names), f"names: {sorted(names)}")
    book.expect(books["read_errors"]["value"] == 0, f"{books['read_errors']['value']} failed reads")
