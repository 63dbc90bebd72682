//! Much of the time passes between the calls: no change within a call can bring that back.

use super::rule::{Advice, Confidence, RuleInput, pct};

/// From this share of the time on.
const SHARE: f64 = 0.2;

pub fn rule(r: &RuleInput<'_>) -> Option<Advice> {
    let p = r.main()?;
    let phase = r.phases.iter().find(|v| v.phase == p.phase)?;
    let share = phase.between().filter(|share| *share >= SHARE)?;
    Some(Advice {
        rule: "between-calls",
        title: format!("look at what the program does between calls: {} of the time", pct(share)),
        actions: vec![
            "record --phases shows sampling, tokenizing and the rest of it".into(),
            "a grammar, probabilities (n_probs) and long sampler chains cost time for each token".into(),
        ],
        gain: None,
        confidence: Confidence::Medium,
        evidence: format!(
            "{:.2} tok/s in calls, {:.2} with the time between them",
            phase.tokens_per_s?, phase.tokens_per_s_wall?
        ),
        disproof: "without sampling, the client gets as many tokens per second as before".into(),
        trade_off: None,
    })
}
