"""Tables of why ops took their time: counters, threads off the CPU, sensors, experts, kernels of devices."""

from itertools import islice

from .names import fold
from .table import from_rows
from .wire import unzigzag, varints

UNITS = {"power": "uW", "energy": "uJ", "frequency": "kHz", "temperature": "mdegC", "current": "uA", "cooling": "state",
         "pressure": "us"}


def counters(records):
    """The requested counters."""
    fields = (("id", int), ("name", str), ("unit", str), ("scale", int), ("events", str), ("state", str), ("why", str),
              ("enabled_ns", int), ("running_ns", int))
    return from_rows("counters", fields, records.of(18))


def op_counts(records, namer):
    """One row for each op, thread and counter; `count` is in `unit`."""
    fields = (("graph", int), ("thread", int), ("plan", int), ("position", int), ("op", str), ("name", str),
              ("counter", str), ("unit", str), ("count", int))
    known = {record[0]: record for record in records.of(18)}
    rows = []
    for graph, ith, plan, first, n, bits, data in records.of(19):
        ids = [id_ for id_ in range(32) if bits >> id_ & 1]
        values, hits = varints(data), records.hits(plan)
        for i, value in enumerate(islice(values, n * len(ids))):
            at, id_ = first + i // len(ids), ids[i % len(ids)]
            op = namer.of(hits[at]) if at < len(hits) else None
            _, name, unit, scale = known.get(id_, (id_, f"counter#{id_}", None, 1))[:4]
            count = (value - 1) * scale if value else None
            rows.append((graph, ith, plan, at, op and op.op, op and op.name, name, unit, count))
    return from_rows("op_counts", fields, rows)


def off_cpu(records, offset):
    """One row for each time that a thread was off the CPU."""
    fields = (("pid", int), ("tid", int), ("start_ns", int), ("dur_ns", int), ("runnable_ns", int), ("state", int),
              ("io", str), ("fault", str), ("cpu", int), ("to_cpu", int), ("by", int), ("by_name", str), ("from", int),
              ("from_name", str), ("waker", int), ("waker_name", str), ("cut", bool))
    rows = [(pid, tid, t + offset, dur, runnable, state, _known(io), _known(fault), cpu, None if cut else to_cpu, by,
             by_name, None if cut else from_, from_name, waker, waker_name, cut)
            for pid, tid, t, dur, runnable, state, io, fault, cpu, to_cpu, by, from_, waker, cut, by_name, from_name,
            waker_name in records.of(20)]
    return from_rows("offcpu", fields, rows)


def _known(text):
    return None if text == "unknown" else text


def sensors(records):
    """What was sampled."""
    fields = (("id", int), ("name", str), ("kind", str), ("unit", str), ("path", str), ("interval_ns", int), ("cpus", str),
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
    fields = (("graph", int), ("layer", int), ("ids", int), ("weights", int), ("token_index", int), ("rank", int),
              ("expert", int), ("why", str))
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
