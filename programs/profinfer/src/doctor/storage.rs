//! `profinfer doctor --storage`: what reads at random places of a file take, around the page cache and through it.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use serde::Serialize;

use super::super::storage::{Batches, read_times};
use cli::args::{Args, Usage};
use cli::values::amount;
use render::table::{Table, number};
use render::units::{bytes, time};

/// Most reads at the same time.
const MOST: usize = 16;

/// The output of `--json`.
#[derive(Serialize)]
struct StorageOutput {
    file: String,
    read_bytes: u64,
    reads: Vec<StorageRow>,
}

/// Reads at the same time.
#[derive(Serialize)]
struct StorageRow {
    /// Reads, each by a thread of its own.
    together: usize,
    /// Until all have ended, median, ns: around the page cache, and through it, of pages that are not in it.
    direct_ns: f64,
    cached_ns: f64,
}

/// Measures and prints.
pub(super) fn run(args: &Args, file: &Path) -> anyhow::Result<ExitCode> {
    if args.argument("BINARY").is_some() {
        return Err(Usage::new("--storage measures a file's disk: BINARY cannot be given").into());
    }
    let size = args.needed("read-size", amount(4096))?;
    let of = |cached| {
        read_times(file, &Batches { matrices: &[size], most: MOST, readers: MOST, cached })
            .map(|times| times.ns)
    };
    let (direct, cached) = (of(false)?, of(true)?);
    let rows = direct.into_iter().zip(cached).enumerate().map(|(i, (direct_ns, cached_ns))| StorageRow {
        together: i + 1,
        direct_ns,
        cached_ns,
    });
    let found = StorageOutput {
        file: file.display().to_string(),
        read_bytes: size,
        reads: rows.filter(|r| r.together.is_power_of_two()).collect(),
    };
    let mut out = std::io::stdout().lock();
    match args.flag("json") {
        true => render::json::write(&mut out, &found)?,
        false => out.write_all(text(&found).as_bytes())?,
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn text(found: &StorageOutput) -> String {
    let mut t = Table::new(vec![
        number("reads at the same time", 0),
        number("direct", 0),
        number("GB/s", 0),
        number("through the page cache", 0),
        number("GB/s", 0),
    ]);
    for r in &found.reads {
        let rate = |ns: f64| format!("{:.2}", (found.read_bytes * r.together as u64) as f64 / ns);
        t.row(vec![
            r.together.to_string(),
            time(r.direct_ns),
            rate(r.direct_ns),
            time(r.cached_ns),
            rate(r.cached_ns),
        ]);
    }
    format!(
        "Reads of {} at random places of {}, until all have ended, median\n{}",
        bytes(found.read_bytes as f64),
        render::table::clean(&found.file),
        t.render(&crate::report::style())
    )
}
