//! Decides what limits an op, and on what evidence.
//!
//! The largest share of the threads' time decides. If that is computing, the bytes and operations from the cost
//! model are compared with the machine's peak (given by the user, or measured on the machine before the recording); without a
//! peak, the bytes are compared with the best rate in the same trace. If that decides nothing, the stalled cycles
//! do. If nothing is close enough, there is no verdict.

use serde::Serialize;

use super::parts::TimeParts;
use common::calendar;

/// Peak rates of the machine with a number of threads, in 10^9 per second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Peak {
    /// Null: any number of threads.
    pub threads: Option<u32>,
    pub gb_per_s: f64,
    /// A multiply-add counts as two operations, for f32 and for 8-bit integers.
    pub gflop_per_s: Option<f64>,
    pub int8_gop_per_s: Option<f64>,
}

/// The peak that ops are compared with.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Ceiling {
    /// `given`; `measured`: on this machine, before the recording; or `trace`: the best rate in this trace, which says
    /// nothing about arithmetic.
    pub source: &'static str,
    /// When it was measured, seconds since 1970; omitted for another source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured_s: Option<u64>,
    /// The op that reached it, if it comes from the trace.
    pub op: Option<String>,
    pub peak: Peak,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Bound {
    Memory,
    Compute,
    Overhead,
    Waiting,
    Preempted,
    Faulting,
}

impl Bound {
    /// In one word.
    pub const fn name(self) -> &'static str {
        match self {
            Bound::Memory => "memory",
            Bound::Compute => "compute",
            Bound::Overhead => "overhead",
            Bound::Waiting => "waiting",
            Bound::Preempted => "preempted",
            Bound::Faulting => "faulting",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verdict {
    pub bound: Bound,
    /// The evidence in words.
    pub evidence: String,
}

/// Known figures of a row.
#[derive(Debug, Clone, Copy, Default)]
pub struct Facts {
    pub parts: Option<TimeParts>,
    /// Thread 0's op time and barrier wait, ns.
    pub busy: u64,
    pub wait: Option<u64>,
    pub calls: u64,
    /// From the cost model, over all calls: bytes, operations on f32, and on 8-bit integers.
    pub bytes: f64,
    pub f32: f64,
    pub int8: f64,
    /// Time of the calls whose work is known, ns.
    pub work_ns: u64,
    pub stalled: Option<f64>,
}

/// From this share of the ceiling on, an op counts as limited by it.
const NEAR: f64 = 0.5;
/// The same if the ceiling is only the best of the trace.
const NEAR_BEST: f64 = 0.7;
/// A rate above this is faster than memory can be: the bytes came from a cache.
const CACHED: f64 = 1.25;
/// What to do if the machine's peaks are not known.
pub const MEASURE: &str =
    "to know this machine's peaks, run `profinfer doctor --peaks` once before recording";
/// Why arithmetic can be above its peak.
const TOO_LOW: &str = "that peak is too low (`profinfer doctor --peaks` on an idle machine)";
/// Share of the cycles.
const STALLED: f64 = 0.5;
/// A call no longer than this, with no more than `LITTLE` of it needed for its work, is dominated by overhead.
const SHORT_NS: f64 = 20_000.0;
const LITTLE: f64 = 0.25;
/// Bytes per call that exceed any cache near a core, and operations per byte that any core can do while reading
/// it.
const LARGE: f64 = (1 << 20) as f64;
const LIGHT: f64 = 16.0;
/// Share of the time. If more of it is unknown, the parts do not decide.
const UNKNOWN: f64 = 0.1;

fn pct(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

impl Ceiling {
    /// Where it is from, to follow what it is in a sentence; empty if it was given.
    pub fn origin(&self) -> String {
        self.measured_s
            .map_or_else(String::new, |s| format!(" (measured on this machine on {})", calendar::day(s)))
    }

    /// The best-fitting peak for a run with this many threads: that of the same number, else of the next lower
    /// one.
    pub fn given(peaks: &[Peak], threads: u32) -> Option<Ceiling> {
        let fits = |p: &&Peak| p.threads.is_none_or(|n| n <= threads);
        let best = peaks.iter().filter(fits).max_by_key(|p| p.threads).or(peaks.first())?;
        Some(Ceiling { source: "given", measured_s: None, op: None, peak: *best })
    }
}

/// The verdict on a row, if there is enough evidence.
pub fn verdict(f: &Facts, ceiling: Option<&Ceiling>) -> Option<Verdict> {
    let (bound, evidence) = time(f).or_else(|| work(f, ceiling?)).or_else(|| stalled(f))?;
    Some(Verdict { bound, evidence })
}

/// If something other than computing takes most of the time, that is the limit.
fn time(f: &Facts) -> Option<(Bound, String)> {
    let Some(p) = f.parts.filter(|p| p.unknown_ns as f64 <= UNKNOWN * p.whole() as f64) else {
        let wait = f.wait.filter(|wait| *wait > f.busy)?;
        let share = wait as f64 / (wait + f.busy) as f64;
        return Some((Bound::Waiting, format!("{} of thread 0's time is at the barrier", pct(share))));
    };
    let all = [
        (Bound::Waiting, p.barrier_ns.saturating_add(p.idle_ns), "at the barrier or asleep"),
        (Bound::Preempted, p.preempted_ns, "runnable but off-CPU"),
        (Bound::Faulting, p.faulting_ns.saturating_add(p.io_ns), "in page faults and I/O"),
    ];
    let (bound, ns, what) = all.into_iter().max_by_key(|(_, ns, _)| *ns)?;
    let share = ns as f64 / p.whole() as f64;
    (ns > p.computing_ns).then(|| (bound, format!("{} of the threads' time is {what}", pct(share))))
}

fn work(f: &Facts, ceiling: &Ceiling) -> Option<(Bound, String)> {
    let (ns, peak) = (f.work_ns as f64, &ceiling.peak);
    if f.work_ns == 0 || f.calls == 0 {
        return None;
    }
    let rate = f.bytes / ns;
    let memory = rate / peak.gb_per_s;
    let reads = |what: &str| format!("{rate:.1} GB/s, {} of {what}", pct(memory));
    if let Some(op) = &ceiling.op {
        let large = f.bytes / f.calls as f64 >= LARGE && f.f32 + f.int8 <= LIGHT * f.bytes;
        let what = format!("the best in this trace ({:.1}, {op}); {MEASURE}", peak.gb_per_s);
        return (large && memory >= NEAR_BEST).then(|| (Bound::Memory, reads(&what)));
    }
    let f32 = peak.gflop_per_s;
    let int8 = peak.int8_gop_per_s.or(f32);
    let needs = |ops: f64, peak: Option<f64>| if ops > 0.0 { peak.map(|p| ops / p / ns) } else { Some(0.0) };
    let compute = needs(f.f32, f32).zip(needs(f.int8, int8)).map(|(a, b)| a + b);
    let from_memory = memory <= CACHED;
    if let Some(share) = compute.filter(|c| *c >= NEAR && (*c > memory || !from_memory)) {
        let rate = (f.f32 + f.int8) / ns;
        let of_peak = match share <= 1.0 {
            true => format!("{} of the peak{}", pct(share), ceiling.origin()),
            false => format!("more than the peak of {:.1}{}: {TOO_LOW}", rate / share, ceiling.origin()),
        };
        return Some((Bound::Compute, format!("{rate:.1} GFLOP/s, {of_peak}")));
    }
    if from_memory && memory >= NEAR {
        let peak = format!("the {:.1} GB/s memory peak{}", peak.gb_per_s, ceiling.origin());
        let told = match memory <= 1.0 {
            true => reads(&peak),
            false => format!("{rate:.1} GB/s, more than {peak}: a part came from a cache, or {TOO_LOW}"),
        };
        return Some((Bound::Memory, told));
    }
    let need = compute?.max(memory);
    let mean = f.busy as f64 / f.calls as f64;
    (f.stalled.is_none_or(|s| s < STALLED) && mean <= SHORT_NS && need <= LITTLE).then(|| {
        let what = "of which memory and compute need";
        (Bound::Overhead, format!("{:.1} us per call, {what} {} at their peaks", mean / 1e3, pct(need)))
    })
}

fn stalled(f: &Facts) -> Option<(Bound, String)> {
    let share = f.stalled.filter(|s| *s >= STALLED)?;
    Some((Bound::Memory, format!("the back end stalls in {} of the cycles", pct(share))))
}

/// Whether a row qualifies as the best of a trace: its bytes exceed the caches near a core.
fn is_large(f: &Facts) -> bool {
    f.work_ns > 0 && f.calls > 0 && f.bytes / f.calls as f64 >= LARGE
}

/// The best bandwidth of the rows of a trace.
pub fn best_of_trace<'r>(rows: impl Iterator<Item = (&'r str, Facts)>) -> Option<Ceiling> {
    let rate = |f: &Facts| f.bytes / f.work_ns as f64;
    let (op, gb_per_s) =
        rows.filter(|(_, f)| is_large(f)).map(|(op, f)| (op, rate(&f))).max_by(|a, b| a.1.total_cmp(&b.1))?;
    let peak = Peak { gb_per_s, ..Peak::default() };
    Some(Ceiling { source: "trace", measured_s: None, op: Some(op.to_owned()), peak })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given() -> Ceiling {
        let peak =
            Peak { threads: None, gb_per_s: 50.0, gflop_per_s: Some(100.0), int8_gop_per_s: Some(400.0) };
        Ceiling { source: "given", measured_s: None, op: None, peak }
    }

    /// One call of a millisecond.
    fn facts() -> Facts {
        Facts { busy: 1_000_000, calls: 1, work_ns: 1_000_000, ..Facts::default() }
    }

    fn bound(f: Facts, ceiling: Option<&Ceiling>) -> Option<Bound> {
        verdict(&f, ceiling).map(|v| v.bound)
    }

    #[test]
    fn the_most_of_the_time_decides() {
        let parts = TimeParts { computing_ns: 40, barrier_ns: 20, preempted_ns: 41, ..TimeParts::default() };
        let full = Facts { bytes: 50e6, ..facts() };
        let of = |parts| verdict(&Facts { parts: Some(parts), ..full }, Some(&given())).unwrap();
        let v = of(parts);
        assert_eq!(v.bound, Bound::Preempted);
        assert_eq!(v.evidence, "41 % of the threads' time is runnable but off-CPU");
        assert_eq!(of(TimeParts { idle_ns: 30, ..parts }).bound, Bound::Waiting);
        assert_eq!(of(TimeParts { faulting_ns: 30, io_ns: 30, ..parts }).bound, Bound::Faulting);
        assert_eq!(of(TimeParts { computing_ns: 42, ..parts }).bound, Bound::Memory);
        // With too much time unknown, the parts do not decide.
        assert_eq!(of(TimeParts { unknown_ns: 30, ..parts }).bound, Bound::Memory);
        assert_eq!(bound(Facts { wait: Some(1_000_001), ..full }, None), Some(Bound::Waiting));
        assert_eq!(bound(Facts { wait: Some(999_999), ..full }, None), None);
    }

    #[test]
    fn near_a_given_peak_it_is_that_peak() {
        let of = |f| bound(f, Some(&given()));
        assert_eq!(of(Facts { bytes: 26e6, int8: 100e6, ..facts() }), Some(Bound::Memory));
        assert_eq!(of(Facts { bytes: 26e6, int8: 250e6, ..facts() }), Some(Bound::Compute));
        assert_eq!(of(Facts { bytes: 26e6, f32: 60e6, ..facts() }), Some(Bound::Compute));
        assert_eq!(of(Facts { bytes: 20e6, int8: 100e6, ..facts() }), None);
        // More than the memory can deliver: it came from a cache.
        assert_eq!(of(Facts { bytes: 70e6, int8: 100e6, ..facts() }), None);
        let stalled = Facts { bytes: 20e6, int8: 100e6, stalled: Some(0.6), ..facts() };
        assert_eq!(of(stalled), Some(Bound::Memory));
        assert_eq!(bound(Facts { stalled: Some(0.4), ..stalled }, None), None);
    }

    #[test]
    fn short_calls_with_little_work_are_overhead() {
        let short = Facts { busy: 10_000, work_ns: 10_000, bytes: 10_000.0, f32: 1000.0, ..facts() };
        let v = verdict(&short, Some(&given())).unwrap();
        assert_eq!(v.bound, Bound::Overhead);
        assert_eq!(v.evidence, "10.0 us per call, of which memory and compute need 2 % at their peaks");
        assert_eq!(bound(Facts { busy: 100_000, work_ns: 100_000, ..short }, Some(&given())), None);
        assert_eq!(bound(short, None), None);
    }

    #[test]
    fn without_a_peak_the_best_of_the_trace_is_named_as_such() {
        let large = Facts { bytes: 20e6, int8: 40e6, ..facts() };
        let small = Facts { bytes: 500e3, work_ns: 10_000, ..facts() };
        let best = best_of_trace([("a", small), ("b", large)].into_iter()).unwrap();
        assert_eq!((best.op.as_deref(), best.peak.gb_per_s), (Some("b"), 20.0));
        let v = verdict(&Facts { bytes: 15e6, ..large }, Some(&best)).unwrap();
        assert_eq!(v.bound, Bound::Memory);
        assert_eq!(
            v.evidence,
            "15.0 GB/s, 75 % of the best in this trace (20.0, b); to know this machine's peaks, run `profinfer doctor --peaks` once before recording"
        );
        assert_eq!(bound(Facts { bytes: 10e6, ..large }, Some(&best)), None);
        // Many operations per byte: without a compute peak there is no verdict.
        assert_eq!(bound(Facts { int8: 1e9, ..large }, Some(&best)), None);
        assert_eq!(bound(small, Some(&best)), None);
        assert!(best_of_trace(std::iter::empty()).is_none());
    }

    #[test]
    fn the_peak_of_as_many_threads_counts() {
        let peak = |threads, gb_per_s| Peak { threads: Some(threads), gb_per_s, ..Peak::default() };
        let all = [peak(1, 10.0), peak(2, 20.0), peak(4, 30.0)];
        let of = |threads| Ceiling::given(&all, threads).map(|c| c.peak.gb_per_s);
        assert_eq!([of(1), of(2), of(3), of(8)], [Some(10.0), Some(20.0), Some(20.0), Some(30.0)]);
        assert_eq!(Ceiling::given(&[], 2), None);
        assert_eq!(Ceiling::given(&[peak(4, 30.0)], 2).map(|c| c.peak.gb_per_s), Some(30.0));
    }
}
