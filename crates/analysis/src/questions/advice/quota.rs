//! A CPU quota of the control group: all threads stand still for the rest of each period.

use super::rule::{Advice, Confidence, RuleInput, gain, pct};
use crate::questions::verdict::limit::LimitKind;

/// Share of periods that were cut short.
const THROTTLED: f64 = 0.05;

pub fn rule(r: &RuleInput<'_>) -> Option<Advice> {
    let p = r.main()?;
    let cpus = &r.facts.cpus;
    let waiting = p.bar?.waiting_for_cpu.unwrap_or(0.0);
    let seen = r.limit.is_some_and(|l| l.kind == LimitKind::Throttling) && waiting >= THROTTLED;
    let counted = cpus.throttled.is_some_and(|share| share >= THROTTLED);
    if !counted && !seen {
        return None;
    }
    let quota = cpus.quota.map_or_else(String::new, |n| format!(" of {n:.2} CPUs"));
    let mut evidence = vec![format!("a quota{quota} on {} threads", p.threads)];
    if let Some(share) = cpus.throttled {
        evidence.push(format!("{} of its periods were cut short", pct(share)));
    }
    let whole = cpus.quota.map(|n| (n.floor() as u32).max(1)).filter(|n| *n < p.threads);
    let mut actions = vec![format!(
        "raise the quota to {} CPUs or more (systemctl set-property UNIT CPUQuota={}%)",
        p.threads,
        p.threads * 100
    )];
    actions.extend(whole.map(|n| format!("or -t {n}: fewer threads use up the quota later")));
    // Without the quota a call takes as long as its threads compute.
    let replay = super::rule::replayed(r, p);
    Some(Advice {
        rule: "cpu-quota",
        title: format!("raise the CPU quota{quota}, or use fewer threads"),
        actions,
        gain: replay.and_then(|then| gain(p.phase, p.call_ns(), then)),
        confidence: if counted { Confidence::High } else { Confidence::Medium },
        evidence: evidence.join("; "),
        disproof: "with a higher quota, nr_throttled of the group still grows".into(),
        trade_off: None,
    })
}
