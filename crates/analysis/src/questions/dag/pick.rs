//! Selects the graphs of a recording to use: those of one process and of one batch or phase that have the same
//! structure.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::{DagError, DagOptions, level};
use crate::recorded::calls::{Phase, Timeline};
use crate::recorded::describe::op_name;
use crate::recorded::load::{Loaded, PlanInfo};
use crate::recorded::processes::Processes;
use common::order;

/// The selection.
#[derive(Debug)]
pub struct DagSelection {
    pub pid: u32,
    pub phase: Phase,
    pub token: Option<u64>,
    /// For each part of a batch's graph, in order: the plans found at that place in the selected graphs. The first
    /// of each is of the first graph, which defines the structure.
    pub places: Vec<Place>,
    /// Number of graphs selected, and number with a different structure.
    pub graphs: u64,
    pub others: u64,
    /// Numbers of the selected CPU graphs, ascending.
    seqs: Vec<u64>,
}

/// The plans found at one place.
#[derive(Debug, Default)]
pub struct Place {
    pub plans: Vec<u32>,
    /// Where it was computed, if that is known: id of a backend.
    pub backend: Option<u32>,
    /// Not in CPU graphs: only a layer gives its ops times.
    pub offloaded: bool,
    /// Numbers of the selected splits on a device.
    pub splits: Vec<u64>,
}

/// A part of a scheduler graph whose nodes are known: a CPU graph, or a split on another backend.
#[derive(Debug, Clone, Copy)]
struct Part {
    /// Number of the scheduler graph; one of its own if there was none.
    key: u64,
    t: i64,
    plan: u32,
    cut: bool,
    phase: Phase,
    call: Option<usize>,
    backend: Option<u32>,
    /// Number of the CPU graph.
    seq: Option<u64>,
    /// Number of the split on a device.
    split: Option<u64>,
}

/// The parts of one scheduler graph, in time order.
type Instance = Vec<Part>;

/// All parts of a process.
fn parts(loaded: &Loaded<'_>, line: &Timeline, pid: u32) -> Vec<Part> {
    let backend_of: HashMap<u64, u32> = loaded.splits.iter().map(|s| (s.seq, s.backend)).collect();
    let calls = line.cpu_phase.iter().zip(&line.cpu_call);
    let cpu = loaded.cpu_graphs.iter().zip(calls).filter(|(g, _)| g.pid == pid);
    let cpu = cpu.filter_map(|(g, (phase, call))| {
        Some(Part {
            // Both kinds of numbers are far below the maximum.
            key: g.graph.unwrap_or(!g.seq),
            t: g.t,
            plan: g.plan?,
            cut: g.cut,
            phase: *phase,
            call: *call,
            backend: g.split.and_then(|s| backend_of.get(&s).copied()),
            seq: Some(g.seq),
            split: None,
        })
    });
    let others = loaded.splits.iter().filter(|s| s.pid == pid).filter_map(|s| {
        let key = s.graph?;
        Some(Part {
            key,
            t: s.t,
            plan: s.plan?,
            cut: s.cut,
            phase: line.graph_phase.get(&key).copied().unwrap_or(Phase::Unknown),
            call: line.graph_call.get(&key).copied(),
            backend: Some(s.backend),
            seq: None,
            split: Some(s.seq),
        })
    });
    cpu.chain(others).collect()
}

/// Selects the graphs.
pub fn pick(loaded: &Loaded<'_>, line: &Timeline, options: &DagOptions) -> Result<DagSelection, DagError> {
    let pid = process(loaded, options.pid.map(|id| id.pid))?;
    let all = parts(loaded, line, pid);
    if all.is_empty() {
        return Err(DagError::NoOps(level(loaded)));
    }
    let (wanted, phase): (Vec<Part>, Phase) = match options.token {
        Some(seq) => {
            let call = line.calls.iter().position(|c| c.seq == seq && c.pid == pid);
            let of = |p: &Part| call.is_some() && p.call == call;
            let list: Vec<Part> = all.into_iter().filter(of).collect();
            let phase =
                list.first().map(|p| p.phase).ok_or_else(|| DagError::NoToken(seq, batches(line, pid)))?;
            (list, phase)
        }
        None => {
            let has = |phase: Phase| all.iter().any(|p| p.phase == phase);
            let first = [Phase::Decode, Phase::Prefill].into_iter().find(|p| has(*p));
            let phase = options.phase.or(first).unwrap_or(Phase::Unknown);
            if !has(phase) {
                let there: Vec<&str> = Phase::ALL.into_iter().filter(|p| has(*p)).map(Phase::name).collect();
                return Err(DagError::NoPhase(phase.name(), there.join(" and ")));
            }
            (all.into_iter().filter(|p| p.phase == phase).collect(), phase)
        }
    };
    choose(loaded, &instances(wanted), pid, phase, options.token)
}

/// The requested process, else the only one that ran graphs.
pub(super) fn process(loaded: &Loaded<'_>, wanted: Option<u32>) -> Result<u32, DagError> {
    let described = loaded.splits.iter().filter(|s| s.plan.is_some()).map(|s| s.pid);
    let mut pids: Vec<u32> = loaded.cpu_graphs.iter().map(|g| g.pid).chain(described).collect();
    pids.sort_unstable();
    pids.dedup();
    match (wanted, pids.as_slice()) {
        (_, []) => Err(DagError::NoGraphs),
        (Some(pid), _) => Ok(Processes::of(loaded).wanted(pid)?),
        (None, [one]) => Ok(*one),
        (None, _) => Err(DagError::Processes(Processes::of(loaded).list())),
    }
}

/// Numbers of the first and the last batch, for a message.
fn batches(line: &Timeline, pid: u32) -> String {
    let of = || line.calls.iter().filter(|c| c.pid == pid).map(|c| c.seq);
    of().min().zip(of().max()).map_or_else(|| "there is none".into(), |(a, b)| format!("{a} to {b}"))
}

/// Groups the parts that belong to one graph.
fn instances(mut list: Vec<Part>) -> Vec<Instance> {
    order::by_key(&mut list, |p| (order::time(p.t), 0));
    order::by_key(&mut list, |p| (p.key, 0));
    let mut all: Vec<Instance> = list.chunk_by(|a, b| a.key == b.key).map(<[Part]>::to_vec).collect();
    order::by_key(&mut all, |one| (one.first().map_or(0, |p| order::time(p.t)), 0));
    all
}

/// Takes the structure that most graphs have; on a tie the first.
fn choose(
    loaded: &Loaded<'_>,
    all: &[Instance],
    pid: u32,
    phase: Phase,
    token: Option<u64>,
) -> Result<DagSelection, DagError> {
    let mut plans: Vec<u32> = all.iter().flatten().map(|p| p.plan).collect();
    plans.sort_unstable();
    plans.dedup();
    let shapes: Vec<Option<u64>> =
        plans.iter().map(|id| loaded.plans.get(id).map(|p| shape(loaded, p))).collect();
    let shape_of = |p: &Part| *shapes.get(plans.binary_search(&p.plan).ok()?)?;
    let cut = |one: &Instance| one.iter().any(|p| p.cut);
    // A graph that is incomplete, or whose ops are not in the file, has no shape.
    let shape_of = |one: &Instance| -> Option<u64> {
        let mut hash = DefaultHasher::new();
        for part in one {
            (shape_of(part)?, part.backend).hash(&mut hash);
        }
        (!cut(one)).then(|| hash.finish())
    };
    let shapes: Vec<Option<u64>> = all.iter().map(shape_of).collect();
    let mut sorted: Vec<u64> = shapes.iter().flatten().copied().collect();
    sorted.sort_unstable();
    let count = |shape: u64| sorted.partition_point(|s| *s <= shape) - sorted.partition_point(|s| *s < shape);
    let mut best: Option<(u64, usize)> = None;
    for shape in shapes.iter().flatten() {
        let n = count(*shape);
        if best.is_none_or(|(_, most)| n > most) {
            best = Some((*shape, n));
        }
    }
    let (wanted, graphs) = best.ok_or(DagError::Lost)?;
    let chosen = || all.iter().zip(&shapes).filter(|(_, s)| **s == Some(wanted)).map(|(one, _)| one);
    let mut places: Vec<Place> = Vec::new();
    for one in chosen() {
        places.resize_with(one.len(), Place::default);
        for (place, part) in places.iter_mut().zip(one) {
            place.plans.push(part.plan);
            place.splits.extend(part.split);
            (place.backend, place.offloaded) = (part.backend, part.seq.is_none());
        }
    }
    for Place { plans, .. } in &mut places {
        let first = plans.first().copied();
        plans.sort_unstable();
        plans.dedup();
        if let Some(at) = plans.iter().position(|p| Some(*p) == first) {
            plans.swap(0, at);
        }
    }
    let mut seqs: Vec<u64> = chosen().flatten().filter_map(|p| p.seq).collect();
    seqs.sort_unstable();
    let (graphs, others) = (graphs as u64, (all.len() - graphs) as u64);
    Ok(DagSelection { pid, phase, token, places, graphs, others, seqs })
}

/// Equal for plans with the same ops and names, whatever their dimensions.
fn shape(loaded: &Loaded<'_>, plan: &PlanInfo) -> u64 {
    let mut hash = DefaultHasher::new();
    for (first, second) in &plan.hits {
        for id in [Some(first), second.as_ref()].into_iter().flatten() {
            match loaded.tensors.get(id) {
                Some(t) => (op_name(loaded, t.op), &t.name, t.src.len()).hash(&mut hash),
                None => id.hash(&mut hash),
            }
        }
        second.is_some().hash(&mut hash);
    }
    hash.finish()
}

/// Reduces `loaded` to the selected graphs.
pub fn keep(loaded: &mut Loaded<'_>, pick: &DagSelection) {
    let chosen = |seq: u64| pick.seqs.binary_search(&seq).is_ok();
    loaded.cpu_graphs.retain(|g| chosen(g.seq));
    loaded.runs.retain(|r| chosen(r.graph));
}
