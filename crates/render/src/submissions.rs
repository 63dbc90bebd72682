//! Device time by submission, as text.

use std::io::{self, Write};

use super::section::title;
use super::table::{Style, Table, number, text};
use super::units::*;
use analysis::sums::submissions::{BusyBasis, DeviceSubmissions, RingTimes};

/// Most rows.
const ROWS: usize = 12;

/// Writes the table of a recording.
///
/// # Errors
/// The output cannot be written.
pub fn write(out: &mut dyn Write, found: &DeviceSubmissions, style: &Style) -> io::Result<()> {
    title(
        out,
        style,
        &format!("Device time by submission (all processes; within {} of calls)", time(found.span_ns as f64)),
    )?;
    let columns = ["submissions", "own", "busy ms", "idle %", "gap p50 us", "gap p99 us", "clock MHz"];
    let mut t = Table::new(columns.into_iter().map(|c| number(c, 0)).chain([text("ring")]).collect());
    for r in found.rings.iter().take(ROWS) {
        t.row(row(r, found.span_ns));
    }
    write!(out, "{}", t.render(style))?;
    if let Some(more) = found.rings.len().checked_sub(ROWS).filter(|n| *n > 0) {
        writeln!(out, "{}", style.dim(&format!("  and {}", count(more as u64, "more ring"))))?;
    }
    let bound = found.rings.iter().any(|r| r.basis != BusyBasis::Device);
    if bound {
        let why = "busy without a * is from the kernel's hand-over to its notice of the end, at least the device's own time";
        writeln!(out, "{}", style.dim(&format!("  {why}")))?;
    }
    if found.rings.iter().any(|r| r.basis == BusyBasis::Device) {
        writeln!(out, "{}", style.dim("  * by the device's own counter"))?;
    }
    writeln!(
        out,
        "{}",
        style.dim("  gap: from the end of a submission to the start of the next one of the same graph")
    )
}

fn row(r: &RingTimes, span: u64) -> Vec<String> {
    let mark = if r.basis == BusyBasis::Device { "*" } else { "" };
    let mhz = |(low, high): (u64, u64)| match (low / 1_000_000, high / 1_000_000) {
        (low, high) if low == high => low.to_string(),
        (low, high) => format!("{low}-{high}"),
    };
    let name: Vec<&str> = [r.device.as_str(), &r.ring].into_iter().filter(|n| !n.is_empty()).collect();
    let own = match r.of_unknown {
        n if n == r.submissions => "-".to_owned(),
        0 => r.own.to_string(),
        n => format!("{}+{n}?", r.own),
    };
    vec![
        r.submissions.to_string(),
        own,
        format!("{}{mark}", ms(r.busy_ns)),
        or_dash(r.idle_ns, |idle| pct(idle as f64 / span.max(1) as f64)),
        or_dash(r.gaps, |g| us(g.p50_ns as f64)),
        or_dash(r.gaps, |g| us(g.p99_ns as f64)),
        or_dash(r.clock_hz, mhz),
        format!("{} ({})", name.join(" "), r.source),
    ]
}
