"""The kernel's features, and that doctor explains the effect of each missing one."""

from bed import ALL_BPF, BETWEEN

KERNELS = ALL_BPF
ALSO = BETWEEN
SCRIPT = "profinfer doctor --json >doctor.json"


def judge(run, book):
    found = run.json("doctor.json")
    for row in found["privileges"] + found["kernel"] + found["programs"]:
        if row["state"] == "ok":
            book.supported.add(row["id"])
        else:
            book.degraded[row["id"]] = row["detail"]
            book.expect(row["detail"], f"{row['id']} is {row['state']}, without a reason")
        book.expect(row["state"] in ("ok", "optional"), f"{row['id']}: {row['state']}: {row['detail']}")
    book.expect(found["fit"], f"not fit: {found['reason']}")
    book.expect(("btf" in book.supported) == (run.kernel != "5.10-nobtf"), "BTF reported as present or missing incorrectly")
