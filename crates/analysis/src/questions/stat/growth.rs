//! Finds the ops that get slower as the context grows.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::sums::time_series::{Estimate, false_discovery, line, mean, sorted};
use common::order;

/// Points for a line fit, with an equal number of calls each, and the minimum number of calls per point.
const POINTS: usize = 24;
const CALLS: usize = 4;
/// Minimum range of the context for a line fit: a smaller range shows only noise of a few tokens.
const RANGE: f64 = 16.0;
/// Maximum expected share of false positives among the reported growths.
const FALSE_DISCOVERY: f64 = 0.01;

/// Times of a call and of its ops as a function of context length.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Growth {
    pub calls: u64,
    /// Shortest and longest context.
    pub from: u64,
    pub to: u64,
    pub call: Trend,
    /// The products of attention together: of keys and queries and of values, or both as one op. Null if none was recognised.
    pub attention: Option<Trend>,
    /// Steepest first.
    pub ops: Vec<Trend>,
    /// Single calls, every n-th of more than [`EACH`].
    pub each: Vec<CallPoint>,
    /// The widths of the cache that attention reads, which the engine rounds up, where its time is a step at each.
    pub steps: Vec<WidthStep>,
}

/// A call.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct CallPoint {
    pub context: u64,
    pub call_ns: f64,
    /// Of the products of attention in all layers; null if they are not known.
    pub attention_ns: Option<f64>,
}

/// The calls in which attention reads this many positions of the cache.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct WidthStep {
    pub width: u64,
    pub calls: u64,
    /// Shortest and longest context.
    pub from: u64,
    pub to: u64,
    /// Median time of the products of attention.
    pub attention_ns: f64,
}

/// Maximum single calls.
pub const EACH: usize = 4096;

/// A line fit over context length.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Trend {
    pub name: String,
    /// Value of the line at both ends, ns per call.
    pub from_ns: f64,
    pub to_ns: f64,
    /// Ns that each token of context adds to a call, and its 95 % confidence interval.
    pub ns_per_token: f64,
    pub interval: [f64; 2],
    pub r2: f64,
    /// Share of what all growing ops add.
    pub share: Option<f64>,
    /// It grows, and chance does not explain it.
    pub grows: bool,
    /// The points that the line is fitted through: context length, ns per call. Each is several calls, see
    /// [`Growth::calls`].
    pub points: Vec<[f64; 2]>,
}

/// Times by call; 0 for calls in which it did not run.
pub struct TimedOp {
    pub name: String,
    pub times: Vec<f64>,
}

/// The context length of each call, and the width of the cache that its attention reads; 0: not known.
pub struct CallContexts {
    pub lengths: Vec<u64>,
    pub widths: Vec<u64>,
}

/// True for the product of keys and queries, that of values, and both as one op; the names are those of
/// build_attn_mha in llama-graph.cpp.
pub fn is_attention(name: &str) -> bool {
    let (op, tensor) = name.split_once("  ").unwrap_or((name, ""));
    let product = op == "MUL_MAT" && ["kq", "kqv"].contains(&tensor.split(['-', ' ']).next().unwrap_or(""));
    product || op.starts_with("FLASH_ATTN")
}

/// The growth of a call and of its ops over the context length of each call. `None` if the length is not known or hardly
/// changes.
pub fn growth(of: &CallContexts, durations: &[f64], ops: &[TimedOp]) -> Option<Growth> {
    let contexts = &of.lengths[..];
    let known: Vec<f64> = contexts.iter().filter(|c| **c > 0).map(|c| *c as f64).collect();
    let range = sorted(&known);
    let (from, to) = (*range.first()?, *range.last()?);
    if to - from < RANGE {
        return None;
    }
    let (call, _) = trend("", contexts, durations, (from, to))?;
    let attention_ns = attention(ops, durations.len());
    let mut trends: Vec<(Trend, Estimate)> =
        ops.iter().filter_map(|op| trend(&op.name, contexts, &op.times, (from, to))).collect();
    let chances: Vec<f64> = trends.iter().map(|(_, slope)| slope.chance(0.0)).collect();
    for ((trend, slope), rate) in trends.iter_mut().zip(false_discovery(&chances)) {
        trend.grows = slope.value > 0.0 && rate <= FALSE_DISCOVERY;
    }
    let mut ops: Vec<Trend> = trends.into_iter().map(|(t, _)| t).collect();
    let all: f64 = ops.iter().filter(|t| t.grows).map(|t| t.ns_per_token).sum();
    for op in ops.iter_mut().filter(|t| t.grows) {
        op.share = Some(op.ns_per_token / all);
    }
    order::by_key(&mut ops, |t| (u64::from(!t.grows), !order::fraction(t.ns_per_token)));
    let attention = trend("", contexts, &attention_ns, (from, to)).map(|(trend, _)| trend);
    Some(Growth {
        calls: known.len() as u64,
        from: from as u64,
        to: to as u64,
        call,
        steps: attention.as_ref().map_or_else(Vec::new, |line| steps(of, &attention_ns, line, (from, to))),
        attention,
        ops,
        each: each(contexts, durations, &attention_ns),
    })
}

/// Time of the products of attention in each call; 0: none ran.
fn attention(ops: &[TimedOp], calls: usize) -> Vec<f64> {
    let mut sums = vec![0.0; calls];
    for op in ops.iter().filter(|op| is_attention(&op.name)) {
        sums.iter_mut().zip(&op.times).for_each(|(sum, ns)| *sum += ns);
    }
    sums
}

fn each(contexts: &[u64], durations: &[f64], attention: &[f64]) -> Vec<CallPoint> {
    let all = contexts.iter().zip(durations).zip(attention).filter(|((context, _), _)| **context > 0);
    let point = |((context, call_ns), attention): ((&u64, &f64), &f64)| CallPoint {
        context: *context,
        call_ns: *call_ns,
        attention_ns: Some(*attention).filter(|ns| *ns > 0.0),
    };
    let step = all.clone().count().div_ceil(EACH).max(1);
    all.step_by(step).map(point).collect()
}

/// Empty if there is one width only, or if the fitted line is nearer to the calls: the width changes with every few of them,
/// or the engine skips what the padding masks.
fn steps(of: &CallContexts, attention: &[f64], fitted: &Trend, (from, to): (f64, f64)) -> Vec<WidthStep> {
    let mut by_width: BTreeMap<u64, Vec<(u64, f64)>> = BTreeMap::new();
    for ((&context, &width), &ns) in of.lengths.iter().zip(&of.widths).zip(attention) {
        if context > 0 && width > 0 && ns > 0.0 {
            by_width.entry(width).or_default().push((context, ns));
        }
    }
    let step = |(&width, calls): (&u64, &Vec<(u64, f64)>)| {
        let times = sorted(&calls.iter().map(|(_, ns)| *ns).collect::<Vec<f64>>());
        Some(WidthStep {
            width,
            calls: calls.len() as u64,
            from: calls.iter().map(|(context, _)| *context).min()?,
            to: calls.iter().map(|(context, _)| *context).max()?,
            attention_ns: *times.get(times.len() / 2)?,
        })
    };
    let steps: Vec<WidthStep> = by_width.iter().filter_map(step).collect();
    let line = |context: u64| {
        fitted.from_ns + (fitted.to_ns - fitted.from_ns) * (context as f64 - from) / (to - from)
    };
    let off = |level: &dyn Fn(&WidthStep, u64) -> f64| -> f64 {
        let calls = steps.iter().zip(by_width.values());
        calls
            .flat_map(|(s, calls)| calls.iter().map(move |(context, ns)| (ns - level(s, *context)).abs()))
            .sum()
    };
    let calls: usize = by_width.values().map(Vec::len).sum();
    let stepped = steps.len() > 1 && calls >= CALLS * steps.len();
    if stepped && off(&|s, _| s.attention_ns) < off(&|_, context| line(context)) { steps } else { Vec::new() }
}

fn trend(name: &str, contexts: &[u64], times: &[f64], ends: (f64, f64)) -> Option<(Trend, Estimate)> {
    let points = binned(contexts, times);
    let line = line(&points)?;
    let slope = line.slope;
    let width = slope.within(0.95);
    let trend = Trend {
        name: name.into(),
        from_ns: line.at(ends.0),
        to_ns: line.at(ends.1),
        ns_per_token: slope.value,
        interval: [slope.value - width, slope.value + width],
        r2: line.r2,
        share: None,
        grows: false,
        points: points.into_iter().map(|(context, ns)| [context, ns]).collect(),
    };
    Some((trend, slope))
}

/// Points of several calls each, ordered by context: their mean context, and the mean of the middle half of their
/// times.
fn binned(contexts: &[u64], times: &[f64]) -> Vec<(f64, f64)> {
    let both = contexts.iter().zip(times).filter(|(c, t)| **c > 0 && **t > 0.0);
    let mut calls: Vec<(f64, f64)> = both.map(|(c, t)| (*c as f64, *t)).collect();
    order::by_key(&mut calls, |(c, _)| (order::fraction(*c), 0));
    let each = calls.len().div_ceil(POINTS).max(CALLS);
    let point = |calls: &[(f64, f64)]| {
        let times = sorted(&calls.iter().map(|(_, t)| *t).collect::<Vec<f64>>());
        let cut = times.len() / 4;
        let middle = times.get(cut..times.len() - cut).unwrap_or(&[]);
        (mean(&calls.iter().map(|(c, _)| *c).collect::<Vec<f64>>()), mean(middle))
    };
    calls.chunks(each).map(point).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sums::time_series::tests::Noise;

    #[test]
    fn what_grows_is_told_from_what_does_not() {
        let mut noise = Noise(1);
        let contexts: Vec<u64> = (100..400).collect();
        let mut op = |name: &str, at: f64, slope: f64| {
            let scatter = noise.series(contexts.len(), 0.5, 0.02);
            let time = |(c, s): (&u64, &f64)| (at + slope * *c as f64) * (1.0 + 0.02 * s);
            TimedOp { name: name.into(), times: contexts.iter().zip(&scatter).map(time).collect() }
        };
        let ops = [op("flat", 50_000.0, 0.0), op("steep", 5_000.0, 30.0), op("gentle", 1_000.0, 10.0)];
        let all: Vec<f64> = (0..contexts.len()).map(|i| ops.iter().map(|o| o.times[i]).sum()).collect();
        let widths = contexts.iter().map(|n| n.next_multiple_of(128)).collect();
        let of = CallContexts { lengths: contexts.clone(), widths };
        let g = growth(&of, &all, &ops).unwrap();
        assert_eq!((g.each.len(), g.each[7].context, g.attention.is_none()), (300, 107, true));
        let names: Vec<_> = g.ops.iter().map(|t| (t.name.as_str(), t.grows)).collect();
        assert_eq!(names, [("steep", true), ("gentle", true), ("flat", false)]);
        let steep = &g.ops[0];
        assert!((steep.ns_per_token - 30.0).abs() < 2.0 && steep.r2 > 0.9, "{steep:?}");
        assert!((steep.share.unwrap() - 0.75).abs() < 0.05, "{steep:?}");
        assert!((steep.to_ns - (5_000.0 + 30.0 * 399.0)).abs() < 500.0, "{steep:?}");
        assert!((g.call.ns_per_token - 40.0).abs() < 8.0, "{:?}", g.call);
        assert_eq!((g.from, g.to, g.calls), (100, 399, 300));
    }

    #[test]
    fn without_a_range_of_contexts_there_is_no_line() {
        let times = vec![5.0; 40];
        let of = |lengths: &[u64]| CallContexts { lengths: lengths.to_vec(), widths: vec![0; lengths.len()] };
        assert!(growth(&of(&[7; 40]), &times, &[]).is_none());
        assert!(growth(&of(&[0; 40]), &times, &[]).is_none());
        assert!(growth(&of(&[]), &[], &[]).is_none());
    }

    /// Attention computes all positions of the padded width: its time is a step at each.
    #[test]
    fn attention_has_steps_where_the_cache_is_padded() {
        let lengths: Vec<u64> = (1..=600).collect();
        let widths: Vec<u64> = lengths.iter().map(|n| n.next_multiple_of(256)).collect();
        let timed = |name: &str, each: f64| TimedOp {
            name: name.into(),
            times: widths.iter().map(|width| each * *width as f64).collect(),
        };
        let ops =
            [timed("MUL_MAT  kq-{L}", 2.0), timed("MUL_MAT  kqv-{L}", 1.0), timed("SOFT_MAX  kq-{L}", 5.0)];
        let durations = vec![1e6; lengths.len()];
        let g = growth(&CallContexts { lengths, widths }, &durations, &ops).unwrap();
        let steps: Vec<_> =
            g.steps.iter().map(|s| (s.width, s.from, s.to, s.calls, s.attention_ns)).collect();
        assert_eq!(
            steps,
            [(256, 1, 256, 256, 768.0), (512, 257, 512, 256, 1536.0), (768, 513, 600, 88, 2304.0)]
        );
        assert_eq!(g.each[300].attention_ns, Some(1536.0));
        assert!(g.attention.is_some());
        // Where what is masked is skipped, a line is nearer.
        let lengths: Vec<u64> = (1..=600).collect();
        let widths = lengths.iter().map(|n| n.next_multiple_of(256)).collect();
        let times = lengths.iter().map(|n| 3.0 * *n as f64).collect();
        let ops = [TimedOp { name: "FLASH_ATTN_EXT  node_{N}".into(), times }];
        assert_eq!(growth(&CallContexts { lengths, widths }, &durations, &ops).unwrap().steps, []);
    }

    #[test]
    fn attention_is_known_by_its_names() {
        for name in ["MUL_MAT  kq-{L}", "MUL_MAT  kqv-{L}", "MUL_MAT  kq", "FLASH_ATTN_EXT  node_{N}"] {
            assert!(is_attention(name), "{name}");
        }
        for name in ["MUL_MAT  kqv_out-{L}", "SOFT_MAX  kq-{L}", "MUL_MAT  Kcur-{L}", "kq", ""] {
            assert!(!is_attention(name), "{name}");
        }
    }
}
