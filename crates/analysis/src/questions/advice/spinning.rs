//! Threads that spin while nothing is computed: the engine costs CPUs between its calls.

use super::rule::{Advice, Confidence, RuleInput};

/// Time without a call, at least, and CPUs that the threads use in it.
const IDLE_NS: u64 = 3_000_000_000;
const CPUS: f64 = 0.5;

pub fn rule(r: &RuleInput<'_>) -> Option<Advice> {
    let report = r.facts.report;
    let idle = report
        .usage
        .iter()
        .filter_map(|u| u.idle)
        .find(|idle| idle.ns >= IDLE_NS && idle.team_cpus.is_some_and(|n| n >= CPUS))?;
    let busy = idle.team_cpus?;
    Some(Advice {
        rule: "idle-spin",
        title: format!("let threads sleep between calls: they use {busy:.2} CPUs while nothing is computed"),
        actions: vec![
            "without OMP_WAIT_POLICY=active, GOMP_SPINCOUNT and KMP_BLOCKTIME in the engine's environment"
                .into(),
        ],
        gain: None,
        confidence: Confidence::Medium,
        evidence: format!(
            "in {:.1} s without a call, the threads that compute with the caller used {busy:.2} CPUs",
            idle.ns as f64 / 1e9
        ),
        disproof: "with it, they use as much without a call".into(),
        trade_off: None,
    })
}
