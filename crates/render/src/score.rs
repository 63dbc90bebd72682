//! The scores of `profinfer score` as a table and as a picture.

use std::io::{self, Write};

use super::chart::{self, Chart, Look, Mark, Panel, Scale, ScaleKind, Series};
use super::table::{Style, Table, clean, number, text};
use super::units::{bytes, or_dash};
use analysis::questions::score::{QualityKind, ScoreRow, Scores};

/// Writes the table, then what to know about single runs.
pub fn write(out: &mut dyn Write, s: &Scores, style: &Style) -> io::Result<()> {
    let mut table = Table::new(vec![
        text("run"),
        text("weights"),
        number("size", 3),
        number(s.quality.name(), 1),
        number("prefill tok/s", 2),
        number("decode tok/s", 2),
        number("accuracy x", 0),
        number("prefill x", 0),
        number("decode x", 0),
        number("H_Q", 0),
    ]);
    for (i, r) in s.runs.iter().enumerate() {
        table.row(vec![
            format!("{} {}", i + 1, r.file),
            r.weights.clone(),
            or_dash(r.weight_bytes, |n| bytes(n as f64)),
            or_dash(r.quality, |q| quality(s.quality, q)),
            or_dash(r.prefill_tokens_per_s, |v| format!("{v:.2}")),
            or_dash(r.decode_tokens_per_s, |v| format!("{v:.2}")),
            or_dash(r.accuracy_ratio, |v| format!("{v:.3}")),
            or_dash(r.prefill_ratio, |v| format!("{v:.3}")),
            or_dash(r.decode_ratio, |v| format!("{v:.3}")),
            or_dash(r.h_q, |v| format!("{v:.3}")),
        ]);
    }
    out.write_all(table.render(style).as_bytes())?;
    writeln!(out, "  x: ratio to run 1, more is better; H_Q: harmonic mean of the three")?;
    for note in notes(s) {
        writeln!(out, "  {}", clean(&note))?;
    }
    Ok(())
}

fn quality(kind: QualityKind, value: f64) -> String {
    match kind {
        QualityKind::Accuracy => format!("{:.2} %", value * 100.0),
        QualityKind::Perplexity => format!("{value:.4}"),
    }
}

/// Why runs have no score, and where they differ from the first.
fn notes(s: &Scores) -> Vec<String> {
    let of = |i: usize, r: &ScoreRow| {
        let refused = r.refused.as_ref().map(|why| format!("run {} has no score: {why}", i + 1));
        let differ = r.differences.iter().map(move |d| format!("run 1 and run {} differ: {d}", i + 1));
        refused.into_iter().chain(differ).collect::<Vec<_>>()
    };
    let mut all: Vec<String> = s.runs.iter().enumerate().flat_map(|(i, r)| of(i, r)).collect();
    if s.quality == QualityKind::Perplexity {
        all.push(
            "accuracy x is the perplexity of run 1 over that of the run, not the paper's task accuracy"
                .into(),
        );
    }
    all
}

/// Writes the factors and the score of each run as a picture.
///
/// # Errors
/// `out` cannot be written.
pub fn svg(out: &mut dyn Write, s: &Scores) -> io::Result<()> {
    type Figure = fn(&ScoreRow) -> Option<f64>;
    let kinds: [(&str, Figure); 4] = [
        ("H_Q", |r| r.h_q),
        ("accuracy", |r| r.accuracy_ratio),
        ("prefill speed", |r| r.prefill_ratio),
        ("decode speed", |r| r.decode_ratio),
    ];
    let series = kinds.iter().enumerate().map(|(look, (name, figure))| {
        let mark = |(i, r): (usize, &ScoreRow)| {
            let y = figure(r)?;
            Some(Mark { x: (i + 1) as f64, y, about: format!("{}\n{name}: {y:.3}", r.file) })
        };
        let points: Vec<Mark> = s.runs.iter().enumerate().filter_map(mark).collect();
        Series { name: (*name).to_owned(), look: Look::Kind(look), points, ..Series::default() }
    });
    let names: Vec<String> =
        s.runs.iter().enumerate().map(|(i, r)| format!("{}: {}", i + 1, r.file)).collect();
    let panel = Panel {
        x: Scale::new("run (number)", ScaleKind::Each),
        y: Scale::new("ratio to run 1", ScaleKind::Zero),
        series: series.collect(),
        height: 260.0,
    };
    let about = "Harmonic mean (H_Q) of accuracy, prefill speed and decode speed, each relative to run 1; more is better.";
    let notes = std::iter::once(format!("Runs: {}.", names.join(", ")))
        .chain(notes(s).into_iter().map(|note| format!("{note}.")))
        .collect();
    let title = "Harmonic quantisation score".to_owned();
    chart::file(out, &Chart { title, about: about.to_owned(), panels: vec![panel], notes })
}
