#!/usr/bin/env python3
"""A second reader of .pfi files, from docs/FORMAT.md alone. Prints what it counts, one line each, sorted."""
import struct
import sys
from collections import Counter

TABLE = []
for byte in range(256):
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    TABLE.append(byte)


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


class Bytes:
    def __init__(self, data):
        self.data, self.pos = data, 0

    def more(self):
        return self.pos < len(self.data)

    def take(self, n):
        assert self.pos + n <= len(self.data), "too short"
        self.pos += n
        return self.data[self.pos - n:self.pos]

    def u(self):
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def i(self):
        return unzigzag(self.u())

    def bytes(self):
        return self.take(self.u())

    def str(self):
        return self.bytes().decode()

    def list(self):
        return [self.u() for _ in range(self.u())]

    def b(self):
        return self.take(1)[0]

    def opt(self):
        return self.u() if self.b() else None

    def fields(self, types):
        read = {"u": self.u, "i": self.i, "s": self.str, "y": self.bytes, "l": self.list, "b": self.b, "o": self.opt}
        return [read[t]() for t in types]


def unzigzag(v):
    return v >> 1 ^ -(v & 1)


PAIRS = [(3, 11), (3, 12), (4, 14), (4, 17), (4, 19), (5, 20), (8, 31)]


def slices(n, t, barrier, data):
    """(start, busy or None) of each slice."""
    data, out = Bytes(data), []
    for _ in range(n):
        if not barrier:
            out.append((t, None))
            t += data.u()
            continue
        row = data.data[data.pos] & 7
        if row == 7:
            data.take(1)
            busy, gap = data.u(), data.u()
        else:
            size, bits = PAIRS[row]
            word = int.from_bytes(data.take(size), "little") >> 3
            busy, gap = word & (1 << bits) - 1, word >> bits
        out.append((t, busy - 1 if busy else None))
        t += max(busy - 1, 0) + gap
    assert not data.more(), "bytes after the last slice"
    return out


def plan(data):
    data, tensor, hits = Bytes(data), 0, []
    while data.more():
        v = data.u()
        tensor = tensor + unzigzag(v >> 1) & 0xFFFFFFFF
        if v & 1:
            data.u()
        hits.append(tensor)
    return hits


def block(payload, first, count, tensors):
    ops, ids, plans, addr, name = {}, {}, {}, 0, b""
    records = Bytes(payload)
    while records.more():
        r = Bytes(records.bytes())
        kind = r.u()
        count[f"kind {kind}"] += 1
        if kind == 5:
            op, _, desc = r.fields("uss")
            ops[op] = desc
        elif kind == 7:
            tid, _, delta, known, op, _, _ = r.fields("uuibuuu")
            shared, rest, ne, nb, src, view = r.b(), *r.fields("sllyu")
            addr, name = addr + delta & 0xFFFFFFFFFFFFFFFF, name[:shared] + rest.encode()
            ids[tid] = ops.get(op, "?") if known else "?"
            tensors[tid] = f"tensor {tid} {addr:x} {name.decode()} {ids[tid]} {ne} {nb} {src.hex()} {view}"
        elif kind == 8:
            pid, _, _, hits = r.fields("uuuy")
            plans[pid] = plan(hits)
        elif kind == 14:
            _, _, _, pid, at, n, t, barrier, data = r.fields("uuuuuuiby")
            for i, (start, busy) in enumerate(slices(n, first + t, barrier, data)):
                op = ids.get(plans[pid][at + i], "?")
                count[f"slices {op}"] += 1
                count[f"busy {op}"] += busy or 0
                count["sum of starts"] += start


def blocks(path):
    """(payload, first timestamp) of each block, checked."""
    file = open(path, "rb").read()
    assert file[:8] == b"\x89PFI\r\n\x1a\n" and crc32c(file[:12]) == struct.unpack_from("<I", file, 12)[0]
    assert struct.unpack_from("<H", file, 8)[0] == 1, "another major version"
    pos, n = 16, 0
    while pos < len(file):
        magic, _, _, size, seq, _, first, payload_crc, crc = struct.unpack_from("<8sHHIIIQII", file, pos)
        assert magic == b"\xf1PFIblk\xb7" and crc32c(file[pos:pos + 36]) == crc, "no block header"
        payload = file[pos + 40:pos + 40 + size]
        assert crc32c(payload) == payload_crc and seq == n, f"block {seq}"
        yield payload, first
        pos, n = pos + 40 + size, n + 1


def main(path):
    count, tensors = Counter(), {}
    for payload, first in blocks(path):
        count["blocks"] += 1
        block(payload, first, count, tensors)
    print("\n".join(sorted([f"{key}: {value}" for key, value in count.items()] + list(tensors.values()))))


if __name__ == "__main__":
    main(sys.argv[1])
