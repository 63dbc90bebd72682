"""Records whose fields are stored as differences from predictions: calls and slices (kinds 10 to 14), and tensors. The
predictions of a block begin anew in each block. All input is untrusted."""

import re
from typing import NamedTuple, Optional

from .kinds import BY_NUMBER, Predicted
from .wire import U64, Malformed, signed, unzigzag, varint

_SPECS = {number: kind for number, kind in BY_NUMBER.items() if isinstance(kind, Predicted)}


def _skip(mask, data, pos):
    """The position after the fields of a later version: one number for each bit."""
    while mask:
        _, pos = varint(data, pos)
        mask &= mask - 1
    return pos


class Calls:
    """The records of kinds 10 to 14 of one block."""

    def __init__(self, first):
        self.last = {number: [0] * len(spec.fields) for number, spec in _SPECS.items()}
        self.time, self.dur = first, 0

    def take(self, number, data, pos):
        """The fields of the record that begins at `pos`, after its kind, and where the bytes after them begin."""
        spec = _SPECS[number]
        values = self.last[number].copy()
        for i in spec.next:
            values[i] = values[i] + 1 & U64
        values[spec.time] = self.time
        if spec.dur is not None:
            values[spec.dur] = self.dur
        mask, pos = varint(data, pos)
        count = len(values)
        later = mask >> count
        mask &= (1 << count) - 1
        while mask:
            i = (mask & -mask).bit_length() - 1
            coded, pos = varint(data, pos)
            values[i] = values[i] + unzigzag(coded) & U64
            mask &= mask - 1
        if later:
            pos = _skip(later, data, pos)
        self.last[number] = values
        self.time = values[spec.time]
        if spec.dur is not None:
            self.dur = values[spec.dur]
        return _checked(spec, values), pos


def _checked(spec, values):
    """The numbers as values of their types. The next record is predicted even from one that is out of range."""
    out = values.copy()
    for i, (what, limit) in enumerate(spec.convert):
        if what is None:
            continue
        value = values[i]
        if what == "limit":
            if value > limit:
                raise Malformed("a number out of range")
        elif what == "bool":
            out[i] = value != 0
        elif what == "i64":
            out[i] = signed(value)
        elif what == "optional":
            if limit is not None and value - 1 > limit:
                raise Malformed("a number out of range")
            out[i] = value - 1 if value else None
        else:
            if value >= len(limit):
                raise Malformed("an unknown value of an enumeration")
            out[i] = limit[value]
    return out


class Tensor(NamedTuple):
    """A tensor as it was when an op ran."""

    id: int
    pid: int
    addr: int
    known: bool
    """False: only id, pid and address have a meaning."""
    op: int
    type: int
    flags: int
    name: str
    ne: tuple
    nb: Optional[tuple]
    """Strides in bytes, if it is not contiguous."""
    src: tuple
    """Ids of the sources, by slot; None is an empty slot."""
    view_src: Optional[int]


# Bits of the mask, less the first three.
_ADDR, _OP, _TYPE, _FLAGS, _NE, _VIEW, _N_SRC = 0, 3, 4, 5, (6, 7, 8, 13), 9, 10
_ID, _PID, _KNOWN, _STRIDED, _NB = 14, 15, 16, 17, (18, 19, 20, 21)
_SRC = (1, 2, 11, 12) + tuple(range(22, 34))
_FIELDS, _LEAD, _WINDOW, _MAX_NAME = 34, 3, 256, 255
_BLANK = tuple(1 if i in _NE else 0 for i in range(_FIELDS))
_NUMBER = re.compile(rb"[0-9]+")
_ITSELF = 0xFFFFFFFF


def _shifted(name, shift):
    """`name` with `shift` added to its first number; unchanged where that is impossible."""
    found = _NUMBER.search(name) if shift else None
    if not found:
        return name
    digits = found.group()
    if len(digits) > 9 or (len(digits) > 1 and digits[:1] == b"0"):
        return name
    moved = int(digits) + shift
    if moved < 0:
        return name
    out = b"%b%d%b" % (name[:found.start()], moved, name[found.end():])
    return out if len(out) <= _MAX_NAME else name


def _absolute(id_, distance):
    if distance > 0xFFFFFFFF:
        raise Malformed("a number out of range")
    if distance == 0:
        return None
    return id_ if distance == _ITSELF else id_ - distance & 0xFFFFFFFF


class Tensors:
    """The Tensor records of one block."""

    def __init__(self):
        # The last records: fields, difference of the address from the record before, name.
        self.past, self.back, self.shift = [], 0, 0

    def take(self, data, pos):
        """The tensor whose record begins at `pos`, after its kind."""
        mask, pos = varint(data, pos)
        lead = [self.back, self.shift, 0]
        for i in range(_LEAD):
            if mask >> i & 1:
                coded, pos = varint(data, pos)
                lead[i] = lead[i] + unzigzag(coded) & U64
        back, shift, keep = lead
        past = self.past
        if back > min(len(past), _WINDOW):
            raise Malformed("a reference to no tensor")
        fields, step, model = past[-back] if back else (_BLANK, 0, b"")
        before = past[-1][0][_ADDR] if past else 0
        fields = list(fields)
        fields[_ID] = past[-1][0][_ID] + 1 & U64 if past else 0
        fields[_ADDR] = before + step & U64
        mask >>= _LEAD
        later = mask >> _FIELDS
        mask &= (1 << _FIELDS) - 1
        while mask:
            i = (mask & -mask).bit_length() - 1
            coded, pos = varint(data, pos)
            fields[i] = fields[i] + unzigzag(coded) & U64
            mask &= mask - 1
        if later:
            pos = _skip(later, data, pos)
        if keep:
            if keep - 1 > len(model):
                raise Malformed("a part of a name that is shorter")
            name = model[:keep - 1] + data[pos:]
            if len(name) > _MAX_NAME:
                raise Malformed("a name of more than 255 bytes")
        else:
            name = _shifted(model, signed(shift))
        tensor = _tensor(fields, name.decode())
        past.append((fields, fields[_ADDR] - before & U64, name))
        if len(past) >= 4 * _WINDOW:
            del past[:-_WINDOW]
        self.back, self.shift = back, shift
        return tensor


def _tensor(fields, name):
    """The tensor with these fields, if all are in range."""
    id_ = fields[_ID]
    n_src = fields[_N_SRC]
    if max(id_, fields[_PID], fields[_FLAGS]) > 0xFFFFFFFF or max(fields[_OP], fields[_TYPE]) > 0xFFFF or n_src > 16:
        raise Malformed("a number out of range")
    return Tensor(
        id_, fields[_PID], fields[_ADDR], fields[_KNOWN] != 0, fields[_OP], fields[_TYPE], fields[_FLAGS], name,
        tuple([fields[i] for i in _NE]),
        tuple([fields[i] for i in _NB]) if fields[_STRIDED] else None,
        tuple([_absolute(id_, fields[i]) for i in _SRC[:n_src]]),
        _absolute(id_, fields[_VIEW]),
    )
