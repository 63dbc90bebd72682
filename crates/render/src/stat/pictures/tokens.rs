//! Time of a call and of its attention against the length of the context.

use super::parts::time_unit;
use crate::chart::{Chart, Look, Mark, Panel, Scale, ScaleKind, Series};
use crate::units::{count, time};
use analysis::questions::stat::growth::{CallPoint, Growth, Trend, WidthStep, is_attention};

/// Maximum ops drawn beside attention: those that grow most and make up at least this share of the growth.
const OTHERS: usize = 3;
const LEAST: f64 = 0.02;

/// What single calls are drawn of.
#[derive(Clone, Copy, PartialEq)]
enum Timed {
    Call,
    Attention,
}

impl Timed {
    fn name(self) -> &'static str {
        match self {
            Timed::Call => "whole call",
            Timed::Attention => "attention products",
        }
    }

    fn trend(self, g: &Growth) -> Option<&Trend> {
        match self {
            Timed::Call => Some(&g.call),
            Timed::Attention => g.attention.as_ref(),
        }
    }

    fn ns(self, p: &CallPoint) -> Option<f64> {
        match self {
            Timed::Call => Some(p.call_ns),
            Timed::Attention => p.attention_ns,
        }
    }
}

/// The time of a call above, that of attention and of what else grows below.
pub fn tokens(g: &Growth, phase: &str, most: usize) -> Chart {
    let nth = g.each.len().div_ceil(most.max(1)).max(1);
    let large = |t: &&Trend| t.share.is_some_and(|share| share >= LEAST) && !is_attention(&t.name);
    let others: Vec<&Trend> = g.ops.iter().filter(large).take(OTHERS).collect();
    let mut panels = vec![panel(g, Timed::Call, &[], nth, 190.0)];
    let mut notes = Vec::new();
    match (&g.attention, others.is_empty()) {
        (None, true) => notes.push("No op of attention was recognised by its name, and no op gets significantly slower as the context grows.".into()),
        _ => panels.push(panel(g, Timed::Attention, &others, nth, 230.0)),
    }
    if g.attention.is_none() && !others.is_empty() {
        notes.push("No op of attention was recognised by its name (kq, kqv, FLASH_ATTN_EXT).".into());
    }
    if let [first, .., last] = &g.steps[..] {
        notes.push(format!(
            "Attention reads a cache whose width the engine rounds up: {} widths from {} to {} positions; each step is the \
             median of its calls.",
            g.steps.len(),
            first.width,
            last.width
        ));
    }
    let which = if nth > 1 { format!(", of every {nth}") } else { String::new() };
    notes.push(format!(
        "Each point of the call and of attention is one call{which}; those of other ops are the mean of the middle half of several."
    ));
    Chart {
        title: format!("Time by context length, {phase}"),
        about: format!(
            "{} with a context of {} to {} tokens. Above: the time of a call. Below: the products of attention (KQ and KQV, or \
             flash attention) together, and others that grow; all layers together.",
            count(g.calls, "call"),
            g.from,
            g.to
        ),
        panels,
        notes,
    }
}

/// One call a point, of every `nth`, with the fitted line or the steps of attention.
fn single(g: &Growth, of: Timed, trend: &Trend, nth: usize, each: f64) -> Series {
    let name = of.name();
    let mark = |p: &CallPoint| {
        let ns = of.ns(p)?;
        let about = format!("{name}\ncontext of {} tokens: {}", p.context, time(ns));
        Some(Mark { x: p.context as f64, y: ns / each, about })
    };
    let stepped = of == Timed::Attention && !g.steps.is_empty();
    let step = |s: &WidthStep| [(s.from as f64, s.attention_ns / each), (s.to as f64, s.attention_ns / each)];
    let line = match stepped {
        true => g.steps.iter().flat_map(step).collect(),
        false => vec![(g.from as f64, trend.from_ns / each), (g.to as f64, trend.to_ns / each)],
    };
    let fitted = about(name, trend);
    let widths: Vec<String> = g.steps.iter().map(|s| s.width.to_string()).collect();
    Series {
        name: format!("{name}: {} per token of context", slope(trend.ns_per_token)),
        look: Look::Kind(0),
        points: g.each.iter().step_by(nth).filter_map(mark).collect(),
        line,
        line_about: if stepped {
            format!("{fitted}; width of the cache: {}", widths.join(", "))
        } else {
            fitted
        },
        ..Series::default()
    }
}

/// Points of several calls each, with the line fitted through them.
fn binned(g: &Growth, t: &Trend, kind: usize, each: f64) -> Series {
    let name = &t.name;
    let mark = |[x, y]: &[f64; 2]| Mark {
        x: *x,
        y: y / each,
        about: format!("{name}\ncontext of {x:.0} tokens: {} a call", time(*y)),
    };
    Series {
        name: format!("{name}: {} per token of context", slope(t.ns_per_token)),
        look: Look::Kind(kind),
        points: t.points.iter().map(mark).collect(),
        line: vec![(g.from as f64, t.from_ns / each), (g.to as f64, t.to_ns / each)],
        line_about: about(name, t),
        ..Series::default()
    }
}

fn about(name: &str, t: &Trend) -> String {
    format!(
        "{name}: {} per token of context (95 %: {} to {}), R2 {:.3}",
        slope(t.ns_per_token),
        slope(t.interval[0]),
        slope(t.interval[1]),
        t.r2
    )
}

fn panel(g: &Growth, of: Timed, others: &[&Trend], nth: usize, height: f64) -> Panel {
    let singles = g.each.iter().filter_map(|p| of.ns(p));
    let high = singles.chain(others.iter().flat_map(|t| t.points.iter().map(|p| p[1]))).fold(0.0, f64::max);
    let (unit, each) = time_unit(high);
    let first = of.trend(g).map(|trend| single(g, of, trend, nth, each));
    let others = others.iter().enumerate().map(|(i, t)| binned(g, t, i + 1, each));
    Panel {
        x: Scale::new("context length (tokens)", ScaleKind::Around),
        y: Scale::new(format!("time per call ({unit})"), ScaleKind::Zero),
        series: first.into_iter().chain(others).collect(),
        height,
    }
}

/// A slope may be a fraction of a nanosecond.
fn slope(ns: f64) -> String {
    if ns.abs() < 1e3 {
        format!("{ns:+.2} ns")
    } else {
        format!("{}{}", if ns > 0.0 { "+" } else { "" }, time(ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slopes_have_their_sign() {
        assert_eq!([slope(0.646), slope(-0.1), slope(2500.0)], ["+0.65 ns", "-0.10 ns", "+2.50 us"]);
    }
}
