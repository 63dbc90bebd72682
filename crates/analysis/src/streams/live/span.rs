//! The figures of a time range of a recording in progress.

use serde::Serialize;

use super::devices::LiveDevice;
use super::sums::LiveSums;
use super::work::PhaseWork;
use crate::questions::report::{OpTime, op_time};
use crate::questions::verdict::bar::TimeBar;
use crate::recorded::calls::Phase;
use crate::recorded::labels::share;
use crate::sums::attribution::parts::TimeParts;
use crate::sums::tables::{OTHER_ROW, gaps};
use common::order;

/// A time range: the last seconds, or the complete run.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct LiveSpan {
    pub seconds: f64,
    /// Phases with a call or a graph.
    pub phases: Vec<PhaseSpan>,
    /// Device backends with a split; omitted if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<LiveDevice>,
}

/// Prefill, decode, or unknown. The fields are those of `report`, unless noted otherwise.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PhaseSpan {
    pub phase: Phase,
    pub calls: u64,
    pub cut_calls: u64,
    /// Calls for which the completion of a device was not seen; excluded from all times.
    #[serde(skip_serializing_if = "common::is_default")]
    pub unseen_calls: u64,
    pub tokens: Option<u64>,
    pub in_call_ns: u64,
    pub tokens_per_s: Option<f64>,
    pub cpu_graphs: u64,
    pub graph_ns: u64,
    pub op_ns: u64,
    pub wait_ns: Option<u64>,
    pub gaps_ns: u64,
    pub op_time: Option<OpTime>,
    /// Where the time in calls goes; null if no op was recorded.
    pub bar: Option<TimeBar>,
    /// The same of a decode token's time: with that between the calls, as far as it is known.
    pub bar_wall: Option<TimeBar>,
    /// By op and name, largest first.
    pub ops: Vec<LiveOp>,
    pub threads: Vec<LiveThread>,
    /// What all threads did in ops and at the barriers after them; null if the scheduler was not recorded.
    pub causes: Option<TimeParts>,
    /// Share of the time in calls that CPU graphs take, per token, over graphs whose ops were recorded; null if
    /// the number of tokens is not known.
    pub graphs_share: Option<f64>,
}

impl PhaseSpan {
    /// Of a phase's sums; `names` are those of the ops, `source` which calls are counted.
    pub(super) fn new(phase: Phase, s: &LiveSums, names: &[String], source: usize) -> PhaseSpan {
        let (g, work) = (&s.graphs, PhaseWork::of(s, source));
        let waits = g.barrier > 0;
        let op = |(name, [calls, total_ns]): (&String, &[u64; 2])| LiveOp {
            name: name.clone(),
            calls: *calls,
            total_ns: *total_ns,
            share: share(*total_ns, g.graph_ns),
            calls_per_s: per(*calls, g.graph_ns).map(|n| n * 1e9),
            ns_per_token: per(*total_ns, s.op_tokens),
        };
        let mut ops: Vec<LiveOp> = names.iter().zip(&s.ops).filter(|(_, o)| o[0] > 0).map(op).collect();
        order::by_key(&mut ops, |o| (!o.total_ns, 0));
        let threads =
            s.threads.iter().enumerate().filter(|(_, t)| t[0] > 0).map(|(ith, [op, wait])| LiveThread {
                ith: ith as u16,
                op_share: share(*op, g.graph_ns),
                wait_share: waits.then(|| share(*wait, g.graph_ns)),
            });
        PhaseSpan {
            phase,
            calls: work.calls,
            cut_calls: work.cut_calls,
            unseen_calls: work.unseen_calls,
            tokens: work.tokens(),
            in_call_ns: work.in_call_ns,
            tokens_per_s: work.tokens_per_s(),
            cpu_graphs: g.graphs,
            graph_ns: g.graph_ns,
            op_ns: g.op_ns,
            wait_ns: waits.then_some(g.wait_ns),
            gaps_ns: gaps(g),
            op_time: op_time(g),
            bar: work.bar(),
            bar_wall: work.bar_wall(),
            threads: threads.collect(),
            ops,
            causes: work.causes(),
            graphs_share: work.graphs_share(),
        }
    }
}

/// `number` divided by `of`; `None` if `of` is 0.
fn per(number: u64, of: u64) -> Option<f64> {
    (of > 0).then(|| number as f64 / of as f64)
}

/// Ops of one type and name; times are thread 0's.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LiveOp {
    pub name: String,
    pub calls: u64,
    pub total_ns: u64,
    /// Share of the time of the graphs.
    pub share: f64,
    /// Executions per second of graph time: the rate if the engine did nothing else.
    pub calls_per_s: Option<f64>,
    /// Over the tokens whose ops were recorded; null if a ubatch's width was not recorded.
    pub ns_per_token: Option<f64>,
}

/// One thread index of the engine's pool.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LiveThread {
    pub ith: u16,
    pub op_share: f64,
    pub wait_share: Option<f64>,
}

/// Keeps the `rows` largest of sorted ops, and sums the others in one extra row.
pub fn keep(ops: &mut Vec<LiveOp>, rows: usize) {
    let rest = ops.split_off(rows.min(ops.len()));
    let other = rest.into_iter().reduce(|a, b| LiveOp {
        name: OTHER_ROW.into(),
        calls: a.calls.saturating_add(b.calls),
        total_ns: a.total_ns.saturating_add(b.total_ns),
        share: a.share + b.share,
        calls_per_s: a.calls_per_s.zip(b.calls_per_s).map(|(a, b)| a + b),
        ns_per_token: a.ns_per_token.zip(b.ns_per_token).map(|(a, b)| a + b),
    });
    ops.extend(other);
}
