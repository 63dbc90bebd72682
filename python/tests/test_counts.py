"""The package counts in a trace what the recorder's own reader counts: `tests/plain/trace_golden.rs` writes that beside each.

usage: test_counts.py FILE prints the counts of a trace, one line each, sorted."""

import os
import pathlib
import struct
import sys
import unittest
from collections import Counter

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "python"))

from profinfer.blocks import Scan, Store
from profinfer.load import Records
from profinfer.names import Namer
from profinfer.wire import U64, busy_slices, unzigzag, varints, wall_slices

# Where the numbers of a list are signed, by kind: the pattern is repeated.
SIGNED = {22: (True,), 25: (False, True), 30: (False, True, True, True, True, True), 38: (True, True, False, False)}


def traces():
    """The golden traces, and those that a test run has written."""
    more = os.environ.get("PROFINFER_TRACES")
    return sorted((ROOT / "tests/golden").glob("*.pfi")) + (sorted(pathlib.Path(more).glob("*.pfi")) if more else [])


class Counting(Records):
    """Counts what is read."""

    def __init__(self, scan):
        self.count, self.names = Counter(), {}
        super().__init__(scan)
        self.count["blocks"] = self.blocks

    def _keep_tensor(self, tensor):
        super()._keep_tensor(tensor)
        self.count["kind 7"] += 1

    def _keep(self, kind, record):
        super()._keep(kind, record)
        self.count[f"kind {kind.number}"] += 1
        if kind.name == "Header":
            self.count[f"source {('bpf', 'perf').index(record.source)}"] += 1
        elif 10 <= kind.number <= 14:
            self.count[f"sum of kind {kind.number}"] += sum(map(plain_sum, kind.types, record))
        elif kind.number >= 18:
            self.count[f"sum of kind {kind.number}"] += cause_sum(kind, record)

    def slices(self):
        namer, tensors, plans = Namer(self), self.tensors, {}
        for _, _, _, plan, first, n, t, barrier, data in self.of("Slices"):
            if plan not in plans:
                plans[plan] = list(self.plan(plan))
            starts, ends, *_ = busy_slices(data, n, t) if barrier else wall_slices(data, n, t)
            unseen = set(busy_slices(data, n, t)[3]) if barrier else set(range(n))
            for i, (start, end) in enumerate(zip(starts, ends)):
                tensor = tensors.get(plans[plan][first + i][0])
                name = namer.op_name(tensor.op) if tensor and tensor.known else "?"
                self.count[f"slices {name}"] += 1
                self.count[f"busy {name}"] += 0 if i in unseen else end - start
                self.count["sum of starts"] += start

    def lines(self):
        self.slices()
        namer = Namer(self)
        described = [described_as(tensor, namer) for tensor in self.tensors.values()]
        return sorted([f"{key}: {value}" for key, value in self.count.items()] + described)


def plain_sum(kind, value):
    """The number that a field counts as."""
    if value is None:
        return 0
    if kind == "str":
        return len(value.encode())
    if kind.endswith("?"):
        return value + 1
    if "|" in kind:
        return kind.split("|").index(value)
    return value & U64 if kind == "i64" else int(value)


def cause_sum(kind, record):
    total = 0
    for of, value in zip(kind.types, record):
        if of == "bytes" and kind.number == 33:
            total += submissions(varints(value), record[1])
        elif of == "bytes" and kind.number == 46:
            total += sum(struct.unpack(f"<{len(value) // 8}Q", value))
        elif of == "bytes":
            signed = SIGNED.get(kind.number, (False,))
            total += sum(unzigzag(v) if signed[i % len(signed)] else v for i, v in enumerate(varints(value)))
        else:
            total += value if of == "i64" else plain_sum(of, value)
    return total


def submissions(values, end):
    total = 0
    for i in range(0, len(values), 7):
        end += unzigzag(values[i + 1])
        total += values[i] + end + sum(unzigzag(v - 1) + 1 for v in values[i + 2:i + 5] if v) + sum(values[i + 5:i + 7])
    return total


def described_as(t, namer):
    op = namer.op_name(t.op) if t.known and namer._records.one("OpDef", t.op) else "?"
    src = [0 if id_ is None else id_ + 1 & 0xFFFFFFFF for id_ in t.src]
    view = 0 if t.view_src is None else t.view_src + 1 & 0xFFFFFFFF
    return f"tensor {t.id} {t.addr:x} {t.name} {op} {list(t.ne)} {list(t.nb or ())} {src} {view}"


def counts(path):
    """The lines of a trace without damage."""
    scan = Scan(Store(path.read_bytes()))
    records = Counting(scan)
    if damage := scan.damage + records.damage:
        raise ValueError(f"{path}: {damage[0]}")
    return records.lines()


class Counts(unittest.TestCase):
    def test_the_same_content(self):
        self.assertTrue(traces())
        for path in traces():
            with self.subTest(path=path.name):
                self.assertEqual(counts(path), path.with_suffix(".txt").read_text().splitlines())


if __name__ == "__main__":
    print("\n".join(counts(pathlib.Path(sys.argv[1]))))
