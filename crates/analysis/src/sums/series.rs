//! The time of groups of ops in each call of a phase, call by call.
//!
//! A time here is from an op's start on thread 0 to the next op's start. It includes the barrier wait in between,
//! whether the barrier was probed or not: that is how much the op delays the rest of the graph.

use std::collections::HashMap;

use crate::recorded::calls::{Phase, Timeline};
use crate::recorded::idents::Idents;
use crate::recorded::load::Loaded;
use crate::sums::ops::{Edges, sort_runs};
use pfi::record::Slices;
use pfi::slice_iter;

/// Maximum points kept of a long run, and maximum cells of all groups together.
const MOST_POINTS: usize = 4096;
const MOST_CELLS: usize = 4 << 20;

/// Calls of one process in a phase that have all of their ops.
#[derive(Debug, Default)]
pub struct CallSeries {
    pub pid: u32,
    /// Other processes with such calls.
    pub other_processes: usize,
    /// Calls of the process and phase that were cut off, have no ops, or not all of them.
    pub left_out: usize,
    /// Indices into [`Timeline::calls`], in time order.
    pub whole: Vec<usize>,
}

impl CallSeries {
    /// The calls of the given process, else of the one with the most.
    pub fn new(loaded: &Loaded<'_>, line: &Timeline, phase: Phase, pid: Option<u32>) -> CallSeries {
        let phase = line.meant(phase);
        let whole = whole_calls(loaded, line, phase);
        let of = |call: &usize| line.calls.get(*call).map_or(0, |c| c.pid);
        let mut counts: HashMap<u32, (u64, u64)> = HashMap::new();
        for (i, pid) in whole.iter().map(of).enumerate() {
            counts.entry(pid).or_insert((0, !(i as u64))).0 += 1;
        }
        // On a tie the first.
        let most = counts.iter().max_by_key(|(_, n)| **n).map_or(0, |(pid, _)| *pid);
        let pid = pid.unwrap_or(most);
        let whole: Vec<usize> = whole.into_iter().filter(|c| of(c) == pid).collect();
        let all = line.calls.iter().filter(|c| c.pid == pid && c.phase == phase).count();
        let other_processes = counts.keys().filter(|p| **p != pid).count();
        CallSeries { pid, other_processes, left_out: all - whole.len(), whole }
    }
}

/// The grouping of ops.
pub struct Groups<'g> {
    pub idents: &'g Idents,
    /// Group of each ident.
    pub of: &'g [usize],
    pub count: usize,
}

/// Times by group and point. A point is a call, or the mean of several consecutive calls.
#[derive(Debug, Default)]
pub struct Series {
    /// Index into [`Timeline::calls`] of each point's first call.
    pub calls: Vec<usize>,
    /// Duration of a call, ns.
    pub durations: Vec<f64>,
    /// Calls in a point.
    pub merged: usize,
    cells: Vec<f32>,
    /// How often each group ran.
    counts: Vec<u64>,
}

impl Series {
    /// Times of all ops in these calls.
    pub fn new(loaded: &mut Loaded<'_>, line: &Timeline, calls: &[usize], groups: &Groups<'_>) -> Series {
        sort_runs(loaded);
        let most = (MOST_CELLS / groups.count.max(1)).clamp(crate::sums::time_series::LEAST, MOST_POINTS);
        let mut out = Series { merged: calls.len().div_ceil(most).max(1), ..Series::default() };
        let mut point_of = vec![usize::MAX; line.calls.len()];
        for (point, calls) in calls.chunks_exact(out.merged).enumerate() {
            out.calls.extend(calls.first());
            let mut sum = 0.0;
            for call in calls {
                if let (Some(slot), Some(call)) = (point_of.get_mut(*call), line.calls.get(*call)) {
                    *slot = point;
                    sum += call.dur as f64;
                }
            }
            out.durations.push(sum / out.merged as f64);
        }
        out.cells = vec![0.0; out.calls.len() * groups.count];
        out.counts = vec![0; groups.count];
        out.fill(loaded, line, groups, &point_of);
        out
    }

    fn fill(&mut self, loaded: &Loaded<'_>, line: &Timeline, groups: &Groups<'_>, point_of: &[usize]) {
        let index: HashMap<u64, usize> =
            loaded.cpu_graphs.iter().enumerate().map(|(i, g)| (g.seq, i)).collect();
        let points = self.calls.len();
        let part = 1.0 / self.merged as f32;
        for (i, run) in loaded.runs.iter().enumerate().filter(|(_, run)| run.ith == 0) {
            let Some(&graph) = index.get(&run.graph) else { continue };
            let call = line.cpu_call.get(graph).copied().flatten();
            let Some(&point) = call.and_then(|c| point_of.get(c)).filter(|p| **p < points) else { continue };
            let next = loaded.runs.get(i + 1).filter(|n| (n.graph, n.plan) == (run.graph, run.plan));
            let edges = Edges::new(run, next, loaded.cpu_graphs.get(graph));
            let idents = groups.idents.of_plan(run.plan).iter().skip(run.first as usize);
            for (slice, ident) in slice_iter(run).zip(idents) {
                let (time, wait) = edges.times(&slice);
                let group = groups.of.get(*ident).copied().unwrap_or(usize::MAX);
                let cell = group.checked_mul(points).and_then(|at| self.cells.get_mut(at + point));
                if let (Some(cell), Some(time), Some(count)) = (cell, time, self.counts.get_mut(group)) {
                    *count += 1;
                    *cell += time.saturating_add(wait.unwrap_or(0)) as f32 * part;
                }
            }
        }
    }

    /// How often a group ran in a call in which it ran at all.
    pub fn times_a_call(&self, group: usize) -> f64 {
        let ran = self.group(group).iter().filter(|t| **t > 0.0).count() * self.merged;
        self.counts.get(group).map_or(0.0, |n| *n as f64 / ran.max(1) as f64)
    }

    /// Times of a group, ns, point by point; 0 where it did not run.
    pub fn group(&self, group: usize) -> &[f32] {
        let points = self.calls.len();
        self.cells.get(group.saturating_mul(points)..).and_then(|c| c.get(..points)).unwrap_or(&[])
    }
}

/// Why a run has no complete call of a phase.
pub fn why_nothing(loaded: &Loaded<'_>, line: &Timeline, phase: Phase) -> &'static str {
    if line.calls.is_empty() {
        "it has no calls"
    } else if !line.calls.iter().any(|c| c.phase == line.meant(phase)) {
        "it only has calls of another phase (--phase)"
    } else if loaded.runs.is_empty() {
        "no ops were recorded (record --level op)"
    } else {
        "every call has ops that were lost or not recorded"
    }
}

/// Calls of a phase that have all of their ops, as indices in time order.
fn whole_calls(loaded: &Loaded<'_>, line: &Timeline, phase: Phase) -> Vec<usize> {
    let mut ops = vec![Some(false); line.calls.len()];
    for (graph, call) in loaded.cpu_graphs.iter().zip(&line.cpu_call) {
        let Some(ops) = call.and_then(|c| ops.get_mut(c)) else { continue };
        let missing = graph.plan.is_none() || graph.expected.is_some_and(|n| n != graph.seen);
        *ops = if missing || graph.cut { None } else { ops.map(|_| true) };
    }
    let calls = line.calls.iter().zip(ops).enumerate();
    let whole = calls.filter(|(_, (c, ops))| c.phase == phase && !c.cut && *ops == Some(true));
    whole.map(|(i, _)| i).collect()
}

/// By group and thread: time without the barrier wait, ns per call. `None` if the barrier was not probed in these
/// calls, or one thread ran alone.
pub fn by_thread(
    loaded: &Loaded<'_>,
    line: &Timeline,
    calls: &[usize],
    idents: &Idents,
    group_of: &[usize],
) -> Option<Vec<Vec<f64>>> {
    let index: HashMap<u64, usize> = loaded.cpu_graphs.iter().enumerate().map(|(i, g)| (g.seq, i)).collect();
    let wanted = |run: &&Slices<'_>| {
        let call = index.get(&run.graph).and_then(|g| line.cpu_call.get(*g)).copied().flatten();
        run.barrier && call.is_some_and(|c| calls.binary_search(&c).is_ok())
    };
    let threads = usize::from(loaded.runs.iter().filter(wanted).map(|run| run.ith).max()?) + 1;
    let groups = group_of.iter().max()? + 1;
    if threads < 2 || threads.saturating_mul(groups) > MOST_CELLS {
        return None;
    }
    let mut out = vec![vec![0.0; threads]; groups];
    for run in loaded.runs.iter().filter(wanted) {
        let positions = idents.of_plan(run.plan).iter().skip(run.first as usize);
        for (slice, ident) in slice_iter(run).zip(positions) {
            let sums = group_of.get(*ident).and_then(|g| out.get_mut(*g));
            if let (Some(sum), Some(busy)) = (sums.and_then(|s| s.get_mut(usize::from(run.ith))), slice.busy)
            {
                *sum += busy as f64 / calls.len() as f64;
            }
        }
    }
    Some(out)
}
