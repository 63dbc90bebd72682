//! Draws the duration of each call, in order. A long run is reduced to as many points as fit, each with the
//! minimum, median and maximum of its calls.

use std::io::{self, Write};

use super::chart::{Axis, label};
use super::markup::{self, gap, text};
use super::timeline;
use crate::table::{Table, number, text as words};
use crate::units::{count, ms, time};
use analysis::questions::report::PhaseReport;
use analysis::recorded::calls::Phase;
use analysis::streams::token_lanes::TokenLanes;
use common::order;

/// Maximum points of a chart.
const POINTS: usize = 240;
/// With fewer calls only a table is shown.
const FEW: usize = 4;
/// If the longest call exceeds this many times the median, the scale is logarithmic.
const FAR: f64 = 6.0;

const SIZE: (f64, f64) = (960.0, 260.0);
/// Space for the labels on the left and below, and margin.
const LEFT: f64 = 52.0;
const FOOT: f64 = 38.0;
const MARGIN: f64 = 12.0;

/// Consecutive calls.
#[derive(Debug, PartialEq)]
struct CallRange {
    /// Numbers of the first and the last call.
    from: u64,
    to: u64,
    /// ns.
    min: u64,
    median: u64,
    max: u64,
}

/// Writes the chart of each phase, and the panel of the timeline that a dot opens.
pub fn write(out: &mut dyn Write, phases: &[PhaseReport], lanes: &TokenLanes) -> io::Result<()> {
    if phases.iter().all(|p| p.calls == 0) {
        return gap(out, "No engine calls were recorded, so the time per token is unknown.");
    }
    let rank = |p: &&PhaseReport| u8::from(p.phase != Phase::Decode);
    let mut order: Vec<&PhaseReport> = phases.iter().collect();
    common::order::by_key(&mut order, |p| (rank(p).into(), 0));
    for (i, p) in order.into_iter().filter(|p| p.calls > 0).enumerate() {
        writeln!(out, "<div data-phase=\"{}\">", p.phase.name())?;
        phase(out, p)?;
        writeln!(out, "</div>")?;
        if i == 0 {
            timeline::write(out, lanes)?;
        }
    }
    Ok(())
}

fn phase(out: &mut dyn Write, p: &PhaseReport) -> io::Result<()> {
    let name = p.phase.name();
    let what = if p.phase == Phase::Decode { "Time per token" } else { "Time per call" };
    let mut rows: Vec<_> = p.by_token.iter().flatten().filter(|r| !r.cut).collect();
    order::by_key(&mut rows, |r| (order::time(r.start_ns), r.seq));
    let calls: Vec<(u64, u64)> = rows.iter().map(|r| (r.seq, r.dur_ns)).collect();
    let title = format!("{what}, {name}");
    markup::heading(out, &title)?;
    if calls.is_empty() {
        return gap(
            out,
            "All of these calls were still running when recording stopped, so their duration is unknown.",
        );
    }
    let points = points(&calls);
    if calls.len() >= FEW {
        draw(out, &format!("tokens-{name}"), &title, &points, calls.len())?;
    }
    let each = calls.len().div_ceil(POINTS);
    let about = match each {
        1 => "All calls".to_owned(),
        n => format!("Calls in groups of {n}"),
    };
    markup::folded(out, &table(&points, each), "call", &format!("{about}, {name}"), calls.len() < FEW)
}

fn points(calls: &[(u64, u64)]) -> Vec<CallRange> {
    let each = calls.len().div_ceil(POINTS).max(1);
    let point = |calls: &[(u64, u64)]| {
        let mut times: Vec<u64> = calls.iter().map(|c| c.1).collect();
        times.sort_unstable();
        let at = |i: usize| times.get(i).copied().unwrap_or(0);
        let number = |call: Option<&(u64, u64)>| call.map_or(0, |c| c.0);
        CallRange {
            from: number(calls.first()),
            to: number(calls.last()),
            min: at(0),
            median: at(times.len() / 2),
            max: at(times.len().saturating_sub(1)),
        }
    };
    calls.chunks(each).map(point).collect()
}

fn table(points: &[CallRange], each: usize) -> Table {
    let mut columns = vec![words("call"), number("ms", 0)];
    if each > 1 {
        columns = vec![words("call"), number("median ms", 0), number("min ms", 0), number("max ms", 0)];
    }
    let mut t = Table::new(columns);
    for p in points {
        t.row(match each {
            1 => vec![p.from.to_string(), ms(p.median)],
            _ => vec![format!("{} to {}", p.from, p.to), ms(p.median), ms(p.min), ms(p.max)],
        });
    }
    t
}

/// The median of the points' medians, ns.
fn middle(points: &[CallRange]) -> u64 {
    let mut all: Vec<u64> = points.iter().map(|p| p.median).collect();
    all.sort_unstable();
    all.get(all.len() / 2).copied().unwrap_or(0)
}

fn draw(out: &mut dyn Write, id: &str, title: &str, points: &[CallRange], calls: usize) -> io::Result<()> {
    let low = points.iter().map(|p| p.min).min().unwrap_or(0) as f64;
    let high = points.iter().map(|p| p.max).max().unwrap_or(0) as f64;
    let median = middle(points) as f64;
    let (unit, each_ns) = if high < 1e6 { ("us", 1e3) } else { ("ms", 1e6) };
    let (width, height) = SIZE;
    let (top, foot, right) = (MARGIN, height - FOOT, width - MARGIN);
    let log = low > 0.0 && high > FAR * median;
    let y = if log {
        Axis::logarithmic(low / each_ns, high / each_ns, foot, top)
    } else {
        Axis::linear(high / each_ns, foot, top)
    };
    let each = calls.div_ceil(POINTS);
    let calls = count(calls as u64, "call");
    let told = format!("{calls}: median {}, from {} to {}", time(median), time(low), time(high));
    markup::svg(out, id, SIZE, title, &told)?;
    for tick in y.ticks() {
        let at = y.at(tick);
        writeln!(
            out,
            "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{right}\"/><text class=\"end\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            LEFT - 5.0,
            at + 4.0,
            label(tick)
        )?;
    }
    let slot = (right - LEFT) / points.len().max(1) as f64;
    let x = |i: usize| LEFT + (i as f64 + 0.5) * slot;
    for (i, p) in points.iter().enumerate() {
        mark(out, p, x(i), slot, |ns| y.at(ns as f64 / each_ns))?;
    }
    let ends = [points.first().map(|p| (p.from, LEFT, "")), points.last().map(|p| (p.to, right, "end"))];
    for (number, x, class) in ends.into_iter().flatten() {
        writeln!(out, "<text class=\"{class}\" x=\"{x:.1}\" y=\"{:.1}\">{number}</text>", foot + 16.0)?;
    }
    let scale = if log { ", logarithmic" } else { "" };
    let (middle, last) = ((LEFT + right) / 2.0, height - 6.0);
    writeln!(
        out,
        "<text class=\"mid\" x=\"{middle:.1}\" y=\"{last:.1}\">{}</text>",
        text(&format!("{unit}{scale}; by call number"))
    )?;
    let shown = match each {
        1 => "Each dot is a call.".to_owned(),
        n => format!("Each dot is the median of {n} calls; its line spans the shortest to the longest."),
    };
    markup::svg_end(out, &format!("{told}. {shown}"))
}

/// A point of the chart, with a column to point at around it.
fn mark(out: &mut dyn Write, p: &CallRange, x: f64, slot: f64, at: impl Fn(u64) -> f64) -> io::Result<()> {
    let (from, to) = (p.from, p.to);
    let told = match from == to {
        true => format!("call {from}: {}", time(p.median as f64)),
        false => format!(
            "calls {from} to {to}: median {}, from {} to {}",
            time(p.median as f64),
            time(p.min as f64),
            time(p.max as f64)
        ),
    };
    write!(
        out,
        "<g class=\"mark\" data-from=\"{from}\" data-to=\"{to}\"><title>{}</title><rect x=\"{:.1}\" y=\"{MARGIN}\" \
         width=\"{slot:.1}\" height=\"{}\"/>",
        text(&told),
        x - slot / 2.0,
        SIZE.1 - FOOT - MARGIN
    )?;
    if p.min < p.max {
        write!(out, "<path class=\"range\" d=\"M{x:.1} {:.1}V{:.1}\"/>", at(p.min), at(p.max))?;
    }
    writeln!(out, "<circle class=\"dot\" cx=\"{x:.1}\" cy=\"{:.1}\" r=\"2.5\"/></g>", at(p.median))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_calls_are_few_points_that_lose_no_extreme() {
        let calls: Vec<(u64, u64)> =
            (0..100_000).map(|i| (i, if i == 777 { 9999 } else { 100 + i % 7 })).collect();
        let all = points(&calls);
        assert!(all.len() <= POINTS, "{}", all.len());
        assert_eq!((all[0].from, all[all.len() - 1].to), (0, 99_999));
        assert_eq!(all.iter().map(|p| p.max).max(), Some(9999));
        assert_eq!(all[0].min, 100);
        let few = points(&calls[..3]);
        assert_eq!(few[1], CallRange { from: 1, to: 1, min: 101, median: 101, max: 101 });
    }
}
