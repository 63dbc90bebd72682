"""A judge that raises an exception must not pass."""

KERNELS = "6.1"
MUST_SAY = r"^ZeroDivisionError"


def judge(run, book):
    book.hits(1 // 0, 0)
