//! The lines above the table of ops, one function each. A line of which nothing is known is left out.

use super::super::table::{Style, Table, clean, number, text as words};
use super::super::units::*;
use super::super::verdict::named;
use super::ops::shown;
use super::requests;
use super::spark::spark;
use super::{NAME, RecordingState, ScreenLines, TopSnapshot, TopView, wrapped};
use analysis::recorded::calls::Phase;
use analysis::recorded::labels::share;
use analysis::streams::live::{LiveDevice, PhaseSpan, SensorNow};
use pfi::record::SensorKind;

/// Maximum lines for processes.
const PROCESSES: usize = 8;
/// From this share of the threads' time on, time without a CPU or in page faults is coloured.
const MUCH: f64 = 0.05;

pub fn lines(out: &mut ScreenLines<'_>, p: &TopSnapshot, view: &TopView) {
    title(out, p);
    limit(out, p);
    out.named("now", &state(p));
    speeds(out, p);
    history(out, p, view);
    time_bar(out, p, view);
    devices(out, p);
    faults(out, p);
    sensors(out, p, view);
    level(out, p);
    events(out, p);
    processes(out, p);
    requests::rows(out, p);
}

fn title(out: &mut ScreenLines<'_>, p: &TopSnapshot) {
    let file = p.output.as_ref().map(|f| format!(", output {f} ({})", bytes(p.bytes as f64)));
    let title = format!("profinfer top: {}, {:.0} s{}", p.target, p.elapsed_s, file.unwrap_or_default());
    let lines = wrapped(&clean(&title), out.width.saturating_sub(1));
    let more = if lines.len() > 1 { "…" } else { "" };
    let line = lines.into_iter().next().unwrap_or_default();
    let line = super::cut(&(line + more), out.width);
    out.lines.push(out.style.bold(&line));
}

fn limit(out: &mut ScreenLines<'_>, p: &TopSnapshot) {
    if let Some(limit) = p.limit.as_ref().filter(|_| p.state == RecordingState::Running) {
        out.painted("limit", limit, Style::bold);
    }
}

fn state(p: &TopSnapshot) -> String {
    match (p.state, &p.call) {
        (RecordingState::Waiting, _) => "waiting: no engine found yet".into(),
        (RecordingState::Ended, _) => format!("ended: {}", p.end.as_deref().unwrap_or("unknown reason")),
        (RecordingState::Running, Some(call)) => {
            let phase = if call.phase == Phase::Unknown { "" } else { call.phase.name() };
            format!(
                "in a {phase}{}call for {}",
                if phase.is_empty() { "" } else { " " },
                time(call.seconds * 1e9)
            )
        }
        (RecordingState::Running, None) if p.run.phases.is_empty() => "no calls seen yet".into(),
        (RecordingState::Running, None) => "between calls".into(),
    }
}

fn speeds(out: &mut ScreenLines<'_>, p: &TopSnapshot) {
    for run in &p.run.phases {
        let now = p.now.phases.iter().find(|n| n.phase == run.phase);
        let speed = |v| or_dash(v, |v: f64| format!("{v:.2}"));
        let calls = count(run.calls, "call");
        // Without tokens, what runs are the graphs.
        let runs = |p: &PhaseSpan| (p.in_call_ns > 0).then(|| p.calls as f64 * 1e9 / p.in_call_ns as f64);
        let (name, unit, now, all) = match run.phase {
            Phase::Unknown => ("runs", "runs/s", now.and_then(runs), runs(run)),
            phase => (phase.name(), "tok/s", now.and_then(|n| n.tokens_per_s), run.tokens_per_s),
        };
        out.named(name, &format!("{:>9} {unit} now {:>9} over the run   {calls}", speed(now), speed(all)));
    }
}

/// The speed of the phase shown, in each update.
fn history(out: &mut ScreenLines<'_>, p: &TopSnapshot, view: &TopView) {
    let Some((_, phase)) = shown(p, view).into_iter().next() else { return };
    let Some((phase, values)) = p.speeds.iter().find(|(of, _)| *of == phase.phase) else { return };
    let usual = 100;
    let width = if out.width == usize::MAX { usual } else { out.width };
    let label = |most: f64| format!("  {}, 0 to {most:.1}", phase.name());
    // Room for a label with the largest of all values.
    let widest = label(values.iter().flatten().copied().fold(0.0, f64::max)).chars().count();
    let Some((line, most)) = spark(values, width.saturating_sub(NAME + widest), view.unicode) else { return };
    out.lines.push(format!("{:<NAME$}{}{}", "tok/s", out.style.good(&line), label(most)));
}

/// Where the time of the phase shown goes.
fn time_bar(out: &mut ScreenLines<'_>, p: &TopSnapshot, view: &TopView) {
    let Some((_, phase)) = shown(p, view).into_iter().next() else { return };
    let Some(bar) = &phase.bar_wall else { return };
    let texts: Vec<String> = named(bar).iter().map(|(_, name, n)| format!("{n} % {name}")).collect();
    let much = [bar.waiting_for_cpu, bar.faults].into_iter().flatten().any(|share| share >= MUCH);
    out.painted(
        "time",
        &texts.join(", "),
        |style, text| if much { style.bad(text) } else { text.to_owned() },
    );
}

fn devices(out: &mut ScreenLines<'_>, p: &TopSnapshot) {
    for d in &p.run.devices {
        let now = p.now.devices.iter().find(|n| n.backend == d.backend);
        out.named("device", &device(now.unwrap_or(d)));
    }
}

/// A device's part of the time in calls: of the last seconds, or if it had no split in them, over the run.
fn device(d: &LiveDevice) -> String {
    let busy = match (d.busy_share, d.busy_source) {
        (Some(share), Some(source)) => format!("; busy {} % (by {source})", pct(share)),
        _ => String::new(),
    };
    let unseen = match d.unseen {
        0 => String::new(),
        n => format!("; end of {} not seen", count(n, "split")),
    };
    let (splits, waited) = (pct(d.share), pct(d.waited_share));
    format!(
        "{}: {splits} % of the calls' time in its splits, {waited} % waiting for it{busy}{unseen}",
        d.backend
    )
}

fn faults(out: &mut ScreenLines<'_>, p: &TopSnapshot) {
    if let Some(faults) = p.faults {
        let text = format!(
            "{:.0} a second, {:.0} of them major",
            faults.minor_per_s + faults.major_per_s,
            faults.major_per_s
        );
        let much = faults.major_per_s >= 1.0;
        out.painted("faults", &text, |style, text| if much { style.bad(text) } else { text.to_owned() });
    }
}

/// Frequencies, from the lowest to the highest, and the highest temperature.
fn sensors(out: &mut ScreenLines<'_>, p: &TopSnapshot, view: &TopView) {
    let of = |kind: SensorKind| p.sensors.iter().filter(move |s| s.kind == kind);
    let mut parts = Vec::new();
    let ghz = |s: &SensorNow| format!("{:.2}", s.value as f64 / 1e6);
    // Frequencies without CPUs are those of other devices.
    let clocks = || of(SensorKind::Frequency).filter(|s| !s.cpus.is_empty());
    let frequencies = (clocks().min_by_key(|s| s.value), clocks().max_by_key(|s| s.value));
    if let (Some(low), Some(high)) = frequencies {
        let (low, high) = (ghz(low), ghz(high));
        parts.push(if low == high { format!("{low} GHz") } else { format!("{low} to {high} GHz") });
    }
    if let Some(hottest) = of(SensorKind::Temperature).max_by_key(|s| s.value) {
        let unit = if view.unicode { "°C" } else { "C" };
        parts.push(format!("{:.0} {unit} ({})", hottest.value as f64 / 1e3, hottest.name));
    }
    if !parts.is_empty() {
        out.named("sensors", &parts.join(", "));
    }
}

fn level(out: &mut ScreenLines<'_>, p: &TopSnapshot) {
    let cost = p.cost.map_or("overhead not measured".into(), |c| format!("overhead {} %", pct(c)));
    let budget = p.budget.map_or(String::new(), |b| format!(", budget {} %", pct(b)));
    out.named("level", &format!("{}, {cost}{budget}; own CPU {} %", p.level, pct(p.own_cpu)));
}

fn events(out: &mut ScreenLines<'_>, p: &TopSnapshot) {
    match p.lost {
        0 => out.named("events", &format!("{}, none lost", p.events)),
        n => {
            let part = pct(share(n, p.events.saturating_add(n)));
            out.painted("events", &format!("{}, {n} LOST ({part} %)", p.events), Style::bad);
        }
    }
}

/// The processes, if there are several: each has its speed, and the rest of the display is about one.
fn processes(out: &mut ScreenLines<'_>, p: &TopSnapshot) {
    if p.processes.len() < 2 {
        return;
    }
    let columns = vec![
        words("process"),
        number("prefill tok/s", 0),
        number("decode tok/s", 0),
        number("calls", 0),
        words(""),
    ];
    let mut table = Table::new(columns);
    let speed = |v| or_dash(v, |v: f64| format!("{v:.2}"));
    // The one shown always has its line.
    let rows = p.processes.iter().enumerate().filter(|(i, row)| row.shown || *i < PROCESSES - 1);
    for (_, row) in rows.take(PROCESSES) {
        table.row(vec![
            row.pid.map_or("others".into(), |pid| pid.to_string()),
            speed(row.prefill_tokens_per_s),
            speed(row.decode_tokens_per_s),
            row.calls.to_string(),
            if row.shown { "shown".into() } else { String::new() },
        ]);
    }
    out.plain("");
    out.lines.extend(table.render(out.style).lines().map(String::from));
    let more = p.processes.len().saturating_sub(PROCESSES);
    if more > 0 {
        out.plain(&format!("  and {more} more (--json lists all)"));
    }
}
