//! Recording levels: how much was recorded when, if that changed during the run.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::recorded::calls::{Phase, Timeline};
use crate::recorded::labels::share;
use crate::recorded::load::Loaded;
use common::order;
use pfi::record::{Detail, LevelChange};

/// The levels of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LevelReport {
    pub changes: Vec<ChangeRow>,
    pub levels: Vec<LevelRow>,
}

/// A change of level.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ChangeRow {
    /// Time since the first call, ns.
    pub t_ns: i64,
    pub to: String,
    pub why: String,
}

/// A level, over all the time it was active.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LevelRow {
    /// Null: before the first recorded change.
    pub level: Option<String>,
    /// One in this many calls was recorded at this level, the others at the level below.
    pub one_in: u32,
    pub times: u64,
    pub time_ns: u64,
    pub share: f64,
    pub decode_calls: u64,
    /// In decode.
    pub tokens_per_s: Option<f64>,
    /// Its overhead as a share of the target's time, 0 to 1: last predicted, and last measured.
    pub predicted: Option<f64>,
    pub measured: Option<f64>,
}

#[derive(Default)]
struct LevelSum {
    times: u64,
    ns: u64,
    calls: u64,
    tokens: u64,
    call_ns: u64,
    predicted: Option<u32>,
    measured: Option<u32>,
}

/// Name of a level.
pub fn name(level: Detail) -> &'static str {
    match level {
        Detail::Nothing => "nothing",
        Detail::Token => "token",
        Detail::Graph => "graph",
        Detail::Op => "op",
        Detail::Structure => "structure",
        Detail::Counters => "counters",
        Detail::Scheduler => "scheduler",
    }
}

type LevelKey = Option<(Detail, u32)>;

fn key(change: Option<&LevelChange<'_>>) -> LevelKey {
    change.map(|c| (c.to, c.one_in.max(1)))
}

/// The levels; `None` if they never changed.
pub fn levels(loaded: &Loaded<'_>, line: &Timeline) -> Option<LevelReport> {
    let mut changes = loaded.causes.levels.clone();
    order::by_key(&mut changes, |c| (order::time(c.t), 0));
    let first_change = changes.first()?.t;
    let origin = line.calls.first().map_or(first_change, |c| c.start);
    let end = line.calls.iter().map(|c| c.end()).fold(changes.last()?.t, i64::max);
    let mut sums: BTreeMap<LevelKey, LevelSum> = BTreeMap::new();
    if origin < first_change {
        sums.insert(None, LevelSum { times: 1, ns: origin.abs_diff(first_change), ..LevelSum::default() });
    }
    for (i, c) in changes.iter().enumerate() {
        let until = changes.get(i + 1).map_or(end, |next| next.t);
        let sum = sums.entry(key(Some(c))).or_default();
        sum.times += 1;
        sum.ns = sum.ns.saturating_add(c.t.abs_diff(until));
        sum.predicted = c.predicted_ppm.or(sum.predicted);
        let before = i.checked_sub(1).and_then(|b| changes.get(b));
        if c.measured_ppm.is_some() {
            sums.entry(key(before)).or_default().measured = c.measured_ppm;
        }
    }
    for call in line.calls.iter().filter(|c| c.phase == Phase::Decode && !c.cut) {
        let at = changes.partition_point(|c| c.t <= call.start).checked_sub(1);
        let sum = sums.entry(key(at.and_then(|i| changes.get(i)))).or_default();
        sum.calls += 1;
        sum.tokens = sum.tokens.saturating_add(call.tokens.unwrap_or(0));
        sum.call_ns = sum.call_ns.saturating_add(call.dur);
    }
    let all = sums.values().fold(0u64, |all, s| all.saturating_add(s.ns));
    let ppm = |ppm: Option<u32>| ppm.map(|p| f64::from(p) / 1e6);
    let row = |(key, s): (LevelKey, LevelSum)| LevelRow {
        level: key.map(|(level, _)| name(level).into()),
        one_in: key.map_or(1, |(_, n)| n),
        times: s.times,
        time_ns: s.ns,
        share: share(s.ns, all),
        decode_calls: s.calls,
        tokens_per_s: (s.call_ns > 0 && s.tokens > 0).then(|| s.tokens as f64 * 1e9 / s.call_ns as f64),
        predicted: ppm(s.predicted),
        measured: ppm(s.measured),
    };
    let change = |c: &LevelChange<'_>| ChangeRow {
        t_ns: c.t.saturating_sub(origin),
        to: name(c.to).into(),
        why: c.why.into(),
    };
    Some(LevelReport {
        changes: changes.iter().map(change).collect(),
        levels: sums.into_iter().map(row).collect(),
    })
}

/// Number of changes during calls of a phase, from the first one's start to the last one's end.
pub fn within(loaded: &Loaded<'_>, line: &Timeline, phase: Phase) -> u64 {
    let calls = || line.calls.iter().filter(|c| c.phase == phase);
    let Some(from) = calls().map(|c| c.start).min() else { return 0 };
    let to = calls().map(|c| c.end()).max().unwrap_or(from);
    loaded.causes.levels.iter().filter(|c| from < c.t && c.t <= to).count() as u64
}
