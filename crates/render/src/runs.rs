//! Formats the table of a recording's runs: its processes, and the contexts of a process that has several.

use super::section::{SectionItem, said};
use super::table::{Table, number, text};
use super::units::{bytes, or_dash};
use analysis::recorded::model::ModelFacts;
use analysis::recorded::runs::RunRow;

/// Rows of the table; JSON has all of them.
const SHOWN: usize = 32;

/// The table, and which run the figures are of; no table if the recording has one run. If a run may be of several
/// models, a note always says so.
pub(super) fn lines(runs: &[RunRow]) -> Vec<SectionItem> {
    let mut out = Vec::new();
    let shown = runs.iter().find(|r| r.shown);
    if let (Some(shown), true) = (shown, runs.len() > 1) {
        out.push(SectionItem::Table(table(runs, shown)));
        if runs.len() > SHOWN {
            out.push(said("note", format!("{} more runs (--json lists them)", runs.len() - SHOWN)));
        }
        let other = runs.iter().find(|r| !r.shown).map_or_else(|| shown.id(), RunRow::id);
        let of = format!("all figures below are for {}; --pid {other} selects another", shown.id());
        out.push(said("shown", of));
    }
    out.extend(shown.and_then(|r| r.mixed).map(|why| said("note", why)));
    out
}

/// The same without the table.
pub(crate) fn short(runs: &[RunRow]) -> Vec<String> {
    let facts = lines(runs).into_iter().filter_map(|item| match item {
        SectionItem::Fact(_, text) => Some(text),
        SectionItem::Table(_) => None,
    });
    facts.collect()
}

/// The shown run is always included, however many come before it.
fn table(runs: &[RunRow], shown: &RunRow) -> Table {
    let mut t = Table::new(vec![
        text("process"),
        number("calls", 0),
        number("tokens", 0),
        number("prefill tok/s", 0),
        number("decode tok/s", 0),
        text("shown"),
        text("model"),
        text("command"),
    ]);
    let first = runs.iter().take(SHOWN).any(|r| r.shown);
    let rows = runs.iter().take(SHOWN).chain(Some(shown).filter(|_| !first));
    for r in rows {
        let rate = |v: Option<f64>| or_dash(v, |v| format!("{v:.2}"));
        t.row(vec![
            r.id().to_string(),
            r.calls.to_string(),
            or_dash(r.tokens.filter(|_| r.calls > 0), |n| n.to_string()),
            rate(r.prefill_tokens_per_s),
            rate(r.decode_tokens_per_s),
            match (r.shown, r.draft) {
                (true, _) => "yes".into(),
                (_, true) => "draft model".into(),
                _ => String::new(),
            },
            model(&r.model),
            r.command.clone(),
        ]);
    }
    t
}

/// `2 layers, embedding 64, 150.0 KiB`.
fn model(m: &ModelFacts) -> String {
    let layers = m.layers.map(|n| format!("{n} layers"));
    let width = m.embedding.map(|n| format!("embedding {n}"));
    let weights = (m.weight_bytes > 0).then(|| bytes(m.weight_bytes as f64));
    let known: Vec<String> = [layers, width, weights].into_iter().flatten().collect();
    if known.is_empty() { "-".into() } else { known.join(", ") }
}
