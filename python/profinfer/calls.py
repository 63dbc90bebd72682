"""The engine's calls: which are prefill and which decode, and which graph belongs to which. The rules are those of
`profinfer report` (docs/REPORT.md)."""

from bisect import bisect_right
from typing import NamedTuple, Optional

from .table import clamp

# Backends whose work is done when they return: CPU, BLAS and OpenVINO, AMX, ZenDNN, the second one of ggml-runner.
_HOST_GUIDS = {bytes(16)} | {bytes.fromhex(guid) for guid in (
    "aa67c74396e6a38ae3afea9236bcfc89", "12a8aef4c01e61978feb3304a133512d", "13b8a4c4bafe516787445515b235623e")} | {
    b"AMD-ZENDNN-ACCEL", b"ggml-runner-2nd!"}
_HOST_NAMES = {"CPU", "BLAS/OpenVINO", "AMX", "ZenDNN", "ggml-runner 2"}
_NAMES = {bytes.fromhex(guid): name for guid, name in (
    ("aa67c74396e6a38ae3afea9236bcfc89", "CPU"), ("2cdde81c65b365736a1288611cc9dc25", "CUDA/HIP/MUSA"),
    ("b8f74f86403ce10291c8dde9023fc02b", "Vulkan"), ("81a18b1e71ec79ed2b85dc8a619830e6", "Metal"),
    ("5805138fcd3a619de7cd98a903fd7c53", "SYCL"), ("dee070a2734e4dbcb0c74fd46d4e90fe", "OpenCL"),
    ("12a8aef4c01e61978feb3304a133512d", "BLAS/OpenVINO"), ("99685b6cd2833d24253672e15b0e1403", "RPC"),
    ("a194afacbd4f4734be1a9e711f9eed64", "CANN"))}

# Names of llama.cpp's tensors: what its graphs read and give, and what they give where embeddings are pooled.
_OF_TOKENS = {"inp_tokens", "result_output"}
_POOLED = "result_embd_pooled"


def backend_name(records, id_):
    """The name of a backend; its GUID if it has none, None if the trace does not describe it."""
    backend = records.one("Backend", id_)
    return backend and (backend.name or _NAMES.get(backend.guid) or backend.guid.hex())


def _on_device(records, id_):
    backend = records.one("Backend", id_)
    return backend is not None and backend.guid not in _HOST_GUIDS and backend.name not in _HOST_NAMES


def phase_of(width):
    """The phase of a batch of `width` tokens; None if it is not known (0)."""
    return None if width == 0 else "decode" if width == 1 else "prefill"


class Call(NamedTuple):
    """A call of `llama_process`, `llama_decode` or `llama_encode`, or what takes its place."""

    seq: int
    pid: int
    tid: int
    function: Optional[str]
    phase: Optional[str]
    tokens: Optional[int]
    t: int
    dur: int
    graphs: int
    cut: bool
    """Its end is not known: the recording ended before it, or `unseen`."""
    unseen: bool
    """A device computed on after its return, and the completion was not seen."""
    device: int
    """The part of `dur` that the program waited for a device after the return."""

    @property
    def end(self):
        return clamp(self.t + self.dur)


class _Width:
    """The widths of the graphs of a call."""

    __slots__ = ("widest", "sum", "graphs", "whole")

    def __init__(self):
        self.widest = self.sum = self.graphs = 0
        self.whole = True

    def add(self, ubatch):
        self.widest = max(self.widest, ubatch)
        self.sum += ubatch
        self.graphs += 1
        self.whole &= ubatch != 0


class Timeline:
    """The calls by time, and what belongs to them.

    `source` is `token`, or what takes the place of calls if none were recorded: `scheduler_graph`, `cpu_graph`.
    `graph_call` and `graph_phase` are by the seq of a scheduler graph, `cpu_call` and `cpu_phase` by the index of a CpuGraph;
    calls are given by their index.
    """

    def __init__(self, records):
        self._records = records
        tokens, graphs, cpu_graphs = records.of("Token"), records.of("Graph"), records.of("CpuGraph")
        self.source = "token" if tokens else "scheduler_graph" if graphs else "cpu_graph"
        bare = sorted(self._bare(), key=lambda call: (call.t, call.seq))
        self._by_seq = {call.seq: i for i, call in enumerate(bare)}
        self._by_thread = {}
        for i, call in enumerate(bare):
            self._by_thread.setdefault((call.pid, call.tid), ([], []))[0].append(call.t)
            self._by_thread[call.pid, call.tid][1].append(i)
        widths = [_Width() for _ in bare]
        graph_width = self._link_graphs(graphs, cpu_graphs, bare, widths)
        self.cpu_call = [self._of_cpu_graph(g, bare, widths) for g in cpu_graphs]
        self.calls = [_settled(call, width) for call, width in zip(bare, widths)]
        self.work = self._work()
        if self.work == "embeddings":
            self.calls = [call._replace(phase="prefill") for call in self.calls]
        elif self.work == "graphs":
            self.calls = [call._replace(phase=None, tokens=None) for call in self.calls]
        self.graph_phase = {seq: self._phase(self.graph_call[seq], width) for seq, width in graph_width.items()}
        self.cpu_phase = []
        for g, call in zip(cpu_graphs, self.cpu_call):
            of_graph = g.graph in self.graph_phase and call is None
            self.cpu_phase.append(self.graph_phase[g.graph] if of_graph else self._phase(call, g.ubatch))

    def _phase(self, call, width):
        if call is not None:
            return self.calls[call].phase
        return None if self.work == "graphs" else phase_of(width)

    def _work(self):
        """What the calls are for: `tokens`, `embeddings`, or `graphs` of a program that is not llama.cpp."""
        named = {tensor.name for tensor in self._records.tensors.values() if tensor.known}
        if self.source != "token":
            return "graphs" if self.calls and not named & _OF_TOKENS else "tokens"
        encodes = all(call.function == "llama_encode" for call in self.calls)
        return "embeddings" if self.calls and (encodes or _POOLED in named) else "tokens"

    def _bare(self):
        """The calls without what their graphs say."""
        records = self._records
        # Before format 1.3, the completion of a device was not recorded.
        early = {s.graph for s in records.of("Split") if s.device == 0 and _on_device(records, s.backend)} - {None}
        if self.source == "token":
            early = {g.token for g in records.of("Graph") if g.seq in early} - {None}
            return [_call(t, t.entry, t.n_tokens, t.device, t.seq in early) for t in records.of("Token")]
        if self.source == "scheduler_graph":
            return [_call(g, None, None, g.device, g.seq in early) for g in records.of("Graph")]
        return [_call(g, None, None, 0, False) for g in records.of("CpuGraph")]

    def _at(self, bare, pid, tid, t):
        """The call of a thread that runs at `t`."""
        times, calls = self._by_thread.get((pid, tid), ((), ()))
        after = bisect_right(times, t)
        if not after:
            return None
        call = calls[after - 1]
        return call if t <= bare[call].end else None

    def _link_graphs(self, graphs, cpu_graphs, bare, widths):
        """Finds the call of each scheduler graph; returns their widths."""
        first = {}
        for g in cpu_graphs:
            if g.graph is not None and g.ubatch != 0:
                first[g.graph] = min(first.get(g.graph, (g.t, g.ubatch)), (g.t, g.ubatch))
        self.graph_call, graph_width = {}, {}
        for g in graphs:
            if self.source != "token":
                call = self._by_seq.get(g.seq)
            elif g.token is not None:
                call = self._by_seq.get(g.token)
            else:
                call = self._at(bare, g.pid, g.tid, g.t)
            width = g.ubatch or first.get(g.seq, (0, 0))[1]
            if call is not None:
                widths[call].add(width)
            self.graph_call[g.seq], graph_width[g.seq] = call, width
        return graph_width

    def _of_cpu_graph(self, g, bare, widths):
        if g.graph in self.graph_call:
            return self.graph_call[g.graph]
        call = self._by_seq.get(g.seq) if self.source == "cpu_graph" else self._at(bare, g.pid, g.tid, g.t)
        if call is not None:
            widths[call].add(g.ubatch)
        return call


def _call(record, function, tokens, device, early):
    """A call of a Token, Graph or CpuGraph. `device` is 0, 1 = completion not seen, else 2 plus the time."""
    not_seen = device == 1 or (device == 0 and early)
    return Call(record.seq, record.pid, record.tid, function, None, tokens, record.t, record.dur, 0, record.cut or not_seen,
                not_seen and not record.cut, max(device - 2, 0))


def _settled(call, width):
    # The width of the batch decides only if no graph has one.
    phase = phase_of(width.widest or call.tokens or 0)
    tokens = call.tokens
    if tokens is None and width.graphs and width.whole:
        tokens = width.sum
    return call._replace(graphs=width.graphs, phase=phase, tokens=tokens)
