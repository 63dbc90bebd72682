"""CRC-32C (Castagnoli) without a compiled extension.

`crc32c` uses `google_crc32c` or `crc32c` if one of them is installed. Otherwise long inputs are cut into lanes of equal
length, and all lanes advance by one byte at a time: the lookup in the table is `bytes.translate` over a whole row of bytes,
and the exclusive or is one of long integers. That is several times as fast as a loop over bytes.
"""

_POLY = 0x82F63B78
_MASK = 0xFFFFFFFF


def _entry(byte):
    for _ in range(8):
        byte = byte >> 1 ^ (_POLY if byte & 1 else 0)
    return byte


_TABLE = tuple(_entry(byte) for byte in range(256))
# Byte k of each entry, as a table for bytes.translate.
_PLANES = tuple(bytes(value >> 8 * k & 0xFF for value in _TABLE) for k in range(4))
# Bytes of a lane. A row has one byte of each lane, so long lanes mean short rows.
_LANE = 128
# Below this many bytes the loop is faster.
_SHORT = 8 * _LANE


def _shifts(length):
    """Tables that advance a state over `length` zero bytes: one for each byte of the state."""
    tables = []
    for k in range(4):
        table = []
        for byte in range(256):
            state = byte << 8 * k
            for _ in range(length):
                state = state >> 8 ^ _TABLE[state & 0xFF]
            table.append(state)
        tables.append(tuple(table))
    return tables


_skip = []


def _lanes(data, state):
    """The state after `data`, which is a whole number of lanes."""
    if not _skip:
        _skip.extend(_shifts(_LANE))
    count = len(data) // _LANE
    from_bytes = int.from_bytes
    p0, p1, p2, p3 = _PLANES
    s0 = s1 = s2 = s3 = 0
    for i in range(_LANE):
        row = (from_bytes(data[i::_LANE], "little") ^ s0).to_bytes(count, "little")
        s0 = s1 ^ from_bytes(row.translate(p0), "little")
        s1 = s2 ^ from_bytes(row.translate(p1), "little")
        s2 = s3 ^ from_bytes(row.translate(p2), "little")
        s3 = from_bytes(row.translate(p3), "little")
    k0, k1, k2, k3 = _skip
    ends = (s.to_bytes(count, "little") for s in (s0, s1, s2, s3))
    for b0, b1, b2, b3 in zip(*ends):
        moved = k0[state & 0xFF] ^ k1[state >> 8 & 0xFF] ^ k2[state >> 16 & 0xFF] ^ k3[state >> 24]
        state = moved ^ (b0 | b1 << 8 | b2 << 16 | b3 << 24)
    return state


def pure(data):
    """The CRC-32C of `data`, by Python alone."""
    data, state, at = bytes(data), _MASK, 0
    if len(data) >= _SHORT:
        at = len(data) - len(data) % _LANE
        state = _lanes(data[:at], state)
    table = _TABLE
    for byte in data[at:]:
        state = state >> 8 ^ table[(state ^ byte) & 0xFF]
    return state ^ _MASK


def _fastest():
    """The fastest implementation that is installed and right."""
    def google():
        import google_crc32c
        return google_crc32c.value

    def extension():
        import crc32c as found
        return found.crc32c

    for load in (google, extension):
        try:
            compute = load()
            if compute(b"123456789") == 0xE3069283:
                return compute
        except Exception:  # Not installed, or a broken build: it is only a faster way.
            continue
    return pure


crc32c = _fastest()
