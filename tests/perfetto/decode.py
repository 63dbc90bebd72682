"""Decodes a Perfetto trace with the definitions that Perfetto publishes (package perfetto of PyPI) and prints its content
as JSON, for tests/plain/export_perfetto.rs. Exits 3 if the package is not available.

usage: decode.py TRACE

unknown: fields that the definitions do not have. tracks: each with its totals by name (slices, ns), the deepest nesting,
whether every slice ended within the one it began in, and the number of its events by category ("" has none). kernels:
GpuRenderStageEvents with the names of their queue and stage, pid and API of their context, and their extra data. A time is
CLOCK_BOOTTIME, ns. thread_ordering: that of the root, 1 if the ranks of threads count.
"""

import json
import sys

try:
    from google.protobuf.unknown_fields import UnknownFieldSet
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto
except ImportError as e:
    print(f"the package perfetto is not available: {e}", file=sys.stderr)
    sys.exit(3)

BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4
BOOTTIME = 6


def unknown(message):
    n = len(UnknownFieldSet(message))
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            repeated = hasattr(value, "append") or hasattr(value, "add")
            n += sum(unknown(m) for m in (value if repeated else [value]))
    return n


class Sequence:
    """Shared state of the packets in a sequence: clock, default track, interned names."""

    def __init__(self):
        self.now = None
        self.track = None
        self.names, self.texts, self.keys, self.categories = {}, {}, {}, {}
        self.specifications, self.contexts = {}, {}

    def state(self, packet):
        if packet.sequence_flags & 1:
            self.__init__()
        clocks = {c.clock_id: c for c in packet.clock_snapshot.clocks}
        if 64 in clocks:
            assert clocks[64].is_incremental and clocks[64].timestamp == clocks[BOOTTIME].timestamp
            self.now = clocks[BOOTTIME].timestamp
        if packet.HasField("trace_packet_defaults"):
            assert packet.trace_packet_defaults.timestamp_clock_id == 64
            self.track = packet.trace_packet_defaults.track_event_defaults.track_uuid
        data = packet.interned_data
        for to, entries in (
            (self.names, data.event_names),
            (self.keys, data.debug_annotation_names),
            (self.categories, data.event_categories),
        ):
            for e in entries:
                assert e.iid not in to, "interned twice"
                to[e.iid] = e.name
        for to, entries in (
            (self.specifications, data.gpu_specifications),
            (self.contexts, data.graphics_contexts),
        ):
            for e in entries:
                assert e.iid not in to, "interned twice"
                to[e.iid] = e
        for e in data.debug_annotation_string_values:
            assert e.iid not in self.texts, "interned twice"
            self.texts[e.iid] = e.str.decode()

    def category(self, event):
        assert len(event.category_iids) <= 1 and not event.categories
        return self.categories[event.category_iids[0]] if event.category_iids else ""

    def values(self, event):
        out = {}
        for a in event.debug_annotations:
            kind = a.WhichOneof("value")
            value = self.texts[a.string_value_iid] if kind == "string_value_iid" else getattr(a, kind)
            out[self.keys[a.name_iid]] = value
        return out


def kernel(event, sequence, t):
    """A GpuRenderStageEvent."""
    queue, stage = sequence.specifications[event.hw_queue_iid], sequence.specifications[event.stage_iid]
    context = sequence.contexts[event.context]
    extra = {e.name: e.value for e in event.extra_data}
    assert len(extra) == len(event.extra_data), "a name twice"
    for named in (queue, stage):
        assert named.category == proto.InternedGpuRenderStageSpecification.COMPUTE
    return {"id": event.event_id, "t": t, "dur": event.duration, "queue": queue.name, "times": queue.description,
            "iid": queue.iid, "stage": stage.name, "pid": context.pid, "extra": extra,
            "api": proto.InternedGraphicsContext.Api.Name(context.api)}


class Track:
    def __init__(self):
        self.about, self.open, self.totals, self.slices = {}, [], {}, []
        self.deepest, self.nested, self.instants, self.counts = 0, True, [], []
        self.categories = {}

    def begin(self, t, name, values):
        self.nested &= not self.open or self.open[-1][0] <= t
        self.open.append((t, name, values))
        self.deepest = max(self.deepest, len(self.open))

    def end(self, t):
        if not self.open:
            self.nested = False
            return
        start, name, values = self.open.pop()
        n, ns = self.totals.get(name, (0, 0))
        self.totals[name] = (n + 1, ns + t - start)
        if len(self.slices) < 1000:
            self.slices.append({"name": name, "t": start, "dur": t - start, "depth": len(self.open), **values})


def main():
    with open(sys.argv[1], "rb") as f:
        trace = proto.Trace.FromString(f.read())
    sequences, tracks, kernels, snapshots, before, thread_ordering = {}, {}, [], [], 0, 0
    for packet in trace.packet:
        sequence = sequences.setdefault(packet.trusted_packet_sequence_id, Sequence())
        sequence.state(packet)
        # Perfetto's own reader rejects timestamps of the trace's clock that go backwards.
        for c in packet.clock_snapshot.clocks:
            if c.clock_id == BOOTTIME:
                assert c.timestamp >= before, "the clock goes back"
                before = c.timestamp
        if packet.HasField("clock_snapshot") and not packet.sequence_flags & 1:
            snapshots.append({c.clock_id: c.timestamp for c in packet.clock_snapshot.clocks})
        if packet.HasField("track_descriptor"):
            d = packet.track_descriptor
            if d.uuid == 0:
                assert d.HasField("uuid"), "the root has the id 0, which must be written"
                thread_ordering = d.thread_ordering
                continue
            about = tracks.setdefault(d.uuid, Track()).about
            about.update(name=d.name or d.thread.thread_name or d.process.process_name, parent=d.parent_uuid)
            about.update(pid=d.thread.pid or d.process.pid, tid=d.thread.tid, cmdline=list(d.process.cmdline))
            about.update(unit=d.counter.unit_name, rank=d.sibling_order_rank)
        kind = packet.WhichOneof("data")
        if kind not in ("track_event", "gpu_render_stage_event"):
            continue
        if packet.timestamp_clock_id == 0 and sequence.now is not None:
            sequence.now += packet.timestamp
            t = sequence.now
        else:
            t = packet.timestamp
        if kind == "gpu_render_stage_event":
            kernels.append(kernel(packet.gpu_render_stage_event, sequence, t))
            continue
        event = packet.track_event
        track = tracks[event.track_uuid or sequence.track]
        name = sequence.names.get(event.name_iid, event.name)
        category = sequence.category(event)
        if event.type != END:
            track.categories[category] = track.categories.get(category, 0) + 1
        if event.type == BEGIN:
            values = {"args": sequence.values(event), "flows": list(event.flow_ids), "category": category}
            track.begin(t, name, values)
        elif event.type == END:
            track.end(t)
        elif event.type == INSTANT:
            track.instants.append({"name": name, "t": t, "args": sequence.values(event)})
        elif event.type == COUNTER:
            track.counts.append((t, event.double_counter_value))
    out = []
    for uuid, track in tracks.items():
        track.nested &= not track.open
        out.append({"uuid": uuid, **track.about, "totals": track.totals, "deepest": track.deepest,
                    "nested": track.nested, "slices": track.slices, "instants": track.instants,
                    "counts": track.counts, "categories": track.categories})
    told = {"unknown": unknown(trace), "sequences": sorted(sequences), "snapshots": snapshots, "tracks": out, "kernels": kernels}
    json.dump({**told, "thread_ordering": thread_ordering}, sys.stdout)


if __name__ == "__main__":
    main()
