//! States of finished prompts that are kept in memory, and none of which is used again.

use super::rule::{Advice, Confidence, RuleInput};

/// States, at least; and what the process's own memory has grown by, as a share of what it was.
const SAVED: u64 = 8;
const GROWN: f64 = 0.1;

pub fn rule(r: &RuleInput<'_>) -> Option<Advice> {
    let of = r.facts.saved;
    let grown = of.growth.filter(|g| g.bytes as f64 >= g.before as f64 * GROWN)?;
    (of.saved >= SAVED && of.loaded == 0).then(|| Advice {
        rule: "saved-states",
        title: "limit the prompt cache in memory: none of its states was used again".into(),
        actions: vec!["--cache-ram 0, or a number of MiB (default: 8192)".into()],
        gain: None,
        confidence: Confidence::Medium,
        evidence: format!(
            "{} states of sequences were saved and none was loaded; the process's own memory grew from {:.1} MB by {:.1} MB \
             in {} requests",
            of.saved,
            grown.before as f64 / 1e6,
            grown.bytes as f64 / 1e6,
            grown.requests
        ),
        disproof: "with it, memory grows as much".into(),
        trade_off: Some("prompts that come again are computed again"),
    })
}
