//! Products of prompts on weights that are not repacked.

use super::rule::{Advice, Confidence, RuleInput, pct};
use crate::recorded::calls::Phase;

/// Lowest share of the matrices' bytes, lowest share of the time in calls, fewest tokens of a call, and highest share of the
/// ceiling.
const PLAIN: f64 = 0.5;
const SHARE: f64 = 0.1;
const TOKENS: f64 = 16.0;
const REACHED: f64 = 0.5;

pub fn rule(r: &RuleInput<'_>) -> Option<Advice> {
    let p = r.facts.phases.iter().find(|p| p.phase == Phase::Prefill)?;
    let plain = p.made_of.plain.filter(|share| *share >= PLAIN)?;
    let all: f64 = r.facts.phases.iter().map(|p| p.in_call_ns).sum();
    let tokens = p.tokens? as f64 / p.calls.max(1) as f64;
    let reached = r.reached(p.phase).filter(|share| *share <= REACHED)?;
    (p.in_call_ns / all >= SHARE && tokens >= TOKENS).then(|| Advice {
        rule: "plain-weights",
        title: "let the engine repack the weights: prompts are multiplied in the layout of the file".into(),
        actions: vec![
            "without --no-repack (-nr, --repack 0), and without -ot for these weights".into(),
            "or a build that repacks them: llama.cpp of 2025 or later".into(),
        ],
        gain: None,
        confidence: Confidence::Medium,
        evidence: format!(
            "{} of the matrices' bytes are read from the mapped file, in types that llama.cpp repacks; prompts reach {} of the \
             ceiling",
            pct(plain),
            pct(reached)
        ),
        disproof: "with repacked weights, prompts take as long".into(),
        trade_off: Some("repacked weights are a second copy, in memory of the process"),
    })
}
