//! The verdict: about ten lines, as wide as the terminal, at most 100 columns.

use std::io::{self, Write};

use super::table::{Style, clean};
use super::units::{count, pct, time};
use super::{quality, runs};
use analysis::questions::advice::{Advice, Gain};
use analysis::questions::report::Report;
use analysis::questions::verdict::bar::TimeBar;
use analysis::questions::verdict::{PhaseVerdict, RunVerdict};
use analysis::recorded::calls::{Latency, Phase};
use analysis::recorded::graph_kinds::GraphKind;
use analysis::recorded::sequences::SequenceReport;

/// Most and fewest columns of a line, and those of its heading.
const WIDTH: usize = 100;
const NARROW: usize = 40;
const HEAD: usize = 10;
/// Columns of the bar.
const BAR: usize = 40;
/// The time between calls is shown from this share on.
const BETWEEN: f64 = 0.05;
/// Pieces of advice in short.
const SHOWN: usize = 3;

/// Writes the verdict of a report; nothing if it has none. `file` is the trace's name, for the next commands.
pub fn write(out: &mut dyn Write, report: &Report, file: &str, style: &Style) -> io::Result<()> {
    let Some(v) = &report.verdict else { return Ok(()) };
    line(out, style, "Model", &ran(v))?;
    recording(out, report, style)?;
    for text in runs::short(&report.runs) {
        line(out, style, "Shown", &text)?;
    }
    if let Some(text) = report.sequences.as_ref().and_then(requests) {
        line(out, style, "Requests", &text)?;
    }
    for p in &v.phases {
        line(out, style, heading(p), &speed(p))?;
    }
    for text in kinds(&report.graph_kinds) {
        line(out, style, "", &text)?;
    }
    if let Some((unit, bar)) = v.phases.first().and_then(|p| Some((p.unit(), p.bar_wall?))) {
        shares(out, unit, &bar, style)?;
    }
    if let Some(limit) = &v.limit {
        line(out, style, "Limit", &limit.text)?;
    }
    short(out, v, style)?;
    for missing in &v.missing {
        line(out, style, "Missing", missing)?;
    }
    let file = clean(file);
    let advise = if v.advice.is_empty() { String::new() } else { format!("profinfer advise {file}; ") };
    line(out, style, "Details", &format!("{advise}profinfer report {file} --all"))
}

/// Model, type, threads, backends.
pub(crate) fn ran(v: &RunVerdict) -> String {
    let mut parts = vec![v.model.clone()];
    if !v.quantisation.is_empty() {
        parts.push(v.quantisation.clone());
    }
    if v.threads > 0 {
        parts.push(count(v.threads.into(), "thread"));
    }
    parts.push(if v.backends.is_empty() { "backend unknown".into() } else { v.backends.join(" and ") });
    parts.join(", ")
}

/// Whether it is complete, how long, and what it cost.
fn recording(out: &mut dyn Write, report: &Report, style: &Style) -> io::Result<()> {
    let q = &report.quality;
    let mut text = format!("{}; {}", quality::verdict(q), time(report.run.span_ns as f64));
    text += &match q.predicted_slowdown.value {
        Some(share) => format!("; recording cost at least {} %", pct(share)),
        None => "; recording cost unknown".into(),
    };
    let lines = wrapped(&text, style);
    for (i, text) in lines.iter().enumerate() {
        let text = if q.complete { text.clone() } else { style.bad(text) };
        head(out, style, if i == 0 { "Recording" } else { "" }, &text)?;
    }
    Ok(())
}

pub(crate) fn heading(p: &PhaseVerdict) -> &'static str {
    match (p.runs_per_s, p.phase) {
        (Some(_), _) => "Runs",
        (None, Phase::Decode) => "Decode",
        (None, Phase::Prefill) => "Prefill",
        (None, Phase::Unknown) => "Calls",
    }
}

/// Kinds of graphs in short.
const KINDS: usize = 6;

/// A line for each kind of graph.
pub(crate) fn kinds(all: &[GraphKind]) -> Vec<String> {
    let one = |kind: &GraphKind| {
        let times = kind.latency.map_or_else(String::new, |l| format!("; {}", quantiles(&l)));
        let share = kind.share * 100.0;
        format!("{}: {}{times}; {share:.0} % of the time", kind_name(kind), count(kind.graphs, "run"))
    };
    let more = all.len().saturating_sub(KINDS);
    let more = (more > 0).then(|| format!("and {}", count(more as u64, "more kind")));
    all.iter().take(KINDS).map(one).chain(more).collect()
}

/// The name of a kind's result, else its size.
pub(crate) fn kind_name(kind: &GraphKind) -> String {
    let nodes = count(kind.nodes.into(), "node");
    kind.result.as_ref().map_or_else(|| format!("graph of {nodes}"), |name| format!("{name} ({nodes})"))
}

/// Speed, latency, ceiling.
pub(crate) fn speed(p: &PhaseVerdict) -> String {
    let mut parts: Vec<String> = p.runs_per_s.map(|rate| format!("{rate:.2} runs/s")).into_iter().collect();
    match p.tokens_per_s {
        Some(rate) => parts.push(format!("{rate:.2} tok/s")),
        None if p.runs_per_s.is_some() => {}
        None => parts.push("tokens unknown".into()),
    }
    if let Some(first) = p.first_call {
        parts.push(format!(
            "{:.2} tok/s without the first call of {}, which may be a warm-up or have read the weights",
            first.others_tokens_per_s,
            time(first.ns as f64)
        ));
    }
    if let (Some(rate), Some(share)) =
        (p.tokens_per_s_wall, p.between_calls.filter(|share| *share >= BETWEEN))
    {
        parts.push(format!("{rate:.2} tok/s with the time between calls ({:.0} %)", share * 100.0));
    }
    if let Some(l) = p.latency {
        parts.push(format!("{} a {}", quantiles(&l), p.latency_unit()));
    }
    if let Some(c) = p.ceiling.as_ref().filter(|c| c.source != "trace") {
        let of = c.tokens_per_s.map_or_else(String::new, |n| format!(" {n:.1} tok/s"));
        let why = match (c.by, c.cache_bytes > 0.0) {
            ("memory", true) => format!(
                "{} of weights, {} of keys and values at {:.1} GB/s",
                mega(c.weight_bytes, "B"),
                mega(c.cache_bytes, "B"),
                c.peak
            ),
            ("memory", false) => format!("{} of weights at {:.1} GB/s", mega(c.weight_bytes, "B"), c.peak),
            _ => format!("{} at {:.0} GOP/s", mega(c.operations, "OP"), c.peak),
        };
        let with = c.threads.map_or_else(String::new, |n| format!(" with {}", count(n.into(), "thread")));
        parts.push(format!("ceiling{with}{of} ({why}), {:.0} % reached", c.reached * 100.0));
    }
    if let Some((n, rate)) = p.machine.as_ref().and_then(|m| Some((m.threads?, m.tokens_per_s?))) {
        parts.push(format!("with {} {rate:.1} tok/s", count(n.into(), "thread")));
    }
    parts.join("; ")
}

fn quantiles(l: &Latency) -> String {
    format!("p50 {}, p95 {}", time(l.p50_ns as f64), time(l.p95_ns as f64))
}

/// Requests of a server in short; `None`: one after the other, without a queue, they are what the phases say.
pub(crate) fn requests(found: &SequenceReport) -> Option<String> {
    let n = found.requests.len() as u64 + found.requests_left_out;
    let served = found.sequences.len() > 1 || found.batching.most > 1 || found.queued.is_some();
    if n == 0 || !served {
        return None;
    }
    let mut parts = vec![n.to_string()];
    parts.extend(found.queued.map(|l| format!("queued {}", quantiles(&l))));
    let from = if found.queued.is_some() { "arrival" } else { "the first call" };
    parts.extend(found.ttft.map(|l| format!("time to first token {} from {from}", quantiles(&l))));
    parts.extend(found.tpot.map(|l| format!("then {} a token", quantiles(&l))));
    if found.batching.most > 1 {
        parts.push(format!("at most {} in a call", found.batching.most));
    }
    Some(parts.join("; "))
}

/// `190.6 MB`: in decimal units, as bandwidths are.
fn mega(n: f64, unit: &str) -> String {
    if n < 1e9 { format!("{:.1} M{unit}", n / 1e6) } else { format!("{:.2} G{unit}", n / 1e9) }
}

/// The bar, and its shares from 1 % on.
fn shares(out: &mut dyn Write, unit: &str, bar: &TimeBar, style: &Style) -> io::Result<()> {
    let name = format!("A {unit}");
    let parts = bar.percent();
    let mut drawn = String::new();
    let mut at = 0;
    for (what, n) in &parts {
        let to = at + n;
        let cells = (to as usize * BAR / 100).saturating_sub(drawn.len());
        drawn.extend(std::iter::repeat_n(mark(what), cells));
        at = to;
    }
    head(out, style, &name, &format!("[{drawn}]"))?;
    line(out, style, "", &legend(bar).join(", "))
}

/// How a share is drawn.
fn mark(share: &str) -> char {
    match share {
        "computing" => '#',
        "at barriers" => '=',
        "waiting for a CPU" => '.',
        "page faults and I/O" => '!',
        "blocked" => '~',
        "device" => '%',
        "gaps" => '-',
        "between calls" => '_',
        _ => '?',
    }
}

/// The shares from 1 % on, in words.
pub(crate) fn legend(bar: &TimeBar) -> Vec<String> {
    named(bar).iter().map(|(what, name, n)| format!("{} {n} % {name}", mark(what))).collect()
}

/// The shares from 1 % on, with their names as shown, in percent.
pub(crate) fn named(bar: &TimeBar) -> Vec<(&'static str, &'static str, u32)> {
    let computing = if bar.barrier.is_some() { "computing" } else { "computing and at barriers" };
    let name = |name| if name == "computing" { computing } else { name };
    bar.percent().into_iter().filter(|(_, n)| *n > 0).map(|(what, n)| (what, name(what), n)).collect()
}

/// The first pieces of advice, a line each.
fn short(out: &mut dyn Write, v: &RunVerdict, style: &Style) -> io::Result<()> {
    match (&v.no_advice, v.advice.is_empty()) {
        (Some(why), _) => line(out, style, "Advice", why)?,
        (None, true) => return Ok(()),
        (None, false) => line(out, style, "Advice", "largest gain first")?,
    }
    for (i, a) in v.advice.iter().take(SHOWN).enumerate() {
        let text = format!("{}  {}: {}", i + 1, a.title, gain(a));
        for (n, text) in wrap(&text, width(style) - 2).iter().enumerate() {
            let text = if n == 0 { style.bold(text) } else { format!("   {text}") };
            writeln!(out, "  {text}")?;
        }
        if let Some(action) = a.actions.first() {
            wrap(action, width(style) - 5).iter().try_for_each(|text| writeln!(out, "     {text}"))?;
        }
    }
    Ok(())
}

/// The predicted gain in words.
pub fn gain(a: &Advice) -> String {
    let sure = match a.confidence {
        analysis::questions::advice::Confidence::High => "",
        analysis::questions::advice::Confidence::Medium => ", likely",
        analysis::questions::advice::Confidence::Low => ", a guess",
    };
    match &a.gain {
        Some(g) => format!("{}{sure}", factor(g)),
        None => format!("no gain promised{sure}"),
    }
}

/// `1.8x to 3.0x as fast`, or `5 to 12 % faster` for small ones.
fn factor(g: &Gain) -> String {
    let of = if g.phase == Phase::Prefill { " in prefill" } else { "" };
    if g.most < 1.5 {
        return format!("{:.0} to {:.0} % faster{of}", (g.least - 1.0) * 100.0, (g.most - 1.0) * 100.0);
    }
    format!("{:.1}x to {:.1}x as fast{of}", g.least, g.most)
}

fn line(out: &mut dyn Write, style: &Style, name: &str, text: &str) -> io::Result<()> {
    let lines = wrapped(text, style);
    let names = std::iter::once(name).chain(std::iter::repeat(""));
    lines.iter().zip(names).try_for_each(|(text, name)| head(out, style, name, text))
}

fn head(out: &mut dyn Write, style: &Style, name: &str, text: &str) -> io::Result<()> {
    let name = format!("{name:<HEAD$}");
    writeln!(out, "{} {text}", style.bold(&name))
}

/// Columns of a line.
fn width(style: &Style) -> usize {
    style.width.unwrap_or(WIDTH).clamp(NARROW, WIDTH)
}

fn wrapped(text: &str, style: &Style) -> Vec<String> {
    wrap(text, width(style) - HEAD - 1)
}

/// Breaks a text into lines of at most `width` columns, at spaces where there are any.
pub(crate) fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in clean(text).split(' ') {
        let word = cut(word, width);
        let Some(last) = lines.last_mut() else { break };
        if last.is_empty() {
            *last = word;
        } else if last.chars().count() + 1 + word.chars().count() <= width {
            last.push(' ');
            last.push_str(&word);
        } else {
            lines.push(word);
        }
    }
    lines
}

fn cut(text: &str, width: usize) -> String {
    let text = clean(text);
    if text.chars().count() <= width {
        return text;
    }
    text.chars().take(width.saturating_sub(3)).chain("...".chars()).collect()
}

/// Writes all advice with its evidence.
pub fn advice(out: &mut dyn Write, v: &RunVerdict, style: &Style) -> io::Result<()> {
    for (i, a) in v.advice.iter().enumerate() {
        if i > 0 {
            writeln!(out)?;
        }
        for (n, text) in wrap(&format!("{}  {}", i + 1, a.title), width(style)).iter().enumerate() {
            writeln!(out, "{}{}", if n == 0 { "" } else { "   " }, style.bold(text))?;
        }
        let todo = a.actions.iter().map(|action| ("do", action.clone()));
        for (name, text) in todo.chain(reasons(a)) {
            for (n, text) in wrap(&text, width(style) - 13).iter().enumerate() {
                writeln!(out, "   {:<9} {text}", if n == 0 { name } else { "" })?;
            }
        }
    }
    Ok(())
}

/// The gain of a piece of advice, its evidence, and what would disprove it.
pub(crate) fn reasons(a: &Advice) -> Vec<(&'static str, String)> {
    let promised = a.gain.as_ref().map_or_else(|| "none promised".to_owned(), factor);
    let sure = format!("{:?}", a.confidence).to_lowercase();
    let facts = [
        ("gain", format!("{promised} (confidence: {sure})")),
        ("because", a.evidence.clone()),
        ("wrong if", a.disproof.clone()),
        ("costs", a.trade_off.unwrap_or_default().to_owned()),
        ("rule", a.rule.to_owned()),
    ];
    facts.into_iter().filter(|(_, text)| !text.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use analysis::recorded::calls::weighted;
    use analysis::recorded::sequences::Batching;

    #[test]
    fn requests_come_with_their_queue_and_times() {
        let ms = |n: u64| weighted(vec![(n * 1_000_000, 1), (2 * n * 1_000_000, 1)]);
        let mut found = SequenceReport {
            requests: Vec::new(),
            sequences: Vec::new(),
            requests_left_out: 24,
            ttft: ms(30),
            queued: ms(20),
            tpot: ms(4),
            batching: Batching { most: 2, ..Batching::default() },
            speculation: None,
            untracked: 0,
            incomplete: None,
        };
        assert_eq!(
            requests(&found).as_deref(),
            Some(
                "24; queued p50 20.00 ms, p95 40.00 ms; time to first token p50 30.00 ms, p95 60.00 ms from arrival; then \
                 p50 4.00 ms, p95 8.00 ms a token; at most 2 in a call"
            )
        );
        found.queued = None;
        assert!(requests(&found).is_some_and(|text| text.contains("from the first call;")));
        // One after the other: a program that answers its own prompts.
        found.batching.most = 1;
        assert_eq!(requests(&found), None);
    }

    #[test]
    fn lines_break_at_spaces_and_keep_their_width() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("abcdefghij", 7), ["abcd..."]);
        assert_eq!(wrap("a\u{1b}[31m b", 40).len(), 1);
    }
}
