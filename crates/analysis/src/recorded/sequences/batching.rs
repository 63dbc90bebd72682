//! How many sequences the calls computed at a time, and what that brought.

use std::collections::BTreeMap;

use serde::Serialize;

use super::data::{CallKind, Sequences};
use crate::recorded::call::Call;

/// Calls of one kind with the same number of sequences.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BatchRow {
    pub kind: CallKind,
    pub sequences: u64,
    pub calls: u64,
    /// Tokens that the calls brought: of prompts those computed, of drafts those accepted. Null if not all are known.
    pub tokens: Option<u64>,
    /// Time in the calls, ns.
    pub in_call_ns: u64,
    pub tokens_per_s: Option<f64>,
    /// Of these, for each sequence.
    pub tokens_per_s_each: Option<f64>,
}

/// All such rows.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Batching {
    pub rows: Vec<BatchRow>,
    /// Most sequences in a call.
    pub most: u64,
    /// Share of the time from the first tokens of requests to their last by which prompts of other sequences prolonged it.
    pub stalled: Option<f64>,
    /// Calls whose batch was not read, or not completely.
    pub unknown_calls: u64,
}

#[derive(Default)]
struct Sum {
    calls: u64,
    tokens: Option<u64>,
    ns: u64,
}

/// Sums up the calls whose end was seen.
pub fn batching(calls: &[Call], all: &Sequences) -> Batching {
    let mut sums: BTreeMap<(CallKind, u64), Sum> = BTreeMap::new();
    let mut out = Batching::default();
    for (i, (call, work)) in calls.iter().zip(&all.works).enumerate().filter(|(_, (c, _))| !c.cut) {
        let Some((kind, n)) = work.as_ref().and_then(|w| Some((w.kind()?, w.sequences()))) else {
            out.unknown_calls += 1;
            continue;
        };
        let sum = sums.entry((kind, n)).or_insert_with(|| Sum { tokens: Some(0), ..Sum::default() });
        sum.calls += 1;
        sum.tokens = sum.tokens.zip(all.tokens(i)).and_then(|(a, b)| a.checked_add(b));
        sum.ns = sum.ns.saturating_add(call.dur);
        out.most = out.most.max(n);
    }
    out.rows = sums.into_iter().map(|((kind, n), sum)| row(kind, n, &sum)).collect();
    out
}

fn row(kind: CallKind, sequences: u64, sum: &Sum) -> BatchRow {
    let rate = sum.tokens.filter(|_| sum.ns > 0).map(|n| n as f64 * 1e9 / sum.ns as f64);
    BatchRow {
        kind,
        sequences,
        calls: sum.calls,
        tokens: sum.tokens,
        in_call_ns: sum.ns,
        tokens_per_s: rate,
        tokens_per_s_each: rate.map(|r| r / sequences.max(1) as f64),
    }
}
