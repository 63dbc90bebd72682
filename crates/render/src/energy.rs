//! Formats energy, frequencies and temperatures as tables for a terminal or a pipe.

use std::io::{self, Write};

use super::section::{fact, title};
use super::table::{Style, Table, number, text};
use super::units::*;
use analysis::sums::attribution::energy::{EnergyReport, GaugeRow, PhaseEnergy, PrimaryEnergy, SourceRow};

/// Writes the section.
pub fn write(out: &mut dyn Write, r: &EnergyReport, style: &Style) -> io::Result<()> {
    title(out, style, "Energy")?;
    if r.sources.is_empty() {
        fact(out, style, "joules", "no source: the machine reports neither power nor energy")?;
    } else {
        write!(out, "{}", sources(&r.sources).render(style))?;
    }
    for line in r.primary.iter().flat_map(primary) {
        fact(out, style, "a token", &line)?;
    }
    if let Some(remarks) = &r.remarks {
        fact(out, style, "sensors", remarks)?;
    }
    for doubt in r.sources.iter().flat_map(doubts) {
        fact(out, style, "warning", &doubt)?;
    }
    if r.gauges.iter().any(|g| !g.phases.is_empty()) {
        title(out, style, "Frequencies and temperatures, in calls")?;
        write!(out, "{}", gauges(&r.gauges).render(style))?;
    }
    Ok(())
}

/// The energy of a token in each phase, by the source that is preferred.
pub(super) fn primary(p: &PrimaryEnergy) -> Vec<String> {
    let phase = |name: &str, joules: Option<f64>, uah: Option<f64>| {
        let uah = uah.map_or_else(String::new, |v| format!(", {} uAh", significant(v)));
        Some(format!("{name} {} J{uah}, by {}", significant(joules?), named(&p.source, p.origin, false)))
    };
    let decode = phase("decode", p.decode_j_per_token, p.decode_uah_per_token);
    let prefill = phase("prefill", p.prefill_j_per_token, p.prefill_uah_per_token);
    decode.into_iter().chain(prefill).collect()
}

/// A source with what it is, as far as its name does not say that.
fn named(name: &str, origin: &str, still: bool) -> String {
    let what = match origin {
        "model" => " (not measured: a model)",
        "estimate" => " (an estimate)",
        _ => "",
    };
    let still = if still { " (did not change)" } else { "" };
    format!("{name}{what}{still}")
}

/// With four digits that count.
fn significant(v: f64) -> String {
    let before = if v > 0.0 { v.log10().floor() as i32 } else { 0 };
    let digits = (3 - before).clamp(0, 9) as usize;
    format!("{v:.digits$}")
}

/// Joules and watts of each source by phase.
pub(super) fn sources(rows: &[SourceRow]) -> Table {
    let charge = rows.iter().flat_map(|s| &s.phases).any(|p| p.uah_per_token.is_some());
    let mut columns = vec![text("phase"), number("J", 0), number("W", 0), number("J/token", 0)];
    columns.extend(charge.then(|| number("uAh/token", 0)));
    columns.extend([number("covered %", 1), text("source")]);
    let mut t = Table::new(columns);
    for s in rows {
        let source = named(&s.name, s.origin, s.stands_still);
        let with_charge = |mut row: Vec<String>, p: Option<&PhaseEnergy>| {
            let uah = p.map_or_else(String::new, |p| or_dash(p.uah_per_token, significant));
            row.extend(charge.then_some(uah));
            row
        };
        for p in &s.phases {
            let joules = if p.covered > 0.0 { format!("{:.3}", p.joules) } else { "-".into() };
            let per_token = or_dash(p.joules_per_token, significant);
            let row = vec![p.phase.name().into(), joules, or_dash(p.watts, |v| format!("{v:.2}")), per_token];
            let mut row = with_charge(row, Some(p));
            row.extend([pct(p.covered), source.clone()]);
            t.row(row);
        }
        let idle = s.idle.map(|idle| ("no call", Some((idle.joules, idle.covered_ns))));
        let whole = ("complete run", Some((s.joules, s.covered_ns)).filter(|(_, ns)| *ns > 0));
        for (what, used) in idle.into_iter().chain([whole]) {
            let joules = or_dash(used, |(joules, _)| format!("{joules:.3}"));
            let watts = or_dash(used, |(joules, ns)| format!("{:.2}", joules * 1e9 / ns as f64));
            let mut row = with_charge(vec![what.into(), joules, watts, String::new()], None);
            row.extend([String::new(), source.clone()]);
            t.row(row);
        }
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
    let unknown = s.phases.iter().filter_map(|p| Some((p.phase, p.unknown?)));
    // One reason for all phases is said once.
    let mut unknown: Vec<_> = if s.stands_still { unknown.take(1).collect() } else { unknown.collect() };
    unknown.retain(|(phase, _)| phase.name() != "unknown" || s.phases.len() == 1);
    out.extend(unknown.iter().map(|(phase, why)| match s.stands_still {
        true => format!("{}: no joules per token: {why}", s.name),
        false => format!("{}: no joules per token in {}: {why}", s.name, phase.name()),
    }));
    if let Some(refresh) = s.refresh_ns.filter(|_| !s.stands_still) {
        let left = "the first such time of a phase is not counted";
        out.push(format!("{}: refreshed every {}: {left}", s.name, time(refresh as f64)));
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
        let (scale, unit) = match g.kind {
            "frequency" => (1e6, " GHz"),
            "cooling" => (1.0, ""),
            "pressure" => (1e-2, " %"),
            _ => (1e3, " °C"),
        };
        let cpus = if g.cpus.is_empty() { String::new() } else { format!(" (CPU {})", g.cpus) };
        for p in &g.phases {
            let show = |v: f64| format!("{:.2}{unit}", v / scale);
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
