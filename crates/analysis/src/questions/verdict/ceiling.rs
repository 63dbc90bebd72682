//! The speed that a number of threads allows for a model on this machine: a call takes no less time than memory needs to
//! deliver its weights, keys and values, and no less than the arithmetic units need for its products (the roofline model).

pub use super::data::SpeedCeiling;
use super::facts::{PhaseFacts, WeightReads};
use crate::sums::attribution::verdict::{Ceiling, Peak};

/// A speed above this share of the ceiling means that the weights come from a cache, or that the peak is not this
/// machine's.
const CACHED: f64 = 1.1;

/// A ceiling that is less than this many times another is the same, within the scatter of peaks.
const HIGHER: f64 = 1.1;

/// Why there is no ceiling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoCeiling {
    /// Not all weights, or no peak, are known.
    Unknown,
    /// The weights were read faster than memory allows.
    Cached,
}

/// The ceiling of a phase.
///
/// # Errors
/// There is none.
pub fn ceiling(p: &PhaseFacts, peak: Option<&Ceiling>) -> Result<SpeedCeiling, NoCeiling> {
    let (w, c) = p.weights.as_ref().zip(peak).ok_or(NoCeiling::Unknown)?;
    let operations = w.f32 + w.int8;
    let compute_ns = compute_ns(w, c);
    let memory_ns = (w.bytes + w.cache) / c.peak.gb_per_s;
    let by_memory = compute_ns.is_none_or(|ns| memory_ns >= ns);
    // The best rate of a trace is one of a stream; what the products allow is not known from it.
    let (ns, by, peak) = match compute_ns {
        Some(ns) if !by_memory => (ns, "compute", operations / ns),
        _ => (memory_ns, "memory", c.peak.gb_per_s),
    };
    let reached = ns / p.call_ns();
    if !reached.is_finite() || reached > CACHED {
        return Err(NoCeiling::Cached);
    }
    let tokens_per_s = p.tokens.map(|n| n as f64 / p.calls.max(1) as f64 * 1e9 / ns);
    Ok(SpeedCeiling {
        tokens_per_s,
        threads: c.peak.threads,
        reached: reached.min(1.0),
        by,
        source: c.source,
        weight_bytes: w.bytes,
        cache_bytes: w.cache,
        operations,
        peak,
    })
}

/// The ceiling with the number of threads that has the highest one, if it is higher than that of the run's threads; of
/// numbers that the target's CPUs and quota allow (`usable`).
pub fn of_machine(
    p: &PhaseFacts,
    of_run: &SpeedCeiling,
    run: &Ceiling,
    (peaks, usable): (&[Peak], Option<u32>),
) -> Option<SpeedCeiling> {
    let with = |peak: &Peak| ceiling(p, Some(&Ceiling { peak: *peak, ..run.clone() })).ok();
    let more = peaks.iter().filter(|peak| peak.threads > run.peak.threads && run.peak.threads.is_some());
    let allowed = more.filter(|peak| usable.is_none_or(|most| peak.threads.is_some_and(|n| n <= most)));
    let best = allowed.filter_map(with).min_by(|a, b| a.reached.total_cmp(&b.reached))?;
    (best.reached * HIGHER < of_run.reached).then_some(best)
}

fn compute_ns(w: &WeightReads, c: &Ceiling) -> Option<f64> {
    let time = |ops: f64, peak: Option<f64>| if ops > 0.0 { peak.map(|p| ops / p) } else { Some(0.0) };
    let f32 = c.peak.gflop_per_s;
    Some(time(w.f32, f32)? + time(w.int8, c.peak.int8_gop_per_s.or(f32))?)
}
