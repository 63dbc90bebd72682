"""Every level of recording against the runner's own count of what it did."""

from bed import ALL_BPF

KERNELS = ALL_BPF
BOOT = {"limit": 300}
SECONDS = 35
SCRIPT = "profinfer selftest --json >selftest.json"


def judge(run, book):
    found = run.json("selftest.json")
    for row in found["checks"]:
        book.expect(row["verdict"] == "ok", f"{row['check']}: {row['verdict']}: {row['detail']}")
    book.expect(len(found["checks"]) > 30, f"only {len(found['checks'])} checks ran")
    book.expect(found["ok"] is True, "the self-test says that it is not ok")
