//! Answers as JSON; the structs of `analysis` are the schema. Uses nothing else of this crate.

use std::io::{self, Write};

use serde::Serialize;

/// Writes `answer` as indented JSON with a newline at the end.
pub fn write(out: &mut dyn Write, answer: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, answer)?;
    writeln!(out)
}
