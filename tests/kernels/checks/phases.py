"""Calls that are phases, in all their variants, through BPF and through perf events: the number of calls is exact."""

from bed import ALL_BPF, BETWEEN, ROOT

KERNELS = ALL_BPF
ALSO = BETWEEN
SECONDS = 15
# `make test-arm64` builds it; the static variant needs no C library.
PLACE = "target/tests/arm64/fixtures"
FILES = {"/fakellama": str(path.relative_to(ROOT)) for path in (ROOT / PLACE).glob("static/fakellama")}
N = 5
SCRIPT = f"""
[ -f /fakellama ] || {{ echo "no {PLACE}: make test-arm64 builds it" >&2; exit 1; }}
for source in bpf perf; do
    profinfer record --phases --source $source -o $source.pfi -- /fakellama -n 2 --phases {N} >/dev/null
    profinfer report --json $source.pfi >$source.json
done
"""


def judge(run, book):
    want = {"load": N, "tokenize": N, "detokenize": 3 * N, "sampling": 2 * N}
    for source in ("bpf", "perf"):
        found = {stage["name"]: stage["calls"] for stage in run.json(f"{source}.json")["stages"]}
        found = {name: found.get(name, 0) for name in want}
        book.expect(found == want, f"{source}: {found}, expected {want}")
