//! When a rule's trigger fires: decoding is too slow, or occasionally much slower.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::rules::Rule;
use agent::recorder::meter::Meter;

/// Number of tokens in the measured rate, and the time within which they must have come, ns.
const TOKENS: usize = 16;
const WITHIN_NS: u64 = 10_000_000_000;
/// Minimum time between triggers, ns: the earlier data is on disk by then.
const REST_NS: u64 = 60_000_000_000;
/// Interval between checks, ns.
const LOOK_NS: u64 = 250_000_000;

/// The same for all recorders of a rule and user, as the service counts it. Shorter by what a message may be late.
const REST: Duration = Duration::from_secs(55);

/// A trigger that has fired.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fired {
    /// The process that was slow, and the first one of its run; None: not known.
    pub pid: Option<u32>,
    pub run: Option<u32>,
    /// Which trigger it was.
    pub cause: Slowness,
    /// What was seen, for people.
    pub text: String,
}

/// What fires a trigger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Slowness {
    /// Decoding is slower than `trigger-below`.
    Below,
    /// A token has been running for longer than that many tokens should.
    Stuck,
    /// Tokens are longer than `trigger-p99-above`.
    P99Above,
}

/// A rule's triggers.
pub struct Trigger {
    below: Option<f64>,
    p99_ns: Option<u64>,
    /// When it last fired, and when it was last checked, CLOCK_MONOTONIC ns.
    fired: Option<u64>,
    looked: u64,
}

impl Trigger {
    pub fn new(rule: &Rule) -> Trigger {
        let p99_ns = rule.p99_above.map(|d| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX));
        Trigger { below: rule.below, p99_ns, fired: None, looked: 0 }
    }

    /// Why it fires now, if it does. `call` is the longest open call: when it began, and its width.
    pub fn fired(&mut self, meters: &[Meter], call: Option<(u64, u32)>, now: u64) -> Option<Fired> {
        let resting = self.fired.is_some_and(|t| now < t.saturating_add(REST_NS));
        if resting || now < self.looked.saturating_add(LOOK_NS) {
            return None;
        }
        self.looked = now;
        let why = self.too_slow(meters, now).or_else(|| self.stuck(call, now))?;
        self.fired = Some(now);
        Some(why)
    }

    fn too_slow(&self, meters: &[Meter], now: u64) -> Option<Fired> {
        let last = self.fired.unwrap_or(0);
        let recent = now.saturating_sub(WITHIN_NS).max(last);
        meters.iter().filter(|m| !m.ended).find_map(|m| {
            let slow = self
                .below
                .zip(m.rate_since(recent, TOKENS).or_else(|| m.rate_of_newest(TOKENS, last)))
                .filter(|(least, rate)| rate < least);
            let fired = |cause, text| Fired {
                pid: Some(m.pid),
                run: Some(m.run).filter(|&run| run != 0),
                cause,
                text,
            };
            let slow = slow.map(|(least, rate)| {
                let text = format!("process {}: {rate:.3} tok/s, below {least} (below)", m.pid);
                fired(Slowness::Below, text)
            });
            slow.or_else(|| {
                let (most, p99) = self.p99_ns.zip(m.p99_since(last)).filter(|(most, p99)| p99 > most)?;
                let ms = |ns: u64| ns as f64 / 1e6;
                let text = format!(
                    "process {}: p99 token time {:.3} ms, above {:.3} ms (p99-above)",
                    m.pid,
                    ms(p99),
                    ms(most)
                );
                Some(fired(Slowness::P99Above, text))
            })
        })
    }

    /// A token that takes longer than that number of tokens should.
    fn stuck(&self, call: Option<(u64, u32)>, now: u64) -> Option<Fired> {
        // The same token is reported once.
        let another = |since: u64| self.fired.is_none_or(|fired| since > fired);
        let (least, (since, _)) = self.below.zip(call.filter(|&(t, width)| width == 1 && another(t)))?;
        let s = now.saturating_sub(since) as f64 / 1e9;
        (s * least > TOKENS as f64).then(|| Fired {
            pid: None,
            run: None,
            cause: Slowness::Stuck,
            text: format!("a token has been running for {s:.1} s: below {least} tok/s (below)"),
        })
    }
}

/// When the triggers of rules last fired, by user. The service keeps it, too: it relies on no recorder's word, because a
/// program may run for each of them.
#[derive(Debug, Default)]
pub struct LastFired {
    all: Vec<(String, Option<u32>, Instant)>,
}

impl LastFired {
    /// Whether a trigger of this rule may fire again for this user. If so, it has.
    pub fn is_due(&mut self, rule: &str, uid: Option<u32>, now: Instant) -> bool {
        self.all.retain(|(.., at)| now.saturating_duration_since(*at) < REST);
        let due = self.all.iter().all(|(of, user, _)| (of.as_str(), *user) != (rule, uid));
        if due {
            self.all.push((rule.to_owned(), uid, now));
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn meter(durations: &[u64]) -> (Meter, u64) {
        let mut m = Meter::new(7, 7);
        let mut t = S;
        for &d in durations {
            t += d;
            m.call(t, d, 1);
        }
        (m, t)
    }

    fn trigger(below: Option<f64>, p99_ns: Option<u64>) -> Trigger {
        Trigger { below, p99_ns, fired: None, looked: 0 }
    }

    #[test]
    fn a_slow_process_fires_once_a_minute() {
        let (m, t) = meter(&[S / 5; 20]);
        let slow = [m];
        let mut ten = trigger(Some(10.0), None);
        assert!(ten.fired(&slow, None, t).expect("fires").text.contains("5.000 tok/s, below 10"));
        assert_eq!(ten.fired(&slow, None, t + 59 * S), None);
        let (m, t) = meter(&[S / 5; 400]);
        assert!(ten.fired(&[m], None, t).is_some());
        assert_eq!(trigger(Some(4.0), None).fired(&slow, None, t), None);
        let (few, t) = meter(&[S / 5; 15]);
        assert_eq!(trigger(Some(10.0), None).fired(&[few], None, t), None);
        // So slow that few tokens come in any measured time.
        let (slower, t) = meter(&[2 * S; 16]);
        assert!(trigger(Some(1.0), None).fired(&[slower], None, t).is_some());
    }

    #[test]
    fn few_slow_tokens_fire_the_percentile() {
        let mut durations = [S / 100; 200];
        durations[100] = S;
        durations[130] = S;
        durations[150] = S;
        let (m, t) = meter(&durations);
        let m = [m];
        assert!(trigger(None, Some(S / 2)).fired(&m, None, t).expect("fires").text.contains("1000.000 ms"));
        assert_eq!(trigger(None, Some(2 * S)).fired(&m, None, t), None);
        assert_eq!(trigger(Some(10.0), None).fired(&m, None, t), None);
    }

    #[test]
    fn the_service_counts_by_rule_and_user() {
        let (mut last, begin) = (LastFired::default(), Instant::now());
        let at = |s| begin + Duration::from_secs(s);
        assert!(last.is_due("a", Some(5), at(0)) && last.is_due("a", Some(6), at(0)));
        assert!(last.is_due("b", Some(5), at(1)) && last.is_due("a", None, at(1)));
        assert!((2..54).all(|s| !last.is_due("a", Some(5), at(s))));
        // What is refused does not begin it anew.
        assert!(last.is_due("a", Some(5), at(59)));
        assert!(last.is_due("c", None, at(200)));
        assert_eq!(last.all.len(), 1);
    }

    #[test]
    fn a_token_that_does_not_end_fires() {
        let mut t = trigger(Some(4.0), None);
        assert_eq!(t.fired(&[], Some((S, 1)), 4 * S), None);
        assert_eq!(t.fired(&[], Some((S, 512)), 60 * S), None);
        assert!(t.fired(&[], Some((S, 1)), 70 * S).is_some());
        assert_eq!(t.fired(&[], Some((S, 1)), 200 * S), None, "the same one");
        assert!(t.fired(&[], Some((100 * S, 1)), 201 * S).is_some());
    }
}
