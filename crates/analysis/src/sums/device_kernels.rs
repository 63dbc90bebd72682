//! What a device executed, by its own clock: each kernel belongs to the group of nodes that the host was enqueueing
//! when it enqueued the kernel.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::Serialize;

use crate::recorded::calls::{Latency, latency};
use crate::recorded::idents::Idents;
use crate::recorded::load::Loaded;
use crate::sums::offload::label;
use crate::sums::tables::backend_name;
use common::order;
use pfi::record::{DeviceKernels, Enqueued, KernelSource, Split};
use pfi::{KernelTimes, enqueued_groups, kernel_times};

/// The execution of one backend's work in one phase. Sums over its graphs.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct DeviceTimes {
    /// Where the times come from.
    pub source: &'static str,
    pub kernels: u64,
    /// Time during which at least one kernel ran.
    pub busy_ns: u64,
    /// Time during which none ran, between the first and the last kernel of each graph.
    pub idle_ns: u64,
    /// The part of it in which the next kernel had not been submitted, and the host was in the call that enqueues the
    /// split with it.
    pub enqueueing_ns: u64,
    /// The times without a kernel, one by one; omitted if there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gaps: Option<Latency>,
    /// Those of at least a tenth of the time from the graph's first kernel to the end of its last one, and their sum.
    pub long_gaps: u64,
    pub long_gap_ns: u64,
    /// The times may be off by this much against the host's, all by the same amount; durations are not.
    pub error_ns: u64,
    /// Groups of nodes that were enqueued, and those of them without a kernel.
    pub groups: u64,
    pub groups_without: u64,
    /// By the ops of a group, most time first.
    pub ops: Vec<ExecutedOps>,
    /// By kernel, most time first.
    pub by_kernel: Vec<ExecutedKernel>,
}

/// Kernels of groups with the same ops.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ExecutedOps {
    /// Joined by `+`; `(CUDA graph)` for kernels that a graph has launched, `(outside nodes)` for others that belong to no
    /// group.
    pub ops: String,
    pub groups: u64,
    #[serde(flatten)]
    pub sum: KernelSum,
}

/// Kernels of one name.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ExecutedKernel {
    pub name: String,
    #[serde(flatten)]
    pub sum: KernelSum,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct KernelSum {
    pub kernels: u64,
    /// From start to end.
    pub device_ns: u64,
    /// During which no kernel ran on the device before these started, within a graph.
    pub idle_before_ns: u64,
    /// Those of which it is known when they were queued and submitted. Of these, from queued to start: behind others, or
    /// on the way; and the part of it from submitted to start.
    pub queued_kernels: u64,
    pub queued_ns: u64,
    pub submitted_ns: u64,
}

impl KernelSum {
    /// `idle`: before it.
    fn add(&mut self, kernel: &PlacedKernel<'_>, idle: u64) {
        let KernelTimes { started, ended, .. } = kernel.times;
        self.kernels += 1;
        self.device_ns = self.device_ns.saturating_add(ended.saturating_sub(started));
        self.idle_before_ns = self.idle_before_ns.saturating_add(idle);
        if let Some((queued, submitted)) = kernel.queued_submitted() {
            self.queued_kernels += 1;
            self.queued_ns = self.queued_ns.saturating_add(started.saturating_sub(queued));
            self.submitted_ns = self.submitted_ns.saturating_add(started.saturating_sub(submitted));
        }
    }
}

/// A group of nodes that were enqueued together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Group {
    /// The split's seq.
    pub split: u64,
    /// Positions of its nodes in the plan.
    pub plan: u32,
    pub first: u32,
    pub nodes: u32,
}

/// A kernel, with where it belongs.
#[derive(Debug, Clone, Copy)]
pub struct PlacedKernel<'a> {
    pub times: KernelTimes,
    pub of: &'a DeviceKernels<'a>,
    pub split: &'a Split,
    /// None: the host was not enqueueing a node that was seen, or a CUDA graph has launched it.
    pub group: Option<Group>,
}

impl PlacedKernel<'_> {
    /// When it was queued and submitted; None: the source does not know, and recorded the host's time.
    pub fn queued_submitted(&self) -> Option<(u64, u64)> {
        let KernelTimes { host, queued, submitted, .. } = self.times;
        let known = match self.of.source {
            KernelSource::OpenClLayer | KernelSource::VulkanLayer => true,
            KernelSource::Cupti | KernelSource::CuptiGraph => (queued, submitted) != (host, host),
            KernelSource::VulkanLogger => false,
        };
        known.then_some((queued, submitted))
    }
}

/// Groups of one split: start, end, group.
type Groups = Vec<(u64, u64, Group)>;

fn groups_of(e: &Enqueued<'_>, into: &mut Groups) {
    let (mut t, mut first) = (e.t as u64, e.first);
    for (nodes, ns) in enqueued_groups(e) {
        let until = t.saturating_add(ns);
        into.push((t, until, Group { split: e.split, plan: e.plan, first, nodes }));
        (t, first) = (until, first.saturating_add(nodes));
    }
}

/// All kernels that belong to a split. Those of others, which the program enqueued by itself, are left out.
pub fn placed<'a>(loaded: &'a Loaded<'a>) -> Vec<PlacedKernel<'a>> {
    if loaded.kernels.is_empty() {
        return Vec::new();
    }
    let mut splits: HashMap<(u32, u32), Vec<&Split>> = HashMap::new();
    for s in &loaded.splits {
        splits.entry((s.pid, s.tid)).or_default().push(s);
    }
    splits.values_mut().for_each(|of| order::by(of, |a, b| a.t.cmp(&b.t)));
    let mut groups: HashMap<u64, Groups> = HashMap::new();
    for e in &loaded.enqueued {
        groups_of(e, groups.entry(e.split).or_default());
    }
    let split_at = |k: &DeviceKernels<'_>, host: u64| {
        let of = splits.get(&(k.pid, k.tid))?;
        let before = of.partition_point(|s| s.t as u64 <= host);
        let split = *of.get(before.checked_sub(1)?)?;
        (host <= (split.t as u64).saturating_add(split.dur)).then_some(split)
    };
    let group_at = |split: &Split, host: u64| {
        let of = groups.get(&split.seq)?;
        let before = of.partition_point(|g| g.0 <= host);
        of.get(before.checked_sub(1)?).filter(|g| host <= g.1).map(|g| g.2)
    };
    let mut out = Vec::new();
    for of in &loaded.kernels {
        for times in kernel_times(of) {
            if let Some(split) = split_at(of, times.host) {
                // The nodes of a graph's kernels were enqueued when the graph was captured, not when it is launched.
                let group = (!by_graph(of)).then(|| group_at(split, times.host)).flatten();
                out.push(PlacedKernel { times, of, split, group });
            }
        }
    }
    out
}

/// What a device did for a group of nodes that were enqueued together.
#[derive(Debug, Clone, Copy)]
pub struct GroupTime<'a> {
    /// Sum of the times of its kernels, ns.
    pub ns: u64,
    pub nodes: u32,
    pub plan: u32,
    pub split: &'a Split,
}

/// By the split's seq, and the position of the group's first node in its plan.
pub type GroupTimes<'a> = HashMap<(u64, u32), GroupTime<'a>>;

/// The groups of which the device's times are known.
pub fn of_groups<'a>(loaded: &'a Loaded<'a>) -> GroupTimes<'a> {
    let mut out = GroupTimes::new();
    for k in placed(loaded) {
        if let Some(Group { split, plan, first, nodes }) = k.group {
            let new = GroupTime { ns: 0, nodes, plan, split: k.split };
            let sum = out.entry((split, first)).or_insert(new);
            sum.ns = sum.ns.saturating_add(k.times.ended.saturating_sub(k.times.started));
        }
    }
    out
}

/// Whether a CUDA graph has launched these kernels.
fn by_graph(of: &DeviceKernels<'_>) -> bool {
    of.source == KernelSource::CuptiGraph
}

/// Name of a source in the outputs.
pub fn source_name(source: KernelSource) -> &'static str {
    match source {
        KernelSource::OpenClLayer => "events of the OpenCL runtime",
        KernelSource::VulkanLayer | KernelSource::VulkanLogger => "timestamps around each dispatch",
        KernelSource::Cupti | KernelSource::CuptiGraph => "CUPTI",
    }
}

/// The execution of the splits in these graphs, by backend.
pub fn executed(loaded: &Loaded<'_>, idents: &Idents, graphs: &HashSet<u64>) -> HashMap<String, DeviceTimes> {
    let in_phase = |s: &Split| s.graph.is_some_and(|g| graphs.contains(&g));
    let kernels = placed(loaded).into_iter().filter(|k| in_phase(k.split)).collect();
    by_backend(loaded, kernels)
        .into_iter()
        .map(|(name, kernels)| (name, times(loaded, idents, kernels)))
        .collect()
}

/// A gap is long from 1/`LONG_PART` of its graph's time on.
const LONG_PART: u64 = 10;

/// How long the device waited for this kernel to be submitted while the host was in the call of its split.
fn unsubmitted(k: &PlacedKernel<'_>, idle_from: u64) -> u64 {
    let until = k.times.started.min(k.times.submitted);
    until.saturating_sub(idle_from.max(k.split.t as u64))
}

/// The kernels of one backend by graph and start, each with the end of what ran before it in its graph.
fn in_order(mut kernels: Vec<PlacedKernel<'_>>) -> Vec<(PlacedKernel<'_>, Option<u64>)> {
    order::by(&mut kernels, |a, b| {
        (a.split.graph, a.times.started, a.times.ended).cmp(&(b.split.graph, b.times.started, b.times.ended))
    });
    let mut last: Option<(Option<u64>, u64)> = None;
    let place = |k: PlacedKernel<'_>| {
        let before = last.filter(|(graph, _)| *graph == k.split.graph).map(|(_, ended)| ended);
        last = Some((k.split.graph, k.times.ended.max(before.unwrap_or_default())));
        before
    };
    let before: Vec<Option<u64>> = kernels.iter().copied().map(place).collect();
    kernels.into_iter().zip(before).collect()
}

/// The ops that a kernel computes, joined by `+`; or why they are not known.
fn ops_of(idents: &Idents, k: &PlacedKernel<'_>) -> String {
    let plan = |g: Group| idents.of_plan(g.plan).get(g.first as usize..).unwrap_or_default();
    let none = if by_graph(k.of) { "(CUDA graph)" } else { "(outside nodes)" };
    k.group.map_or_else(|| none.to_owned(), |g| label(idents, plan(g), g.nodes as usize))
}

/// One kernel, as tables show it.
#[derive(Debug, Clone)]
pub struct KernelRow<'a> {
    pub kernel: PlacedKernel<'a>,
    pub name: &'a str,
    pub backend: String,
    /// As in [`ExecutedOps`].
    pub ops: String,
    /// During which no kernel ran on the device before it; None: it is the first of its graph.
    pub idle_before_ns: Option<u64>,
}

/// All kernels that belong to a split, by backend, graph and start.
pub fn rows<'a>(loaded: &'a Loaded<'a>, idents: &Idents) -> Vec<KernelRow<'a>> {
    let of_backend = |(backend, kernels): (String, Vec<PlacedKernel<'a>>)| {
        let row = move |(kernel, before): (PlacedKernel<'a>, Option<u64>)| KernelRow {
            name: name(loaded, &kernel.times),
            backend: backend.clone(),
            ops: ops_of(idents, &kernel),
            idle_before_ns: before.map(|ended| kernel.times.started.saturating_sub(ended)),
            kernel,
        };
        in_order(kernels).into_iter().map(row).collect::<Vec<_>>()
    };
    by_backend(loaded, placed(loaded)).into_iter().flat_map(of_backend).collect()
}

fn by_backend<'a>(
    loaded: &Loaded<'_>,
    kernels: Vec<PlacedKernel<'a>>,
) -> BTreeMap<String, Vec<PlacedKernel<'a>>> {
    let mut out: BTreeMap<String, Vec<PlacedKernel<'_>>> = BTreeMap::new();
    for k in kernels {
        out.entry(backend_name(loaded, k.split.backend)).or_default().push(k);
    }
    out
}

fn name<'a>(loaded: &'a Loaded<'a>, times: &KernelTimes) -> &'a str {
    loaded.kernel_names.get(&times.name).copied().unwrap_or("?")
}

/// The tables of one backend's kernels.
fn times(loaded: &Loaded<'_>, idents: &Idents, kernels: Vec<PlacedKernel<'_>>) -> DeviceTimes {
    let mut out = DeviceTimes { kernels: kernels.len() as u64, ..DeviceTimes::default() };
    let mut ops: HashMap<String, (HashSet<Group>, KernelSum)> = HashMap::new();
    let mut names: HashMap<&str, KernelSum> = HashMap::new();
    let kernels = in_order(kernels);
    let mut gaps: Vec<Vec<u64>> = Vec::new();
    let mut spans: Vec<u64> = Vec::new();
    for (k, before) in &kernels {
        let before = *before;
        let idle = before.map_or(0, |ended| k.times.started.saturating_sub(ended));
        let from = k.times.started.max(before.unwrap_or_default());
        out.busy_ns = out.busy_ns.saturating_add(k.times.ended.saturating_sub(from));
        out.idle_ns = out.idle_ns.saturating_add(idle);
        match (before, gaps.last_mut(), spans.last_mut()) {
            (Some(ended), Some(gaps), Some(span)) => {
                gaps.extend(Some(idle).filter(|ns| *ns > 0));
                *span = span.saturating_add(k.times.ended.max(ended) - ended);
                out.enqueueing_ns = out.enqueueing_ns.saturating_add(unsubmitted(k, ended));
            }
            _ => {
                gaps.push(Vec::new());
                spans.push(k.times.ended.saturating_sub(k.times.started));
            }
        }
        out.error_ns = out.error_ns.max(k.of.error_ns);
        out.source = source_name(k.of.source);
        let (groups, sum) = ops.entry(ops_of(idents, k)).or_default();
        groups.extend(k.group);
        sum.add(k, idle);
        names.entry(name(loaded, &k.times)).or_default().add(k, idle);
    }
    for (gaps, span) in gaps.iter().zip(spans) {
        let long = gaps.iter().filter(|ns| ns.saturating_mul(LONG_PART) >= span);
        out.long_gaps += long.clone().count() as u64;
        out.long_gap_ns = long.fold(out.long_gap_ns, |sum, ns| sum.saturating_add(*ns));
    }
    out.gaps = latency(gaps.concat());
    // Where a graph is captured, the host enqueues nodes without a kernel of their own.
    let kernels = || kernels.iter().map(|(k, _)| k);
    let captured: HashSet<u64> = kernels().filter(|k| by_graph(k.of)).map(|k| k.split.seq).collect();
    let (splits, seen): (HashSet<u64>, HashSet<Group>) = (
        kernels().map(|k| k.split.seq).filter(|split| !captured.contains(split)).collect(),
        kernels().filter_map(|k| k.group).collect(),
    );
    let mut all = Groups::new();
    loaded.enqueued.iter().filter(|e| splits.contains(&e.split)).for_each(|e| groups_of(e, &mut all));
    out.groups = all.len() as u64;
    out.groups_without = all.iter().filter(|g| !seen.contains(&g.2)).count() as u64;
    out.ops = ops
        .into_iter()
        .map(|(ops, (groups, sum))| ExecutedOps { ops, groups: groups.len() as u64, sum })
        .collect();
    order::by(&mut out.ops, |a, b| b.sum.device_ns.cmp(&a.sum.device_ns).then_with(|| a.ops.cmp(&b.ops)));
    out.by_kernel = names.into_iter().map(|(n, sum)| ExecutedKernel { name: n.to_owned(), sum }).collect();
    order::by(&mut out.by_kernel, |a, b| {
        b.sum.device_ns.cmp(&a.sum.device_ns).then_with(|| a.name.cmp(&b.name))
    });
    out
}
