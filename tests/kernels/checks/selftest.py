"""Every recording level, both transports and experts, compared with the runner's own counts."""

ALSO = "6.1 6.12 7.2"
BOOT = {"limit": 300}
SECONDS = 35
# 1: a check failed; the judge reports which one.
EXIT_CODES = [0, 1]
SCRIPT = "profinfer selftest --json >selftest.json"


def judge(run, book):
    found = run.json("selftest.json")
    book.selftest(found)
    transports = {recording["transport"] for recording in found["recordings"]}
    book.expect(transports == {"ring buffer", "perf buffers"}, f"recorded through {transports}, not through both transports")
    for recording in found["recordings"]:
        # Without structure and below op level, graphs give no expected number of hits.
        if recording["hits_expected"]:
            book.hits(recording["hits_expected"], recording["hits_seen"])
        book.losses(recording["lost"])
    book.expect(book.hits_expected > 10_000, f"only {book.hits_expected} hits were expected")
