//! Fewer threads than CPUs, far from every ceiling.

use super::rule::{Advice, Confidence, RuleInput, pct};

/// Below this share of the ceiling another thread may help; and the least share of the time spent computing.
const FAR: f64 = 0.6;
const COMPUTING: f64 = 0.8;

pub fn rule(r: &RuleInput<'_>) -> Option<Advice> {
    let p = r.main()?;
    let allowed = r.facts.cpus.allowed.unwrap_or(r.facts.cpus.online);
    let reached = r.reached(p.phase).filter(|share| *share < FAR)?;
    let computing = p.bar?.computing;
    // On a machine with unequal cores, the fast ones may all be in use.
    let fast = r.facts.report.run.clusters.first().map_or(allowed, |c| c.cpus.len() as u32);
    // A thread beyond the quota only makes the others wait longer.
    let within = r.facts.cpus.quota.map_or(u32::MAX, |cpus| (cpus as u32).max(1));
    let most = allowed.min(fast).min(within);
    (p.threads < most && computing >= COMPUTING && p.threads > 0).then(|| Advice {
        rule: "more-threads",
        title: format!("try {most} threads: {} of {most} CPUs are used", p.threads),
        actions: vec![format!("-t {most}")],
        gain: None,
        confidence: Confidence::Low,
        evidence: format!(
            "{} of the ceiling reached, {} of the time spent computing",
            pct(reached),
            pct(computing)
        ),
        disproof: format!("with {most} threads, a token takes as long or longer"),
        trade_off: None,
    })
}
