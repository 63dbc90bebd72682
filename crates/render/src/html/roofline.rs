//! Draws ops and the roofs of the machine as a chart.

use std::io::{self, Write};

use super::chart::{Axis, label};
use super::markup::{self, say, text};
use crate::units::{count, pct};
use analysis::questions::stat::work::{Roofline, RooflinePoint};
use analysis::sums::attribution::verdict::{MEASURE, Peak};

const SIZE: (f64, f64) = (960.0, 440.0);
const LEFT: f64 = 76.0;
const FOOT: f64 = 40.0;
const MARGIN: f64 = 14.0;
/// Maximum points drawn, those with the most time; and how many of them get a number that the list below
/// explains.
const DRAWN: usize = 200;
const NAMED: usize = 8;
/// Radius of a number, and the distance from its dot from which on a line joins the two.
const TAG: f64 = 8.0;
const NEAR: f64 = 22.0;

/// Writes the chart, and notes what it cannot show.
pub fn write(out: &mut dyn Write, r: &Roofline, phase: &str) -> io::Result<()> {
    let has_place = |p: &&RooflinePoint| p.flops_per_byte > 0.0 && p.gflop_per_s > 0.0;
    let points: Vec<&RooflinePoint> = r.rows.iter().filter(has_place).take(DRAWN).collect();
    let without = r.rows.iter().filter(|p| !has_place(p)).count();
    if points.is_empty() {
        return markup::gap(
            out,
            "The cost model has no operation counts for the ops in this recording, so there are no points to draw.",
        );
    }
    draw(out, r, &points, phase)?;
    writeln!(out, "<ol class=\"key\">")?;
    for p in points.iter().take(NAMED) {
        let roof = p.roof.map_or_else(String::new, |roof| format!(" ({roof})"));
        let what = format!("{}: {:.2} GB/s, {} % of the roof{roof}", p.name, p.gb_per_s, pct(p.share));
        writeln!(out, "<li>{}</li>", text(&what))?;
    }
    writeln!(out, "</ol>")?;
    if without > 0 {
        let ops = count(without as u64, "op");
        say(out, &format!("{ops} without an operation count in the cost model: see the table."))?;
    }
    let more = r.rows.len() - without - points.len();
    if more > 0 {
        say(out, &format!("{} with less time are not drawn.", count(more as u64, "op")))?;
    }
    Ok(())
}

/// The minimum and maximum, including those of the roofs.
fn range(values: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let of = values.filter(|v| v.is_finite() && *v > 0.0);
    (of.clone().fold(f64::INFINITY, f64::min), of.fold(0.0, f64::max))
}

fn draw(out: &mut dyn Write, r: &Roofline, points: &[&RooflinePoint], phase: &str) -> io::Result<()> {
    let (width, height) = SIZE;
    let peak = &r.ceiling.peak;
    let flats = flats(peak);
    let (low, high) = range(points.iter().map(|p| p.flops_per_byte));
    // The corner of a flat roof must be visible too.
    let corner = flats.iter().map(|(_, peak)| peak / peak_gb(r)).fold(high, f64::max);
    let x = Axis::logarithmic(low, corner.max(high), LEFT, width - MARGIN);
    let (low, high) = range(points.iter().map(|p| p.gflop_per_s));
    let highest = flats.iter().map(|(_, peak)| *peak).fold(high, f64::max);
    let y = Axis::logarithmic(low, highest, height - FOOT, MARGIN);
    let told =
        format!("{} under a memory roof of {:.1} GB/s", count(points.len() as u64, "op"), peak.gb_per_s);
    markup::svg(out, "roofline-chart", SIZE, &format!("Roofline, {phase}"), &told)?;
    grid(out, &x, &y)?;
    roofs(out, peak, &flats, &x, &y)?;
    let most = points.iter().map(|p| p.ns_a_call).fold(0.0, f64::max).max(1.0);
    for p in points.iter().rev() {
        let size = 2.5 + 6.0 * (p.ns_a_call / most).sqrt();
        let class = p.roof.unwrap_or("unknown");
        let (at_x, at_y) = (x.at(p.flops_per_byte), y.at(p.gflop_per_s));
        let what = format!("{}: {:.2} GB/s, {:.2} GFLOP/s", p.name, p.gb_per_s, p.gflop_per_s);
        writeln!(
            out,
            "<circle class=\"point {class}\" cx=\"{at_x:.1}\" cy=\"{at_y:.1}\" r=\"{size:.1}\"><title>{}</title></circle>",
            text(&what)
        )?;
    }
    let dots: Vec<(f64, f64, f64)> = points
        .iter()
        .map(|p| (x.at(p.flops_per_byte), y.at(p.gflop_per_s), 2.5 + 6.0 * (p.ns_a_call / most).sqrt()))
        .collect();
    for (i, ((dot_x, dot_y, _), (at_x, at_y))) in dots.iter().zip(places(&dots)).enumerate() {
        if (at_x - dot_x).hypot(at_y - dot_y) > NEAR {
            writeln!(out, "<path class=\"lead\" d=\"M{dot_x:.1} {dot_y:.1}L{at_x:.1} {at_y:.1}\"/>")?;
        }
        let number = i + 1;
        writeln!(
            out,
            "<circle class=\"tag\" cx=\"{at_x:.1}\" cy=\"{at_y:.1}\" r=\"{TAG}\"/>\
             <text class=\"name mid\" x=\"{at_x:.1}\" y=\"{:.1}\">{number}</text>",
            at_y + 4.0
        )?;
    }
    let source = match &r.ceiling.op {
        Some(op) => format!(
            "The roof is the best bandwidth in this trace ({op}); compute roofs are missing: \
             {MEASURE}, or pass its output from that machine with --peak"
        ),
        None if flats.is_empty() => "No compute peak was given".to_owned(),
        None => match &*r.ceiling.origin() {
            "" => "The roofs are from --peak".to_owned(),
            measured => format!("The roofs are peaks{measured}"),
        },
    };
    markup::svg_end(
        out,
        &format!("{told}. {source}. Larger points take more time; numbers refer to the list below."),
    )
}

/// Places of the numbers of the first points: beside their dots, away from all dots and from each other. The nearest
/// free place is taken; if there is none, the last one tried.
fn places(dots: &[(f64, f64, f64)]) -> Vec<(f64, f64)> {
    let mut taken: Vec<(f64, f64)> = Vec::new();
    for (x, y, size) in dots.iter().take(NAMED) {
        let mut place = (*x, *y);
        // Sixteen directions, the upper right one first, on larger and larger circles.
        let tries =
            (0..8 * 16).map(|i| (size + TAG + 4.0 + f64::from(i / 16) * 14.0, f64::from(i % 16) - 2.0));
        for (far, direction) in tries {
            let (sin, cos) = (direction * std::f64::consts::TAU / 16.0).sin_cos();
            place = (x + far * cos, y + far * sin);
            let inside = (LEFT + TAG..SIZE.0 - MARGIN - TAG).contains(&place.0)
                && (MARGIN + TAG..SIZE.1 - FOOT - TAG).contains(&place.1);
            let off = |(u, v): (f64, f64), least: f64| (u - place.0).hypot(v - place.1) >= least;
            let free = taken.iter().all(|at| off(*at, 2.0 * TAG + 2.0))
                && dots.iter().all(|(u, v, size)| off((*u, *v), size + TAG));
            if inside && free {
                break;
            }
        }
        taken.push(place);
    }
    taken
}

fn peak_gb(r: &Roofline) -> f64 {
    if r.ceiling.peak.gb_per_s > 0.0 { r.ceiling.peak.gb_per_s } else { 1.0 }
}

/// Flat roofs and their names.
fn flats(peak: &Peak) -> Vec<(&'static str, f64)> {
    let all = [("8-bit integers", peak.int8_gop_per_s), ("f32", peak.gflop_per_s)];
    all.into_iter().filter_map(|(name, v)| Some((name, v.filter(|v| v.is_finite() && *v > 0.0)?))).collect()
}

fn grid(out: &mut dyn Write, x: &Axis, y: &Axis) -> io::Result<()> {
    for tick in x.ticks() {
        let at = x.at(tick);
        writeln!(
            out,
            "<path class=\"grid\" d=\"M{at:.1} {:.1}V{:.1}\"/><text class=\"mid\" x=\"{at:.1}\" y=\"{:.1}\">{}</text>",
            y.from,
            y.to,
            y.from + 16.0,
            label(tick)
        )?;
    }
    for tick in y.ticks() {
        let at = y.at(tick);
        writeln!(
            out,
            "<path class=\"grid\" d=\"M{:.1} {at:.1}H{:.1}\"/><text class=\"end\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            x.from,
            x.to,
            x.from - 5.0,
            at + 4.0,
            label(tick)
        )?;
    }
    let (middle, foot) = ((x.from + x.to) / 2.0, y.from + 34.0);
    writeln!(
        out,
        "<text class=\"mid\" x=\"{middle:.1}\" y=\"{foot:.1}\">operations per byte read or written (FLOP/byte, logarithmic)</text>"
    )?;
    let (left, middle) = (x.from - 54.0, (y.from + y.to) / 2.0);
    writeln!(
        out,
        "<text class=\"mid\" transform=\"translate({left:.1} {middle:.1}) rotate(-90)\">operations per second \
         (GFLOP/s, logarithmic)</text>"
    )
}

fn roofs(out: &mut dyn Write, peak: &Peak, flats: &[(&str, f64)], x: &Axis, y: &Axis) -> io::Result<()> {
    // The slope is drawn from where it enters the chart to where it leaves it or meets the highest flat roof.
    let top = flats.iter().map(|f| f.1).fold(f64::NAN, f64::max);
    let top = if top.is_finite() { top.min(y.high) } else { y.high };
    let gb = if peak.gb_per_s > 0.0 { peak.gb_per_s } else { return Ok(()) };
    let (first, last) = (x.low.max(y.low / gb), x.high.min(top / gb));
    if first < last {
        let (a, b) = ((x.at(first), y.at(first * gb)), (x.at(last), y.at(last * gb)));
        writeln!(out, "<path class=\"roof\" d=\"M{:.1} {:.1}L{:.1} {:.1}\"/>", a.0, a.1, b.0, b.1)?;
        let (at_x, at_y) = ((a.0 * 2.0 + b.0) / 3.0, (a.1 * 2.0 + b.1) / 3.0);
        writeln!(
            out,
            "<text class=\"rooftext end\" x=\"{:.1}\" y=\"{:.1}\">{gb:.1} GB/s</text>",
            at_x.max(x.from + 60.0) - 6.0,
            at_y - 4.0
        )?;
    }
    for (name, v) in flats {
        let (from, at) = (x.at((v / gb).max(x.low)), y.at(*v));
        writeln!(
            out,
            "<path class=\"roof\" d=\"M{from:.1} {at:.1}H{:.1}\"/><text class=\"rooftext end\" x=\"{:.1}\" \
             y=\"{:.1}\">{} {v:.0} GOP/s</text>",
            x.to,
            x.to,
            at - 4.0,
            text(name)
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_cover_neither_dots_nor_each_other() {
        let crowd: Vec<(f64, f64, f64)> =
            (0..12).map(|i| (500.0 + f64::from(i % 3), 200.0 + f64::from(i % 2), 5.0)).collect();
        let corner = vec![(LEFT, MARGIN, 8.0); NAMED];
        for dots in [crowd, corner] {
            let all = places(&dots);
            assert_eq!(all.len(), NAMED);
            for (i, a) in all.iter().enumerate() {
                assert!((LEFT..SIZE.0).contains(&a.0) && (MARGIN..SIZE.1 - FOOT).contains(&a.1), "{a:?}");
                assert!(all[..i].iter().all(|b| (a.0 - b.0).hypot(a.1 - b.1) >= 2.0 * TAG), "{all:?}");
                assert!(dots.iter().all(|d| (a.0 - d.0).hypot(a.1 - d.1) >= d.2), "{all:?}");
            }
        }
    }
}
