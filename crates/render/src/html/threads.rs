//! Draws how each thread of the pool spent the time of the graphs, as bars.

use std::io::{self, Write};

use super::markup;
use crate::units::{count, pct};
use analysis::questions::report::PhaseReport;
use analysis::sums::tables::ThreadRow;
use common::order;

/// Maximum number of bars.
const DRAWN: usize = 64;
const WIDTH: f64 = 960.0;
const BAR: f64 = 16.0;
const STEP: f64 = 22.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 120.0;
const TOP: f64 = 26.0;

/// Writes the chart.
pub fn write(out: &mut dyn Write, p: &PhaseReport) -> io::Result<()> {
    let name = p.phase.name();
    let mut rows: Vec<&ThreadRow> = p.by_thread.iter().flatten().collect();
    order::by_key(&mut rows, |r| (r.ith.into(), 0));
    if rows.is_empty() {
        return markup::gap(out, &format!("No {name} ops were recorded, so thread times are unknown."));
    }
    let all = rows.len();
    rows.truncate(DRAWN);
    let height = TOP + rows.len() as f64 * STEP + 4.0;
    let told = format!("{}; each bar is the time of the CPU graphs in {name}", count(all as u64, "thread"));
    markup::svg(out, "threads-chart", (WIDTH, height), &format!("Threads, {name}"), &told)?;
    let waits = p.wait_ns.is_some();
    let mut key = vec![("busy", if waits { "ops" } else { "ops, including waits" })];
    key.extend(waits.then_some(("wait", "waiting at the barrier")));
    key.push(("rest", "other"));
    let mut x = LEFT;
    for (class, what) in key {
        writeln!(
            out,
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"4\" width=\"10\" height=\"10\"/><text x=\"{:.1}\" y=\"13\">{what}</text>",
            x + 14.0
        )?;
        x += 26.0 + what.len() as f64 * 7.0;
    }
    for (i, r) in rows.iter().enumerate() {
        bar(out, r, TOP + i as f64 * STEP)?;
    }
    let more = if all > DRAWN {
        format!(" The first {DRAWN} are drawn; the table lists all.")
    } else {
        String::new()
    };
    markup::svg_end(out, &format!("{told}.{more}"))
}

fn bar(out: &mut dyn Write, r: &ThreadRow, y: f64) -> io::Result<()> {
    let room = WIDTH - LEFT - RIGHT;
    let busy = r.op_share.clamp(0.0, 1.0);
    let wait = r.wait_share.unwrap_or(0.0).clamp(0.0, 1.0 - busy);
    let waits = r.wait_share.map_or_else(String::new, |w| format!(", {} % waiting at the barrier", pct(w)));
    writeln!(
        out,
        "<g><title>thread {}: {} % in ops{waits}</title><text class=\"end\" x=\"{:.1}\" y=\"{:.1}\">thread {}</text>\
         <rect class=\"rest\" x=\"{LEFT}\" y=\"{y:.1}\" width=\"{room:.1}\" height=\"{BAR}\"/>\
         <rect class=\"busy\" x=\"{LEFT}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{BAR}\"/>\
         <rect class=\"wait\" x=\"{:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{BAR}\"/></g>",
        r.ith,
        pct(r.op_share),
        LEFT - 6.0,
        y + 12.0,
        r.ith,
        room * busy,
        LEFT + room * busy,
        room * wait
    )?;
    let waits = r.wait_share.map_or_else(String::new, |w| format!(" + {}", pct(w)));
    writeln!(
        out,
        "<text x=\"{:.1}\" y=\"{:.1}\">{}{waits} %</text>",
        WIDTH - RIGHT + 8.0,
        y + 12.0,
        pct(r.op_share)
    )
}
