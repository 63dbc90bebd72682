//! Finds the ops that get slower as the context grows.

use serde::Serialize;

use crate::stats::{Estimate, false_discovery, line, mean, sorted};
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
    /// Steepest first.
    pub ops: Vec<Trend>,
}

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

/// The growth of a call and of its ops over the context length of each call (0: not known). `None` if the length
/// is not known or hardly changes.
pub fn growth(contexts: &[u64], durations: &[f64], ops: &[TimedOp]) -> Option<Growth> {
    let known: Vec<f64> = contexts.iter().filter(|c| **c > 0).map(|c| *c as f64).collect();
    let range = sorted(&known);
    let (from, to) = (*range.first()?, *range.last()?);
    if to - from < RANGE {
        return None;
    }
    let (call, _) = trend("", contexts, durations, (from, to))?;
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
    Some(Growth { calls: known.len() as u64, from: from as u64, to: to as u64, call, ops })
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
    use crate::stats::tests::Noise;

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
        let g = growth(&contexts, &all, &ops).unwrap();
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
        assert!(growth(&[7; 40], &times, &[]).is_none());
        assert!(growth(&[0; 40], &times, &[]).is_none());
        assert!(growth(&[], &[], &[]).is_none());
    }
}
