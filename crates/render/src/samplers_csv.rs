//! All calls of samplers as comma-separated values (RFC 4180), one row each.

use std::io::{self, Write};

use analysis::recorded::load::Loaded;
use analysis::streams::lanes::Select;
use pfi::record::SamplerCall;

use crate::table::{clean, csv_text};

/// The columns. A cell is empty if its value is not known. Times are those of timelines: CLOCK_BOOTTIME, ns.
pub const COLUMNS: [&str; 7] = [
    "pid", "tid", "sampler", // As the engine calls it.
    "does",    // apply or accept.
    "start_ns", "end_ns", "own_ns", // Without the calls of other samplers that it made.
];

/// Writes the heading and a row for each call that begins within what is selected, in the order in which they ended. Returns
/// the number of rows.
///
/// # Errors
/// Write errors.
pub fn write(out: &mut dyn Write, loaded: &Loaded<'_>, select: Select) -> io::Result<u64> {
    let offset = loaded.header.as_ref().map_or(0, |h| h.boot_ns.wrapping_sub(h.mono_ns).cast_signed());
    write!(out, "{}\r\n", COLUMNS.join(","))?;
    let causes = &loaded.causes;
    let wanted = |c: &&SamplerCall| {
        (select.from..select.to).contains(&c.t) && select.pid.is_none_or(|only| only == c.pid)
    };
    let mut rows = 0;
    for c in causes.samplers.iter().filter(wanted) {
        let name = causes.sampler_names.get(&c.sampler).map_or("", |n| n.name);
        let does = if c.accept { "accept" } else { "apply" };
        let start = c.t.saturating_add(offset);
        let (end, own) = (start.saturating_add_unsigned(c.dur), c.dur.saturating_sub(c.within));
        let name = csv_text(&clean(name));
        write!(out, "{},{},{name},{does},{start},{end},{own}\r\n", c.pid, c.tid)?;
        rows += 1;
    }
    Ok(rows)
}
