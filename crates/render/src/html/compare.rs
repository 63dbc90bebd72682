//! Two runs on one page: both verdicts, what changed from A to B, and the graph of B coloured by change.

use std::collections::{BTreeSet, HashMap};
use std::io::{self, Write};

use super::graph::GraphSection;
use super::markup::{self, gap, say, text};
use super::{PageHead, close, filters, head, quality, verdict};
use crate::dag::colour::change;
use crate::dag::svg::{self, BoxTint};
use crate::dag::title;
use crate::diff::{facts, only, rows};
use crate::section::SectionItem;
use crate::units::count;
use analysis::questions::dag::{Dag, Metric, Node, NodeRole};
use analysis::questions::diff::{Diff, Incomparable};
use analysis::streams::overview::Overview;

/// One of the two.
pub struct ComparedRun<'o> {
    pub name: &'o str,
    pub overview: &'o Overview,
}

const SECTIONS: [(&str, &str); 3] = [("verdicts", "Verdicts"), ("changes", "Changes"), ("graph", "Graph")];

/// Writes the page; the table of changes has at most `top` rows. `tool` is the program and its version.
pub fn write(
    out: &mut dyn Write,
    runs: &[ComparedRun<'_>; 2],
    diff: &Result<Diff, Incomparable>,
    top: usize,
    tool: &str,
) -> io::Result<()> {
    let [a, b] = runs;
    let name = format!("{} and {}", a.name, b.name);
    let about = "Two runs compared, from A to B";
    head(out, &PageHead { name: &name, about, sections: &SECTIONS, tool })?;
    filters(out, &[], &BTreeSet::new())?;
    markup::section(out, "verdicts", "Verdicts")?;
    writeln!(out, "<div class=\"pair\">")?;
    for (run, side) in runs.iter().zip(["A", "B"]) {
        of_run(out, run, side)?;
    }
    writeln!(out, "</div>")?;
    markup::end(out)?;
    markup::section(out, "changes", "Changes")?;
    changes(out, diff, top)?;
    markup::end(out)?;
    markup::section(out, "graph", "Graph")?;
    graph(out, a.overview, b.overview)?;
    markup::end(out)?;
    close(out, "{\"phase\":\"\",\"timeline\":null,\"metrics\":[]}")
}

fn of_run(out: &mut dyn Write, run: &ComparedRun<'_>, side: &str) -> io::Result<()> {
    writeln!(out, "<div><h3>{side}: {}</h3>", text(run.name))?;
    let report = &run.overview.report;
    let class = if report.quality.complete { "good" } else { "bad" };
    writeln!(out, "<p class=\"{class}\">{}</p>", text(&quality::verdict(&report.quality)))?;
    verdict::write(out, report, &format!("time-bar-{}", side.to_lowercase()))?;
    writeln!(out, "</div>")
}

fn changes(out: &mut dyn Write, diff: &Result<Diff, Incomparable>, top: usize) -> io::Result<()> {
    let d = match diff {
        Ok(d) => d,
        Err(why) => return gap(out, &format!("The runs cannot be compared op by op: {why}.")),
    };
    let lines: Vec<SectionItem> =
        facts(d).into_iter().map(|(name, value)| SectionItem::Fact(name, value)).collect();
    markup::lines(out, &lines)?;
    let said = |text: &str| if text.is_empty() { "not recorded".to_owned() } else { text.to_owned() };
    let different: Vec<SectionItem> = d
        .differences
        .iter()
        .map(|[what, a, b]| SectionItem::Fact("", format!("{what}: A: {}; B: {}", said(a), said(b))))
        .collect();
    if !different.is_empty() {
        markup::heading(out, "Recorded facts that differ")?;
        markup::lines(out, &different)?;
    }
    let phase = d.phase.name();
    if d.ops.is_empty() {
        return gap(out, "No operator is in both runs.");
    }
    let told = d.ops.iter().filter(|o| o.verdict.is_some()).count();
    let shown = d.ops.get(..d.ops.len().min(told.max(top))).unwrap_or_default();
    let title = format!("Operators in both runs, {phase}, reported changes first");
    markup::table(out, &rows(shown, false), "name", &title, true)?;
    if shown.len() < d.ops.len() {
        let more = count((d.ops.len() - shown.len()) as u64, "op");
        say(out, &format!("{more} more without a reported change (--top)."))?;
    }
    for (list, run) in [(&d.only_a, 'A'), (&d.only_b, 'B')] {
        if !list.is_empty() {
            markup::folded(out, &only(list), "name", &format!("Only in {run}, {phase}"), true)?;
        }
    }
    Ok(())
}

/// The graph of B; the colour of a box is the change of its time since A.
fn graph(out: &mut dyn Write, a: &Overview, b: &Overview) -> io::Result<()> {
    let dag = match GraphSection::of(&b.dag) {
        GraphSection::Drawn(dag) => dag,
        GraphSection::Not(why) => return gap(out, &format!("There is no graph to draw: {why}.")),
    };
    let before = match &a.dag {
        Ok(before) => before,
        Err(why) => return gap(out, &format!("A has no graph to compare with: {why}.")),
    };
    let tints = tints(before, dag);
    let both = tints.iter().flatten().count();
    let ops = dag.nodes.iter().filter(|n| n.role == NodeRole::Op).count();
    say(
        out,
        &format!(
            "{} (B). Colour: mean time of an op compared with A, without the wait at its barrier where that was probed; \
             blue is faster, red slower, the deepest from a factor of two on; hatched: not in A, or without a time. {both} \
             of {} are in both. The table above includes waits, and says which changes are more than variation.",
            title(dag),
            count(ops as u64, "op")
        ),
    )?;
    writeln!(
        out,
        "<p class=\"tools\" hidden><span role=\"group\" aria-label=\"Zoom\">\
         <button type=\"button\" id=\"zoom-out\" aria-label=\"Smaller\">\u{2212}</button> \
         <button type=\"button\" id=\"zoom-in\" aria-label=\"Larger\">+</button> \
         <button type=\"button\" id=\"zoom-fit\">Fit</button></span></p>"
    )?;
    let label = text("Graph: + and - zoom, 0 fits it to the view, arrow keys move it");
    writeln!(
        out,
        "<div id=\"dag-box\" class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{label}\">"
    )?;
    svg::tinted(out, dag, &tints)?;
    writeln!(out, "</div>")
}

/// The change of each node's time. Nodes are the same if they have the same op and name and are the n-th such node;
/// layers are folded.
fn tints(a: &Dag, b: &Dag) -> Vec<Option<BoxTint>> {
    let mut before: HashMap<(String, String, usize), f64> = HashMap::new();
    number(a, |node, key| {
        if let Some(time) = time(node) {
            before.insert(key, time);
        }
    });
    let mut out = Vec::with_capacity(b.nodes.len());
    number(b, |node, key| {
        let pair = time(node).zip(before.get(&key).copied().filter(|t| *t > 0.0));
        out.push(pair.map(|(now, before)| {
            let share = now / before - 1.0;
            BoxTint { fill: change(share), value: format!("{:+.1} %", share * 100.0) }
        }));
    });
    out
}

fn time(node: &Node) -> Option<f64> {
    Some(node.figures[Metric::Time as usize]?.median)
}

/// Calls `each` with all nodes in order and what identifies them.
fn number<'d>(dag: &'d Dag, mut each: impl FnMut(&'d Node, (String, String, usize))) {
    let mut seen: HashMap<(String, String), usize> = HashMap::new();
    for node in &dag.nodes {
        let place = seen.entry((node.op(), node.name().to_owned())).or_default();
        each(node, (node.op(), node.name().to_owned(), *place));
        *place += 1;
    }
}
