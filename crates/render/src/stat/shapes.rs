//! Formats the same ops on two backends or in two traces, as a table.

use super::more;
use crate::section::Section;
use crate::table::{Column, Table, named, number, text};
use crate::units::*;
use analysis::questions::stat::shapes::{Faster, Shapes, TraceBackend};

/// Maximum ranges of sizes that are named.
const RANGES: usize = 5;

/// The first `top` ops.
pub(crate) fn shapes(found: &Shapes, phase: &str, top: usize) -> Section {
    let names = letters(found);
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
    notes.extend(winners(found, &names));
    if let [own, other] = &found.files[..] {
        notes.push(format!("A: {own}; B: {other}"));
    }
    Section { title: format!("Same shapes on {}, {phase}", names.join(", ")), table: Some(t), notes }
}

/// Names of the places: by backend, and with two traces also by letter.
fn letters(found: &Shapes) -> Vec<String> {
    let two = found.places.iter().any(|p| p.trace == 1);
    let of = |p: &TraceBackend| match (two, p.trace) {
        (false, _) => p.backend.clone(),
        (true, 0) => format!("A {}", p.backend),
        (true, _) => format!("B {}", p.backend),
    };
    found.places.iter().map(of).collect()
}

/// The same with the names of the files.
pub(super) fn labels(found: &Shapes) -> Vec<String> {
    let of = |(p, letter): (&TraceBackend, String)| match found.files.get(p.trace as usize) {
        Some(file) => format!("{} of {file}", p.backend),
        None => letter,
    };
    found.places.iter().zip(letters(found)).map(of).collect()
}

/// In which range of sizes each place is fastest.
pub(super) fn winners(found: &Shapes, names: &[String]) -> Vec<String> {
    let name = |f: &Faster| names.get(f.place).map_or("?", |n| n.as_str());
    let range = |f: &Faster| match f.elements {
        [from, to] if from == to => format!("at {} elements", decimal(from as f64)),
        [from, to] => format!("from {} to {} elements", decimal(from as f64), decimal(to as f64)),
    };
    let one = |f: &Faster| format!("{} {} ({})", name(f), range(f), count(f.shapes, "shape"));
    let all = found.fastest();
    match &all[..] {
        [] => Vec::new(),
        [only] => vec![format!("Fastest for every matrix: {}.", one(only))],
        some if some.len() <= RANGES => {
            vec![format!(
                "Fastest by size of the matrix: {}.",
                some.iter().map(one).collect::<Vec<_>>().join("; ")
            )]
        }
        many => vec![format!(
            "The size of the matrix does not decide which place is faster: it changes {} times over {}.",
            many.len() - 1,
            count(many.iter().map(|f| f.shapes).sum(), "shape")
        )],
    }
}
