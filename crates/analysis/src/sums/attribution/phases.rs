//! What an engine does within and around its calls: load, tokenize, sampling, detokenize; prefill and decode;
//! embedding and softmax by their ops. Softmax over the logits is no op, but a part of sampling.

use serde::Serialize;

use crate::recorded::calls::{Phase, Timeline};
use crate::recorded::describe::{is_leaf, op_name, source};
use crate::recorded::labels::share;
use crate::recorded::load::{HitTensors, Loaded};
use crate::sums::ops::OpTimes;
use pfi::record::Tensor;

/// Everything of one kind. Rows of different kinds may overlap.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StageRow {
    pub name: String,
    /// `function`: calls of a function; `call`: engine calls, as in the table of phases; `op`: thread 0's time in
    /// ops.
    pub of: &'static str,
    pub calls: u64,
    /// Calls still running when the recording ended; excluded from all times.
    pub cut_calls: u64,
    pub total_ns: u64,
    pub mean_ns: Option<f64>,
    pub max_ns: Option<u64>,
    /// Share of the time from the first to the last of everything listed here, 0 to 1.
    pub share: f64,
}

#[derive(Default)]
struct PhaseTotals {
    calls: u64,
    cut: u64,
    total: u64,
    max: u64,
}

impl PhaseTotals {
    fn call(&mut self, dur: u64, cut: bool) {
        self.calls += 1;
        self.cut += u64::from(cut);
        if !cut {
            self.total = self.total.saturating_add(dur);
            self.max = self.max.max(dur);
        }
    }

    fn row(&self, name: &str, of: &'static str, span: u64) -> StageRow {
        let whole = self.calls - self.cut;
        StageRow {
            name: name.into(),
            of,
            calls: self.calls,
            cut_calls: self.cut,
            total_ns: self.total,
            mean_ns: (whole > 0).then(|| self.total as f64 / whole as f64),
            max_ns: (whole > 0).then_some(self.max),
            share: share(self.total, span),
        }
    }
}

/// Order of the rows; functions with other names follow.
const FIRST: [&str; 2] = ["load", "tokenize"];
const LAST: [&str; 2] = ["sampling", "detokenize"];
const OTHERS: usize = 16;

/// The table; `None` if functions were neither recorded nor requested.
pub fn stages(loaded: &Loaded<'_>, line: &Timeline, times: &OpTimes) -> Option<Vec<StageRow>> {
    let records = &loaded.causes.phases;
    if records.is_empty() && loaded.causes.features.iter().all(|f| f.name != "phases") {
        return None;
    }
    let functions = records.iter().map(|p| (p.t, p.dur));
    let calls = line.calls.iter().map(|c| (c.start, c.dur));
    let (from, to) = functions.chain(calls).fold((i64::MAX, i64::MIN), |(from, to), (t, dur)| {
        (from.min(t), to.max(t.saturating_add_unsigned(dur)))
    });
    let span = if from < to { from.abs_diff(to) } else { 0 };
    let function = |name: &str| {
        let mut sum = PhaseTotals::default();
        records.iter().filter(|p| p.what == name).for_each(|p| sum.call(p.dur, p.cut));
        (sum.calls > 0).then(|| sum.row(name, "function", span))
    };
    let mut rows: Vec<StageRow> = FIRST.into_iter().filter_map(function).collect();
    for phase in Phase::ALL {
        let mut sum = PhaseTotals::default();
        line.calls.iter().filter(|c| c.phase == phase).for_each(|c| sum.call(c.dur, c.cut));
        if sum.calls > 0 {
            rows.push(sum.row(phase.name(), "call", span));
        }
    }
    type IsKind = fn(&Loaded<'_>, HitTensors) -> bool;
    let kinds: [(&str, IsKind); 3] = [
        ("embedding", is_embedding),
        ("attention softmax", is_attention_softmax),
        ("other softmax", is_other_softmax),
    ];
    for (name, is) in kinds {
        let sum = ops(loaded, times, is);
        if sum.calls > 0 {
            rows.push(sum.row(name, "op", span));
        }
    }
    let mut others: Vec<&str> = Vec::new();
    for p in records {
        let known = FIRST.contains(&p.what) || LAST.contains(&p.what) || others.contains(&p.what);
        if !known && others.len() < OTHERS {
            others.push(p.what);
        }
    }
    rows.extend(LAST.into_iter().chain(others).filter_map(function));
    Some(rows)
}

fn is_embedding(loaded: &Loaded<'_>, (tensor, _): HitTensors) -> bool {
    let node = loaded.tensors.get(&tensor).filter(|t| t.known && op_name(loaded, t.op) == "GET_ROWS");
    let table = node.and_then(|t| source(loaded, t, 0));
    table.is_some_and(|w| is_leaf(loaded, w) && w.name.contains("token_embd"))
}

fn is_softmax(loaded: &Loaded<'_>, (tensor, _): HitTensors) -> bool {
    loaded.tensors.get(&tensor).is_some_and(|t| t.known && op_name(loaded, t.op) == "SOFT_MAX")
}

/// With a mask; its name tells it where sources were not read.
fn is_attention_softmax(loaded: &Loaded<'_>, hit: HitTensors) -> bool {
    let masked = |t: &Tensor| source(loaded, t, 1).is_some() || t.name.contains("kq");
    is_softmax(loaded, hit) && loaded.tensors.get(&hit.0).is_some_and(masked)
}

/// Over the experts of a router, or a sampler's that the engine computes with the model.
fn is_other_softmax(loaded: &Loaded<'_>, hit: HitTensors) -> bool {
    is_softmax(loaded, hit) && !is_attention_softmax(loaded, hit)
}

/// Thread 0's time in the ops selected by `is`.
fn ops(loaded: &Loaded<'_>, times: &OpTimes, is: fn(&Loaded<'_>, HitTensors) -> bool) -> PhaseTotals {
    let mut sum = PhaseTotals::default();
    for ((plan, _), stat) in &times.plans {
        let hits = loaded.plans.get(plan).map_or(&[][..], |p| &p.hits);
        for (pos, hit) in stat.positions.iter().zip(hits) {
            if pos.calls > 0 && is(loaded, *hit) {
                sum.calls += pos.calls;
                sum.cut += pos.calls - pos.timed;
                sum.total = sum.total.saturating_add(pos.total);
                sum.max = sum.max.max(pos.max);
            }
        }
    }
    sum
}
