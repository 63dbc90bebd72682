"""The kinds of records, as docs/FORMAT.md lists them. A new kind is a new line here.

A plain kind lists its fields as `name:type`. Types are those of FORMAT.md: `u32`, `str`, `bytes`, `time`, ...; `u32?` may be
absent; `a|b|c` is an enumeration; `[a:str,b:u64]` a list. The fields that make its key follow: of records with the same key,
the last one counts. Without a key, all are kept.

A predicted kind lists its fields as `name:rule:type`, where the rule is FORMAT.md's letter.
"""

from collections import namedtuple
from keyword import iskeyword

from .wire import PLAIN, enum, list_of, optional

TENSOR = 7
# What a record has besides the fields of its kind: the bytes after them, or what the reader adds.
_MORE = {"Slices": ("data",), "OffCpu": ("by_name", "from_name", "waker_name")}

_AVAILABLE = "whole|partly|none"
_TRISTATE = "unknown|no|yes"

_PLAIN_KINDS = (
    (0, "Header", "tool:str command:str kernel:str arch:str host:str cpu_model:str topology:str mono_ns:u64 boot_ns:u64 "
     "real_ns:u64 level:token|graph|op structure:bool transport:ring|perf buffer_bytes:u64 hit_ns:u32 source:bpf|perf|inside", ()),
    (1, "Process", "pid:u32 engine:u32 exe:str cmdline:str", "pid"),
    (2, "Engine", "id:u32 version:str layout:str", "id"),
    (3, "Module", "engine:u32 path:str build_id:str role:str", "engine path"),
    (4, "Probe", "engine:u32 symbol:str module:str ret:bool offset:u32 why:str", "engine symbol module ret offset"),
    (5, "OpDef", "id:u16 name:str desc:str", "id"),
    (6, "TypeDef", "id:u16 name:str block:u32 bytes:u32", "id"),
    (8, "Plan", "id:u32 pid:u32 n_nodes:u32 hits:bytes", "id"),
    (9, "Backend", "id:u32 guid:guid name:str", "id"),
    (15, "Rung", "engine:u32 role:str name:str used:bool expected:u64? seen:u64 why:str", "engine role name"),
    (16, "Notice", "t:time text:str", "t text"),
    (17, "Footer", "end:str kinds:[kind:str,seen:u64,recorded:u64,lost:u64] lost_cpu:[cpu:u64] orphans:u64 read_errors:u64 "
     "agent_user_us:u64 agent_sys_us:u64 agent_peak_rss:u64 wall_ns:u64 bpf_ns:u64 bpf_runs:u64", ()),
    (18, "Counter", f"id:u32 name:str unit:str scale:u32 events:str state:{_AVAILABLE} why:str enabled_ns:u64 "
     "running_ns:u64", "id"),
    (19, "OpCounts", "graph:u64 ith:u16 plan:u32 first:u32 n:u32 counters:u32 data:bytes", None),
    (20, "OffCpu", f"pid:u32 tid:u32 t:time dur:u64 runnable:u64? state:u8 io:{_TRISTATE} fault:{_TRISTATE} cpu:u16 "
     "to_cpu:u16 by:u32 from:u32 waker:u32 cut:bool", None),
    (21, "Task", "tid:u32 comm:str", None),
    (22, "Experts", "graph:u64 ids:u32 weights:u32 used:u32 tokens:u32 first:u32 rows:u32 why:str data:bytes", None),
    (23, "PhaseCall", "what:str pid:u32 tid:u32 t:time dur:u64 cut:bool", None),
    (24, "Sensor", "id:u32 name:str kind:power|energy|frequency|temperature|current|cooling|pressure path:str "
     "interval_ns:u64 cpus:str origin:unknown|meter|device|estimate|package|rail|model", "id"),
    (25, "Sample", "t:time data:bytes", None),
    (26, "LevelChange", "t:time to:nothing|token|graph|op|structure|counters|scheduler one_in:u32 predicted_ppm:u32? "
     "measured_ppm:u32? why:str", None),
    (27, "Feature", f"name:str state:{_AVAILABLE} why:str", "name"),
    (28, "Enqueued", "split:u64 pid:u32 tid:u32 plan:u32 first:u32 t:time data:bytes", None),
    (29, "KernelName", "id:u32 name:str", "id"),
    (30, "DeviceKernels", "pid:u32 tid:u32 source:opencl|vulkan|cupti|cupti_graph|vulkan_logger queue:u64 error_ns:u64 "
     "t:time data:bytes", None),
    (31, "Dispatches", "split:u64 pid:u32 tid:u32 t:time kernels:u32 graphs:u32 data:bytes", None),
    (32, "DeviceRing", "id:u32 source:gpu_scheduler|drm_msm_gpu|kgsl|gpu_work_period device:str name:str", "id"),
    (33, "Submissions", "ring:u32 t:time data:bytes", None),
    (34, "Batches", "split:u64 pid:u32 tid:u32 t:time written:u32 answered:u32 rpc_ns:u64 busy_ns:u64 npu_ns:u64 timed:u32 "
     "unprofiled:u32 timeless:u32", None),
    (35, "Peaks", "cluster:str cpus:str threads:u32 measured_s:u64 read:u64 read_small_pages:u64? triad:u64? f32:u64? "
     "int8:u64? isa:str", "cluster threads"),
    (36, "TargetState", "pid:u32 at:start|change|end mono_ns:u64 affinity:str threads:str online:str cpuset:str "
     "quota_us:u64? period_us:u64? quota_group:str periods:u64? throttled:u64? throttled_us:u64? policies:str "
     "huge_pages:str resident:u64? anon_huge:u64? file_huge:u64? locked:u64? swapped:u64? mem_total:u64? "
     "mem_available:u64? minor_faults:u64? major_faults:u64? memory_limit:u64? memory_group:str oom_kills:u64?",
     "pid mono_ns"),
    (37, "OpCpus", "tid:u32 t:time data:bytes", None),
    (38, "Ubatch", "token:u64? pid:u32 tid:u32 t:time context:u64 tokens:u32 unread:u32 whole:bool data:bytes", None),
    (39, "Memory", "pid:u32 tid:u32 t:time context:u64 what:clear|remove|copy|keep|shift|save|load|divide seq:i64 to:i64 "
     "from:i64 until:i64", None),
    (40, "ServerTask", "pid:u32 tid:u32 t:time task:i64 seq:u64?", None),
    (41, "SamplerName", "id:u32 name:str why:str", "id"),
    (42, "SamplerCall", "sampler:u32 pid:u32 tid:u32 t:time dur:u64 within:u64 accept:bool", None),
    (43, "FileRead", "pid:u32 tid:u32 file:u32 t:time dur:u64 addr:u64 bytes:u64", None),
    (44, "TensorData", "tensor:u32 addr:u64", None),
    (45, "ReadFile", "id:u32 name:str setting:str read_ahead_kb:u64?", "id"),
    (46, "Content", "token:u64 pid:u32 t:time seq:i64 pos:u64 tokens:u64 data:bytes", None),
    (47, "Usage", "pid:u32 t:time cpu_us:u64? team_us:u64? yields:u64? preemptions:u64? anonymous:u64? files:u64? shared:u64? swapped:u64?", None),
)

_PREDICTED_KINDS = (
    (10, "Token", "seq:N:u64 pid:S:u32 tid:S:u32 entry:S:llama_process|llama_decode|llama_encode n_tokens:S:u32? t:T:i64 "
     "dur:D:u64 cut:S:bool device:S:u64"),
    (11, "Graph", "seq:N:u64 token:N:u64? pid:S:u32 tid:S:u32 cgraph:S:u64 n_nodes:S:u32 ubatch:S:u32 t:T:i64 dur:D:u64 "
     "cut:S:bool device:S:u64"),
    (12, "Split", "seq:N:u64 graph:N:u64? backend:S:u32 pid:S:u32 tid:S:u32 n_nodes:S:u32 t:T:i64 dur:D:u64 cut:S:bool "
     "device:S:u64 plan:S:u32?"),
    (13, "CpuGraph", "seq:N:u64 graph:N:u64? split:N:u64? pid:S:u32 tid:S:u32 plan:S:u32? n_nodes:S:u32 n_threads:S:u32 "
     "ubatch:S:u32 t:T:i64 dur:D:u64 expected:S:u32? seen:S:u32 barrier:S:bool cut:S:bool"),
    (14, "Slices", "graph:S:u64 ith:S:u16 tid:S:u32 plan:S:u32 first:S:u32 n:S:u32 t:T:i64 barrier:S:bool"),
)


def _record(name, fields):
    """The class of a kind's records; a field that Python reserves the name of ends in an underscore."""
    fields = fields + _MORE.get(name, ())
    return namedtuple(name, [field + "_" if iskeyword(field) else field for field in fields])._make


class Plain:
    """A kind whose fields follow each other. `make` makes a record of a list of values."""

    def __init__(self, number, name, fields, key):
        self.number, self.name = number, name
        split = [field.split(":", 1) for field in fields.split(" ")]
        self.fields = tuple(name for name, _ in split)
        self.types = tuple(kind for _, kind in split)
        self.reads = tuple(_plain(kind) for kind in self.types)
        self.make = _record(name, self.fields)
        self.time = self.types.index("time") if "time" in self.types else None
        names = key.split() if isinstance(key, str) else key
        self.key = None if names is None else tuple(self.fields.index(name) for name in names)


class Predicted:
    """A kind whose fields are stored as differences from predictions. `make` makes a record of a list of values."""

    def __init__(self, number, name, fields):
        self.number, self.name = number, name
        split = [field.split(":") for field in fields.split(" ")]
        self.fields = tuple(name for name, _, _ in split)
        self.types = tuple(kind for _, _, kind in split)
        self.make = _record(name, self.fields)
        rules = [rule for _, rule, _ in split]
        self.next = tuple(i for i, rule in enumerate(rules) if rule == "N")
        self.time = rules.index("T")
        self.dur = rules.index("D") if "D" in rules else None
        self.convert = tuple(_converter(kind) for kind in self.types)
        self.key = None


def _plain(kind):
    """How a field of this type is read, and its value beyond the end of a record."""
    if kind in PLAIN:
        return PLAIN[kind]
    if kind.endswith("?"):
        return optional(PLAIN[kind[:-1]][0]), None
    if kind.startswith("["):
        return list_of([_plain(one.split(":")[1])[0] for one in kind[1:-1].split(",")]), []
    names = tuple(kind.split("|"))
    return enum(names), names[0]


_LIMITS = {"u16": 0xFFFF, "u32": 0xFFFFFFFF}


def _converter(kind):
    """(what to do with the number, its argument): see `predicted.Calls`."""
    if kind == "u64":
        return None, None
    if kind in ("i64", "bool"):
        return kind, None
    if kind.endswith("?"):
        return "optional", _LIMITS.get(kind[:-1])
    return ("limit", _LIMITS[kind]) if kind in _LIMITS else ("enum", tuple(kind.split("|")))


BY_NUMBER = {kind.number: kind for kind in [Plain(*row) for row in _PLAIN_KINDS] +
             [Predicted(*row) for row in _PREDICTED_KINDS]}
BY_NAME = {kind.name: kind for kind in BY_NUMBER.values()}
