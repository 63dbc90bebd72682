//! Formats the prediction of a model's speed and memory for a terminal or a pipe.

use std::io::{self, Write};

use super::table::{Style, Table, number, text};
use super::units::{bytes, decimal, pct, time};
use super::verdict::wrap;
use analysis::questions::advice::Confidence;
use analysis::questions::predict_model::{ModelPrediction, PredictedRange, SpeedPrediction};

/// Columns of a line, and of its heading.
const WIDTH: usize = 100;
const HEAD: usize = 10;
/// Parts of a token's time that are shown.
const SHOWN: usize = 12;

/// Writes the prediction.
pub fn write(out: &mut dyn Write, p: &ModelPrediction, style: &Style) -> io::Result<()> {
    line(out, style, "Model", &model(p))?;
    line(out, style, "Token", &work(p))?;
    line(out, style, "Memory", &memory(p))?;
    if p.memory.fits == Some(false) {
        let why = "not predicted: the model does not fit the memory, so weights would be read from storage";
        line(out, style, "Speed", why)?;
    }
    for (i, speed) in p.decode.iter().enumerate() {
        line(out, style, if i == 0 { "Decode" } else { "" }, &decode(speed))?;
    }
    if let Some(text) = prompt(p) {
        line(out, style, "Prompt", &text)?;
    }
    line(out, style, "Basis", &basis(p))?;
    for note in &p.notes {
        line(out, style, "Note", note)?;
    }
    parts(out, p, style)
}

fn model(p: &ModelPrediction) -> String {
    let m = &p.model;
    let mut parts = vec![m.arch.clone(), m.quantisation.clone(), format!("{} layers", m.layers)];
    if !m.name.is_empty() {
        parts.insert(0, m.name.clone());
    }
    if let Some([all, used]) = m.experts {
        parts.push(format!("{used} of {all} experts per token"));
    }
    parts.push(format!("{} thread{}", p.threads, if p.threads == 1 { "" } else { "s" }));
    parts.join(", ")
}

fn work(p: &ModelPrediction) -> String {
    let w = &p.work;
    format!(
        "reads {:.1} MB of weights and {:.1} kB of keys and values per position; {} on quantised weights, {} on others",
        w.weight_bytes / 1e6,
        w.cache_bytes_a_position / 1e3,
        operations(w.int8_ops),
        operations(w.f32_ops)
    )
}

fn operations(n: f64) -> String {
    if n < 1.0 { "no operations".to_owned() } else { format!("{}OP", decimal(n)) }
}

fn memory(p: &ModelPrediction) -> String {
    let m = &p.memory;
    let of = |n: u64| bytes(n as f64);
    let fits = match (m.fits, m.available) {
        (Some(true), Some(all)) => format!("; fits in {}", of(all)),
        (Some(false), Some(all)) => format!("; DOES NOT FIT in {}", of(all)),
        _ => String::new(),
    };
    format!(
        "{}: weights {}, KV cache at most {}, intermediate results about {} ({}){fits}",
        of(m.total),
        of(m.weights),
        of(m.cache),
        of(m.compute),
        m.compute_rule
    )
}

fn sure(c: Option<Confidence>) -> &'static str {
    match c {
        Some(Confidence::High) => "",
        Some(Confidence::Medium) => ", likely",
        Some(Confidence::Low) | None => ", a guess",
    }
}

fn range(r: &PredictedRange, unit: &str) -> String {
    let of = |n: f64| if n < 10.0 { format!("{n:.2}") } else { format!("{n:.1}") };
    format!("{} {unit} ({} to {}", of(r.value), of(r.least), of(r.most))
}

fn decode(s: &SpeedPrediction) -> String {
    let mut parts = Vec::new();
    if let Some(r) = &s.tokens_per_s {
        parts.push(format!("{}{})", range(r, "tok/s"), sure(s.confidence)));
    }
    if let Some(n) = s.ceiling_tokens_per_s {
        parts.push(format!("ceiling {n:.1} tok/s"));
    }
    format!("with {} tokens in the context: {}", s.context, parts.join(", "))
}

fn prompt(p: &ModelPrediction) -> Option<String> {
    let found = p.first_token.as_ref()?;
    let mut parts = Vec::new();
    if let Some(r) = &found.seconds {
        parts.push(format!("first token after {}{})", range(r, "s"), sure(found.confidence)));
    }
    if let Some(s) = found.floor_s {
        parts.push(format!("not before {}", time(s * 1e9)));
    }
    (!parts.is_empty()).then(|| format!("of {} tokens: {}", found.tokens, parts.join(", ")))
}

fn basis(p: &ModelPrediction) -> String {
    let mut parts = Vec::new();
    if let Some(machine) = &p.basis.machine {
        let machine = if machine.is_empty() { "an unknown machine" } else { machine };
        parts.push(format!("a recording on {machine}"));
    }
    if let Some(peak) = &p.basis.peak {
        let from = match p.basis.peak_source {
            Some("measured") => "measured on this machine",
            Some("recording") => "measured before the recording",
            _ => "given",
        };
        let rate = |n: Option<f64>, name: &str| n.map_or_else(String::new, |n| format!(", {n:.0} {name}"));
        parts.push(format!(
            "peaks of {:.1} GB/s{}{} ({from})",
            peak.gb_per_s,
            rate(peak.int8_gop_per_s, "int8 GOP/s"),
            rate(peak.gflop_per_s, "GFLOP/s")
        ));
    }
    parts.join("; ")
}

/// Where a token's time goes at the start of an answer.
fn parts(out: &mut dyn Write, p: &ModelPrediction, style: &Style) -> io::Result<()> {
    let Some(parts) = p.basis.parts.as_ref().filter(|all| !all.is_empty()) else { return Ok(()) };
    let all: f64 = parts.iter().map(|part| part.ns).sum();
    let mut table = Table::new(vec![number("us/token", 0), number("%", 0), text("from"), text("part")]);
    for part in parts.iter().take(SHOWN) {
        let share = pct(part.ns / all.max(1.0));
        table.row(vec![format!("{:.1}", part.ns / 1e3), share, part.from.to_owned(), part.what.clone()]);
    }
    writeln!(out)?;
    write!(out, "{}", table.render(style))
}

fn line(out: &mut dyn Write, style: &Style, name: &str, text: &str) -> io::Result<()> {
    let names = std::iter::once(name).chain(std::iter::repeat(""));
    wrap(text, WIDTH - HEAD - 1)
        .iter()
        .zip(names)
        .try_for_each(|(text, name)| writeln!(out, "{} {text}", style.bold(&format!("{name:<HEAD$}"))))
}
