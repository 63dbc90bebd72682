"""Compares a run exported with --merge with the system's trace in it, for tests/live/merge.rs: prints as JSON the content of
both sides, and how many of the run's slices begin while their thread was running according to the kernel. Exits 3 if the
package perfetto of PyPI is not available.

usage: merged.py MERGED SYSTEM

packets, unknown, sequences: of our trace, of the system's, and of the merged file. inside: the share of our slices' starts
that fall into on-CPU time of the same thread, with our times shifted by the given number of ms; of those starts at which the
system's trace covers all CPUs (slices).
"""

import bisect
import json
import sys

from decode import BEGIN, Sequence, proto, unknown

SHIFTS = [-20, -5, -1, 0, 1, 5, 20]


def begins(trace):
    """(tid, time) of each slice on a track of a thread."""
    sequences, tids = {}, {}
    for packet in trace.packet:
        sequence = sequences.setdefault(packet.trusted_packet_sequence_id, Sequence())
        sequence.state(packet)
        if packet.HasField("track_descriptor"):
            tids[packet.track_descriptor.uuid] = packet.track_descriptor.thread.tid
        if not packet.HasField("track_event"):
            continue
        if packet.timestamp_clock_id == 0 and sequence.now is not None:
            sequence.now += packet.timestamp
        event = packet.track_event
        tid = tids[event.track_uuid or sequence.track]
        if event.type == BEGIN and tid:
            yield tid, sequence.now


def on_cpu(trace):
    """By tid: times at which it was put on a CPU and taken off, in order; and from when until when all CPUs are covered."""
    cpus = {}
    for packet in trace.packet:
        bundle = packet.ftrace_events
        # Zero is the trace's own clock, CLOCK_BOOTTIME.
        assert bundle.ftrace_clock == 0 and not bundle.lost_events
        switches, t = cpus.setdefault(bundle.cpu, []), 0
        # Each switch has the time since the previous one, and the next thread: the previous one leaves.
        for since, tid in zip(bundle.compact_sched.switch_timestamp, bundle.compact_sched.switch_next_pid):
            t += since
            switches.append((t, tid))
    times = {}
    for switches in cpus.values():
        switches.sort()
        for (on, tid), (off, _) in zip(switches, switches[1:]):
            times.setdefault(tid, []).append((on, off))
    for runs in times.values():
        runs.sort()
    known = [switches for switches in cpus.values() if switches]
    return times, (max(s[0][0] for s in known), min(s[-1][0] for s in known))


def runs(times, tid, t):
    of_thread = times.get(tid, [])
    at = bisect.bisect_right(of_thread, (t, sys.maxsize)) - 1
    return at >= 0 and t <= of_thread[at][1]


def main():
    with open(sys.argv[1], "rb") as merged, open(sys.argv[2], "rb") as system:
        merged, system = merged.read(), system.read()
    assert merged.endswith(system), "the other recording's bytes are changed"
    of = proto.Trace.FromString
    parts = {"ours": of(merged[: -len(system)]), "theirs": of(system), "merged": of(merged)}
    told = {
        name: {
            "packets": len(trace.packet),
            "unknown": unknown(trace),
            "sequences": sorted({p.trusted_packet_sequence_id for p in trace.packet} - {0}),
        }
        for name, trace in parts.items()
    }
    times, (first, last) = on_cpu(parts["theirs"])
    slices = [(tid, t) for tid, t in begins(parts["ours"]) if first <= t <= last]
    inside = {s: sum(runs(times, tid, t + s * 1_000_000) for tid, t in slices) / len(slices) for s in SHIFTS}
    json.dump({**told, "slices": len(slices), "threads": len({tid for tid, _ in slices}), "inside": inside}, sys.stdout)


main()
