//! Formats the matrix multiplications of several recordings, as a table of their lines.

use crate::section::Section;
use crate::table::{Table, number, text};
use crate::units::*;
use analysis::questions::stat::work::ModelProducts;

/// One row for each recording.
pub(crate) fn models(found: &[ModelProducts], phase: &str) -> Section {
    let mut t = Table::new(vec![
        number("GB/s", 0),
        number("at 0 us", 0),
        number("R2", 0),
        number("shapes", 0),
        number("threads", 0),
        text("file"),
    ]);
    for m in found {
        let fit = m.products.bytes;
        t.row(vec![
            or_dash(fit.and_then(|f| f.giga_per_s), |g| format!("{g:.2}")),
            or_dash(fit, |f| us(f.at_zero_ns)),
            or_dash(fit, |f| format!("{:.4}", f.r2)),
            fit.map_or(0, |f| f.points).to_string(),
            m.threads.to_string(),
            m.file.clone(),
        ]);
    }
    let title = format!("Matrix multiplications by recording, time against bytes, {phase}");
    Section { title, table: Some(t), notes: notes().iter().map(|n| (*n).to_owned()).collect() }
}

/// How the lines were fitted.
pub(crate) fn notes() -> [&'static str; 2] {
    [
        "GB/s: the slope of the line through the multiplications of a recording, without what each of them costs at no bytes.",
        "The products of attention (KQ and KQV) are in no line: their cache grows while the recording runs.",
    ]
}
