//! Writes results as JSON; the structs of `analysis` are the schema. All JSON output passes through [`Json`].

use std::io::{self, Write};

use serde::Serialize;

pub use common::plain::Json;

/// Writes `answer` as indented JSON with a newline at the end.
pub fn write(out: &mut dyn Write, answer: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer_pretty(Json(out), answer)?;
    writeln!(out)
}
