//! Formats the structural comparison of two models, as text and as JSON.

use std::io::{self, Write};

use super::{list, string};
use crate::table::{Style, clean};
use crate::units;
use analysis::dag::compare::{Comparison, Extra, Pair};

/// Writes the comparison as text. `names` are the two files.
pub fn text(out: &mut dyn Write, c: &Comparison, names: [&str; 2], style: &Style) -> io::Result<()> {
    let names = names.map(clean);
    for (name, layers) in names.iter().zip(c.layers) {
        writeln!(out, "{}  {}", style.bold(name), units::count(layers as u64, "layer"))?;
    }
    if c.is_same() {
        return writeln!(out, "\nThe structure is the same.");
    }
    for (i, pair) in c.pairs.iter().enumerate().filter(|(_, p)| p.only.iter().any(|o| !o.is_empty())) {
        writeln!(out, "\n{}", style.bold(&heading(pair)))?;
        if c.pairs.iter().take(i).any(|before| before.only == pair.only) {
            writeln!(out, "  the same differences as above")?;
            continue;
        }
        for (name, extras) in names.iter().zip(&pair.only).filter(|(_, e)| !e.is_empty()) {
            writeln!(out, "  {name} alone has {}", summary(extras))?;
            for e in extras {
                writeln!(out, "    {}", clean(&line(e)))?;
            }
        }
    }
    let same = c.pairs.iter().filter(|p| p.only.iter().all(Vec::is_empty)).map(heading);
    for heading in same {
        writeln!(out, "\n{}, and no other", style.bold(&heading))?;
    }
    Ok(())
}

fn heading(pair: &Pair) -> String {
    let alike = units::count(pair.alike as u64, "op");
    match &pair.layers {
        [Some(a), _] if a.is_empty() => format!("Outside the layers: {alike} alike"),
        [Some(a), Some(b)] => format!("In {} and {}: {alike} alike", layers(a), layers(b)),
        [Some(one), None] | [None, Some(one)] => format!("In {}: the other has none", layers(one)),
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
    format!("{} {}: takes {}; goes to {to}", e.op, e.name, e.takes.join(", "))
}

/// Writes the comparison as JSON.
pub fn json(out: &mut dyn Write, c: &Comparison, names: [&str; 2]) -> io::Result<()> {
    let extra = |e: &Extra| {
        let texts = |all: &[String]| list(all, |t| string(t));
        let (op, name, takes) = (string(&e.op), string(&e.name), texts(&e.takes));
        format!("{{\"op\":{op},\"name\":{name},\"takes\":{takes},\"taken_by\":{}}}", texts(&e.taken_by))
    };
    let pair = |p: &Pair| {
        let layers = list(&p.layers, |l| l.as_ref().map_or_else(|| "null".into(), |l| string(l)));
        let only = list(&p.only, |o| list(o, extra));
        format!("\n{{\"layers\":{layers},\"alike\":{},\"only\":{only}}}", p.alike)
    };
    writeln!(out, "{{\"schema\":2,\"files\":{},", list(&names, |n| string(n)))?;
    writeln!(out, "\"same\":{},\"layers\":{},", c.is_same(), list(&c.layers, usize::to_string))?;
    writeln!(out, "\"pairs\":{}}}", list(&c.pairs, pair))
}
