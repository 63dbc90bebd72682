//! What it costs that a graph leaves the device for the CPU and comes back: splits, copies, and the time around them.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::Serialize;

use super::fallback::{CpuInput, CpuNodes, FallbackReason, without_view};
use super::is_cpu;
use crate::recorded::load::Loaded;
use common::order;
use pfi::record::{Device, Split};

/// CPU splits with the same ops, in graphs with a split on a device. Sums over the phase's graphs.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Crossing {
    /// Their different ops in order, joined by `, `.
    pub ops: String,
    pub splits: u64,
    pub nodes: u64,
    /// Splits that a graph would not have if a device computed these nodes. A split of nothing but the input layer is
    /// always there.
    pub extra_splits: u64,
    /// Those between two splits on a device. While one is computed, with the copies around it, that device has nothing
    /// to do.
    pub between: u64,
    /// Time that the host waited for the device before them: until it had finished what it had been given.
    pub wait_ns: u64,
    /// From there to the start of the split: copies to the CPU's memory, and the scheduler.
    pub before_ns: u64,
    /// Duration of the splits.
    pub cpu_ns: u64,
    /// From their end to the start of the next split on a device: copies to it, and the scheduler.
    pub after_ns: u64,
    /// Splits after one on a device whose end was not seen; they are not in `wait_ns` and `before_ns`.
    #[serde(skip_serializing_if = "common::is_default")]
    pub unseen: u64,
    /// Bytes copied to the CPU's memory for them, and of their results to a device; null if a type is not described.
    pub to_cpu_bytes: Option<u64>,
    pub from_cpu_bytes: Option<u64>,
}

impl Crossing {
    /// Time of the copies and the scheduler around the splits, ns.
    pub fn around_ns(&self) -> u64 {
        self.before_ns.saturating_add(self.after_ns)
    }
}

/// Time between splits of a graph, from the end of one's work to the start of the next: copies, and the scheduler.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct BetweenSplits {
    pub pairs: u64,
    pub ns: u64,
    /// Pairs of which the end of the first one's work was not seen.
    #[serde(skip_serializing_if = "common::is_default")]
    pub unseen: u64,
}

/// Different ops of a split that are named.
const NAMED: usize = 4;

/// When a split's work had ended; `None` if that was not seen.
fn ended(s: &Split) -> Option<i64> {
    (s.device != Device::Unseen && !s.cut).then(|| s.t.saturating_add_unsigned(s.dur))
}

fn since(from: i64, to: i64) -> u64 {
    to.saturating_sub(from).max(0) as u64
}

/// Splits of each of these graphs, in the order of time.
fn by_graph<'l>(loaded: &'l Loaded<'_>, graphs: &HashSet<u64>) -> Vec<Vec<&'l Split>> {
    let mut all: BTreeMap<u64, Vec<&Split>> = BTreeMap::new();
    for s in &loaded.splits {
        if let Some(graph) = s.graph.filter(|g| graphs.contains(g)) {
            all.entry(graph).or_default().push(s);
        }
    }
    let mut all: Vec<Vec<&Split>> = all.into_values().collect();
    all.iter_mut().for_each(|of| order::by_key(of, |s| (order::time(s.t), s.seq)));
    all
}

/// What is the same for all runs of a plan.
struct PlanLabel {
    ops: String,
    nodes: u64,
    /// Nothing but lookups in the input layer; and at least one.
    input_only: bool,
    has_input: bool,
    to_cpu: Option<u64>,
    names: Vec<String>,
}

fn label(input: &CpuInput<'_, '_, '_>, plan: u32, lookups: &[&CpuNodes]) -> PlanLabel {
    let list = input.idents.of_plan(plan).iter().filter_map(|i| input.idents.list().get(*i));
    let mut ops: Vec<&str> = Vec::new();
    let (mut nodes, mut inputs, mut names) = (0_u64, 0_u64, Vec::new());
    for ident in list {
        nodes += 1;
        if !ops.contains(&&*ident.op) {
            ops.push(&ident.op);
        }
        inputs += u64::from(lookups.iter().any(|row| row.op == ident.op && row.name == ident.name));
        let ids = ident.hit.into_iter().flat_map(|(a, b)| [Some(a), b]).flatten();
        let found = ids.filter_map(|id| input.loaded.tensors.get(&id)).filter(|t| t.known);
        names.extend(found.map(|t| without_view(&t.name).to_owned()));
    }
    let more = match ops.len().saturating_sub(NAMED) {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    let copied = input.cache.get(&plan).map_or(&[][..], |w| &w.copied);
    PlanLabel {
        ops: format!("{}{more}", ops.get(..NAMED.min(ops.len())).unwrap_or_default().join(", ")),
        nodes,
        input_only: inputs == nodes,
        has_input: inputs > 0,
        to_cpu: copied.iter().try_fold(0_u64, |sum, (_, bytes)| Some(sum.saturating_add((*bytes)?))),
        names,
    }
}

/// The CPU's splits of these graphs by their ops, most time first; and the time between all splits.
pub(super) fn crossings(
    input: &CpuInput<'_, '_, '_>,
    graphs: &HashSet<u64>,
    plan_of: &HashMap<u64, u32>,
    on_cpu: &[CpuNodes],
) -> (Vec<Crossing>, BetweenSplits) {
    let loaded = input.loaded;
    let lookups: Vec<&CpuNodes> = on_cpu.iter().filter(|r| r.reason == FallbackReason::InputLayer).collect();
    let mut labels: HashMap<u32, PlanLabel> = HashMap::new();
    let mut results = input.copied_results();
    let mut sums: BTreeMap<String, Crossing> = BTreeMap::new();
    let mut gaps = BetweenSplits::default();
    for splits in by_graph(loaded, graphs) {
        for pair in splits.windows(2) {
            let [first, next] = pair else { continue };
            gaps.pairs += 1;
            match ended(first) {
                Some(end) => gaps.ns = gaps.ns.saturating_add(since(end, next.t)),
                None => gaps.unseen += 1,
            }
        }
        for (i, s) in splits.iter().enumerate().filter(|(_, s)| is_cpu(loaded, s.backend) && !s.cut) {
            let Some(plan) = plan_of.get(&s.seq) else { continue };
            let label = labels.entry(*plan).or_insert_with(|| label(input, *plan, &lookups));
            let new = || Crossing { to_cpu_bytes: Some(0), from_cpu_bytes: Some(0), ..Crossing::default() };
            let sum = sums.entry(label.ops.clone()).or_insert_with(new);
            let device = |at: Option<usize>| {
                at.and_then(|at| splits.get(at)).copied().filter(|s| !is_cpu(loaded, s.backend))
            };
            let (before, after) = (device(i.checked_sub(1)), device(i.checked_add(1)));
            let between = before.is_some() && after.is_some();
            sum.splits += 1;
            sum.nodes = sum.nodes.saturating_add(label.nodes);
            sum.extra_splits += u64::from(!label.has_input) + u64::from(between && !label.input_only);
            sum.between += u64::from(between);
            sum.cpu_ns = sum.cpu_ns.saturating_add(s.dur);
            match before.map(|b| (b, ended(b))) {
                Some((b, Some(end))) => {
                    sum.wait_ns = sum.wait_ns.saturating_add(b.device.waited());
                    sum.before_ns = sum.before_ns.saturating_add(since(end, s.t));
                }
                Some((_, None)) => sum.unseen += 1,
                None => {}
            }
            if let Some(after) = after {
                let end = s.t.saturating_add_unsigned(s.dur);
                sum.after_ns = sum.after_ns.saturating_add(since(end, after.t));
            }
            sum.to_cpu_bytes = sum.to_cpu_bytes.zip(label.to_cpu).map(|(a, b)| a.saturating_add(b));
            for name in std::mem::take(&mut label.names) {
                if let Some(bytes) = results.remove(&*name) {
                    sum.from_cpu_bytes = sum.from_cpu_bytes.zip(bytes).map(|(a, b)| a.saturating_add(b));
                }
            }
        }
    }
    let mut rows: Vec<Crossing> = sums.into_iter().map(|(ops, sum)| Crossing { ops, ..sum }).collect();
    let cost = |c: &Crossing| c.around_ns().saturating_add(c.cpu_ns);
    order::by(&mut rows, |a, b| cost(b).cmp(&cost(a)).then_with(|| a.ops.cmp(&b.ops)));
    (rows, gaps)
}
