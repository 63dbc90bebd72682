"""Cost of an op's probes in guest instructions, relative to an empty program and to the published method."""

ALSO = "6.1 6.12 7.2"
# Guest time is counted in instructions, so the result does not depend on this machine's speed.
BOOT = {"mode": "det", "cpus": 1, "limit": 300}
SECONDS = 25
SCRIPT = "profinfer doctor --compare --json >doctor.json"
# An op hit relative to an empty program's, on the same single-stepped instruction. Both are attached by uprobe_multi
# links where the kernel has them, which make the empty hit some 100 instructions cheaper than a tracefs event does.
HIT_MOST = 1.4
# An op relative to the published method: probes on instructions that the kernel emulates, as in a compiled prologue
# that has such an instruction; and without the barrier's probe, on any instruction.
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
