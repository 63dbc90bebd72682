//! What a device executed, as text.

use std::io::{self, Write};

use super::{ROWS, more};
use crate::section::title;
use crate::table::{Style, Table, number, text};
use crate::units::*;
use analysis::kernels::{DeviceTimes, KernelSum};

/// Writes the tables of one backend. Figures are per scheduler graph.
///
/// # Errors
/// The output cannot be written.
pub fn write(
    out: &mut dyn Write,
    backend: &str,
    device: &DeviceTimes,
    phase: &str,
    per: &impl Fn(u64) -> f64,
    style: &Style,
) -> io::Result<()> {
    title(
        out,
        style,
        &format!("Executed on {backend}, {phase} (per graph; time on the device, {})", device.source),
    )?;
    let mut t = Table::new(columns("op"));
    for r in device.ops.iter().take(ROWS) {
        t.row(row(&r.sum, r.ops.clone(), device, per));
    }
    write!(out, "{}", t.render(style))?;
    more(out, device.ops.len(), style)?;
    let span = device.busy_ns.saturating_add(device.idle_ns).max(1) as f64;
    writeln!(
        out,
        "  device busy {} us, idle between kernels {} us ({} %)",
        us(per(device.busy_ns)),
        us(per(device.idle_ns)),
        pct(device.idle_ns as f64 / span)
    )?;
    if device.groups_without > 0 {
        let (n, all) = (device.groups_without, device.groups);
        writeln!(
            out,
            "  {n} of {all} groups of nodes have no kernel here: they are no kernel (a copy), or their times were not \
             handed over"
        )?;
    }
    let error = us(device.error_ns as f64);
    writeln!(
        out,
        "{}",
        style.dim(&format!("  the device's clock is known to {error} us; durations are its own"))
    )?;
    title(out, style, &format!("Kernels on {backend}, {phase} (per graph)"))?;
    let mut t = Table::new(columns("kernel"));
    for r in device.by_kernel.iter().take(ROWS) {
        t.row(row(&r.sum, r.name.clone(), device, per));
    }
    write!(out, "{}", t.render(style))?;
    more(out, device.by_kernel.len(), style)
}

fn columns(last: &'static str) -> Vec<crate::table::Column> {
    let numbers = ["%", "us", "kernels", "us/kernel", "idle before us", "queued us"];
    numbers.into_iter().map(|name| number(name, 0)).chain([text(last)]).collect()
}

fn row(sum: &KernelSum, name: String, device: &DeviceTimes, per: &impl Fn(u64) -> f64) -> Vec<String> {
    let all: u64 = device.ops.iter().map(|r| r.sum.device_ns).sum();
    let each = |ns: u64| us(ns as f64 / sum.kernels.max(1) as f64);
    vec![
        pct(sum.device_ns as f64 / all.max(1) as f64),
        us(per(sum.device_ns)),
        format!("{:.1}", per(sum.kernels)),
        each(sum.device_ns),
        us(per(sum.idle_before_ns)),
        each(sum.queued_ns),
        name,
    ]
}
