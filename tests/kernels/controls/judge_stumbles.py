"""A judge that itself goes wrong has not passed anything."""

KERNELS = "6.1"
MUST_SAY = r"^ZeroDivisionError"


def judge(run, book):
    book.hits(1 // 0, 0)
