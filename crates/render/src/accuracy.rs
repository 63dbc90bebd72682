//! Formats the comparison with the ground truth as text.

use std::io::{self, Write};

use super::table::{Style, Table, number, text};
use super::units;
use analysis::questions::accuracy::{AccuracyComparison, AccuracyRow};

/// A percentage with enough digits to distinguish 99.99 % from 100 %.
fn percent(share: f64) -> String {
    format!("{:.4}", share * 100.0)
}

fn row(line: &AccuracyRow, sides: bool) -> Vec<String> {
    let a = line.accuracy;
    let side = |n: u64| if sides { n.to_string() } else { String::new() };
    vec![
        line.level.to_owned(),
        a.map_or(0, |a| a.count).to_string(),
        units::or_dash(a, |a| percent(a.mean)),
        units::or_dash(a, |a| percent(a.median)),
        units::or_dash(a, |a| percent(a.worst)),
        units::or_dash(a, |a| format!("{:+}", a.bias_ns)),
        side(line.only_traced),
        side(line.only_true),
    ]
}

/// Writes the comparison.
pub fn write(out: &mut dyn Write, c: &AccuracyComparison, style: &Style) -> io::Result<()> {
    writeln!(out, "{}", style.bold("Accuracy: 1 - |measured - true| / true, in %"))?;
    let mut table = Table::new(vec![
        text("level"),
        number("n", 0),
        number("mean", 0),
        number("median", 0),
        number("worst", 0),
        number("bias ns", 1),
        number("only traced", 2),
        number("only true", 2),
    ]);
    c.levels.iter().for_each(|l| table.row(row(l, true)));
    c.classes.iter().for_each(|l| table.row(row(l, false)));
    write!(out, "{}", table.render(style))?;
    writeln!(
        out,
        "  phase: first to last of consecutive calls of many tokens, or of one; bias: median of measured - true"
    )?;
    if c.wall > 0 {
        let n = units::count(c.wall, "op");
        writeln!(
            out,
            "  {n} compared as wall time, up to the start of the thread's next op, as in the trace"
        )?;
    }
    if c.without_end > 0 {
        writeln!(out, "  {} excluded: no end was recorded", units::count(c.without_end, "op"))?;
    }
    if c.dropped > 0 {
        writeln!(out, "  {} did not fit into the ground truth", units::count(c.dropped, "reading"))?;
    }
    writeln!(out, "  the engine reads its clock twice per op, {} ns each", c.reading_ns)?;
    writeln!(out, "\n{}", style.bold("Targets, by mean"))?;
    for t in &c.targets {
        let reached = units::or_dash(t.reached, |r| format!("{} %", percent(r)));
        let verdict = if t.met { style.good("met") } else { style.bad("missed") };
        writeln!(out, "  {:<11} at least {} %: {reached}, {verdict}", t.what, percent(t.least))?;
    }
    Ok(())
}
