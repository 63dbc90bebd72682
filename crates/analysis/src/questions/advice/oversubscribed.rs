//! More threads than CPUs: a thread that spins at a barrier takes the CPU from the one it waits for.

use super::rule::{Advice, Confidence, RuleInput, pct, uncrowded};
use crate::questions::verdict::limit::LimitKind;

/// Threads without a CPU from this share of the time on.
const SHARE: f64 = 0.15;
/// A CPU with this share of the op time was used.
const SEEN: f64 = 0.05;

pub fn rule(r: &RuleInput<'_>) -> Option<Advice> {
    let p = r.main()?;
    let cpus = &r.facts.cpus;
    let known = cpus.allowed.filter(|n| *n < p.threads);
    let waiting = p.bar?.waiting_for_cpu;
    // Threads that were seen on as many CPUs, or never waited for one, share none.
    let used = cpus.time.iter().filter(|(_, share)| *share >= SEEN).count();
    if used >= p.threads as usize || waiting.is_some_and(|share| share < SHARE) {
        return None;
    }
    let displaced = r.limit.is_some_and(|l| l.kind == LimitKind::Oversubscription)
        && waiting.is_some_and(|share| share >= SHARE);
    // Without the mask, the CPUs that threads were seen on are an upper bound only if they displaced each other.
    let n = match known {
        Some(n) => n,
        None if displaced => u32::try_from(cpus.used.len()).ok().filter(|n| (1..p.threads).contains(n))?,
        None => return None,
    };
    let mut evidence = format!("{} threads on {n} CPU{}", p.threads, if n == 1 { "" } else { "s" });
    if let Some(share) = waiting {
        evidence += &format!("; threads were runnable without a CPU {} of the time", pct(share));
    }
    let mut actions = vec![format!("-t {n}")];
    if cpus.online > n && known.is_some() {
        let all = cpus.online - 1;
        actions.push(format!(
            "or give it more CPUs: taskset -acp 0-{all} PID (or remove the mask it is started with)"
        ));
    }
    Some(Advice {
        rule: "oversubscribed",
        title: format!(
            "use {n} thread{} or allow more CPUs: {} threads share {n}",
            if n == 1 { "" } else { "s" },
            p.threads
        ),
        actions,
        gain: uncrowded(r, p, n, n),
        confidence: if known.is_some() { Confidence::High } else { Confidence::Medium },
        evidence,
        disproof: "with as many threads as CPUs, threads are still runnable without a CPU".into(),
        trade_off: None,
    })
}
