"""The encodings inside records: varints, the types of plain records, slices, plans. All input is untrusted.

A function that meets bytes which cannot be right raises `Malformed`, or `IndexError` or `UnicodeDecodeError`, which
`BAD` lists; the reader of records catches all three.
"""

from array import array


class Malformed(Exception):
    """The bytes of a record do not match its kind."""


BAD = (Malformed, IndexError, UnicodeDecodeError)

U64 = 0xFFFFFFFFFFFFFFFF
I64_MAX = 0x7FFFFFFFFFFFFFFF


def varint(data, pos):
    """The unsigned varint at `pos` and the position after it."""
    byte = data[pos]
    if byte < 0x80:
        return byte, pos + 1
    value, shift = byte & 0x7F, 7
    while True:
        pos += 1
        byte = data[pos]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 63:
            raise Malformed("a number of more than 10 bytes")
    if value > U64:
        raise Malformed("a number of more than 64 bits")
    return value, pos + 1


def varints(data):
    """The varints of a list, up to its end or to the first invalid one."""
    out, pos, end = [], 0, len(data)
    try:
        while pos < end:
            value, pos = varint(data, pos)
            out.append(value)
    except BAD:
        pass
    return out


def unzigzag(value):
    return value >> 1 ^ -(value & 1)


def signed(value):
    """The number modulo 2^64 as a signed one."""
    value &= U64
    return value - (1 << 64) if value > I64_MAX else value


# Plain types: each function returns the value at `pos` and the position after it.

def _unsigned(bits):
    limit = (1 << bits) - 1

    def read(data, pos):
        value, pos = varint(data, pos)
        if value > limit:
            raise Malformed("a number out of range")
        return value, pos
    return read


def _u8(data, pos):
    return data[pos], pos + 1


def _bool(data, pos):
    if data[pos] > 1:
        raise Malformed("neither true nor false")
    return data[pos] == 1, pos + 1


def _zigzag(data, pos):
    value, pos = varint(data, pos)
    return unzigzag(value), pos


def _bytes(data, pos):
    size, pos = varint(data, pos)
    if size > len(data) - pos:
        raise Malformed("longer than its record")
    return data[pos:pos + size], pos + size


def _str(data, pos):
    value, pos = _bytes(data, pos)
    return value.decode(), pos


def _guid(data, pos):
    if len(data) - pos < 16:
        raise Malformed("too short")
    return data[pos:pos + 16], pos + 16


def optional(read):
    def maybe(data, pos):
        present, pos = _bool(data, pos)
        return read(data, pos) if present else (None, pos)
    return maybe


def list_of(reads):
    """A list of values, or of tuples of several."""
    def read(data, pos):
        count, pos = varint(data, pos)
        # Each element has at least one byte.
        if count > len(data) - pos:
            raise Malformed("longer than its record")
        out = []
        for _ in range(count):
            item = []
            for one in reads:
                value, pos = one(data, pos)
                item.append(value)
            out.append(item[0] if len(item) == 1 else tuple(item))
        return out, pos
    return read


def enum(names):
    def read(data, pos):
        value, pos = varint(data, pos)
        if value >= len(names):
            raise Malformed("an unknown value of an enumeration")
        return names[value], pos
    return read


# Type: how it is read, and what a field beyond the end of its record reads as. `time` is read as i64.
PLAIN = {
    "u8": (_u8, 0), "u16": (_unsigned(16), 0), "u32": (_unsigned(32), 0), "u64": (varint, 0), "i64": (_zigzag, 0),
    "time": (_zigzag, 0), "bool": (_bool, False), "str": (_str, ""), "bytes": (_bytes, b""), "guid": (_guid, bytes(16)),
}

# Rows of a pair: its bytes, the bits of its first number, and their mask.
_PAIRS = tuple((size, bits, (1 << bits) - 1)
               for size, bits in ((3, 10), (3, 11), (4, 16), (4, 19), (5, 20), (5, 24), (6, 20)))


def busy_slices(data, n, t):
    """Slices with a barrier: starts, ends, waits, the positions of those whose end was not seen, and whether there are
    `n` of them. The end of one not seen is the start of the next slice, and its wait has no meaning; the last wait of a
    whole record has none either."""
    starts, ends, waits, unseen = [], [], [], []
    pos, stop, from_bytes, rows = 0, len(data), int.from_bytes, _PAIRS
    while n and pos < stop:
        row = data[pos] & 7
        if row < 7:
            size, bits, mask = rows[row]
            after = pos + size
            if after > stop:
                break
            word = from_bytes(data[pos:after], "little") >> 3
            pos, busy, gap = after, word & mask, word >> bits
        else:
            try:
                busy, pos = varint(data, pos + 1)
                gap, pos = varint(data, pos)
            except BAD:
                break
        n -= 1
        starts.append(t)
        if busy:
            t += busy - 1
            ends.append(t)
            t += gap
        else:
            unseen.append(len(ends))
            t += gap
            ends.append(t)
        waits.append(gap)
    return starts, ends, waits, unseen, n == 0


def wall_slices(data, n, t):
    """Slices without a barrier: starts, ends, and whether there are `n` of them; the last end is None if it was not
    seen."""
    starts, pos, stop, length = [], 0, len(data), 1
    while n and pos < stop:
        length = data[pos]
        if length < 0x80:
            pos += 1
        else:
            try:
                length, pos = varint(data, pos)
            except BAD:
                break
        n -= 1
        starts.append(t)
        t += length
    ends = starts[1:]
    if starts:
        ends.append(None if n == 0 and length == 0 else t)
    return starts, ends, n == 0


def plan_hits(data):
    """The tensors of a plan's hits, and the second tensors by position; stops at invalid bytes."""
    tensors, second, pos, tensor, end = array("I"), {}, 0, 0, len(data)
    try:
        while pos < end:
            value, pos = varint(data, pos)
            tensor = tensor + unzigzag(value >> 1) & 0xFFFFFFFF
            if value & 1:
                value, pos = varint(data, pos)
                second[len(tensors)] = tensor + unzigzag(value) & 0xFFFFFFFF
            tensors.append(tensor)
    except BAD:
        pass
    return tensors, second
