//! The report as JSON. The structs of `analysis::report` are its schema. May use `analysis`.

use std::io::{self, Write};

use crate::analysis::report::Report;

/// Writes `report` as indented JSON with a newline at the end.
pub fn write(out: &mut dyn Write, report: &Report) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, report)?;
    writeln!(out)
}
