//! The speed of each recorded process, and of a run of several, from their calls alone: first token, rate,
//! quantiles. Allocates only when created.

/// How many calls that decode are kept, the newest.
const NEWEST: usize = 256;
/// The rate covers the newest tokens within this time, ns.
const RATE_NS: u64 = 10_000_000_000;
/// Buckets of durations: 16 per doubling, from 2^10 ns to 2^42 ns (more than an hour).
const PARTS: u32 = 16;
const FROM: u32 = 10;
const BUCKETS: usize = (32 * PARTS) as usize;

/// A call that decodes.
#[derive(Debug, Clone, Copy, Default)]
struct Decoded {
    /// When it returned, CLOCK_MONOTONIC ns, and its duration.
    end: u64,
    dur: u64,
    /// Tokens, one of each sequence.
    tokens: u32,
}

/// One process.
pub struct Meter {
    pub pid: u32,
    /// The first process of its run; 0: unknown.
    pub run: u32,
    /// The process is not recorded any longer.
    pub ended: bool,
    /// Nor is any other process of the run that it is the first of.
    pub over: bool,
    /// Calls that have returned.
    pub calls: u64,
    /// Of those, the ones whose end on a device was not seen: no timing includes them.
    pub unseen: u64,
    /// When the first prompt call returned, and its duration, ns.
    first: Option<(u64, u64)>,
    /// When the last call returned, CLOCK_MONOTONIC ns.
    pub last: u64,
    /// Rate of its run when a child of it ended.
    pub before: Option<f64>,
    /// The newest calls that decode; a ring buffer.
    newest: Box<[Decoded]>,
    next: usize,
    buckets: Box<[u32]>,
}

fn bucket(ns: u64) -> usize {
    let ns = ns.max(1 << FROM);
    let doubling = ns.ilog2();
    let part = (ns >> (doubling - PARTS.ilog2())) as u32 - PARTS;
    (((doubling - FROM) * PARTS + part) as usize).min(BUCKETS - 1)
}

/// The midpoint of a bucket, ns.
fn middle(bucket: usize) -> u64 {
    let (doubling, part) = (FROM + bucket as u32 / PARTS, u64::from(bucket as u32 % PARTS));
    let step = (1u64 << doubling) / u64::from(PARTS);
    (1 << doubling) + part * step + step / 2
}

/// Number of these calls, and their tokens per second of their time. None: they took no time, or more than can be.
fn rate(mut calls: impl Iterator<Item = Decoded>) -> Option<(usize, f64)> {
    let add = |(n, tokens, ns): (usize, u64, u64), call: Decoded| {
        Some((n + 1, tokens + u64::from(call.tokens), ns.checked_add(call.dur)?))
    };
    let (n, tokens, ns) = calls.try_fold((0, 0, 0), add)?;
    (ns > 0).then(|| (n, tokens as f64 * 1e9 / ns as f64))
}

impl Meter {
    pub fn new(pid: u32, run: u32) -> Meter {
        Meter {
            pid,
            run,
            ended: false,
            over: false,
            calls: 0,
            unseen: 0,
            first: None,
            last: 0,
            before: None,
            newest: vec![Decoded::default(); NEWEST].into(),
            next: 0,
            buckets: vec![0; BUCKETS].into(),
        }
    }

    /// A call returned at `t` after `dur` ns. `tokens`: how many it decoded; 0: it is of a prompt.
    pub fn call(&mut self, t: u64, dur: u64, tokens: u32) {
        self.count(t, dur, tokens);
        if tokens > 0 {
            self.newest[self.next] = Decoded { end: t, dur, tokens };
            self.next = (self.next + 1) % NEWEST;
        }
    }

    /// The same for a call of another process of the run: it is counted, but does not change this process's rate.
    pub fn count(&mut self, t: u64, dur: u64, tokens: u32) {
        (self.calls, self.last) = (self.calls + 1, self.last.max(t));
        if tokens > 0 {
            let n = &mut self.buckets[bucket(dur)];
            *n = n.saturating_add(tokens);
        } else {
            self.first.get_or_insert((t, dur));
        }
    }

    /// A call ended at an unseen time: it is counted, without a duration.
    pub fn unseen(&mut self, t: u64) {
        (self.calls, self.last) = (self.calls + 1, self.last.max(t));
        self.unseen += 1;
    }

    /// Adds everything that another meter has counted.
    pub fn absorb(&mut self, other: &Meter) {
        self.calls += other.calls;
        self.unseen += other.unseen;
        self.last = self.last.max(other.last);
        self.before = other.before.or(self.before);
        self.first = [self.first, other.first].into_iter().flatten().min();
        self.buckets.iter_mut().zip(&other.buckets).for_each(|(n, more)| *n = n.saturating_add(*more));
    }

    /// The totals of a run: the counts of all its processes.
    pub fn of_run(meters: &[Meter], run: u32) -> Meter {
        let mut all = Meter::new(run, run);
        meters.iter().filter(|m| m.run == run).for_each(|m| all.absorb(m));
        all
    }

    /// Decoded tokens per second of processes that decode concurrently: those whose last call was within 10 s of
    /// the run's last call, at `last`. None: there was none.
    pub fn rate_of_run(meters: &[Meter], run: u32, last: u64) -> Option<f64> {
        let going = meters.iter().filter(|m| m.run == run && m.last.saturating_add(RATE_NS) > last);
        going.filter_map(Meter::rate).reduce(|a, b| a + b)
    }

    /// Duration of the first prompt call, ns.
    pub fn ttft_ns(&self) -> Option<u64> {
        self.first.map(|(_, dur)| dur)
    }

    /// The `q` quantile of decode time per token, ns, accurate to 3 %. None: no token.
    pub fn quantile(&self, q: f64) -> Option<u64> {
        let timed: u64 = self.buckets.iter().map(|&n| u64::from(n)).sum();
        let rank = (timed as f64 * q).ceil().max(1.0) as u64;
        let mut seen = 0;
        let at = self.buckets.iter().position(|&n| {
            seen += u64::from(n);
            seen >= rank
        });
        at.filter(|_| timed > 0).map(middle)
    }

    /// The newest calls that ended after `from`.
    fn since(&self, from: u64) -> impl Iterator<Item = Decoded> {
        self.newest.iter().copied().filter(move |call| call.end > from)
    }

    /// Decoded tokens per second of decoding time, over the last 10 s of calls. None: there was none.
    pub fn rate(&self) -> Option<f64> {
        let from = self.last.saturating_sub(RATE_NS);
        rate(self.since(from)).map(|(_, rate)| rate)
    }

    /// The 99th percentile of the newest calls, ns, over at most 256 that ended after `from`. None: fewer than
    /// 100.
    pub fn p99_since(&self, from: u64) -> Option<u64> {
        let mut durations: Vec<u64> = self.since(from).map(|call| call.dur).collect();
        if durations.len() < 100 {
            return None;
        }
        common::order::by(&mut durations, |a, b| a.cmp(b));
        durations.get((durations.len() * 99).div_ceil(100) - 1).copied()
    }

    /// The rate of the newest `n` calls; None: fewer than that ended after `from`.
    pub fn rate_of_newest(&self, n: usize, from: u64) -> Option<f64> {
        let n = n.min(NEWEST);
        let newest = (1..=n).map(|back| self.newest[(self.next + NEWEST - back) % NEWEST]);
        rate(newest.filter(|call| call.end > from)).filter(|&(timed, _)| timed == n).map(|(_, rate)| rate)
    }

    /// The rate of calls that ended after `from`; None: fewer than `least`.
    pub fn rate_since(&self, from: u64, least: usize) -> Option<f64> {
        rate(self.since(from)).filter(|&(timed, _)| timed >= least).map(|(_, rate)| rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_known_to_three_percent() {
        for ns in [1u64, 1024, 1500, 99_999, 1_000_000, 33_333_333, 1 << 40] {
            let near = middle(bucket(ns)) as f64;
            assert!(ns < 1024 || (near / ns as f64 - 1.0).abs() <= 1.0 / 31.0, "{ns}: {near}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_rate_and_first_token() {
        let mut m = Meter::new(7, 7);
        assert_eq!((m.quantile(0.5), m.rate(), m.ttft_ns()), (None, None, None));
        m.call(1_000_000_000, 900_000_000, 0);
        for i in 1..=200u64 {
            let dur = if i % 50 == 0 { 40_000_000 } else { 10_000_000 };
            m.call(1_000_000_000 + i * 12_000_000, dur, 1);
        }
        m.call(9_000_000_000, 5, 0);
        assert_eq!((m.ttft_ns(), m.calls), (Some(900_000_000), 202));
        let near = |ns: Option<u64>, want: f64| (ns.expect("known") as f64 / want - 1.0).abs() < 0.04;
        assert!(near(m.quantile(0.5), 1e7) && near(m.quantile(0.99), 4e7));
        // 196 tokens of 10 ms, 4 of 40 ms.
        assert!((m.rate().expect("known") - 200.0 / 2.12).abs() < 1e-9);
        assert_eq!(m.p99_since(0), Some(40_000_000));
        assert_eq!(m.p99_since(1_000_000_000 + 150 * 12_000_000), None);
    }

    #[test]
    fn each_sequence_of_a_call_has_a_token() {
        let mut m = Meter::new(7, 7);
        (1..=100).for_each(|i| m.call(i * 20_000_000, 10_000_000, 2 * u32::from(i > 50)));
        assert_eq!((m.rate(), m.rate_of_newest(20, 0)), (Some(200.0), Some(200.0)));
        m.call(101 * 20_000_000, 20_000_000, 110);
        assert!(m.quantile(0.5) > Some(19_000_000), "most tokens are of the last call");
    }

    #[test]
    fn times_that_cannot_be_have_no_rate() {
        let mut m = Meter::new(7, 7);
        m.call(u64::MAX - 1, u64::MAX - 1, 1);
        m.call(u64::MAX, u64::MAX - 1, 1);
        assert_eq!((m.rate(), m.rate_of_newest(2, 0), m.rate_since(0, 1)), (None, None, None));
    }

    #[test]
    fn a_run_is_the_sum_of_its_processes() {
        let mut all = [Meter::new(7, 7), Meter::new(8, 7), Meter::new(9, 7), Meter::new(1, 1)];
        const MS: u64 = 1_000_000;
        for i in 1..=100 {
            all[1].call(i * 10 * MS, 10 * MS, u32::from(i > 1));
            all[2].call(i * 20 * MS, 20 * MS, u32::from(i > 1));
            all[3].call(i * MS, MS, 1);
        }
        let run = Meter::of_run(&all, 7);
        assert_eq!((run.calls, run.ttft_ns(), run.last), (200, Some(10 * MS), 2000 * MS));
        let near = |ns: Option<u64>, want: f64| (ns.expect("known") as f64 / want - 1.0).abs() < 0.04;
        assert!(near(run.quantile(0.4), 1e7) && near(run.quantile(0.9), 2e7));
        assert!((Meter::rate_of_run(&all, 7, run.last).expect("known") - 150.0).abs() < 1e-9);
        // Old calls of one process do not count towards the current rate.
        assert!((Meter::rate_of_run(&all, 7, 11_500 * MS).expect("known") - 50.0).abs() < 1e-9);
    }
}
