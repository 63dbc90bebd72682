//! Batches given to an NPU, as a table.

use crate::section::Section;
use crate::table::{Table, number, text};
use crate::units::*;
use analysis::sums::offload::{BackendWork, BatchSum};

/// A row for each backend with batches; `None` without any.
pub fn section(backends: &[BackendWork], phase: &str, graphs: u64) -> Option<Section> {
    let with: Vec<(&BackendWork, &BatchSum)> =
        backends.iter().filter_map(|b| Some((b, b.batches.as_ref()?))).collect();
    let mut t = Table::new(vec![
        number("batches", 0),
        number("us", 0),
        number("RPC us/batch", 0),
        number("NPU us/batch", 0),
        text("backend"),
    ]);
    for (b, sum) in &with {
        // A graph may have several splits: the mean is over as many graphs as the splits that were seen make up.
        let per = |n: u64| n as f64 * b.splits as f64 / (graphs as f64 * sum.splits as f64).max(1.0);
        let answered = (sum.answered > 0).then_some(sum.answered as f64);
        t.row(vec![
            format!("{:.1}", per(sum.written)),
            answered.map_or("-".into(), |_| us(per(sum.busy_ns))),
            answered.map_or("-".into(), |n| us(sum.rpc_ns as f64 / n)),
            sum.npu_ns.map_or("-".into(), |ns| us(ns as f64 / sum.timed.max(1) as f64)),
            b.backend.clone(),
        ]);
    }
    let notes = with.iter().flat_map(|(b, sum)| {
        let splits = b.splits.saturating_sub(sum.splits);
        let seen = (splits > 0)
            .then(|| format!("{}: not seen in {splits} of {}", b.backend, count(b.splits, "split")));
        seen.into_iter().chain(unknown(sum))
    });
    let title =
        format!("Batches for an NPU, {phase} (per graph; us: while one was on its way, RPC included)");
    let notes = notes.collect();
    (!with.is_empty()).then_some(Section { title, table: Some(t), notes })
}

/// What is not known of the batches, and why.
fn unknown(sum: &BatchSum) -> impl Iterator<Item = String> {
    let unanswered = sum.written.saturating_sub(sum.answered);
    let of = count(sum.answered, "response");
    let told = [
        (unanswered, format!("no response was seen to {unanswered} of {} written", sum.written)),
        (
            sum.unprofiled,
            format!(
                "NPU time unknown in {} of {of}: the engine did not profile (GGML_HEXAGON_PROFILE=1)",
                sum.unprofiled
            ),
        ),
        (
            sum.timeless,
            format!("NPU time unknown in {} of {of}: this version's response does not say it", sum.timeless),
        ),
        (
            sum.unknown_layout,
            format!("NPU time unknown in {} of {of}: a response of unknown size", sum.unknown_layout),
        ),
    ];
    told.into_iter().filter(|(n, _)| *n > 0).map(|(_, text)| text)
}
