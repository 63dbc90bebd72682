//! Formats the changes between runs, as text for a terminal or a pipe.

use std::io::{self, Write};

use super::section::{fact, title};
use super::table::{Style, Table, clean, markdown_text, number, text};
use super::units::*;
use analysis::questions::diff::{Diff, DiffSide, DiffVerdict, Doubt, Judgement, Only, OpChange, TimeChange};

/// Most rows of a table in Markdown, whatever was reported: a comment on GitHub has 65536 characters.
const MARKDOWN_ROWS: usize = 100;

/// Columns of a table in Markdown: those up to this rank.
const MARKDOWN_RANK: u8 = 2;

/// From this many starts per side on, the scatter of an op is roughly known.
const FEW_STARTS: u64 = 3;

/// Writes the complete comparison; `files` are the names of both sides' runs. Of the ops without a reported
/// change at most `top` are shown.
pub fn write(
    out: &mut dyn Write,
    d: &Diff,
    files: &[Vec<String>; 2],
    top: usize,
    style: &Style,
) -> io::Result<()> {
    runs(out, d, files, style)?;
    summary(out, d, style)?;
    let phase = d.phase.name();
    if d.ops.is_empty() {
        title(out, style, "Operators: none in both runs")?;
    } else {
        let what = "start to next op's start, including barrier wait, thread 0";
        title(out, style, &format!("Operators in both runs, {phase} ({what})"))?;
        let told = d.ops.iter().filter(|o| o.verdict.is_some()).count();
        let shown = d.ops.get(..d.ops.len().min(told.max(top))).unwrap_or(&[]);
        write!(out, "{}", rows(shown, false).render(style))?;
        let more = match d.ops.len() - shown.len() {
            0 => String::new(),
            n => format!("{} more without a reported change (--top); ", count(n as u64, "op")),
        };
        let how = format!(
            "{more}{} tested, false discovery rate {}; own: without the drift; changes up to {} are ignored; \
             finds: smallest change detected in 4 of 5 cases",
            count(d.tested, "op"),
            percent(d.false_discovery),
            percent(d.least_change),
        );
        writeln!(out, "{}", style.dim(&format!("  {how}")))?;
    }
    for (list, run) in [(&d.only_a, 'A'), (&d.only_b, 'B')] {
        if list.is_empty() {
            continue;
        }
        title(out, style, &format!("Only in {run}, {phase}"))?;
        write!(out, "{}", only(list).render(style))?;
    }
    Ok(())
}

/// Ops and shapes in one of the runs.
pub(crate) fn only(list: &[Only]) -> Table {
    let mut t = Table::new(vec![number("us", 0), text("structure"), text("name"), text("result of sources")]);
    for o in list {
        let what = if o.reshaped { "other shape or type" } else { "op" };
        t.row(vec![us(o.ns), what.into(), o.name.clone(), o.form.clone()]);
    }
    t
}

/// Writes one table of all ops, in both runs or in one, as comma-separated values.
pub fn csv(out: &mut dyn Write, d: &Diff) -> io::Result<()> {
    let mut t = rows(&d.ops, true);
    in_one_run(d).for_each(|(run, o)| t.row(row_of_one(run, o, true)));
    write!(out, "{}", t.csv())
}

/// Ops in one run only, with that run's letter.
fn in_one_run(d: &Diff) -> impl Iterator<Item = (char, &Only)> {
    d.only_a.iter().map(|o| ('A', o)).chain(d.only_b.iter().map(|o| ('B', o)))
}

/// An op that one run has as a row of [`rows`].
fn row_of_one(run: char, o: &Only, all: bool) -> Vec<String> {
    let ns = us(o.ns);
    let (a, b, effect) =
        if run == 'A' { (ns.clone(), "-".into(), format!("-{ns}")) } else { ("-".into(), ns.clone(), ns) };
    let mut cells = vec![effect, format!("only in {run}")];
    cells.extend(vec!["-".to_string(); 4]);
    cells.extend([a, b, "-".into(), "-".into(), "-".into()]);
    if all {
        cells.extend([o.form.clone(), o.name.clone()]);
    } else {
        cells.push(format!("{}  {}", o.name, o.form));
    }
    cells
}

/// Writes the comparison in Markdown, the verdict first; with `limit`, the share by which a call may be slower, and whether
/// an undecided comparison passes. Of the ops without a reported change, and of those in one run only, at most `top` each
/// are shown.
pub fn markdown(out: &mut dyn Write, d: &Diff, limit: Option<(f64, bool)>, top: usize) -> io::Result<()> {
    let facts = facts(d);
    match limit {
        Some((most, undecided_passes)) => {
            let passed = match d.judged(most) {
                Judgement::NotSlower => true,
                Judgement::Undecided(_) => undecided_passes,
                Judgement::Ops | Judgement::Call => false,
            };
            let why = failure_in(d, most, markdown_text);
            let why = why.unwrap_or_else(|| format!("a call is not slower by more than {}", percent(most)));
            writeln!(out, "**{}: {why}**\n", if passed { "Passed" } else { "Failed" })?;
        }
        None => {
            writeln!(out, "**Change of a call: {}**\n", facts.first().map_or("", |(_, text)| text.as_str()))?
        }
    }
    let mut name = "";
    for (next, text) in &facts {
        if !next.is_empty() {
            name = next;
        }
        writeln!(out, "- {name}: {text}")?;
    }
    let differ: Vec<String> = d.differences.iter().map(|[what, ..]| markdown_text(what)).collect();
    if !differ.is_empty() {
        writeln!(out, "- recorded facts that differ: {}", differ.join(", "))?;
    }
    let told = d.ops.iter().filter(|o| o.verdict.is_some()).count();
    let shown = d.ops.get(..told.max(top).min(MARKDOWN_ROWS).min(d.ops.len())).unwrap_or(&[]);
    let mut table = rows(shown, false);
    let one = in_one_run(d).take(top.min(MARKDOWN_ROWS));
    one.for_each(|(run, o)| table.row(row_of_one(run, o, false)));
    write!(out, "\n{}", table.markdown(MARKDOWN_RANK))?;
    let all = d.ops.len() + d.only_a.len() + d.only_b.len();
    match all - table.rows().len() {
        0 => Ok(()),
        n => writeln!(out, "\n{} more", count(n as u64, "op")),
    }
}

/// Ops in both runs; `all` adds the columns meant for programs.
pub(crate) fn rows(ops: &[OpChange], all: bool) -> Table {
    let mut columns = vec![
        number("us", 0),
        text("verdict"),
        number("own %", 0),
        number("from", 4),
        number("to", 4),
        number("change %", 2),
        number("A us", 1),
        number("B us", 1),
        number("q", 3),
        number("finds %", 4),
        number("calls", 5),
    ];
    if all {
        columns.push(text("result of sources"));
    }
    columns.push(text("name"));
    let mut t = Table::new(columns);
    for o in ops {
        let [from, to] = o.own_interval.map_or([None; 2], |[a, b]| [Some(a), Some(b)]);
        let [before, after] = o.times_a_call;
        let told = match o.verdict {
            Some(DiffVerdict::Slower) => "slower".into(),
            Some(DiffVerdict::Faster) => "faster".into(),
            Some(DiffVerdict::Recounted) => format!("{} -> {} times", times(before), times(after)),
            None => String::new(),
        };
        let mut cells = vec![
            format!("{:+.2}", o.effect_ns / 1e3),
            told,
            or_dash(o.own, signed),
            or_dash(from, signed),
            or_dash(to, signed),
            or_dash(o.total.change, signed),
            us(o.total.a_ns),
            us(o.total.b_ns),
            or_dash(o.q, chance),
            or_dash(o.found, found),
            o.pairs.to_string(),
        ];
        match o.form.as_ref() {
            form if all => cells.extend([form.cloned().unwrap_or_default(), o.name.clone()]),
            Some(form) if o.several => cells.push(format!("{}  {form}", o.name)),
            _ => cells.push(o.name.clone()),
        }
        t.row(cells);
    }
    t
}

/// A count per call; a whole number in most runs.
fn times(n: f64) -> String {
    if n.fract() == 0.0 { format!("{n:.0}") } else { format!("{n:.2}") }
}

fn signed(share: f64) -> String {
    format!("{:+.2}", share * 100.0)
}

fn percent(share: f64) -> String {
    format!("{} %", (share * 1e6).round() / 1e4)
}

/// The smallest change found, in percent; beyond ten times the op's time it is of no interest.
fn found(share: f64) -> String {
    if share < 10.0 { format!("{:.1}", share * 100.0) } else { ">1000".into() }
}

fn chance(q: f64) -> String {
    if q < 0.0001 { "<0.0001".into() } else { format!("{q:.4}") }
}

fn runs(out: &mut dyn Write, d: &Diff, files: &[Vec<String>; 2], style: &Style) -> io::Result<()> {
    writeln!(out, "{}", style.bold("Runs"))?;
    for (name, (side, files)) in ["A", "B"].into_iter().zip([&d.a, &d.b].into_iter().zip(files)) {
        for (i, (run, file)) in side.iter().zip(files).enumerate() {
            let label = if side.len() > 1 { format!("{name}{}", i + 1) } else { name.to_string() };
            fact(out, style, &label, &format!("{file}: {}", calls(run, d)))?;
        }
    }
    let most = d.a.iter().chain(&d.b).map(|run| run.calls).max();
    if most.is_some_and(|most| d.pairs * d.calls_in_a_pair < most) {
        let of = count(d.pairs * d.calls_in_a_pair, "call");
        fact(out, style, "compared", &format!("the first {of} of each run"))?;
    }
    if d.fastest_of > 1 {
        let of = d.fastest_of;
        fact(
            out,
            style,
            "",
            &format!("the fastest of each {of} consecutive calls: other work disturbed the machine"),
        )?;
    }
    for [what, a, b] in &d.differences {
        let said = |text: &str| if text.is_empty() { "not recorded".to_string() } else { text.to_string() };
        fact(out, style, what, &format!("A: {}", said(a)))?;
        fact(out, style, "", &format!("B: {}", said(b)))?;
    }
    Ok(())
}

fn calls(side: &DiffSide, d: &Diff) -> String {
    let mut text = count(side.calls, &format!("{} call", d.phase.name()));
    if side.left_out > 0 {
        text += &format!(", {} more excluded (cut off or with ops missing)", side.left_out);
    }
    if let Some(n) = side.context {
        text += &format!(", of process {}:{n} (its other contexts are not compared)", side.pid);
    }
    if side.other_processes > 0 {
        text += &format!(", of process {} ({} not compared)", side.pid, count(side.other_processes, "other"));
    }
    text
}

fn summary(out: &mut dyn Write, d: &Diff, style: &Style) -> io::Result<()> {
    title(out, style, "Change from A to B")?;
    facts(d).iter().try_for_each(|(name, value)| fact(out, style, name, value))
}

/// The change of a call, of ops, of the structure, and what limits their detection.
pub(crate) fn facts(d: &Diff) -> Vec<(&'static str, String)> {
    let mut all = Vec::new();
    let ms = |c: &TimeChange| format!("{:.3} -> {:.3} ms", c.a_ns / 1e6, c.b_ns / 1e6);
    let call = match (d.call.change, d.call.interval) {
        (Some(change), Some([from, to])) => {
            let between = format!("{} to {} % with 95 % confidence", signed(from), signed(to));
            format!("{}; typically {} % ({between})", ms(&d.call), signed(change))
        }
        (Some(change), None) => {
            let why = "calls or starts vary too much to separate a change from noise";
            format!("{}; typically {} %, but {why}", ms(&d.call), signed(change))
        }
        (None, _) => format!("{}; too few calls to separate a change from noise", ms(&d.call)),
    };
    all.push(("call", call));
    let in_speed = |o: &&OpChange| matches!(o.verdict, Some(DiffVerdict::Slower | DiffVerdict::Faster));
    let told = d.ops.iter().filter(in_speed).count() as u64;
    let ops = match told {
        0 if d.tested == 0 => "none could be tested".to_string(),
        0 => "no change reported".to_string(),
        n => format!("{} slower or faster: {} % of a call", count(n, "op"), signed(d.added_by_ops)),
    };
    all.push(("ops", ops));
    let recounted = d.ops.iter().any(|o| o.verdict == Some(DiffVerdict::Recounted));
    if recounted || !d.only_a.is_empty() || !d.only_b.is_empty() {
        let adds = signed(d.added_by_structure);
        let text = format!("ops or shapes in only one run, or executed more often: {adds} % of a call");
        all.push(("structure", text));
    }
    for drift in &d.drift {
        all.push(("drift", format!("{} ({}): {} %", drift.ops, drift.count, signed(drift.change))));
    }
    all.extend(scatter(d));
    all
}

/// Variation of ops between program starts, how it was estimated, and what can still be found.
fn scatter(d: &Diff) -> Vec<(&'static str, String)> {
    let mut all = Vec::new();
    for (i, kind) in d.scatter.iter().enumerate() {
        let label = if i == 0 { "scatter" } else { "" };
        // With one start per side the observed variation also includes variation between calls, so it is not
        // shown.
        let swing = if d.starts > 1 { kind.seen } else { kind.between_starts } * 100.0;
        let least = found(kind.found);
        let text =
            format!("{}: {swing:.2} % from start to start; changes of {least} % are detected", kind.ops);
        all.push((label, text));
    }
    let how = match d.starts {
        _ if d.scatter.is_empty() => return all,
        1 => "one start per side: scatter is estimated from how differently ops of a kind changed".into(),
        n => format!("{n} starts per side: scatter was measured op by op"),
    };
    let next = if d.starts < FEW_STARTS {
        "; to detect smaller changes, record more runs alternately: diff A1,A2,A3 B1,B2,B3"
    } else {
        ""
    };
    all.push(("starts", format!("{how}{next}")));
    all
}

/// One line on why a judged comparison did not pass.
pub fn failure(d: &Diff, most: f64) -> Option<String> {
    failure_in(d, most, clean)
}

/// The same with the name of an op written by `quoted`.
fn failure_in(d: &Diff, most: f64, quoted: impl Fn(&str) -> String) -> Option<String> {
    let (by_ops, measured) = d.slower();
    let than = format!("more than {}", percent(most));
    let worst = d.ops.iter().find(|o| o.verdict == Some(DiffVerdict::Slower)).map(|o| quoted(&o.name));
    match d.judged(most) {
        Judgement::NotSlower => None,
        Judgement::Ops => {
            let first = worst.map(|name| format!(", first {name}")).unwrap_or_default();
            Some(format!("ops add {} % to a call, {than}{first}", signed(by_ops)))
        }
        Judgement::Call => Some(format!(
            "a call is {} % slower, {than}, but no op stands out: the machine, or the build as a whole",
            signed(measured)
        )),
        Judgement::Undecided(doubt) => {
            let why = match doubt {
                Doubt::TooFewCalls => format!("{} {} calls are too few", d.pairs, d.phase.name()),
                Doubt::FewCalls => "some calls are, the typical call is not".into(),
                Doubt::Scatter => match d.call.interval {
                    Some([from, to]) => format!("it lies between {} and {} %", signed(from), signed(to)),
                    None => "calls or starts vary too much".into(),
                },
            };
            let ms = |ns: f64| format!("{:.3}", ns / 1e6);
            let (a, b) = (ms(d.call.a_ns), ms(d.call.b_ns));
            Some(format!(
                "undecided whether a call is slower by {than} ({a} -> {b} ms): {why}; record more calls, or several starts per side"
            ))
        }
    }
}
