//! The verdict at the top of a page: what ran and how fast, where the time goes as a bar, what limits it, and the
//! advice. The words are those of the terminal.

use std::io::{self, Write};

use super::markup::{self, text};
use crate::section::SectionItem;
use crate::verdict::{gain, heading, kinds, named, ran, reasons, requests, speed};
use analysis::questions::advice::Advice;
use analysis::questions::report::Report;
use analysis::questions::verdict::bar::TimeBar;

/// Width of the bar in units: it is stretched to the width of the page.
const WIDTH: u32 = 100;

/// Writes the verdict of a report, if it has one. `id` distinguishes the bars of a page with several.
pub fn write(out: &mut dyn Write, report: &Report, id: &str) -> io::Result<()> {
    let Some(v) = &report.verdict else { return Ok(()) };
    let mut facts = vec![SectionItem::Fact("Model", ran(v))];
    let requests = report.sequences.as_ref().and_then(requests);
    facts.extend(requests.map(|text| SectionItem::Fact("Requests", text)));
    facts.extend(v.phases.iter().map(|p| SectionItem::Fact(heading(p), speed(p))));
    facts.extend(kinds(&report.graph_kinds).into_iter().map(|text| SectionItem::Fact("Graphs", text)));
    markup::lines(out, &facts)?;
    if let Some((unit, bar)) = v.phases.first().and_then(|p| Some((p.unit(), p.bar_wall?))) {
        draw(out, id, unit, &bar)?;
    }
    if let Some(limit) = &v.limit {
        writeln!(out, "<p class=\"limit\"><b>Limit:</b> {}</p>", text(&limit.text))?;
    }
    if let Some(why) = &v.no_advice {
        markup::say(out, &format!("Advice: {why}."))?;
    }
    advice(out, &v.advice)?;
    v.missing.iter().try_for_each(|missing| markup::gap(out, &format!("Missing: {missing}.")))
}

/// The bar: its shares add up to 100 %.
fn draw(out: &mut dyn Write, id: &str, unit: &str, bar: &TimeBar) -> io::Result<()> {
    let shares = named(bar);
    let name = format!("Where the time of a {unit} goes");
    let told: Vec<String> = shares.iter().map(|(_, name, n)| format!("{n} % {name}")).collect();
    writeln!(
        out,
        "<figure><svg class=\"bar\" id=\"{id}\" viewBox=\"0 0 {WIDTH} 1\" preserveAspectRatio=\"none\" role=\"img\" \
         aria-labelledby=\"{id}-t {id}-d\"><title id=\"{id}-t\">{}</title><desc id=\"{id}-d\">{}</desc>",
        text(&name),
        text(&told.join(", "))
    )?;
    let mut x = 0;
    for (what, name, n) in &shares {
        writeln!(
            out,
            "<rect class=\"{}\" x=\"{x}\" width=\"{n}\" height=\"1\"><title>{n} % {}</title></rect>",
            class(what),
            text(name)
        )?;
        x += n;
    }
    writeln!(out, "</svg><figcaption>{}:</figcaption><ul class=\"legend\">", text(&name))?;
    for (what, name, n) in &shares {
        writeln!(out, "<li><i class=\"{}\"></i>{n} % {}</li>", class(what), text(name))?;
    }
    writeln!(out, "</ul></figure>")
}

/// The style of a share.
fn class(share: &str) -> &'static str {
    match share {
        "computing" => "busy",
        "at barriers" => "wait",
        "waiting for a CPU" => "nocpu",
        "page faults and I/O" => "fault",
        "blocked" => "blocked",
        "device" => "device",
        "gaps" => "rest",
        "between calls" => "between",
        _ => "unseen",
    }
}

/// All advice: what to do, then why.
fn advice(out: &mut dyn Write, all: &[Advice]) -> io::Result<()> {
    if all.is_empty() {
        return Ok(());
    }
    markup::heading(out, "Advice, largest gain first")?;
    writeln!(out, "<ol class=\"advice\">")?;
    for a in all {
        writeln!(out, "<li><b>{}</b> <span class=\"gain\">{}</span>", text(&a.title), text(&gain(a)))?;
        for action in &a.actions {
            writeln!(out, "<pre>{}</pre>", text(action))?;
        }
        writeln!(out, "<details><summary>Why, and what would disprove it</summary>")?;
        let facts: Vec<SectionItem> =
            reasons(a).into_iter().map(|(name, text)| SectionItem::Fact(name, text)).collect();
        markup::lines(out, &facts)?;
        writeln!(out, "</details></li>")?;
    }
    writeln!(out, "</ol>")
}
