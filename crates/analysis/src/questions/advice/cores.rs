//! Threads on slow cores of a machine with unequal ones: the fast ones wait for them at each barrier.

use super::rule::{Advice, Confidence, RuleInput};

pub fn rule(r: &RuleInput<'_>) -> Option<Advice> {
    let p = r.main()?;
    let clusters = &r.facts.report.run.clusters;
    let (fast, rest) = clusters.split_first()?;
    let slow: Vec<u32> = rest.iter().flat_map(|c| c.cpus.iter().copied()).collect();
    let on_slow = r.facts.cpus.on(&slow)?;
    let on_fast = r.facts.cpus.on(&fast.cpus)?;
    if p.threads < 2 || on_slow < 0.05 || on_fast < 0.05 {
        return None;
    }
    let n = u32::try_from(fast.cpus.len()).ok()?.min(p.threads);
    let list: Vec<String> = fast.cpus.iter().map(u32::to_string).collect();
    let (list, mask) =
        (list.join(","), fast.cpus.iter().fold(0u64, |m, c| m | 1u64.checked_shl(*c).unwrap_or(0)));
    Some(Advice {
        rule: "slow-cores",
        title: format!("keep the threads on the fast cores (CPU {list}), {n} of them"),
        actions: vec![
            format!("taskset -c {list} COMMAND -t {n}"),
            format!("or -t {n} -C 0x{mask:x} --cpu-strict 1"),
        ],
        gain: None,
        confidence: Confidence::Medium,
        evidence: format!(
            "{:.0} % of the op time was on slow cores, while others of the team were on fast ones",
            on_slow * 100.0
        ),
        disproof: "on the fast cores alone, a token takes as long or longer (measure both: profinfer diff)"
            .into(),
        trade_off: None,
    })
}
