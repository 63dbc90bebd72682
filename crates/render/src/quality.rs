//! The last section of a report: how complete the recording is, and what it cost.

use std::io::{self, Write};

use super::section::{SectionItem, fact, lines, said};
use super::table::{Style, Table, clean, number, text};
use super::units::*;
use analysis::questions::quality::{CpuProbes, Figure, RecordingQuality};

/// Damage entries and notices shown; JSON has all of them.
const SHOWN: usize = 8;

/// How notices of the service begin that are about the CPUs that it gave to an engine.
const CPUS: &str = "affinity: ";

/// Writes the recording quality section.
pub fn write(out: &mut dyn Write, quality: &RecordingQuality, style: &Style) -> io::Result<()> {
    writeln!(out, "\n{}", style.heading("Recording quality"))?;
    verdict_line(out, quality, style)?;
    lines(out, &all(quality), style)
}

/// Writes the section in one line.
pub fn line(out: &mut dyn Write, quality: &RecordingQuality, style: &Style) -> io::Result<()> {
    writeln!(out, "\n{}", style.heading("Recording quality (--verbose: all of it)"))?;
    verdict_line(out, quality, style)
}

/// Writes what is wrong with a recording, if anything is.
pub fn warning(out: &mut dyn Write, quality: &RecordingQuality, style: &Style) -> io::Result<()> {
    if !quality.complete {
        verdict_line(out, quality, style)?;
    }
    left_out(out, quality, style)
}

fn verdict_line(out: &mut dyn Write, quality: &RecordingQuality, style: &Style) -> io::Result<()> {
    let verdict = clean(&verdict(quality));
    let verdict = if quality.complete { style.good(&verdict) } else { style.bad(&verdict) };
    writeln!(out, "  {:<12} {verdict}", "recording")
}

/// Whether the recording is complete, and what is missing.
pub fn verdict(quality: &RecordingQuality) -> String {
    let sampled = quality.sampled.map_or_else(String::new, |s| {
        let rate =
            s.one_in.filter(|n| *n > 1).map(|n| format!(" (sampled: one token in {n})")).unwrap_or_default();
        format!(" for what the budget left in{rate}: ops of {} of {}", s.with_ops, count(s.graphs, "graph"))
    });
    match quality.complete {
        true => format!("{}{sampled}", quality.verdict),
        false => format!("NOT complete{sampled}: {}", quality.verdict),
    }
}

/// Everything except the verdict.
pub(super) fn all(quality: &RecordingQuality) -> Vec<SectionItem> {
    let end = quality.end.as_deref().unwrap_or("unknown (the recording did not end cleanly)");
    let mut out = vec![said("end", end), hits(quality)];
    rungs(&mut out, quality);
    events(&mut out, quality);
    features(&mut out, quality);
    some(&mut out, "damage", &quality.damage);
    // They may be many, and must not hide the others.
    let (cpus, others): (Vec<String>, Vec<String>) =
        quality.notices.iter().cloned().partition(|notice| notice.starts_with(CPUS));
    some(&mut out, "notice", &others);
    let cpus: Vec<String> =
        cpus.iter().filter_map(|notice| notice.strip_prefix(CPUS)).map(str::to_owned).collect();
    some(&mut out, "CPUs given", &cpus);
    out.push(said("orphan hits", show(&quality.orphans, orphans)));
    out.push(said("read errors", show(&quality.read_errors, |v| format!("{v:.0}"))));
    let share = show(&quality.agent_cpu_share, |v| format!("{} % of one core", pct(v)));
    let agent = show(&quality.agent_cpu_ms, |v| format!("{v:.1} ms CPU ({share})"));
    let rss = show(&quality.agent_peak_rss_bytes, bytes);
    out.push(said("recorder", format!("{agent}, peak memory {rss}")));
    let of_it = show(&quality.bpf_ns, time);
    let hit = show(&quality.hit_ns, time);
    let hit = format!("{hit} measured at the start; mean BPF program time in the run: {of_it}");
    out.push(said("probe hit", hit));
    let hits = format!("{} on the busiest thread", count(quality.busiest_thread_hits, "hit"));
    let slow = show(&quality.predicted_slowdown, |v| format!("{} % of the calls' time", pct(v)));
    let slow = format!("predicted at least {slow} ({hits}; hit cost measured with warm caches)");
    out.push(said("overhead", slow));
    let on_cpu = |p: &CpuProbes| format!("CPU {} {}", p.cpu, show(&p.share, |v| format!("{} %", pct(v))));
    let load: Vec<String> = quality.probe_load.iter().map(on_cpu).collect();
    if !load.is_empty() {
        out.push(said("probe load", format!("{} of the calls' time, by probes of ops", load.join(", "))));
    }
    out
}

/// Requested features that were not recorded, or only in part: one line each, for the head of a report.
pub fn left_out(out: &mut dyn Write, quality: &RecordingQuality, style: &Style) -> io::Result<()> {
    for f in &quality.features {
        match f.state {
            "none" => fact(out, style, "not recorded", &format!("{}: {}", f.name, f.why))?,
            "partly" => fact(out, style, "partial", &format!("{}: {}", f.name, f.why))?,
            _ => {}
        }
    }
    Ok(())
}

fn features(out: &mut Vec<SectionItem>, quality: &RecordingQuality) {
    for f in &quality.features {
        let state = match f.state {
            "none" => "not recorded",
            "partly" => "partly recorded",
            _ => "recorded",
        };
        let why = if f.why.is_empty() { String::new() } else { format!(" ({})", f.why) };
        out.push(said("requested", format!("{}: {state}{why}", f.name)));
    }
}

fn show(figure: &Figure, known: impl FnOnce(f64) -> String) -> String {
    match (figure.value, &figure.unknown) {
        (Some(v), _) => known(v),
        (None, Some(why)) => format!("unknown ({why})"),
        (None, None) => "unknown".into(),
    }
}

/// Number of orphan hits, and their possible causes: the recorder counts them together.
fn orphans(n: f64) -> String {
    let why = "op hits outside the graphs in the file: their graph began before the probes were attached, its start was \
               missed, or it had more hits or threads than are kept; the recorder counts these together";
    if n > 0.0 { format!("{n:.0} ({why})") } else { "0".into() }
}

/// Why graphs could not be checked; empty if all were.
fn unchecked(quality: &RecordingQuality) -> String {
    let h = &quality.hits;
    let unread = h.graphs.saturating_sub(h.checked_graphs).saturating_sub(h.cut_graphs);
    let cut = (h.cut_graphs > 0).then(|| format!("{} still running when recording stopped", h.cut_graphs));
    let unread = (unread > 0).then(|| format!("{unread} with unread nodes or not recorded at level op"));
    let why: Vec<String> = [cut, unread].into_iter().flatten().collect();
    if why.is_empty() { String::new() } else { format!("; not checked: {}", why.join(", ")) }
}

fn hits(quality: &RecordingQuality) -> SectionItem {
    let h = &quality.hits;
    let checked = if h.checked_graphs == 0 {
        "expected unknown (no graph's nodes were read)".to_string()
    } else {
        let of =
            format!("{} of {} checked, {} differ", h.checked_graphs, count(h.graphs, "graph"), h.graphs_off)
                + &unchecked(quality);
        format!("{} expected, {} seen ({of})", h.expected, h.seen)
    };
    said("op hits", format!("{checked}; {} in the file", count(h.slices, "slice")))
}

fn rungs(out: &mut Vec<SectionItem>, quality: &RecordingQuality) {
    if quality.rungs.is_empty() {
        out.push(said("probes", "unknown (the file has no rungs)"));
        return;
    }
    let mut t = Table::new(vec![
        text("role"),
        text("state"),
        number("expected", 0),
        number("seen", 0),
        text("probe"),
        text("why"),
    ]);
    // Rungs of an engine without any hit are of no interest next to those of one that worked.
    let hit = |engine: u32| quality.rungs.iter().any(|r| r.engine == engine && r.seen > 0);
    let any = quality.rungs.iter().any(|r| r.seen > 0);
    let (rungs, silent): (Vec<_>, Vec<_>) = quality.rungs.iter().partition(|r| !any || hit(r.engine));
    for r in rungs {
        let state = if r.used { "used" } else { "abandoned" };
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
    out.push(SectionItem::Table(t));
    let mut engines: Vec<u32> = silent.iter().map(|r| r.engine).collect();
    engines.dedup();
    if !engines.is_empty() {
        let never = format!("{} never computed", count(engines.len() as u64, "more engine"));
        let of = count(silent.len() as u64, "rung");
        out.push(said("probes", format!("{never}: no hits on {of} (report --json lists them)")));
    }
    // Each variant of a library has its own probes, and most are identical.
    let mut alike: Vec<(String, u64)> = Vec::new();
    for p in quality.probes.iter().filter(|p| !any || hit(p.engine)) {
        let end = if p.ret { " (return)" } else { "" };
        let text = format!("{}+{}{end}: {}", p.symbol, p.offset, p.why);
        match alike.iter_mut().find(|(one, _)| *one == text) {
            Some((_, n)) => *n += 1,
            None => alike.push((text, 1)),
        }
    }
    for (text, n) in alike {
        out.push(said("probe", if n > 1 { format!("{text} ({n} times)") } else { text }));
    }
}

fn events(out: &mut Vec<SectionItem>, quality: &RecordingQuality) {
    if quality.events.is_empty() {
        out.push(said(
            "events",
            show(&quality.lost_share, |_| "unknown (the file has no event counts)".into()),
        ));
        return;
    }
    let mut t = Table::new(vec![
        text("events"),
        number("seen", 0),
        number("recorded", 0),
        number("lost", 0),
        text(""),
    ]);
    for e in &quality.events {
        let note = if e.closes { "" } else { "counts disagree" };
        t.row(vec![
            e.kind.clone(),
            e.seen.to_string(),
            e.recorded.to_string(),
            e.lost.to_string(),
            note.into(),
        ]);
    }
    out.push(SectionItem::Table(t));
    let lost = quality.lost_per_cpu.iter().enumerate().filter(|(_, n)| **n > 0);
    let lost: Vec<String> = lost.map(|(cpu, n)| format!("CPU {cpu}: {n}")).collect();
    out.push(said("lost on", lost.join(", ")));
}

fn some(out: &mut Vec<SectionItem>, name: &'static str, lines: &[String]) {
    out.extend(lines.iter().take(SHOWN).map(|line| said(name, line)));
    let more = lines.len().saturating_sub(SHOWN);
    if more > 0 {
        out.push(said(name, format!("... and {more} more (report --json lists all)")));
    }
}
