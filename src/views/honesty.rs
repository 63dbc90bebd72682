//! The foot of a report: how complete the recording is, and what it cost. May use `analysis`.

use std::io::{self, Write};

use super::table::{Style, Table, clean, number, text};
use super::text::fact;
use super::units::*;
use crate::analysis::books::{Books, Figure};

/// Damages and notices shown; JSON has all of them.
const SHOWN: usize = 8;

/// Writes the honesty block.
pub fn write(out: &mut dyn Write, books: &Books, style: &Style) -> io::Result<()> {
    writeln!(out, "\n{}", style.bold("How far to trust this"))?;
    let verdict = clean(&books.verdict);
    let verdict =
        if books.complete { style.good(&verdict) } else { style.bad(&format!("NOT complete: {verdict}")) };
    writeln!(out, "  {:<12} {verdict}", "record")?;
    fact(out, "end", books.end.as_deref().unwrap_or("unknown (the recording did not end cleanly)"))?;
    hits(out, books)?;
    rungs(out, books, style)?;
    events(out, books, style)?;
    features(out, books)?;
    some(out, "damage", &books.damage)?;
    some(out, "notice", &books.notices)?;
    fact(out, "orphan hits", &show(&books.orphans, |v| format!("{v:.0}")))?;
    fact(out, "read errors", &show(&books.read_errors, |v| format!("{v:.0}")))?;
    let share = show(&books.agent_cpu_share, |v| format!("{} % of one core", pct(v)));
    let agent = show(&books.agent_cpu_ms, |v| format!("{v:.1} ms CPU ({share})"));
    let rss = show(&books.agent_peak_rss_bytes, bytes);
    fact(out, "recorder", &format!("{agent}, peak memory {rss}"))?;
    let of_it = show(&books.bpf_ns, time);
    let hit = show(&books.hit_ns, time);
    fact(out, "probe hit", &format!("{hit} measured at the start; our program's part in the run: {of_it}"))?;
    let hits = format!("{} on the busiest thread", count(books.busiest_thread_hits, "hit"));
    let slow = show(&books.predicted_slowdown, |v| format!("{} % of the calls' time", pct(v)));
    fact(
        out,
        "slow-down",
        &format!("predicted at least {slow} ({hits}; a hit was measured with warm caches)"),
    )
}

/// What was asked for and not had, or not all of it: one line each, for the head of a report.
pub fn left_out(out: &mut dyn Write, books: &Books) -> io::Result<()> {
    for f in &books.features {
        match f.state {
            "none" => fact(out, "left out", &format!("{}: {}", f.name, f.why))?,
            "partly" => fact(out, "in part", &format!("{}: {}", f.name, f.why))?,
            _ => {}
        }
    }
    Ok(())
}

fn features(out: &mut dyn Write, books: &Books) -> io::Result<()> {
    for f in &books.features {
        let state = match f.state {
            "none" => "not recorded",
            "partly" => "recorded in part",
            _ => "recorded",
        };
        let why = if f.why.is_empty() { String::new() } else { format!(" ({})", f.why) };
        fact(out, "asked for", &format!("{}: {state}{why}", f.name))?;
    }
    Ok(())
}

fn show(figure: &Figure, known: impl FnOnce(f64) -> String) -> String {
    match (figure.value, &figure.unknown) {
        (Some(v), _) => known(v),
        (None, Some(why)) => format!("unknown ({why})"),
        (None, None) => "unknown".into(),
    }
}

fn hits(out: &mut dyn Write, books: &Books) -> io::Result<()> {
    let h = &books.hits;
    let checked = if h.checked_graphs == 0 {
        "expected unknown (no graph's nodes were read)".to_string()
    } else {
        let of =
            format!("{} of {} checked, {} differ", h.checked_graphs, count(h.graphs, "graph"), h.graphs_off);
        format!("{} expected, {} seen ({of})", h.expected, h.seen)
    };
    fact(out, "op hits", &format!("{checked}; {} in the file", count(h.slices, "slice")))
}

fn rungs(out: &mut dyn Write, books: &Books, style: &Style) -> io::Result<()> {
    if books.rungs.is_empty() {
        return fact(out, "probes", "unknown (no rung of the ladder is in the file)");
    }
    let mut t = Table::new(vec![
        text("role"),
        text("state"),
        number("expected", 0),
        number("seen", 0),
        text("probe"),
        text("why"),
    ]);
    for r in &books.rungs {
        let state = if r.used { "used" } else { "left" };
        let expected = or_dash(r.expected, |n| n.to_string());
        t.row(vec![
            r.role.clone(),
            state.into(),
            expected,
            r.seen.to_string(),
            r.name.clone(),
            r.why.clone(),
        ]);
    }
    write!(out, "{}", t.render(style))?;
    for p in &books.probes {
        let end = if p.ret { " (return)" } else { "" };
        fact(out, "probe", &format!("{}+{}{end}: {}", p.symbol, p.offset, p.why))?;
    }
    Ok(())
}

fn events(out: &mut dyn Write, books: &Books, style: &Style) -> io::Result<()> {
    if books.events.is_empty() {
        return fact(out, "events", &show(&books.lost_share, |_| "unknown (none accounted for)".into()));
    }
    let mut t = Table::new(vec![
        text("events"),
        number("seen", 0),
        number("recorded", 0),
        number("lost", 0),
        text(""),
    ]);
    for e in &books.events {
        let note = if e.closes { "" } else { "books do not close" };
        t.row(vec![
            e.kind.clone(),
            e.seen.to_string(),
            e.recorded.to_string(),
            e.lost.to_string(),
            note.into(),
        ]);
    }
    write!(out, "{}", t.render(style))?;
    let lost = books.lost_per_cpu.iter().enumerate().filter(|(_, n)| **n > 0);
    let lost: Vec<String> = lost.map(|(cpu, n)| format!("CPU {cpu}: {n}")).collect();
    fact(out, "lost on", &lost.join(", "))
}

fn some(out: &mut dyn Write, name: &str, lines: &[String]) -> io::Result<()> {
    for line in lines.iter().take(SHOWN) {
        fact(out, name, line)?;
    }
    match lines.len().checked_sub(SHOWN) {
        Some(more) if more > 0 => fact(out, name, &format!("... and {more} more (--json has them all)")),
        _ => Ok(()),
    }
}
