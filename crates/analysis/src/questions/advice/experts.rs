//! Experts that are read from storage again and again.

use super::rule::{Advice, Confidence, RuleInput, pct};

/// From this share of the experts' calls on.
const SHARE: f64 = 0.05;

pub fn rule(r: &RuleInput<'_>) -> Option<Advice> {
    let miss = r.facts.misses?;
    let calls = miss.with_faults + miss.without;
    let share = miss.with_faults as f64 / calls.max(1) as f64;
    if share < SHARE || miss.with_faults == 0 {
        return None;
    }
    let mean = |ns: u64, n: u64| (n > 0).then(|| ns as f64 / n as f64);
    let slower = mean(miss.with_faults_ns, miss.with_faults).zip(mean(miss.without_ns, miss.without));
    let slower = slower
        .map_or_else(String::new, |(with, without)| format!("; they take {:.1}x as long", with / without));
    Some(Advice {
        rule: "experts",
        title: "keep the experts in memory: a part of their calls waits for storage".into(),
        actions: {
            let gpu = "with a GPU: --n-cpu-moe N keeps the other layers on it and their memory free";
            super::faults::keep(r, "the experts").into_iter().chain([gpu.to_owned()]).collect()
        },
        gain: None,
        confidence: Confidence::Medium,
        evidence: format!("{} of the experts' multiplications had major page faults{slower}", pct(share)),
        disproof: "with the experts locked, their major page faults remain".into(),
        trade_off: None,
    })
}
