//! The figures of a time range of a recording in progress.

use serde::Serialize;

use super::devices::LiveDevice;
use crate::attribution::parts::TimeParts;
use crate::calls::Phase;
use crate::report::OpTime;
use crate::tables::OTHER_ROW;

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
    #[serde(skip_serializing_if = "is_zero")]
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
    /// By op and name, largest first.
    pub ops: Vec<LiveOp>,
    pub threads: Vec<LiveThread>,
    /// What all threads did in ops and at the barriers after them; null if the scheduler was not recorded.
    pub causes: Option<TimeParts>,
    /// Share of the time in calls that CPU graphs take, per token, over graphs whose ops were recorded; null if
    /// the number of tokens is not known.
    pub graphs_share: Option<f64>,
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

fn is_zero(n: &u64) -> bool {
    *n == 0
}
