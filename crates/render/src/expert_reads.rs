//! Experts that were read from the disk while a recording ran, by layer.

use super::section::Section;
use super::table::{Table, number, text};
use super::units::{bytes, count, or_dash, pct};
use analysis::questions::experts::ExpertCaches;
use analysis::questions::experts::missed::{ExpertReads, ReadExpert};

/// Experts of a layer that are listed.
const LISTED: usize = 4;

/// The reads as a section; None if none were recorded.
pub fn section(found: &ExpertCaches) -> Option<Section> {
    let reads = found.reads.as_ref()?;
    let per_token = |n: u64| n as f64 / found.tokens.max(1) as f64;
    let mut t = Table::new(vec![
        number("layer", 0),
        number("needed", 2),
        number("hit %", 0),
        number("read/token", 0),
        number("bytes/token", 0),
        number("ahead/token", 1),
        text("most bytes read"),
    ]);
    for l in &reads.layers {
        let hits = (l.needed > 0).then(|| 1.0 - l.missed as f64 / l.needed as f64);
        let one = |e: &ReadExpert| format!("{} ({})", e.expert, bytes(e.bytes as f64));
        t.row(vec![
            l.layer.to_string(),
            l.needed.to_string(),
            or_dash(hits, pct),
            format!("{:.2}", per_token(l.missed)),
            bytes(per_token(l.needed_bytes)),
            bytes(per_token(l.ahead_bytes)),
            l.experts.iter().take(LISTED).map(one).collect::<Vec<_>>().join("  "),
        ]);
    }
    Some(Section {
        title: "Experts read from the disk, decode".into(),
        table: Some(t),
        notes: notes(reads, &per_token),
    })
}

fn notes(reads: &ExpertReads, per_token: &dyn Fn(u64) -> f64) -> Vec<String> {
    let rate = reads.hit_rate.map_or_else(String::new, |rate| {
        format!("{} % of {} were in memory; ", pct(rate), count(reads.needed, "needed expert"))
    });
    let [needed, ahead, other] =
        [reads.needed_bytes, reads.ahead_bytes, reads.other_bytes].map(|n| bytes(per_token(n)));
    vec![
        format!(
            "{rate}a token read {needed} of the experts that it needed, {ahead} of others (read ahead), {other} of anything else"
        ),
        format!(
            "whole recording: {} of {} were of experts; {}",
            bytes(reads.all_expert_bytes as f64),
            bytes(reads.all_bytes as f64),
            reads.how
        ),
        "read: any part of it came into the page cache during the call, while its graph ran or since the one before".into(),
    ]
}
