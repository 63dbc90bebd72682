//! Selects the graphs of a recording to use: those of one process and of one batch or phase that have the same
//! structure.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::{DagError, Options, level};
use crate::calls::{Phase, Timeline};
use crate::describe::op_name;
use crate::load::{Loaded, PlanInfo};
use crate::processes::Processes;
use common::order;

/// The selection.
#[derive(Debug)]
pub struct Pick {
    pub pid: u32,
    pub phase: Phase,
    pub token: Option<u64>,
    /// For each CPU graph of a batch, in order: the plans found at that place in the selected graphs. The first
    /// of each is of the first graph, which defines the structure.
    pub places: Vec<Vec<u32>>,
    /// Number of graphs selected, and number with a different structure.
    pub graphs: u64,
    pub others: u64,
    /// Numbers of the selected CPU graphs, ascending.
    seqs: Vec<u64>,
}

/// CPU graphs that belong to one scheduler graph, by index in [`Loaded::cpu_graphs`].
type Instance = Vec<usize>;

/// Selects the graphs.
pub fn pick(loaded: &Loaded<'_>, line: &Timeline, options: &Options) -> Result<Pick, DagError> {
    let pid = process(loaded, options.pid.map(|id| id.pid))?;
    let all: Vec<usize> = (0..loaded.cpu_graphs.len())
        .filter(|i| loaded.cpu_graphs.get(*i).is_some_and(|g| g.pid == pid && g.plan.is_some()))
        .collect();
    if all.is_empty() {
        return Err(DagError::NoOps(level(loaded)));
    }
    let phase_of = |i: &usize| line.cpu_phase.get(*i).copied().unwrap_or(Phase::Unknown);
    let (wanted, phase): (Vec<usize>, Phase) = match options.token {
        Some(seq) => {
            let call = line.calls.iter().position(|c| c.seq == seq && c.pid == pid);
            let of = |i: &usize| call.is_some() && line.cpu_call.get(*i).copied().flatten() == call;
            let list: Vec<usize> = all.into_iter().filter(of).collect();
            let phase =
                list.first().map(phase_of).ok_or_else(|| DagError::NoToken(seq, batches(line, pid)))?;
            (list, phase)
        }
        None => {
            let has = |p: Phase| all.iter().any(|i| phase_of(i) == p);
            let first = [Phase::Decode, Phase::Prefill].into_iter().find(|p| has(*p));
            let phase = options.phase.or(first).unwrap_or(Phase::Unknown);
            if !has(phase) {
                let there: Vec<&str> = Phase::ALL.into_iter().filter(|p| has(*p)).map(Phase::name).collect();
                return Err(DagError::NoPhase(phase.name(), there.join(" and ")));
            }
            (all.into_iter().filter(|i| phase_of(i) == phase).collect(), phase)
        }
    };
    choose(loaded, &instances(loaded, wanted), pid, phase, options.token)
}

/// The requested process, else the only one that ran graphs.
pub(super) fn process(loaded: &Loaded<'_>, wanted: Option<u32>) -> Result<u32, DagError> {
    let mut pids: Vec<u32> = loaded.cpu_graphs.iter().map(|g| g.pid).collect();
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

/// Groups CPU graphs that belong to one graph, each list in time order.
fn instances(loaded: &Loaded<'_>, mut list: Vec<usize>) -> Vec<Instance> {
    let graph = |i: &usize| loaded.cpu_graphs.get(*i);
    // A CPU graph without one is its own group; both kinds of numbers are far below the maximum.
    let key = |i: &usize| graph(i).map_or(0, |g| g.graph.unwrap_or(!g.seq));
    order::by_key(&mut list, |i| (graph(i).map_or(0, |g| order::time(g.t)), 0));
    order::by_key(&mut list, |i| (key(i), 0));
    let mut all: Vec<Instance> = list.chunk_by(|a, b| key(a) == key(b)).map(<[usize]>::to_vec).collect();
    let start = |one: &Instance| one.first().and_then(graph).map_or(0, |g| order::time(g.t));
    order::by_key(&mut all, |one| (start(one), 0));
    all
}

/// Takes the structure that most graphs have; on a tie the first.
fn choose(
    loaded: &Loaded<'_>,
    all: &[Instance],
    pid: u32,
    phase: Phase,
    token: Option<u64>,
) -> Result<Pick, DagError> {
    let plan = |i: &usize| loaded.cpu_graphs.get(*i).and_then(|g| g.plan).unwrap_or(u32::MAX);
    let mut plans: Vec<u32> = all.iter().flatten().map(plan).collect();
    plans.sort_unstable();
    plans.dedup();
    let shapes: Vec<Option<u64>> =
        plans.iter().map(|id| loaded.plans.get(id).map(|p| shape(loaded, p))).collect();
    let shape_of = |i: &usize| *shapes.get(plans.binary_search(&plan(i)).ok()?)?;
    let cut = |one: &Instance| one.iter().any(|i| loaded.cpu_graphs.get(*i).is_some_and(|g| g.cut));
    // A graph that is incomplete, or whose ops are not in the file, has no shape.
    let shape_of = |one: &Instance| -> Option<u64> {
        let mut hash = DefaultHasher::new();
        for i in one {
            shape_of(i)?.hash(&mut hash);
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
    let mut places: Vec<Vec<u32>> = Vec::new();
    for one in chosen() {
        places.resize(one.len(), Vec::new());
        for (place, i) in places.iter_mut().zip(one) {
            place.push(plan(i));
        }
    }
    for place in &mut places {
        let first = place.first().copied();
        place.sort_unstable();
        place.dedup();
        if let Some(at) = place.iter().position(|p| Some(*p) == first) {
            place.swap(0, at);
        }
    }
    let mut seqs: Vec<u64> =
        chosen().flatten().filter_map(|i| loaded.cpu_graphs.get(*i)).map(|g| g.seq).collect();
    seqs.sort_unstable();
    let (graphs, others) = (graphs as u64, (all.len() - graphs) as u64);
    Ok(Pick { pid, phase, token, places, graphs, others, seqs })
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
pub fn keep(loaded: &mut Loaded<'_>, pick: &Pick) {
    let chosen = |seq: u64| pick.seqs.binary_search(&seq).is_ok();
    loaded.cpu_graphs.retain(|g| chosen(g.seq));
    loaded.runs.retain(|r| chosen(r.graph));
}
