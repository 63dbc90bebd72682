"""A script that ends well without what it was to write."""

KERNELS = "5.10"
SCRIPT = "true"
MUST_SAY = r"the guest left no report.json"


def judge(run, book):
    book.recorded(run.json("report.json"))
