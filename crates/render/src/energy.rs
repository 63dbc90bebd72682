//! Formats energy, frequencies and temperatures as tables for a terminal or a pipe.

use std::io::{self, Write};

use super::section::{fact, title};
use super::table::{Style, Table, number, text};
use super::units::*;
use analysis::attribution::energy::{EnergyReport, GaugeRow, SourceRow};

/// Writes the section.
pub fn write(out: &mut dyn Write, r: &EnergyReport, style: &Style) -> io::Result<()> {
    title(out, style, "Energy")?;
    if r.sources.is_empty() {
        fact(out, "joules", "no source: the machine reports neither power nor energy")?;
    } else {
        write!(out, "{}", sources(&r.sources).render(style))?;
    }
    for doubt in r.sources.iter().flat_map(doubts) {
        fact(out, "warning", &doubt)?;
    }
    if r.gauges.iter().any(|g| !g.phases.is_empty()) {
        title(out, style, "Frequencies and temperatures, in calls")?;
        write!(out, "{}", gauges(&r.gauges).render(style))?;
    }
    Ok(())
}

/// Joules and watts of each source by phase.
pub(super) fn sources(rows: &[SourceRow]) -> Table {
    let mut t = Table::new(vec![
        text("phase"),
        number("J", 0),
        number("W", 0),
        number("J/token", 0),
        number("covered %", 1),
        text("source"),
    ]);
    for s in rows {
        for p in &s.phases {
            t.row(vec![
                p.phase.name().into(),
                if p.covered > 0.0 { format!("{:.3}", p.joules) } else { "-".into() },
                or_dash(p.watts, |v| format!("{v:.2}")),
                or_dash(p.joules_per_token, |v| format!("{v:.4}")),
                pct(p.covered),
                s.name.clone(),
            ]);
        }
        let watts = (s.covered_ns > 0).then(|| s.joules * 1e9 / s.covered_ns as f64);
        t.row(vec![
            "complete run".into(),
            or_dash(watts, |_| format!("{:.3}", s.joules)),
            or_dash(watts, |v| format!("{v:.2}")),
            String::new(),
            String::new(),
            s.name.clone(),
        ]);
    }
    t
}

/// Irregularities of a source.
pub(super) fn doubts(s: &SourceRow) -> Vec<String> {
    let mut out = Vec::new();
    if s.odd_samples > 0 {
        let what = "excluded: outliers or negative values";
        out.push(format!("{}: {} of {} samples {what}", s.name, s.odd_samples, s.samples));
    }
    if s.gaps > 0 {
        let silent = format!("{} without samples, {} in total", count(s.gaps, "gap"), time(s.gaps_ns as f64));
        out.push(format!("{}: {silent}", s.name));
    }
    out
}

/// Frequencies and temperatures by phase.
pub(super) fn gauges(rows: &[GaugeRow]) -> Table {
    let mut t = Table::new(vec![
        text("phase"),
        number("mean", 0),
        number("min", 0),
        number("max", 1),
        text("sensor"),
    ]);
    for g in rows {
        let (scale, unit) = if g.kind == "frequency" { (1e6, "GHz") } else { (1e3, "°C") };
        let cpus = if g.cpus.is_empty() { String::new() } else { format!(" (CPU {})", g.cpus) };
        for p in &g.phases {
            let show = |v: f64| format!("{:.2} {unit}", v / scale);
            t.row(vec![
                p.phase.name().into(),
                show(p.mean),
                show(p.min),
                show(p.max),
                format!("{}{cpus}", g.name),
            ]);
        }
    }
    t
}
