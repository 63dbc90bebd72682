//! Ops below the roofs of the machine.

use super::parts::{NoPicture, none, thinned};
use crate::chart::{Chart, Look, Mark, Panel, Scale, ScaleKind, Series};
use crate::units::{count, pct, time};
use analysis::questions::stat::work::{Roofline, RooflinePoint};
use analysis::sums::attribution::verdict::MEASURE;

/// Ops named below the drawing.
const NAMED: usize = 5;

pub fn roofline(r: &Roofline, phase: &str, most: usize) -> Result<Chart, NoPicture> {
    let has_place = |p: &&RooflinePoint| p.flops_per_byte > 0.0 && p.gflop_per_s > 0.0;
    let rows: Vec<&RooflinePoint> = r.rows.iter().filter(has_place).collect();
    if rows.is_empty() {
        return none(
            "the cost model has no operation counts for the ops of this recording: record without --no-str",
        );
    }
    let peak = &r.ceiling.peak;
    let flats = [("8-bit integers", peak.int8_gop_per_s), ("f32", peak.gflop_per_s)];
    let flats: Vec<(&str, f64)> =
        flats.into_iter().filter_map(|(n, v)| Some((n, v.filter(|v| *v > 0.0)?))).collect();
    let (low, high) = rows.iter().fold((f64::INFINITY, 0.0_f64), |(low, high), p| {
        (low.min(p.flops_per_byte), high.max(p.flops_per_byte))
    });
    let gb = peak.gb_per_s;
    // The corner of each flat roof must be visible.
    let right = flats.iter().map(|(_, v)| 1.5 * v / gb).fold(high, f64::max);
    let top = flats.iter().map(|f| f.1).fold(f64::NAN, f64::max);
    let corner = if top.is_finite() { top / gb } else { right };
    let mut series = Vec::new();
    let about = format!("memory roof: {gb:.1} GB/s");
    let line = vec![(low, low * gb), (corner, corner * gb)];
    series.push(Series {
        name: about.clone(),
        look: Look::Kind(6),
        line,
        line_about: about,
        ..Series::default()
    });
    for (i, (name, v)) in flats.iter().enumerate() {
        let about = format!("{name}: {v:.0} GOP/s");
        let line = vec![(v / gb, *v), (right, *v)];
        series.push(Series {
            name: about.clone(),
            look: Look::Kind(4 + i),
            line,
            line_about: about,
            ..Series::default()
        });
    }
    let drawn: Vec<&RooflinePoint> = thinned(&rows, most).copied().collect();
    let kinds = [
        (Some("memory"), "memory is the lower roof"),
        (Some("compute"), "compute is the lower roof"),
        (None, "ops"),
    ];
    for (i, (roof, name)) in kinds.into_iter().enumerate() {
        let points: Vec<Mark> = drawn.iter().filter(|p| p.roof == roof).map(|p| mark(p)).collect();
        if !points.is_empty() {
            series.push(Series { name: name.into(), look: Look::Kind(i), points, ..Series::default() });
        }
    }
    let named: Vec<String> =
        rows.iter().take(NAMED).map(|p| format!("{} {} %", p.name, pct(p.share))).collect();
    let mut notes = vec![match &r.ceiling.op {
        Some(op) => format!("The roof is the best bandwidth in this trace ({op}); {MEASURE}."),
        None => format!(
            "The roofs are measured peaks{}. More than 100 % means that bytes came from a cache.",
            r.ceiling.origin()
        ),
    }];
    notes.push(format!("Most time, with the share of the roof that is reached: {}.", named.join("; ")));
    let without = r.rows.len() - rows.len();
    if without > 0 {
        notes.push(format!(
            "{} without an operation count of the cost model: see the table.",
            count(without as u64, "op")
        ));
    }
    Ok(Chart {
        title: format!("Roofline, {phase}"),
        about: "Each point is an op: its operations per second against its operations per byte, both by the cost model. The \
                closer to a roof, the less there is to gain.".into(),
        panels: vec![Panel {
            x: Scale::new("operations per byte (FLOP/byte)", ScaleKind::Log),
            y: Scale::new("speed (GFLOP/s)", ScaleKind::Log),
            series,
            height: 360.0,
        }],
        notes,
    })
}

fn mark(p: &RooflinePoint) -> Mark {
    let about = format!(
        "{}\n{}\n{} a call, {:.2} GFLOP/s, {:.2} GB/s: {} % of the roof",
        p.name,
        p.form,
        time(p.ns_a_call),
        p.gflop_per_s,
        p.gb_per_s,
        pct(p.share)
    );
    Mark { x: p.flops_per_byte, y: p.gflop_per_s, about }
}
