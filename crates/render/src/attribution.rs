//! Attribution tables for a terminal or a pipe: what threads did in each op, and what kept them off the CPU.

use std::io::{self, Write};

use super::section::title;
use super::table::{Column, Style, Table, number, text};
use super::units::*;
use analysis::questions::report::{By, PhaseReport, Report};
use analysis::sums::attribution::interference::InterferenceRow;
use analysis::sums::attribution::parts::TimeParts;
use analysis::sums::attribution::verdict::Verdict;
use analysis::sums::tables::{OpRow, ThreadRow};

/// A part of the total, and its heading.
type TimePart = (&'static str, fn(&TimeParts) -> u64);

const PARTS: [TimePart; 8] = [
    ("computing %", |p| p.computing_ns),
    ("barrier %", |p| p.barrier_ns),
    ("preempted %", |p| p.preempted_ns),
    ("idle %", |p| p.idle_ns),
    ("faulting %", |p| p.faulting_ns),
    ("I/O %", |p| p.io_ns),
    ("blocked %", |p| p.blocked_ns),
    ("unknown %", |p| p.unknown_ns),
];
/// The first of these are shown even if all rows have 0.
const ALWAYS: usize = 5;

/// Writes the tables of a phase.
pub fn phase(out: &mut dyn Write, report: &Report, p: &PhaseReport, style: &Style) -> io::Result<()> {
    for (name, mut rows) in tables(report, p, By::Cause) {
        rows.retain(|r| r.causes.is_some() || r.verdict().is_some());
        if rows.is_empty() {
            continue;
        }
        let what = match (p.wait_ns, rows.iter().any(|r| r.causes.is_some())) {
            (_, false) => "bottlenecks",
            (Some(_), _) => "all threads: ops and the barrier waits after them",
            (None, _) => "all threads; spinning at a barrier counts as computing",
        };
        title(out, style, &format!("Causes by {name}, {} ({what})", p.phase.name()))?;
        write!(out, "{}", parts(&rows, name, p).render(style))?;
    }
    Ok(())
}

/// A row of any table with attribution figures.
pub(super) struct AttributionRow<'r> {
    pub name: String,
    pub causes: Option<TimeParts>,
    pub op: Option<&'r OpRow>,
    pub thread: Option<&'r ThreadRow>,
}

impl AttributionRow<'_> {
    fn verdict(&self) -> Option<&Verdict> {
        self.op?.verdict.as_ref()
    }
}

/// The tables of a phase, with their names: all of them if only `by` was requested, else those by op and thread.
pub(super) fn tables<'r>(
    report: &Report,
    p: &'r PhaseReport,
    by: By,
) -> Vec<(&'static str, Vec<AttributionRow<'r>>)> {
    if !report.tables.contains(&by) {
        return Vec::new();
    }
    let only = report.tables == [by];
    let ops = |rows: &'r Option<Vec<OpRow>>| {
        let row = |r: &'r OpRow| AttributionRow {
            name: r.name.clone(),
            causes: r.causes,
            op: Some(r),
            thread: None,
        };
        rows.iter().flatten().map(row).collect::<Vec<_>>()
    };
    let mut all = vec![("op", ops(&p.by_op))];
    if only {
        all.extend([("name", ops(&p.by_name)), ("layer", ops(&p.by_layer))]);
    }
    let thread = |r: &'r ThreadRow| AttributionRow {
        name: format!("thread {}", r.ith),
        causes: r.causes,
        op: None,
        thread: Some(r),
    };
    all.push(("thread", p.by_thread.iter().flatten().map(thread).collect()));
    all
}

/// What threads did in each op of a table by `name`, and what limits it; `None` if not recorded.
pub(super) fn of_ops<'r>(rows: &'r [OpRow], name: &'static str, p: &PhaseReport) -> Option<Table> {
    let known = rows.iter().filter(|r| r.causes.is_some() || r.verdict.is_some());
    let row =
        |r: &'r OpRow| AttributionRow { name: r.name.clone(), causes: r.causes, op: Some(r), thread: None };
    let rows: Vec<AttributionRow<'_>> = known.map(row).collect();
    (!rows.is_empty()).then(|| parts(&rows, name, p))
}

/// What each thread did; `None` if not recorded.
pub(super) fn of_threads(rows: &[ThreadRow], p: &PhaseReport) -> Option<Table> {
    let row =
        |r: &ThreadRow| AttributionRow { name: r.ith.to_string(), causes: r.causes, op: None, thread: None };
    let rows: Vec<AttributionRow<'_>> = rows.iter().map(row).filter(|r| r.causes.is_some()).collect();
    (!rows.is_empty()).then(|| parts(&rows, "thread", p))
}

fn parts(rows: &[AttributionRow<'_>], name: &'static str, p: &PhaseReport) -> Table {
    let all = || rows.iter().filter_map(|r| r.causes.as_ref());
    let any = |get: fn(&TimeParts) -> u64| all().any(|parts| get(parts) > 0);
    let always = |i: usize, head: &str| i < ALWAYS && (head != "barrier %" || p.wait_ns.is_some());
    let mut shown: Vec<&TimePart> = Vec::new();
    if all().next().is_some() {
        let parts = PARTS.iter().enumerate();
        shown.extend(parts.filter(|(i, (head, get))| any(*get) || always(*i, head)).map(|(_, part)| part));
    }
    let bound = rows.iter().any(|r| r.verdict().is_some());
    let mut columns: Vec<Column> = Vec::new();
    columns.extend((!shown.is_empty()).then(|| number("ms", 1)));
    columns.extend(shown.iter().map(|(head, _)| number(head, 0)));
    columns.push(text(name));
    columns.extend(bound.then(|| text("bound by")));
    let mut t = Table::new(columns);
    for r in rows {
        let mut cells = Vec::new();
        if !shown.is_empty() {
            let whole = |p: &TimeParts| p.whole().max(1) as f64;
            cells.push(or_dash(r.causes, |p| ms(p.whole())));
            let share = |get: fn(&TimeParts) -> u64| or_dash(r.causes, |p| pct(get(&p) as f64 / whole(&p)));
            cells.extend(shown.iter().map(|(_, get)| share(*get)));
        }
        cells.push(r.name.clone());
        let said = |v: &Verdict| format!("{}: {}", v.bound.name(), v.evidence);
        cells.extend(bound.then(|| or_dash(r.verdict(), said)));
        t.row(cells);
    }
    t
}

/// Rows of interference if it is one section among many.
const BRIEF: usize = 8;

/// Writes the CPU interference: all rows, or the worst.
pub fn interference(
    out: &mut dyn Write,
    rows: &[InterferenceRow],
    all: bool,
    style: &Style,
) -> io::Result<()> {
    title(out, style, "Interference (what ran while a thread of the target was runnable)")?;
    if rows.is_empty() {
        return writeln!(out, "  none");
    }
    let shown = if all { rows.len() } else { BRIEF };
    write!(out, "{}", culprits(rows, shown).render(style))?;
    if !all && rows.len() > BRIEF {
        writeln!(out, "{}", style.dim(&format!("  and {} more (--by interference)", rows.len() - BRIEF)))?;
    }
    writeln!(out, "{}", style.dim(&format!("  {RULE}")))
}

/// Which thread a wait is charged to.
pub(super) const RULE: &str = "a preemption is charged to the thread that took the CPU, a wait after a wake-up to the thread that last ran on the CPU";

/// CPU interference: the first `shown` rows, worst first.
pub(super) fn culprits(rows: &[InterferenceRow], shown: usize) -> Table {
    let mut t = Table::new(vec![
        number("ms", 0),
        number("in ops ms", 0),
        number("times", 1),
        number("preempted", 3),
        number("first s", 4),
        number("last s", 4),
        text("CPUs"),
        text("charged to"),
        text("delayed ops"),
    ]);
    for r in rows.iter().take(shown) {
        let who = match r.tids.as_slice() {
            [] => r.name.clone(),
            [one] => format!("{} (thread {one})", r.name),
            all => format!("{} ({} threads)", r.name, all.len()),
        };
        let ops: Vec<String> = r.ops.iter().map(|op| format!("{} {}", op.name, time(op.ns as f64))).collect();
        let cpus: Vec<String> = r.cpus.iter().map(u16::to_string).collect();
        t.row(vec![
            ms(r.runnable_ns),
            ms(r.in_ops_ns),
            r.times.to_string(),
            r.preemptions.to_string(),
            format!("{:.3}", r.first_ns as f64 / 1e9),
            format!("{:.3}", r.last_ns as f64 / 1e9),
            cpus.join(" "),
            if r.own { format!("{who}, of the target") } else { who },
            ops.join(", "),
        ]);
    }
    t
}
