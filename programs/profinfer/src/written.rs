//! The verdict on a trace just written.

use std::io::{self, Write};
use std::path::Path;

use super::reading::with_bar;
use analysis::questions::report::{ReportOptions, try_report};
use analysis::recorded::load::LoadProgress;
use pfi::Trace;
use render::table::clean;

/// Larger traces are not read again for the verdict: it would keep the user waiting.
const READ_AT_ONCE: u64 = 64 << 20;

/// Prints the verdict on a trace of this size; if there is none, the command that shows the trace. No size: it has
/// nothing for a verdict.
pub fn verdict_or_next(output: &Path, bytes: Option<u64>) {
    if bytes.and_then(|bytes| verdict(output, bytes)).is_none() {
        // A closed standard error is no error: the trace is written.
        let _ = writeln!(io::stderr(), "next: profinfer report {}", clean(&output.display().to_string()));
    }
}

fn verdict(output: &Path, bytes: u64) -> Option<()> {
    if bytes > READ_AT_ONCE {
        return None;
    }
    let trace = Trace::open(output).ok()?;
    let options = ReportOptions { verdict: true, ..ReportOptions::default() };
    let progress = LoadProgress::default();
    let report = with_bar(&progress, || try_report(&trace, &options, &progress)).ok()?;
    let style = super::report::style_of(&io::stderr());
    render::verdict::write(&mut io::stderr().lock(), &report, &output.to_string_lossy(), &style).ok()
}
