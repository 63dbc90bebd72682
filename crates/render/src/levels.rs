//! Formats the engine's activities around its calls, and the recording levels, as tables for a terminal or a
//! pipe.

use std::io::{self, Write};

use super::section::title;
use super::table::{Style, Table, clean, number, text};
use super::units::*;
use analysis::sums::attribution::levels::LevelReport;
use analysis::sums::attribution::phases::StageRow;
use analysis::sums::attribution::sampling::Sampling;

/// Writes the phases of the engine.
pub fn stages(out: &mut dyn Write, rows: &[StageRow], style: &Style) -> io::Result<()> {
    title(out, style, "Phases")?;
    write!(out, "{}", stage_table(rows).render(style))
}

/// The phases of the engine.
pub(super) fn stage_table(rows: &[StageRow]) -> Table {
    let columns = vec![
        text("phase"),
        number("calls", 0),
        number("ms", 0),
        number("mean us", 1),
        number("max us", 2),
        number("%", 0),
        text("measured from"),
    ];
    let mut t = Table::new(columns);
    for r in rows {
        let of = match r.of {
            "function" => "own function",
            "call" => "engine calls",
            _ => "ops in these calls, thread 0",
        };
        t.row(vec![
            r.name.clone(),
            r.calls.to_string(),
            ms(r.total_ns),
            or_dash(r.mean_ns, us),
            or_dash(r.max_ns, |ns| us(ns as f64)),
            pct(r.share),
            match r.cut_calls {
                0 => of.into(),
                n => format!("{of}; {n} still running when recording stopped, excluded"),
            },
        ]);
    }
    t
}

/// Writes what sampling is made of.
pub fn sampling(out: &mut dyn Write, s: &Sampling, style: &Style) -> io::Result<()> {
    title(out, style, "Sampling by sampler")?;
    if let Some(table) = sampling_table(s) {
        write!(out, "{}", table.render(style))?;
    }
    said_unknown(s).map_or(Ok(()), |text| writeln!(out, "  {}", clean(&text)))
}

/// What is not known of the samplers, as a sentence.
pub(super) fn said_unknown(s: &Sampling) -> Option<String> {
    s.unknown.as_ref().map(|why| format!("not known: {why}"))
}

/// What sampling is made of. None: not recorded.
pub(super) fn sampling_table(s: &Sampling) -> Option<Table> {
    let columns = vec![
        text("sampler"),
        text("does"),
        number("calls", 0),
        number("ms", 0),
        number("mean us", 1),
        number("max us", 2),
        number("%", 0),
    ];
    let mut t = Table::new(columns);
    for r in s.samplers.as_ref()? {
        let name = match (&r.name, r.with_members) {
            (None, _) => "(name not known)".to_owned(),
            (Some(name), false) => name.clone(),
            (Some(name), true) => format!("{name} with its samplers"),
        };
        let (calls, max) = (r.calls.to_string(), us(r.max_ns as f64));
        t.row(vec![name, r.does.into(), calls, ms(r.total_ns), us(r.mean_ns), max, pct(r.share)]);
    }
    if let Some(rest) = s.rest_ns {
        let (mean, share) = (rest as f64 / s.calls.max(1) as f64, rest as f64 / s.total_ns.max(1) as f64);
        let name = "(outside samplers)".to_owned();
        t.row(vec![name, "-".into(), s.calls.to_string(), ms(rest), us(mean), "-".into(), pct(share)]);
    }
    Some(t)
}

/// Changes shown; JSON has all of them.
const SHOWN: usize = 8;

/// Writes the levels.
pub fn write(out: &mut dyn Write, r: &LevelReport, style: &Style) -> io::Result<()> {
    title(out, style, "Overhead by level")?;
    let columns = vec![
        text("level"),
        number("times", 2),
        number("ms", 1),
        number("%", 0),
        number("decode calls", 1),
        number("tok/s", 0),
        number("predicted %", 0),
        number("measured %", 0),
    ];
    let mut t = Table::new(columns);
    for l in &r.levels {
        let name = l.level.as_deref().unwrap_or("(before the first change)");
        t.row(vec![
            match l.one_in {
                0 | 1 => name.into(),
                n if name == "token" => format!("{name}, 1 s in {n}"),
                n => format!("{name}, 1 call in {n}"),
            },
            l.times.to_string(),
            ms(l.time_ns),
            pct(l.share),
            l.decode_calls.to_string(),
            or_dash(l.tokens_per_s, |v| format!("{v:.2}")),
            or_dash(l.predicted, pct),
            or_dash(l.measured, pct),
        ]);
    }
    write!(out, "{}", t.render(style))?;
    let mut t = Table::new(vec![number("at s", 0), text("to"), text("why")]);
    for c in r.changes.iter().take(SHOWN) {
        t.row(vec![format!("{:.3}", c.t_ns as f64 / 1e9), c.to.clone(), c.why.clone()]);
    }
    write!(out, "{}", t.render(style))?;
    match r.changes.len().saturating_sub(SHOWN) {
        0 => Ok(()),
        more => writeln!(out, "  and {} (--json lists all)", count(more as u64, "more change")),
    }
}
