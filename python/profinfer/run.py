"""A recorded run: its tables, what is known of the recording, and what is missing in it."""

from collections import Counter

from . import causes, notebook, quality
from .blocks import MAJOR, MINOR, Scan, Store
from .calls import Timeline, backend_name
from .kinds import BY_NAME
from .load import Records
from .names import Namer
from .ops import Ops
from .table import MAYBE, from_records, from_rows

_COLUMN = {"str": str, "bool": bool, "bytes": object, "guid": object}


def open_run(source):
    """Opens a trace: a path, or its bytes. The file is read when a table is asked for.

    Raises FormatError if it is not a trace or one of a later major version, and OSError if it cannot be read. A damaged
    trace is read as far as its blocks are whole; `Run.damage` says what is missing.
    """
    store = Store(source)
    try:
        return Run(store, Scan(store))
    except BaseException:
        store.close()
        raise


def _once(compute):
    """A property that is computed when it is first asked for."""
    name = "_once " + compute.__name__

    def get(self):
        if name not in self.__dict__:
            self.__dict__[name] = compute(self)
        return self.__dict__[name]
    return property(get, doc=compute.__doc__)


class Run:
    """A trace. All tables have times in ns of CLOCK_BOOTTIME, as timelines and `profinfer export --csv ops` have."""

    def __init__(self, store, scan):
        self._store, self._scan = store, scan
        self.version = scan.version
        """(major, minor) version of the format."""

    @property
    def newer(self):
        """True if the file has a later minor version than this package knows: some records may have been skipped."""
        return self.version > (MAJOR, MINOR)

    @_once
    def _all(self):
        records = Records(self._scan)
        self._store.close()
        return records

    @_once
    def _timeline(self):
        return Timeline(self._all)

    @_once
    def _namer(self):
        return Namer(self._all)

    @_once
    def _ops_of(self):
        return Ops(self._all, lambda: self._timeline, lambda: self._namer, self._offset)

    @_once
    def _sums(self):
        return quality.Sums(self._all, self._timeline, self._ops_of)

    @property
    def _offset(self):
        """CLOCK_BOOTTIME less CLOCK_MONOTONIC, ns."""
        header = self.header
        return header["boot_ns"] - header["mono_ns"] if header else 0

    # What is known of the recording.

    @_once
    def header(self):
        """The machine, the clocks and the recorder, as a dict; None if it was lost. `mono_ns`, `boot_ns` and `real_ns` are
        the same instant on three clocks: a time less `boot_ns` plus `real_ns` is the time since 1970."""
        return self._single("Header")

    @_once
    def footer(self):
        """How the recording ended, what was lost and what it cost, as a dict; None if it did not end cleanly."""
        footer = self._single("Footer")
        if footer:
            footer["kinds"] = [dict(zip(("kind", "seen", "recorded", "lost"), kind)) for kind in footer["kinds"]]
        return footer

    def _single(self, name):
        record = self._all.one(name)
        return record and dict(zip(BY_NAME[name].fields, record))

    @_once
    def damage(self):
        """What the file lost: a list of `Damage`. A missing footer is not among it, see `incomplete`."""
        return self._scan.damage + self._all.damage

    @_once
    def incomplete(self):
        """Why the recording is not complete: a list of texts, empty if it is. The rules are those of `profinfer report`:
        every event is in the file, every op that was expected was seen, and calls, graphs and ops agree."""
        return quality.reasons(self._all, self.damage, self._timeline, self._sums)

    @property
    def complete(self):
        """True if nothing is missing; `incomplete` says what is."""
        return not self.incomplete

    # Tables.

    @_once
    def ops(self):
        """One row for each op and thread, as `profinfer export --csv ops`."""
        return self._ops_of.table()

    @_once
    def calls(self):
        """One row for each call of llama.cpp, or for what takes its place. `seq` is `token` in other tables."""
        fields = (
            ("seq", int, "seq"), ("pid", int, "pid"), ("tid", int, "tid"), ("call", str, "function"), ("phase", str, "phase"),
            ("tokens", MAYBE, "tokens"), ("start_ns", int, self._start), ("dur_ns", int, "dur"), ("graphs", int, "graphs"),
            ("cut", bool, "cut"), ("unseen", bool, "unseen"),
            ("device_ns", MAYBE, lambda call: None if call.unseen else call.device))
        return from_records("calls", fields, self._timeline.calls)

    @_once
    def graphs(self):
        """One row for each graph of the scheduler."""
        phases = self._timeline.graph_phase
        fields = (
            ("seq", int, "seq"), ("token", MAYBE, "token"), ("phase", str, lambda g: phases[g.seq]), ("pid", int, "pid"),
            ("tid", int, "tid"), ("cgraph", int, "cgraph"), ("n_nodes", int, "n_nodes"),
            ("ubatch", MAYBE, lambda g: g.ubatch or None), ("start_ns", int, self._start), ("dur_ns", int, "dur"),
            ("cut", bool, "cut"), ("device_ns", MAYBE, _device))
        return from_records("graphs", fields, self._all.of("Graph"))

    @_once
    def splits(self):
        """One row for each split of a graph, on one backend. `graph` is the seq of a graph of the scheduler."""
        records = self._all
        fields = (
            ("seq", int, "seq"), ("graph", MAYBE, "graph"), ("backend", str, lambda s: backend_name(records, s.backend)),
            ("pid", int, "pid"), ("tid", int, "tid"), ("n_nodes", int, "n_nodes"), ("start_ns", int, self._start),
            ("dur_ns", int, "dur"), ("cut", bool, "cut"), ("device_ns", MAYBE, _device), ("plan", MAYBE, "plan"))
        return from_records("splits", fields, records.of("Split"))

    @_once
    def cpu_graphs(self):
        """One row for each graph that the CPU computed; `seq` is `graph` in the table of ops."""
        line = self._timeline
        calls = {g.seq: None if call is None else line.calls[call].seq
                 for g, call in zip(self._all.of("CpuGraph"), line.cpu_call)}
        phases = {g.seq: phase for g, phase in zip(self._all.of("CpuGraph"), line.cpu_phase)}
        fields = (
            ("seq", int, "seq"), ("graph", MAYBE, "graph"), ("split", MAYBE, "split"),
            ("token", MAYBE, lambda g: calls[g.seq]), ("phase", str, lambda g: phases[g.seq]), ("pid", int, "pid"),
            ("tid", int, "tid"), ("plan", MAYBE, "plan"), ("n_nodes", int, "n_nodes"), ("n_threads", int, "n_threads"),
            ("ubatch", MAYBE, lambda g: g.ubatch or None), ("start_ns", int, self._start), ("dur_ns", int, "dur"),
            ("expected", MAYBE, "expected"), ("seen", int, "seen"), ("barrier", bool, "barrier"), ("cut", bool, "cut"))
        return from_records("cpu_graphs", fields, self._all.of("CpuGraph"))

    def _start(self, record):
        """The start of a record on the clock of the tables."""
        return record.t + self._offset

    @_once
    def threads(self):
        """One row for each thread of GGML's pool and phase, as `report --json` has in `by_thread`."""
        fields = (("phase", str), ("ith", int), ("tids", int), ("slices", int), ("op_ns", int), ("wait_ns", MAYBE))
        sums = self._sums
        rows = [(phase, ith, len(tids), slices, op, wait if phase in sums.barrier else None)
                for (phase, ith), (tids, slices, op, wait) in sums.threads.items()]
        rows.sort(key=lambda row: (row[0] != "prefill", row[0] or "z", row[1]))
        return from_rows("threads", fields, rows)

    @_once
    def tensors(self):
        """One row for each tensor; `op` and `type` are names, `src` the ids of the sources by slot."""
        namer = self._namer

        def known(get):
            return lambda tensor: get(tensor) if tensor.known else None

        fields = (
            ("id", int, "id"), ("pid", int, "pid"), ("addr", int, "addr"), ("known", bool, "known"),
            ("op", str, known(lambda t: namer.op_name(t.op))), ("type", str, known(lambda t: namer.type_name(t.type))),
            ("flags", MAYBE, known(lambda t: t.flags)), ("name", str, known(lambda t: t.name)),
            ("ne", object, known(lambda t: t.ne)), ("nb", object, "nb"), ("src", object, known(lambda t: t.src)),
            ("view_src", MAYBE, "view_src"))
        return from_records("tensors", fields, list(self._all.tensors.values()))

    @_once
    def counters(self):
        """One row for each requested counter; its values are in `op_counts`."""
        return causes.counters(self._all)

    @_once
    def op_counts(self):
        """One row for each op, thread and counter."""
        return causes.op_counts(self._all, self._namer)

    @_once
    def offcpu(self):
        """One row for each time that a thread of the target was off the CPU."""
        return causes.off_cpu(self._all, self._offset)

    @_once
    def sensors(self):
        """One row for each sensor; its values are in `samples`."""
        return causes.sensors(self._all)

    @_once
    def samples(self):
        """One row for each value of a sensor."""
        return causes.samples(self._all, self._offset)

    @_once
    def usage(self):
        """One row for each time at which a process was looked at: CPU time since it began, and memory in bytes."""
        return causes.usage(self._all, self._offset)

    @_once
    def experts(self):
        """One row for each expert that a layer chose for a token."""
        return causes.experts(self._all)

    @_once
    def kernels(self):
        """One row for each kernel that a device executed."""
        return causes.kernels(self._all, self._offset)

    def records(self, name):
        """The records of a kind of docs/FORMAT.md (`"Peaks"`, `"Rung"`, ...) as a table of its fields. Of records with the
        same key only the last one is in it. Times `t` are those of the file: CLOCK_MONOTONIC.

        Raises KeyError for a kind that this package does not know, or that is `Tensor`, see `tensors`.
        """
        kind = BY_NAME.get(name)
        if kind is None:
            raise KeyError(f"no kind of record {name!r}: {', '.join(sorted(BY_NAME))}")
        fields = [(field, _column_type(of)) for field, of in zip(kind.fields, kind.types)]
        if name == "Slices":
            fields.append(("data", object))
        return from_rows(name, fields, self._all.of(name))

    def tables(self):
        """All tables by name."""
        return {name: getattr(self, name) for name in TABLES}

    def __repr__(self):
        return f"<profinfer run: {len(self._scan.blocks)} blocks, format {self.version[0]}.{self.version[1]}>"

    def _repr_html_(self):
        """For notebooks: the machine, the calls, whether anything is missing, and the tables."""
        header, footer = self.header or {}, self.footer or {}
        phases = Counter(call.phase or "unknown" for call in self._timeline.calls)
        calls = ", ".join(f"{n} {phase}" for phase, n in sorted(phases.items())) or "none"
        return notebook.facts("profinfer run", [
            ("recorded by", header.get("tool")), ("on", header.get("cpu_model")), ("kernel", header.get("kernel")),
            ("calls", calls), ("ended", footer.get("end")),
            ("complete", "yes" if self.complete else "no: " + "; ".join(self.incomplete)), ("tables", ", ".join(TABLES))])


TABLES = ("ops", "calls", "graphs", "splits", "cpu_graphs", "threads", "tensors", "counters", "op_counts", "offcpu", "sensors",
          "samples", "usage", "experts", "kernels")


def _device(record):
    """The time that a call waited for a device after its return: None if the completion was not seen."""
    return None if record.device == 1 else max(record.device - 2, 0)


def _column_type(kind):
    if kind in _COLUMN:
        return _COLUMN[kind]
    if kind.startswith("["):
        return object
    if kind.endswith("?"):
        return MAYBE
    return str if "|" in kind else int
