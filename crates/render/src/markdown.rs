//! The report as Markdown (CommonMark with the tables of GitHub): the text views with another [`Style`].

use std::io::{self, Write};

use super::table::Style;
use super::{text, verdict};
use analysis::questions::report::Report;

/// Writes the verdict as text to be shown as it is, and the requested tables. `file` is the trace's name.
pub fn write(out: &mut dyn Write, report: &Report, file: &str, verbose: bool) -> io::Result<()> {
    // Foreign text has no line ends, and each line of the verdict is indented or begins with a word of ours: none ends it.
    writeln!(out, "```text")?;
    verdict::write(out, report, file, &Style::default())?;
    writeln!(out, "```\n")?;
    text::all(out, report, verbose, &Style { markdown: true, ..Style::default() })
}
