//! Formats counter values as tables for a terminal or a pipe.

use std::io::{self, Write};

use super::attribution::tables;
use super::section::{fact, title};
use super::table::{Column, Style, Table, named, number, text};
use super::units::*;
use analysis::questions::report::{By, PhaseReport, Report};
use analysis::sums::attribution::counters::{CounterFacts, CounterRow};
use analysis::sums::tables::OpRow;

/// Writes the tables of a phase.
pub fn phase(out: &mut dyn Write, report: &Report, p: &PhaseReport, style: &Style) -> io::Result<()> {
    let Some(counters) = &report.counters else { return Ok(()) };
    for (name, rows) in tables(report, p, By::Counter) {
        let counted = |r: &super::attribution::AttributionRow<'_>| {
            r.op.map_or_else(|| r.thread?.counted.clone(), |op| op.counted.clone())
        };
        let rows: Vec<_> = rows.iter().filter_map(|r| Some((r.name.clone(), counted(r)?))).collect();
        if !rows.is_empty() {
            title(out, style, &format!("Counters by {name}, {} (all threads)", p.phase.name()))?;
            write!(out, "{}", table(counters, &rows, name).render(style))?;
        }
    }
    Ok(())
}

/// Counter values for each op of a table by name; `None` if there are none.
pub(super) fn of_ops(counters: &[CounterFacts], rows: &[OpRow]) -> Option<Table> {
    let rows: Vec<_> = rows.iter().filter_map(|r| Some((r.name.clone(), r.counted.clone()?))).collect();
    (!rows.is_empty()).then(|| table(counters, &rows, "name"))
}

fn table(counters: &[CounterFacts], rows: &[(String, CounterRow)], name: &'static str) -> Table {
    let any = |get: fn(&CounterRow) -> Option<f64>| rows.iter().any(|(_, r)| get(r).is_some());
    let (ipc, stalled) = (any(|r| r.ipc), any(|r| r.stalled_share));
    // A counter without a value in any row is mentioned in the notes.
    let counted: Vec<bool> =
        (0..counters.len()).map(|i| rows.iter().any(|(_, r)| total(r, i).is_some())).collect();
    let share = |r: &CounterRow| {
        let shown = r.counters.iter().zip(&counted).filter(|(_, counted)| **counted);
        shown.map(|(c, _)| c.share).fold(1.0, f64::min)
    };
    let partly = rows.iter().any(|(_, r)| share(r) < 1.0);
    let mut columns: Vec<Column> = Vec::new();
    columns.extend(ipc.then(|| number("IPC", 0)));
    columns.extend(stalled.then(|| number("stalled %", 0)));
    for (c, _) in counters.iter().zip(&counted).filter(|(_, counted)| **counted) {
        columns.push(named(&c.name, 1));
        if c.unit == "bytes" {
            columns.push(number("GB/s", 0));
        }
    }
    columns.extend(partly.then(|| number("coverage %", 0)));
    columns.push(text(name));
    let mut t = Table::new(columns);
    for (name, r) in rows {
        let mut cells = Vec::new();
        cells.extend(ipc.then(|| or_dash(r.ipc, |v| format!("{v:.2}"))));
        cells.extend(stalled.then(|| or_dash(r.stalled_share, pct)));
        for ((c, sum), _) in counters.iter().zip(&r.counters).zip(&counted).filter(|(_, counted)| **counted) {
            cells.push(or_dash(sum.total, |n| amount(&c.unit, n)));
            if c.unit == "bytes" {
                cells.push(or_dash(sum.gb_per_s, |v| format!("{v:.2}")));
            }
        }
        cells.extend(partly.then(|| pct(share(r))));
        cells.push(name.clone());
        t.row(cells);
    }
    t
}

fn total(r: &CounterRow, i: usize) -> Option<u64> {
    r.counters.get(i)?.total
}

fn amount(unit: &str, n: u64) -> String {
    match unit {
        "bytes" => bytes(n as f64),
        "ns" => time(n as f64),
        _ => decimal(n as f64),
    }
}

/// Writes notes on incomplete counters.
pub fn notes(out: &mut dyn Write, report: &Report, style: &Style) -> io::Result<()> {
    let wanted = report.tables.contains(&By::Counter);
    let Some(counters) = report.counters.as_ref().filter(|_| wanted) else { return Ok(()) };
    let notes = whats_missing(counters);
    if notes.is_empty() {
        return Ok(());
    }
    title(out, style, "Incomplete counters")?;
    notes.iter().try_for_each(|n| fact(out, style, "counter", n))
}

/// What is incomplete about the counters, one line each.
pub(super) fn whats_missing(counters: &[CounterFacts]) -> Vec<String> {
    counters.iter().filter_map(note).collect()
}

/// Below this share of the time a counter is reported as multiplexed.
const WHOLE: f64 = 0.995;

fn note(c: &CounterFacts) -> Option<String> {
    let shared = c.running_share.filter(|share| *share < WHOLE);
    let estimated = shared.map(|s| format!("counted {} % of the time, the rest is extrapolated", pct(s)));
    let why = (!c.why.is_empty()).then(|| c.why.clone());
    let said: Vec<String> = estimated.into_iter().chain(why).collect();
    let said = said.join("; ");
    match c.state {
        "none" => Some(format!("{}: not available: {said}", c.name)),
        "partly" => Some(format!("{}: partly available: {said}", c.name)),
        _ if shared.is_some() => Some(format!("{}: {said}", c.name)),
        _ => None,
    }
}
