//! Pages of the model are read from storage while it computes.

use super::rule::{Advice, Confidence, RuleInput, pct};
use crate::attribution::pass::MAJOR_FAULTS;
use crate::verdict::facts::PhaseFacts;

/// Off-CPU in page faults and I/O, from this share of the time on.
const SHARE: f64 = 0.05;

pub fn rule(r: &RuleInput<'_>) -> Option<Advice> {
    let p = r.main()?;
    let off = p.bar?.faults.filter(|share| *share >= SHARE);
    let counted = major_faults(p);
    let per_call = counted.map(|n| n as f64 / p.graphs.max(1) as f64 * p.graphs_a_call);
    let many = per_call.filter(|n| *n >= 1.0);
    if off.is_none() && many.is_none() {
        return None;
    }
    let mut evidence: Vec<String> = off
        .map(|s| format!("threads were off-CPU in page faults and I/O {} of the time", pct(s)))
        .into_iter()
        .collect();
    evidence.extend(many.map(|n| format!("{n:.1} major page faults a call")));
    Some(Advice {
        rule: "major-faults",
        title: "keep the model in memory: its pages are read from storage while it computes".into(),
        actions: keep(r, "the model"),
        gain: None,
        confidence: if off.is_some() { Confidence::High } else { Confidence::Medium },
        evidence: evidence.join("; "),
        disproof: "with the model locked, major page faults remain".into(),
        trade_off: None,
    })
}

/// How to keep the model, or a part of it, in memory. In a group with a memory limit, nothing may be locked before it fits:
/// the kernel kills what exceeds the limit.
pub fn keep(r: &RuleInput<'_>, what: &str) -> Vec<String> {
    match r.facts.memory_limit {
        Some(limit) => vec![
            format!(
                "raise the memory limit of its cgroup ({}), now {:.1} MB",
                limit.group,
                limit.bytes as f64 / 1e6
            ),
            format!("or a smaller quantisation of {what}"),
        ],
        None => vec![
            format!("--mlock (builds of 2026: --load-mode mlock), if there is memory for {what}"),
            format!("or --no-mmap; or a smaller quantisation of {what}; or free memory"),
        ],
    }
}

/// Counted over all ops; `None` if they were not counted.
fn major_faults(p: &PhaseFacts) -> Option<u64> {
    let rows = p.ops.iter().filter_map(|o| o.counted.as_ref());
    let of = rows.flat_map(|c| &c.counters).filter(|c| c.name == MAJOR_FAULTS);
    of.filter_map(|c| c.total).reduce(u64::saturating_add)
}
