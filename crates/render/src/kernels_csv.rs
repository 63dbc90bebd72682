//! All kernels of devices as comma-separated values (RFC 4180), one row each.

use std::io::{self, Write};

use analysis::recorded::calls::Timeline;
use analysis::recorded::idents::Idents;
use analysis::recorded::load::Loaded;
use analysis::streams::lanes::Select;
use analysis::sums::device_kernels::{self, KernelRow, source_name};

use crate::table::{clean, csv_text};

/// The columns. A cell is empty if its value is not known. Times are those of timelines: CLOCK_BOOTTIME, ns.
pub const COLUMNS: [&str; 17] = [
    "pid",
    "tid",   // The thread that gave it to the device.
    "phase", // The number of the call, as in `report --by token` and for --tokens.
    "token",
    "split",
    "backend",
    "source",
    "queue",
    "name",
    "ops",     // That it computes.
    "host_ns", // When the host began to enqueue it; the rest is by the device's clock.
    "queued_ns",
    "submitted_ns",
    "start_ns",
    "end_ns",
    "idle_before_ns", // Without a kernel on the device, within a graph.
    "error_ns",       // By which the device's times may be off, all by the same.
];

/// Writes the heading and a row for each kernel that begins within what is selected. Returns the number of rows.
///
/// # Errors
/// Write errors.
pub fn write(
    out: &mut dyn Write,
    loaded: &Loaded<'_>,
    line: &Timeline,
    idents: &Idents,
    select: Select,
) -> io::Result<u64> {
    let offset = loaded.header.as_ref().map_or(0, |h| h.boot_ns.wrapping_sub(h.mono_ns).cast_signed());
    write!(out, "{}\r\n", COLUMNS.join(","))?;
    let wanted = |r: &KernelRow<'_>| {
        let k = &r.kernel;
        let begins = (select.from..select.to).contains(&k.times.started.cast_signed());
        begins && select.pid.is_none_or(|only| only == k.of.pid)
    };
    let mut rows = 0;
    for r in device_kernels::rows(loaded, idents).iter().filter(|r| wanted(r)) {
        write!(out, "{}\r\n", cells(r, line, offset).join(","))?;
        rows += 1;
    }
    Ok(rows)
}

fn cells(r: &KernelRow<'_>, line: &Timeline, offset: i64) -> [String; 17] {
    let k = &r.kernel;
    let call = k.split.graph.and_then(|g| line.calls.get(*line.graph_call.get(&g)?));
    let phase = k.split.graph.and_then(|g| line.graph_phase.get(&g)).map_or("", |p| p.name());
    let time = |t: u64| t.cast_signed().saturating_add(offset).to_string();
    let (queued, submitted) = k.queued_submitted().unzip();
    let text = |text: &str| csv_text(&clean(text));
    [
        k.of.pid.to_string(),
        k.of.tid.to_string(),
        if phase == "unknown" { String::new() } else { phase.to_owned() },
        call.map_or_else(String::new, |c| c.seq.to_string()),
        k.split.seq.to_string(),
        text(&r.backend),
        text(source_name(k.of.source)),
        k.of.queue.to_string(),
        text(r.name),
        text(&r.ops),
        time(k.times.host),
        queued.map_or_else(String::new, time),
        submitted.map_or_else(String::new, time),
        time(k.times.started),
        time(k.times.ended),
        r.idle_before_ns.map_or_else(String::new, |ns| ns.to_string()),
        k.of.error_ns.to_string(),
    ]
}
