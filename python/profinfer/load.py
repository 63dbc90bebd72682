"""Reads all records of a trace, once, into lists by kind. What is inside slices and lists is decoded when it is asked for."""

from .blocks import bad_record, left_out
from .kinds import BY_NUMBER, TENSOR, Plain
from .predicted import Calls, Tensors
from .wire import BAD, plan_hits, signed, varint

# Most tensors kept: three bytes of a hostile file may describe one with a name of 255 bytes.
_MOST_TENSORS = 1 << 20


class Records:
    """All records of a trace.

    `lists` has records by the name of their kind, in the order of the file; times are absolute, CLOCK_MONOTONIC in ns. Records
    with a key are in `keyed` instead. An OffCpu record also has the names of the threads `by`, `from` and `waker`, a Slices
    record its bytes.
    """

    def __init__(self, scan):
        self.lists = {kind.name: [] for kind in BY_NUMBER.values() if kind.key is None}
        self.keyed = {kind.name: {} for kind in BY_NUMBER.values() if kind.key is not None}
        self.tensors, self.damage, self.blocks = {}, [], 0
        self._tasks, self._dropped = {}, 0
        for block in scan.blocks:
            payload, damage = scan.payload(block)
            if damage:
                self.damage.append(damage)
                continue
            self.blocks += 1
            self._block(block, payload)
        if self._dropped:
            self.damage.append(left_out(f"{self._dropped} tensors dropped: more than {_MOST_TENSORS}"))

    def of(self, name):
        """The records of a kind, in the order of the file."""
        return self.lists[name] if name in self.lists else list(self.keyed[name].values())

    def one(self, name, *key):
        """The record of a kind that has this key, or None."""
        return self.keyed[name].get(key)

    def plan(self, plan):
        """(tensor, second tensor or None) of each position of a plan, one after the other; none if it is not known."""
        record = self.one("Plan", plan)
        tensors, second = plan_hits(record.hits) if record else ((), {})
        for position, tensor in enumerate(tensors):
            yield tensor, second.get(position)

    def _block(self, block, payload):
        calls, tensors = Calls(block.first), Tensors()
        pos, end = 0, len(payload)
        while pos < end:
            start = pos
            try:
                size, pos = varint(payload, pos)
                if size > end - pos:
                    raise IndexError
            except BAD:
                self.damage.append(bad_record(block, start, end - start, "its length exceeds the block"))
                return
            body = payload[pos:pos + size]
            pos += size
            if not size:  # Padding.
                continue
            try:
                self._record(body, block.first, calls, tensors)
            except BAD:
                self.damage.append(bad_record(block, start, pos - start, "its bytes do not match its kind"))

    def _record(self, body, first, calls, tensors):
        """Decodes a record and keeps it."""
        number, pos = varint(body, 0)
        if number == TENSOR:
            self._keep_tensor(tensors.take(body, pos))
            return
        kind = BY_NUMBER.get(number)
        if kind is None:  # Of a later version.
            return
        if isinstance(kind, Plain):
            values = _plain(kind, body, pos, first)
        else:
            values, pos = calls.take(number, body, pos)
        if kind.name == "Slices":
            values.append(body[pos:])
        elif kind.name == "OffCpu":
            at = kind.fields.index("by")
            values += [self._tasks.get(tid) for tid in values[at:at + 3]]
        self._keep(kind, kind.make(values))

    def _keep(self, kind, record):
        if kind.key is None:
            self.lists[kind.name].append(record)
            if kind.name == "Task":
                self._tasks[record.tid] = record.comm
            return
        key = tuple([record[i] for i in kind.key])
        if kind.name == "Plan":
            # Like a tensor, it keeps its meaning.
            self.keyed[kind.name].setdefault(key, record)
        else:
            self.keyed[kind.name][key] = record

    def _keep_tensor(self, tensor):
        # An id keeps its meaning, so a repetition changes nothing.
        if len(self.tensors) < _MOST_TENSORS:
            self.tensors.setdefault(tensor.id, tensor)
        elif tensor.id not in self.tensors:
            self._dropped += 1


def _plain(kind, body, pos, first):
    """The fields of a plain record. Those beyond its end are zero, false, none or empty; bytes after those that are known
    are of a later version."""
    out, end = [], len(body)
    for read, missing in kind.reads:
        if pos < end:
            value, pos = read(body, pos)
            out.append(value)
        else:
            out.append(missing)
    if kind.time is not None:
        out[kind.time] = signed(out[kind.time] + first)
    return out
