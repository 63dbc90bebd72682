//! Many small operators: a barrier after each costs more than the work.

use super::rule::{Advice, Confidence, RuleInput, pct};
use crate::sums::attribution::verdict::Bound;

/// From this share of the graphs' time on.
const SHARE: f64 = 0.3;

pub fn rule(r: &RuleInput<'_>) -> Option<Advice> {
    let p = r.main().filter(|p| p.threads > 1)?;
    let small =
        |o: &crate::sums::tables::OpRow| o.verdict.as_ref().is_some_and(|v| v.bound == Bound::Overhead);
    let whole = p.graph_ns * p.graphs as f64;
    let share = p
        .names
        .iter()
        .filter(|o| o.calls > 0 && small(o))
        .map(|o| o.share + o.wait_ns.unwrap_or(0) as f64 / whole)
        .sum::<f64>();
    (share >= SHARE).then(|| Advice {
        rule: "small-operators",
        title: "measure with fewer threads: most of the time goes into starting small operators".into(),
        actions: vec![r.tune()],
        gain: None,
        confidence: Confidence::Low,
        evidence: format!(
            "operators too small for {} threads, and the barriers after them, take {}",
            p.threads,
            pct(share)
        ),
        disproof: "with fewer threads, a token takes longer".into(),
        trade_off: None,
    })
}
