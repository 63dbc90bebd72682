//! The hot pass: sums every slice of a trace by plan position, thread and graph.
//!
//! Definitions of the times:
//! - *op time*: the slice of thread 0. In barrier mode from its start to its entry of the barrier after it
//!   (busy); in interval mode to the next op's start (wall, which includes the barrier wait).
//! - *wait*: barrier mode only; from the barrier's entry to the next op's start.
//! - *gaps*: the rest of a graph's duration: before the first op, after the last one, and around lost slices.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;

use crate::recorded::calls::{Phase, Timeline};
use crate::recorded::load::{LoadProgress, Loaded, workers};
use crate::sums::op_cpus::{CpuChanges, RunCpus, ThreadCpus};
use common::{aside, order};
use pfi::record::{CpuGraph, Slices};
use pfi::{SliceTime, slice_iter};

/// Sums of one position of a plan.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct PosStat {
    /// Slices of thread 0, and how many of them have a known end.
    pub calls: u64,
    pub timed: u64,
    /// Op time, ns.
    pub total: u64,
    pub min: u64,
    pub max: u64,
    /// Barrier wait of thread 0, ns.
    pub wait: u64,
    /// Sum of the times of all threads' slices, ns.
    pub all_threads: u64,
    /// Slowest thread's busy time and mean over the threads, each summed over the graphs; barrier mode only.
    pub slowest: u64,
    pub mean: f64,
    /// The time in which any thread computed it, summed over the graphs; thread 0's time in interval mode. The time used for
    /// model bytes per second: threads that take turns on a CPU need it one after the other.
    pub span: u64,
}

impl PosStat {
    fn call(&mut self, time: Option<u64>, wait: Option<u64>) {
        self.calls += 1;
        if let Some(time) = time {
            self.min = if self.timed == 0 { time } else { self.min.min(time) };
            self.max = self.max.max(time);
            self.timed += 1;
            self.total = self.total.saturating_add(time);
        }
        self.wait = self.wait.saturating_add(wait.unwrap_or(0));
    }

    pub fn merge(&mut self, o: &PosStat) {
        if o.timed > 0 {
            self.min = if self.timed == 0 { o.min } else { self.min.min(o.min) };
            self.max = self.max.max(o.max);
        }
        self.calls += o.calls;
        self.timed += o.timed;
        self.total = self.total.saturating_add(o.total);
        self.wait = self.wait.saturating_add(o.wait);
        self.all_threads = self.all_threads.saturating_add(o.all_threads);
        self.slowest = self.slowest.saturating_add(o.slowest);
        self.mean += o.mean;
        self.span = self.span.saturating_add(o.span);
    }
}

/// Sums of a plan: its positions, and everything outside what the trace defines.
#[derive(Debug, Default, Clone)]
pub struct PlanStat {
    pub positions: Vec<PosStat>,
    pub beyond: PosStat,
}

/// Sums of one thread index.
#[derive(Debug, Default, Clone)]
pub struct ThreadStat {
    pub slices: u64,
    pub busy: u64,
    pub wait: u64,
    pub tids: HashSet<u32>,
    pub cpus: ThreadCpus,
}

/// Sums of one CPU graph, thread 0.
#[derive(Debug, Default, Clone, Copy)]
pub struct GraphSum {
    pub ops: u64,
    pub wait: u64,
    pub slices: u64,
    /// Longest op of any thread, ns.
    pub longest: u64,
}

/// Sums of a phase's CPU graphs.
#[derive(Debug, Default, Clone, Copy)]
pub struct PhaseSum {
    pub graphs: u64,
    /// Graphs with op slices, by mode.
    pub barrier: u64,
    pub interval: u64,
    /// Durations of the graphs, ns; if a graph's own record is missing, the span of thread 0's slices.
    pub graph_ns: u64,
    pub op_ns: u64,
    pub wait_ns: u64,
    /// Graphs with slices but without their own record.
    pub unrecorded: u64,
    /// Graphs with fewer than all ops recorded, in a run whose level changes; excluded from all other figures.
    pub below: u64,
}

/// The result of the pass.
#[derive(Default)]
pub struct OpTimes {
    pub plans: HashMap<(u32, Phase), PlanStat>,
    pub threads: HashMap<(u16, Phase), ThreadStat>,
    pub phases: HashMap<Phase, PhaseSum>,
    /// Parallel to [`Loaded::cpu_graphs`].
    pub graphs: Vec<GraphSum>,
    pub slices: u64,
}

/// Runs of one graph and plan, sorted by thread and position.
struct GraphRuns<'r, 'a> {
    runs: &'r [Slices<'a>],
    graph: Option<usize>,
    phase: Phase,
    cpus: &'r CpuChanges,
}

/// The end of the last slice of a run.
pub struct Edges {
    joined: Option<i64>,
    graph_end: Option<i64>,
}

impl Edges {
    /// `next` is the run after `run` in order of graph, plan, thread and position; `graph` is the graph of both.
    pub fn new(run: &Slices<'_>, next: Option<&Slices<'_>>, graph: Option<&CpuGraph>) -> Edges {
        let after = next.filter(|n| n.ith == run.ith);
        // If two runs do not join, slices were lost in between; the time between them belongs to no op.
        let joined = after.filter(|n| run.first.checked_add(run.n) == Some(n.first)).map(|n| n.t);
        let graph_end = match after {
            // An op still running when the recording ended has no end.
            None => graph.filter(|g| !g.cut).map(|g| g.t.saturating_add_unsigned(g.dur)),
            Some(_) => None,
        };
        Edges { joined, graph_end }
    }

    /// For a slice followed at `joined` by the next one of its thread, or ended by its graph.
    pub fn known(joined: Option<i64>, graph_end: Option<i64>) -> Edges {
        Edges { joined, graph_end }
    }

    /// Op time and barrier wait of a slice of the run, if known.
    #[inline]
    pub fn times(&self, slice: &SliceTime) -> (Option<u64>, Option<u64>) {
        let next_start = slice.next.or(self.joined);
        let since = |end: i64, from: i64| end.saturating_sub(from).max(0) as u64;
        match slice.busy {
            Some(busy) => {
                let end = slice.start.saturating_add_unsigned(busy);
                (Some(busy), next_start.map(|next| since(next, end)))
            }
            None => (next_start.or(self.graph_end).map(|end| since(end, slice.start)), None),
        }
    }
}

/// Sorts the runs of slices by graph, plan, thread and position, as [`Edges`] requires.
pub fn sort_runs(loaded: &mut Loaded<'_>) {
    let key = |r: &Slices<'_>| (r.graph, r.plan, r.ith, r.first);
    if !loaded.runs.is_sorted_by_key(key) {
        order::by_key(&mut loaded.runs, |r| (u64::from(r.plan) << 16 | u64::from(r.ith), r.first.into()));
        order::by_key(&mut loaded.runs, |r| (r.graph, 0));
    }
}

/// Sums all slices. Sorts `loaded.runs` by graph first.
pub fn op_times(loaded: &mut Loaded<'_>, line: &Timeline, progress: &LoadProgress) -> OpTimes {
    sort_runs(loaded);
    let index: HashMap<u64, usize> = loaded.cpu_graphs.iter().enumerate().map(|(i, g)| (g.seq, i)).collect();
    let cpus = CpuChanges::new(&loaded.causes.cpus);
    let units: Vec<GraphRuns<'_, '_>> = loaded
        .runs
        .chunk_by(|a, b| (a.graph, a.plan) == (b.graph, b.plan))
        .map(|runs| {
            let graph = runs.first().and_then(|r| index.get(&r.graph)).copied();
            let phase = graph.and_then(|g| line.cpu_phase.get(g)).copied().unwrap_or(Phase::Unknown);
            GraphRuns { runs, graph, phase, cpus: &cpus }
        })
        .collect();
    let bytes = loaded.runs.iter().map(|r| r.data.len() as u64).sum();
    let per = units.len().div_ceil(workers(bytes)).max(1);
    let mut out =
        OpTimes { graphs: vec![GraphSum::default(); loaded.cpu_graphs.len()], ..OpTimes::default() };
    if per >= units.len() {
        sum(loaded, &units, progress).into(&mut out);
    } else {
        let loaded = &*loaded;
        for part in aside::each(units.chunks(per), |chunk| sum(loaded, chunk, progress)) {
            part.into(&mut out);
        }
    }
    whole_graphs(loaded, line, &mut out);
    out
}

/// Whether only a part of a graph's ops was recorded because of the level, or because it was just changing:
/// probes attached or detached in the middle of a graph leave ops without a recorded end.
pub fn in_part(loaded: &Loaded<'_>, graph: &CpuGraph) -> bool {
    !loaded.causes.levels.is_empty() && (graph.plan.is_none() || graph.cut)
}

/// Takes durations and modes from the graphs' own records, including graphs without slices.
fn whole_graphs(loaded: &Loaded<'_>, line: &Timeline, out: &mut OpTimes) {
    let graphs = loaded.cpu_graphs.iter().zip(&out.graphs).zip(&line.cpu_phase);
    for ((g, slices), phase) in graphs {
        let sum = out.phases.entry(*phase).or_default();
        if in_part(loaded, g) {
            sum.below += 1;
            continue;
        }
        sum.graphs += 1;
        sum.graph_ns = sum.graph_ns.saturating_add(g.dur);
        sum.barrier += u64::from(g.barrier && slices.slices > 0);
        sum.interval += u64::from(!g.barrier && slices.slices > 0);
    }
}

fn sum(loaded: &Loaded<'_>, units: &[GraphRuns<'_, '_>], progress: &LoadProgress) -> Worker {
    let mut worker = Worker::default();
    for unit in units {
        let graph = unit.graph.and_then(|g| loaded.cpu_graphs.get(g));
        if !graph.is_some_and(|g| in_part(loaded, g)) {
            worker.unit(loaded, unit);
        }
        let bytes = unit.runs.iter().map(|r| r.data.len() as u64).sum();
        progress.done.fetch_add(bytes, Ordering::Relaxed);
    }
    worker
}

/// Per position of the current graph: slowest thread, sum over threads, and number of threads.
#[derive(Default, Clone)]
struct PositionTimes {
    max: u64,
    sum: u64,
    n: u64,
    thread0: u64,
    /// When each thread computed it: start and end, in order of the starts.
    busy: Vec<(i64, i64)>,
}

impl PositionTimes {
    fn slice(&mut self, start: i64, spent: u64, ith: u16) {
        self.max = self.max.max(spent);
        self.sum = self.sum.saturating_add(spent);
        self.n += 1;
        if ith == 0 {
            self.thread0 = self.thread0.saturating_add(spent);
        }
        // Of few threads.
        let at = self.busy.partition_point(|&(other, _)| other <= start);
        self.busy.insert(at, (start, start.saturating_add_unsigned(spent)));
    }

    /// Forgets everything but the room for it.
    fn clear(&mut self) {
        let mut busy = std::mem::take(&mut self.busy);
        busy.clear();
        *self = PositionTimes { busy, ..PositionTimes::default() };
    }

    /// The time in which any thread computed it.
    fn any(&self) -> u64 {
        let mut until = i64::MIN;
        let mut any = 0u64;
        for &(start, end) in &self.busy {
            any = any.saturating_add(end.saturating_sub(start.max(until)).max(0) as u64);
            until = until.max(end);
        }
        any
    }
}

/// One thread's share of the pass. No allocation in steady state: maps and scratch space grow to the number of
/// plans, threads and positions, then stay.
#[derive(Default)]
struct Worker {
    sums: OpTimes,
    /// (graph index, its sums) in order of the units.
    graphs: Vec<(usize, GraphSum)>,
    across: Vec<PositionTimes>,
    /// Positions of `across` that the current graph has slices for: the cost depends on the graph's ops, not its
    /// plan's.
    touched: Vec<usize>,
}

/// The sums one unit adds to its graph, and the span of thread 0's slices.
#[derive(Default)]
struct UnitSum {
    graph: GraphSum,
    from: Option<i64>,
    to: i64,
}

impl Worker {
    fn into(self, out: &mut OpTimes) {
        out.slices += self.sums.slices;
        for (index, g) in self.graphs {
            if let Some(to) = out.graphs.get_mut(index) {
                to.ops = to.ops.saturating_add(g.ops);
                to.wait = to.wait.saturating_add(g.wait);
                to.slices += g.slices;
                to.longest = to.longest.max(g.longest);
            }
        }
        for (key, from) in self.sums.plans {
            let to = out.plans.entry(key).or_default();
            if to.positions.len() < from.positions.len() {
                to.positions.resize(from.positions.len(), PosStat::default());
            }
            for (to, from) in to.positions.iter_mut().zip(&from.positions) {
                to.merge(from);
            }
            to.beyond.merge(&from.beyond);
        }
        for (key, from) in self.sums.threads {
            let to = out.threads.entry(key).or_default();
            to.slices += from.slices;
            to.busy = to.busy.saturating_add(from.busy);
            to.wait = to.wait.saturating_add(from.wait);
            to.tids.extend(from.tids);
            to.cpus.merge(from.cpus);
        }
        for (phase, from) in self.sums.phases {
            let to = out.phases.entry(phase).or_default();
            to.graphs += from.graphs;
            to.barrier += from.barrier;
            to.interval += from.interval;
            to.unrecorded += from.unrecorded;
            to.graph_ns = to.graph_ns.saturating_add(from.graph_ns);
            to.op_ns = to.op_ns.saturating_add(from.op_ns);
            to.wait_ns = to.wait_ns.saturating_add(from.wait_ns);
        }
    }

    fn unit(&mut self, loaded: &Loaded<'_>, unit: &GraphRuns<'_, '_>) {
        let Some(first) = unit.runs.first() else { return };
        let graph = unit.graph.and_then(|g| loaded.cpu_graphs.get(g));
        let len = loaded.plans.get(&first.plan).map_or(0, |p| p.hits.len());
        let mut plan = self.sums.plans.remove(&(first.plan, unit.phase)).unwrap_or_default();
        plan.positions.resize(len, PosStat::default());
        if self.across.len() < len {
            self.across.resize(len, PositionTimes::default());
        }

        let mut total = UnitSum::default();
        for (i, run) in unit.runs.iter().enumerate() {
            self.run(run, unit.runs.get(i + 1), graph, unit, &mut plan, &mut total);
        }
        for position in self.touched.drain(..) {
            let Some(a) = self.across.get_mut(position) else { continue };
            let Some(stat) = plan.positions.get_mut(position) else { continue };
            stat.all_threads = stat.all_threads.saturating_add(a.sum);
            if first.barrier {
                stat.slowest = stat.slowest.saturating_add(a.max);
                stat.mean += a.sum as f64 / a.n as f64;
                stat.span = stat.span.saturating_add(a.any());
            } else {
                stat.span = stat.span.saturating_add(a.thread0);
            }
            a.clear();
        }
        self.sums.plans.insert((first.plan, unit.phase), plan);
        self.close(unit, first.barrier, &total);
    }

    fn close(&mut self, unit: &GraphRuns<'_, '_>, barrier: bool, total: &UnitSum) {
        self.sums.slices += total.graph.slices;
        let phase = self.sums.phases.entry(unit.phase).or_default();
        phase.op_ns = phase.op_ns.saturating_add(total.graph.ops);
        phase.wait_ns = phase.wait_ns.saturating_add(total.graph.wait);
        match unit.graph {
            Some(index) => self.graphs.push((index, total.graph)),
            None => {
                phase.graphs += 1;
                phase.unrecorded += 1;
                phase.barrier += u64::from(barrier);
                phase.interval += u64::from(!barrier);
                phase.graph_ns =
                    phase.graph_ns.saturating_add(total.from.map_or(0, |from| from.abs_diff(total.to)));
            }
        }
    }

    /// Sums one run of slices. `next` is the run after it in the unit; it is of the same thread if the index
    /// matches.
    fn run(
        &mut self,
        run: &Slices<'_>,
        next: Option<&Slices<'_>>,
        graph: Option<&CpuGraph>,
        unit: &GraphRuns<'_, '_>,
        plan: &mut PlanStat,
        total: &mut UnitSum,
    ) {
        let edges = Edges::new(run, next, graph);
        let (mut busy, mut waits, mut n) = (0u64, 0u64, 0u64);
        let mut position = run.first as usize;
        let mut cpus = RunCpus::new(unit.cpus.cursor(run.tid, run.t));
        for slice in slice_iter(run) {
            let (time, wait) = edges.times(&slice);
            let spent = time.unwrap_or(0);
            total.graph.longest = total.graph.longest.max(spent);
            busy = busy.saturating_add(spent);
            waits = waits.saturating_add(wait.unwrap_or(0));
            n += 1;
            cpus.slice(slice.start, spent);
            if let (Some(a), true) = (self.across.get_mut(position), position < plan.positions.len()) {
                if a.n == 0 {
                    self.touched.push(position);
                }
                a.slice(slice.start, spent, run.ith);
            } else {
                plan.beyond.all_threads = plan.beyond.all_threads.saturating_add(spent);
            }
            if run.ith == 0 {
                plan.positions.get_mut(position).unwrap_or(&mut plan.beyond).call(time, wait);
                total.from = Some(total.from.map_or(slice.start, |f| f.min(slice.start)));
                total.to = total.to.max(slice.start.saturating_add_unsigned(spent));
            }
            position = position.saturating_add(1);
        }
        if run.ith == 0 {
            total.graph.ops = total.graph.ops.saturating_add(busy);
            total.graph.wait = total.graph.wait.saturating_add(waits);
        }
        total.graph.slices += n;
        let thread = self.sums.threads.entry((run.ith, unit.phase)).or_default();
        thread.slices += n;
        thread.busy = thread.busy.saturating_add(busy);
        thread.wait = thread.wait.saturating_add(waits);
        thread.tids.insert(run.tid);
        thread.cpus.merge(cpus.finish());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_op_takes_as_long_as_any_thread_computes_it() {
        let any = |slices: &[(i64, u64)]| {
            let mut times = PositionTimes::default();
            slices.iter().for_each(|&(start, spent)| times.slice(start, spent, 0));
            let any = times.any();
            times.clear();
            assert_eq!((times.n, times.any()), (0, 0));
            any
        };
        // At the same time, in turns, one within another, and with a gap that the third does not fill.
        assert_eq!(any(&[(0, 10), (1, 10)]), 11);
        assert_eq!(any(&[(20, 10), (0, 10)]), 20);
        assert_eq!(any(&[(0, 30), (5, 10), (20, 5)]), 30);
        assert_eq!(any(&[(40, 5), (0, 10), (8, 10)]), 23);
        // Times of a damaged file are no panic.
        assert!(any(&[(i64::MAX, u64::MAX), (i64::MIN, u64::MAX)]) > 0);
    }
}
