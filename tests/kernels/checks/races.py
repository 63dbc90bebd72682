"""CPUs that really run at the same time: four threads, both transports, again and again."""

from bed import ALL_BPF

KERNELS = ALL_BPF
BOOT = {"mode": "par", "cpus": 4, "limit": 300}
SECONDS = 60
ROUNDS = 2
SCRIPT = f"""
ggml-runner synth tiny /tmp/m.gguf --type q4_0 >/dev/null
for round in $(seq {ROUNDS}); do
    for transport in "" --pbuf; do
        name=$round$transport
        profinfer record $transport -o /tmp/$name.pfi -- \\
            ggml-runner run -m /tmp/m.gguf -p 8 -n 16 -t 4 --no-warmup --no-roofline >/dev/null
        profinfer report --json /tmp/$name.pfi >$name.json
    done
done
"""


def judge(run, book):
    for number in range(1, ROUNDS + 1):
        for transport in ("", "--pbuf"):
            book.recorded(run.json(f"{number}{transport}.json"))
