//! Table rows by op type, name pattern, layer, thread, token and backend.

use std::collections::HashMap;

use serde::Serialize;

use crate::recorded::calls::{Phase, Timeline};
use crate::recorded::describe::{Ident, NO_STRUCTURE};
use crate::recorded::idents::{Idents, OpKey};
use crate::recorded::labels::share;
use crate::recorded::load::Loaded;
use crate::sums::attribution::Attribution;
use crate::sums::attribution::counters::CounterRow;
use crate::sums::attribution::parts::TimeParts;
use crate::sums::attribution::pass::Cause;
use crate::sums::attribution::verdict::{Ceiling, Facts, Verdict, verdict};
use crate::sums::op_cpus::{CpuShare, shares};
use crate::sums::ops::{OpTimes, PhaseSum, PosStat};
use common::order;
use ggml::backend_guid;

/// Row that holds thread 0's barrier waits (barrier mode only).
pub const WAIT_ROW: &str = "(barrier wait)";
/// Row with the time that no op and no wait covers, so that the shares add up to one.
pub const GAPS_ROW: &str = "(gaps)";

/// Row with the sum of the rows that `--top` leaves out.
pub const OTHER_ROW: &str = "(other)";

/// One row of an op table. Times are thread 0's, ns.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OpRow {
    /// Op type, `(op, name pattern)` in one string, or layer. `(barrier wait)` and `(gaps)` complete the sum.
    pub name: String,
    /// Executions: one per graph, regardless of how many threads took part.
    pub calls: u64,
    pub total_ns: u64,
    pub mean_ns: Option<f64>,
    pub min_ns: Option<u64>,
    pub max_ns: Option<u64>,
    /// Share of the total duration of the phase's CPU graphs, 0 to 1.
    pub share: f64,
    pub cumulative_share: f64,
    /// Thread 0's wait at the barrier after the op; null in interval mode, where it is part of the op's time.
    pub wait_ns: Option<u64>,
    /// Time in this op, summed over all threads.
    pub all_threads_ns: u64,
    /// Slowest thread's busy time over the mean of the threads; null in interval mode.
    pub imbalance: Option<f64>,
    /// Bytes and FLOPs from the cost model over the time in which any thread computed it (interval mode: thread 0's wall
    /// time), in 10^9 per second; null if the model does not know the op.
    pub model_gb_per_s: Option<f64>,
    pub model_gflop_per_s: Option<f64>,
    /// What all threads did in that time and in the barrier waits after it; omitted if the scheduler was not
    /// recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub causes: Option<TimeParts>,
    /// Counter values of it, over all threads; omitted if there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counted: Option<CounterRow>,
    /// What limits it; omitted if there is not enough evidence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
}

/// One thread index of the engine's pool.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ThreadRow {
    pub ith: u16,
    /// Kernel threads that ran with this index; builds without OpenMP start new ones for every graph.
    pub tids: u64,
    pub slices: u64,
    /// Op time (busy in barrier mode, wall in interval mode), ns.
    pub op_ns: u64,
    /// Barrier wait; null in interval mode.
    pub wait_ns: Option<u64>,
    /// Share of the total duration of the phase's CPU graphs.
    pub op_share: f64,
    pub wait_share: Option<f64>,
    /// CPUs that its ops started on, and how often it was on another one than before; omitted if no CPU is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<Vec<CpuShare>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub migrations: Option<u64>,
    /// As in the op tables, for this thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub causes: Option<TimeParts>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counted: Option<CounterRow>,
}

/// One call.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TokenRow {
    pub seq: u64,
    pub pid: u32,
    pub tokens: Option<u64>,
    /// Time since the first call of the recording, ns.
    pub start_ns: i64,
    pub dur_ns: u64,
    /// Time since the end of the previous call in the same process; null for the first one.
    pub since_last_ns: Option<i64>,
    pub graphs: u32,
    pub op_ns: u64,
    pub wait_ns: u64,
    /// Op slices of all threads.
    pub slices: u64,
    pub cut: bool,
}

/// Splits of one backend.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SplitRow {
    pub backend: String,
    pub splits: u64,
    pub total_ns: u64,
    /// Share of the time of all splits.
    pub share: f64,
}

#[derive(Default)]
struct OpGroup {
    stat: PosStat,
    bytes: f64,
    flops: f64,
    /// The part of `flops` in 8-bit integers.
    int8: f64,
    /// Time of the executions with known work, ns.
    work_ns: u64,
    cause: Cause,
}

impl OpGroup {
    fn add(&mut self, pos: &PosStat, ident: Option<&Ident>, cause: Option<&Cause>) {
        self.stat.merge(pos);
        if let Some(cause) = cause {
            self.cause.merge(cause);
        }
        if let Some((work, int8)) = ident.and_then(|i| Some((i.work?, i.int8))) {
            self.bytes += (work.read as f64 + work.written as f64) * pos.timed as f64;
            let flops = work.flops as f64 * pos.timed as f64;
            self.flops += flops;
            self.int8 += if int8 { flops } else { 0.0 };
            self.work_ns = self.work_ns.saturating_add(pos.span);
        }
    }

    fn facts(&self, counted: Option<&CounterRow>, phase: &PhaseSum) -> Facts {
        Facts {
            parts: Some(self.cause.parts).filter(TimeParts::known),
            busy: self.stat.total,
            wait: (phase.barrier > 0).then_some(self.stat.wait),
            calls: self.stat.timed,
            bytes: self.bytes,
            f32: self.flops - self.int8,
            int8: self.int8,
            work_ns: self.work_ns,
            stalled: counted.and_then(|c| c.stalled_share),
        }
    }
}

/// Data used to explain rows.
#[derive(Clone, Copy, Default)]
pub struct Reasons<'w> {
    pub why: Option<&'w Attribution>,
    /// Ops get a verdict.
    pub judged: bool,
    pub ceiling: Option<&'w Ceiling>,
}

/// Facts for the verdicts on the ops of a phase, by name.
pub fn facts(times: &OpTimes, idents: &Idents, phase: Phase) -> Vec<(String, Facts)> {
    let sum = times.phases.get(&phase).copied().unwrap_or_default();
    let groups = groups(times, None, idents, phase, OpKey::Name);
    groups.into_iter().map(|(name, g)| (name, g.facts(None, &sum))).collect()
}

/// Sums the positions of `phase` by `key`, largest first, with the rows that make the shares add up to one.
pub fn op_rows(
    times: &OpTimes,
    reasons: Reasons<'_>,
    idents: &Idents,
    phase: Phase,
    key: OpKey,
) -> Vec<OpRow> {
    let sum = times.phases.get(&phase).copied().unwrap_or_default();
    let groups = groups(times, reasons.why, idents, phase, key);
    let mut rows: Vec<OpRow> = groups.into_iter().map(|(name, g)| row(name, &g, &reasons, &sum)).collect();
    order::by(&mut rows, |a, b| b.total_ns.cmp(&a.total_ns).then_with(|| a.name.cmp(&b.name)));
    close(rows, &sum)
}

/// Sums of a phase, by group name.
fn groups(
    times: &OpTimes,
    why: Option<&Attribution>,
    idents: &Idents,
    phase: Phase,
    key: OpKey,
) -> Vec<(String, OpGroup)> {
    let (group_of, names) = idents.groups(key);
    let mut groups: Vec<OpGroup> = names.iter().map(|_| OpGroup::default()).collect();
    let mut beyond = OpGroup::default();
    // In the order of the plans, so that floating-point sums are reproducible.
    let mut plans: Vec<_> = times.plans.iter().filter(|((_, p), _)| *p == phase).collect();
    order::by_key(&mut plans, |((plan, _), _)| ((*plan).into(), 0));
    for ((plan, _), stat) in plans {
        let mut causes = why.map_or(&[][..], |w| w.positions(*plan, phase)).iter();
        for (pos, ident) in stat.positions.iter().zip(idents.of_plan(*plan)) {
            let cause = causes.next();
            let Some(group) = group_of.get(*ident).and_then(|g| groups.get_mut(*g)) else { continue };
            group.add(pos, idents.list().get(*ident), cause);
        }
        beyond.add(&stat.beyond, None, why.and_then(|w| w.beyond(*plan, phase)));
    }
    match names.iter().position(|n| n == NO_STRUCTURE).and_then(|i| groups.get_mut(i)) {
        Some(group) => group.add(&beyond.stat, None, Some(&beyond.cause)),
        None => groups.push(beyond),
    }
    let names = names.into_iter().chain([NO_STRUCTURE.to_string()]);
    let ran = |g: &OpGroup| g.stat.calls > 0 || g.stat.all_threads > 0;
    names.zip(groups).filter(|(_, g)| ran(g)).collect()
}

fn per_second(amount: f64, ns: u64) -> Option<f64> {
    (amount > 0.0 && ns > 0).then(|| amount / ns as f64)
}

fn row(name: String, g: &OpGroup, reasons: &Reasons<'_>, phase: &PhaseSum) -> OpRow {
    let s = &g.stat;
    let timed = s.timed > 0;
    let counted = reasons.why.and_then(|w| w.counters.row(&g.cause.counts));
    let facts = g.facts(counted.as_ref(), phase);
    OpRow {
        name,
        calls: s.calls,
        total_ns: s.total,
        mean_ns: timed.then(|| s.total as f64 / s.timed as f64),
        min_ns: timed.then_some(s.min),
        max_ns: timed.then_some(s.max),
        share: share(s.total, phase.graph_ns),
        cumulative_share: 0.0,
        wait_ns: (phase.barrier > 0).then_some(s.wait),
        all_threads_ns: s.all_threads,
        imbalance: (s.mean > 0.0).then(|| s.slowest as f64 / s.mean),
        model_gb_per_s: per_second(g.bytes, g.work_ns),
        model_gflop_per_s: per_second(g.flops, g.work_ns),
        causes: Some(g.cause.parts).filter(TimeParts::known),
        counted,
        verdict: if reasons.judged { verdict(&facts, reasons.ceiling) } else { None },
    }
}

/// Appends the closing rows and fills in the cumulative shares.
fn close(mut rows: Vec<OpRow>, phase: &PhaseSum) -> Vec<OpRow> {
    let bare = |name: &str, total_ns: u64| OpRow {
        name: name.into(),
        calls: 0,
        total_ns,
        mean_ns: None,
        min_ns: None,
        max_ns: None,
        share: share(total_ns, phase.graph_ns),
        cumulative_share: 0.0,
        wait_ns: None,
        all_threads_ns: 0,
        imbalance: None,
        model_gb_per_s: None,
        model_gflop_per_s: None,
        causes: None,
        counted: None,
        verdict: None,
    };
    if rows.is_empty() {
        return rows;
    }
    if phase.barrier > 0 {
        rows.push(bare(WAIT_ROW, phase.wait_ns));
    }
    rows.push(bare(GAPS_ROW, gaps(phase)));
    let mut sum = 0.0;
    for row in &mut rows {
        sum += row.share;
        row.cumulative_share = sum;
    }
    rows
}

/// Graph time of a phase that is neither in an op nor in a barrier wait of thread 0.
pub fn gaps(phase: &PhaseSum) -> u64 {
    phase.graph_ns.saturating_sub(phase.op_ns).saturating_sub(phase.wait_ns)
}

/// Keeps the `top` largest rows of an op table and sums the others in one row before the closing rows.
pub fn top_ops(mut rows: Vec<OpRow>, top: Option<usize>) -> Vec<OpRow> {
    let closing = rows.iter().filter(|r| r.name == WAIT_ROW || r.name == GAPS_ROW).count();
    let ops = rows.len() - closing;
    let Some(top) = top.filter(|top| *top < ops) else { return rows };
    let rest: Vec<OpRow> = rows.drain(top..ops).collect();
    let Some(last) = rest.last() else { return rows };
    let sum = |get: fn(&OpRow) -> u64| rest.iter().map(get).fold(0u64, u64::saturating_add);
    let causes = rest.iter().filter_map(|r| r.causes).reduce(|mut sum, parts| {
        sum.merge(&parts);
        sum
    });
    let other = OpRow {
        name: OTHER_ROW.into(),
        calls: sum(|r| r.calls),
        total_ns: sum(|r| r.total_ns),
        mean_ns: None,
        min_ns: None,
        max_ns: None,
        share: rest.iter().map(|r| r.share).sum(),
        cumulative_share: last.cumulative_share,
        wait_ns: last.wait_ns.map(|_| sum(|r| r.wait_ns.unwrap_or(0))),
        all_threads_ns: sum(|r| r.all_threads_ns),
        imbalance: None,
        model_gb_per_s: None,
        model_gflop_per_s: None,
        causes,
        counted: None,
        verdict: None,
    };
    rows.insert(top, other);
    rows
}

/// The thread indices of a phase, busiest first.
pub fn thread_rows(times: &OpTimes, why: Option<&Attribution>, phase: Phase) -> Vec<ThreadRow> {
    let sum = times.phases.get(&phase).copied().unwrap_or_default();
    let mut rows: Vec<ThreadRow> = times
        .threads
        .iter()
        .filter(|((_, p), _)| *p == phase)
        .map(|((ith, _), t)| {
            let cause = why.and_then(|w| Some((w, w.thread(*ith, phase)?)));
            ThreadRow {
                ith: *ith,
                tids: t.tids.len() as u64,
                slices: t.slices,
                op_ns: t.busy,
                wait_ns: (sum.barrier > 0).then_some(t.wait),
                op_share: share(t.busy, sum.graph_ns),
                wait_share: (sum.barrier > 0).then(|| share(t.wait, sum.graph_ns)),
                cpus: t.cpus.known().then(|| shares(&t.cpus)),
                migrations: t.cpus.known().then_some(t.cpus.migrations),
                causes: cause.map(|(_, c)| c.parts).filter(TimeParts::known),
                counted: cause.and_then(|(w, c)| w.counters.row(&c.counts)),
            }
        })
        .collect();
    order::by_key(&mut rows, |r| (!r.op_ns, r.ith.into()));
    rows
}

/// The calls of a phase, slowest first.
pub fn token_rows(line: &Timeline, times: &OpTimes, phase: Phase) -> Vec<TokenRow> {
    let Some(origin) = line.calls.first().map(|c| c.start) else { return Vec::new() };
    let mut sums = vec![(0u64, 0u64, 0u64); line.calls.len()];
    for (call, g) in line.cpu_call.iter().zip(&times.graphs) {
        if let Some(sum) = call.and_then(|c| sums.get_mut(c)) {
            *sum = (sum.0.saturating_add(g.ops), sum.1.saturating_add(g.wait), sum.2 + g.slices);
        }
    }
    let mut last_end: HashMap<u32, i64> = HashMap::new();
    let mut rows = Vec::new();
    for (call, (op_ns, wait_ns, slices)) in line.calls.iter().zip(sums) {
        let before = last_end.insert(call.pid, call.end());
        if call.phase != phase {
            continue;
        }
        rows.push(TokenRow {
            seq: call.seq,
            pid: call.pid,
            tokens: call.tokens,
            start_ns: call.start.saturating_sub(origin),
            dur_ns: call.dur,
            since_last_ns: before.map(|end| call.start.saturating_sub(end)),
            graphs: call.graphs,
            op_ns,
            wait_ns,
            slices,
            cut: call.cut,
        });
    }
    order::by_key(&mut rows, |r| (!r.dur_ns, r.seq));
    rows
}

/// Splits of a phase by backend, largest first.
pub fn split_rows(loaded: &Loaded<'_>, line: &Timeline, phase: Phase) -> Vec<SplitRow> {
    let mut sums: HashMap<u32, (u64, u64)> = HashMap::new();
    for s in &loaded.splits {
        let of = s.graph.and_then(|g| line.graph_phase.get(&g)).copied().unwrap_or(Phase::Unknown);
        if of == phase {
            let sum = sums.entry(s.backend).or_default();
            *sum = (sum.0 + 1, sum.1.saturating_add(s.dur));
        }
    }
    let all = sums.values().fold(0u64, |a, (_, ns)| a.saturating_add(*ns));
    let mut rows: Vec<SplitRow> = sums
        .into_iter()
        .map(|(id, (splits, total_ns))| SplitRow {
            backend: backend_name(loaded, id),
            splits,
            total_ns,
            share: share(total_ns, all),
        })
        .collect();
    order::by(&mut rows, |a, b| b.total_ns.cmp(&a.total_ns).then_with(|| a.backend.cmp(&b.backend)));
    rows
}

/// Name of a backend; its number or GUID if no name is known.
pub fn backend_name(loaded: &Loaded<'_>, id: u32) -> String {
    let Some(b) = loaded.backends.get(&id) else { return format!("backend {id} (not described)") };
    match backend_guid::name(&b.guid) {
        _ if !b.name.is_empty() => b.name.to_string(),
        Some(name) => name.to_string(),
        None => b.guid.iter().map(|byte| format!("{byte:02x}")).collect(),
    }
}
