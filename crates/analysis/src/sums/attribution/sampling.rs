//! What the phase `sampling` is made of: the samplers, and what is left.

use std::collections::HashMap;

use serde::Serialize;

use crate::recorded::labels::share;
use crate::recorded::load::Loaded;
use common::order;
use pfi::record::{Availability, PhaseCall, SamplerCall};

/// The phase's name in the trace.
const SAMPLING: &str = "sampling";
/// Name of the feature that says whether samplers were recorded.
const FEATURE: &str = "samplers";
/// The sampler that calls others.
const CHAIN: &str = "chain";

/// The phase `sampling` by sampler. Calls still running when the recording ended are not in it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sampling {
    /// Calls of the phase, and their time: as in its row of the phases.
    pub calls: u64,
    pub total_ns: u64,
    /// Most time first; with `rest_ns` they add up to `total_ns`. Null if not recorded.
    pub samplers: Option<Vec<SamplerRow>>,
    /// Outside the samplers: reading the logits, making the list of candidates. Null if not recorded.
    pub rest_ns: Option<u64>,
    /// What is not known of it, and why; omitted if nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unknown: Option<String>,
}

/// One sampler, in one of its two functions.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SamplerRow {
    /// As the engine calls it; null: not known.
    pub name: Option<String>,
    /// `apply`: changes the candidates, or chooses one. `accept`: takes the chosen token.
    pub does: &'static str,
    /// The engine calls the samplers of this chain in a way that is not seen: their time is in this row.
    #[serde(skip_serializing_if = "common::is_default")]
    pub with_members: bool,
    pub calls: u64,
    /// Without the calls of other samplers that it made.
    pub total_ns: u64,
    pub mean_ns: f64,
    pub max_ns: u64,
    /// Share of the phase, 0 to 1.
    pub share: f64,
}

#[derive(Default)]
struct SamplerSum {
    calls: u64,
    total: u64,
    max: u64,
    within: u64,
}

/// The table; None if no call of the phase was recorded.
pub fn sampling(loaded: &Loaded<'_>) -> Option<Sampling> {
    let causes = &loaded.causes;
    let mut phase: Vec<&PhaseCall<'_>> =
        causes.phases.iter().filter(|p| p.what == SAMPLING && !p.cut).collect();
    if causes.phases.iter().all(|p| p.what != SAMPLING) {
        return None;
    }
    let total_ns = phase.iter().fold(0u64, |sum, p| sum.saturating_add(p.dur));
    let calls = phase.len() as u64;
    let found = Sampling { calls, total_ns, samplers: None, rest_ns: None, unknown: None };
    if let Some(why) = not_recorded(loaded) {
        return Some(Sampling { unknown: Some(why), ..found });
    }
    order::by_key(&mut phase, |p| (u64::from(p.pid) << 32 | u64::from(p.tid), order::time(p.t)));
    let names: HashMap<u32, &str> = causes.sampler_names.values().map(|n| (n.id, n.name)).collect();
    let mut sums: HashMap<(&str, bool), SamplerSum> = HashMap::new();
    for call in causes.samplers.iter().filter(|c| is_in(&phase, c)) {
        let sum = sums.entry((names.get(&call.sampler).copied().unwrap_or(""), call.accept)).or_default();
        let own = call.dur.saturating_sub(call.within);
        sum.calls += 1;
        sum.total = sum.total.saturating_add(own);
        sum.max = sum.max.max(own);
        sum.within = sum.within.saturating_add(call.within);
    }
    let mut rows: Vec<SamplerRow> = sums.iter().map(|(of, sum)| row(*of, sum, total_ns)).collect();
    order::by(&mut rows, |a, b| (b.total_ns, &a.name, a.does).cmp(&(a.total_ns, &b.name, b.does)));
    let of_samplers = rows.iter().fold(0u64, |sum, r| sum.saturating_add(r.total_ns));
    let unknown = unknown(loaded, &rows);
    let rest_ns = Some(total_ns.saturating_sub(of_samplers));
    Some(Sampling { samplers: Some(rows), rest_ns, unknown, ..found })
}

fn row((name, accept): (&str, bool), sum: &SamplerSum, phase_ns: u64) -> SamplerRow {
    SamplerRow {
        name: (!name.is_empty()).then(|| name.to_owned()),
        does: if accept { "accept" } else { "apply" },
        // An empty chain is alike, but takes no time.
        with_members: name == CHAIN && !accept && sum.within == 0,
        calls: sum.calls,
        total_ns: sum.total,
        mean_ns: sum.total as f64 / sum.calls.max(1) as f64,
        max_ns: sum.max,
        share: share(sum.total, phase_ns),
    }
}

/// Whether a call lies in one of these of its thread, which are in the order of threads and times.
fn is_in(phase: &[&PhaseCall<'_>], call: &SamplerCall) -> bool {
    let after = phase.partition_point(|p| (p.pid, p.tid, p.t) <= (call.pid, call.tid, call.t));
    let before = after.checked_sub(1).and_then(|i| phase.get(i));
    before.is_some_and(|p| {
        (p.pid, p.tid) == (call.pid, call.tid) && call.t < p.t.saturating_add_unsigned(p.dur)
    })
}

/// Why samplers were not recorded, if they were not.
fn not_recorded(loaded: &Loaded<'_>) -> Option<String> {
    match loaded.causes.features.iter().find(|f| f.name == FEATURE) {
        Some(f) if f.state == Availability::None => {
            Some(format!("the samplers were not recorded: {}", f.why))
        }
        Some(_) => None,
        // A recorder that was killed has not said so.
        None if !loaded.causes.samplers.is_empty() => None,
        None => Some("the samplers were not recorded: the recorder was older, or was killed".to_owned()),
    }
}

/// What is not known of those that were recorded.
fn unknown(loaded: &Loaded<'_>, rows: &[SamplerRow]) -> Option<String> {
    let mut all = Vec::new();
    if rows.iter().any(|r| r.with_members) {
        all.push(
            "how much each sampler of the chain took, if it has any: the engine does not call them through llama_sampler_apply"
                .to_owned(),
        );
    }
    if rows.iter().any(|r| r.name.is_none()) {
        let why = loaded
            .causes
            .sampler_names
            .values()
            .filter(|n| n.name.is_empty())
            .map(|n| n.why)
            .min()
            .unwrap_or_default();
        let because = if why.is_empty() { String::new() } else { format!(" ({why})") };
        all.push(format!("what some samplers are called{because}"));
    }
    let lost = loaded.footer.as_ref().and_then(|f| f.kinds.iter().find(|k| k.kind == "sampler"));
    if let Some(lost) = lost.map(|k| k.lost).filter(|n| *n > 0) {
        all.push(format!("{lost} calls of samplers were lost: their time is in what called them"));
    }
    (!all.is_empty()).then(|| all.join("; "))
}
