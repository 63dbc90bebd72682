//! Fewer threads than CPUs, and either more threads that can reach a higher ceiling, or a ceiling that is far away.

use super::rule::{Advice, Confidence, RuleInput, pct};

/// Below this share of the ceiling another thread may help; and the least share of the time spent computing.
const FAR: f64 = 0.6;
const COMPUTING: f64 = 0.8;

pub fn rule(r: &RuleInput<'_>) -> Option<Advice> {
    let p = r.main()?;
    let usable = r.facts.cpus.usable()?;
    let reached = r.reached(p.phase)?;
    let computing = p.bar?.computing;
    // On a machine with unequal cores, the fast ones may all be in use.
    let fast = r.facts.report.run.clusters.first().map_or(usable, |c| c.cpus.len() as u32);
    let most = usable.min(fast);
    if p.threads == 0 || p.threads >= most || computing < COMPUTING {
        return None;
    }
    let phase = r.phases.iter().find(|v| v.phase == p.phase)?;
    let higher = phase.ceiling.as_ref().zip(phase.machine.as_ref());
    let (n, higher) = match higher {
        Some((run, machine)) => {
            let n = machine.threads.unwrap_or(most).min(most);
            (n, format!("; the ceiling with {n} is {:.2} times as high", run.reached / machine.reached))
        }
        None if reached < FAR => (most, String::new()),
        None => return None,
    };
    Some(Advice {
        rule: "more-threads",
        title: format!("try {n} threads: {} of {most} CPUs are used{higher}", p.threads),
        actions: vec![format!("-t {n}")],
        gain: None,
        confidence: Confidence::Low,
        evidence: format!(
            "{} of the ceiling reached, {} of the time spent computing{higher}",
            pct(reached),
            pct(computing)
        ),
        disproof: format!("with {n} threads, a token takes as long or longer"),
        trade_off: None,
    })
}
