//! The records of a `.pfi` block as a reader returns them and, for the self-contained ones, their wire layout
//! (postcard). docs/FORMAT.md specifies the wire format.
//!
//! Rules: variants and fields are only appended, never renumbered or removed. Every block is self-contained:
//! whatever a record refers to (string, op, type, tensor, plan, backend, process) is defined earlier in the same
//! block, and ids keep their meaning throughout the file. A time `t` is absolute, CLOCK_MONOTONIC in ns.
#![warn(clippy::indexing_slicing)]

use serde::{Deserialize, Serialize, Serializer};

pub use super::account::*;
pub use super::cause::*;
pub use super::device::*;
pub use super::sequence::*;
pub use super::state::*;

/// One record.
#[derive(Debug, Clone, PartialEq)]
#[expect(
    clippy::large_enum_variant,
    reason = "records are read one at a time; a box would be an allocation for each"
)]
pub enum Record<'a> {
    /// The recording in general. First record of the first block; repeated in the last one.
    Header(Header<'a>),
    /// A target process.
    Process(Process<'a>),
    /// A GGML engine (a set of modules that share one layout) in the target.
    Engine(Engine<'a>),
    /// A module (ELF file) of an engine.
    Module(Module<'a>),
    /// An attached probe, and why it is placed where it is.
    Probe(ProbeRecord<'a>),
    /// The name of an op, from the engine's own tables.
    OpDef(OpDef<'a>),
    /// A tensor type, from the engine's own table.
    TypeDef(TypeDef<'a>),
    /// A tensor's description.
    Tensor(TensorRecord),
    /// The ops of a graph in the order in which thread 0 ran them.
    Plan(Plan<'a>),
    /// A compute backend.
    Backend(Backend<'a>),
    /// One call of `llama_process`, `llama_decode` or `llama_encode`.
    Token(Token),
    /// One graph passed to the scheduler (one ubatch).
    Graph(Graph),
    /// One split of a graph on one backend.
    Split(Split),
    /// One `ggml_graph_compute` on the CPU backend, written when it ends.
    CpuGraph(CpuGraph),
    /// Consecutive op slices of one thread in one CPU graph.
    Slices(Slices<'a>),
    /// A rung of the probe ladder, as verified.
    Rung(RungRecord<'a>),
    /// Something a reader should know: a probe detached, a process ended, a limit was reached.
    Notice(Notice<'a>),
    /// Event statistics at the end. Present only if the recording ended cleanly.
    Footer(Footer<'a>),
    /// A requested counter.
    Counter(Counter<'a>),
    /// Counter values for consecutive op slices of one thread.
    OpCounts(OpCounts<'a>),
    /// A target thread was off the CPU.
    OffCpu(OffCpu),
    /// The name of a thread that an OffCpu record names.
    Task(Task<'a>),
    /// The experts that a layer chose.
    Experts(Experts<'a>),
    /// One call of a function that is a phase in its own right.
    PhaseCall(PhaseCall<'a>),
    /// A sensor of the machine.
    Sensor(Sensor<'a>),
    /// Sensor values at one instant.
    Sample(SensorSample<'a>),
    /// How much is recorded from here on.
    LevelChange(LevelChange<'a>),
    /// A requested feature, and whether it was available.
    Feature(Feature<'a>),
    /// When the nodes of a split on a device were enqueued.
    Enqueued(Enqueued<'a>),
    /// The name of a kernel.
    KernelName(KernelName<'a>),
    /// Kernels that a device has executed.
    DeviceKernels(DeviceKernels<'a>),
    /// How many kernels a split gave to its device.
    Dispatches(Dispatches<'a>),
    /// A queue of a device, as the kernel's driver names it.
    DeviceRing(DeviceRing<'a>),
    /// Submissions to a device that have ended.
    Submissions(Submissions<'a>),
    /// Batches that a split gave to an NPU.
    Batches(Batches),
    /// What this machine reaches.
    Peaks(Peaks<'a>),
    /// What a target may use of the machine.
    TargetState(TargetState<'a>),
    /// The CPUs that a thread's ops started on.
    OpCpus(OpCpus<'a>),
    /// The tokens of a batch, by sequence.
    Ubatch(Ubatch<'a>),
    /// A change of a context's memory.
    Memory(MemoryCall),
    /// A request that a server has taken in, or has a result of.
    ServerTask(ServerTask),
    /// The name of a sampler.
    SamplerName(SamplerName<'a>),
    /// One call of a sampler.
    SamplerCall(SamplerCall),
    /// Bytes of a file that the kernel read for a process.
    FileRead(FileRead),
    /// Where a tensor's data are.
    TensorData(TensorData),
    /// A file whose reads are recorded.
    ReadFile(ReadFile<'a>),
    /// What the tokens of a batch are.
    Content(Content<'a>),
    /// What a target uses.
    Usage(Usage),
}

/// Names of the record kinds, indexed by kind on the wire.
pub const KIND_NAMES: [&str; 48] = [
    "Header",
    "Process",
    "Engine",
    "Module",
    "Probe",
    "OpDef",
    "TypeDef",
    "Tensor",
    "Plan",
    "Backend",
    "Token",
    "Graph",
    "Split",
    "CpuGraph",
    "Slices",
    "Rung",
    "Notice",
    "Footer",
    "Counter",
    "OpCounts",
    "OffCpu",
    "Task",
    "Experts",
    "PhaseCall",
    "Sensor",
    "Sample",
    "LevelChange",
    "Feature",
    "Enqueued",
    "KernelName",
    "DeviceKernels",
    "Dispatches",
    "DeviceRing",
    "Submissions",
    "Batches",
    "Peaks",
    "TargetState",
    "OpCpus",
    "Ubatch",
    "Memory",
    "ServerTask",
    "SamplerName",
    "SamplerCall",
    "FileRead",
    "TensorData",
    "ReadFile",
    "Content",
    "Usage",
];

impl Record<'_> {
    /// The record's kind on the wire.
    pub fn kind(&self) -> usize {
        match self {
            Record::Header(_) => 0,
            Record::Process(_) => 1,
            Record::Engine(_) => 2,
            Record::Module(_) => 3,
            Record::Probe(_) => 4,
            Record::OpDef(_) => 5,
            Record::TypeDef(_) => 6,
            Record::Tensor(_) => 7,
            Record::Plan(_) => 8,
            Record::Backend(_) => 9,
            Record::Token(_) => 10,
            Record::Graph(_) => 11,
            Record::Split(_) => 12,
            Record::CpuGraph(_) => 13,
            Record::Slices(_) => 14,
            Record::Rung(_) => 15,
            Record::Notice(_) => 16,
            Record::Footer(_) => 17,
            Record::Counter(_) => 18,
            Record::OpCounts(_) => 19,
            Record::OffCpu(_) => 20,
            Record::Task(_) => 21,
            Record::Experts(_) => 22,
            Record::PhaseCall(_) => 23,
            Record::Sensor(_) => 24,
            Record::Sample(_) => 25,
            Record::LevelChange(_) => 26,
            Record::Feature(_) => 27,
            Record::Enqueued(_) => 28,
            Record::KernelName(_) => 29,
            Record::DeviceKernels(_) => 30,
            Record::Dispatches(_) => 31,
            Record::DeviceRing(_) => 32,
            Record::Submissions(_) => 33,
            Record::Batches(_) => 34,
            Record::Peaks(_) => 35,
            Record::TargetState(_) => 36,
            Record::OpCpus(_) => 37,
            Record::Ubatch(_) => 38,
            Record::Memory(_) => 39,
            Record::ServerTask(_) => 40,
            Record::SamplerName(_) => 41,
            Record::SamplerCall(_) => 42,
            Record::FileRead(_) => 43,
            Record::TensorData(_) => 44,
            Record::ReadFile(_) => 45,
            Record::Content(_) => 46,
            Record::Usage(_) => 47,
        }
    }

    /// The time of the kinds that have one.
    pub fn time(&self) -> Option<i64> {
        match self {
            Record::Token(r) => Some(r.t),
            Record::Graph(r) => Some(r.t),
            Record::Split(r) => Some(r.t),
            Record::CpuGraph(r) => Some(r.t),
            Record::Slices(r) => Some(r.t),
            Record::Notice(r) => Some(r.t),
            Record::OffCpu(r) => Some(r.t),
            Record::PhaseCall(r) => Some(r.t),
            Record::Sample(r) => Some(r.t),
            Record::LevelChange(r) => Some(r.t),
            Record::Enqueued(r) => Some(r.t),
            Record::DeviceKernels(r) => Some(r.t),
            Record::Dispatches(r) => Some(r.t),
            Record::Submissions(r) => Some(r.t),
            Record::Batches(r) => Some(r.t),
            Record::OpCpus(r) => Some(r.t),
            Record::Ubatch(r) => Some(r.t),
            Record::Memory(r) => Some(r.t),
            Record::ServerTask(r) => Some(r.t),
            Record::SamplerCall(r) => Some(r.t),
            Record::FileRead(r) => Some(r.t),
            Record::Content(r) => Some(r.t),
            Record::Usage(r) => Some(r.t),
            _ => None,
        }
    }

    /// The time of the self-contained kinds, stored relative to the block's first timestamp.
    pub(super) fn relative_time(&mut self) -> Option<&mut i64> {
        match self {
            Record::Notice(r) => Some(&mut r.t),
            Record::OffCpu(r) => Some(&mut r.t),
            Record::PhaseCall(r) => Some(&mut r.t),
            Record::Sample(r) => Some(&mut r.t),
            Record::LevelChange(r) => Some(&mut r.t),
            Record::Enqueued(r) => Some(&mut r.t),
            Record::DeviceKernels(r) => Some(&mut r.t),
            Record::Dispatches(r) => Some(&mut r.t),
            Record::Submissions(r) => Some(&mut r.t),
            Record::Batches(r) => Some(&mut r.t),
            Record::OpCpus(r) => Some(&mut r.t),
            Record::Ubatch(r) => Some(&mut r.t),
            Record::Memory(r) => Some(&mut r.t),
            Record::ServerTask(r) => Some(&mut r.t),
            Record::SamplerCall(r) => Some(&mut r.t),
            Record::FileRead(r) => Some(&mut r.t),
            Record::Content(r) => Some(&mut r.t),
            Record::Usage(r) => Some(&mut r.t),
            _ => None,
        }
    }
}

/// The recording: tool, machine, clocks, flags.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Header<'a> {
    /// profinfer's version and commit.
    pub tool: &'a str,
    /// Command line of the recorder, arguments joined by spaces (quoted where needed).
    pub command: &'a str,
    /// `uname -r`, `uname -m`, host name, CPU model.
    pub kernel: &'a str,
    pub arch: &'a str,
    pub host: &'a str,
    pub cpu_model: &'a str,
    /// One entry per CPU: `cpu,core,cluster,max_khz,capacity` (0 = not reported by the machine), joined by ';'.
    pub topology: &'a str,
    /// The same instant on three clocks, ns: CLOCK_MONOTONIC (the trace's own), CLOCK_BOOTTIME, CLOCK_REALTIME.
    pub mono_ns: u64,
    pub boot_ns: u64,
    pub real_ns: u64,
    pub level: Level,
    pub structure: bool,
    pub transport: TransportKind,
    /// Bytes of the kernel-side buffer (ring), or bytes per CPU (perf).
    pub buffer_bytes: u64,
    /// Measured cost of one probe hit on this machine, ns (cheap instruction); 0 = not measured.
    pub hit_ns: u32,
    /// What captured the hits. Since 1.1.
    pub source: SourceKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Level {
    Token,
    Graph,
    Op,
}

impl Level {
    /// As in results.
    pub const fn name(self) -> &'static str {
        match self {
            Level::Token => "token",
            Level::Graph => "graph",
            Level::Op => "op",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum TransportKind {
    Ring,
    Perf,
}

impl TransportKind {
    /// As in results.
    pub const fn name(self) -> &'static str {
        match self {
            TransportKind::Ring => "ring",
            TransportKind::Perf => "perf",
        }
    }
}

/// What captured the hits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SourceKind {
    /// BPF programs.
    Bpf,
    /// perf events that fetch arguments, for kernels without bpf().
    Perf,
    /// A library in the engine's own process; since 1.10.
    Inside,
}

impl SourceKind {
    /// As in results.
    pub const fn name(self) -> &'static str {
        match self {
            SourceKind::Bpf => "bpf",
            SourceKind::Perf => "perf",
            SourceKind::Inside => "inside",
        }
    }
}

/// A target process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Process<'a> {
    pub pid: u32,
    pub engine: u32,
    pub exe: &'a str,
    pub cmdline: &'a str,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Engine<'a> {
    pub id: u32,
    /// Version that the engine reports, empty if none.
    pub version: &'a str,
    /// Layout as found: `field@offset`, joined by spaces.
    pub layout: &'a str,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Module<'a> {
    pub engine: u32,
    pub path: &'a str,
    /// GNU build id in hexadecimal, empty if the file has none.
    pub build_id: &'a str,
    /// Its roles: any of `llama`, `base`, `cpu`, joined by '+'.
    pub role: &'a str,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProbeRecord<'a> {
    pub engine: u32,
    pub symbol: &'a str,
    /// Path of the module, as in [`Module::path`].
    pub module: &'a str,
    /// True for a return probe.
    pub ret: bool,
    /// Distance from the symbol's first byte.
    pub offset: u32,
    /// The instruction under the probe and why it was chosen, e.g. `push r13: emulated, after endbr64`.
    pub why: &'a str,
}

/// Name of an op; `id` is the recorder's own (the engine's number plus, for UNARY and GLU, the kind).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OpDef<'a> {
    pub id: u16,
    /// GGML_OP_NAME, e.g. `MUL_MAT`, `UNARY`.
    pub name: &'a str,
    /// ggml_op_desc, e.g. `MUL_MAT`, `SILU`.
    pub desc: &'a str,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TypeDef<'a> {
    pub id: u16,
    /// Type name from the engine, e.g. `q4_0`.
    pub name: &'a str,
    /// Elements per block.
    pub block: u32,
    /// Bytes per block.
    pub bytes: u32,
}

/// A tensor as it was when an op ran; `N` holds its name, `S` its sources. The writer is given one in borrowed memory
/// ([`TensorDesc`](crate::TensorDesc)), keeps it in fixed memory, and a reader returns it in owned memory.
///
/// Ids refer to the trace's own records. `ggml::cost::TensorShape`, for which a tensor's cost is computed, has no ids.
#[derive(Debug, Clone, Copy, PartialEq, Hash)]
pub struct Tensor<N = Box<str>, S = Box<[Option<u32>]>> {
    pub pid: u32,
    /// Address of the `ggml_tensor`.
    pub addr: u64,
    /// False: only the address is known (`--no-str`, or a source that could not be read) and the rest is empty.
    pub known: bool,
    /// Id of an [`OpDef`].
    pub op: u16,
    /// Id of a [`TypeDef`].
    pub ty: u16,
    /// ggml's tensor flags.
    pub flags: u32,
    pub name: N,
    pub ne: [u64; 4],
    /// Strides in bytes, if the tensor is not contiguous.
    pub nb: Option<[u64; 4]>,
    /// Ids of the sources' Tensor records, by slot; trailing empty slots are omitted.
    pub src: S,
    /// The tensor that this one is a view of.
    pub view_src: Option<u32>,
}

/// A tensor with its id. A tensor whose op, type, dims, strides or sources change gets a new one.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorRecord {
    pub id: u32,
    pub tensor: Tensor,
}

/// A list of ids: consecutive unsigned LEB128 varints.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Ids<'a>(#[serde(borrow, serialize_with = "as_bytes")] pub &'a [u8]);

/// Writes a byte string in one go; serde's default for a slice goes element by element (same bytes, slower).
pub(super) fn as_bytes<S: Serializer>(bytes: &&[u8], out: S) -> Result<S::Ok, S::Error> {
    out.serialize_bytes(bytes)
}

/// The ops of a CPU graph in the order of thread 0's hits, or the nodes of a split on another backend.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan<'a> {
    pub id: u32,
    pub pid: u32,
    /// Nodes of the cgraph, including those that never run; 0 = unknown.
    pub n_nodes: u32,
    /// Per hit: zigzag(tensor id - previous hit's tensor id) * 2 + fused; when fused, a second varint: the id of the
    /// second tensor computed by the same hit (RMS_NORM's MUL), as zigzag(second - first).
    #[serde(borrow)]
    pub hits: Ids<'a>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    Process,
    Decode,
    Encode,
}

/// Work that a device still had when a call returned. Since 1.3.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Device {
    /// None: the CPU did everything, or nothing is known about a device.
    #[default]
    Idle,
    /// It computes past the call's return, and its completion was not seen: `dur` ends at the return.
    Unseen,
    /// It completed this long after the return, ns, judging by the program's wait for it; `dur` includes that
    /// time.
    Busy(u64),
}

impl Device {
    /// ns waited past the call's return.
    pub fn waited(self) -> u64 {
        if let Device::Busy(ns) = self { ns } else { 0 }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Token {
    /// Number of the call within the recording, from 0.
    pub seq: u64,
    pub pid: u32,
    pub tid: u32,
    pub entry: Entry,
    /// Tokens in the batch; None if the layout does not give them.
    pub n_tokens: Option<u32>,
    pub t: i64,
    pub dur: u64,
    /// True if the recording ended before the call did.
    pub cut: bool,
    pub device: Device,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Graph {
    pub seq: u64,
    /// The call it belongs to, if one was seen.
    pub token: Option<u64>,
    pub pid: u32,
    pub tid: u32,
    /// Address of the cgraph.
    pub cgraph: u64,
    pub n_nodes: u32,
    /// `nodes[0]->ne[1]`: tokens in the ubatch; 0 = not read.
    pub ubatch: u32,
    pub t: i64,
    pub dur: u64,
    pub cut: bool,
    pub device: Device,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Split {
    pub seq: u64,
    /// The scheduler graph it belongs to, if one was seen.
    pub graph: Option<u64>,
    pub backend: u32,
    pub pid: u32,
    pub tid: u32,
    pub n_nodes: u32,
    pub t: i64,
    pub dur: u64,
    pub cut: bool,
    pub device: Device,
    /// What a backend other than the CPU's computes: a plan of its nodes that need work, in the graph's order. None on
    /// the CPU, and if the nodes were not read. Since 1.4.
    pub plan: Option<u32>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct CpuGraph {
    pub seq: u64,
    pub graph: Option<u64>,
    pub split: Option<u64>,
    pub pid: u32,
    /// Thread that called ggml_graph_compute (ith 0).
    pub tid: u32,
    /// The plan of thread 0's slices; None below level op.
    pub plan: Option<u32>,
    pub n_nodes: u32,
    pub n_threads: u32,
    /// `nodes[0]->ne[1]` of this graph; 0 = not read.
    pub ubatch: u32,
    pub t: i64,
    pub dur: u64,
    /// Op hits expected from the graph's nodes and threads; None if the nodes could not be read.
    pub expected: Option<u32>,
    pub seen: u32,
    /// True: op ends are barrier entries, so slices are busy time. False: each slice ends where the next one
    /// starts.
    pub barrier: bool,
    pub cut: bool,
}

/// Op slices of one thread: `n` consecutive hits of plan `plan`, starting at position `first`.
#[derive(Debug, Clone, PartialEq)]
pub struct Slices<'a> {
    /// seq of the CpuGraph.
    pub graph: u64,
    pub ith: u16,
    pub tid: u32,
    pub plan: u32,
    pub first: u32,
    pub n: u32,
    /// Start of the first slice.
    pub t: i64,
    /// True: one packed pair per slice (docs/FORMAT.md), `busy + 1` (0 = end not seen: the slice lasts until the
    /// next start, the last one until the graph's end) and `gap` = next slice's start - this slice's start -
    /// busy, 0 for the last slice.
    /// False: one varint per slice, next slice's start - this slice's start; for the last slice `end - start`, or 0
    /// if its end was not seen.
    pub barrier: bool,
    pub data: &'a [u8],
}
