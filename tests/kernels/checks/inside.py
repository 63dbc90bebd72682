"""Recorded from inside the engine's process: a fixture and Debian's llama.cpp, every op."""

from bed import ROOT

# What it needs of the kernel is old; what differs is the processor.
KERNELS = "5.10-nobpf 7.2"
ALSO = "5.10 6.1 6.12"
BOOT = {"mode": "det", "limit": 300, "memory": 2048}
TREES = ["llama"]
SECONDS = 60
PLACE = "target/tests/arm64/fixtures"
# With llama.cpp's own C library, which is newer.
FILES = {f"/fixtures/{path.name}": path for path in (ROOT / PLACE / "modern").glob("*")}
SCRIPT = """
ggml-runner synth tiny /tmp/m.gguf --type q4_0 >/dev/null
record() { # name, command
    name=$1
    shift
    profinfer record --source inside -o /tmp/$name.pfi -- "$@" >/dev/null 2>$name.txt
    profinfer report --json /tmp/$name.pfi >$name.json
}
record fixture /fixtures/fakellama -t 2 -n 8
record llama llama-bench -m /tmp/m.gguf -t 2 -p 8 -n 6 -r 1
"""


def judge(run, book):
    for name in ("fixture", "llama"):
        report = run.json(f"{name}.json")
        book.recorded(report)
        book.expect(report["run"]["source"] == "inside", f"{name}: recorded by {report['run']['source']}")
