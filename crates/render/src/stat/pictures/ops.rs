//! Time of matrix multiplications against their operations, by type of the weights.

use super::parts::{NoPicture, none, sampled, tensor, thinned, time_unit};
use crate::chart::{Chart, Look, Mark, Panel, Scale, ScaleKind, Series};
use crate::units::{bytes, count, decimal, time};
use analysis::questions::stat::work::{Fit, MatmulWork, Products};

/// Maximum types with a colour of their own.
const TYPES: usize = 7;

pub fn ops(p: &Products, phase: &str, most: usize) -> Result<Chart, NoPicture> {
    let rows: Vec<&MatmulWork> = p.rows.iter().filter(|r| r.flops > 0.0 && r.ns > 0.0).collect();
    if rows.is_empty() {
        return none(
            "the cost model knows the operations of no matrix multiplication: record without --no-str",
        );
    }
    let ends = |of: fn(&MatmulWork) -> f64| {
        let all = || rows.iter().map(|r| of(r));
        (all().fold(f64::INFINITY, f64::min), all().fold(0.0, f64::max))
    };
    let ((low, high), (_, slowest)) = (ends(|r| r.flops), ends(|r| r.ns));
    let (unit, each) = time_unit(slowest);
    let mut types: Vec<&str> = Vec::new();
    for r in &rows {
        if !types.contains(&kind(r)) {
            types.push(kind(r));
        }
    }
    let drawn: Vec<&MatmulWork> = thinned(&rows, most).copied().collect();
    let group = |r: &MatmulWork| types.iter().position(|t| *t == kind(r)).unwrap_or(TYPES).min(TYPES);
    let mut series: Vec<Series> = Vec::new();
    for (i, ty) in types.iter().take(TYPES + 1).enumerate() {
        let own = || drawn.iter().filter(|r| group(r) == i);
        let points: Vec<Mark> = own().map(|r| mark(r, each)).collect();
        let labels = own().map(|r| (r.flops / 1e6, r.ns / each, tensor(&r.name).to_owned())).collect();
        let name = if i < TYPES { format!("weights of {ty}") } else { "other types".into() };
        if !points.is_empty() {
            series.push(Series { name, look: Look::Kind(i), points, labels, ..Series::default() });
        }
    }
    if let Some(f) = &p.flops {
        let line =
            sampled(low / 1e6, high / 1e6, |mflop| (f.at_zero_ns + f.ns_per_unit * mflop * 1e6) / each);
        let about = said(f);
        series.push(Series {
            name: format!("fitted line: {about}"),
            line,
            line_about: about,
            ..Series::default()
        });
    }
    let mut notes = vec![
        "Types are those of the first source; time is that of one execution, with the wait at the barrier. The products of \
         attention (KQ and KQV) are in no line."
            .into(),
    ];
    let better = p.bytes.is_some_and(|b| p.flops.is_none_or(|f| b.r2 > f.r2));
    if let (true, Some(b)) = (better, p.bytes) {
        notes.push(format!(
            "Bytes explain these times better than operations (R2 {:.3}{} against {}): memory limits them.",
            b.r2,
            b.giga_per_s.map_or_else(String::new, |g| format!(", {g:.2} GB/s")),
            p.flops.map_or_else(|| "no fit".into(), |f| format!("{:.3}", f.r2))
        ));
    }
    let more = rows.len() - drawn.len();
    if more > 0 {
        notes.push(format!("{} are not drawn.", count(more as u64, "more shape")));
    }
    Ok(Chart {
        title: format!("Matrix multiplications: time by operations, {phase}"),
        about: format!(
            "{} of names and shapes; operations by the cost model.",
            count(rows.len() as u64, "kind")
        ),
        panels: vec![Panel {
            x: Scale::new("operations of one execution (MFLOP)", ScaleKind::Log),
            y: Scale::new(format!("time of one execution ({unit})"), ScaleKind::Log),
            series,
            height: 340.0,
        }],
        notes,
    })
}

fn kind(r: &MatmulWork) -> &str {
    if r.weights.is_empty() { "unknown type" } else { &r.weights }
}

fn said(f: &Fit) -> String {
    match f.giga_per_s {
        Some(g) => format!("{} and {g:.2} GFLOP/s, R2 {:.3}", time(f.at_zero_ns), f.r2),
        None => format!("{}, not longer with more operations, R2 {:.3}", time(f.at_zero_ns), f.r2),
    }
}

fn mark(r: &MatmulWork, each: f64) -> Mark {
    let off = r.off.map_or_else(String::new, |off| {
        format!(
            "\n{:+.0} % off the better fitting line{}",
            off * 100.0,
            if r.outlier { ", an outlier" } else { "" }
        )
    });
    let about =
        format!("{}\n{}\n{}, {}FLOP, {}{off}", r.name, r.form, time(r.ns), decimal(r.flops), bytes(r.bytes));
    Mark { x: r.flops / 1e6, y: r.ns / each, about }
}
