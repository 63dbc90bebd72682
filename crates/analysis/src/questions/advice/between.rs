//! Much of the time passes between the calls: no change within a call can bring that back.

use super::rule::{Advice, Confidence, RuleInput, pct};
use crate::sums::attribution::sampling::Sampling;

/// From this share of the time on.
const SHARE: f64 = 0.1;

pub fn rule(r: &RuleInput<'_>) -> Option<Advice> {
    let p = r.main()?;
    let phase = r.phases.iter().find(|v| v.phase == p.phase)?;
    let share = phase.between_calls.filter(|share| *share >= SHARE)?;
    let sampling = r.facts.report.sampling.as_ref();
    let (in_calls, wall) = (phase.tokens_per_s?, phase.tokens_per_s_wall?);
    Some(Advice {
        rule: "between-calls",
        title: format!("look at what the program does between calls: {} of the time", pct(share)),
        actions: vec![
            match sampling {
                Some(_) => {
                    "report --by phase shows sampling by sampler, tokenizing and the rest of it".into()
                }
                None => "record --phases shows sampling, tokenizing and the rest of it".into(),
            },
            "a grammar, probabilities (n_probs) and long sampler chains cost time for each token".into(),
        ],
        gain: None,
        confidence: Confidence::Medium,
        evidence: format!(
            "{in_calls:.2} tok/s in calls, {wall:.2} with the time between them{}",
            sampling.map(took).unwrap_or_default()
        ),
        disproof: "without sampling, the client gets as many tokens per second as before".into(),
        trade_off: None,
    })
}

/// How long sampling took, and the sampler that took most of it.
fn took(s: &Sampling) -> String {
    let ms = |ns: u64| ns as f64 / 1e6;
    let most = s.samplers.iter().flatten().next();
    let most =
        most.and_then(|r| Some(format!(", {:.1} ms of it the sampler {}", ms(r.total_ns), r.name.as_ref()?)));
    format!("; sampling took {:.1} ms in all{}", ms(s.total_ns), most.unwrap_or_default())
}
