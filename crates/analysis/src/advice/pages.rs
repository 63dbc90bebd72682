//! Weights in small pages, far from the memory ceiling.

use super::rule::{Advice, Confidence, RuleInput, pct};

/// Below this share of the ceiling, something other than bandwidth limits.
const FAR: f64 = 0.5;
/// Weights that exceed what the second-level TLB of small pages covers many times over.
const LARGE: f64 = (256 << 20) as f64;

pub fn rule(r: &RuleInput<'_>) -> Option<Advice> {
    let p = r.facts.decode()?;
    let reached = r.reached(p.phase).filter(|share| *share < FAR)?;
    let memory = r.facts.memory.as_ref()?;
    let weights = p.weights.as_ref()?.bytes;
    let small = memory.huge_mode.as_deref().is_some_and(|mode| mode != "always");
    if !small || weights < LARGE || (memory.resident? as f64) < weights || memory.huge? as f64 > weights / 2.0
    {
        return None;
    }
    Some(Advice {
        rule: "huge-pages",
        title: "try huge pages for the weights".into(),
        actions: vec!["echo always > /sys/kernel/mm/transparent_hugepage/enabled (with --no-mmap)".into()],
        gain: None,
        confidence: Confidence::Low,
        evidence: format!(
            "{} of the memory ceiling reached; of {:.0} MB resident, {:.0} MB are in huge pages",
            pct(reached),
            memory.resident? as f64 / 1e6,
            memory.huge? as f64 / 1e6
        ),
        disproof: "AnonHugePages grows, and a token takes as long as before".into(),
        trade_off: None,
    })
}
