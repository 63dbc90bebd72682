//! The figures that the verdict and the advice rest on, by phase.

use std::collections::BTreeMap;

use super::bar::{BarInput, TimeBar};
use super::graphs::GraphFacts;
pub use super::input::FactInput;
use super::machine::{ClockFacts, CpuFacts};
use super::storage::StorageReads;
use crate::questions::report::data::{PhaseReport, Report};
use crate::recorded::calls::{Phase, Timeline};
use crate::recorded::describe::{is_cache, op_name, source, tensor_bytes, weight};
use crate::recorded::idents::OpKey;
use crate::recorded::load::{HitTensors, Loaded};
use crate::recorded::target_state::{MemoryLimit, TargetState};
use crate::sums::attribution::Attribution;
use crate::sums::attribution::interference::InterferenceRow;
use crate::sums::attribution::pass::Misses;
use crate::sums::attribution::replay::CrowdedWork;
use crate::sums::tables::{OpRow, ThreadRow, op_rows, thread_rows};
use crate::sums::usage::{MemoryGrowth, ProcessUsage};
use ggml::names::fold;
use pfi::record::{MemoryChange, Tensor};

/// Everything known about a run.
pub struct VerdictFacts<'r> {
    pub report: &'r Report,
    /// Decode and prefill, as far as they were recorded.
    pub phases: Vec<PhaseFacts>,
    /// Who had the CPU while engine threads were runnable; `None` if the scheduler was not recorded.
    pub interference: Option<&'r [InterferenceRow]>,
    /// Best instruction set that this machine's peaks were measured with; `None` if they are not known.
    pub isa: Option<&'r str>,
    pub cpus: CpuFacts,
    /// States of sequences saved and loaded, and its memory meanwhile.
    pub saved: SavedStates,
    /// The memory limit of the process; `None` if it has none, or it was not recorded.
    pub memory_limit: Option<&'r MemoryLimit>,
    /// Frequencies; `None` if not recorded.
    pub clock: Option<ClockFacts>,
    /// Page faults of the experts' multiplications in decode.
    pub misses: Option<Misses>,
}

/// A phase.
pub struct PhaseFacts {
    pub phase: Phase,
    /// Calls with a known duration, their tokens and their summed duration.
    pub calls: u64,
    pub tokens: Option<u64>,
    pub in_call_ns: f64,
    /// CPU graphs with ops; all CPU graphs per call; mean duration of one, ns.
    pub graphs: u64,
    pub graphs_a_call: f64,
    pub graph_ns: f64,
    /// Threads of the widest graph.
    pub threads: u32,
    pub bar: Option<TimeBar>,
    /// Rows by op and by name, and threads.
    pub ops: Vec<OpRow>,
    pub names: Vec<OpRow>,
    pub by_thread: Vec<ThreadRow>,
    /// Weights that a call reads; `None` if the structure was not recorded, or a device computes a part.
    pub weights: Option<WeightReads>,
    /// Time of a graph without waits, ns; needs the scheduler.
    pub replay_ns: Option<f64>,
    /// Its work, if threads took the CPU from each other; needs the scheduler.
    pub crowded: Option<CrowdedWork>,
    /// What its calls read from storage; `None` if nothing was, or it was not recorded.
    pub reads: Option<StorageReads>,
    /// Where its weights lie, what an adapter adds, what attention reads.
    pub made_of: GraphFacts,
}

/// Matrix multiplications with weights.
#[derive(Debug, Clone, Default)]
pub struct WeightReads {
    /// Bytes per call; and of the keys and values that attention reads.
    pub bytes: f64,
    pub cache: f64,
    /// Bytes per call of the same weights in the mix Q4_K_M, where they are larger now.
    pub smaller: f64,
    /// Operations per call on f32, and on 8-bit integers.
    pub f32: f64,
    pub int8: f64,
    /// Thread 0's time in them per call, ns.
    pub ns: f64,
}

/// What a server keeps of sequences.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SavedStates {
    /// Calls that save or load a state.
    pub saved: u64,
    pub loaded: u64,
    /// How the process's own memory grew meanwhile.
    pub growth: Option<MemoryGrowth>,
}

impl SavedStates {
    fn of(loaded: &Loaded<'_>, pid: Option<u32>, usage: &[ProcessUsage]) -> SavedStates {
        let calls =
            |what| loaded.causes.memory.iter().filter(|m| m.what == what && Some(m.pid) == pid).count();
        SavedStates {
            saved: calls(MemoryChange::Save) as u64,
            loaded: calls(MemoryChange::Load) as u64,
            growth: usage.iter().find(|u| Some(u.pid) == pid).and_then(|u| u.growth),
        }
    }
}

impl<'r> VerdictFacts<'r> {
    pub fn new(input: FactInput<'r, '_>, report: &'r Report) -> VerdictFacts<'r> {
        let order = [Phase::Decode, Phase::Prefill, Phase::Unknown];
        let of = |phase: Phase| report.phases.iter().find(|p| p.phase == phase);
        let phases: Vec<PhaseFacts> =
            order.into_iter().filter_map(of).filter_map(|p| phase(&input, p)).collect();
        let scheduler = input.why.filter(|w| w.scheduler);
        let pid = input.line.calls.first().map(|c| c.pid);
        let states: Vec<&TargetState> = report.state.iter().filter(|s| Some(s.pid) == pid).collect();
        let main = phases.first().map_or(Phase::Decode, |p| p.phase);
        let cpus = CpuFacts::new(input.loaded, input.times, main, &states);
        VerdictFacts {
            report,
            phases,
            interference: scheduler.map(|w| w.interference.as_slice()),
            isa: input.loaded.peaks.iter().map(|p| p.isa).find(|isa| !isa.is_empty()),
            clock: ClockFacts::new(&states, &cpus),
            cpus,
            saved: SavedStates::of(input.loaded, pid, &report.usage),
            memory_limit: states.last().and_then(|s| s.memory_limit.as_ref()),
            misses: input.why.and_then(|w| w.misses(input.idents, None)),
        }
    }

    /// The phase of most interest.
    pub fn main(&self) -> Option<&PhaseFacts> {
        self.phases.first()
    }

    pub fn decode(&self) -> Option<&PhaseFacts> {
        self.phases.iter().find(|p| p.phase == Phase::Decode)
    }
}

impl PhaseFacts {
    /// Mean duration of a call, ns.
    pub fn call_ns(&self) -> f64 {
        self.in_call_ns / self.calls.max(1) as f64
    }

    /// The part of a call outside CPU graphs, ns.
    pub fn outside_ns(&self) -> f64 {
        (self.call_ns() - self.graph_ns * self.graphs_a_call).max(0.0)
    }

    /// Duration of a call if its threads were always on a CPU and never waited for each other, ns.
    pub fn replay_call_ns(&self) -> Option<f64> {
        Some(self.replay_ns? * self.graphs_a_call + self.outside_ns())
    }

    /// Share of the graphs' time in ops that `wanted` selects, without barrier waits.
    pub fn share_of(&self, wanted: impl Fn(&OpRow) -> bool) -> f64 {
        self.ops.iter().filter(|r| r.calls > 0 && wanted(r)).map(|r| r.share).sum()
    }
}

/// `None` if no call of the phase has a duration.
fn phase(input: &FactInput<'_, '_>, p: &PhaseReport) -> Option<PhaseFacts> {
    let FactInput { loaded, line, times, idents, why, reasons } = *input;
    let calls = p.calls.saturating_sub(p.cut_calls).saturating_sub(p.unseen_calls);
    if calls == 0 || p.in_call_ns == 0 {
        return None;
    }
    let graphs_a_call = match p.calls - calls {
        0 => (p.cpu_graphs + p.graphs_below_ops) as f64 / calls as f64,
        // A call that was cut may have had no graph yet, or all of its graphs.
        _ => whole_graphs(line, p.phase) as f64 / calls as f64,
    };
    let with_phase = loaded.cpu_graphs.iter().zip(&line.cpu_phase).filter(|(_, phase)| **phase == p.phase);
    let threads = with_phase.map(|(g, _)| g.n_threads).max().unwrap_or(0);
    let by_thread = thread_rows(times, why, p.phase);
    let weights = (p.on_devices_ns() == 0).then(|| weights(input, p.phase)).flatten();
    let a_call = |of_graph: f64| of_graph * graphs_a_call;
    Some(PhaseFacts {
        phase: p.phase,
        calls,
        tokens: p.tokens,
        in_call_ns: p.in_call_ns as f64,
        graphs: p.cpu_graphs,
        graphs_a_call,
        graph_ns: p.graph_ns as f64 / p.cpu_graphs.max(1) as f64,
        threads,
        bar: TimeBar::new(&BarInput::of_report(p, &by_thread)),
        ops: op_rows(times, reasons, idents, p.phase, OpKey::Op),
        names: op_rows(times, reasons, idents, p.phase, OpKey::Name),
        by_thread,
        weights: weights.map(|w| WeightReads {
            bytes: a_call(w.bytes),
            cache: a_call(w.cache),
            smaller: a_call(w.smaller),
            f32: a_call(w.f32),
            int8: a_call(w.int8),
            ns: a_call(w.ns),
        }),
        replay_ns: why.filter(|w| w.scheduler).and_then(|w| replay(input, w, p.phase)),
        crowded: why.filter(|w| w.scheduler).and_then(|w| crowded(input, w, p.phase)),
        reads: StorageReads::of(loaded, line, p.phase),
        made_of: GraphFacts::of(input, p.phase),
    })
}

/// CPU graphs of a phase that are in no call that was cut.
fn whole_graphs(line: &Timeline, phase: Phase) -> usize {
    let whole = |call: &Option<usize>| call.and_then(|i| line.calls.get(i)).is_none_or(|call| !call.cut);
    line.cpu_phase.iter().zip(&line.cpu_call).filter(|(of, call)| **of == phase && whole(call)).count()
}

/// The mean over the graphs of a phase whose plan has such a figure; `None` if there are none.
fn mean_of_graphs(input: &FactInput<'_, '_>, phase: Phase, of: impl Fn(u32) -> Option<f64>) -> Option<f64> {
    let graphs = input.loaded.cpu_graphs.iter().zip(&input.line.cpu_phase).filter(|(_, p)| **p == phase);
    let mut plans: BTreeMap<u32, u64> = BTreeMap::new();
    graphs.filter_map(|(g, _)| g.plan).for_each(|plan| *plans.entry(plan).or_default() += 1);
    let (mut sum, mut n) = (0.0, 0u64);
    for (ns, times) in plans.into_iter().filter_map(|(plan, times)| Some((of(plan)?, times))) {
        (sum, n) = (sum + ns * times as f64, n + times);
    }
    (n > 0 && sum > 0.0).then(|| sum / n as f64)
}

fn replay(input: &FactInput<'_, '_>, why: &Attribution, phase: Phase) -> Option<f64> {
    mean_of_graphs(input, phase, |plan| why.replay(plan, phase, input.idents))
}

fn crowded(input: &FactInput<'_, '_>, why: &Attribution, phase: Phase) -> Option<CrowdedWork> {
    let part = |of: fn(&CrowdedWork) -> f64| {
        mean_of_graphs(input, phase, |plan| Some(of(&why.crowded(plan, phase, input.idents)?)))
    };
    let (calm, spun) = (part(|w| w.calm), part(|w| w.spun));
    (calm.is_some() || spun.is_some())
        .then(|| CrowdedWork { calm: calm.unwrap_or(0.0), spun: spun.unwrap_or(0.0) })
}

/// The mean over the graphs of a phase that ran to their end; `None` if no multiplication with weights is known. A graph
/// that was cut has executed a part of its plan only.
fn weights(input: &FactInput<'_, '_>, phase: Phase) -> Option<WeightReads> {
    let mut whole: BTreeMap<u32, u64> = BTreeMap::new();
    let graphs = input.loaded.cpu_graphs.iter().zip(&input.line.cpu_phase);
    let ended = graphs.filter(|(g, p)| **p == phase && !g.cut).filter_map(|(g, _)| g.plan);
    ended.for_each(|plan| *whole.entry(plan).or_default() += 1);
    let all = whole.values().sum::<u64>() as f64;
    let mut sum = WeightReads::default();
    for (plan, n) in whole {
        let part = n as f64 / all;
        let stat = input.times.plans.get(&(plan, phase));
        let positions = stat.map_or(&[][..], |stat| &stat.positions);
        for (at, pos) in input.idents.of_plan(plan).iter().zip(positions) {
            let Some(ident) = input.idents.list().get(*at) else { continue };
            sum.cache += cache_bytes(input.loaded, ident.hit).unwrap_or(0.0) * part;
            let Some((bytes, smaller)) = weight_bytes(input.loaded, ident.hit) else { continue };
            sum.bytes += bytes * part;
            sum.smaller += smaller * part;
            sum.ns += pos.total as f64 / pos.calls.max(1) as f64 * part;
            let flops = ident.work.map_or(0.0, |w| w.flops as f64) * part;
            *(if ident.int8 { &mut sum.int8 } else { &mut sum.f32 }) += flops;
        }
    }
    (sum.bytes > 0.0).then_some(sum)
}

/// Bytes of weights that a multiplication reads, as they are and in Q4_K_M; `None` if it is none.
fn weight_bytes(loaded: &Loaded<'_>, hit: Option<HitTensors>) -> Option<(f64, f64)> {
    let t = loaded.tensors.get(&hit?.0).filter(|t| t.known)?;
    let op = op_name(loaded, t.op);
    let w = weight(loaded, t)?;
    let bytes = tensor_bytes(loaded, w)? as f64;
    let used = match op {
        "MUL_MAT" => 1.0,
        "MUL_MAT_ID" => {
            let ids = source(loaded, t, 2)?;
            let (all, used) = (w.ne[2].max(1) as f64, ids.ne[0] as f64 * ids.ne[1] as f64);
            used.min(all) / all
        }
        _ => return None,
    };
    let smaller = bytes.min(w.ne.iter().map(|n| *n as f64).product::<f64>() * q4_k_m_bits(w) / 8.0);
    Some((bytes * used, smaller * used))
}

/// Bits of an element in the mix Q4_K_M (llama_tensor_get_type in llama-quant.cpp, b4753): embeddings and output are Q6_K,
/// half of the values and of the second feed-forward product too, the rest is Q4_K. Rows that do not fill blocks of 256
/// are stored as Q8_0 and Q5_0.
fn q4_k_m_bits(w: &Tensor) -> f64 {
    let [small, large] = if w.ne[0].is_multiple_of(256) { [4.5, 6.5625] } else { [5.5, 8.5] };
    match &*fold(&w.name).pattern {
        "token_embd.weight" | "output.weight" => large,
        name if name.contains("attn_v") || name.contains("ffn_down") => f64::midpoint(small, large),
        _ => small,
    }
}

/// Bytes of keys and values that attention reads: of all positions that its graph has room for. `None` if it is no attention.
fn cache_bytes(loaded: &Loaded<'_>, hit: Option<HitTensors>) -> Option<f64> {
    let t = loaded.tensors.get(&hit?.0).filter(|t| t.known)?;
    let slots = match op_name(loaded, t.op) {
        "FLASH_ATTN_EXT" => 1..3,
        "MUL_MAT" => 0..1,
        _ => return None,
    };
    let caches = slots.filter_map(|slot| source(loaded, t, slot)).filter(|s| is_cache(loaded, s));
    Some(caches.filter_map(|s| tensor_bytes(loaded, s)).map(|bytes| bytes as f64).sum())
}
