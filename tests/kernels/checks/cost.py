"""What an op's probes cost in guest instructions, against an empty program and against the published method."""

# Guest time is counted in instructions: nothing here depends on how fast this machine is.
BOOT = {"mode": "det", "cpus": 1, "limit": 300}
SECONDS = 25
SCRIPT = "profinfer doctor --compare --json >doctor.json"
# An op's hit over an empty program's on the same, single-stepped instruction.
HIT_MOST = 1.35
# An op over the published method: its probes on instructions that the kernel emulates, as in a compiled prologue that has
# such a one; and without the barrier's probe on any instruction.
OP_MOST = 0.6


def judge(run, book):
    ns = {(way["way"], way["instruction"]): way["ns"] for way in run.json("doctor.json")["hit"]["ways"]}
    published = ns["published", "first"]

    def at_most(most, what, share):
        book.expect(0 < share <= most, f"{what}: {share:.3f}, at most {most}")

    at_most(HIT_MOST, "an op's hit over an empty program's", ns["op", "single-stepped"] / ns["empty", "single-stepped"])
    for instruction in ("emulated", "single-stepped"):
        at_most(OP_MOST, f"an op over the published method, {instruction}", ns["op", instruction] / published)
    both = ns["op-and-barrier", "emulated"] / published
    at_most(OP_MOST, "an op with its barrier over the published method", both)
