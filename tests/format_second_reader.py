#!/usr/bin/env python3
"""A second reader of .pfi files, written from docs/FORMAT.md alone. Prints its counts, one line each, sorted."""
import re
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
        # A field beyond the end of the record reads as zero, none or empty.
        missing = {"s": "", "y": b"", "l": [], "o": None}
        return [read[t]() if self.more() else missing.get(t, 0) for t in types]


def unzigzag(v):
    return v >> 1 ^ -(v & 1)


PAIRS = [(3, 10), (3, 11), (4, 16), (4, 19), (5, 20), (5, 24), (6, 20)]


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


def differing(r, predict, values, count):
    """Appends `count` fields to values; predict(i) is called for field i once those before it are known."""
    if not hasattr(r, "mask"):
        r.mask = r.u()
    for _ in range(count):
        i = len(values)
        values.append(predict(i) + (r.i() if r.mask >> i & 1 else 0) & 0xFFFFFFFFFFFFFFFF)


def rest(r, known):
    """The bytes after the fields; those of a later version are skipped."""
    for _ in range(bin(r.mask >> known).count("1")):
        r.u()
    return r.data[r.pos:]


# The fields of kinds 10 to 14: s = same, n = next, t = time, d = duration.
RULES = {10: "nsssstdss", 11: "nnssssstdss", 12: "nnsssstdsss", 13: "nnnsssssstdssss", 14: "ssssssts"}


# The fields of kinds 18 to 40, as Bytes.fields reads them; y is the data.
CAUSES = {18: "ussusbsuu", 19: "uuuuuuy", 20: "uuiuobbbuuuuub", 21: "us", 22: "uuuuuuusy", 23: "suuiub", 24: "usbsusb",
          25: "iy", 26: "ibuoos", 27: "sbs", 28: "uuuuuiy",
          29: "us", 30: "uubuuiy", 31: "uuuiuuy", 32: "ubss", 33: "uiy", 34: "uuuiuuuuuuuu",
          35: "ssuuuoooos", 36: "uuussssoosooossooooooooooso", 37: "uiy", 38: "ouuiuuuby", 39: "uuiubiiii",
          40: "uuiio"}
TIMED = {20: 2, 23: 3, 25: 0, 26: 0, 28: 5, 30: 5, 31: 3, 33: 1, 34: 3, 37: 1, 38: 3, 39: 2, 40: 2}


def numbers(data):
    data = Bytes(data)
    while data.more():
        yield data.u()


def submissions(data, end):
    """The sum of the numbers of a Submissions record's data; a known one counts as one more."""
    total, values = 0, list(numbers(data))
    for i in range(0, len(values), 7):
        end += unzigzag(values[i + 1])
        total += values[i] + end + sum(unzigzag(v - 1) + 1 for v in values[i + 2:i + 5] if v)
        total += sum(values[i + 5:i + 7])
    return total


def cause(kind, r, first):
    """The sum of a cause's numbers, of the lengths of its texts and of the numbers in its data."""
    types, total, at = CAUSES[kind], 0, 0
    for i, value in enumerate(r.fields(types)):
        if TIMED.get(kind) == i:
            total += value + first
            at = value + first
        elif types[i] == "s":
            total += len(value.encode())
        elif types[i] == "o":
            total += 0 if value is None else value + 1
        elif kind == 33 and types[i] == "y":
            total += submissions(value, at)
        elif types[i] == "y":
            signed = {22: (True,), 25: (False, True), 30: (False, True, True, True, True, True),
                      38: (True, True, False, False)}.get(kind, (False,))
            total += sum(unzigzag(v) if signed[k % len(signed)] else v for k, v in enumerate(numbers(value)))
        else:
            total += value
    return total


class Calls:
    """The records of kinds 10 to 14 of one block."""

    def __init__(self, first):
        self.last, self.kept = {kind: [0] * len(rules) for kind, rules in RULES.items()}, {"t": first, "d": 0}

    def take(self, kind, r):
        """The fields, and the bytes after them."""
        rules, last, values = RULES[kind], self.last[kind], []
        differing(r, lambda i: self.kept.get(rules[i], last[i] + (rules[i] == "n")), values, len(rules))
        self.last[kind] = values
        self.kept.update({rule: v for rule, v in zip(rules, values) if rule in "td"})
        return values, rest(r, len(rules))


ADDR, OP, NE, VIEW, N_SRC, ID, PID, KNOWN, STRIDED = 3, 6, (9, 10, 11, 16), 12, 13, 17, 18, 19, 20
SRC, NB = (4, 5, 14, 15, *range(25, 37)), (21, 22, 23, 24)
BLANK = [1 if i in NE else 0 for i in range(37)]


def shifted(name, shift):
    found = re.search(rb"[0-9]+", name)
    if not found or len(found[0]) > 9 or len(found[0]) > 1 and found[0][:1] == b"0":
        return name
    moved = name[:found.start()] + b"%d" % (int(found[0]) + shift) + name[found.end():]
    return name if int(found[0]) + shift < 0 or len(moved) > 255 else moved


class Tensors:
    """The Tensor records of one block."""

    def __init__(self):
        self.told, self.back, self.shift = [], 0, 0

    def take(self, r):
        """The fields, and the name."""
        v = []
        differing(r, lambda i: (self.back, self.shift, 0)[i], v, 3)
        self.back, self.shift, keep = v
        assert self.back <= min(len(self.told), 256)
        like, step, name = self.told[-self.back] if self.back else (BLANK, 0, b"")
        id_, addr = (self.told[-1][0][ID] + 1, self.told[-1][0][ADDR]) if self.told else (0, 0)
        differing(r, lambda i: {ID: id_, ADDR: addr + step}.get(i, like[i]), v, 34)
        text = rest(r, 37)
        shift = self.shift - (self.shift >> 63 << 64)
        name = name[:keep - 1] + text if keep else shifted(name, shift)
        self.told.append((v, v[ADDR] - addr, name))
        return v, name


def describe(v, name, op):
    def coded(i):
        itself = v[i] == 0xFFFFFFFF
        return v[ID] + 1 - (0 if itself else v[i]) & 0xFFFFFFFF if v[i] else 0

    ne, nb = [v[i] for i in NE], [v[i] for i in NB] if v[STRIDED] else []
    src = [coded(i) for i in SRC[:v[N_SRC]]]
    return f"tensor {v[ID]} {v[ADDR]:x} {name.decode()} {op} {ne} {nb} {src} {coded(VIEW)}"


def records(payload):
    """(kind, the bytes after it) of each record."""
    inner = Bytes(payload)
    while inner.more():
        body = inner.bytes()
        if body:
            r = Bytes(body)
            yield r.u(), r


def header_source(r):
    """The last field of a Header, which those of version 1.0 do not have."""
    r.fields("sssssssuuuubuuu")
    return r.u() if r.more() else 0


def block(payload, first, count, tensors):
    ops, ids, plans, calls, told = {}, {}, {}, Calls(first), Tensors()
    for kind, r in records(payload):
        count[f"kind {kind}"] += 1
        if kind == 0:
            count[f"source {header_source(r)}"] += 1
        elif kind == 5:
            op, _, desc = r.fields("uss")
            ops[op] = desc
        elif kind == 7:
            v, name = told.take(r)
            ids[v[ID]] = ops.get(v[OP], "?") if v[KNOWN] else "?"
            tensors[v[ID]] = describe(v, name, ids[v[ID]])
        elif kind == 8:
            pid, _, _, hits = r.fields("uuuy")
            plans[pid] = plan(hits)
        elif kind in CAUSES:
            count[f"sum of kind {kind}"] += cause(kind, r, first)
        elif kind in RULES:
            values, data = calls.take(kind, r)
            count[f"sum of kind {kind}"] += sum(values)
            if kind == 14:
                _, _, _, pid, at, n, t, barrier = values
                for i, (start, busy) in enumerate(slices(n, t, barrier, data)):
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
