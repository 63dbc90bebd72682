"""CPUs that really run in parallel: four threads, both transports."""

# Tests our own programs, which are the same on all kernels.
ALSO = "7.2"
BOOT = {"mode": "par", "cpus": 4, "limit": 300}
SECONDS = 60
SCRIPT = """
ggml-runner synth tiny /tmp/m.gguf --type q4_0 >/dev/null
for transport in "" --pbuf; do
    profinfer record $transport -o /tmp/run.pfi --force -- \\
        ggml-runner run -m /tmp/m.gguf -p 8 -n 16 -t 4 --no-warmup --no-roofline >/dev/null
    profinfer report --json /tmp/run.pfi >run$transport.json
done
"""


def judge(run, book):
    for transport in ("", "--pbuf"):
        book.recorded(run.json(f"run{transport}.json"))
