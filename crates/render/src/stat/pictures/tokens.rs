//! Time of a call and of its attention against the length of the context.

use super::parts::time_unit;
use crate::chart::{Chart, Look, Mark, Panel, Scale, ScaleKind, Series};
use crate::units::{count, time};
use analysis::stat::growth::{Growth, Trend};

/// Maximum ops drawn: those of attention, then those that grow most and make up at least this share of the growth.
const ATTENTION: usize = 4;
const OTHERS: usize = 3;
const LEAST: f64 = 0.02;

/// The time of a call above, that of attention and of what else grows below.
pub fn tokens(g: &Growth, phase: &str) -> Chart {
    let attention: Vec<&Trend> = g.ops.iter().filter(|t| of_attention(&t.name)).take(ATTENTION).collect();
    let large = |t: &&Trend| t.share.is_some_and(|share| share >= LEAST) && !of_attention(&t.name);
    let others = g.ops.iter().filter(large).take(OTHERS);
    let ops: Vec<&Trend> = attention.iter().copied().chain(others).collect();
    let mut panels = vec![panel(g, &[&g.call], 190.0, "whole call")];
    let mut notes = Vec::new();
    if ops.is_empty() {
        notes.push("No op of attention was recognised by its name, and no op gets significantly slower as the context grows.".into());
    } else {
        panels.push(panel(g, &ops, 230.0, ""));
        if attention.is_empty() {
            notes.push("No op of attention was recognised by its name (kq, kqv, FLASH_ATTN_EXT).".into());
        }
    }
    Chart {
        title: format!("Time by context length, {phase}"),
        about: format!(
            "{} with a context of {} to {} tokens. Above: the time of a call. Below: the ops of attention (KQ, KQV or flash \
             attention), and others that grow; all layers together.",
            count(g.calls, "call"),
            g.from,
            g.to
        ),
        panels,
        notes: [notes, vec![
            "Each point is the mean of the middle half of several calls; the lines are fitted through the points.".into(),
        ]]
        .concat(),
    }
}

/// True for the product of keys and queries, that of values, and both as one op; the names are those of
/// build_attn_mha in llama-graph.cpp.
fn of_attention(name: &str) -> bool {
    let (op, tensor) = name.split_once("  ").unwrap_or((name, ""));
    let product = op == "MUL_MAT" && ["kq", "kqv"].contains(&tensor.split(['-', ' ']).next().unwrap_or(""));
    product || op.starts_with("FLASH_ATTN")
}

fn panel(g: &Growth, trends: &[&Trend], height: f64, called: &str) -> Panel {
    let high = trends.iter().flat_map(|t| t.points.iter().map(|p| p[1])).fold(0.0, f64::max);
    let (unit, each) = time_unit(high);
    let series = trends.iter().enumerate().map(|(i, t)| {
        let name = if called.is_empty() { t.name.as_str() } else { called };
        let slope = format!("{} per token of context", slope(t.ns_per_token));
        Series {
            name: format!("{name}: {slope}"),
            look: Look::Kind(if called.is_empty() { i + 1 } else { i }),
            points: t
                .points
                .iter()
                .map(|[x, y]| Mark {
                    x: *x,
                    y: y / each,
                    about: format!("{name}\ncontext of {x:.0} tokens: {} a call", time(*y)),
                })
                .collect(),
            line: vec![(g.from as f64, t.from_ns / each), (g.to as f64, t.to_ns / each)],
            line_about: format!(
                "{name}: {slope} (95 %: {} to {}), R2 {:.3}",
                self::slope(t.interval[0]),
                self::slope(t.interval[1]),
                t.r2
            ),
        }
    });
    Panel {
        x: Scale::new("context length (tokens)", ScaleKind::Around),
        y: Scale::new(format!("time per call ({unit})"), ScaleKind::Zero),
        series: series.collect(),
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
    fn attention_is_known_by_its_names() {
        for name in ["MUL_MAT  kq-{L}", "MUL_MAT  kqv-{L}", "MUL_MAT  kq", "FLASH_ATTN_EXT  node_{N}"] {
            assert!(of_attention(name), "{name}");
        }
        for name in ["MUL_MAT  kqv_out-{L}", "SOFT_MAX  kq-{L}", "MUL_MAT  Kcur-{L}", "kq", ""] {
            assert!(!of_attention(name), "{name}");
        }
        assert_eq!([slope(0.646), slope(-0.1), slope(2500.0)], ["+0.65 ns", "-0.10 ns", "+2.50 us"]);
    }
}
