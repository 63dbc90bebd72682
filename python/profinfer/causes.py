"""Tables of why ops took their time: counters, threads off the CPU, sensors, memory and CPU time, experts, kernels of
devices."""

from array import array
from itertools import chain, islice
from typing import NamedTuple, Optional

from .names import fold
from .ops import by_position
from .table import MAYBE, Numbers, Table, from_records, from_rows, repeated, signed_words
from .wire import unzigzag, varints

UNITS = {"power": "uW", "energy": "uJ", "frequency": "kHz", "temperature": "mdegC", "current": "uA", "cooling": "state",
         "pressure": "us"}


def counters(records):
    """The requested counters."""
    fields = (("id", int, "id"), ("name", str, "name"), ("unit", str, "unit"), ("scale", int, "scale"),
              ("events", str, "events"), ("state", str, "state"), ("why", str, "why"), ("enabled_ns", int, "enabled_ns"),
              ("running_ns", int, "running_ns"))
    return from_records("counters", fields, records.of("Counter"))


class _Counted(NamedTuple):
    """The counts of a counter in the ops of a record."""

    record: tuple
    counter: str
    unit: Optional[str]
    scale: int
    counts: array
    """Raw, plus 1; 0 is not known."""


def _counted(records):
    for record in records.of("OpCounts"):
        ids = [id_ for id_ in range(32) if record.counters >> id_ & 1]
        values = varints(record.data)[:record.n * len(ids)]
        for i, id_ in enumerate(ids):
            counter = records.one("Counter", id_)
            counts = signed_words(values[i::len(ids)])
            if counter:
                yield _Counted(record, counter.name, counter.unit, counter.scale, counts)
            else:
                yield _Counted(record, f"counter#{id_}", None, 1, counts)


OP_COUNTS = ("graph", "thread", "plan", "position", "op", "name", "counter", "unit", "count")


def op_counts(records, namer):
    """One row for each op, thread and counter; `count` is in `unit`. A counter's rows of a record follow each other."""
    parts = list(_counted(records))
    fixed = {"graph": (int, lambda part: part.record.graph), "thread": (int, lambda part: part.record.ith),
             "plan": (int, lambda part: part.record.plan), "counter": (str, lambda part: part.counter),
             "unit": (str, lambda part: part.unit)}

    def make(name):
        if name == "count":
            out, missing = array("q"), bytearray()
            for part in parts:
                out.extend(signed_words([max(count - 1, 0) * part.scale for count in part.counts]))
                missing.extend(bytes(count == 0 for count in part.counts))
            return Numbers(out, missing)
        if name == "position":
            positions = (range(part.record.first, part.record.first + len(part.counts)) for part in parts)
            return Numbers(array("q", chain.from_iterable(positions)))
        if name in fixed:
            kind, get = fixed[name]
            return repeated([get(part) for part in parts], [len(part.counts) for part in parts], kind)
        return by_position(namer, name, ((part.record.plan, part.record.first, len(part.counts)) for part in parts))
    return Table("op_counts", OP_COUNTS, make, lambda: sum(len(part.counts) for part in parts))


def off_cpu(records, offset):
    """One row for each time that a thread was off the CPU. Where it came back is not known if the recording ended before."""
    def back(field):
        return lambda record: None if record.cut else getattr(record, field)

    fields = (
        ("pid", int, "pid"), ("tid", int, "tid"), ("start_ns", int, lambda record: record.t + offset), ("dur_ns", int, "dur"),
        ("runnable_ns", MAYBE, "runnable"), ("state", int, "state"), ("io", str, lambda record: _known(record.io)),
        ("fault", str, lambda record: _known(record.fault)), ("cpu", int, "cpu"), ("to_cpu", MAYBE, back("to_cpu")),
        ("by", int, "by"), ("by_name", str, "by_name"), ("from", MAYBE, back("from_")), ("from_name", str, back("from_name")),
        ("waker", int, "waker"), ("waker_name", str, "waker_name"), ("cut", bool, "cut"))
    return from_records("offcpu", fields, records.of("OffCpu"))


def _known(text):
    return None if text == "unknown" else text


def sensors(records):
    """What was sampled."""
    fields = (
        ("id", int, "id"), ("name", str, "name"), ("kind", str, "kind"), ("unit", str, lambda sensor: UNITS[sensor.kind]),
        ("path", str, "path"), ("interval_ns", MAYBE, lambda sensor: sensor.interval_ns or None), ("cpus", str, "cpus"),
        ("origin", str, lambda sensor: _known(sensor.origin)))
    return from_records("sensors", fields, records.of("Sensor"))


def samples(records, offset):
    """One row for each value of a sensor."""
    fields = (("time_ns", int), ("sensor", int), ("name", str), ("kind", str), ("unit", str), ("value", int))
    rows = []
    for t, data in records.of("Sample"):
        values = varints(data)
        for id_, value in zip(values[::2], values[1::2]):
            sensor = records.one("Sensor", id_)
            known = (sensor.name, sensor.kind, UNITS[sensor.kind]) if sensor else (None, None, None)
            rows.append((t + offset, id_, *known, unzigzag(value)))
    return from_rows("samples", fields, rows)


def usage(records, offset):
    """One row for each time at which a process was looked at."""
    numbers = ("cpu_us", "team_us", "yields", "preemptions", "anonymous", "files", "shared", "swapped")
    fields = (("time_ns", int), ("pid", int), *((name, MAYBE) for name in numbers))
    rows = [(r.t + offset, r.pid, *(getattr(r, name) for name in numbers)) for r in records.of("Usage")]
    return from_rows("usage", fields, rows)


def experts(records):
    """One row for each expert that a layer chose for a token. `token_index` counts the tokens of the graph's batch from 0,
    `rank` the experts of a token. `why` says why no expert was recorded; `expert` is then not known."""
    fields = (("graph", int), ("layer", MAYBE), ("ids", int), ("weights", int), ("token_index", int),
              ("rank", MAYBE), ("expert", MAYBE), ("why", str))
    rows = []
    for record in records.of("Experts"):
        of = (record.graph, _layer(records, record.ids, record.weights), record.ids, record.weights)
        if record.why:
            rows.append((*of, record.first, None, None, record.why))
        for i, value in enumerate(islice(varints(record.data), record.rows * record.used)):
            rows.append((*of, record.first + i // record.used, i % record.used, unzigzag(value), None))
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
    for record in records.of("DeviceKernels"):
        values, host = varints(record.data), record.t + offset
        for i in range(0, len(values) - 5, 6):
            times, last = [], host
            for value in values[i + 1:i + 6]:
                last += unzigzag(value)
                times.append(last)
            host = times[0]
            named = records.one("KernelName", values[i])
            rows.append((*record[:5], named and named.name or None, *times))
    return from_rows("kernels", fields, rows)
