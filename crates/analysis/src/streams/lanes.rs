//! A run as lanes of nested slices in time order: the input of timelines. Only the order of calls and of runs of
//! slices is held in memory; the slices are read in place from the trace.

use std::collections::HashMap;
use std::io;
use std::ops::Range;

use crate::recorded::idents::Idents;
use crate::recorded::load::Loaded;
use crate::sums::ops::Edges;
use common::order;
use pfi::record::{CpuGraph, Slices};
use pfi::slice_iter;

/// Which part of the run to include: what begins in `from..to` (CLOCK_MONOTONIC, ns), of one process or of all.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Select {
    pub pid: Option<u32>,
    pub from: i64,
    pub to: i64,
}

impl Default for Select {
    fn default() -> Self {
        Select { pid: None, from: i64::MIN, to: i64::MAX }
    }
}

impl Select {
    /// Whether something of process `pid` that begins at `t` is included.
    pub fn has(&self, pid: u32, t: i64) -> bool {
        self.pid.is_none_or(|only| only == pid) && self.from <= t && t < self.to
    }
}

/// The thread or pool position that a lane belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaneOwner {
    /// A kernel thread, and its index in the engine's pool if that is always the same.
    Thread { pid: u32, tid: u32, ith: Option<u16> },
    /// An index in the pool of the thread that computes graphs, for an engine that keeps starting new threads.
    Pool { pid: u32, caller: u32, ith: u16 },
}

impl LaneOwner {
    pub fn pid(&self) -> u32 {
        match self {
            LaneOwner::Thread { pid, .. } | LaneOwner::Pool { pid, .. } => *pid,
        }
    }
}

/// Kind of a slice; the number is its index in the list of [`Loaded`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SliceKind {
    Function(usize),
    Token(usize),
    Graph(usize),
    Split(usize),
    CpuGraph(usize),
    /// An op, by its ident (`None` is outside what the trace defines), and its CPU graph.
    Op(Option<usize>, Option<usize>),
    /// An op whose end is not known: a slice of zero length.
    OpenOp(Option<usize>),
    /// The wait at the barrier after an op.
    Wait,
}

/// A step along a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaneStep {
    Begin(SliceKind),
    /// Ends the open slice that was begun last.
    End,
}

/// Receives the steps of a lane with their times.
pub type Steps<'s> = &'s mut dyn FnMut(i64, LaneStep) -> io::Result<()>;

/// Summary of a walk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Walked {
    pub slices: u64,
    /// Slices that were shortened so that all nest, because they reached past the end of their parent or began
    /// before the last one ended.
    pub cut: u64,
}

#[derive(Debug, Clone, Copy)]
enum LaneKind {
    Function,
    Token,
    Graph,
    Split,
    CpuGraph,
    Run,
}

struct LaneItem {
    lane: (u64, u64),
    t: i64,
    dur: u64,
    kind: LaneKind,
    at: usize,
}

pub struct Lane {
    pub place: LaneOwner,
    items: Range<usize>,
}

/// All lanes of a run.
pub struct Lanes<'l, 'a> {
    loaded: &'l Loaded<'a>,
    pub select: Select,
    graphs: HashMap<u64, usize>,
    items: Vec<LaneItem>,
    /// By process and thread.
    pub list: Vec<Lane>,
}

/// A pool index used by more threads than this over time has one lane; with fewer, each thread has its own lane.
const THREADS: usize = 4;

/// First half of a lane's key; the second is 0 for a thread, and the index plus 1 for a pool lane.
fn key(pid: u32, tid: u32) -> u64 {
    u64::from(pid) << 32 | u64::from(tid)
}

impl<'l, 'a> Lanes<'l, 'a> {
    /// Needs the runs in the order of [`crate::sums::ops::sort_runs`].
    pub fn new(loaded: &'l Loaded<'a>, select: Select) -> Self {
        let graphs = loaded.cpu_graphs.iter().enumerate().map(|(i, g)| (g.seq, i)).collect();
        let mut lanes = Lanes { loaded, select, graphs, items: Vec::new(), list: Vec::new() };
        lanes.calls();
        let pools = lanes.runs();
        order::by_key(&mut lanes.items, |i| (order::time(i.t), !i.dur & !7 | i.kind as u64));
        order::by_key(&mut lanes.items, |i| i.lane);
        let mut from = 0;
        for same in lanes.items.chunk_by(|a, b| a.lane == b.lane) {
            let Some(first) = same.first() else { continue };
            let place = lanes.place(first.lane, &pools);
            lanes.list.push(Lane { place, items: from..from + same.len() });
            from += same.len();
        }
        lanes
    }

    fn calls(&mut self) {
        let l = self.loaded;
        l.tokens
            .iter()
            .enumerate()
            .for_each(|(i, r)| self.call(LaneKind::Token, i, (r.pid, r.tid), r.t, r.dur));
        l.graphs
            .iter()
            .enumerate()
            .for_each(|(i, r)| self.call(LaneKind::Graph, i, (r.pid, r.tid), r.t, r.dur));
        l.splits
            .iter()
            .enumerate()
            .for_each(|(i, r)| self.call(LaneKind::Split, i, (r.pid, r.tid), r.t, r.dur));
        for (i, r) in l.cpu_graphs.iter().enumerate() {
            self.call(LaneKind::CpuGraph, i, (r.pid, r.tid), r.t, r.dur);
        }
        for (i, r) in l.causes.phases.iter().enumerate() {
            self.call(LaneKind::Function, i, (r.pid, r.tid), r.t, r.dur);
        }
    }

    fn call(&mut self, kind: LaneKind, at: usize, (pid, tid): (u32, u32), t: i64, dur: u64) {
        if self.select.has(pid, t) {
            self.items.push(LaneItem { lane: (key(pid, tid), 0), t, dur, kind, at });
        }
    }

    /// Adds the runs of slices; returns which threads had which index in which pool, in order.
    fn runs(&mut self) -> Vec<(u64, u64)> {
        let place = |run: &Slices<'_>| {
            let graph = self.graph(run);
            let lost = || (process_of(self.loaded, run).unwrap_or(0), 0);
            let (pid, caller) = graph.map_or_else(lost, |g| (g.pid, g.tid));
            (key(pid, caller), u64::from(run.ith) << 32 | u64::from(run.tid))
        };
        let mut pools: Vec<(u64, u64)> = self.loaded.runs.iter().map(place).collect();
        let places = pools.clone();
        order::by_key(&mut pools, |p| *p);
        pools.dedup();
        for (at, (run, (pool, thread))) in self.loaded.runs.iter().zip(places).enumerate() {
            let pid = (pool >> 32) as u32;
            let over =
                self.graph(run).is_some_and(|g| g.t.saturating_add_unsigned(g.dur) <= self.select.from);
            if over || run.t >= self.select.to || self.select.pid.is_some_and(|only| only != pid) {
                continue;
            }
            let ith = thread >> 32;
            let before = |number| pools.partition_point(|p| *p < (pool, number << 32));
            let lane = match before(ith + 1) - before(ith) {
                0..=THREADS => (key(pid, run.tid), 0),
                _ => (pool, 1 + ith),
            };
            self.items.push(LaneItem { lane, t: run.t, dur: 0, kind: LaneKind::Run, at });
        }
        pools
    }

    fn place(&self, (lane, number): (u64, u64), pools: &[(u64, u64)]) -> LaneOwner {
        let (pid, tid) = ((lane >> 32) as u32, lane as u32);
        if let Some(ith) = number.checked_sub(1) {
            return LaneOwner::Pool { pid, caller: tid, ith: ith as u16 };
        }
        let mut as_which = pools.iter().filter(|p| p.0 >> 32 == u64::from(pid) && p.1 as u32 == tid);
        let first = as_which.next().map(|p| (p.1 >> 32) as u16);
        let always = first.filter(|ith| as_which.all(|p| (p.1 >> 32) as u16 == *ith));
        LaneOwner::Thread { pid, tid, ith: always }
    }

    fn graph(&self, run: &Slices<'_>) -> Option<&'l CpuGraph> {
        self.loaded.cpu_graphs.get(*self.graphs.get(&run.graph)?)
    }

    /// Emits the slices of a lane. Whatever the trace contains, times never decrease and every slice lies within
    /// those that are open when it begins.
    ///
    /// # Errors
    /// The first error that `to` returns.
    pub fn walk(&self, lane: &Lane, idents: &Idents, to: Steps<'_>) -> io::Result<Walked> {
        let mut walk = SliceNesting { open: Vec::new(), last: i64::MIN, done: Walked::default(), to };
        for item in self.items.get(lane.items.clone()).unwrap_or_default() {
            let what = match item.kind {
                LaneKind::Function => SliceKind::Function(item.at),
                LaneKind::Token => SliceKind::Token(item.at),
                LaneKind::Graph => SliceKind::Graph(item.at),
                LaneKind::Split => SliceKind::Split(item.at),
                LaneKind::CpuGraph => SliceKind::CpuGraph(item.at),
                LaneKind::Run => {
                    self.run(item.at, idents, &mut walk)?;
                    continue;
                }
            };
            walk.slice(item.t, item.dur, what)?;
        }
        walk.until(i64::MAX)?;
        Ok(walk.done)
    }

    fn run(&self, at: usize, idents: &Idents, walk: &mut SliceNesting<'_>) -> io::Result<()> {
        let Some(run) = self.loaded.runs.get(at) else { return Ok(()) };
        let next = self.loaded.runs.get(at + 1).filter(|n| (n.graph, n.plan) == (run.graph, run.plan));
        let graph = self.graphs.get(&run.graph).copied();
        let edges = Edges::new(run, next, self.graph(run));
        let idents = idents.of_plan(run.plan);
        for (position, slice) in (run.first as usize..).zip(slice_iter(run)) {
            if !(self.select.from..self.select.to).contains(&slice.start) {
                continue;
            }
            let ident = idents.get(position).copied();
            let (time, wait) = edges.times(&slice);
            let what = if time.is_some() { SliceKind::Op(ident, graph) } else { SliceKind::OpenOp(ident) };
            let time = time.unwrap_or(0);
            walk.slice(slice.start, time, what)?;
            if let Some(wait) = wait.filter(|wait| *wait > 0) {
                walk.slice(slice.start.saturating_add_unsigned(time), wait, SliceKind::Wait)?;
            }
        }
        Ok(())
    }
}

/// The process of a run whose graph was lost: that of its tensors, or the only one there is.
pub fn process_of(loaded: &Loaded<'_>, run: &Slices<'_>) -> Option<u32> {
    let hit = loaded.plans.get(&run.plan).and_then(|p| p.hits.first());
    let tensor = hit.and_then(|(tensor, _)| loaded.tensors.get(tensor));
    let only = || match loaded.processes.as_slice() {
        [one] => Some(one.pid),
        _ => None,
    };
    tensor.map(|t| t.pid).or_else(only)
}

/// Keeps the emitted slices nested and in order.
struct SliceNesting<'s> {
    /// Ends of the open slices, the innermost last: none is later than the one before it.
    open: Vec<i64>,
    last: i64,
    done: Walked,
    to: Steps<'s>,
}

impl SliceNesting<'_> {
    /// Ends the slices that are over at `t`.
    fn until(&mut self, t: i64) -> io::Result<()> {
        while let Some(end) = self.open.pop_if(|end| *end <= t) {
            (self.to)(end, LaneStep::End)?;
            self.last = end;
        }
        Ok(())
    }

    fn slice(&mut self, t: i64, dur: u64, what: SliceKind) -> io::Result<()> {
        self.until(t)?;
        let end = t.saturating_add_unsigned(dur);
        let limit = self.open.last().copied().unwrap_or(i64::MAX);
        let (from, to) = (t.max(self.last), end.max(self.last).min(limit));
        self.done.cut += u64::from((from, to) != (t, end));
        (self.to)(from, LaneStep::Begin(what))?;
        self.last = from;
        self.open.push(to);
        self.done.slices += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn walked(slices: &[(i64, u64)]) -> (Vec<(i64, bool)>, Walked) {
        let mut steps = Vec::new();
        let mut to = |t, step| {
            steps.push((t, step != LaneStep::End));
            Ok(())
        };
        let mut walk =
            SliceNesting { open: Vec::new(), last: i64::MIN, done: Walked::default(), to: &mut to };
        for (t, dur) in slices {
            walk.slice(*t, *dur, SliceKind::Wait).unwrap();
        }
        walk.until(i64::MAX).unwrap();
        let done = walk.done;
        (steps, done)
    }

    #[test]
    fn what_reaches_over_its_parent_is_cut() {
        let (steps, done) = walked(&[(0, 100), (10, 20), (30, 90), (100, 5)]);
        let (b, e) = (true, false);
        assert_eq!(steps, [(0, b), (10, b), (30, e), (30, b), (100, e), (100, e), (100, b), (105, e)]);
        assert_eq!(done, Walked { slices: 4, cut: 1 });
    }

    proptest! {
        /// Whatever a file contains, times never decrease, and every slice that begins also ends.
        #[test]
        fn slices_nest(raw in prop::collection::vec((-50i64..500, 0u64..300), 0..40)) {
            let (steps, done) = walked(&raw);
            let (mut depth, mut last) = (0, i64::MIN);
            for (t, begin) in steps {
                prop_assert!(t >= last);
                last = t;
                depth += if begin { 1 } else { -1 };
                prop_assert!(depth >= 0);
            }
            prop_assert_eq!((depth, done.slices), (0, raw.len() as u64));
        }
    }
}
