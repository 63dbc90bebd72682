//! Formats the structural comparison of two models, as text and as JSON.

use std::io::{self, Write};

use super::json::{lines, member};
use crate::table::{Style, clean};
use crate::units;
use analysis::questions::dag::compare::{DagComparison, Extra, LayerPair};

/// Writes the comparison as text. `names` are the two files.
pub fn text(out: &mut dyn Write, c: &DagComparison, names: [&str; 2], style: &Style) -> io::Result<()> {
    let names = names.map(clean);
    for (name, layers) in names.iter().zip(c.layers) {
        writeln!(out, "{}  {}", style.bold(name), units::count(layers as u64, "layer"))?;
    }
    if c.is_same() {
        return writeln!(out, "\nThe structures are identical.");
    }
    for (i, pair) in c.pairs.iter().enumerate().filter(|(_, p)| p.only.iter().any(|o| !o.is_empty())) {
        writeln!(out, "\n{}", style.bold(&heading(pair)))?;
        if c.pairs.iter().take(i).any(|before| before.only == pair.only) {
            writeln!(out, "  the same differences as above")?;
            continue;
        }
        for (name, extras) in names.iter().zip(&pair.only).filter(|(_, e)| !e.is_empty()) {
            writeln!(out, "  only {name} has {}", summary(extras))?;
            for e in extras {
                writeln!(out, "    {}", clean(&line(e)))?;
            }
        }
    }
    let same = c.pairs.iter().filter(|p| p.only.iter().all(Vec::is_empty)).map(heading);
    for heading in same {
        writeln!(out, "\n{}, no other ops", style.bold(&heading))?;
    }
    Ok(())
}

fn heading(pair: &LayerPair) -> String {
    let alike = units::count(pair.alike as u64, "op");
    match &pair.layers {
        [Some(a), _] if a.is_empty() => format!("Outside the layers: {alike} identical"),
        [Some(a), Some(b)] => format!("In {} and {}: {alike} identical", layers(a), layers(b)),
        [Some(one), None] | [None, Some(one)] => format!("In {}: no counterpart", layers(one)),
        [None, None] => String::new(),
    }
}

fn layers(numbers: &str) -> String {
    let many = if numbers.contains(['-', ',']) { "s" } else { "" };
    format!("layer{many} {numbers}")
}

/// `3 ADD, 1 MUL`, in order of first occurrence.
fn summary(extras: &[Extra]) -> String {
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for e in extras {
        match counts.iter_mut().find(|(op, _)| *op == e.op) {
            Some((_, n)) => *n += 1,
            None => counts.push((&e.op, 1)),
        }
    }
    let parts: Vec<String> = counts.iter().map(|(op, n)| format!("{n} {}", clean(op))).collect();
    parts.join(", ")
}

fn line(e: &Extra) -> String {
    let to = if e.taken_by.is_empty() { "nothing".into() } else { e.taken_by.join(", ") };
    format!("{} {}: inputs {}; used by {to}", e.op, e.name, e.takes.join(", "))
}

/// Writes the comparison as JSON.
pub fn json(out: &mut dyn Write, c: &DagComparison, names: [&str; 2]) -> io::Result<()> {
    member(out, "{", "schema", &2)?;
    member(out, ",", "files", &names)?;
    member(out, ",\n", "same", &c.is_same())?;
    member(out, ",", "layers", &c.layers)?;
    lines(out, "pairs", &c.pairs)?;
    writeln!(out, "}}")
}
