//! Checks that a trace and the engine's own log describe the same run: calls, graphs, op order, tensors, experts,
//! threads.
//!
//! Each answer is a text that says what was compared, or the first mismatch.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use crate::questions::ground_truth::{GroundTruth, TruthCpuGraph as TrueGraph};
use crate::questions::quality::RecordingQuality;
use crate::questions::report::{ReportOptions, report};
use crate::recorded::load::{HitTensors, LoadProgress, Loaded};
use common::order;
use ggml::names;
use pfi::Trace;
use pfi::expert_ids;
use pfi::record::{Availability, CpuGraph};

/// What was compared, or what is wrong.
pub type AgreementResult = Result<String, Mismatch>;

/// What trace and engine do not agree on, or what is missing to compare them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// The recording's counts do not add up; with the verdict on its quality.
    #[error("{0}")]
    Incomplete(String),
    /// A number or name.
    #[error("{what}: {traced} in the trace, {truth} in the engine")]
    Value { what: String, traced: String, truth: String },
    #[error("{place}: the engine ran {name}, the trace has another op there")]
    Op { place: String, name: String },
    #[error("a tensor of the graph is not in the trace")]
    NoTensor,
    #[error("{0}: only its address was recorded")]
    OnlyAddress(String),
    /// Times in ns.
    #[error("thread {tid} is off-CPU for {dur} ns from {t}, but was already until {end}")]
    Overlap { tid: u32, dur: u64, t: i64, end: i64 },
    #[error("no thread was followed from its creation ({followed} are followed)")]
    NoBirth { followed: usize },
    #[error("the engine ran no experts")]
    NoExperts,
    #[error("{seen} of {want} ops of layer {} seen", number(*.layer))]
    ExpertOps { seen: u64, want: u64, layer: Option<u32> },
    #[error("experts of {ids} reported twice for token {token}")]
    ReportedTwice { ids: String, token: u32 },
    #[error("experts of {seen} tokens and layers, {want} in the engine")]
    ExpertRows { seen: usize, want: usize },
    #[error(
        "experts of CPU graph {graph}, layer {}, token {token}: {seen:?} in the trace, {want:?} in the engine",
        number(*.layer)
    )]
    Experts { graph: usize, layer: Option<u32>, token: u32, seen: Option<Vec<i64>>, want: Vec<i64> },
}

/// A layer's number; -1: none.
fn number(layer: Option<u32>) -> i64 {
    layer.map_or(-1, i64::from)
}

/// State of a thread that had not run before, as in [`pfi::record::OffCpu`].
const NEW: u8 = 255;
/// The op that runs the chosen experts.
const EXPERTS: &str = "MUL_MAT_ID";

/// The recording quality of a trace.
pub fn quality(trace: &Trace) -> RecordingQuality {
    let options = ReportOptions { top: Some(1), ..ReportOptions::default() };
    report(trace, &options, &LoadProgress::default()).quality
}

/// Whether the counts of the recording add up. Without structure the expected number of ops is unknown.
pub fn complete(quality: &RecordingQuality, structure: bool) -> AgreementResult {
    let seen: u64 = quality.events.iter().map(|e| e.seen).sum();
    let lost: u64 = quality.events.iter().map(|e| e.lost).sum();
    if lost > 0 || !quality.damage.is_empty() || quality.end.is_none() || !quality.complete {
        return Err(Mismatch::Incomplete(quality.verdict.clone()));
    }
    let unread = match quality.hits.graphs - quality.hits.checked_graphs {
        n if quality.unread && structure => {
            format!("; the expected hits of {n} of {} graphs are unknown", quality.hits.graphs)
        }
        _ => String::new(),
    };
    Ok(match structure && quality.hits.expected > 0 {
        true => format!(
            "{seen} events, none lost; {} of {} op hits expected{unread}",
            quality.hits.seen, quality.hits.expected
        ),
        false => format!("{seen} events, none lost{unread}"),
    })
}

fn same<T: PartialEq + std::fmt::Display>(what: &str, traced: T, truth: T) -> Result<(), Mismatch> {
    if traced == truth {
        return Ok(());
    }
    Err(Mismatch::Value { what: what.to_owned(), traced: traced.to_string(), truth: truth.to_string() })
}

/// Calls in order, with their tokens.
pub fn calls(loaded: &Loaded<'_>, truth: &GroundTruth) -> AgreementResult {
    let mut traced: Vec<_> = loaded.tokens.iter().filter(|t| !t.cut).collect();
    order::by_key(&mut traced, |t| (order::time(t.t), 0));
    same("calls", traced.len(), truth.calls.len())?;
    for (i, (t, c)) in traced.iter().zip(&truth.calls).enumerate() {
        same(&format!("tokens of call {i}"), t.n_tokens.unwrap_or(0), c.span.size)?;
    }
    Ok(format!(
        "{} calls, {} tokens",
        traced.len(),
        truth.calls.iter().map(|c| u64::from(c.span.size)).sum::<u64>()
    ))
}

/// Graphs in order, with their nodes and splits.
pub fn graphs(loaded: &Loaded<'_>, truth: &GroundTruth) -> AgreementResult {
    let mut traced: Vec<_> = loaded.graphs.iter().filter(|g| !g.cut).collect();
    order::by_key(&mut traced, |g| (order::time(g.t), 0));
    same("graphs", traced.len(), truth.graphs.len())?;
    for (i, (t, g)) in traced.iter().zip(&truth.graphs).enumerate() {
        same(&format!("nodes of graph {i}"), t.n_nodes, g.size)?;
    }
    same("splits", loaded.splits.iter().filter(|s| !s.cut).count(), truth.cpu_graphs.len())?;
    let backends: HashSet<u32> = loaded.splits.iter().map(|s| s.backend).collect();
    Ok(format!("{} graphs, {} splits, backends: {}", traced.len(), truth.cpu_graphs.len(), backends.len()))
}

/// CPU graphs of both sides, in time order.
fn pairs<'a>(
    loaded: &'a Loaded<'_>,
    truth: &'a GroundTruth,
) -> Result<Vec<(&'a CpuGraph, &'a TrueGraph)>, Mismatch> {
    let mut traced: Vec<_> = loaded.cpu_graphs.iter().filter(|g| !g.cut).collect();
    order::by_key(&mut traced, |g| (order::time(g.t), 0));
    same("CPU graphs", traced.len(), truth.cpu_graphs.len())?;
    Ok(traced.into_iter().zip(&truth.cpu_graphs).collect())
}

/// Op hits of all graphs by (graph, thread), each thread's in time order.
fn hits<'a>(loaded: &'a Loaded<'_>) -> BTreeMap<(u64, u16), Vec<&'a HitTensors>> {
    let mut runs: Vec<_> = loaded.runs.iter().collect();
    order::by_key(&mut runs, |r| (r.ith.into(), order::time(r.t)));
    order::by_key(&mut runs, |r| (r.graph, 0));
    let mut out: BTreeMap<(u64, u16), Vec<&HitTensors>> = BTreeMap::new();
    for run in runs {
        let of_plan = loaded.plans.get(&run.plan).map_or(&[][..], |p| &p.hits);
        let of_run = of_plan.iter().skip(run.first as usize).take(run.n as usize);
        out.entry((run.graph, run.ith)).or_default().extend(of_run);
    }
    out
}

/// Every thread's ops, one by one, by tensor address.
pub fn order(loaded: &Loaded<'_>, truth: &GroundTruth) -> AgreementResult {
    let traced = hits(loaded);
    let (mut count, mut threads) = (0, 0);
    for (i, (graph, true_graph)) in pairs(loaded, truth)?.into_iter().enumerate() {
        same(&format!("threads of graph {i}"), graph.n_threads, true_graph.span.size)?;
        threads = threads.max(graph.n_threads);
        for lane in truth.ops_of(true_graph).chunk_by(|a, b| a.ith == b.ith) {
            let ith = lane.first().map_or(0, |o| o.ith);
            let place = format!("graph {i}, thread {ith}");
            let of_lane = u16::try_from(ith).ok().and_then(|ith| traced.get(&(graph.seq, ith)));
            let of_lane = of_lane.map_or(&[][..], |l| l);
            same(&format!("ops of {place}"), of_lane.len(), lane.len())?;
            for (hit, op) in of_lane.iter().zip(lane) {
                let seen = loaded.tensors.get(&hit.0).map_or(0, |t| t.addr);
                let node = truth.node_of(true_graph, op.node);
                if node.is_none_or(|n| n.address != seen) {
                    let name = node.map_or("?", |n| &n.name).to_owned();
                    return Err(Mismatch::Op { place, name });
                }
            }
            count += lane.len();
        }
    }
    Ok(format!("{count} ops, one by one as the engine ran them, threads: {threads}"))
}

/// Name and op of every tensor that ran.
pub fn structure(loaded: &Loaded<'_>, truth: &GroundTruth) -> AgreementResult {
    let traced = hits(loaded);
    let mut names = BTreeSet::new();
    for (graph, true_graph) in pairs(loaded, truth)? {
        let lane = truth.ops_of(true_graph).chunk_by(|a, b| a.ith == b.ith).next().unwrap_or_default();
        let of_lane = traced.get(&(graph.seq, 0)).map_or(&[][..], |l| l);
        for (hit, op) in of_lane.iter().zip(lane) {
            let (Some(t), Some(node)) = (loaded.tensors.get(&hit.0), truth.node_of(true_graph, op.node))
            else {
                return Err(Mismatch::NoTensor);
            };
            if !t.known {
                return Err(Mismatch::OnlyAddress(node.name.to_string()));
            }
            let desc = loaded.ops.get(&t.op).map_or("", |o| o.desc);
            same("name of a tensor", &*t.name, &*node.name)?;
            same(&format!("op of {}", node.name), desc, &*node.op)?;
            names.insert(&*node.name);
        }
    }
    Ok(format!("{} names with the op of each, as the engine built them", names.len()))
}

/// Off-CPU times, if recorded: those of one thread must not overlap, and the runner's workers must have theirs
/// from thread creation on.
pub fn scheduler(loaded: &Loaded<'_>) -> AgreementResult {
    let feature = loaded.causes.features.iter().find(|f| f.name == "scheduler");
    if let Some(f) = feature.filter(|f| f.state == Availability::None) {
        return Ok(format!("off-CPU time is not recorded: {}", f.why));
    }
    let mut ends: BTreeMap<u32, i64> = BTreeMap::new();
    for r in &loaded.causes.off_cpu {
        let end = ends.entry(r.tid).or_insert(i64::MIN);
        if r.t < *end || r.runnable.is_some_and(|n| n > r.dur) {
            return Err(Mismatch::Overlap { tid: r.tid, dur: r.dur, t: r.t, end: *end });
        }
        *end = r.t.saturating_add_unsigned(r.dur);
    }
    let born = loaded.causes.off_cpu.iter().filter(|r| r.state == NEW).count();
    if born == 0 {
        return Err(Mismatch::NoBirth { followed: ends.len() });
    }
    let times = loaded.causes.off_cpu.len();
    Ok(format!("{times} off-CPU intervals of {} threads, {born} of them followed from creation", ends.len()))
}

/// Ops that run experts, layer by layer, and, if recorded, the experts chosen for every token.
pub fn experts(loaded: &Loaded<'_>, truth: &GroundTruth) -> AgreementResult {
    let mut seen: BTreeMap<Option<u32>, u64> = BTreeMap::new();
    for hit in hits(loaded).values().flatten() {
        let Some(tensor) = loaded.tensors.get(&hit.0) else { continue };
        if loaded.ops.get(&tensor.op).is_some_and(|o| o.name == EXPERTS) {
            *seen.entry(names::fold(&tensor.name).layer).or_default() += 1;
        }
    }
    let mut want: BTreeMap<Option<u32>, u64> = BTreeMap::new();
    for graph in &truth.cpu_graphs {
        let nodes = truth.ops_of(graph).iter().filter_map(|o| truth.node_of(graph, o.node));
        for node in nodes.filter(|n| &*n.op == EXPERTS) {
            *want.entry(names::fold(&node.name).layer).or_default() += 1;
        }
    }
    if want.is_empty() {
        return Err(Mismatch::NoExperts);
    }
    if let Some((&layer, &want)) = want.iter().find(|(l, n)| seen.get(l) != Some(n)) {
        let seen = seen.get(&layer).copied().unwrap_or(0);
        return Err(Mismatch::ExpertOps { seen, want, layer });
    }
    let total: u64 = want.values().sum();
    let all = format!("{total} {EXPERTS} ops in {} layers", want.len());
    match loaded.causes.features.iter().find(|f| f.name == "experts") {
        Some(f) if f.state != Availability::None => Ok(format!("{all}; {}", chosen(loaded, truth)?)),
        Some(f) => Ok(format!("{all}; expert choices are not recorded: {}", f.why)),
        None => Ok(format!("{all}; expert choices are not recorded")),
    }
}

/// A token of a layer of a CPU graph; graphs are counted in order.
type LayerToken = (usize, Option<u32>, u32);

/// The experts that each layer chose for each token.
fn chosen(loaded: &Loaded<'_>, truth: &GroundTruth) -> AgreementResult {
    let layer = |name: &str| names::fold(name).layer;
    let mut graphs: Vec<u64> = loaded.cpu_graphs.iter().map(|g| g.seq).collect();
    graphs.sort_unstable();
    let mut seen: BTreeMap<LayerToken, Vec<i64>> = BTreeMap::new();
    for e in &loaded.causes.experts {
        let (Ok(graph), Some(ids)) = (graphs.binary_search(&e.graph), loaded.tensors.get(&e.ids)) else {
            continue;
        };
        let all: Vec<i64> = expert_ids(e).collect();
        for (token, row) in (e.first..).zip(all.chunks((e.used as usize).max(1))) {
            if seen.insert((graph, layer(&ids.name), token), row.to_vec()).is_some() {
                return Err(Mismatch::ReportedTwice { ids: ids.name.to_string(), token });
            }
        }
    }
    let mut want: BTreeMap<LayerToken, Vec<i64>> = BTreeMap::new();
    for e in &truth.experts {
        let Some(graph) = truth.cpu_graphs.iter().position(|g| g.id == e.graph) else { continue };
        let Some(node) = truth.node_of(&truth.cpu_graphs[graph], e.node) else { continue };
        want.insert((graph, layer(&node.name), e.token), e.ids.iter().map(|&id| id.into()).collect());
    }
    match want.iter().find(|(choice, ids)| seen.get(choice) != Some(ids)) {
        None if want.len() == seen.len() && !want.is_empty() => {
            Ok(format!("experts of {} tokens and layers as the engine chose them", want.len()))
        }
        None => Err(Mismatch::ExpertRows { seen: seen.len(), want: want.len() }),
        Some((&choice, ids)) => {
            let (graph, layer, token) = choice;
            let seen = seen.get(&choice).cloned();
            Err(Mismatch::Experts { graph, layer, token, seen, want: ids.clone() })
        }
    }
}
