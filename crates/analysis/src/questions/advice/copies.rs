//! Copies between backends take much of a call.

use super::fallback;
use super::rule::{Advice, Confidence, RuleInput, pct};
use crate::sums::offload::CopyRow;

/// From this share of a call on.
const SHARE: f64 = 0.2;

pub fn rule(r: &RuleInput<'_>) -> Option<Advice> {
    let p = r.main()?;
    let work = r.devices()?;
    let between = work.offload.between_splits;
    if between.pairs == 0 || between.unseen.saturating_mul(2) > between.pairs {
        return None;
    }
    let share = work.a_call(between.ns) / p.call_ns();
    let known = || work.offload.copies.iter().filter_map(|c| Some((c, c.bytes.filter(|n| *n > 0)?)));
    let all = known().fold(0_u64, |sum, (_, bytes)| sum.saturating_add(bytes));
    let (most, bytes) = known().max_by_key(|(_, bytes)| *bytes)?;
    // What is copied for and from nodes on the CPU, their rule says.
    if share < SHARE || (!is_weight(most) && fallback::left(work.offload).next().is_some()) {
        return None;
    }
    Some(Advice {
        rule: "device-copies",
        title: format!("copies between backends take much of a call, most of them {}", most.name),
        actions: actions(most),
        gain: None,
        confidence: Confidence::Medium,
        evidence: format!(
            "between splits, where the scheduler copies, pass {} of a call; {:.1} kB a graph are copied, {:.1} kB of them \
             {} to {}",
            pct(share),
            work.a_graph(all) / 1e3,
            work.a_graph(bytes) / 1e3,
            most.name,
            most.to
        ),
        disproof: "without these copies, a token takes as long as before".into(),
        trade_off: None,
    })
}

fn is_weight(copy: &CopyRow) -> bool {
    copy.name.contains(".weight") || copy.name.contains(".bias")
}

fn actions(most: &CopyRow) -> Vec<String> {
    let first = match () {
        () if is_weight(most) => {
            "keep these weights on the device: -ngl, a lower --n-cpu-moe, -ot; or -nopo: the CPU computes where they are"
        }
        () if most.name.starts_with("cache_") => {
            "-ctk and -ctv with types that the device computes; without -nkvo"
        }
        () => "fewer splits: all layers on one device (-ngl 999, -sm none)",
    };
    vec![first.into(), "profinfer report FILE --all: Copied between backends".into()]
}
