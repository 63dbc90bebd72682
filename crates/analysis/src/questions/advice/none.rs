//! What would have to change where no advice removes the limit, with a number where one is known.

use super::data::Advice;
use super::rule::{RuleInput, pct};
use crate::questions::verdict::data::{Limit, LimitKind, PhaseVerdict, SpeedCeiling};
use crate::questions::verdict::facts::VerdictFacts;

/// Why there is no advice that removes the limit; `None` if no call was recorded.
pub fn why_none(
    facts: &VerdictFacts<'_>,
    phases: &[PhaseVerdict],
    limit: &Limit,
    advice: &[Advice],
) -> Option<String> {
    let input = RuleInput { facts, phases, limit: Some(limit) };
    let main = facts.main()?;
    let top = phases.iter().find(|p| p.phase == main.phase).and_then(|p| p.ceiling.as_ref());
    let top = top.filter(|top| top.source != "trace");
    let why = match (limit.kind, top) {
        (LimitKind::Memory, Some(top)) => memory(top, more(facts, main.threads)),
        (LimitKind::Compute, Some(top)) => format!(
            "{} of what these threads can compute{}; faster only with {}",
            pct(top.reached),
            at(top),
            any_of(vec!["fewer operations".into()], more(facts, main.threads))
        ),
        (
            LimitKind::CpuContention
            | LimitKind::Throttling
            | LimitKind::PageFaults
            | LimitKind::Oversubscription,
            _,
        ) => "no waste that lasted; record again when nothing else runs".into(),
        (LimitKind::BetweenCalls, _) => "only the program and its client can change it".into(),
        (_, Some(top)) => format!(
            "nothing was wasted, and the ceiling{} is {:.1} times as high; to measure other threads, CPUs and flags: {}",
            at(top),
            1.0 / top.reached,
            input.tune()
        ),
        _ => format!("nothing was wasted; to measure other threads, CPUs and flags: {}", input.tune()),
    };
    let none = if advice.is_empty() { "none" } else { "none for the limit" };
    Some(format!("{none}: {why}"))
}

/// With half of the bytes, or memory that is twice as fast, the ceiling is twice as high.
fn memory(top: &SpeedCeiling, more: Option<&str>) -> String {
    let mb = (top.weight_bytes + top.cache_bytes) / 1e6;
    let ways = vec![
        format!("fewer than the {mb:.0} MB that a call reads (a smaller quantisation)"),
        format!("a memory faster than {:.1} GB/s", top.peak),
    ];
    let (share, at) = (pct(top.reached), at(top));
    format!("{share} of what memory delivers to these threads{at}; faster only with {}", any_of(ways, more))
}

/// What would let more threads compute; `None`: nothing, each CPU that there is has one.
fn more(facts: &VerdictFacts<'_>, threads: u32) -> Option<&'static str> {
    let cpus = &facts.cpus;
    match (cpus.usable(), cpus.allowed.unwrap_or(cpus.online)) {
        (Some(usable), allowed) if usable <= threads && threads < allowed => Some("a higher CPU quota"),
        (Some(usable), _) if usable <= threads => None,
        _ => Some("more threads where CPUs are free"),
    }
}

/// `A, B, or C`.
fn any_of(mut ways: Vec<String>, more: Option<&str>) -> String {
    ways.extend(more.map(str::to_owned));
    match ways.split_last() {
        Some((last, [one])) => format!("{one} or {last}"),
        Some((last, before)) if !before.is_empty() => format!("{}, or {last}", before.join(", ")),
        _ => ways.concat(),
    }
}

/// ` of 45.1 tok/s`: the ceiling, if the tokens of a call are known.
fn at(top: &SpeedCeiling) -> String {
    top.tokens_per_s.map_or_else(String::new, |n| format!(" of {n:.1} tok/s"))
}
