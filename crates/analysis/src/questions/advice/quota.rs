//! A CPU quota of the control group: all threads stand still for the rest of each period.

use super::rule::{Advice, Confidence, RuleInput, gain, pct};
use crate::questions::verdict::limit::LimitKind;

/// Share of periods that were cut short, and CPUs that stood still for it: a group may reach the end of a period by a hair.
const THROTTLED: f64 = 0.05;
const STOOD: f64 = 0.05;

pub fn rule(r: &RuleInput<'_>) -> Option<Advice> {
    let p = r.main()?;
    let cpus = &r.facts.cpus;
    let waiting = p.bar?.waiting_for_cpu.unwrap_or(0.0);
    let seen = r.limit.is_some_and(|l| l.kind == LimitKind::Throttling) && waiting >= THROTTLED;
    let counted = cpus.throttled.is_some_and(|share| share >= THROTTLED)
        && cpus.stood_still.is_some_and(|cpus| cpus >= STOOD);
    if !counted && !seen {
        return None;
    }
    let quota = cpus.quota.map_or_else(String::new, |n| format!(" of {n:.2} CPUs"));
    let threads = if p.threads == 1 { "1 thread".into() } else { format!("{} threads", p.threads) };
    let mut evidence = vec![format!("a quota{quota} on {threads}")];
    if let Some(share) = cpus.throttled {
        evidence.push(format!("{} of its periods were cut short", pct(share)));
    }
    let (title, actions) = remedy(cpus.quota, &quota, p.threads);
    // Without the quota a call takes as long as its threads compute.
    let replay = super::rule::replayed(r, p);
    Some(Advice {
        rule: "cpu-quota",
        title,
        actions,
        gain: replay.and_then(|then| gain(p.phase, p.call_ns(), then)),
        confidence: if counted { Confidence::High } else { Confidence::Medium },
        evidence: evidence.join("; "),
        disproof: "with a higher quota, nr_throttled of the group still grows".into(),
        trade_off: None,
    })
}

/// The title, and what to do. A quota of a CPU for each thread is used up by something else in the group, too.
fn remedy(quota: Option<f64>, named: &str, threads: u32) -> (String, Vec<String>) {
    let spare = quota.filter(|n| *n >= f64::from(threads)).map(|n| n.floor() as u32);
    let enough = spare.map_or(threads, |n| n + 1);
    let cpus = if enough == 1 { "1 CPU".into() } else { format!("{enough} CPUs") };
    let percent = enough * 100;
    let raise =
        format!("raise the quota to {cpus} or more (systemctl set-property UNIT CPUQuota={percent}%)");
    let fewer = quota.map(|n| (n.floor() as u32).max(1)).filter(|n| *n < threads);
    let (what, or) = match (spare, fewer) {
        (Some(_), _) => (
            ": other threads in its control group use it up",
            Some("or run what else is in its control group outside of it".into()),
        ),
        (None, Some(n)) => {
            (", or use fewer threads", Some(format!("or -t {n}: fewer threads use up the quota later")))
        }
        (None, None) if threads > 1 => (", or use fewer threads", None),
        (None, None) => ("", None),
    };
    (format!("raise the CPU quota{named}{what}"), [Some(raise), or].into_iter().flatten().collect())
}
