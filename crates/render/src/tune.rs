//! The answer of `profinfer tune` for a terminal, and as a picture.

use std::io::{self, Write};

use super::chart::{self, Chart, Look, Mark, Panel, Scale, ScaleKind, Series};
use super::table::{Style, Table, number, text};
use super::units::pct;
use super::verdict::wrap;
use tune::answer::{Answer, Line, Measured, TriedRow, WorkAnswer};

/// Columns of a line, and of its heading.
const WIDTH: usize = 100;
const HEAD: usize = 10;

/// Writes the lines to copy first, then what they rest on.
pub fn write(out: &mut dyn Write, a: &Answer, style: &Style) -> io::Result<()> {
    for line in &a.lines {
        best(out, line, style)?;
    }
    line(out, style, "Machine", &machine(a))?;
    line(out, style, "Energy", &energy(a))?;
    for work in &a.works {
        let whole = if work.complete { "" } else { "CUT SHORT: " };
        line(out, style, capital(work.work), &format!("{whole}{}; {}", work.ended, work.sure))?;
    }
    for note in &a.notes {
        line(out, style, "Note", note)?;
    }
    let kept =
        if a.kept_runs > 0 { format!(", {} kept from earlier calls", a.kept_runs) } else { String::new() };
    line(out, style, "Runs", &format!("{}{kept}; {:.0} s", a.runs, a.seconds))?;
    for work in &a.works {
        writeln!(out, "\n{}", style.bold(capital(work.work)))?;
        write!(out, "{}", tried(work, a.energy.is_some()).render(style))?;
        if !work.settings.is_empty() {
            writeln!(out)?;
            write!(out, "{}", settings(work).render(style))?;
        }
    }
    Ok(())
}

fn line(out: &mut dyn Write, style: &Style, head: &str, words: &str) -> io::Result<()> {
    for (i, part) in wrap(&super::table::clean(words), WIDTH - HEAD - 1).iter().enumerate() {
        let head = if i == 0 { head } else { "" };
        writeln!(out, "{} {part}", style.bold(&format!("{head:HEAD$}")))?;
    }
    Ok(())
}

pub(crate) fn capital(word: &str) -> &str {
    match word {
        "decode" => "Decode",
        "prefill" => "Prefill",
        "speed" => "Fastest",
        "energy" => "Thriftiest",
        "balance" => "Balanced",
        other => other,
    }
}

/// The figure, then the command on a line of its own: it is never wrapped, so that it can be copied.
fn best(out: &mut dyn Write, l: &Line, style: &Style) -> io::Result<()> {
    line(out, style, capital(l.goal), &figures(l))?;
    writeln!(out, "{:HEAD$} {}", "", style.good(&super::table::clean(&l.command)))
}

/// Speed and energy of a line.
pub(crate) fn figures(l: &Line) -> String {
    let joules = l.joules_per_token.map(|j| format!(", {j:.3} J a token")).unwrap_or_default();
    let over = match l.over_default {
        Some(x) if l.differs => format!(", {x:.2} times the command as given"),
        Some(_) => ", the same as the command as given within the scatter".to_owned(),
        None => String::new(),
    };
    match l.prefill_tokens_per_s {
        Some(prefill) => {
            format!(
                "both in one line: decode {:.2} tok/s{joules}{over}; prefill {prefill:.2} tok/s",
                l.tokens_per_s
            )
        }
        None => format!("{}: {:.2} tok/s{joules}{over}", l.work, l.tokens_per_s),
    }
}

pub(crate) fn machine(a: &Answer) -> String {
    let cluster = |c: &tune::answer::ClusterRow| {
        let mut facts = Vec::new();
        facts.extend(c.capacity.map(|n| format!("capacity {n}")));
        facts.extend(c.max_khz.map(|khz| format!("{:.2} GHz", khz as f64 / 1e6)));
        facts.extend((!c.siblings.is_empty()).then(|| format!("hardware threads {}", c.siblings)));
        let facts = if facts.is_empty() { String::new() } else { format!(" ({})", facts.join(", ")) };
        format!("CPUs {}{facts}", c.cpus)
    };
    let clusters: Vec<String> = a.clusters.iter().map(cluster).collect();
    let name = if a.cpu_model.is_empty() { "" } else { &a.cpu_model };
    format!("{name}{}{}", if name.is_empty() { "" } else { ": " }, clusters.join("; "))
}

pub(crate) fn energy(a: &Answer) -> String {
    match (&a.energy, &a.no_energy) {
        (Some(e), _) if e.model => format!("MODEL, not a measurement: {}", e.name),
        (Some(e), _) => e.name.clone(),
        (None, Some(why)) => format!("not known: {why}"),
        (None, None) => "not measured".to_owned(),
    }
}

pub(crate) fn tried(work: &WorkAnswer, energy: bool) -> Table {
    let mut columns = vec![text("CPUs"), number("threads", 0), number("tok/s", 0), number("± %", 0)];
    if energy {
        columns.push(number("J/token", 0));
    }
    columns.extend([number("runs", 2), number("°C", 3), text("seen on"), text("")]);
    let mut table = Table::new(columns);
    if let Some(default) = &work.default {
        table.row(row(("as given", String::new()), Some(default), energy, ""));
    }
    for (i, r) in work.tried.iter().enumerate() {
        let cpus = if r.free { format!("{} (not pinned)", r.cpus) } else { r.cpus.clone() };
        table.row(row((&cpus, r.threads.to_string()), r.measured.as_ref(), energy, &mark(work, i, r)));
    }
    table
}

fn mark(work: &WorkAnswer, i: usize, r: &TriedRow) -> String {
    let mut marks = Vec::new();
    if work.chosen == Some(i) {
        marks.push("chosen");
    }
    if work.fastest == Some(i) {
        marks.push("fastest");
    }
    if let (None, Some(why)) = (&r.measured, &r.refused) {
        marks.push(why);
    }
    marks.join(", ")
}

fn row((cpus, threads): (&str, String), m: Option<&Measured>, energy: bool, mark: &str) -> Vec<String> {
    let of = |f: &dyn Fn(&Measured) -> String| m.map_or_else(|| "-".to_owned(), f);
    let mut cells = vec![
        cpus.to_owned(),
        threads,
        of(&|m| format!("{:.2}", m.tokens_per_s)),
        of(&|m| m.scatter.map_or_else(|| "?".to_owned(), |s| format!("{:.1}", s * 100.0))),
    ];
    if energy {
        cells.push(of(&|m| m.joules_per_token.map_or_else(|| "?".to_owned(), |j| format!("{j:.3}"))));
    }
    cells.extend([
        of(&|m| m.runs.to_string()),
        of(&|m| m.celsius.map_or_else(String::new, |c| format!("{c:.0}"))),
        of(&|m| m.seen_on.clone()),
        mark.to_owned(),
    ]);
    cells
}

pub(crate) fn settings(work: &WorkAnswer) -> Table {
    let mut table =
        Table::new(vec![text("setting"), number("gain", 0), number("stands out from", 1), text("")]);
    for s in &work.settings {
        let gain = s.gain.map_or_else(|| "-".to_owned(), |g| format!("{:.1} %", (g - 1.0) * 100.0));
        let taken = if s.taken { "taken".to_owned() } else { s.why.clone().unwrap_or_default() };
        table.row(vec![s.setting.clone(), gain, format!("{} %", pct(s.least)), taken]);
    }
    table
}

/// Writes the choices as a picture: speed against joules a token, or against threads where there are no joules.
///
/// # Errors
/// `out` cannot be written.
pub fn svg(out: &mut dyn Write, a: &Answer) -> io::Result<()> {
    let panels: Vec<Panel> = a.works.iter().map(|w| panel(w, a.energy.is_some())).collect();
    let notes = vec![format!("Energy: {}.", energy(a))];
    let about = format!("{}. Each point is a choice of CPUs and threads.", machine(a));
    chart::file(out, &Chart { title: format!("Choices for {}", a.command), about, panels, notes })
}

pub(crate) fn panel(work: &WorkAnswer, energy: bool) -> Panel {
    let place =
        |r: &TriedRow, m: &Measured| if energy { m.joules_per_token } else { Some(f64::from(r.threads)) };
    let marks = |wanted: &dyn Fn(usize, &TriedRow) -> bool| -> Vec<Mark> {
        let rows = work.tried.iter().enumerate().filter(|(i, r)| wanted(*i, r));
        rows.filter_map(|(_, r)| {
            let m = r.measured.as_ref()?;
            let joules = m.joules_per_token.map(|j| format!(", {j:.3} J a token")).unwrap_or_default();
            let about =
                format!("CPUs {}, {} threads\n{:.2} tok/s{joules}", r.cpus, r.threads, m.tokens_per_s);
            Some(Mark { x: place(r, m)?, y: m.tokens_per_s, about })
        })
        .collect()
    };
    let of = |name: &str, look: usize, points: Vec<Mark>| Series {
        name: name.to_owned(),
        look: Look::Kind(look),
        points,
        ..Series::default()
    };
    let mut front =
        of("no other is faster and takes less energy", 1, marks(&|i, r| r.pareto && work.chosen != Some(i)));
    let all_front = marks(&|_, r| r.pareto);
    let mut line: Vec<(f64, f64)> = all_front.iter().map(|m| (m.x, m.y)).collect();
    common::order::by(&mut line, |a, b| a.0.total_cmp(&b.0));
    front.line = line;
    let series = vec![
        of("tried", 0, marks(&|i, r| !r.pareto && work.chosen != Some(i))),
        front,
        of("chosen", 2, marks(&|i, _| work.chosen == Some(i))),
    ];
    let x = match energy {
        true => Scale::new("energy (J a token)", ScaleKind::Around),
        false => Scale::new("threads (number)", ScaleKind::Each),
    };
    Panel { x, y: Scale::new(format!("{} (tok/s)", work.work), ScaleKind::Zero), series, height: 220.0 }
}
