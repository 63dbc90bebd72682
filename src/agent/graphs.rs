//! CPU graphs under way: which op hit belongs to which graph and thread, and, at the graph's end, their slices in the
//! trace. State is keyed by thread pool and `ith`: engines without OpenMP run every graph on new threads.
//! Uses `event`, `lanes`, `pmc`, `structure`, `nodes` and `trace`. Allocates only when created.

use std::io::Write;

use super::event::Counted;
use super::lanes::{Arena, Counts, Hit, Lane};
use super::nodes::NodeLists;
use super::pmc;
use super::structure::Structure;
use crate::trace::record::CpuGraph;
use crate::trace::{CounterRun, Encoder, PlanHit, Slice, SliceRun, WriteError};

/// Graphs open at once, all processes together.
pub const OPEN: usize = 64;
/// Threads of one graph.
pub const MAX_ITH: usize = 128;
/// Hits of one thread in one graph; more are counted as lost.
const MAX_PLAN: usize = 8192;
/// Plans remembered, by (process, cgraph).
const PLANS: usize = 32;
/// The encoder keeps its 256 plans of latest use: one used this many plans ago is told again rather than trusted.
const FRESH: u64 = 128;
/// Ops of one graph that its plan does not have and that get a plan of their own, so that few plans come at once.
const MAX_STRAYS: u32 = 64;

/// What starts a graph: an entry of `ggml_graph_compute`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Start {
    pub seq: u64,
    pub engine: u16,
    pub tgid: u32,
    /// Its caller: ith 0.
    pub tid: u32,
    pub cgraph: u64,
    pub n_nodes: u32,
    pub threads: u32,
    pub width: u32,
    pub start: u64,
    pub graph: Option<u64>,
    pub split: Option<u64>,
}

/// A graph under way.
struct Open {
    s: Start,
    /// The thread pool, once an op has shown it.
    pool: Option<u64>,
    lanes: Box<[Lane; MAX_ITH]>,
    used: bool,
}

/// What a finished graph showed, for the verification of the rungs.
#[derive(Debug, Clone, Copy, Default)]
pub struct Seen {
    pub expected: Option<u32>,
    pub hits: u32,
    /// Hits of thread 0 but its last, and those of them whose end a barrier told.
    pub inner: u32,
    pub ended: u32,
    pub threads: u32,
    /// Not a whole graph: its return was not seen, or not its own.
    pub cut: bool,
}

struct CachedPlan {
    tgid: u32,
    cgraph: u64,
    version: u64,
    id: u32,
    /// Plans told to the encoder when this one was last used.
    used: u64,
    /// Hits that each thread must make.
    demand: Option<u32>,
    tensors: heapless::Vec<u64, MAX_PLAN>,
}

/// The open graphs, with the memory that their slices need.
pub struct Graphs {
    open: Vec<Open>,
    arena: Arena,
    plans: Vec<CachedPlan>,
    next_plan: usize,
    hits: Vec<PlanHit>,
    slices: Vec<Slice>,
    /// Counters, and what they counted in the slices, slice by slice.
    counters: u32,
    counts: Vec<Option<u64>>,
    /// Plans told to the encoder so far.
    told: u64,
    /// Ops of the graph in hand that its plan does not have.
    strays: u32,
    pub nodes: NodeLists,
    /// Op hits that belong to no graph seen from its start.
    pub orphans: u64,
    /// Op hits for which there was no room.
    pub unplaced: u64,
}

impl Default for Graphs {
    fn default() -> Self {
        Graphs {
            open: (0..OPEN)
                .map(|_| Open {
                    s: Start::default(),
                    pool: None,
                    lanes: Box::new([Lane::default(); MAX_ITH]),
                    used: false,
                })
                .collect(),
            arena: Arena::default(),
            plans: Vec::with_capacity(PLANS),
            next_plan: 0,
            hits: Vec::with_capacity(MAX_PLAN),
            slices: Vec::with_capacity(MAX_PLAN),
            counters: 0,
            counts: Vec::new(),
            told: 0,
            strays: 0,
            nodes: NodeLists::default(),
            orphans: 0,
            unplaced: 0,
        }
    }
}

impl Graphs {
    /// From now on ops come with the counts of `n` counters. Before any op.
    pub fn count(&mut self, n: u32) {
        self.counters = n.min(pmc::MAX as u32);
        self.counts.reserve_exact(self.counters as usize * MAX_PLAN);
        self.arena.count();
    }

    /// Position of the graph that this thread entered and has not left.
    pub fn by_caller(&self, tid: u32) -> Option<usize> {
        self.open.iter().position(|g| g.used && g.s.tid == tid)
    }

    /// seq of that graph.
    pub fn seq_by_caller(&self, tid: u32) -> Option<u64> {
        self.by_caller(tid).map(|i| self.open[i].s.seq)
    }

    /// Position of some open graph of a process (of any, with None).
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

    /// A graph begins. False: too many are open.
    pub fn begin(&mut self, s: Start) -> bool {
        let Some(g) = self.open.iter_mut().find(|g| !g.used) else { return false };
        (g.s, g.pool, g.used) = (s, None, true);
        true
    }

    fn place(&self, tgid: u32, tid: u32, ith: u16, pool: u64) -> Option<usize> {
        let fits = |g: &Open| match (ith, g.pool) {
            (0, _) => g.s.tid == tid,
            (_, Some(p)) => p == pool,
            // A worker may be there before thread 0 has shown the pool.
            (_, None) => true,
        };
        let mine = |bound: bool| {
            self.open.iter().position(|g| g.used && g.s.tgid == tgid && g.pool.is_some() == bound && fits(g))
        };
        mine(true).or_else(|| mine(false))
    }

    /// An op began. `prev_end`: when the thread's op before it ended, 0 if that was not seen.
    pub fn hit(&mut self, tgid: u32, tid: u32, ith: u16, pool: u64, hit: Hit, prev_end: u64) {
        let Some(g) = self.place(tgid, tid, ith, pool).and_then(|i| self.open.get_mut(i)) else {
            self.orphans += 1;
            return;
        };
        g.pool = Some(pool);
        let Some(lane) = g.lanes.get_mut(ith as usize).filter(|l| (l.len as usize) < MAX_PLAN) else {
            self.unplaced += 1;
            return;
        };
        if let Some(last) = self.arena.last_mut(lane)
            && prev_end > last.start
            && prev_end <= hit.start
        {
            last.end = prev_end;
        }
        lane.tid = tid;
        if !self.arena.push(lane, hit) {
            self.unplaced += 1;
        }
    }

    /// What was counted in the op that a thread began last.
    pub fn counted(&mut self, e: &Counted) {
        let h = &e.op.h;
        let Some(g) = self.place(h.tgid, h.tid, h.ith, e.op.pool).and_then(|i| self.open.get(i)) else {
            return;
        };
        let Some(lane) = g.lanes.get(h.ith as usize) else { return };
        // Where the op's own event was lost, the lane's last one is another.
        if self.arena.last_mut(lane).is_some_and(|hit| hit.start == e.since) {
            self.arena.set_counts(lane, Counts { known: e.known, count: e.count });
        }
    }

    /// The last op of a worker ended.
    pub fn lane_end(&mut self, tgid: u32, tid: u32, pool: u64, end: u64) {
        let Some(g) = self.open.iter_mut().find(|g| g.used && g.s.tgid == tgid && g.pool == Some(pool))
        else {
            return;
        };
        let Some(lane) = g.lanes.iter().find(|l| l.len > 0 && l.tid == tid) else { return };
        if let Some(last) = self.arena.last_mut(lane).filter(|h| h.start < end) {
            last.end = end;
        }
    }

    /// Graph `i` ends at `end`: writes its slices and its own record. `last_end`: end of thread 0's last op, 0 = not seen.
    pub fn finish<W: Write>(
        &mut self,
        i: usize,
        (end, last_end, mut cut): (u64, u64, bool),
        tensors: &mut Structure,
        ops: (&[(bool, bool)], bool),
        enc: &mut Encoder<W>,
    ) -> Result<(Start, Seen), WriteError> {
        let g = &mut self.open[i];
        g.used = false;
        self.strays = 0;
        if let Some(last) = self.arena.last_mut(&g.lanes[0]).filter(|h| h.start < last_end) {
            last.end = last_end;
        }
        let mut seen = count(&g.lanes[..], &self.arena);
        let longest = (0..MAX_ITH).max_by_key(|&l| (g.lanes[l].len, MAX_ITH - l)).unwrap_or(0);
        // One thread waits for nobody: its barriers end nothing that the next op does not.
        let barrier = seen.threads > 1 && seen.inner > 0 && seen.ended * 2 >= seen.inner;
        let mut plan = None;
        if g.lanes[longest].len > 0 {
            let p = self.plan(i, longest, tensors, ops, enc)?;
            seen.expected = self.plans[p].demand.map(|d| d.saturating_mul(self.open[i].s.threads.max(1)));
            // More hits than nodes on one thread: the return of this graph and the entry of the next were lost.
            cut |= self.plans[p].demand.is_some_and(|d| self.open[i].lanes[longest].len > d);
            plan = Some(self.plans[p].id);
            for ith in 0..MAX_ITH {
                self.write_lane(i, ith, p, (barrier, end, cut), tensors, enc)?;
            }
        }
        let Open { s, lanes, .. } = &mut self.open[i];
        lanes.iter_mut().for_each(|l| self.arena.release(l));
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

    /// Position in `plans` of the plan that lane `ith` of graph `i` ran.
    fn plan<W: Write>(
        &mut self,
        i: usize,
        ith: usize,
        tensors: &mut Structure,
        ops: (&[(bool, bool)], bool),
        enc: &mut Encoder<W>,
    ) -> Result<usize, WriteError> {
        let (s, lane) = (self.open[i].s, self.open[i].lanes[ith]);
        let old = self.plans.iter().position(|p| p.tgid == s.tgid && p.cgraph == s.cgraph);
        if let Some(p) = old
            && self.plans[p].version == tensors.version()
            && self.told - self.plans[p].used < FRESH
            && self.arena.iter(&lane).map(|h| h.tensor).eq(self.plans[p].tensors.iter().copied())
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
        for hit in self.arena.iter(&lane) {
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

    /// Writes the slices of one lane, in pieces where hits are missing from the plan's order.
    fn write_lane<W: Write>(
        &mut self,
        i: usize,
        ith: usize,
        p: usize,
        (barrier, graph_end, cut): (bool, u64, bool),
        tensors: &mut Structure,
        enc: &mut Encoder<W>,
    ) -> Result<(), WriteError> {
        let Graphs { open, arena, plans, slices, counters, counts, told, strays, orphans, .. } = self;
        let mut out = Runs { n: *counters, slices, counts };
        let (s, lane, plan) = (open[i].s, &open[i].lanes[ith], &plans[p]);
        let mut run =
            SliceRun { graph: s.seq, ith: ith as u16, tid: lane.tid, plan: plan.id, first: 0, barrier };
        let mut at = 0;
        out.clear();
        for (hit, counted) in arena.counted(lane) {
            let slice = Slice { start: hit.start, end: (barrier && hit.end > 0).then_some(hit.end) };
            if plan.tensors.get(at) != Some(&hit.tensor) {
                out.write(enc, &run)?;
                match plan.tensors.get(at..).unwrap_or_default().iter().position(|&t| t == hit.tensor) {
                    Some(ahead) => at += ahead,
                    None => {
                        // An op that the plan does not have (its own hit on the plan's thread was lost).
                        if *strays == MAX_STRAYS {
                            *orphans += 1;
                            continue;
                        }
                        *strays += 1;
                        *told += 1;
                        let tensor = tensors.intern(enc, s.tgid, hit.tensor)?;
                        let plan = enc.plan(s.tgid, s.n_nodes, &[PlanHit { tensor, fused: None }])?;
                        out.push(slice, counted, barrier);
                        out.write(enc, &SliceRun { plan, first: 0, ..run })?;
                        continue;
                    }
                }
                run.first = at as u32;
            }
            out.push(slice, counted, barrier);
            at += 1;
        }
        // Without barriers the last op of thread 0 ends where its graph does, if that end was seen; a worker's own was not.
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

/// Slices that wait to be written together, and what was counted in them.
struct Runs<'a> {
    /// Counters.
    n: u32,
    slices: &'a mut Vec<Slice>,
    counts: &'a mut Vec<Option<u64>>,
}

impl Runs<'_> {
    fn clear(&mut self) {
        self.slices.clear();
        self.counts.clear();
    }

    fn push(&mut self, slice: Slice, counts: Option<&Counts>, barrier: bool) {
        // Where barriers tell ends, an op without one was counted up to some later time.
        let counts = counts.filter(|_| !barrier || slice.end.is_some());
        self.slices.push(slice);
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
        if self.counts.iter().any(Option::is_some) {
            let &SliceRun { graph, ith, plan, first, .. } = run;
            let counters = (1 << self.n) - 1;
            enc.op_counts(&CounterRun { graph, ith, plan, first, counters }, self.counts)?;
        }
        self.clear();
        Ok(())
    }
}

fn count(lanes: &[Lane], arena: &Arena) -> Seen {
    let first = lanes.first().copied().unwrap_or_default();
    let inner = first.len.saturating_sub(1);
    Seen {
        expected: None,
        hits: lanes.iter().map(|l| l.len).sum(),
        inner,
        ended: arena.iter(&first).take(inner as usize).filter(|h| h.end > 0).count() as u32,
        threads: lanes.iter().filter(|l| l.len > 0).count() as u32,
        cut: false,
    }
}
