"""The table of ops: one row for each op and thread, in the order of graphs, threads and positions. Columns and rules are
those of `profinfer export --csv ops`."""

from array import array
from bisect import bisect_left, bisect_right

from .names import UNKNOWN
from .table import MAYBE, Coded, Numbers, Table, clamp, repeated, signed_words
from .wire import busy_slices, varints, wall_slices

NAMES = ("pid", "call", "phase", "token", "graph", "layer", "op", "name", "thread", "tid", "start_ns", "end_ns", "wait_ns",
         "types", "position", "cpu")


class Run:
    """The slices of one record: rows `at` to `at + n` of the table."""

    __slots__ = ("record", "graph", "at", "n")

    def __init__(self, record, graph, at, n):
        self.record, self.graph, self.at, self.n = record, graph, at, n


class Ops:
    """The slices of a trace, decoded when a column is asked for."""

    def __init__(self, records, timeline, namer, offset):
        """`offset` is CLOCK_BOOTTIME less CLOCK_MONOTONIC, ns; `timeline()` and `namer()` compute what they say."""
        self._records, self._timeline, self._namer, self._offset = records, timeline, namer, offset
        self._runs = None

    def table(self):
        return Table("ops", NAMES, self._column, lambda: len(self.times()[0]))

    def times(self):
        """The arrays of starts, ends and waits; a bytearray of the ends, and one of the waits, that are not known."""
        if self._runs is None:
            self._decode()
        return self._times

    @property
    def runs(self):
        self.times()
        return self._runs

    def _sorted(self):
        """The records in order, each with the index of its CpuGraph or None."""
        index = {g.seq: i for i, g in enumerate(self._records.of("CpuGraph"))}
        found = sorted(self._records.of("Slices"), key=lambda r: (r.graph, r.plan, r.ith, r.first))
        return [(record, index.get(record.graph)) for record in found]

    def _decode(self):
        starts, ends, waits = array("q"), array("q"), array("q")
        no_end, no_wait, runs = bytearray(), bytearray(), []
        graphs, found, offset = self._records.of("CpuGraph"), self._sorted(), self._offset
        for i, (record, at) in enumerate(found):
            after = found[i + 1][0] if i + 1 < len(found) else None
            joined, graph_end = _edges(record, after, graphs[at] if at is not None else None)
            joined = None if joined is None else joined + offset
            graph_end = None if graph_end is None else graph_end + offset
            decode = _busy if record.barrier else _wall
            one = decode(record, record.t + offset, joined, graph_end)
            runs.append(Run(record, at, len(starts), len(one[0])))
            starts.extend(signed_words(one[0]))
            ends.extend(signed_words(one[1]))
            waits.extend(signed_words(one[2]))
            no_end.extend(one[3])
            no_wait.extend(one[4])
        self._times, self._runs = (starts, ends, waits, no_end, no_wait), runs

    def _column(self, name):
        if name == "start_ns":
            return Numbers(self.times()[0])
        if name == "end_ns":
            return Numbers(self.times()[1], self.times()[3])
        if name == "wait_ns":
            return Numbers(self.times()[2], self.times()[4])
        if name in ("op", "name", "types", "layer"):
            return self._of_position(name)
        if name == "position":
            values = array("q")
            for run in self.runs:
                values.extend(range(run.record.first, run.record.first + run.n))
            return Numbers(values)
        if name == "cpu":
            return self._cpus()
        value = {"graph": lambda run: run.record.graph, "thread": lambda run: run.record.ith,
                 "tid": lambda run: run.record.tid, "pid": self._pid, "token": self._token, "call": self._function,
                 "phase": self._phase}[name]
        values = [value(run) for run in self.runs]
        kind = str if name in ("call", "phase") else MAYBE if name in ("pid", "token") else int
        return repeated(values, [run.n for run in self.runs], kind)

    def _pid(self, run):
        if run.graph is not None:
            return self._records.of("CpuGraph")[run.graph].pid
        # The graph was lost: the process of its tensors, or the only one there is.
        first = next(self._records.plan(run.record.plan), None)
        tensor = self._records.tensors.get(first[0]) if first else None
        if tensor:
            return tensor.pid
        processes = self._records.of("Process")
        return processes[0].pid if len(processes) == 1 else None

    def _call(self, run):
        line = self._timeline()
        call = line.cpu_call[run.graph] if run.graph is not None else None
        return None if call is None else line.calls[call]

    def _token(self, run):
        call = self._call(run)
        return call and call.seq

    def _function(self, run):
        call = self._call(run)
        return call and call.function

    def _phase(self, run):
        return None if run.graph is None else self._timeline().cpu_phase[run.graph]

    def _of_position(self, name):
        """A column of what the plans say of each position; unknown for a position that the trace does not define."""
        return by_position(self._namer(), name, ((run.record.plan, run.record.first, run.n) for run in self.runs))

    def _cpus(self):
        """The CPU that each op started on, as far as it is known."""
        changes = _changes(self._records.of("OpCpus"), self._offset)
        starts = self.times()[0]
        out, missing = array("q"), bytearray()
        for run in self.runs:
            times, cpus = changes.get(run.record.tid, ((), ()))
            row, end = run.at, run.at + run.n
            next_change = bisect_right(times, starts[row]) if run.n else 0
            while row < end:
                cpu = cpus[next_change - 1] if next_change else None
                stop = end
                if next_change < len(times):
                    stop = bisect_left(starts, times[next_change], row, end)
                out.extend(array("q", [cpu or 0]) * (stop - row))
                missing.extend(bytes([cpu is None]) * (stop - row))
                row = stop
                next_change += 1
        return Numbers(out, missing)


def by_position(namer, name, runs):
    """A field of the ops at consecutive positions of plans; `runs` are of (plan, first position, number)."""
    at, plans, index = UNKNOWN._fields.index(name), {}, {}
    out, missing, numbers = array("q"), bytearray(), name == "layer"
    for plan, first, n in runs:
        if plan not in plans:
            values = [op[at] for op in namer.of_plan(plan)]
            coded = values if numbers else [None if v is None else index.setdefault(v, len(index)) for v in values]
            unknown = 0 if numbers else -1
            plans[plan] = (array("q", [unknown if v is None else v for v in coded]), bytearray(v is None for v in coded))
        values, gone = plans[plan]
        here = values[first:first + n]
        beyond = n - len(here)
        out.extend(here)
        missing.extend(gone[first:first + n])
        if beyond:
            out.extend(array("q", [0 if numbers else -1]) * beyond)
            missing.extend(b"\1" * beyond)
    return Numbers(out, missing) if numbers else Coded(out, list(index))


def _changes(records, offset):
    """By thread: the times at which its CPU changed, and the CPU from then on; None is not known."""
    found = {}
    for tid, t, data in records:
        values, t = varints(data), t + offset
        for i in range(0, len(values), 2):
            # The first change is at t, each other one is that much later.
            cpu, t = (values[0], t) if i == 0 else (values[i], t + values[i - 1])
            if cpu > 0x10000:
                break
            found.setdefault(tid, []).append((t, cpu - 1 if cpu else None))
    out = {}
    for tid, changes in found.items():
        changes.sort(key=lambda change: change[0])
        out[tid] = ([t for t, _ in changes], [cpu for _, cpu in changes])
    return out


def _edges(record, after, graph):
    """The start of the thread's next record, if it continues this one, and the end of the graph, if there is no other."""
    if after is not None and (after.graph, after.plan, after.ith) == (record.graph, record.plan, record.ith):
        # If they do not join, slices were lost in between, and the time between them belongs to no op.
        return after.t if record.first + record.n == after.first else None, None
    # An op that ran when the recording ended has no end.
    return None, None if graph is None or graph.cut else clamp(graph.t + graph.dur)


def _busy(record, t, joined, graph_end):
    """Starts, ends, waits, and what of the last two is not known."""
    starts, ends, waits, unseen, whole = busy_slices(record.data, record.n, t)
    count = len(starts)
    no_end, no_wait = bytearray(count), bytearray(count)
    for i in unseen:
        no_wait[i] = 1
    if whole and count:
        last = count - 1
        if no_wait[last]:
            end = joined if joined is not None else graph_end
            no_end[last] = end is None
            ends[last] = max(starts[last], end or 0)
        elif joined is None:
            no_wait[last] = 1
        else:
            waits[last] = max(0, joined - ends[last])
    return starts, ends, waits, no_end, no_wait


def _wall(record, t, joined, graph_end):
    """The same without a barrier: a wait is a part of its op."""
    starts, ends, whole = wall_slices(record.data, record.n, t)
    count = len(starts)
    no_end = bytearray(count)
    if whole and count and ends[-1] is None:
        end = joined if joined is not None else graph_end
        no_end[-1] = end is None
        ends[-1] = max(starts[-1], end or 0)
    return starts, ends, [0] * count, no_end, b"\1" * count
