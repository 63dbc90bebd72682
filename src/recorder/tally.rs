//! Cumulative histograms of requests: time to first token, time per output token, duration. Only sums are kept, so
//! tallies of processes, recorders and machines can be added up.

use requests::{REASONS, Unobserved};
use serde::{Deserialize, Serialize};

/// Number of counts of a histogram: the most bounds, and what is above them.
pub const COUNTS: usize = 17;

const fn ms(ms: u64) -> u64 {
    ms * 1_000_000
}

/// Upper bounds of the buckets, ns, as OpenTelemetry's conventions for generative AI recommend them
/// (semantic-conventions-genai, docs/gen-ai/gen-ai-metrics.md).
pub const FIRST_TOKEN_NS: [u64; 16] = [
    ms(1),
    ms(5),
    ms(10),
    ms(20),
    ms(40),
    ms(60),
    ms(80),
    ms(100),
    ms(250),
    ms(500),
    ms(750),
    ms(1000),
    ms(2500),
    ms(5000),
    ms(7500),
    ms(10_000),
];
pub const OUTPUT_TOKEN_NS: [u64; 13] = [
    ms(10),
    ms(25),
    ms(50),
    ms(75),
    ms(100),
    ms(150),
    ms(200),
    ms(300),
    ms(400),
    ms(500),
    ms(750),
    ms(1000),
    ms(2500),
];
pub const DURATION_NS: [u64; 14] = [
    ms(10),
    ms(20),
    ms(40),
    ms(80),
    ms(160),
    ms(320),
    ms(640),
    ms(1280),
    ms(2560),
    ms(5120),
    ms(10_240),
    ms(20_480),
    ms(40_960),
    ms(81_920),
];

/// Durations counted by bucket. The bounds are not part of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Histogram {
    /// Durations in each bucket, not cumulative. The bucket after the last bound has those above it.
    pub counts: [u64; COUNTS],
    /// Their sum, ns.
    pub sum_ns: u64,
}

impl Histogram {
    /// Counts a duration. A duration that is equal to a bound belongs to its bucket.
    pub fn observe(&mut self, bounds: &[u64], ns: u64) {
        self.observe_times(bounds, ns, 1);
    }

    /// Counts the same duration several times.
    fn observe_times(&mut self, bounds: &[u64], ns: u64, times: u64) {
        let at = bounds.partition_point(|&bound| bound < ns);
        if let Some(n) = self.counts.get_mut(at) {
            *n = n.saturating_add(times);
            self.sum_ns = self.sum_ns.saturating_add(ns.saturating_mul(times));
        }
    }

    /// How many durations were counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, &n| sum.saturating_add(n))
    }

    fn add(&mut self, other: &Histogram) {
        self.counts.iter_mut().zip(other.counts).for_each(|(n, more)| *n = n.saturating_add(more));
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
    }
}

/// A complete request. Times that are not known are None, and not observed.
#[derive(Debug, Clone, Copy, Default)]
pub struct ObservedRequest<'a> {
    /// From the start of its first call to the end of the call that gave its first token, ns.
    pub first_token_ns: Option<u64>,
    /// From the end of the token before to its end, for each token after the first, ns.
    pub output_token_ns: &'a [u64],
    /// From the start of its first call to the end of its last, ns.
    pub duration_ns: Option<u64>,
}

/// What was seen of requests, as sums.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestTally {
    pub first_token: Histogram,
    pub output_token: Histogram,
    pub duration: Histogram,
    /// Decoded tokens, also those of requests that were not observed.
    pub tokens: u64,
    /// Requests, or their rests, that were not observed, by reason.
    pub unobserved: [u64; REASONS],
}

impl RequestTally {
    /// Counts a complete request.
    pub fn observe_request(&mut self, request: &ObservedRequest<'_>) {
        // The first token comes with the prompt's last call, which is no call that decodes.
        self.tokens = self.tokens.saturating_add(u64::from(request.first_token_ns.is_some()));
        request.first_token_ns.into_iter().for_each(|ns| self.first_token.observe(&FIRST_TOKEN_NS, ns));
        request.output_token_ns.iter().for_each(|&ns| self.output_token.observe(&OUTPUT_TOKEN_NS, ns));
        request.duration_ns.into_iter().for_each(|ns| self.duration.observe(&DURATION_NS, ns));
    }

    /// Counts tokens that came together, each with its part of the time.
    pub fn observe_tokens(&mut self, each_ns: u64, tokens: u64) {
        self.output_token.observe_times(&OUTPUT_TOKEN_NS, each_ns, tokens);
    }

    /// Counts a request that was not observed.
    pub fn miss(&mut self, why: Unobserved) {
        let at = Unobserved::ALL.iter().position(|(reason, _)| *reason == why);
        at.and_then(|at| self.unobserved.get_mut(at)).into_iter().for_each(|n| *n += 1);
    }

    /// Adds everything that another tally has counted.
    pub fn add(&mut self, other: &RequestTally) {
        self.first_token.add(&other.first_token);
        self.output_token.add(&other.output_token);
        self.duration.add(&other.duration);
        self.tokens = self.tokens.saturating_add(other.tokens);
        self.unobserved.iter_mut().zip(other.unobserved).for_each(|(n, more)| *n = n.saturating_add(more));
    }

    /// Whether these can be the counts of a short time: no number is near the end of its range.
    pub fn is_plausible(&self) -> bool {
        const MOST: u64 = 1 << 40;
        let histograms = [&self.first_token, &self.output_token, &self.duration];
        let counts = histograms.iter().flat_map(|h| h.counts).chain(self.unobserved).chain([self.tokens]);
        counts.max() < Some(MOST) && histograms.iter().all(|h| h.sum_ns < 1 << 62)
    }

    /// Whether nothing was counted.
    pub fn is_empty(&self) -> bool {
        *self == RequestTally::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_belongs_to_its_bucket() {
        let mut h = Histogram::default();
        for ns in [0, ms(10), ms(10) + 1, ms(25), ms(2500), ms(2500) + 1, u64::MAX] {
            h.observe(&OUTPUT_TOKEN_NS, ns);
        }
        let mut counts = [0; COUNTS];
        (counts[0], counts[1], counts[12], counts[13]) = (2, 2, 1, 2);
        assert_eq!((h.counts, h.count(), h.sum_ns), (counts, 7, u64::MAX));
        assert!(
            [&FIRST_TOKEN_NS[..], &OUTPUT_TOKEN_NS, &DURATION_NS]
                .iter()
                .all(|b| b.len() < COUNTS && b.is_sorted())
        );
    }

    #[test]
    fn requests_are_added_up() {
        let request = ObservedRequest {
            first_token_ns: Some(ms(90)),
            output_token_ns: &[ms(20), ms(30), ms(3000)],
            duration_ns: Some(ms(3140)),
        };
        let (mut one, mut all) = (RequestTally::default(), RequestTally::default());
        assert!(one.is_empty());
        one.observe_request(&request);
        one.observe_request(&ObservedRequest::default());
        one.miss(Unobserved::Crowded);
        (0..3).for_each(|_| all.add(&one));
        assert_eq!((all.first_token.count(), all.output_token.count(), all.duration.count()), (3, 9, 3));
        assert_eq!(
            (all.first_token.counts[7], all.output_token.counts[13], all.duration.counts[9]),
            (3, 3, 3)
        );
        assert_eq!((all.duration.sum_ns, all.unobserved[8]), (3 * ms(3140), 3));
        assert!(!all.is_empty() && all.is_plausible());
        all.duration.counts[16] = u64::MAX;
        assert!(!all.is_plausible());
    }
}
