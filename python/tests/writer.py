"""Writes traces byte by byte, for tests of what the recorder does not write: damage, later versions, hostile bytes."""

import struct

from profinfer.crc32c import pure as crc32c
from profinfer.kinds import BY_NAME
from profinfer.wire import _PAIRS


def varint(value):
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def zigzag(value):
    return varint((value << 1 ^ value >> 63) & (1 << 64) - 1)


def text(value):
    return varint(len(value.encode())) + value.encode()


def record(kind, *parts):
    """A record; a number among its parts is a varint, a str a text."""
    body = varint(kind) + b"".join(varint(p) if isinstance(p, int) else text(p) if isinstance(p, str) else p for p in parts)
    return varint(len(body)) + body


def predicted(kind, differences, rest=b""):
    """A record of kind 7 or 10 to 14: differences from the predictions, by bit."""
    mask = sum(1 << bit for bit in differences)
    return record(kind, mask, *[zigzag(differences[bit]) for bit in sorted(differences)], rest)


def file_header(major=1, minor=7):
    head = b"\x89PFI\r\n\x1a\n" + struct.pack("<HH", major, minor)
    return head + struct.pack("<I", crc32c(head))


def block(payload, seq=0, first=1000, major=1, minor=7, size=None):
    """A block; `size` is what its header says of a payload that is cut."""
    head = struct.pack("<8sHHIIIQI", b"\xf1PFIblk\xb7", major, minor, len(payload) if size is None else size, seq, 0, first,
                       crc32c(payload))
    return head + struct.pack("<I", crc32c(head)) + payload


def trace(*payloads):
    """A file with these blocks."""
    return file_header() + b"".join(block(payload, seq) for seq, payload in enumerate(payloads))


def header(**changes):
    """A Header record at level op."""
    fields = {"level": 2, "mono": 500, "boot": 500, "real": 7000}
    fields.update(changes)
    return record(0, "profinfer 0.1.0", "record", "6.1.0", "x86_64", "host", "cpu", "", fields["mono"], fields["boot"],
                  fields["real"], fields["level"], b"\1", 0, 1 << 20, 0, 0)


def footer(kinds=b"\0"):
    return record(17, "target exited", kinds, b"\0", *[0] * 8)


def op(id_, name):
    return record(5, id_, name, name)


def tensor(id_, name, op_=1):
    """A tensor without a model: the first of its block."""
    return predicted(7, {2: 1, 3: 0x1000, 6: op_, 17: id_, 18: 42, 19: 1}, name.encode())


def plan(id_, tensors):
    hits, before = b"", 0
    for one in tensors:
        hits += varint(int.from_bytes(zigzag(one - before), "little") << 1)
        before = one
    return record(8, id_, 42, len(tensors), len(hits), hits)


def pair(busy, gap):
    """A slice with a barrier, in the longest form."""
    return b"\7" + varint(busy + 1) + varint(gap)


def packed_pair(busy, gap):
    """A slice with a barrier, as the recorder writes it."""
    for row, (size, bits, mask) in enumerate(_PAIRS):
        if busy + 1 <= mask and gap < 1 << 8 * size - 3 - bits:
            return (row | busy + 1 << 3 | gap << 3 + bits).to_bytes(size, "little")
    return pair(busy, gap)


def run(data, n, t=0, plan_=0, barrier=1, ith=0, graph=0, first=0):
    """The first Slices record of a block; `t` is after the block's first timestamp."""
    return predicted(14, {0: graph, 1: ith, 2: 42, 3: plan_, 4: first, 5: n, 6: t, 7: barrier}, data)


class Calls:
    """Writes the records of kinds 10 to 14 of a block, from all their fields as numbers; `+ 1` is the caller's."""

    def __init__(self, first=1000):
        self.last, self.time, self.dur = {}, first, 0

    def record(self, name, *values, rest=b""):
        kind, values = BY_NAME[name], list(values)
        predicted_values = list(self.last.get(name, [0] * len(values)))
        for i in kind.next:
            predicted_values[i] += 1
        predicted_values[kind.time] = self.time
        self.time = values[kind.time]
        if kind.dur is not None:
            predicted_values[kind.dur] = self.dur
            self.dur = values[kind.dur]
        self.last[name] = values
        differences = {i: a - b for i, (a, b) in enumerate(zip(values, predicted_values)) if a != b}
        return predicted(kind.number, differences, rest)

    def token(self, seq, t, dur, tokens, tid=42, cut=0, device=0):
        return self.record("Token", seq, 42, tid, 1, tokens, t, dur, cut, device)

    def graph(self, seq, token, t, dur, ubatch, tid=42, cut=0, device=0):
        return self.record("Graph", seq, token, 42, tid, 0x1234, 3, ubatch, t, dur, cut, device)

    def split(self, seq, graph, backend, t, dur, device=0, cut=0):
        return self.record("Split", seq, graph, backend, 42, 42, 3, t, dur, cut, device, 0)

    def cpu_graph(self, seq, graph, split, t, dur, ubatch, n, tid=42, plan_=1, cut=0, threads=1):
        return self.record("CpuGraph", seq, graph, split, 42, tid, plan_, n, threads, ubatch, t, dur, n + 1, n, 1, cut)

    def slices(self, graph, data, n, t, ith=0, plan_=0, first=0, barrier=1):
        return self.record("Slices", graph, ith, 42 + ith, plan_, first, n, t, barrier, rest=data)


def cpu_graph(dur, n, t=0):
    """The first CpuGraph record of a block, of one thread with `n` ops; without a scheduler's graph."""
    return predicted(13, {0: -1, 1: -1, 2: -1, 3: 42, 4: 42, 5: 1, 6: n, 7: 1, 8: 1, 9: t, 10: dur, 11: n + 1, 12: n, 13: 1})


def small():
    """A trace of one graph with three ops, in two blocks."""
    slices = pair(100, 10) + pair(200, 20) + pair(300, 0)
    start = header() + op(1, "MUL_MAT") + tensor(0, "Qcur-3") + plan(0, [0, 0, 0])
    return trace(start + run(slices, 3), header() + cpu_graph(700, 3) + footer())
