//! One call of the engine, its phase, and distributions of times.

use serde::Serialize;

use common::order;
use pfi::record::Entry;

/// Derived from the widest ubatch of a call: 1 token is decode, more is prefill. Where the batch is known, several tokens
/// of as many sequences, and drafts to verify, are decode as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    Prefill,
    Decode,
    /// Neither the ubatch width nor the batch width was recorded.
    Unknown,
}

impl Phase {
    pub const ALL: [Phase; 3] = [Phase::Prefill, Phase::Decode, Phase::Unknown];

    pub fn name(self) -> &'static str {
        match self {
            Phase::Prefill => "prefill",
            Phase::Decode => "decode",
            Phase::Unknown => "unknown",
        }
    }

    /// The phase of a ubatch with this many tokens, 0 = not known.
    pub fn of_width(tokens: u64) -> Phase {
        match tokens {
            0 => Phase::Unknown,
            1 => Phase::Decode,
            _ => Phase::Prefill,
        }
    }
}

#[derive(Debug, Clone)]
pub struct Call {
    pub seq: u64,
    pub pid: u32,
    pub tid: u32,
    pub entry: Option<Entry>,
    /// CLOCK_MONOTONIC, ns.
    pub start: i64,
    /// ns.
    pub dur: u64,
    /// Tokens in the batch; the sum over its ubatches if the batch was not read. Of a draft to verify, the tokens accepted
    /// and the one after them.
    pub tokens: Option<u64>,
    pub phase: Phase,
    /// Scheduler graphs (or what replaces them) in the call.
    pub graphs: u32,
    /// Its end is not known: the recording ended before the call did, or its end is `unseen`.
    pub cut: bool,
    /// A device kept computing after the call returned, and its completion was not seen.
    pub unseen: bool,
    /// The part of `dur` spent waiting for a device after the call returned, ns.
    pub device: u64,
}

impl Call {
    pub fn end(&self) -> i64 {
        self.start.saturating_add_unsigned(self.dur)
    }
}

/// Mean, percentiles (nearest rank: the smallest value that at least p % of all do not exceed) and maximum, ns.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Latency {
    pub n: u64,
    pub mean_ns: f64,
    pub p50_ns: u64,
    pub p95_ns: u64,
    pub p99_ns: u64,
    pub max_ns: u64,
}

/// The same for values that count several times each; the second number is the weight. Used for the time per
/// token in calls of several tokens. `None` if there is nothing to describe.
pub fn weighted(mut values: Vec<(u64, u64)>) -> Option<Latency> {
    order::by_key(&mut values, |v| *v);
    let n = values.iter().fold(0u64, |n, (_, times)| n.saturating_add(*times));
    let max_ns = values.iter().rfind(|(_, times)| *times > 0).map(|(v, _)| *v)?;
    let rank = |p: u128| {
        let wanted = (u128::from(n) * p).div_ceil(100).max(1);
        let mut before = 0u128;
        let found = values.iter().find(|(_, times)| {
            before += u128::from(*times);
            before >= wanted
        });
        found.map_or(max_ns, |(v, _)| *v)
    };
    let sum: f64 = values.iter().map(|(v, times)| *v as f64 * *times as f64).sum();
    let mean_ns = sum / n as f64;
    Some(Latency { n, mean_ns, p50_ns: rank(50), p95_ns: rank(95), p99_ns: rank(99), max_ns })
}

/// `None` if there is nothing to describe.
pub fn latency(mut values: Vec<u64>) -> Option<Latency> {
    values.sort_unstable();
    let max_ns = *values.last()?;
    let n = values.len();
    let rank = |p: usize| values.get((n * p).div_ceil(100).saturating_sub(1)).copied().unwrap_or(max_ns);
    let sum: f64 = values.iter().map(|v| *v as f64).sum();
    Some(Latency {
        n: n as u64,
        mean_ns: sum / n as f64,
        p50_ns: rank(50),
        p95_ns: rank(95),
        p99_ns: rank(99),
        max_ns,
    })
}

/// Consecutive prefill calls of a process, and the decode calls that follow them. A prompt split into parts has
/// equal parts, with a smaller one at the end: a larger one, or one after a pause, starts another request.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Request {
    pub pid: u32,
    /// Start of the first call, CLOCK_MONOTONIC ns.
    pub start_ns: i64,
    pub prefill_calls: u64,
    /// Null if a batch's width was not recorded.
    pub prompt_tokens: Option<u64>,
    /// Start of the first prefill call to the end of the last one; null without a complete prefill.
    pub ttft_ns: Option<u64>,
    /// The same without the time between the calls.
    pub prefill_ns: u64,
    pub decode_calls: u64,
}
