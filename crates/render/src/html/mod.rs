//! A run as one self-contained page: no network, no font, no library. Drawings and tables are generated here and
//! can be read without the script, which sorts, recolours and zooms.
//!
//! Names come from a target: they pass through `markup::text` or `markup::json`, and the page's content security
//! policy allows no script but ours and no requests.

mod activation;
pub mod choices;
pub mod compare;
mod experts;
mod flame;
mod graph;
mod markup;
mod pictures;
mod roofline;
mod summary;
mod threads;
mod timeline;
mod tokens;
mod verdict;

use std::collections::BTreeSet;
use std::io::{self, Write};

use self::activation::ActivationGrid;
use self::experts::ExpertGrid;
use self::graph::GraphSection;
use self::markup::{gap, heading, say, section, text};
use super::chart::axis as chart;
use super::offload;
use super::section::Section;
use super::table::Table;
use super::text as terminal;
use super::{attribution, counters, energy, levels, quality, sequences};
use crate::units::{count, ms};
use analysis::questions::report::PhaseReport;
use analysis::questions::stat::reuse::Activation;
use analysis::questions::stat::{Stat, View};
use analysis::streams::overview::Overview;
use analysis::sums::attribution::counters::CounterFacts;
use analysis::sums::attribution::energy::EnergyReport;
use analysis::sums::tables::{OpRow, top_ops};

/// The page's style sheet and script.
pub const STYLE: &str = include_str!("page.css");
pub const SCRIPT: &str = concat!(
    include_str!("page.js"),
    include_str!("filter.js"),
    include_str!("timeline.js"),
    include_str!("flame.js")
);
/// Base64 SHA-256 of the two for the page's content security policy (tests/plain/html.rs prints the required
/// values).
pub const STYLE_HASH: &str = "wyqXseCTF2vj/tO8nxI32SjS7ndAOmvo13u1NWRE/fU=";
pub const SCRIPT_HASH: &str = "M4WLQNRLr10+xt7Na2nOX+wY9cXKGmfsTH4ffq838Fk=";

/// Writes the contents of a section.
type Inside<'p> = &'p dyn Fn(&mut dyn Write) -> io::Result<()>;

/// Ids and headings of the sections.
const SECTIONS: [(&str, &str); 12] = [
    ("summary", "Summary"),
    ("phases", "Phases"),
    ("tokens", "Tokens"),
    ("requests", "Requests"),
    ("graph", "Graph"),
    ("flame", "Flame graph"),
    ("ops", "Operators"),
    ("devices", "Devices"),
    ("roof", "Roofline"),
    ("threads", "Threads"),
    ("experts", "Experts"),
    ("trust", "Recording quality"),
];

/// Sections about the main phase only.
const ONE_PHASE: [&str; 3] = ["graph", "roof", "threads"];
/// Maximum layers to choose from in the filter.
const LAYERS: usize = 512;

/// Writes the page for the recording called `name`; each table has at most `top` rows. `tool` is the program and its
/// version.
pub fn write(out: &mut dyn Write, o: &Overview, name: &str, top: usize, tool: &str) -> io::Result<()> {
    let graph = GraphSection::of(&o.dag);
    let machine = &o.report.run;
    let of: Vec<&str> =
        [machine.host.as_str(), &machine.cpu_model].into_iter().filter(|s| !s.is_empty()).collect();
    let recorded = if of.is_empty() { String::new() } else { format!("Recorded on {}", of.join(", ")) };
    head(out, &PageHead { name, about: &recorded, sections: &SECTIONS, tool })?;
    let names: Vec<&str> = o.report.phases.iter().map(|p| p.phase.name()).collect();
    filters(out, &names, &layers(o))?;
    let write: [Inside<'_>; 12] = [
        &|out| about(out, o),
        &|out| phases(out, o),
        &|out| tokens::write(out, &o.report.phases, &o.lanes),
        &|out| requests(out, o, top),
        &|out| graph::write(out, &graph),
        &|out| flame::write(out, &o.stacks),
        &|out| all_ops(out, o, top),
        &|out| devices(out, o),
        &|out| roof(out, o, top),
        &|out| threads(out, o, top),
        &|out| experts(out, o, top),
        &|out| trust(out, o),
    ];
    for ((id, title), inside) in SECTIONS.iter().zip(write) {
        section(out, id, title)?;
        if ONE_PHASE.contains(id) {
            writeln!(out, "<p class=\"gap only\" hidden>This section is about {}.</p>", o.phase.name())?;
        }
        inside(out)?;
        markup::end(out)?;
    }
    let data = format!(
        "{{\"phase\":\"{}\",\"experts\":{},\"activation\":{},\"timeline\":{},\"metrics\":{}}}",
        o.phase.name(),
        markup::json(&o.report.experts.as_ref().and_then(ExpertGrid::of))?,
        markup::json(&activation(o).and_then(ActivationGrid::of))?,
        timeline::data(&o.lanes)?,
        graph::data(&graph)?
    );
    close(out, &data)
}

/// What the top of a page says.
struct PageHead<'p> {
    /// The program that writes it, and its version.
    tool: &'p str,
    name: &'p str,
    about: &'p str,
    /// Ids and headings.
    sections: &'p [(&'p str, &'p str)],
}

/// Begins a page; [`filters`] continues it.
fn head(out: &mut dyn Write, page: &PageHead<'_>) -> io::Result<()> {
    writeln!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'sha256-{STYLE_HASH}'; \
         script-src 'sha256-{SCRIPT_HASH}'; base-uri 'none'; form-action 'none'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<meta name=\"generator\" content=\"{}\">\n\
         <title>{} - profinfer</title>\n<style>{STYLE}</style>\n</head>\n<body>\n\
         <a class=\"skip\" href=\"#main\">Skip to content</a>",
        text(page.tool),
        text(page.name)
    )?;
    writeln!(out, "<header><h1>{}</h1><p>{}</p></header>", text(page.name), text(page.about))?;
    writeln!(out, "<nav aria-label=\"Sections\"><ul>")?;
    for (id, title) in page.sections {
        writeln!(out, "<li><a href=\"#{id}\">{}</a></li>", text(title))?;
    }
    writeln!(out, "</ul>")
}

/// Ends a page; `data` is the JSON for the script.
fn close(out: &mut dyn Write, data: &str) -> io::Result<()> {
    writeln!(out, "</main>\n<p id=\"said\" class=\"quiet\" role=\"status\"></p>")?;
    writeln!(out, "<script type=\"application/json\" id=\"data\">{data}</script>")?;
    writeln!(out, "<script>{SCRIPT}</script>\n</body>\n</html>")
}

/// The layers that ops have.
fn layers(o: &Overview) -> BTreeSet<u32> {
    let rows = o.report.phases.iter().flat_map(|p| p.by_layer.iter().flatten());
    let named = rows.filter_map(|row| row.name.strip_prefix("layer ")?.parse().ok());
    o.lanes.ops.values().filter_map(|op| op.2).chain(named).collect()
}

/// The filters, which need the script; begins the contents.
fn filters(out: &mut dyn Write, phases: &[&str], layers: &BTreeSet<u32>) -> io::Result<()> {
    let choice = |name: &str, all: &mut dyn Iterator<Item = String>| {
        let options: String = all.map(|value| format!("<option>{value}</option>")).collect();
        let id = name.to_lowercase();
        let hidden = if options.is_empty() { " hidden" } else { "" };
        format!(
            "<label{hidden}>{name} <select id=\"filter-{id}\"><option value=\"\">all</option>{options}</select></label> "
        )
    };
    writeln!(
        out,
        "<div class=\"tools filters\" role=\"search\" hidden>{}{}<label>Find <input type=\"search\" id=\"filter-find\" \
         placeholder=\"op or tensor\" autocomplete=\"off\"/></label> \
         <span id=\"filter-said\" role=\"status\"></span></div></nav>\n<main id=\"main\">",
        choice("Phase", &mut phases.iter().map(|p| (*p).to_owned())),
        choice("Layer", &mut layers.iter().take(LAYERS).map(u32::to_string))
    )
}

fn about(out: &mut dyn Write, o: &Overview) -> io::Result<()> {
    summary::tiles(out, o)?;
    verdict::write(out, &o.report, "time-bar")?;
    writeln!(out, "<p class=\"more\">{}</p>", text(&summary::details(o)))?;
    summary::part(out, o)?;
    for f in o.report.quality.features.iter().filter(|f| f.state != "whole") {
        let state = if f.state == "none" { "Not recorded" } else { "Partly recorded" };
        say(out, &format!("{state}: {}: {}", f.name, f.why))?;
    }
    writeln!(out, "<details><summary>Run and model</summary>")?;
    markup::lines(out, &terminal::run(&o.report))?;
    heading(out, "Model (from its tensors)")?;
    markup::lines(out, &terminal::model(&o.report))?;
    writeln!(out, "</details>")
}

fn phases(out: &mut dyn Write, o: &Overview) -> io::Result<()> {
    markup::lines(out, &terminal::calls(&o.report))?;
    match &o.report.stages {
        Some(rows) => {
            let title = "Engine phases around and within calls";
            markup::folded(out, &levels::stage_table(rows), "phase", title, true)?;
            if let Some(s) = &o.report.sampling {
                if let Some(table) = levels::sampling_table(s) {
                    markup::folded(out, &table, "sampler", "Sampling by sampler", true)?;
                }
                levels::said_unknown(s).map_or(Ok(()), |text| say(out, &format!("Sampling: {text}.")))?;
            }
        }
        None => gap(out, "Load, tokenize and sampling were not recorded (record with --phases).")?,
    }
    o.report.energy.as_ref().map_or(Ok(()), |found| power(out, found))
}

/// Energy by phase, and the other sampled values.
fn power(out: &mut dyn Write, found: &EnergyReport) -> io::Result<()> {
    if found.sources.is_empty() {
        say(out, "Energy is unknown: the machine reports neither power nor energy.")?;
    } else {
        let tokens = found.primary.iter().flat_map(energy::primary);
        tokens.into_iter().try_for_each(|line| say(out, &format!("Energy of a token: {line}.")))?;
        markup::folded(out, &energy::sources(&found.sources), "source", "Energy", true)?;
        found.sources.iter().flat_map(energy::doubts).try_for_each(|doubt| say(out, &doubt))?;
    }
    if let Some(remarks) = &found.remarks {
        say(out, &format!("Sensors: {remarks}."))?;
    }
    if found.gauges.iter().any(|g| !g.phases.is_empty()) {
        let title = "Frequencies and temperatures, in calls";
        markup::folded(out, &energy::gauges(&found.gauges), "sensor", title, true)?;
    }
    Ok(())
}

fn all_ops(out: &mut dyn Write, o: &Overview, top: usize) -> io::Result<()> {
    if o.report.phases.is_empty() {
        return gap(out, "No ops: the recording has no engine calls.");
    }
    let mut others = o.report.phases.iter().filter(|p| p.phase != o.phase);
    let counted = o.report.counters.as_deref();
    let mut block = |p: &PhaseReport, main: bool| {
        writeln!(out, "<div data-phase=\"{}\">", p.phase.name())?;
        ops(out, p, counted, top, main)?;
        writeln!(out, "</div>")
    };
    summary::main_phase(o).map_or(Ok(()), |p| block(p, true))?;
    others.try_for_each(|p| block(p, false))
}

/// The tables of a phase; they are initially closed unless it is the `main` one.
fn ops(
    out: &mut dyn Write,
    p: &PhaseReport,
    counted: Option<&[CounterFacts]>,
    top: usize,
    main: bool,
) -> io::Result<()> {
    let name = p.phase.name();
    heading(out, &format!("Operators, {name}"))?;
    if let Some(changed) = terminal::level_changed(p) {
        say(out, &format!("The recording level changed {changed}."))?;
    }
    if p.op_time.is_none() {
        return gap(out, &format!("No {name} ops were recorded (use `profinfer record --level op`)."));
    }
    let graphs = count(p.cpu_graphs, "CPU graph");
    say(out, &format!("Times are {}. 100 % = {} ms in {graphs}.", terminal::op_time(p), ms(p.graph_ns)))?;
    let rows = |rows: &Option<Vec<OpRow>>| top_ops(rows.clone().unwrap_or_default(), Some(top));
    let by_name = rows(&p.by_name);
    let (title, table) = (format!("Operators by name, {name}"), terminal::ops(&by_name, "name", p));
    match main {
        true => markup::table(out, &table, "name", &title, true)?,
        false => markup::folded(out, &table, "name", &title, false)?,
    }
    for (head, rows) in [("op", rows(&p.by_op)), ("layer", rows(&p.by_layer))] {
        let table = terminal::ops(&rows, head, p);
        markup::folded(out, &table, head, &format!("Operators by {head}, {name}"), false)?;
    }
    match attribution::of_ops(&by_name, "name", p) {
        Some(table) => markup::folded(out, &table, "name", &format!("Bottlenecks, {name}"), false)?,
        None => say(
            out,
            "Bottlenecks are unknown: record with --sched, or measure the machine's peaks first (profinfer doctor --peaks).",
        )?,
    }
    let Some(facts) = counted else { return Ok(()) };
    if let Some(table) = counters::of_ops(facts, &by_name) {
        markup::folded(out, &table, "name", &format!("Counters, {name}, all threads"), main)?;
    }
    if main { counters::whats_missing(facts).iter().try_for_each(|note| say(out, note)) } else { Ok(()) }
}

/// The table and notes of a statistics view, or why there is none.
fn told(out: &mut dyn Write, s: &Stat, view: View, head: &str, top: usize) -> io::Result<()> {
    super::stat::section(s, view, top).map_or(Ok(()), |found| whole(out, &found, head))
}

fn whole(out: &mut dyn Write, section: &Section, head: &str) -> io::Result<()> {
    match &section.table {
        Some(table) => folded(out, table, head, &section.title)?,
        None => gap(out, &format!("{}.", section.title))?,
    }
    section.notes.iter().try_for_each(|note| say(out, note))
}

/// Work by backend: nodes, enqueueing, device times.
fn devices(out: &mut dyn Write, o: &Overview) -> io::Result<()> {
    let phases = o.report.phases.iter().filter_map(|p| Some((p.offload.as_ref()?, p.phase.name())));
    let mut all = phases.flat_map(|(work, phase)| offload::sections(work, phase)).peekable();
    if all.peek().is_none() {
        return gap(out, "No work on a device was recorded.");
    }
    all.try_for_each(|section| {
        let names = ["backend", "op", "ops", "kernel", "tensor"];
        let columns = section.table.iter().flat_map(Table::columns).map(|c| &*c.head);
        let head = columns.filter_map(|c| names.into_iter().find(|n| *n == c)).next();
        whole(out, &section, head.unwrap_or_default())
    })
}

/// Requests by sequence, batches and drafts.
fn requests(out: &mut dyn Write, o: &Overview, top: usize) -> io::Result<()> {
    let Some(found) = &o.report.sequences else {
        let why = o.report.sequences_unknown.as_deref().unwrap_or_default();
        return gap(out, &format!("Which sequences the calls computed is not known: {why}."));
    };
    for section in sequences::sections(found, top) {
        let head = section.table.iter().flat_map(Table::columns).map(|c| c.head.to_string()).next();
        whole(out, &section, head.as_deref().unwrap_or_default())?;
    }
    Ok(())
}

fn folded(out: &mut dyn Write, table: &Table, head: &str, title: &str) -> io::Result<()> {
    markup::folded(out, table, head, title, true)
}

fn stat<'o>(out: &mut dyn Write, o: &'o Overview) -> io::Result<Option<&'o Stat>> {
    match &o.stat {
        Ok(s) => Ok(Some(s)),
        Err(why) => gap(out, &format!("Not available: {why}.")).map(|()| None),
    }
}

fn roof(out: &mut dyn Write, o: &Overview, top: usize) -> io::Result<()> {
    let Some(s) = stat(out, o)? else { return Ok(()) };
    match s.roofline.as_ref().and_then(|r| r.as_ref()) {
        Some(found) => {
            roofline::write(out, found, s.phase.name())?;
            told(out, s, View::Roofline, "name", top)?;
        }
        None => gap(
            out,
            "No roof is known: no op in this recording reads enough to estimate the memory bandwidth. Pass the output \
             of `ggml-runner peak --json` from that machine with --peak.",
        )?,
    }
    heading(out, "Time by work and context length")?;
    pictures::write(out, s, View::Ops)?;
    told(out, s, View::Ops, "name", top)?;
    pictures::write(out, s, View::Tokens)?;
    told(out, s, View::Tokens, "name", top)
}

fn threads(out: &mut dyn Write, o: &Overview, top: usize) -> io::Result<()> {
    if let Some(p) = summary::main_phase(o) {
        threads::write(out, p)?;
        if let Some(rows) = p.by_thread.as_ref().filter(|rows| !rows.is_empty()) {
            let rows = rows.get(..top.min(rows.len())).unwrap_or_default();
            let title = format!("Threads, {}", p.phase.name());
            folded(out, &terminal::threads(rows, p), "thread", &title)?;
            if p.wait_ns.is_none() {
                say(out, &format!("Note: {}.", terminal::NO_WAIT))?;
            }
            if let Some(table) = attribution::of_threads(rows, p) {
                let title = format!("Thread time by cause, {}", p.phase.name());
                folded(out, &table, "thread", &title)?;
            }
        }
    }
    interference(out, o, top)?;
    let Some(s) = stat(out, o)? else { return Ok(()) };
    told(out, s, View::Threads, "name", top)?;
    told(out, s, View::Backends, "backend", top)?;
    pictures::write(out, s, View::Shapes)
}

/// CPU interference: who had the CPU while a thread of the target was runnable.
fn interference(out: &mut dyn Write, o: &Overview, top: usize) -> io::Result<()> {
    match o.report.interference.as_deref() {
        None => Ok(()),
        Some([]) => say(out, "CPU interference: none."),
        Some(rows) => {
            let shown = rows.len().min(top);
            folded(out, &attribution::culprits(rows, shown), "charged to", "CPU interference")?;
            say(out, &format!("Note: {}.", attribution::RULE))
        }
    }
}

/// The choices of experts token by token, if they were read.
fn activation(o: &Overview) -> Option<&Activation> {
    o.stat.as_ref().ok()?.activation.as_ref()?.as_ref()
}

fn experts(out: &mut dyn Write, o: &Overview, top: usize) -> io::Result<()> {
    match (&o.report.experts, o.report.model.experts) {
        (Some(found), _) => {
            experts::write(out, found, top)?;
            let Ok(s) = &o.stat else { return Ok(()) };
            activation(o).map_or(Ok(()), |found| activation::write(out, found))?;
            pictures::write(out, s, View::Reuse)?;
            told(out, s, View::Reuse, "tokens since last use", top)
        }
        (None, Some(n)) => gap(
            out,
            &format!("The model has {n} experts; their choices were not recorded (record with --experts)."),
        ),
        (None, None) => gap(
            out,
            "No experts: no op in this recording uses experts, and no choices were recorded (--experts).",
        ),
    }
}

fn trust(out: &mut dyn Write, o: &Overview) -> io::Result<()> {
    let quality = &o.report.quality;
    let class = if quality.complete { "good" } else { "bad" };
    writeln!(out, "<p class=\"{class}\">{}</p>", text(&quality::verdict(quality)))?;
    if o.part.is_cut() {
        say(out, "These figures are for the complete recording.")?;
    }
    let causes: Vec<&str> = [
        (o.report.counters.is_none(), "counters (--pmc)"),
        (o.report.interference.is_none(), "off-CPU time and CPU interference (--sched)"),
        (o.report.energy.is_none(), "power, frequencies and temperatures (--sensors)"),
    ]
    .into_iter()
    .filter_map(|(missing, what)| missing.then_some(what))
    .collect();
    if !causes.is_empty() {
        say(out, &format!("Not recorded, so not on this page: {}.", causes.join("; ")))?;
    }
    markup::lines(out, &quality::all(quality))
}
