//! Threads of one team take unequally long.

use super::rule::{Advice, Confidence, RuleInput, pct};
use crate::questions::verdict::limit::{LimitKind, is_op};

/// Slowest thread over the mean, weighted by time; and the share of the time at barriers.
const UNEVEN: f64 = 1.3;
const SHARE: f64 = 0.15;

pub fn rule(r: &RuleInput<'_>) -> Option<Advice> {
    let p = r.main().filter(|p| p.threads > 1)?;
    // While a thread has no CPU, or waits for storage, the others wait for it.
    let behind =
        [LimitKind::CpuContention, LimitKind::Oversubscription, LimitKind::Throttling, LimitKind::PageFaults];
    if r.limit.is_some_and(|limit| behind.contains(&limit.kind)) {
        return None;
    }
    let waiting = p.bar?.barrier.filter(|share| *share >= SHARE)?;
    let ops: Vec<_> = p.ops.iter().filter(|o| is_op(o)).filter_map(|o| Some((o, o.imbalance?))).collect();
    let all: f64 = ops.iter().map(|(o, _)| o.total_ns as f64).sum();
    let mean = ops.iter().map(|(o, n)| n * o.total_ns as f64).sum::<f64>() / all;
    let (worst, _) = ops.iter().max_by(|a, b| (a.1 * a.0.share).total_cmp(&(b.1 * b.0.share)))?;
    // With two threads an op that only one of them computes has 2.
    (mean.is_finite() && mean >= UNEVEN && waiting < 1.0).then(|| Advice {
        rule: "imbalance",
        title: format!(
            "measure with other numbers of threads: they take unequally long (slowest {mean:.2}x the mean)"
        ),
        actions: vec![r.tune(), "profinfer stat FILE threads shows what each thread did".into()],
        gain: None,
        confidence: Confidence::Low,
        evidence: format!(
            "threads wait at barriers {} of the time; most uneven: {}",
            pct(waiting),
            worst.name
        ),
        disproof: "no other number of threads is faster".into(),
        trade_off: None,
    })
}
