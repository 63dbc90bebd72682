//! Formats the statistics of a run as tables: text for a terminal or a pipe, and comma-separated values.

pub mod experts;
mod models;
pub mod pictures;
mod scaling;
mod shapes;

use std::io::{self, Write};

use super::section::{Section, fact, title};
use super::table;
use super::table::{Style, Table, clean, number, text};
use super::units::*;
use analysis::questions::stat::growth::{Growth, Trend};
use analysis::questions::stat::work::{Balance, Fit, Forecast, Products, Roofline};
use analysis::questions::stat::{Stat, View};
use analysis::recorded::runs::RunId;
use analysis::sums::attribution::experts::ExpertReport;
use analysis::sums::attribution::verdict::MEASURE;
use analysis::sums::tables::SplitRow;

/// Writes the requested views; each table has at most `top` rows.
pub fn write(out: &mut dyn Write, s: &Stat, views: &[View], top: usize, style: &Style) -> io::Result<()> {
    let phase = s.phase.name();
    let calls = format!("{}, {} ms each", count(s.calls, &format!("{phase} call")), ms(s.call_ns as u64));
    let of = RunId { pid: s.pid, context: s.context };
    super::section::lines(out, &super::runs::lines(&s.runs), style)?;
    writeln!(out, "{}", style.bold(&format!("Process {of}: {calls}")))?;
    if s.left_out > 0 {
        fact(
            out,
            style,
            "excluded",
            &format!("{} (cut off or with ops missing)", count(s.left_out, "call")),
        )?;
    }
    if s.other_processes > 0 {
        let others = if s.other_processes == 1 { "process has" } else { "processes have" };
        fact(out, style, "note", &format!("{} more {others} such calls (--pid)", s.other_processes))?;
    }
    for view in views {
        let Some(section) = section(s, *view, top) else { continue };
        section.write(out, style)?;
        if let (View::Threads, Some(found)) = (view, &s.scaling) {
            scaling::scaling(found, s.phase.name()).write(out, style)?;
        }
        if let (View::Ops, Some(found)) = (view, &s.models) {
            models::models(found, s.phase.name()).write(out, style)?;
        }
        if let (View::Experts, Some(Some(found))) = (view, &s.experts) {
            heat_map(out, found)?;
            super::experts::write(out, found, usize::MAX, style)?;
        }
    }
    s.forecast.as_ref().map_or(Ok(()), |f| forecast(out, f, style))
}

/// Writes the table of one view as comma-separated values; returns false if there is none.
pub fn csv(out: &mut dyn Write, s: &Stat, view: View) -> io::Result<bool> {
    let table = match (view, &s.experts) {
        (View::Experts, Some(Some(found))) => Some(choices(found)),
        (View::Threads, _) if s.scaling.is_some() => {
            s.scaling.as_ref().and_then(|found| scaling::scaling(found, s.phase.name()).table)
        }
        (View::Ops, _) if s.models.is_some() => {
            s.models.as_ref().and_then(|found| models::models(found, s.phase.name()).table)
        }
        _ => section(s, view, usize::MAX).and_then(|section| section.table),
    };
    match table {
        Some(table) => write!(out, "{}", table.csv()).map(|()| true),
        None => Ok(false),
    }
}

/// The section of one view, with the first `top` rows of its table; `None` if it was not requested.
pub(super) fn section(s: &Stat, view: View, top: usize) -> Option<Section> {
    let phase = s.phase.name();
    Some(match view {
        View::Tokens => match s.tokens.as_ref()? {
            Some(found) => growth(found, phase, top),
            None => Section::nothing(format!(
                "Time by context length, {phase}: the context length is unknown or barely changes"
            )),
        },
        View::Ops => match s.ops.as_ref()? {
            Some(found) => products(found, phase, top),
            None => Section::nothing(format!(
                "Matrix multiplications, {phase}: none known (record without --no-str)"
            )),
        },
        View::Roofline => match s.roofline.as_ref()? {
            Some(found) => roofline(found, phase, top),
            None => Section::nothing(format!("Roofline, {phase}: no known peak (--peak)")),
        },
        View::Threads => match s.thread_balance.as_ref()? {
            Some(found) => balance(found, s.threads, phase, top),
            None if s.threads < 2 => Section::nothing(format!("Threads, {phase}: only one")),
            None => {
                let why = "the barrier was not probed, so op times include the wait for other threads";
                Section::nothing(format!("Threads, {phase}: {why}"))
            }
        },
        View::Experts => match s.experts.as_ref()? {
            Some(_) => Section::nothing(
                "Expert choices, decode: from never to the layer's maximum ( .:-=+*#%@)".into(),
            ),
            None => Section::nothing("Experts: none recorded (use record --experts)".into()),
        },
        View::Reuse => match s.reuse.as_ref()? {
            Some(found) => experts::reuse(found),
            None => {
                let why = "no timed MUL_MAT_ID with known experts (record --experts)";
                Section::nothing(format!("Expert reuse, decode: {why}"))
            }
        },
        View::Activation => match s.activation.as_ref()? {
            Some(found) => experts::activation(found, top),
            None => Section::nothing("Expert choices: none recorded (use record --experts)".into()),
        },
        View::Backends => backends(s.backends.as_ref()?, phase),
        View::Shapes => match s.shapes.as_ref()? {
            Some(found) => shapes::shapes(found, phase, top),
            None => {
                let why = "no op in this trace ran on two backends (--beside adds another trace)";
                Section::nothing(format!("Same shapes on two backends, {phase}: {why}"))
            }
        },
    })
}

fn more(all: usize, top: usize) -> Vec<String> {
    if all > top { vec![format!("{} more (--top)", all - top)] } else { Vec::new() }
}

fn growth(g: &Growth, phase: &str, top: usize) -> Section {
    let mut t = Table::new(vec![
        number("ns/token", 0),
        number("from", 4),
        number("to", 4),
        number("% of growth", 0),
        table::named(&format!("us at {}", g.from), 1),
        table::named(&format!("us at {}", g.to), 1),
        number("R2", 2),
        text("grows"),
        text("name"),
    ]);
    let mut row = |trend: &Trend, name: &str| {
        t.row(vec![
            format!("{:.2}", trend.ns_per_token),
            format!("{:.2}", trend.interval[0]),
            format!("{:.2}", trend.interval[1]),
            or_dash(trend.share, pct),
            us(trend.from_ns),
            us(trend.to_ns),
            format!("{:.3}", trend.r2),
            if trend.grows { "yes".into() } else { "-".into() },
            name.to_string(),
        ]);
    };
    row(&g.call, "(call)");
    g.ops.iter().take(top).for_each(|trend| row(trend, &trend.name));
    let mut notes = more(g.ops.len(), top);
    let grow: Vec<String> = g.ops.iter().filter(|t| t.grows).take(3).map(named).collect();
    notes.push(match grow.is_empty() {
        true => "no op gets significantly slower as the context grows".into(),
        false => format!("slower as the context grows: {}", grow.join(", ")),
    });
    let of = format!("context of {} to {} tokens, {}", g.from, g.to, count(g.calls, "call"));
    Section { title: format!("Time by context length, {phase} ({of})"), table: Some(t), notes }
}

fn named(t: &Trend) -> String {
    format!("{} ({:.0} %)", t.name, t.share.unwrap_or(0.0) * 100.0)
}

fn products(p: &Products, phase: &str, top: usize) -> Section {
    let mut t = Table::new(vec![
        number("us", 0),
        number("MB", 1),
        number("MFLOP", 1),
        number("expected us", 2),
        number("off %", 0),
        text("outlier"),
        text("result of sources"),
        text("name"),
    ]);
    for r in p.rows.iter().take(top) {
        t.row(vec![
            us(r.ns),
            format!("{:.3}", r.bytes / 1e6),
            format!("{:.3}", r.flops / 1e6),
            or_dash(r.expected_ns, us),
            or_dash(r.off, |x| format!("{:+.2}", x * 100.0)),
            if r.outlier { "yes".into() } else { "-".into() },
            r.form.clone(),
            r.name.clone(),
        ]);
    }
    let mut notes = more(p.rows.len(), top);
    let fit = |fit: &Option<Fit>, what: &str, unit: &str| match fit {
        Some(f) => {
            let rate = or_dash(f.giga_per_s, |g| format!("{g:.2} {unit}"));
            let shapes = count(f.points, "shape");
            format!("time by {what}: {} and {rate}, R2 {:.4} ({shapes})", time(f.at_zero_ns), f.r2)
        }
        None => format!("time by {what}: too few shapes for a fit"),
    };
    notes.extend([fit(&p.bytes, "bytes", "GB/s"), fit(&p.flops, "FLOPs", "GFLOP/s")]);
    let outliers: Vec<String> = p
        .rows
        .iter()
        .filter(|r| r.outlier)
        .map(|r| format!("{} ({:+.0} %)", r.name, r.off.unwrap_or(0.0) * 100.0))
        .collect();
    if !outliers.is_empty() {
        notes.push(format!("off the line: {}", outliers.join(", ")));
    }
    Section { title: format!("Matrix multiplications, {phase} (one execution)"), table: Some(t), notes }
}

fn roofline(r: &Roofline, phase: &str, top: usize) -> Section {
    let mut t = Table::new(vec![
        number("us/call", 0),
        number("FLOP/byte", 1),
        number("GB/s", 0),
        number("GFLOP/s", 0),
        number("roof GFLOP/s", 2),
        number("% of roof", 0),
        text("roof"),
        text("result of sources"),
        text("name"),
    ]);
    for p in r.rows.iter().take(top) {
        t.row(vec![
            us(p.ns_a_call),
            format!("{:.2}", p.flops_per_byte),
            format!("{:.2}", p.gb_per_s),
            format!("{:.2}", p.gflop_per_s),
            or_dash(p.roof_gflop_per_s, |g| format!("{g:.2}")),
            pct(p.share),
            p.roof.unwrap_or("-").into(),
            p.form.clone(),
            p.name.clone(),
        ]);
    }
    let mut notes = more(r.rows.len(), top);
    let peak = &r.ceiling.peak;
    notes.push(match &r.ceiling.op {
        Some(op) => format!("roof: {:.1} GB/s, the best in this trace ({op}); {MEASURE}", peak.gb_per_s),
        None => format!(
            "roofs: {:.1} GB/s, {} GFLOP/s, {} GOP/s of 8-bit integers{}; above 100 %: from a cache, or the roof is too low",
            peak.gb_per_s,
            or_dash(peak.gflop_per_s, |g| format!("{g:.1}")),
            or_dash(peak.int8_gop_per_s, |g| format!("{g:.1}")),
            r.ceiling.origin(),
        ),
    });
    Section { title: format!("Roofline, {phase}"), table: Some(t), notes }
}

fn balance(rows: &[Balance], threads: u32, phase: &str, top: usize) -> Section {
    let mut t = Table::new(vec![
        number("lost us", 0),
        number("imbalance", 0),
        number("slowest us", 1),
        number("mean us", 1),
        number("fastest us", 1),
        number("slowest thread", 2),
        text("name"),
    ]);
    for r in rows.iter().take(top) {
        let mean = r.busy_ns.iter().sum::<f64>() / r.busy_ns.len().max(1) as f64;
        let fastest = r.busy_ns.iter().copied().fold(f64::INFINITY, f64::min);
        let slowest = r.busy_ns.iter().copied().fold(0.0, f64::max);
        let ith = r.busy_ns.iter().position(|ns| *ns == slowest);
        t.row(vec![
            us(r.lost_ns),
            format!("{:.3}", r.imbalance),
            us(slowest),
            us(mean),
            us(fastest),
            or_dash(ith, |i| i.to_string()),
            r.name.clone(),
        ]);
    }
    let mut notes = more(rows.len(), top);
    let lost: f64 = rows.iter().map(|r| r.lost_ns).sum();
    notes.push(format!("perfect balance would save {} per call", time(lost)));
    Section {
        title: format!("Threads, {phase} ({threads} threads, busy time per call)"),
        table: Some(t),
        notes,
    }
}

fn backends(rows: &[SplitRow], phase: &str) -> Section {
    if rows.is_empty() {
        return Section::nothing(format!("Backends, {phase}: no graph splits were recorded"));
    }
    let mut t = Table::new(vec![
        number("%", 0),
        number("ms", 0),
        number("splits", 1),
        number("us/split", 0),
        text("backend"),
    ]);
    for r in rows {
        t.row(vec![
            pct(r.share),
            ms(r.total_ns),
            r.splits.to_string(),
            us(r.total_ns as f64 / r.splits.max(1) as f64),
            r.backend.clone(),
        ]);
    }
    let note = "ops within a split are visible on the CPU backend only";
    let notes = if rows.len() > 1 { vec![note.into()] } else { vec![] };
    Section { title: format!("Backends, {phase}"), table: Some(t), notes }
}

/// How often each expert of each layer was chosen.
fn choices(found: &ExpertReport) -> Table {
    let columns = vec![text("layer"), number("expert", 0), number("decode", 0), number("prefill", 0)];
    let mut t = Table::new(columns);
    for l in &found.layers {
        let name = l.layer.map_or_else(|| l.name.clone(), |n| n.to_string());
        for expert in 0..l.decode.len().max(l.prefill.len()) {
            let of = |counts: &[u64]| counts.get(expert).copied().unwrap_or(0).to_string();
            t.row(vec![name.clone(), expert.to_string(), of(&l.decode), of(&l.prefill)]);
        }
    }
    t
}

/// Marks from no choice to the maximum of a layer.
const HEAT: &[u8; 10] = b" .:-=+*#%@";
/// Maximum marks per line; if there are more experts, several share a mark.
const WIDE: usize = 96;

fn heat_map(out: &mut dyn Write, found: &ExpertReport) -> io::Result<()> {
    for l in &found.layers {
        let each = l.decode.len().div_ceil(WIDE).max(1);
        let counts: Vec<u64> = l.decode.chunks(each).map(|c| c.iter().sum()).collect();
        let most = counts.iter().copied().max().unwrap_or(0).max(1);
        let level = |n: &u64| if *n == 0 { 0 } else { 1 + (*n as u128 * 8 / u128::from(most)) as usize };
        let marks = counts.iter().map(|n| char::from(*HEAT.get(level(n)).unwrap_or(&b'@')));
        let name = l.layer.map_or_else(|| l.name.clone(), |n| n.to_string());
        writeln!(out, "  {:>5} |{}|", clean(&name), marks.collect::<String>())?;
    }
    Ok(())
}

fn forecast(out: &mut dyn Write, f: &Forecast, style: &Style) -> io::Result<()> {
    title(out, style, "Forecast")?;
    if let Some([now, then]) = f.bandwidth {
        fact(
            out,
            style,
            "bandwidth",
            &format!("{now:.1} -> {then:.1} GB/s: the time of ops that stream weights scales inversely"),
        )?;
    }
    if let Some([now, then]) = f.context {
        fact(
            out,
            style,
            "context",
            &format!("{now:.0} -> {then:.0} tokens: ops that grow with it continue along their fitted lines"),
        )?;
    }
    let [now, then] = f.tokens_per_s;
    fact(
        out,
        style,
        "tok/s",
        &format!("{now:.2} -> {then:.2} ({} -> {} per call)", time(f.ns[0]), time(f.ns[1])),
    )
}
