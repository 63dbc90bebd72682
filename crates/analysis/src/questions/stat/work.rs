//! Relates op times to the work that the cost model computes for them.

use serde::Serialize;

use super::growth::{Growth, is_attention};
use crate::sums::attribution::verdict::{Ceiling, Facts, Peak, best_of_trace};
use crate::sums::time_series::{median, steady_line};
use common::order;

/// Figures of one execution of an op.
#[derive(Debug, Clone, PartialEq)]
pub struct OpWork {
    pub name: String,
    pub form: String,
    /// Type of its first source, the weights of a multiplication; empty if not known.
    pub weights: String,
    /// It is a matrix multiplication.
    pub product: bool,
    /// Typical time, ns.
    pub ns: f64,
    /// Mean over the calls in which it runs, for all of its executions there, ns.
    pub ns_a_call: f64,
    /// Mean time of an execution in which any thread computed it, ns; `None` if it was not asked for.
    pub span_ns: Option<f64>,
    /// Executions in a call in which it runs.
    pub times_a_call: f64,
    pub bytes: f64,
    pub flops: f64,
    pub int8: bool,
}

/// Matrix multiplications: time as a function of bytes and FLOPs. The products of attention are in no fit: their time is that
/// of the cache, which grows while the recording runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Products {
    pub bytes: Option<Fit>,
    pub flops: Option<Fit>,
    /// Largest first.
    pub rows: Vec<MatmulWork>,
}

/// The multiplications of one of several recordings.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelProducts {
    pub file: String,
    pub threads: u32,
    pub products: Products,
}

/// A robust line fit to the multiplications' times.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Fit {
    pub points: u64,
    /// Intercept, ns.
    pub at_zero_ns: f64,
    /// Slope: ns per additional byte or FLOP. The rate in 10^9 per second is null if the slope is not positive.
    pub ns_per_unit: f64,
    pub giga_per_s: Option<f64>,
    pub r2: f64,
}

/// A matrix multiplication.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MatmulWork {
    pub name: String,
    pub form: String,
    /// Type of the weights; empty if not known.
    pub weights: String,
    pub ns: f64,
    pub bytes: f64,
    pub flops: f64,
    /// From the better-fitting line, and the deviation from it as a share; null for the products of attention.
    pub expected_ns: Option<f64>,
    pub off: Option<f64>,
    /// Much further off than the others.
    pub outlier: bool,
}

/// Minimum deviation of an outlier, as a share, and in standard deviations of the others; both must be exceeded.
const NEAR: f64 = 0.1;
const DEVIATIONS: f64 = 3.0;
/// Standard deviation of a normal distribution in units of the median absolute deviation.
const MEDIANS: f64 = 1.4826;

/// Maximum points for a line fit; if there are more, those with the most time.
const MOST: usize = 400;

fn fit(ops: &[&OpWork], of: fn(&OpWork) -> f64) -> Option<Fit> {
    let points = ops.iter().filter(|op| of(op) > 0.0).take(MOST).map(|op| (of(op), op.ns));
    let points: Vec<(f64, f64)> = points.collect();
    let (at_zero_ns, slope, r2) = steady_line(&points)?;
    Some(Fit {
        points: points.len() as u64,
        at_zero_ns,
        ns_per_unit: slope,
        giga_per_s: (slope > 0.0).then(|| 1.0 / slope),
        r2,
    })
}

/// The multiplications; `None` if there are none.
pub fn products(ops: &[OpWork]) -> Option<Products> {
    let mut ops: Vec<&OpWork> = ops.iter().filter(|op| op.product).collect();
    order::by_key(&mut ops, |op| (!order::fraction(op.ns_a_call), 0));
    if ops.is_empty() {
        return None;
    }
    let fitted: Vec<&OpWork> = ops.iter().copied().filter(|op| !is_attention(&op.name)).collect();
    let (bytes, flops) = (fit(&fitted, |op| op.bytes), fit(&fitted, |op| op.flops));
    let by_bytes = bytes.is_some_and(|b| flops.is_none_or(|f| b.r2 >= f.r2));
    let expected = |op: &OpWork| {
        if is_attention(&op.name) {
            return None;
        }
        let (fit, x) = if by_bytes { (bytes?, op.bytes) } else { (flops?, op.flops) };
        Some(fit.at_zero_ns + fit.ns_per_unit * x).filter(|ns| *ns > 0.0)
    };
    let off = |op: &OpWork| Some(op.ns / expected(op)? - 1.0);
    let all: Vec<f64> = ops.iter().filter_map(|op| off(op)).collect();
    let middle = median(&all);
    let spread = median(&all.iter().map(|x| (x - middle).abs()).collect::<Vec<f64>>()) * MEDIANS;
    let far = |x: f64| (x - middle).abs() > NEAR.max(DEVIATIONS * spread);
    let row = |op: &&OpWork| MatmulWork {
        name: op.name.clone(),
        form: op.form.clone(),
        weights: op.weights.clone(),
        ns: op.ns,
        bytes: op.bytes,
        flops: op.flops,
        expected_ns: expected(op),
        off: off(op),
        outlier: off(op).is_some_and(far),
    };
    let mut rows: Vec<MatmulWork> = ops.iter().map(row).collect();
    order::by_key(&mut rows, |r| (!order::fraction(r.ns), 0));
    Some(Products { bytes, flops, rows })
}

/// Ops in the roofline model of a machine.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Roofline {
    pub ceiling: Ceiling,
    /// Most time first.
    pub rows: Vec<RooflinePoint>,
}

/// An op in the roofline.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RooflinePoint {
    pub name: String,
    pub form: String,
    /// Time in which any thread computed it, all executions of a call; the rates are over this time.
    pub ns_a_call: f64,
    pub flops_per_byte: f64,
    pub gb_per_s: f64,
    pub gflop_per_s: f64,
    /// The roof at its FLOPs per byte, in 10^9 FLOP/s; null for an op without FLOPs.
    pub roof_gflop_per_s: Option<f64>,
    /// Minimum time according to the roofs, divided by the actual time.
    pub share: f64,
    /// `memory` or `compute`: the lower roof at that point; null if no compute peak is known.
    pub roof: Option<&'static str>,
}

/// All ops with known work, under this ceiling, else under the best bandwidth of the ops themselves.
pub fn roofline(ops: &[OpWork], known: Option<Ceiling>) -> Option<Roofline> {
    let facts =
        |op: &OpWork| Facts { bytes: op.bytes, calls: 1, work_ns: span(op) as u64, ..Facts::default() };
    let ceiling = known.or_else(|| best_of_trace(ops.iter().map(|op| (op.name.as_str(), facts(op)))))?;
    let mut rows: Vec<RooflinePoint> =
        ops.iter().filter(|op| op.bytes > 0.0 && span(op) > 0.0).map(|op| point(op, &ceiling.peak)).collect();
    order::by_key(&mut rows, |r| (!order::fraction(r.ns_a_call), 0));
    Some(Roofline { ceiling, rows })
}

/// The time that rates are over, ns.
fn span(op: &OpWork) -> f64 {
    op.span_ns.unwrap_or(op.ns)
}

fn point(op: &OpWork, peak: &Peak) -> RooflinePoint {
    let arithmetic = if op.int8 { peak.int8_gop_per_s.or(peak.gflop_per_s) } else { peak.gflop_per_s };
    let memory_ns = op.bytes / peak.gb_per_s;
    let compute_ns = arithmetic.map(|peak| op.flops / peak);
    let least = memory_ns.max(compute_ns.unwrap_or(0.0));
    RooflinePoint {
        name: op.name.clone(),
        form: op.form.clone(),
        ns_a_call: span(op) * op.times_a_call,
        flops_per_byte: op.flops / op.bytes,
        gb_per_s: op.bytes / span(op),
        gflop_per_s: op.flops / span(op),
        roof_gflop_per_s: (op.flops > 0.0).then(|| op.flops / least),
        share: least / span(op),
        roof: compute_ns.map(|ns| if ns > memory_ns { "compute" } else { "memory" }),
    }
}

/// How the threads shared an op in a call: ns.
#[derive(Debug, Clone, Default)]
pub struct SharedOp {
    pub name: String,
    /// Thread 0 first.
    pub busy_ns: Vec<f64>,
    /// Of each execution the slowest thread's time, and the mean over the threads.
    pub slowest_ns: f64,
    pub mean_ns: f64,
}

/// The times of an op on each thread.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Balance {
    pub name: String,
    /// Thread 0 first, ns per call, without the barrier wait.
    pub busy_ns: Vec<f64>,
    /// The slowest thread's time over the mean, of each execution, as in the report.
    pub imbalance: f64,
    /// Time that an even distribution would save, ns per call.
    pub lost_ns: f64,
}

/// Rows of ops; the largest loss by imbalance first.
pub fn balance(ops: Vec<SharedOp>) -> Vec<Balance> {
    let row = |SharedOp { name, busy_ns, slowest_ns, mean_ns }| {
        let imbalance = if mean_ns > 0.0 { slowest_ns / mean_ns } else { 1.0 };
        Balance { name, busy_ns, imbalance, lost_ns: slowest_ns - mean_ns }
    };
    let mut rows: Vec<Balance> = ops.into_iter().map(row).collect();
    order::by_key(&mut rows, |r| (!order::fraction(r.lost_ns), 0));
    rows
}

/// Predicted decode speed under other conditions.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Forecast {
    /// 10^9 bytes/s: the given peak, else the rate that streaming ops reach; and the bandwidth to predict for.
    pub bandwidth: Option<[f64; 2]>,
    /// Mean context length, and the length to predict for.
    pub context: Option<[f64; 2]>,
    pub ns: [f64; 2],
    pub tokens_per_s: [f64; 2],
}

/// Why there is no forecast.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoForecast {
    #[error("no op reads its weights from memory, so the bandwidth does not change the prediction")]
    Streams,
    #[error("the context length is unknown, or changes too little to estimate its cost")]
    Context,
}

/// Predicts a call's time: streaming ops take longer in proportion to the lower bandwidth. Everything else stays
/// the same, and the call grows along its line. `streams` is the time of the streaming ops in a call and their
/// bytes.
///
/// # Errors
/// Required data is missing.
pub fn forecast(
    call_ns: f64,
    streams: (f64, f64),
    growth: Option<&Growth>,
    peak: Option<&Peak>,
    (bandwidth, context): (Option<f64>, Option<u64>),
) -> Result<Forecast, NoForecast> {
    let mut then = call_ns;
    let mut out = Forecast { bandwidth: None, context: None, ns: [call_ns; 2], tokens_per_s: [0.0; 2] };
    if let Some(wanted) = bandwidth {
        let (ns, bytes) = streams;
        if ns <= 0.0 {
            return Err(NoForecast::Streams);
        }
        let now = peak.map_or(bytes / ns, |p| p.gb_per_s);
        then += ns * (now / wanted - 1.0);
        out.bandwidth = Some([now, wanted]);
    }
    if let Some(wanted) = context {
        let growth = growth.ok_or(NoForecast::Context)?;
        let slope = growth.ops.iter().filter(|t| t.grows).map(|t| t.ns_per_token).sum::<f64>();
        let now = (growth.from + growth.to) as f64 / 2.0;
        then += slope * (wanted as f64 - now);
        out.context = Some([now, wanted as f64]);
    }
    out.ns = [call_ns, then.max(1.0)];
    out.tokens_per_s = out.ns.map(|ns| 1e9 / ns);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(name: &str, bytes: f64, ns: f64) -> OpWork {
        let (name, form) = (name.to_string(), String::new());
        let weights = "q4_0".to_string();
        OpWork {
            name,
            form,
            weights,
            product: true,
            ns,
            ns_a_call: ns,
            span_ns: None,
            times_a_call: 1.0,
            bytes,
            flops: 4.0 * bytes,
            int8: true,
        }
    }

    /// 20 GB/s, plus 2 us per call.
    fn ops() -> Vec<OpWork> {
        (1..8).map(|i| op(&format!("op {i}"), 1e6 * f64::from(i), 2e3 + 5e4 * f64::from(i))).collect()
    }

    #[test]
    fn multiplications_lie_on_a_line_and_those_that_do_not_are_named() {
        let mut ops = ops();
        let p = products(&ops).unwrap();
        let fit = p.bytes.unwrap();
        assert!((fit.giga_per_s.unwrap() - 20.0).abs() < 1e-6 && (fit.at_zero_ns - 2e3).abs() < 1e-3);
        assert!(fit.r2 > 0.999_999 && p.rows.iter().all(|r| !r.outlier));
        ops[3].ns *= 1.6;
        let p = products(&ops).unwrap();
        let named: Vec<_> = p.rows.iter().filter(|r| r.outlier).map(|r| r.name.as_str()).collect();
        assert_eq!(named, ["op 4"]);
        // Attention tilts no line, and is no outlier of it.
        let kq = (1..8).map(|i| op("MUL_MAT  kq-{L}", 1e5 * f64::from(i), 9e5));
        let with = products(&ops.iter().cloned().chain(kq).collect::<Vec<_>>()).unwrap();
        assert_eq!(with.bytes, p.bytes);
        assert!(with.rows.iter().filter(|r| r.name.contains("kq")).all(|r| r.off.is_none() && !r.outlier));
        for op in &mut ops {
            op.product = false;
        }
        assert!(products(&ops).is_none());
    }

    #[test]
    fn roofs_are_those_given_else_the_best_bandwidth() {
        let peak =
            Peak { threads: None, gb_per_s: 40.0, gflop_per_s: Some(100.0), int8_gop_per_s: Some(400.0) };
        let r = roofline(&ops(), Ceiling::given(&[peak], 1)).unwrap();
        let last = &r.rows[0];
        assert_eq!((last.name.as_str(), last.roof), ("op 7", Some("memory")));
        assert!((last.share - 7e6 / 40.0 / 352e3).abs() < 1e-9 && (last.flops_per_byte - 4.0).abs() < 1e-9);
        assert!((last.roof_gflop_per_s.unwrap() - 160.0).abs() < 1e-9);
        let slow = Peak { int8_gop_per_s: Some(100.0), ..peak };
        assert_eq!(roofline(&ops(), Ceiling::given(&[slow], 1)).unwrap().rows[0].roof, Some("compute"));
        let r = roofline(&ops(), None).unwrap();
        assert_eq!((r.ceiling.source, r.rows[0].roof), ("trace", None));
        assert!(r.rows.iter().all(|p| p.share <= 1.0));
    }

    #[test]
    fn uneven_shares_cost_what_the_slowest_thread_has_too_much() {
        let op = |name: &str, busy: [f64; 2], slowest_ns| SharedOp {
            name: name.into(),
            busy_ns: busy.to_vec(),
            slowest_ns,
            mean_ns: (busy[0] + busy[1]) / 2.0,
        };
        // The slowest thread is another one from execution to execution.
        let rows = balance(vec![op("even", [5.0, 5.0], 5.0), op("uneven", [22.0, 18.0], 30.0)]);
        assert_eq!((rows[0].name.as_str(), rows[0].imbalance, rows[0].lost_ns), ("uneven", 1.5, 10.0));
        assert_eq!((rows[1].imbalance, rows[1].lost_ns), (1.0, 0.0));
    }

    #[test]
    fn twice_the_bandwidth_halves_what_streams() {
        let of = |bandwidth| forecast(1e6, (8e5, 16e6), None, None, (Some(bandwidth), None));
        let f = of(40.0).unwrap();
        assert_eq!((f.bandwidth, f.ns), (Some([20.0, 40.0]), [1e6, 6e5]));
        assert!((f.tokens_per_s[1] - 1e9 / 6e5).abs() < 1e-6);
        assert_eq!(forecast(1e6, (0.0, 0.0), None, None, (Some(1.0), None)), Err(NoForecast::Streams));
        assert_eq!(forecast(1e6, (8e5, 16e6), None, None, (None, Some(9))), Err(NoForecast::Context));
    }
}
