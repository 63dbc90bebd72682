//! Threads that sleep at barriers and are woken, instead of spinning.

use super::rule::{Advice, Confidence, RuleInput, pct};
use crate::sums::attribution::interference::WAKING;

/// Lowest share of the threads' time asleep within graphs, and fewest wake-ups of a call.
const SHARE: f64 = 0.05;
const WAKES: f64 = 10.0;

pub fn rule(r: &RuleInput<'_>) -> Option<Advice> {
    let p = r.main().filter(|p| p.threads > 1)?;
    let causes = || p.by_thread.iter().filter_map(|t| t.causes);
    let asleep: f64 = causes().map(|c| c.idle_ns as f64).sum();
    let share = asleep / causes().map(|c| c.whole() as f64).sum::<f64>();
    let woken = r.facts.interference?.iter().find(|row| row.name == WAKING)?.times;
    let calls: u64 = r.facts.phases.iter().map(|p| p.calls).sum();
    let wakes = woken as f64 / calls.max(1) as f64;
    (share >= SHARE && wakes >= WAKES).then(|| Advice {
        rule: "sleeping-barriers",
        title: "let threads spin at barriers: they sleep there and are woken".into(),
        actions: vec![
            "without OMP_WAIT_POLICY=passive and GOMP_SPINCOUNT in the engine's environment".into(),
            "with llama.cpp's own threads: --poll 50 (the default) or more".into(),
        ],
        gain: None,
        confidence: Confidence::Medium,
        evidence: format!(
            "threads are asleep {} of the time within calls, and are woken {wakes:.0} times a call",
            pct(share)
        ),
        disproof: "with it, threads are woken as often".into(),
        trade_off: Some("threads that spin use CPU time that other programs may need, and power"),
    })
}
