//! The second pass over the slices, made only if a trace has attribution records: it combines each slice with its
//! thread's states and counter values.

use std::collections::HashMap;

use serde::Serialize;

use super::counters::{CounterSums, SlotValues, ThreadValues, TraceCounters};
use super::interference::Culprits;
use super::parts::{Off, TimeParts};
use super::replay::{ComputingSample, ComputingSamples};
use super::sched::{OffCpuCursor, OffCpuSpan, OffCpuTimes};
use crate::recorded::calls::{Phase, Timeline};
use crate::recorded::idents::Idents;
use crate::recorded::load::Loaded;
use crate::sums::ops::{Edges, in_part};
use common::order;
use pfi::record::{OpCounts, Slices};
use pfi::slice_iter;

/// The counter of page faults that had to wait for storage.
pub const MAJOR_FAULTS: &str = "major-faults";
/// The op that multiplies with the chosen experts.
pub const EXPERTS: &str = "MUL_MAT_ID";

/// Sums over a set of slices.
#[derive(Debug, Clone, Default)]
pub struct Cause {
    pub parts: TimeParts,
    pub counts: CounterSums,
}

impl Cause {
    pub fn merge(&mut self, o: &Cause) {
        self.parts.merge(&o.parts);
        self.counts.merge(&o.counts);
    }
}

/// Sums of a plan: its positions, and everything outside what the trace defines.
#[derive(Debug, Default)]
pub struct PlanCauses {
    pub positions: Vec<Cause>,
    pub beyond: Cause,
    /// Graphs in which every thread's time on a CPU is known, by position.
    pub computing: ComputingSamples,
}

/// Calls of the experts' multiplications in which every thread's major page faults are known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Misses {
    /// Calls with and without such faults, and their time: the slowest thread's (interval mode: thread 0's), ns.
    pub with_faults: u64,
    pub with_faults_ns: u64,
    pub without: u64,
    pub without_ns: u64,
    pub major_faults: u64,
}

impl Misses {
    pub fn merge(&mut self, o: &Misses) {
        self.with_faults += o.with_faults;
        self.with_faults_ns = self.with_faults_ns.saturating_add(o.with_faults_ns);
        self.without += o.without;
        self.without_ns = self.without_ns.saturating_add(o.without_ns);
        self.major_faults = self.major_faults.saturating_add(o.major_faults);
    }

    fn call(&mut self, faults: u64, ns: u64) {
        let (calls, time) = match faults {
            0 => (&mut self.without, &mut self.without_ns),
            _ => (&mut self.with_faults, &mut self.with_faults_ns),
        };
        *calls += 1;
        *time = time.saturating_add(ns);
        self.major_faults = self.major_faults.saturating_add(faults);
    }
}

/// The result of the pass.
#[derive(Default)]
pub struct PassResult {
    pub plans: HashMap<(u32, Phase), PlanCauses>,
    pub threads: HashMap<(u16, Phase), Cause>,
    /// Time of slices in which a culprit kept a thread from running, by culprit and ident.
    pub hit: HashMap<(usize, usize), u64>,
    /// By ident; decode only.
    pub misses: HashMap<usize, Misses>,
}

/// Inputs of the pass.
pub struct PassInput<'l, 'a> {
    pub loaded: &'l Loaded<'a>,
    pub idents: &'l Idents,
    pub sched: &'l OffCpuTimes,
    pub counters: &'l TraceCounters,
    pub culprits: &'l Culprits,
}

/// All threads at one position of a graph, for byte counters.
#[derive(Default, Clone)]
struct PositionCounts {
    slices: u64,
    slowest: u64,
    thread0: u64,
    /// `None` if it is not known of one thread.
    computing: Option<ComputingSample>,
    /// Per slot: count, and the number of slices that have one.
    counts: Vec<(u64, u64)>,
}

/// The current graph.
#[derive(Default)]
struct CurrentGraph {
    /// By position. `touched` lists exactly the positions the current graph has.
    across: Vec<PositionCounts>,
    touched: Vec<usize>,
}

/// Where the slices of a run are added.
struct To<'o> {
    plan: &'o mut PlanCauses,
    thread: &'o mut Cause,
    calls: &'o mut CurrentGraph,
    hit: &'o mut HashMap<(usize, usize), u64>,
}

/// Sorts the counts as [`PassInput::run`] requires.
pub fn sort_counts(counts: &mut [OpCounts<'_>]) {
    order::by_key(counts, |r| (u64::from(r.plan) << 16 | u64::from(r.ith), r.first.into()));
    order::by_key(counts, |r| (r.graph, 0));
}

/// The counts of a run's graph, plan and thread, of all counts in the order of [`sort_counts`].
pub fn counts_of<'c, 'a>(all: &'c [OpCounts<'a>], run: &Slices<'_>) -> &'c [OpCounts<'a>] {
    let key = |r: &OpCounts<'_>| (r.graph, r.plan, r.ith);
    let wanted = (run.graph, run.plan, run.ith);
    let rest = all.get(all.partition_point(|r| key(r) < wanted)..).unwrap_or_default();
    rest.get(..rest.partition_point(|r| key(r) <= wanted)).unwrap_or_default()
}

impl PassInput<'_, '_> {
    /// Sums all slices. The runs must be in the order in which `op_times` leaves them, the counts in that of
    /// [`sort_counts`].
    pub fn run(&self, line: &Timeline) -> PassResult {
        let graphs = self.loaded.cpu_graphs.iter().enumerate().map(|(i, g)| (g.seq, i));
        let index: HashMap<u64, usize> = graphs.collect();
        let mut out = PassResult::default();
        let (mut calls, mut told) = (CurrentGraph::default(), ThreadValues::default());
        for unit in self.loaded.runs.chunk_by(|a, b| (a.graph, a.plan) == (b.graph, b.plan)) {
            let Some(first) = unit.first() else { continue };
            let graph = index.get(&first.graph).copied();
            // Its ops are not in the other figures either.
            if graph.and_then(|g| self.loaded.cpu_graphs.get(g)).is_some_and(|g| in_part(self.loaded, g)) {
                continue;
            }
            let phase = graph.and_then(|g| line.cpu_phase.get(g)).copied().unwrap_or(Phase::Unknown);
            let len = self.loaded.plans.get(&first.plan).map_or(0, |p| p.hits.len());
            let mut plan = out.plans.remove(&(first.plan, phase)).unwrap_or_default();
            plan.positions.resize_with(len, Cause::default);
            let graph = graph.and_then(|g| self.loaded.cpu_graphs.get(g));
            let end = graph.map_or(i64::MAX, |g| g.t.saturating_add_unsigned(g.dur));
            for (i, run) in unit.iter().enumerate() {
                if i == 0 || unit.get(i - 1).is_some_and(|before| before.ith != run.ith) {
                    told.of(counts_of(&self.loaded.causes.counts, run));
                }
                let edges = Edges::new(run, unit.get(i + 1), graph);
                let thread = out.threads.entry((run.ith, phase)).or_default();
                let to = To { plan: &mut plan, thread, calls: &mut calls, hit: &mut out.hit };
                self.slices(run, &edges, end, &mut told, to);
            }
            if let Some(graph) = graph.filter(|g| !g.cut) {
                let of = |at: &usize| Some((*at, calls.across.get(*at)?));
                let all = calls.touched.iter().filter_map(of);
                let whole = all.filter(|(_, a)| a.slices == u64::from(graph.n_threads));
                plan.computing.graph(whole.filter_map(|(at, a)| Some((at, a.computing?))));
            }
            if phase == Phase::Decode {
                self.misses(&calls, first, &mut out.misses);
            }
            calls.close(self.counters, first.barrier, &mut plan.positions);
            out.plans.insert((first.plan, phase), plan);
        }
        out
    }

    /// Adds the experts' multiplications of the current graph.
    fn misses(&self, calls: &CurrentGraph, run: &Slices<'_>, out: &mut HashMap<usize, Misses>) {
        let Some(slot) = self.counters.slot(MAJOR_FAULTS) else { return };
        let idents = self.idents.of_plan(run.plan);
        for at in &calls.touched {
            let (Some(a), Some(ident)) = (calls.across.get(*at), idents.get(*at)) else { continue };
            if let Some((faults, known)) = a.counts.get(slot)
                && *known == a.slices
                && self.idents.op(*ident) == EXPERTS
            {
                out.entry(*ident).or_default().call(*faults, a.ns(run.barrier));
            }
        }
    }

    /// Adds a run's slices; they end by `end`.
    fn slices(&self, run: &Slices<'_>, edges: &Edges, end: i64, told: &mut ThreadValues<'_, '_>, to: To<'_>) {
        let list = self.sched.thread(run.tid, run.t, end);
        let mut cursor = list.map(|list: &[OffCpuSpan]| OffCpuCursor::new(list, run.t));
        let To { plan, thread, calls, hit } = to;
        let idents = self.idents.of_plan(run.plan);
        for (at, slice) in (run.first..).zip(slice_iter(run)) {
            let (time, wait) = edges.times(&slice);
            let (time, wait) = (time.unwrap_or(0), wait.unwrap_or(0));
            let mut parts = TimeParts::default();
            let mut preempted = false;
            match &mut cursor {
                None => parts.unknown_ns = time.saturating_add(wait),
                Some(cursor) => {
                    let end = slice.start.saturating_add_unsigned(time);
                    parts.computing_ns = cursor.lay(slice.start, end, |p| {
                        *parts.off(p.kind) += p.ns;
                        if p.kind == Off::Preempted
                            && let Some(ident) = idents.get(at as usize)
                        {
                            let culprit = self.culprits.of_record(p.record);
                            let hit = hit.entry((culprit, *ident)).or_default();
                            *hit = hit.saturating_add(p.ns);
                        }
                    });
                    preempted = parts.preempted_ns > 0 && parts.idle_ns == 0;
                    parts.barrier_ns = cursor.lay(end, end.saturating_add_unsigned(wait), |p| {
                        *parts.off(p.kind.at_barrier()) += p.ns;
                        parts.off_cpu_in_barrier_ns += p.ns;
                    });
                }
            }
            let values = told.at(self.counters, at);
            let known = plan.positions.get_mut(at as usize);
            if known.is_some() {
                let computing = cursor.is_some().then(|| ComputingSample::of(parts.computing_ns, preempted));
                calls.add(at as usize, run.ith, (time, computing), values);
            }
            for cause in [known.unwrap_or(&mut plan.beyond), &mut *thread] {
                cause.parts.merge(&parts);
                cause.counts.slice(self.counters, values);
            }
        }
    }
}

impl PositionCounts {
    /// The duration used for the call.
    fn ns(&self, barrier: bool) -> u64 {
        if barrier { self.slowest } else { self.thread0 }
    }
}

impl CurrentGraph {
    /// Adds a slice: its time and the part of it on a CPU, ns.
    fn add(
        &mut self,
        at: usize,
        ith: u16,
        (ns, computing): (u64, Option<ComputingSample>),
        values: Option<&SlotValues>,
    ) {
        if self.across.len() <= at {
            self.across.resize_with(at + 1, PositionCounts::default);
        }
        let Some(a) = self.across.get_mut(at) else { return };
        if a.slices == 0 {
            self.touched.push(at);
            a.computing = computing;
        } else {
            a.computing = a.computing.zip(computing).map(|(all, one)| all.and(one));
        }
        a.slices += 1;
        a.slowest = a.slowest.max(ns);
        if ith == 0 {
            a.thread0 = a.thread0.saturating_add(ns);
        }
        let Some(values) = values else { return };
        a.counts.resize(values.len(), (0, 0));
        for (to, value) in a.counts.iter_mut().zip(values) {
            if let Some(value) = value {
                *to = (to.0.saturating_add(*value), to.1 + 1);
            }
        }
    }

    /// Adds the byte counts to the sums of their positions, and resets itself.
    fn close(&mut self, counters: &TraceCounters, barrier: bool, positions: &mut [Cause]) {
        for at in self.touched.drain(..) {
            let (Some(a), Some(cause)) = (self.across.get_mut(at), positions.get_mut(at)) else { continue };
            let ns = a.ns(barrier);
            for slot in counters.byte_slots() {
                if let Some((count, known)) = a.counts.get(slot)
                    && *known == a.slices
                {
                    cause.counts.call(slot, *count, ns);
                }
            }
            (a.slices, a.slowest, a.thread0) = (0, 0, 0);
            a.counts.fill((0, 0));
        }
    }
}
