//! What each backend computes: the nodes that a split gives to a backend other than the CPU's, those left to the CPU
//! beside them and why, and the tensors copied between them; when they were enqueued, and executed.

pub mod crossings;
pub mod fallback;

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::Serialize;

use crate::recorded::calls::{Phase, Timeline};
use crate::recorded::describe::{copied_name, tensor_bytes};
use crate::recorded::idents::Idents;
use crate::recorded::load::Loaded;
use crate::sums::device_kernels::{DeviceTimes, executed};
use crate::sums::ops::OpTimes;
use crate::sums::tables::backend_name;
use common::order;
use crossings::crossings;
pub use crossings::{BetweenSplits, Crossing};
use fallback::{CpuInput, on_cpu, on_device};
pub use fallback::{CpuNodes, FallbackReason};
use ggml::backend_guid;
use ggml::names::fold;
use pfi::record::{Device, Dispatches, Level, Split, Tensor};
use pfi::{enqueued_groups, group_kernels};

/// The work of one phase, of graphs with at least one split on a backend other than the CPU's.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Offload {
    /// Scheduler graphs. All figures below are sums over them.
    pub graphs: u64,
    /// Most bytes first.
    pub backends: Vec<BackendWork>,
    /// Tensors copied for a split, most bytes first.
    pub copies: Vec<CopyRow>,
    /// Computed by the CPU although a device takes part.
    pub on_cpu: Vec<CpuNodes>,
    /// The splits in which the CPU computed them, most time first.
    pub crossings: Vec<Crossing>,
    pub between_splits: BetweenSplits,
}

/// The part of one backend.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct BackendWork {
    pub backend: String,
    pub splits: u64,
    /// Of those, the ones whose nodes were not recorded; they are in no figure below.
    #[serde(skip_serializing_if = "common::is_default")]
    pub unknown_splits: u64,
    #[serde(flatten)]
    pub work: Work,
    /// By op, most bytes first.
    pub ops: Vec<OpWork>,
    /// Host time to enqueue nodes, by the ops of a group, most time first. Not the time that they take on the device.
    /// Omitted if it was not recorded.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub enqueued: Vec<EnqueuedOps>,
    /// Splits that are not in `enqueued`, because not all of their nodes were seen being enqueued, if any were in the
    /// recording.
    #[serde(skip_serializing_if = "common::is_default")]
    pub unseen_splits: u64,
    /// The time to enqueue beside the time until the device had finished. Omitted if either was not seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enqueueing: Option<EnqueueSum>,
    /// What was given to the device. Omitted if it was not counted, or if none of it was seen: the backend may use
    /// functions that have no probe.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dispatched: Option<DispatchSum>,
    /// Batches given to an NPU. Omitted if none were seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batches: Option<BatchSum>,
    /// What the device executed. Omitted if no times of it were recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceTimes>,
}

/// Groups of nodes with the same ops; a group is what a backend enqueues together.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct EnqueuedOps {
    /// Joined by `+`.
    pub ops: String,
    pub groups: u64,
    pub nodes: u64,
    /// From the start of a group to the start of the next one or the return of the split's call.
    pub host_ns: u64,
    /// Kernels that they gave to the device, and in how many of the groups these were counted. Omitted if in none.
    #[serde(skip_serializing_if = "common::is_default")]
    pub counted_groups: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernels: Option<u64>,
}

/// Splits that were seen being enqueued, and whose completion was seen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct EnqueueSum {
    pub splits: u64,
    /// Host time to enqueue all groups but the last of each split: with the last one a backend may wait for the device.
    pub before_last_ns: u64,
    /// From the splits' start until the device had finished them.
    pub split_ns: u64,
}

/// Batches that splits gave to an NPU, seen at the functions of its queues.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct BatchSum {
    /// Splits in which they were seen.
    pub splits: u64,
    pub written: u64,
    /// Those of them whose response was read.
    pub answered: u64,
    /// Sum over these, from the call that wrote the batch to the return of the one that read its response.
    pub rpc_ns: u64,
    /// Time during which at least one of a split's was on its way.
    pub busy_ns: u64,
    /// Sum over `timed`, by the NPU's own measure. Omitted if no response has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub npu_ns: Option<u64>,
    /// Responses with the NPU's own time.
    pub timed: u64,
    /// Responses with an empty place for it: the engine did not profile.
    pub unprofiled: u64,
    /// Responses of a layout without a place for it.
    pub timeless: u64,
    /// Responses of an unknown layout.
    pub unknown_layout: u64,
}

/// What splits gave to their device, counted at the graphics runtime's functions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct DispatchSum {
    /// Splits in which it was counted.
    pub splits: u64,
    pub kernels: u64,
    /// Graphs of kernels, launched as a whole.
    pub graphs: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct OpWork {
    pub op: String,
    #[serde(flatten)]
    pub work: Work,
}

/// Nodes and what they cost by the cost model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Work {
    pub nodes: u64,
    pub bytes: u64,
    pub flops: u64,
    /// Nodes of which the model knows no cost.
    #[serde(skip_serializing_if = "common::is_default")]
    pub unknown_nodes: u64,
}

/// A tensor that was copied to the memory of a split's backend before the split ran.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CopyRow {
    pub to: String,
    /// Its name pattern.
    pub name: String,
    pub copies: u64,
    /// Null if its type is not described.
    pub bytes: Option<u64>,
}

impl BackendWork {
    /// Whether it computes on the CPU and is done when its call returns.
    pub fn is_host(&self) -> bool {
        backend_guid::is_host(&self.backend)
    }
}

impl Work {
    fn add(&mut self, other: &Work, times: u64) {
        let sum = |a: &mut u64, b: u64| *a = a.saturating_add(b.saturating_mul(times));
        sum(&mut self.nodes, other.nodes);
        sum(&mut self.bytes, other.bytes);
        sum(&mut self.flops, other.flops);
        sum(&mut self.unknown_nodes, other.unknown_nodes);
    }
}

/// Runs of each plan on each backend; a split without a plan has none.
type Runs = BTreeMap<(u32, Option<u32>), u64>;

/// One run of a plan.
#[derive(Default)]
struct PlanWork {
    ops: BTreeMap<String, Work>,
    /// By name pattern.
    copies: BTreeMap<String, (u64, Option<u64>)>,
    /// Tensors that are copied for it, by their own names, and their bytes.
    copied: Vec<(String, Option<u64>)>,
}

impl PlanWork {
    fn new(loaded: &Loaded<'_>, idents: &Idents, plan: u32) -> PlanWork {
        let mut out = PlanWork::default();
        let mut copied = HashSet::new();
        for ident in idents.of_plan(plan).iter().filter_map(|i| idents.list().get(*i)) {
            let mut work = Work { nodes: 1, ..Work::default() };
            match ident.work {
                Some(w) => (work.bytes, work.flops) = (w.read.saturating_add(w.written), w.flops),
                None => work.unknown_nodes = 1,
            }
            out.ops.entry(ident.op.clone()).or_default().add(&work, 1);
            let ids = ident.hit.into_iter().flat_map(|(first, second)| [Some(first), second]).flatten();
            for t in ids.filter_map(|id| loaded.tensors.get(&id)).filter(|t| t.known) {
                for (name, bytes) in copies_of(loaded, t, &mut copied) {
                    let row = out.copies.entry(fold(name).pattern.into_owned()).or_insert((0, Some(0)));
                    row.0 += 1;
                    row.1 = row.1.zip(bytes).map(|(a, b)| a.saturating_add(b));
                    out.copied.push((name.to_owned(), bytes));
                }
            }
        }
        out
    }
}

/// The copies among a tensor's sources, by the names of what they are copies of, with their bytes. `seen` are those that
/// were met before: the scheduler copies a tensor once for a split.
fn copies_of<'l>(loaded: &'l Loaded<'_>, t: &Tensor, seen: &mut HashSet<u32>) -> Vec<(&'l str, Option<u64>)> {
    let new = t.src.iter().flatten().filter(|id| seen.insert(**id));
    let copy = |id: &u32| {
        let source = loaded.tensors.get(id)?;
        Some((copied_name(&source.name)?, tensor_bytes(loaded, source)))
    };
    new.filter_map(copy).collect()
}

/// The work of a phase by backend; `None` if the CPU's does everything, or below level op.
pub fn offload(
    loaded: &Loaded<'_>,
    line: &Timeline,
    times: &OpTimes,
    idents: &Idents,
    phase: Phase,
) -> Option<Offload> {
    let plan_of = cpu_plans(loaded);
    let ops = loaded.header.as_ref().is_some_and(|h| h.level == Level::Op && h.structure);
    let elsewhere =
        |s: &&Split| s.plan.is_some() || (ops && !is_cpu(loaded, s.backend) && !plan_of.contains_key(&s.seq));
    let graphs: HashSet<u64> = loaded.splits.iter().filter(elsewhere).filter_map(|s| s.graph).collect();
    let of_phase = |g: &u64| line.graph_phase.get(g).copied().unwrap_or(Phase::Unknown) == phase;
    let graphs: HashSet<u64> = graphs.into_iter().filter(of_phase).collect();
    if graphs.is_empty() {
        return None;
    }
    let mut runs = Runs::new();
    for s in loaded.splits.iter().filter(|s| s.graph.is_some_and(|g| graphs.contains(&g))) {
        let plan = s.plan.or_else(|| plan_of.get(&s.seq).copied());
        *runs.entry((s.backend, plan)).or_default() += 1;
    }
    let mut cache: HashMap<u32, PlanWork> = HashMap::new();
    for plan in runs.keys().filter_map(|(_, plan)| *plan) {
        cache.entry(plan).or_insert_with(|| PlanWork::new(loaded, idents, plan));
    }
    let mut enqueued = enqueued(loaded, idents, &graphs);
    let mut dispatched = dispatched(loaded, &graphs);
    let batches = batches(loaded, &graphs);
    let mut executed = executed(loaded, idents, &graphs);
    let input = CpuInput { loaded, idents, times, phase, runs: &runs, cache: &cache };
    let on_cpu = on_cpu(&input, &on_device(loaded, idents));
    let (crossings, between_splits) = crossings(&input, &graphs, &plan_of, &on_cpu);
    Some(Offload {
        graphs: graphs.len() as u64,
        backends: backends(loaded, &runs, &cache, &mut enqueued, &mut dispatched, &batches, &mut executed),
        copies: copies(loaded, &runs, &cache),
        on_cpu,
        crossings,
        between_splits,
    })
}

fn is_cpu(loaded: &Loaded<'_>, backend: u32) -> bool {
    loaded.backends.get(&backend).is_some_and(|b| b.guid.starts_with(&backend_guid::CPU_START))
}

/// Plan of the CPU graph in each split.
fn cpu_plans(loaded: &Loaded<'_>) -> HashMap<u64, u32> {
    loaded.cpu_graphs.iter().filter_map(|g| Some((g.split?, g.plan?))).collect()
}

/// The ops of the first `nodes` of these positions, joined.
pub(crate) fn label(idents: &Idents, plan: &[usize], nodes: usize) -> String {
    /// Longest group in full; a backend fuses fewer.
    const MOST: usize = 16;
    let ops: Vec<&str> = plan.iter().take(nodes.min(MOST)).map(|i| idents.op(*i)).collect();
    let more = if nodes > MOST { format!("+({} more)", nodes - MOST) } else { String::new() };
    format!("{}{more}", ops.join("+"))
}

/// What was seen of the enqueueing on one backend.
struct SeenEnqueued {
    rows: Vec<EnqueuedOps>,
    /// Splits that were seen whole.
    splits: u64,
    whole: Option<EnqueueSum>,
}

/// Host time to enqueue, by backend, and the splits that were seen whole; of each backend of which any was seen in the
/// recording.
fn enqueued(loaded: &Loaded<'_>, idents: &Idents, graphs: &HashSet<u64>) -> HashMap<String, SeenEnqueued> {
    let within = |graph: Option<u64>| graph.is_some_and(|g| graphs.contains(&g));
    let split_of: HashMap<u64, (&Split, bool)> =
        loaded.splits.iter().map(|s| (s.seq, (s, within(s.graph)))).collect();
    let kernels_of: HashMap<u64, &Dispatches<'_>> = loaded.dispatches.iter().map(|d| (d.split, d)).collect();
    let mut sums: HashMap<u32, (HashMap<String, EnqueuedOps>, u64, EnqueueSum)> = HashMap::new();
    for e in &loaded.enqueued {
        let Some((split, within)) = split_of.get(&e.split) else { continue };
        let (sums, splits, whole) = sums.entry(split.backend).or_default();
        let plan = idents.of_plan(e.plan);
        let seen = enqueued_groups(e).fold(0, |sum: u64, (nodes, _)| sum.saturating_add(nodes.into()));
        // The rest was enqueued before the probes were attached.
        if !within || e.first > 0 || seen != plan.len() as u64 {
            continue;
        }
        *splits += 1;
        if matches!(split.device, Device::Busy(_)) && !split.cut {
            let ns = enqueued_groups(e)
                .fold((0_u64, 0_u64), |(sum, last), (_, ns)| (sum.saturating_add(last), ns));
            whole.splits += 1;
            whole.before_last_ns = whole.before_last_ns.saturating_add(ns.0);
            whole.split_ns = whole.split_ns.saturating_add(split.dur);
        }
        let mut at = 0_usize;
        let mut kernels = kernels_of.get(&e.split).map(|d| group_kernels(d));
        for (nodes, ns) in enqueued_groups(e) {
            let label = label(idents, plan.get(at..).unwrap_or_default(), nodes as usize);
            at = at.saturating_add(nodes as usize);
            let sum = sums.entry(label).or_default();
            sum.groups += 1;
            sum.nodes = sum.nodes.saturating_add(nodes.into());
            sum.host_ns = sum.host_ns.saturating_add(ns);
            if let Some(n) = kernels.as_mut().and_then(Iterator::next) {
                sum.counted_groups += 1;
                sum.kernels = Some(sum.kernels.unwrap_or_default().saturating_add(n));
            }
        }
    }
    let rows = |sums: HashMap<String, EnqueuedOps>| {
        let mut rows: Vec<EnqueuedOps> =
            sums.into_iter().map(|(ops, sum)| EnqueuedOps { ops, ..sum }).collect();
        order::by(&mut rows, |a, b| b.host_ns.cmp(&a.host_ns).then_with(|| a.ops.cmp(&b.ops)));
        rows
    };
    let seen = |(sums, splits, whole): (_, u64, EnqueueSum)| SeenEnqueued {
        rows: rows(sums),
        splits,
        whole: Some(whole).filter(|w| w.splits > 0),
    };
    sums.into_iter().map(|(id, of)| (backend_name(loaded, id), seen(of))).collect()
}

/// The backend of each split of these graphs.
fn split_backends(loaded: &Loaded<'_>, graphs: &HashSet<u64>) -> HashMap<u64, u32> {
    let within = |s: &&Split| s.graph.is_some_and(|g| graphs.contains(&g));
    loaded.splits.iter().filter(within).map(|s| (s.seq, s.backend)).collect()
}

/// Kernels given to devices, by backend.
fn dispatched(loaded: &Loaded<'_>, graphs: &HashSet<u64>) -> HashMap<String, DispatchSum> {
    let backend_of = split_backends(loaded, graphs);
    let mut sums: HashMap<String, DispatchSum> = HashMap::new();
    for d in &loaded.dispatches {
        let Some(backend) = backend_of.get(&d.split) else { continue };
        let sum = sums.entry(backend_name(loaded, *backend)).or_default();
        sum.splits += 1;
        sum.kernels = sum.kernels.saturating_add(d.kernels.into());
        sum.graphs = sum.graphs.saturating_add(d.graphs.into());
    }
    sums.retain(|_, sum| (sum.kernels, sum.graphs) != (0, 0));
    sums
}

/// Batches given to NPUs, by backend.
fn batches(loaded: &Loaded<'_>, graphs: &HashSet<u64>) -> HashMap<String, BatchSum> {
    let backend_of = split_backends(loaded, graphs);
    let mut sums: HashMap<String, BatchSum> = HashMap::new();
    for b in &loaded.batches {
        let Some(backend) = backend_of.get(&b.split) else { continue };
        let sum = sums.entry(backend_name(loaded, *backend)).or_default();
        sum.splits += 1;
        sum.written += u64::from(b.written);
        sum.answered += u64::from(b.answered);
        sum.rpc_ns = sum.rpc_ns.saturating_add(b.rpc_ns);
        sum.busy_ns = sum.busy_ns.saturating_add(b.busy_ns);
        sum.timed += u64::from(b.timed);
        sum.unprofiled += u64::from(b.unprofiled);
        sum.timeless += u64::from(b.timeless);
        let told = [b.timed, b.unprofiled, b.timeless].map(u64::from).iter().sum();
        sum.unknown_layout += u64::from(b.answered).saturating_sub(told);
        if b.timed > 0 {
            sum.npu_ns = Some(sum.npu_ns.unwrap_or_default().saturating_add(b.npu_ns));
        }
    }
    sums
}

fn backends(
    loaded: &Loaded<'_>,
    runs: &Runs,
    cache: &HashMap<u32, PlanWork>,
    enqueued: &mut HashMap<String, SeenEnqueued>,
    dispatched: &mut HashMap<String, DispatchSum>,
    batches: &HashMap<String, BatchSum>,
    executed: &mut HashMap<String, DeviceTimes>,
) -> Vec<BackendWork> {
    let mut sums: BTreeMap<String, (BackendWork, BTreeMap<String, Work>)> = BTreeMap::new();
    for ((backend, plan), times) in runs {
        let name = backend_name(loaded, *backend);
        let (sum, ops) = sums.entry(name.clone()).or_default();
        (sum.backend, sum.splits) = (name, sum.splits + times);
        let Some(work) = plan.and_then(|p| cache.get(&p)) else {
            sum.unknown_splits += times;
            continue;
        };
        for (op, work) in &work.ops {
            sum.work.add(work, *times);
            ops.entry(op.clone()).or_default().add(work, *times);
        }
    }
    let mut rows: Vec<BackendWork> = sums
        .into_values()
        .map(|(mut sum, ops)| {
            match enqueued.remove(&sum.backend) {
                Some(seen) => {
                    sum.unseen_splits = sum.splits.saturating_sub(seen.splits);
                    (sum.enqueued, sum.enqueueing) = (seen.rows, seen.whole);
                }
                None if has_node_probe(loaded, &sum.backend) => sum.unseen_splits = sum.splits,
                None => {}
            }
            sum.dispatched = dispatched.remove(&sum.backend);
            sum.batches = batches.get(&sum.backend).copied();
            sum.device = executed.remove(&sum.backend);
            sum.ops = ops.into_iter().map(|(op, work)| OpWork { op, work }).collect();
            order::by(&mut sum.ops, |a, b| {
                (b.work.bytes, b.work.nodes).cmp(&(a.work.bytes, a.work.nodes)).then_with(|| a.op.cmp(&b.op))
            });
            sum
        })
        .collect();
    order::by(&mut rows, |a, b| b.work.bytes.cmp(&a.work.bytes).then_with(|| a.backend.cmp(&b.backend)));
    rows
}

/// Whether a function that enqueues this backend's nodes had a probe.
fn has_node_probe(loaded: &Loaded<'_>, backend: &str) -> bool {
    let prefix = ggml::backend_guid::function_prefix(backend);
    prefix.is_some_and(|p| loaded.rungs.iter().any(|r| r.role == "node" && r.name.starts_with(p)))
}

fn copies(loaded: &Loaded<'_>, runs: &Runs, cache: &HashMap<u32, PlanWork>) -> Vec<CopyRow> {
    let mut sums: BTreeMap<(String, &str), (u64, Option<u64>)> = BTreeMap::new();
    for ((backend, plan), times) in runs {
        for (name, (n, bytes)) in plan.and_then(|p| cache.get(&p)).iter().flat_map(|w| &w.copies) {
            let sum = sums.entry((backend_name(loaded, *backend), name)).or_insert((0, Some(0)));
            sum.0 = sum.0.saturating_add(n.saturating_mul(*times));
            sum.1 = sum.1.zip(*bytes).map(|(a, b)| a.saturating_add(b.saturating_mul(*times)));
        }
    }
    let row = |((to, name), (copies, bytes)): ((String, &str), _)| CopyRow {
        to,
        name: name.to_owned(),
        copies,
        bytes,
    };
    let mut rows: Vec<CopyRow> = sums.into_iter().map(row).collect();
    order::by(&mut rows, |a, b| b.bytes.cmp(&a.bytes).then_with(|| (&a.to, &a.name).cmp(&(&b.to, &b.name))));
    rows
}
