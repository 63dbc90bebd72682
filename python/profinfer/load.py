"""Reads all records of a trace, once, into lists by kind. What is inside slices and lists is decoded when it is asked for."""

from .blocks import bad_record, left_out
from .kinds import BY_NUMBER, OFF_CPU, PLAN, SLICES, TASK, TENSOR, Plain
from .predicted import Calls, Tensors
from .wire import BAD, plan_hits, signed, varint

# Most tensors kept: three bytes of a hostile file may describe one with a name of 255 bytes.
_MOST_TENSORS = 1 << 20


class Records:
    """All records of a trace.

    `lists` has tuples of fields, by number of the kind; times are absolute, CLOCK_MONOTONIC in ns. Records with a key are in
    `keyed` instead. An OffCpu record is followed by the names of the threads `by`, `from` and `waker`, a Slices record by its
    bytes.
    """

    def __init__(self, scan):
        self.lists = {number: [] for number, kind in BY_NUMBER.items() if kind.key is None}
        self.keyed = {number: {} for number, kind in BY_NUMBER.items() if kind.key is not None}
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

    def of(self, number):
        """The records of a kind, in the order of the file."""
        return self.lists[number] if number in self.lists else list(self.keyed[number].values())

    def plan(self, plan):
        """(tensor, second tensor or None) of each position of a plan, one after the other; none if it is not known."""
        record = self.keyed[PLAN].get((plan,))
        tensors, second = plan_hits(record[3]) if record else ((), {})
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
            self._keep(number, tensors.take(body, pos))
            return
        kind = BY_NUMBER.get(number)
        if kind is None:  # Of a later version.
            return
        if isinstance(kind, Plain):
            self._keep(number, _plain(kind, body, pos, first))
            return
        record, pos = calls.take(number, body, pos)
        self._keep(number, record + (body[pos:],) if number == SLICES else record)

    def _keep(self, number, record):
        if number in self.lists:
            if number == OFF_CPU:
                name = self._tasks.get
                record += (name(record[10]), name(record[11]), name(record[12]))
            elif number == TASK:
                self._tasks[record[0]] = record[1]
            self.lists[number].append(record)
        elif number == TENSOR:
            # An id keeps its meaning, so a repetition changes nothing.
            if len(self.tensors) < _MOST_TENSORS:
                self.tensors.setdefault(record.id, record)
            elif record.id not in self.tensors:
                self._dropped += 1
        else:
            key = tuple([record[i] for i in BY_NUMBER[number].key])
            self.keyed[number][key] = record


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
    return tuple(out)
