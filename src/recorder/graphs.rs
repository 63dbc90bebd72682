//! CPU graphs in progress: assigns each op hit to its graph and thread and, when the graph ends, writes its slices
//! to the trace. State is keyed by thread pool and `ith`: engines without OpenMP run every graph on new threads.
//! Allocates only when created.

use std::io::Write;

use crate::capture::event::Counted;
use crate::capture::pmc;
use crate::capture::structure::TensorTable;
use crate::recorder::nodes::NodeLists;
use crate::recorder::thread_hits::{Arena, HitCounts, ThreadHit, ThreadHits};
use crate::recorder::workers::Workers;
use pfi::record::CpuGraph;
use pfi::{CounterRun, Encoder, PlanHit, Slice, SliceRun, WriteError};

/// Maximum open graphs, all processes together.
pub const OPEN: usize = 64;
/// Maximum threads per graph.
pub const MAX_ITH: usize = 128;
/// Maximum hits of one thread in one graph; the rest counts as lost.
const MAX_PLAN: usize = 8192;
/// Plans kept, by (process, cgraph).
const PLANS: usize = 32;
/// The encoder keeps the 256 plans used last: a plan last used this many plans ago is written again rather than
/// assumed to be there.
const FRESH: u64 = 128;
/// Ops of one graph that are missing from its plan get their own plan, up to this many, to limit new plans.
const MAX_UNATTRIBUTED: u32 = 64;

/// What starts a graph: an entry of `ggml_graph_compute`.
#[derive(Debug, Clone, Copy, Default)]
pub struct GraphStart {
    pub seq: u64,
    pub engine: u16,
    pub tgid: u32,
    /// The caller: ith 0.
    pub tid: u32,
    pub cgraph: u64,
    pub n_nodes: u32,
    pub threads: u32,
    pub width: u32,
    pub start: u64,
    pub graph: Option<u64>,
    pub split: Option<u64>,
}

/// A graph in progress.
struct OpenGraph {
    s: GraphStart,
    /// The thread pool, once an op has shown it.
    pool: Option<u64>,
    thread_hits: Box<[ThreadHits; MAX_ITH]>,
    used: bool,
}

/// What a finished graph showed, to verify the rungs.
#[derive(Debug, Clone, Copy, Default)]
pub struct ObservedGraph {
    pub expected: Option<u32>,
    pub hits: u32,
    /// Hits of thread 0 except the last, and those of them whose end a barrier showed.
    pub inner: u32,
    pub ended: u32,
    pub threads: u32,
    /// An incomplete graph: its return was not seen, or the return was another graph's.
    pub cut: bool,
}

struct CachedPlan {
    tgid: u32,
    cgraph: u64,
    version: u64,
    id: u32,
    /// Plans written to the encoder when this one was last used.
    used: u64,
    /// Hits required of each thread.
    demand: Option<u32>,
    tensors: heapless::Vec<u64, MAX_PLAN>,
}

/// The open graphs, with the memory for their slices.
pub struct OpenGraphs {
    open: Vec<OpenGraph>,
    arena: Arena,
    plans: Vec<CachedPlan>,
    next_plan: usize,
    hits: Vec<PlanHit>,
    slices: Vec<Slice>,
    /// Where the slices began.
    cpus: Vec<Option<u16>>,
    /// Number of counters, and their counts in the slices, slice by slice.
    counters: u32,
    counts: Vec<Option<u64>>,
    /// Plans written to the encoder so far.
    told: u64,
    /// Ops of the current graph that are missing from its plan.
    unattributed: u32,
    pub nodes: NodeLists,
    pub workers: Workers,
    /// Op hits outside any graph seen from its start.
    pub orphans: u64,
    /// Op hits that found no room.
    pub unplaced: u64,
}

impl Default for OpenGraphs {
    fn default() -> Self {
        OpenGraphs {
            open: (0..OPEN)
                .map(|_| OpenGraph {
                    s: GraphStart::default(),
                    pool: None,
                    thread_hits: Box::new([ThreadHits::default(); MAX_ITH]),
                    used: false,
                })
                .collect(),
            arena: Arena::default(),
            plans: Vec::with_capacity(PLANS),
            next_plan: 0,
            hits: Vec::with_capacity(MAX_PLAN),
            slices: Vec::with_capacity(MAX_PLAN),
            cpus: Vec::with_capacity(MAX_PLAN),
            counters: 0,
            counts: Vec::new(),
            told: 0,
            unattributed: 0,
            nodes: NodeLists::default(),
            workers: Workers::default(),
            orphans: 0,
            unplaced: 0,
        }
    }
}

impl OpenGraphs {
    /// From now on ops arrive with the counts of `n` counters. Call before any op.
    pub fn count(&mut self, n: u32) {
        self.counters = n.min(pmc::MAX as u32);
        self.counts.reserve_exact(self.counters as usize * MAX_PLAN);
        self.arena.count();
    }

    /// Position of the graph that this thread has entered and not left.
    pub fn by_caller(&self, tid: u32) -> Option<usize> {
        self.open.iter().position(|g| g.used && g.s.tid == tid)
    }

    /// seq of that graph.
    pub fn seq_by_caller(&self, tid: u32) -> Option<u64> {
        self.by_caller(tid).map(|i| self.open[i].s.seq)
    }

    /// Position of any open graph of a process (of any process, with None).
    pub fn any_of(&self, tgid: Option<u32>) -> Option<usize> {
        self.open.iter().position(|g| g.used && tgid.is_none_or(|t| t == g.s.tgid))
    }

    /// Engine of graph `i`.
    pub fn engine_of(&self, i: usize) -> u16 {
        self.open[i].s.engine
    }

    /// When graph `i` began.
    pub fn start_of(&self, i: usize) -> u64 {
        self.open[i].s.start
    }

    /// How many threads computed graph `i`, 0 if that is not known: fewer than planned where OpenMP, or the engine's pool,
    /// had no more.
    pub fn took_part(&mut self, i: usize, threads: u32) {
        if threads > 0 {
            self.open[i].s.threads = threads;
        }
    }

    /// A graph begins. False: too many are open.
    pub fn begin(&mut self, s: GraphStart) -> bool {
        let Some(g) = self.open.iter_mut().find(|g| !g.used) else { return false };
        (g.s, g.pool, g.used) = (s, None, true);
        true
    }

    fn place(&self, tgid: u32, tid: u32, ith: u16, pool: u64) -> Option<usize> {
        let fits = |g: &OpenGraph| match (ith, g.pool) {
            (0, _) => g.s.tid == tid,
            (_, Some(p)) => p == pool,
            // A worker may arrive before thread 0 has shown the pool.
            (_, None) => true,
        };
        let mine = |bound: bool| {
            self.open.iter().position(|g| g.used && g.s.tgid == tgid && g.pool.is_some() == bound && fits(g))
        };
        mine(true).or_else(|| mine(false))
    }

    /// An op began. `prev_end`: when the thread's previous op ended, 0 if that was not seen.
    pub fn hit(&mut self, tgid: u32, tid: u32, ith: u16, pool: u64, hit: ThreadHit, prev_end: u64) {
        let Some(g) = self.place(tgid, tid, ith, pool).and_then(|i| self.open.get_mut(i)) else {
            self.orphans += 1;
            return;
        };
        g.pool = Some(pool);
        let Some(thread) = g.thread_hits.get_mut(ith as usize).filter(|l| (l.len as usize) < MAX_PLAN) else {
            self.unplaced += 1;
            return;
        };
        if let Some(last) = self.arena.last_mut(thread)
            && prev_end > last.start
            && prev_end <= hit.start
        {
            last.end = prev_end;
        }
        thread.tid = tid;
        if !self.arena.push(thread, hit) {
            self.unplaced += 1;
        }
    }

    /// The counts of the op that a thread began last.
    pub fn counted(&mut self, e: &Counted) {
        let h = &e.op.h;
        let Some(g) = self.place(h.tgid, h.tid, h.ith, e.op.pool).and_then(|i| self.open.get(i)) else {
            return;
        };
        let Some(thread) = g.thread_hits.get(h.ith as usize) else { return };
        // If the op's own event was lost, the thread's last hit is a different one.
        if self.arena.last_mut(thread).is_some_and(|hit| hit.start == e.since) {
            self.arena.set_counts(thread, HitCounts { known: e.known, count: e.count });
        }
    }

    /// The last op of a worker ended.
    pub fn thread_end(&mut self, tgid: u32, tid: u32, pool: u64, end: u64) {
        let Some(g) = self.open.iter_mut().find(|g| g.used && g.s.tgid == tgid && g.pool == Some(pool))
        else {
            return;
        };
        let Some(thread) = g.thread_hits.iter().find(|l| l.len > 0 && l.tid == tid) else { return };
        if let Some(last) = self.arena.last_mut(thread).filter(|h| h.start < end) {
            last.end = end;
        }
    }

    /// Graph `i` ends at `end`: writes its slices and its own record. `last_end`: end of thread 0's last op, 0 =
    /// not seen.
    pub fn finish<W: Write>(
        &mut self,
        i: usize,
        (end, last_end, mut cut): (u64, u64, bool),
        tensors: &mut TensorTable,
        ops: (&[(bool, bool)], bool),
        enc: &mut Encoder<W>,
    ) -> Result<(GraphStart, ObservedGraph), WriteError> {
        let g = &mut self.open[i];
        g.used = false;
        self.unattributed = 0;
        if let Some(last) = self.arena.last_mut(&g.thread_hits[0]).filter(|h| h.start < last_end) {
            last.end = last_end;
        }
        let mut seen = count(&g.thread_hits[..], &self.arena);
        let longest = (0..MAX_ITH).max_by_key(|&l| (g.thread_hits[l].len, MAX_ITH - l)).unwrap_or(0);
        // A single thread does not wait: its barriers end nothing that the next op does not end.
        let barrier = seen.threads > 1 && seen.inner > 0 && seen.ended * 2 >= seen.inner;
        let mut plan = None;
        if g.thread_hits[longest].len > 0 {
            let p = self.plan(i, longest, tensors, ops, enc)?;
            seen.expected = self.plans[p].demand.map(|d| d.saturating_mul(self.open[i].s.threads.max(1)));
            // More hits than nodes on one thread: the return of this graph and the entry of the next were lost.
            cut |= self.plans[p].demand.is_some_and(|d| self.open[i].thread_hits[longest].len > d);
            plan = Some(self.plans[p].id);
            for ith in 0..MAX_ITH {
                self.write_thread(i, ith, p, (barrier, end, cut), tensors, enc)?;
            }
        }
        let OpenGraph { s, thread_hits, .. } = &mut self.open[i];
        let others = thread_hits.iter().filter(|l| l.len > 0 && l.tid != s.tid);
        others.for_each(|l| self.workers.add(s.tgid, l.tid));
        thread_hits.iter_mut().for_each(|l| self.arena.release(l));
        enc.cpu_graph(&CpuGraph {
            seq: s.seq,
            graph: s.graph,
            split: s.split,
            pid: s.tgid,
            tid: s.tid,
            plan,
            n_nodes: s.n_nodes,
            n_threads: s.threads,
            ubatch: s.width,
            t: s.start as i64,
            dur: end.saturating_sub(s.start),
            expected: seen.expected,
            seen: seen.hits,
            barrier,
            cut,
        })?;
        seen.cut = cut;
        Ok((*s, seen))
    }

    /// Position in `plans` of the plan that thread `ith` of graph `i` ran.
    fn plan<W: Write>(
        &mut self,
        i: usize,
        ith: usize,
        tensors: &mut TensorTable,
        ops: (&[(bool, bool)], bool),
        enc: &mut Encoder<W>,
    ) -> Result<usize, WriteError> {
        let (s, thread) = (self.open[i].s, self.open[i].thread_hits[ith]);
        let old = self.plans.iter().position(|p| p.tgid == s.tgid && p.cgraph == s.cgraph);
        if let Some(p) = old
            && self.plans[p].version == tensors.version()
            && self.told - self.plans[p].used < FRESH
            && self.arena.iter(&thread).map(|h| h.tensor).eq(self.plans[p].tensors.iter().copied())
        {
            self.plans[p].used = self.told;
            return Ok(p);
        }
        let p = old.unwrap_or_else(|| self.free_plan());
        let plan = &mut self.plans[p];
        plan.tensors.clear();
        self.hits.clear();
        let mut second = 0;
        let demand = self.nodes.demand(s.tgid, s.cgraph, ops.0, ops.1);
        for hit in self.arena.iter(&thread) {
            let tensor = tensors.intern(enc, s.tgid, hit.tensor)?;
            let fused = match hit.tensor2 {
                0 => None,
                at => Some(tensors.intern(enc, s.tgid, at)?),
            };
            second += u32::from(fused.is_some());
            self.hits.push(PlanHit { tensor, fused });
            let _ = plan.tensors.push(hit.tensor);
        }
        plan.demand = demand.map(|d| d.saturating_sub(second));
        plan.id = enc.plan(s.tgid, s.n_nodes, &self.hits)?;
        self.told += 1;
        plan.used = self.told;
        (plan.tgid, plan.cgraph, plan.version) = (s.tgid, s.cgraph, tensors.version());
        Ok(p)
    }

    fn free_plan(&mut self) -> usize {
        if self.plans.len() < PLANS {
            let tensors = heapless::Vec::new();
            self.plans.push(CachedPlan {
                tgid: 0,
                cgraph: 0,
                version: 0,
                id: 0,
                used: 0,
                demand: None,
                tensors,
            });
            return self.plans.len() - 1;
        }
        self.next_plan = (self.next_plan + 1) % PLANS;
        self.next_plan
    }

    /// Writes the slices of one thread, split where hits are missing from the plan's order.
    fn write_thread<W: Write>(
        &mut self,
        i: usize,
        ith: usize,
        p: usize,
        (barrier, graph_end, cut): (bool, u64, bool),
        tensors: &mut TensorTable,
        enc: &mut Encoder<W>,
    ) -> Result<(), WriteError> {
        let OpenGraphs { open, arena, plans, told, unattributed, orphans, .. } = self;
        let mut out = SliceBatch {
            n: self.counters,
            slices: &mut self.slices,
            cpus: &mut self.cpus,
            counts: &mut self.counts,
        };
        let (s, thread, plan) = (open[i].s, &open[i].thread_hits[ith], &plans[p]);
        let mut run =
            SliceRun { graph: s.seq, ith: ith as u16, tid: thread.tid, plan: plan.id, first: 0, barrier };
        let mut at = 0;
        out.clear();
        for (hit, counted) in arena.counted(thread) {
            let slice = Slice { start: hit.start, end: (barrier && hit.end > 0).then_some(hit.end) };
            if plan.tensors.get(at) != Some(&hit.tensor) {
                out.write(enc, &run)?;
                match plan.tensors.get(at..).unwrap_or_default().iter().position(|&t| t == hit.tensor) {
                    Some(ahead) => at += ahead,
                    None => {
                        // An op that is not in the plan (its hit on the thread that gave the plan was lost).
                        if *unattributed == MAX_UNATTRIBUTED {
                            *orphans += 1;
                            continue;
                        }
                        *unattributed += 1;
                        *told += 1;
                        let tensor = tensors.intern(enc, s.tgid, hit.tensor)?;
                        let plan = enc.plan(s.tgid, s.n_nodes, &[PlanHit { tensor, fused: None }])?;
                        out.push(slice, (hit.cpu, counted), barrier);
                        out.write(enc, &SliceRun { plan, first: 0, ..run })?;
                        continue;
                    }
                }
                run.first = at as u32;
            }
            out.push(slice, (hit.cpu, counted), barrier);
            at += 1;
        }
        // Without barriers the last op of thread 0 ends with its graph, if that end was seen; a worker's own end
        // was not.
        if let Some(last) = out.slices.last_mut()
            && !barrier
            && !cut
            && ith == 0
        {
            last.end = Some(graph_end);
        }
        out.write(enc, &run)
    }
}

/// Slices to be written together, with their CPUs and counts.
struct SliceBatch<'a> {
    /// Number of counters.
    n: u32,
    slices: &'a mut Vec<Slice>,
    cpus: &'a mut Vec<Option<u16>>,
    counts: &'a mut Vec<Option<u64>>,
}

impl SliceBatch<'_> {
    fn clear(&mut self) {
        self.slices.clear();
        self.cpus.clear();
        self.counts.clear();
    }

    fn push(&mut self, slice: Slice, (cpu, counts): (Option<u16>, Option<&HitCounts>), barrier: bool) {
        // Where barriers show ends, the counts of an op without one include some later time.
        let counts = counts.filter(|_| !barrier || slice.end.is_some());
        self.slices.push(slice);
        self.cpus.push(cpu);
        for i in 0..self.n {
            let known = counts.filter(|c| c.known >> i & 1 != 0);
            self.counts.push(known.and_then(|c| c.count.get(i as usize).copied()));
        }
    }

    fn write<W: Write>(&mut self, enc: &mut Encoder<W>, run: &SliceRun) -> Result<(), WriteError> {
        if self.slices.is_empty() {
            return Ok(());
        }
        enc.slices(run, self.slices)?;
        let starts = self.slices.iter().map(|s| s.start);
        enc.op_cpus(run.tid, starts.zip(self.cpus.iter().copied()))?;
        if self.counts.iter().any(Option::is_some) {
            let &SliceRun { graph, ith, plan, first, .. } = run;
            let counters = (1 << self.n) - 1;
            enc.op_counts(&CounterRun { graph, ith, plan, first, counters }, self.counts)?;
        }
        self.clear();
        Ok(())
    }
}

fn count(thread_hits: &[ThreadHits], arena: &Arena) -> ObservedGraph {
    let first = thread_hits.first().copied().unwrap_or_default();
    let inner = first.len.saturating_sub(1);
    ObservedGraph {
        expected: None,
        hits: thread_hits.iter().map(|l| l.len).sum(),
        inner,
        ended: arena.iter(&first).take(inner as usize).filter(|h| h.end > 0).count() as u32,
        threads: thread_hits.iter().filter(|l| l.len > 0).count() as u32,
        cut: false,
    }
}
