"""Whether a recording is complete, and why not. The rules are those of `profinfer report` (docs/TRUST.md)."""

from .table import clamp

_BARRIER = "barrier"


class Sums:
    """Sums over the slices of a trace: of each CpuGraph (thread 0's ops and waits, slices, longest op), by thread index and
    phase, and the number of graphs without a record."""

    def __init__(self, records, timeline, ops):
        starts, ends, waits, no_end, no_wait = ops.times()
        graphs = records.of("CpuGraph")
        leveled = bool(records.of("LevelChange"))
        self.graphs = [[0, 0, 0, 0] for _ in graphs]
        self.threads, orphans = {}, set()
        for run in ops.runs:
            graph = graphs[run.graph] if run.graph is not None else None
            if graph is not None and in_part(leveled, graph):
                continue
            if graph is None:
                orphans.add((run.record.graph, run.record.plan))
            rows = range(run.at, run.at + run.n)
            times = [0 if no_end[i] else max(0, ends[i] - starts[i]) for i in rows]
            wait = sum(waits[i] for i in rows if not no_wait[i])
            busy, ith, tid = sum(times), run.record.ith, run.record.tid
            if graph is not None:
                own = self.graphs[run.graph]
                if ith == 0:
                    own[0] += busy
                    own[1] += wait
                own[2] += run.n
                own[3] = max(own[3], max(times, default=0))
            phase = timeline.cpu_phase[run.graph] if run.graph is not None else None
            thread = self.threads.setdefault((phase, ith), [set(), 0, 0, 0])
            thread[0].add(tid)
            thread[1] += run.n
            thread[2] += busy
            thread[3] += wait
        self.without_record = len(orphans)
        # Phases with barriers have waits.
        self.barrier = {phase for phase, g, own in zip(timeline.cpu_phase, graphs, self.graphs)
                        if g.barrier and own[2] and not in_part(leveled, g)}
        self.barrier |= {None for run in ops.runs if run.graph is None and run.record.barrier}


def in_part(leveled, graph):
    """Whether the level let only a part of a graph's ops be recorded, or changed meanwhile."""
    return leveled and (graph.plan is None or graph.cut)


def _count(n, noun):
    return f"1 {noun}" if n == 1 else f"{n} {noun}s"


def _percent(part, whole):
    share = 100 * part / whole if whole else 0
    return "< 0.01 %" if 0 < share < 0.01 else f"{share:.2f} %"


def reasons(records, damage, timeline, sums):
    """Why a recording is not complete; empty if it is."""
    header, footer = records.one("Header"), records.one("Footer")
    found = _losses(footer) + _hits(records, damage, sums) + _broken(records, header, timeline)
    leveled = bool(records.of("LevelChange"))
    unchecked = sum(g.expected is None and not g.cut and not in_part(leveled, g) for g in records.of("CpuGraph"))
    # Without BPF a graph may not be read in time; what was not to be recorded is not missing.
    wanted = header is None or (header.level == "op" and header.structure and header.source != "perf")
    if unchecked and wanted:
        found.append(f"{_count(unchecked, 'graph')} could not be checked for missing hits")
    return found


def _losses(footer):
    if footer is None:
        return ["did not end cleanly, so the loss is unknown"]
    events = [kind for kind in footer.kinds if kind[0] != _BARRIER]
    lost, seen = sum(kind[3] for kind in events), sum(kind[1] for kind in events)
    found = [f"{_percent(lost, seen)} of the events lost"] if lost and seen else []
    return found + [f"`{kind}` counts disagree: {seen} seen != {recorded} recorded + {lost} lost"
                    for kind, seen, recorded, lost in events if recorded + lost != seen]


def _hits(records, damage, sums):
    found, graphs = [], records.of("CpuGraph")
    checked = [g for g in graphs if g.expected is not None and not g.cut]
    expected, seen = sum(g.expected for g in checked), sum(g.seen for g in checked)
    off = sum(g.expected != g.seen for g in checked)
    if off:
        what = f"{seen - expected} op hits more than expected" if seen > expected else \
            f"{_percent(expected - seen, expected)} of the expected op hits missing"
        found.append(f"{what} ({off} of {len(checked)} graphs differ)")
    leveled = bool(records.of("LevelChange"))
    short = sum(g.plan is not None and not in_part(leveled, g) and own[2] != g.seen for g, own in zip(graphs, sums.graphs))
    if short:
        found.append(f"some slices of {_count(short, 'graph')} are missing from the file")
    over = sum(own[0] + own[1] > g.dur or own[3] > g.dur for g, own in zip(graphs, sums.graphs))
    if over:
        found.append(f"times of {_count(over, 'graph')} are inconsistent: the ops take longer than the graph")
    if damage:
        found.append(f"file damaged in {_count(len(damage), 'place')}")
    if sums.without_record:
        found.append(f"{_count(sums.without_record, 'graph')} without a record")
    return found


def _broken(records, header, timeline):
    """Violated invariants."""
    calls = timeline.calls
    no_graph = no_work = no_ops = (0, 0)
    if header is not None and header.level != "token" and not records.of("LevelChange"):
        no_graph, no_work, no_ops = _calls(records, header, timeline), _graphs(records, header), _splits(records, header)
    found = []
    if no_graph[0]:
        why = _missing(records, ("graph", "cpu-graph"))
        found.append(f"{no_graph[0]} of {_count(no_graph[1], 'call')} without a graph{why}")
    if no_work[0]:
        why = _missing(records, ("split", "cpu-graph"))
        found.append(f"{no_work[0]} of {_count(no_work[1], 'scheduler graph')} without a split or a CPU graph{why}")
    if no_ops[0]:
        why = _missing(records, ("cpu-graph", "op"))
        found.append(f"{no_ops[0]} of {_count(no_ops[1], 'split')} on the CPU without its ops{why}")
    unseen = sum(call.unseen for call in calls)
    if unseen:
        found.append(f"the completion of {_count(unseen, 'call')} on a device was not seen")
    misplaced = _misplaced(records, timeline)
    if misplaced:
        found.append(f"times of {_count(misplaced, 'graph')} are inconsistent: not within the enclosing call or graph")
    return found


def _missing(records, roles):
    """The rung that explains why something is missing."""
    for rung in records.of("Rung"):
        if rung.role in roles and rung.seen == 0 and rung.why:
            return f" ({rung.role}: {rung.why})"
    return ""


def _whole(header, parts):
    """Whether the parts of what a process began at a time would be in this file, which may continue a recording."""
    first = {}
    for part in parts:
        first[part.pid] = min(first.get(part.pid, part.t), part.t)
    return lambda of: of.t >= clamp(header.mono_ns) or (of.pid in first and first[of.pid] <= of.t)


def _calls(records, header, timeline):
    """(calls without a graph, calls)."""
    if timeline.source != "token":
        return 0, 0
    whole = _whole(header, records.of("Graph") + records.of("CpuGraph"))
    found = [call for call in timeline.calls if not call.cut and whole(call)]
    return sum(call.graphs == 0 for call in found), len(found)


def _graphs(records, header):
    """(graphs without work, graphs)."""
    parts = records.of("Split") + records.of("CpuGraph")
    whole, work = _whole(header, parts), {part.graph for part in parts}
    found = [g for g in records.of("Graph") if not g.cut and g.n_nodes > 0 and whole(g)]
    return sum(g.seq not in work for g in found), len(found)


def _splits(records, header):
    """(splits on the CPU without ops, splits on the CPU)."""
    whole, ops = _whole(header, records.of("CpuGraph")), {g.split for g in records.of("CpuGraph")}
    found = [s for s in records.of("Split") if not s.cut and _on_cpu(records, s.backend) and whole(s)]
    return sum(s.seq not in ops for s in found), len(found)


def _on_cpu(records, backend):
    named = records.one("Backend", backend)
    return named is not None and named.name == "CPU"


def _misplaced(records, timeline):
    """The number of graphs and splits that are not within what they belong to."""
    def spans(parts):
        return {part.seq: (part.t, clamp(part.t + part.dur)) for part in parts}

    def beyond(outer, seq, part):
        begin, end = outer.get(seq, (part.t, clamp(part.t + part.dur)))
        return part.t < begin or clamp(part.t + part.dur) > end

    def seen(kind):
        # While probes are added or removed, an end may not be seen.
        return [part for part in records.of(kind) if not (part.cut and records.of("LevelChange"))]

    calls = spans(timeline.calls) if timeline.source == "token" else {}
    graphs, splits = spans(records.of("Graph")), spans(records.of("Split"))
    found = sum(beyond(calls, g.token, g) for g in seen("Graph"))
    found += sum(beyond(graphs, s.graph, s) for s in seen("Split"))
    return found + sum(beyond(graphs, g.graph, g) or beyond(splits, g.split, g) for g in seen("CpuGraph"))
