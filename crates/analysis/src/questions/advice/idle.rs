//! Threads that only prompts need, and that spin while tokens are generated.

use super::rule::{Advice, Confidence, RuleInput, pct};
use crate::recorded::calls::Phase;

/// Waiting for a CPU, from this share of the time on; and the part of it behind the engine's own threads.
const SHARE: f64 = 0.05;
const OWN: f64 = 0.5;

pub fn rule(r: &RuleInput<'_>) -> Option<Advice> {
    let p = r.main().filter(|p| p.phase == Phase::Decode)?;
    let prompts = r.facts.phases.iter().find(|p| p.phase == Phase::Prefill)?.threads;
    let waiting = p.bar?.waiting_for_cpu.filter(|share| *share >= SHARE && prompts > p.threads)?;
    let rows = r.facts.interference?;
    let sum =
        |own: bool| rows.iter().filter(|row| row.own || !own).map(|row| row.runnable_ns as f64).sum::<f64>();
    let own = sum(true) / sum(false);
    (own >= OWN).then(|| Advice {
        rule: "idle-threads",
        title: format!(
            "use as many threads for prompts as for tokens: {} of {prompts} compute nothing in decode and keep the CPU",
            prompts.saturating_sub(p.threads)
        ),
        actions: vec![format!("-tb {} (as -t)", p.threads)],
        gain: None,
        confidence: Confidence::Medium,
        evidence: format!(
            "threads waited for a CPU {} of the time, {} of it while the engine's other threads ran",
            pct(waiting),
            pct(own)
        ),
        disproof: "with equal numbers of threads, decode waits for a CPU as long".into(),
        trade_off: Some("prompts take longer"),
    })
}
