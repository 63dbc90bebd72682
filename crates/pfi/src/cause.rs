//! Records that explain an op's time: counters, off-CPU time, experts, phases, sensors, levels. Since format 1.2.
//! All are self-contained (postcard). The rules at the top of `record` apply here too.
#![warn(clippy::indexing_slicing)]

use serde::{Deserialize, Serialize};

use super::record::as_bytes;

/// A counter, as opened. Written again at the end of the recording, when its times are known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counter<'a> {
    /// Bit of [`OpCounts::counters`], 0 to 31.
    pub id: u32,
    /// As requested, e.g. `cycles`, `r0011`.
    pub name: &'a str,
    /// `events`, `bytes` or `ns`. The raw count times [`Counter::scale`] is in this unit.
    pub unit: &'a str,
    /// E.g. 64 for a counter of cache lines reported in bytes.
    pub scale: u32,
    /// What was opened where: `PMU/event on CPUs`, joined by ';', e.g. `armv8_cortex_a55/0x11 on 0-3`.
    pub events: &'a str,
    pub state: Availability,
    /// Why it is not fully available; empty if it is.
    pub why: &'a str,
    /// Time enabled and time running, ns, summed over all CPUs. They differ when counters share a hardware slot.
    pub enabled_ns: u64,
    pub running_ns: u64,
}

/// Whether a requested item is available.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Availability {
    Whole,
    /// On some CPUs, for part of the time, or estimated.
    Partly,
    None,
}

/// Counter values for consecutive slices. The matching [`super::record::Slices`] records, with the same graph,
/// ith and plan, come earlier in the block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpCounts<'a> {
    /// seq of the CpuGraph.
    pub graph: u64,
    pub ith: u16,
    pub plan: u32,
    pub first: u32,
    pub n: u32,
    /// Counters included, one bit each.
    pub counters: u32,
    /// For each slice, for each counter in bit order, a varint: the count from the slice's start to its end, plus
    /// 1; 0 = unknown.
    #[serde(serialize_with = "as_bytes")]
    pub data: &'a [u8],
}

/// The CPUs that a thread's ops started on. A change applies to the slices of `tid` that start at `t` or later, up to
/// the thread's next change in this record or a later one. The thread may have moved within an op. Each block has the
/// CPUs of its own slices: where a thread's first slices in a block have a known CPU, a record repeats it. Since 1.6.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpCpus<'a> {
    pub tid: u32,
    /// The first change: the start of a slice, like all of them.
    pub t: i64,
    /// Varints: the CPU plus 1 (0 = not known), then for each further change its distance from the one before, ns,
    /// and the CPU plus 1.
    #[serde(serialize_with = "as_bytes")]
    pub data: &'a [u8],
}

/// A target thread was off the CPU. Only intervals that began while the thread was already followed are recorded:
/// the threads of a process from when profinfer attaches to it, new threads from birth (their first record has
/// [`OffCpu::state`] 255). `dur` minus `runnable` is the time blocked, described by `state`, `io` and `fault`;
/// `runnable` is the time then spent waiting for a CPU (run_delay in the kernel's schedstat).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OffCpu {
    pub pid: u32,
    pub tid: u32,
    /// When the thread left the CPU.
    pub t: i64,
    /// Time until it was back on a CPU, ns.
    pub dur: u64,
    /// The final part of `dur` in which the thread was runnable: all of it for a preempted or new thread,
    /// otherwise from its wake-up. Absent if the wake-up was not seen; 0 if the record is `cut` and the thread
    /// was not woken yet.
    pub runnable: Option<u64>,
    /// The kernel's prev_state: 0 = runnable (preempted, or it yielded), 1 = sleeping, 2 = uninterruptible, 3 = one of
    /// these two (TASK_NORMAL), and so on (include/linux/sched.h, TASK_REPORT). 255 = a new thread that had not run before: `t` is when it
    /// could first run, `waker` its creator; `by` is 0, since neither it nor another thread was displaced.
    pub state: u8,
    /// Waited uninterruptibly for device I/O (inside the kernel's io_schedule). No in the other states.
    pub io: Tristate,
    /// Waited uninterruptibly inside a page fault, for any reason; with `io`, for a page to be read. No in the
    /// other states.
    pub fault: Tristate,
    /// CPU that the thread left, and CPU that it came back on.
    pub cpu: u16,
    pub to_cpu: u16,
    /// Thread that took over the CPU it left, and thread that last ran on the CPU it came back on (0 = idle task
    /// or unknown). See [`Task`]. If both are 0 with `state` 0, its cgroup may have been throttled (cpu.max); in a recording
    /// from inside where both are 0 in all records, other threads are not known.
    pub by: u32,
    pub from: u32,
    /// Thread running on the CPU where the wake-up happened: the waker, or a thread that a timer or network
    /// interrupt hit. 0 = none, unknown, or a device (`io`).
    pub waker: u32,
    /// Still off the CPU when the recording ended; `dur` ends there, and `to_cpu` and `from` are meaningless.
    pub cut: bool,
}

/// Yes, no, or unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Tristate {
    Unknown,
    No,
    Yes,
}

/// The name of a thread; the idle task has none. A tid may appear again with another name, which applies from
/// there on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task<'a> {
    pub tid: u32,
    pub comm: &'a str,
}

/// The experts that a layer chose, read at a MUL_MAT_ID before it ran: once per CpuGraph for each ids tensor,
/// which the layer's MUL_MAT_IDs (gate, up, down) share. Usually one record has all rows; if they came in parts,
/// several records have them in order. Rows in no record were not read (a limit was reached) or were lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Experts<'a> {
    /// seq of the CpuGraph.
    pub graph: u64,
    /// Tensor record of the ids.
    pub ids: u32,
    /// Tensor record of the expert weights (source 0 of the first MUL_MAT_ID seen).
    pub weights: u32,
    /// Experts chosen per token.
    pub used: u32,
    /// Tokens in the ids tensor, and those in this record: `rows` of them, starting at `first`. The last layer
    /// may have fewer tokens than the graph's ubatch, because only tokens whose output is wanted go through it.
    pub tokens: u32,
    pub first: u32,
    pub rows: u32,
    /// Why there are none from `first` on (`rows` is then 0, and `used` and `tokens` come from the tensor's dims,
    /// at most u32::MAX); empty otherwise.
    pub why: &'a str,
    /// `rows` times `used` ids as the engine has them, valid or not, each a zigzag varint.
    #[serde(serialize_with = "as_bytes")]
    pub data: &'a [u8],
}

/// A call of a function that is a phase in its own right. If such calls nest, only the outermost is recorded,
/// whatever its phase: detokenizing while a model loads counts as loading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhaseCall<'a> {
    /// `tokenize`, `sampling`, `detokenize`, `load`. A token may have several calls of `sampling`: programs that
    /// do not use llama_sampler_sample apply their samplers, and accept the chosen token, in separate calls.
    pub what: &'a str,
    pub pid: u32,
    pub tid: u32,
    pub t: i64,
    pub dur: u64,
    /// The recording ended before the call did.
    pub cut: bool,
}

/// A sampler that SamplerCall records name. Since 1.11.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SamplerName<'a> {
    /// Not 0.
    pub id: u32,
    /// As the engine calls it, e.g. `top-k`; empty: not known.
    pub name: &'a str,
    /// Why it is not known.
    pub why: &'a str,
}

/// A call of a sampler within a PhaseCall of `sampling`, which comes later, on the same thread. Since 1.11.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SamplerCall {
    /// Id of its SamplerName, which may come later; 0 = not read.
    pub sampler: u32,
    pub pid: u32,
    pub tid: u32,
    pub t: i64,
    pub dur: u64,
    /// ns of `dur` in calls of other samplers that it made: a chain calls its own. They have records of their own, earlier.
    pub within: u64,
    /// False: applied to the candidates. True: given the chosen token (accept).
    pub accept: bool,
}

/// Consecutive bytes of a file that came into the page cache while a thread of a target ran: because it touched them, or because
/// the kernel read ahead for it. Since 1.11.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRead {
    pub pid: u32,
    pub tid: u32,
    /// Id of its ReadFile.
    pub file: u32,
    /// When the first of their pages was added, and the time from then until the last was, ns.
    pub t: i64,
    pub dur: u64,
    /// Where the process had them mapped; 0 = nowhere: it reads the file by system calls, or its mapping was not found.
    pub addr: u64,
    pub bytes: u64,
}

/// A file that a target has mapped and whose reads are recorded. Since 1.11.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadFile<'a> {
    pub id: u32,
    /// Its name without directories.
    pub name: &'a str,
    /// Where the read-ahead of its file system is set, e.g. `/sys/class/bdi/254:0/read_ahead_kb`, and the value at the beginning,
    /// KiB. Empty and absent: not found.
    pub setting: &'a str,
    pub read_ahead_kb: Option<u64>,
}

/// Where a tensor that is never computed has its data in its process: weights, in the mapping of their file. Since 1.11.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorData {
    /// Id of its Tensor record.
    pub tensor: u32,
    pub addr: u64,
}

/// A machine quantity that is sampled repeatedly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sensor<'a> {
    pub id: u32,
    /// E.g. `battery`, `cluster 1`, `package-0`.
    pub name: &'a str,
    pub kind: SensorKind,
    /// Where it is read from.
    pub path: &'a str,
    /// Shortest observed interval between changes of its value, ns; 0 = unknown.
    pub interval_ns: u64,
    /// CPUs that it covers, e.g. `0-3`; empty = all, or none in particular.
    pub cpus: &'a str,
    /// Of a power, an energy or a current: what it covers, and how it is known. Since 1.7.
    pub origin: SensorOrigin,
}

/// What a power, an energy or a current covers, and how it is known; the first to be preferred. Since 1.7.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SensorOrigin {
    /// Not recorded, or of another kind.
    #[default]
    Unknown,
    /// A meter that the user named.
    Meter,
    /// The complete device: its battery, or a sensor at its input.
    Device,
    /// The complete device, estimated from measurements of parts of it.
    Estimate,
    /// A processor package.
    Package,
    /// One supply rail, or a part of a package.
    Rail,
    /// Not measured: the kernel's Energy Model and the time that CPUs were busy.
    Model,
}

impl SensorOrigin {
    /// In the order of preference; of sources that were recorded without their origin nothing is known.
    pub const PREFERENCE: [SensorOrigin; 7] = [
        SensorOrigin::Meter,
        SensorOrigin::Device,
        SensorOrigin::Estimate,
        SensorOrigin::Package,
        SensorOrigin::Rail,
        SensorOrigin::Unknown,
        SensorOrigin::Model,
    ];
}

/// What a sensor measures, and the unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SensorKind {
    /// µW.
    Power,
    /// A running total, µJ.
    Energy,
    /// kHz.
    Frequency,
    /// Thousandths of a degree Celsius.
    Temperature,
    /// µA. Since 1.7.
    Current,
    /// State of a cooling device: 0 = it does not cool. Since 1.7.
    Cooling,
    /// A running total: time in which at least one task waited for a CPU, µs. Since 1.7.
    Pressure,
}

/// Sensor values at one instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SensorSample<'a> {
    pub t: i64,
    /// Pairs of varints: sensor id, zigzag of the value. A sensor that could not be read is left out.
    #[serde(serialize_with = "as_bytes")]
    pub data: &'a [u8],
}

/// How much is recorded from here on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LevelChange<'a> {
    pub t: i64,
    pub to: Detail,
    /// One in this many calls is recorded at `to`, the others at the level below; 1 = all.
    pub one_in: u32,
    /// Share of the target's time that this level costs, in millionths: as predicted, and the cost measured for
    /// the previous level. Absent if unknown.
    pub predicted_ppm: Option<u32>,
    pub measured_ppm: Option<u32>,
    /// Why, as readable text.
    pub why: &'a str,
}

/// How much is recorded. Each level includes the ones before it, as far as they were requested: a recording with
/// the scheduler but without counters goes from `Structure` to `Scheduler`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Detail {
    Nothing,
    Token,
    Graph,
    Op,
    Structure,
    Counters,
    Scheduler,
}

/// A feature requested beyond tokens, graphs and ops, and whether it was available.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Feature<'a> {
    /// `counters`, `scheduler`, `experts`, `phases`, `sensors`, `budget`.
    pub name: &'a str,
    pub state: Availability,
    /// How it is obtained, or why it is not available.
    pub why: &'a str,
}
