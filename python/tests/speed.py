#!/usr/bin/env python3
"""Measures how fast ops are read, by the CPU time of this process: of a trace, or of synthetic ones.

usage: speed.py [TRACE | SLICES]
"""

import pathlib
import random
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import profinfer  # noqa: E402
from profinfer.crc32c import pure  # noqa: E402
from writer import header, op, packed_pair, plan, predicted, run, tensor, trace, varint  # noqa: E402

OPS = 300


def synthetic(slices, barrier):
    """A trace of graphs with 300 ops of 1 to 300 us each."""
    chance = random.Random(3)
    start = header() + op(1, "MUL_MAT") + tensor(0, "Qcur-3") + plan(0, [0] * OPS)

    def times():
        busy = [int(10 ** chance.uniform(3, 5.5)) for _ in range(OPS)]
        return b"".join(packed_pair(ns, chance.randrange(100, 5000)) if barrier else varint(ns) for ns in busy)
    payloads, left = [], slices
    while left > 0:
        payload, first = start, True
        while len(payload) < 250_000 and left > 0:
            payload += run(times(), OPS, barrier=barrier) if first else predicted(14, {0: 1, 6: 10 ** 8}, times())
            first, left = False, left - OPS
        payloads.append(payload)
    return trace(*payloads)


def measure(what, source):
    begin = time.process_time()
    ops = profinfer.open(source).ops
    ops._column("start_ns")
    decoded = time.process_time()
    for name in ops.names:
        ops._column(name)
    done = time.process_time()
    rows = ops.to_dicts()
    n, end = len(ops), time.process_time()
    assert n and len(rows) == n
    print(f"{what}: {n} op slices; starts and ends {n / (decoded - begin):,.0f} a second, all columns "
          f"{n / (done - begin):,.0f}, rows as dicts {n / (end - begin):,.0f}")


def main():
    given = sys.argv[1] if len(sys.argv) > 1 else "1000000"
    if not given.isdigit():
        measure(given, given)
        return
    for what, barrier in (("with barriers", 1), ("without barriers", 0)):
        measure(what, synthetic(int(given), barrier))
    data = bytes(range(256)) * 40_000
    begin = time.process_time()
    pure(data)
    print(f"CRC-32C in Python: {(time.process_time() - begin) / len(data) * 1e9:.1f} ns a byte")


if __name__ == "__main__":
    main()
