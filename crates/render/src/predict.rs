//! Formats the predicted slowdown as a table for a terminal or a pipe.

use std::io::{self, Write};

use super::table::{Style, Table, clean, number, text};
use super::units::time;
use analysis::questions::recording_overhead::{Prediction, Range};

/// Writes the table, and its assumptions.
pub fn write(out: &mut dyn Write, p: &Prediction, style: &Style) -> io::Result<()> {
    let title = format!("Expected slowdown at {} tok/s", p.tokens_per_s);
    writeln!(out, "\n{} (hits: {})", style.bold(&title), clean(&p.source))?;
    let mut table = Table::new(vec![
        text("level"),
        number("hits/token", 0),
        number("this machine", 0),
        number("Arm boards", 0),
    ]);
    for row in &p.levels {
        let here = row.here.map_or_else(|| "not measured".to_owned(), percent);
        table.row(vec![row.level.to_owned(), format!("{:.0}", row.hits), here, percent(row.boards)]);
    }
    write!(out, "{}", table.render(style))?;
    let hit = |name: &str, here: Option<Range>, boards: Range| {
        let here = here.map_or_else(|| "not measured here".to_owned(), |r| format!("{} here", span(r)));
        format!("{name} {here}, {} on boards", span(boards))
    };
    let (here, boards) = (p.here_ns, p.boards_ns);
    writeln!(
        out,
        "{}; {}; {}",
        hit("op hit:", here.map(|c| c.op), boards.op),
        hit("barrier hit:", here.map(|c| c.barrier), boards.barrier),
        hit("call (two hits):", here.map(|c| c.call), boards.call),
    )?;
    writeln!(out, "Assumptions:")?;
    p.assumptions.iter().try_for_each(|a| writeln!(out, "  {a}"))
}

fn span(r: Range) -> String {
    if r.least == r.most { time(r.least) } else { format!("{} to {}", time(r.least), time(r.most)) }
}

fn percent(r: Range) -> String {
    let one = |share: f64| match share * 100.0 {
        p if p < 0.0005 => "< 0.001".to_owned(),
        p if p < 0.1 => format!("{p:.3}"),
        p => format!("{p:.2}"),
    };
    if r.least == r.most {
        format!("{} %", one(r.least))
    } else {
        format!("{} to {} %", one(r.least), one(r.most))
    }
}
