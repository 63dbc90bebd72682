//! What to change: one file per rule. A rule states its condition and evidence, what to type, the gain it predicts
//! and what would disprove it. A rule that lacks its evidence says nothing.
//!
//! Gains are promised for waste that is removed and for bytes that are not read. None is promised for more threads
//! or for page faults of what is needed: predictions of these from one recording were wrong by more than their size.

mod adapter;
mod attention;
mod batches;
pub mod beside;
mod between;
mod bytes;
mod caller;
pub mod check;
mod contention;
mod copies;
mod cores;
pub mod data;
mod experts;
mod fallback;
mod faults;
mod gaps;
mod idle;
mod imbalance;
mod launch;
mod layout;
pub mod none;
mod overhead;
mod oversubscribed;
mod quota;
mod recorder;
pub mod rule;
mod serving;
pub mod settle;
mod sleeping;
mod spinning;
mod states;
mod threads;
mod throttled;
mod variant;

pub use self::data::{Advice, Confidence, Gain};
use self::rule::RuleInput;
use crate::questions::verdict::data::{Limit, PhaseVerdict};
use crate::questions::verdict::facts::VerdictFacts;
use common::order;

/// Whether the evidence is there, and what follows from it.
type Rule = fn(&RuleInput<'_>) -> Option<Advice>;

/// The first ones are about threads that have no CPU: nothing else can be judged before that is mended.
const RULES: [Rule; 35] = [
    caller::rule,
    oversubscribed::rule,
    quota::rule,
    idle::rule,
    contention::rule,
    throttled::rule,
    cores::rule,
    faults::rule,
    faults::cold,
    faults::read_ahead,
    sleeping::rule,
    imbalance::rule,
    fallback::rule,
    copies::rule,
    launch::rule,
    gaps::rule,
    between::rule,
    variant::rule,
    recorder::rule,
    attention::other_slots,
    attention::decode,
    attention::rule,
    batches::rule,
    layout::rule,
    adapter::rule,
    overhead::rule,
    experts::rule,
    threads::rule,
    bytes::rule,
    serving::drafts,
    serving::starvation,
    serving::again,
    serving::one_slot,
    states::rule,
    spinning::rule,
];

/// Rules that look at calls alone.
const OF_CALLS: [Rule; 6] =
    [serving::drafts, serving::starvation, serving::again, serving::one_slot, states::rule, spinning::rule];

/// Rules without a CPU for each thread: they come first, whatever gain others predict.
const FIRST: [&str; 4] = ["changing-callers", "oversubscribed", "cpu-quota", "idle-threads"];

/// Advice for a run: threads without CPUs first, then by predicted gain, then what promises none, then trade-offs. What the
/// recording costs is no gain, and stands where one of its size would.
pub fn advice(facts: &VerdictFacts<'_>, phases: &[PhaseVerdict], limit: Option<&Limit>) -> Vec<Advice> {
    let input = RuleInput { facts, phases, limit };
    // Where the time of operators goes must be known before anything is said about it.
    let blind = facts.main().is_none_or(|p| p.bar.is_none());
    let rules = if blind { OF_CALLS.as_slice() } else { RULES.as_slice() };
    let mut all: Vec<Advice> = rules.iter().filter_map(|rule| rule(&input)).collect();
    consistent(&mut all);
    let rank = |a: &Advice| {
        let group = u64::from(!FIRST.contains(&a.rule)) + u64::from(a.trade_off.is_some());
        let recorder = (a.rule == "recorder-cost").then_some(facts.report.quality.predicted_slowdown.value);
        let middle = match (a.gain, recorder.flatten()) {
            (Some(g), _) => (g.least * g.most).sqrt(),
            (None, cost) => 1.0 / (1.0 - cost.unwrap_or(0.0)).max(f64::EPSILON),
        };
        (group, !order::fraction(middle))
    };
    order::by_key(&mut all, rank);
    all
}

/// Rules whose evidence another rule explains.
fn consistent(all: &mut Vec<Advice>) {
    let has = |rule: &str| all.iter().any(|a| a.rule == rule);
    let crowded = FIRST.iter().any(|rule| has(rule));
    let changing = has("changing-callers");
    let waiting = crowded || has("cpu-contention");
    let faulting = has("major-faults");
    let asleep = has("sleeping-barriers");
    // Threads wait unevenly, and reach no ceiling, while another one has no CPU or reads from storage.
    let explained: &[&str] = match (crowded, waiting, faulting) {
        (true, _, _) => &["cpu-contention", "imbalance", "small-operators", "more-threads", "fewer-bytes"],
        (_, true, _) | (_, _, true) => &["imbalance", "small-operators", "more-threads"],
        _ => &[],
    };
    let explained_by = |rule: &str| match rule {
        "oversubscribed" => changing,
        "sleeping-barriers" => waiting || faulting,
        "imbalance" => asleep,
        _ => false,
    };
    all.retain(|a| !(explained.contains(&a.rule) || explained_by(a.rule)));
}

#[cfg(test)]
mod tests;
