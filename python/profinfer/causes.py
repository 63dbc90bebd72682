"""Tables of why ops took their time: counters, threads off the CPU, sensors, experts, kernels of devices."""

from array import array
from itertools import chain, islice

from .names import fold
from .ops import by_position
from .table import MAYBE, Numbers, Table, from_records, from_rows, repeated, signed_words
from .wire import unzigzag, varints

UNITS = {"power": "uW", "energy": "uJ", "frequency": "kHz", "temperature": "mdegC", "current": "uA", "cooling": "state",
         "pressure": "us"}


def counters(records):
    """The requested counters."""
    fields = (("id", int), ("name", str), ("unit", str), ("scale", int), ("events", str), ("state", str), ("why", str),
              ("enabled_ns", int), ("running_ns", int))
    return from_rows("counters", fields, records.of(18))


OP_COUNTS = ("graph", "thread", "plan", "position", "op", "name", "counter", "unit", "count")


def op_counts(records, namer):
    """One row for each op, thread and counter; `count` is in `unit`. A counter's rows of a record follow each other."""
    known = {record[0]: record for record in records.of(18)}
    # One part for each record and counter: the record, the counter, and the number of ops.
    parts = []
    for record in records.of(19):
        ids = [id_ for id_ in range(32) if record[5] >> id_ & 1]
        values = varints(record[6])[:record[4] * len(ids)]
        for i, id_ in enumerate(ids):
            counter = known.get(id_, (id_, f"counter#{id_}", None, 1))
            counts = values[i::len(ids)]
            parts.append((record, counter[1], counter[2], counter[3], signed_words(counts)))
    fixed = {"graph": lambda part: part[0][0], "thread": lambda part: part[0][1], "plan": lambda part: part[0][2],
             "counter": lambda part: part[1], "unit": lambda part: part[2]}

    def make(name):
        if name == "count":
            out, missing = array("q"), bytearray()
            for _, _, _, scale, counts in parts:
                out.extend(signed_words([max(count - 1, 0) * scale for count in counts]))
                missing.extend(bytes(count == 0 for count in counts))
            return Numbers(out, missing)
        if name == "position":
            return Numbers(array("q", chain.from_iterable(
                range(part[0][3], part[0][3] + len(part[4])) for part in parts)))
        if name in fixed:
            return repeated([fixed[name](part) for part in parts], [len(part[4]) for part in parts],
                            str if name in ("counter", "unit") else int)
        return by_position(namer, name, ((part[0][2], part[0][3], len(part[4])) for part in parts))
    return Table("op_counts", OP_COUNTS, make, lambda: sum(len(part[4]) for part in parts))


def off_cpu(records, offset):
    """One row for each time that a thread was off the CPU. Where it came back is not known if the recording ended before."""
    def unless_cut(at):
        return lambda record: None if record[13] else record[at]

    fields = (("pid", int, 0), ("tid", int, 1), ("start_ns", int, lambda r: r[2] + offset), ("dur_ns", int, 3),
              ("runnable_ns", MAYBE, 4), ("state", int, 5), ("io", str, lambda r: _known(r[6])),
              ("fault", str, lambda r: _known(r[7])), ("cpu", int, 8), ("to_cpu", MAYBE, unless_cut(9)), ("by", int, 10),
              ("by_name", str, 14), ("from", MAYBE, unless_cut(11)), ("from_name", str, unless_cut(15)), ("waker", int, 12),
              ("waker_name", str, 16), ("cut", bool, 13))
    return from_records("offcpu", fields, records.of(20))


def _known(text):
    return None if text == "unknown" else text


def sensors(records):
    """What was sampled."""
    fields = (("id", int), ("name", str), ("kind", str), ("unit", str), ("path", str), ("interval_ns", MAYBE), ("cpus", str),
              ("origin", str))
    rows = [(id_, name, kind, UNITS[kind], path, interval or None, cpus, _known(origin))
            for id_, name, kind, path, interval, cpus, origin in records.of(24)]
    return from_rows("sensors", fields, rows)


def samples(records, offset):
    """One row for each value of a sensor."""
    fields = (("time_ns", int), ("sensor", int), ("name", str), ("kind", str), ("unit", str), ("value", int))
    known, rows = {record[0]: record for record in records.of(24)}, []
    for t, data in records.of(25):
        values = varints(data)
        for id_, value in zip(values[::2], values[1::2]):
            sensor = known.get(id_)
            kind = sensor and sensor[2]
            rows.append((t + offset, id_, sensor and sensor[1], kind, kind and UNITS[kind], unzigzag(value)))
    return from_rows("samples", fields, rows)


def experts(records):
    """One row for each expert that a layer chose for a token. `token_index` counts the tokens of the graph's batch from 0,
    `rank` the experts of a token. `why` says why no expert was recorded; `expert` is then not known."""
    fields = (("graph", int), ("layer", MAYBE), ("ids", int), ("weights", int), ("token_index", int),
              ("rank", MAYBE), ("expert", MAYBE), ("why", str))
    rows = []
    for graph, ids, weights, used, _, first, n, why, data in records.of(22):
        layer = _layer(records, ids, weights)
        if why:
            rows.append((graph, layer, ids, weights, first, None, None, why))
        for i, value in enumerate(islice(varints(data), n * used)):
            rows.append((graph, layer, ids, weights, first + i // used, i % used, unzigzag(value), None))
    return from_rows("experts", fields, rows)


def _layer(records, *tensors):
    for id_ in tensors:
        tensor = records.tensors.get(id_)
        layer = fold(tensor.name)[1] if tensor and tensor.known else None
        if layer is not None:
            return layer
    return None


def kernels(records, offset):
    """One row for each kernel that a device executed. `host_ns` is when the host began to enqueue it; the other times are
    the device's own."""
    fields = (("pid", int), ("tid", int), ("source", str), ("queue", int), ("error_ns", int), ("name", str),
              ("host_ns", int), ("queued_ns", int), ("submitted_ns", int), ("start_ns", int), ("end_ns", int))
    rows = []
    for pid, tid, source, queue, error, t, data in records.of(30):
        values, host = varints(data), t + offset
        for i in range(0, len(values) - 5, 6):
            times, last = [], host
            for value in values[i + 1:i + 6]:
                last += unzigzag(value)
                times.append(last)
            host = times[0]
            named = records.keyed[29].get((values[i],))
            rows.append((pid, tid, source, queue, error, named and named[1] or None, *times))
    return from_rows("kernels", fields, rows)
