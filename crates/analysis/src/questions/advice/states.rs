//! States of finished prompts that are kept in memory, and none of which is used again.

use super::rule::{Advice, Confidence, RuleInput};

/// States, at least; and what the memory has grown by, as a share of what it was.
const SAVED: u64 = 8;
const GROWN: f64 = 0.1;

pub fn rule(r: &RuleInput<'_>) -> Option<Advice> {
    let of = r.facts.saved;
    let [before, after] = of.resident?;
    let grown = after.saturating_sub(before) as f64;
    (of.saved >= SAVED && of.loaded == 0 && grown >= before as f64 * GROWN).then(|| Advice {
        rule: "saved-states",
        title: "limit the prompt cache in memory: none of its states was used again".into(),
        actions: vec!["--cache-ram 0, or a number of MiB (default: 8192)".into()],
        gain: None,
        confidence: Confidence::Medium,
        evidence: format!(
            "{} states of sequences were saved and none was loaded; resident memory grew from {:.1} MB to {:.1} MB",
            of.saved,
            before as f64 / 1e6,
            after as f64 / 1e6
        ),
        disproof: "with it, memory grows as much".into(),
        trade_off: Some("prompts that come again are computed again"),
    })
}
