"""A report with one hit less than expected."""

SCRIPT = """
cat >report.json <<'END'
{"quality": {"complete": true, "verdict": "complete", "rungs": [{"role": "op", "expected": 10, "seen": 9}], "events": []}}
END
"""
MUST_SAY = r"^9 hits seen of 10 expected$"


def judge(run, book):
    book.recorded(run.json("report.json"))
