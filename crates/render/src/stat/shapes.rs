//! Formats the same ops on two backends or in two traces, as a table.

use super::more;
use crate::section::Section;
use crate::table::{Column, Table, named, number, text};
use crate::units::*;
use analysis::stat::shapes::{Shapes, TraceBackend};

/// The first `top` ops.
pub(crate) fn shapes(found: &Shapes, phase: &str, top: usize) -> Section {
    let names = labels(&found.places);
    let mut columns: Vec<Column> = Vec::new();
    for name in &names {
        columns.extend([named(&format!("{name} us"), 0), number("n", 2), number("ratio", 0)]);
    }
    columns.extend([text("op"), text("result of sources")]);
    let mut t = Table::new(columns);
    for r in found.rows.iter().take(top) {
        let mut cells = Vec::new();
        for cell in &r.cells {
            cells.push(or_dash(*cell, |c| us(c.median_ns)));
            cells.push(or_dash(*cell, |c| c.executions.to_string()));
            cells.push(or_dash(*cell, |c| format!("{:.3}", c.ratio)));
        }
        cells.extend([r.op.clone(), r.form.clone()]);
        t.row(cells);
    }
    let mut notes = more(found.rows.len(), top);
    notes.push("us: median; ratio: to the first backend in the row".into());
    if found.places.iter().any(|p| p.trace == 1) {
        notes.push("A: this trace; B: the --beside trace".into());
    }
    Section { title: format!("Same shapes on {}, {phase}", names.join(", ")), table: Some(t), notes }
}

/// Names of the places: by backend, and with two traces also by trace.
pub(super) fn labels(places: &[TraceBackend]) -> Vec<String> {
    let two = places.iter().any(|p| p.trace == 1);
    let of = |p: &TraceBackend| match (two, p.trace) {
        (false, _) => p.backend.clone(),
        (true, 0) => format!("A {}", p.backend),
        (true, _) => format!("B {}", p.backend),
    };
    places.iter().map(of).collect()
}
