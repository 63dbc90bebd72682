"""A recording of every op on two threads: the number of hits matches the graphs."""

from bed import ALL_BPF, BETWEEN

KERNELS = ALL_BPF
ALSO = BETWEEN
SECONDS = 10
SCRIPT = """
ggml-runner synth tiny /tmp/m.gguf --type q4_0 >/dev/null
profinfer record -o /tmp/run.pfi -- ggml-runner run -m /tmp/m.gguf -p 8 -n 8 -t 2 --no-warmup --no-roofline >/dev/null
profinfer report --json /tmp/run.pfi >report.json
"""


def judge(run, book):
    book.recorded(run.json("report.json"))
