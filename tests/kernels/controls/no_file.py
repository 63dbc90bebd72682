"""A script that succeeds without writing its output file."""

KERNELS = "5.10"
SCRIPT = "true"
MUST_SAY = r"the guest left no report.json"


def judge(run, book):
    book.recorded(run.json("report.json"))
