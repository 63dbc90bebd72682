//! The records that say why an op took its time: counters, time off the CPU, experts, phases, sensors, levels. Since
//! format 1.2; all stand alone (postcard). The rules at the head of `record` hold here too. Uses nothing else.

use serde::{Deserialize, Serialize};

use super::record::as_bytes;

/// A counter, as opened. What is known of it only at the end (the times) is told when it is written once more then.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counter<'a> {
    /// Bit of [`OpCounts::counters`], 0 to 31.
    pub id: u32,
    /// As asked for, e.g. `cycles`, `r0011`.
    pub name: &'a str,
    /// `events`, `bytes` or `ns`; what is counted is multiplied with [`Counter::scale`] to get it.
    pub unit: &'a str,
    /// E.g. 64 for a counter of cache lines told in bytes.
    pub scale: u32,
    /// What was opened where, `PMU/event on CPUs` joined by ';', e.g. `armv8_cortex_a55/0x11 on 0-3`.
    pub events: &'a str,
    pub state: Availability,
    /// Why it is not whole, empty when it is.
    pub why: &'a str,
    /// Time that the counter was wanted and that it counted, ns, all CPUs; they differ where counters share a slot.
    pub enabled_ns: u64,
    pub running_ns: u64,
}

/// Whether something asked for is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Availability {
    Whole,
    /// On some CPUs, for some of the time, or estimated.
    Partly,
    None,
}

/// What counters say of consecutive slices: [`super::record::Slices`] records of the same graph, ith and plan that have
/// them come before it in the block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpCounts<'a> {
    /// seq of the CpuGraph.
    pub graph: u64,
    pub ith: u16,
    pub plan: u32,
    pub first: u32,
    pub n: u32,
    /// Counters told, a bit each.
    pub counters: u32,
    /// For each slice, for each counter in the order of its bits, a varint: what was counted from the slice's start to its
    /// end, plus 1; 0 = not known.
    #[serde(serialize_with = "as_bytes")]
    pub data: &'a [u8],
}

/// A thread of a target was off the CPU. Recorded is each time that began when the thread was followed already: those of a
/// process that is attached to are followed from then on, new ones from their birth on, which is their first record
/// ([`OffCpu::state`] 255). `dur` minus `runnable` is what the thread waited for, by `state`, `io` and `fault`; `runnable` is
/// what it then waited for a CPU, which the kernel's schedstat calls run_delay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OffCpu {
    pub pid: u32,
    pub tid: u32,
    /// It left the CPU.
    pub t: i64,
    /// Until it was back on one, ns.
    pub dur: u64,
    /// Of `dur`, the time at its end in which it could have run: all of it for a preempted thread and a new one, else from
    /// its wake-up on. Absent where the wake-up was not seen; 0 in one that is `cut` and not woken yet.
    pub runnable: Option<u64>,
    /// The kernel's prev_state: 0 = runnable (preempted, or it yielded), 1 = sleeping, 2 = uninterruptible, and so on
    /// (include/linux/sched.h, TASK_REPORT). 255 = it was new and had not run before: `t` is when it could first run, `waker`
    /// its maker; it displaced nobody and nobody it, `by` is 0.
    pub state: u8,
    /// It waited uninterruptibly for a device to read or write (within the kernel's io_schedule). No in the other states.
    pub io: Answer,
    /// It waited uninterruptibly inside a page fault, whatever for: with `io` for a page to be read. No in the other states.
    pub fault: Answer,
    /// CPU left, and CPU of the return.
    pub cpu: u16,
    pub to_cpu: u16,
    /// Thread that took the CPU left, and thread that ran last where it came back (0 = the idle task, or not known). See
    /// [`Task`]. Both 0 in a record of `state` 0: its control group may have run no more (cpu.max).
    pub by: u32,
    pub from: u32,
    /// Thread that was running where it was woken from, which is the one that woke it, or one that a timer's or network's
    /// interrupt met; 0 = none was, or not known, or a device did (`io`).
    pub waker: u32,
    /// It was still away when the recording ended, which is where `dur` ends; `to_cpu` and `from` then say nothing.
    pub cut: bool,
}

/// Yes, no, or not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    Unknown,
    No,
    Yes,
}

/// The name of a thread; of the idle task there is none. A tid may be told again with another name, which counts from there on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task<'a> {
    pub tid: u32,
    pub comm: &'a str,
}

/// The experts that a layer chose, read at a MUL_MAT_ID before it ran: once in each CpuGraph for each tensor of ids, which
/// the layer's MUL_MAT_IDs (gate, up, down) share. Most often one record has all rows; more have them in order where they
/// came in parts. Rows that no record has were not read (a bound was met) or were lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Experts<'a> {
    /// seq of the CpuGraph.
    pub graph: u64,
    /// Tensor record of the ids.
    pub ids: u32,
    /// Tensor record of the experts' weights (source 0 of the MUL_MAT_ID met first).
    pub weights: u32,
    /// Experts chosen for each token.
    pub used: u32,
    /// Tokens that the ids have, and those told here: `rows` of them from `first` on. The last layer may have fewer tokens
    /// than the graph's ubatch: only those whose output is wanted go through it.
    pub tokens: u32,
    pub first: u32,
    pub rows: u32,
    /// Why there are none from `first` on (`rows` is 0, and `used` and `tokens` are what the tensor's dims say, at most
    /// u32::MAX); empty where there are.
    pub why: &'a str,
    /// `rows` times `used` ids as the engine has them, whether or not there are such experts, each the varint of its zigzag.
    #[serde(serialize_with = "as_bytes")]
    pub data: &'a [u8],
}

/// A call of a function that is a phase of its own; the outermost one where they nest, of whichever phases: what loading a
/// model detokenizes is loading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhaseCall<'a> {
    /// `tokenize`, `sampling`, `detokenize`, `load`. A token may take several calls of `sampling`: programs that do not
    /// leave it to llama_sampler_sample apply their samplers, and tell them of the choice, in calls of their own.
    pub what: &'a str,
    pub pid: u32,
    pub tid: u32,
    pub t: i64,
    pub dur: u64,
    /// The recording ended before the call did.
    pub cut: bool,
}

/// Something of the machine that is read again and again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sensor<'a> {
    pub id: u32,
    /// E.g. `battery`, `cluster 1`, `package-0`.
    pub name: &'a str,
    pub kind: SensorKind,
    /// Where it is read.
    pub path: &'a str,
    /// How often its value is seen to change at most, ns; 0 = not known.
    pub interval_ns: u64,
    /// CPUs that it speaks of, as in `0-3`; empty = all, or none in particular.
    pub cpus: &'a str,
}

/// What a sensor tells, and its unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SensorKind {
    /// µW.
    Power,
    /// A sum that only grows, µJ.
    Energy,
    /// kHz.
    Frequency,
    /// Thousandths of a degree Celsius.
    Temperature,
}

/// The sensors' values at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample<'a> {
    pub t: i64,
    /// Pairs of varints: a sensor's id, and the zigzag of its value. A sensor that could not be read is left out.
    #[serde(serialize_with = "as_bytes")]
    pub data: &'a [u8],
}

/// How much is recorded from here on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LevelChange<'a> {
    pub t: i64,
    pub to: Detail,
    /// Of the calls, one in this many is recorded at `to` and the others at the level below; 1 = all.
    pub one_in: u32,
    /// Share of the target's time that this level costs, in millionths: as predicted, and what the level before has
    /// been measured to cost. Absent where nothing can be said.
    pub predicted_ppm: Option<u32>,
    pub measured_ppm: Option<u32>,
    /// Why, for people.
    pub why: &'a str,
}

/// How much is recorded; each has what the one before has, as far as that was asked for: a recording with the scheduler
/// and without counters goes from `Structure` to `Scheduler`.
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

/// Something that was asked for beyond tokens, graphs and ops, and whether it could be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Feature<'a> {
    /// `counters`, `scheduler`, `experts`, `phases`, `sensors`, `budget`.
    pub name: &'a str,
    pub state: Availability,
    /// By what it is had, or why it is not.
    pub why: &'a str,
}
