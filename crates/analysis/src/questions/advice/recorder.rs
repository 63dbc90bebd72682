//! The recorder itself slows the engine down.

use super::rule::{Advice, Confidence, RuleInput, pct};

/// From this share of the calls' time on; the line on the recording names a smaller cost.
const SHARE: f64 = 0.05;

pub fn rule(r: &RuleInput<'_>) -> Option<Advice> {
    r.main()?;
    let share = r.facts.report.quality.predicted_slowdown.value.filter(|share| *share >= SHARE)?;
    Some(Advice {
        rule: "recorder-cost",
        title: format!("the recording itself costs at least {}", pct(share)),
        actions: vec!["record --level graph, or --budget 1%".into()],
        // The run as its user has it, without a recorder, is no faster for it.
        gain: None,
        confidence: Confidence::Medium,
        evidence: format!(
            "the recording itself: {} of the time, by probe hits of the busiest thread times the measured cost of a hit",
            pct(share)
        ),
        disproof: "without the recorder, the engine's own tokens per second are the same".into(),
        trade_off: None,
    })
}
