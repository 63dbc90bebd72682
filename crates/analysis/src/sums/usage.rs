//! What processes held and used over time, and what they used while they computed nothing: the Usage records, read into
//! figures. Nothing that was not recorded has a value.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::recorded::calls::{Request, Timeline};
use crate::recorded::load::Loaded;
use common::order;
use pfi::record::Usage;

/// Minimum number of requests for a memory growth figure.
const REQUESTS: u64 = 3;

/// What a process used.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProcessUsage {
    pub pid: u32,
    /// From the first sample to the last.
    pub ns: u64,
    pub samples: u64,
    /// CPU time over that time: how many CPUs its threads used.
    pub cpus: Option<f64>,
    /// Memory in the first sample, in the last, and in the one with the most.
    pub first: MemoryUse,
    pub last: MemoryUse,
    pub most: MemoryUse,
    /// From the second request on; null with fewer requests than three after that.
    pub growth: Option<MemoryGrowth>,
    /// Null if no sample fell into a time without a call, or if calls may be missing.
    pub idle: Option<IdleUse>,
}

/// Memory of a process, bytes; null: not known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct MemoryUse {
    /// Its own: caches, buffers, saved states, and weights that were read instead of mapped.
    pub anonymous: Option<u64>,
    /// Pages of mapped files: weights, programs.
    pub files: Option<u64>,
    pub shared: Option<u64>,
    /// Not resident.
    pub swapped: Option<u64>,
}

/// How its own memory, resident or swapped out, grew with requests.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct MemoryGrowth {
    /// Requests that began meanwhile.
    pub requests: u64,
    /// What it was before.
    pub before: u64,
    /// Negative: it shrank.
    pub bytes: i64,
    pub bytes_per_request: f64,
}

/// What it used between its calls: in the samples' intervals in which no call of it ran, from its first call on. A rate is of the
/// intervals in which it is known; null if these are less than half of the time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct IdleUse {
    /// Of these intervals together.
    pub ns: u64,
    /// CPUs in use.
    pub cpus: Option<f64>,
    /// CPUs that the threads use that compute graphs for their caller; null if they are not known.
    pub team_cpus: Option<f64>,
    /// How often its threads went to sleep per second; each was woken before.
    pub wakeups_per_s: Option<f64>,
}

impl MemoryUse {
    fn of(r: &Usage) -> MemoryUse {
        MemoryUse { anonymous: r.anonymous, files: r.files, shared: r.shared, swapped: r.swapped }
    }

    /// Null if no part is known.
    pub fn resident(&self) -> Option<u64> {
        [self.anonymous, self.files, self.shared].into_iter().flatten().reduce(u64::saturating_add)
    }

    /// Null if its own memory is not known.
    pub fn own(&self) -> Option<u64> {
        self.anonymous.map(|bytes| bytes.saturating_add(self.swapped.unwrap_or(0)))
    }
}

/// The processes' use, by pid.
pub fn usage(loaded: &Loaded<'_>, line: &Timeline, requests: &[Request]) -> Vec<ProcessUsage> {
    let mut idle: BTreeMap<u32, Vec<[&Usage; 2]>> = BTreeMap::new();
    for pair in idle_pairs(loaded, line) {
        idle.entry(pair[0].pid).or_default().push(pair);
    }
    let of = |(pid, samples): (u32, Vec<&Usage>)| {
        let (first, last) = (samples.first()?, samples.last()?);
        let most = samples.iter().max_by_key(|r| MemoryUse::of(r).resident())?;
        let idle = idle.get(&pid).map(|pairs| idle_use(pairs));
        Some(ProcessUsage {
            pid,
            ns: first.t.abs_diff(last.t),
            samples: samples.len() as u64,
            cpus: cpus(&[[first, last]], |r| r.cpu_us),
            first: MemoryUse::of(first),
            last: MemoryUse::of(last),
            most: MemoryUse::of(most),
            growth: growth(&samples, requests),
            idle,
        })
    };
    by_process(loaded).into_iter().filter_map(of).collect()
}

/// The times without a call, between two samples each: start and end.
pub fn idle_times(loaded: &Loaded<'_>, line: &Timeline) -> Vec<(i64, i64)> {
    idle_pairs(loaded, line).iter().map(|[from, to]| (from.t, to.t)).collect()
}

/// The samples of each process, in the order of time.
pub fn by_process<'l>(loaded: &'l Loaded<'_>) -> BTreeMap<u32, Vec<&'l Usage>> {
    let mut all: BTreeMap<u32, Vec<&Usage>> = BTreeMap::new();
    for r in &loaded.causes.usage {
        all.entry(r.pid).or_default().push(r);
    }
    all.values_mut().for_each(|samples| order::by_key(samples, |r| (order::time(r.t), 0)));
    all
}

/// Consecutive samples between which their process computed nothing. None if calls may be missing: what looks idle then
/// may have been one of them.
fn idle_pairs<'l>(loaded: &'l Loaded<'_>, line: &Timeline) -> Vec<[&'l Usage; 2]> {
    let all_seen = loaded.footer.as_ref().is_some_and(|f| f.kinds.iter().all(|k| k.lost == 0));
    if !all_seen {
        return Vec::new();
    }
    let mut out = Vec::new();
    for (pid, samples) in by_process(loaded) {
        let ends = |t: i64, dur: u64, cut: bool| if cut { i64::MAX } else { t.saturating_add_unsigned(dur) };
        let calls =
            line.calls.iter().filter(|c| c.pid == pid).map(|c| (c.start, ends(c.start, c.dur, c.cut)));
        let aside = loaded.aside.iter().filter(|t| t.pid == pid).map(|t| (t.t, ends(t.t, t.dur, t.cut)));
        let graphs =
            loaded.cpu_graphs.iter().filter(|g| g.pid == pid).map(|g| (g.t, ends(g.t, g.dur, false)));
        let others = loaded.causes.phases.iter().filter(|p| p.pid == pid);
        let others = others.map(|p| (p.t, ends(p.t, p.dur, p.cut)));
        let mut busy: Vec<(i64, i64)> = calls.chain(aside).chain(graphs).chain(others).collect();
        order::by_key(&mut busy, |(from, _)| (order::time(*from), 0));
        let Some((begin, _)) = busy.first() else { continue };
        // The latest end of all that begin up to here.
        let mut next = busy.iter().peekable();
        let mut busy_until = *begin;
        for pair in samples.windows(2) {
            let &[from, to] = pair else { continue };
            while let Some((_, end)) = next.next_if(|(start, _)| *start < to.t) {
                busy_until = busy_until.max(*end);
            }
            if from.t >= busy_until && from.t >= *begin && to.t > from.t {
                out.push([from, to]);
            }
        }
    }
    out
}

fn idle_use(pairs: &[[&Usage; 2]]) -> IdleUse {
    IdleUse {
        ns: length(pairs),
        cpus: cpus(pairs, |r| r.cpu_us),
        team_cpus: cpus(pairs, |r| r.team_us),
        wakeups_per_s: rate(pairs, |r| r.yields).map(|n| n * 1e9),
    }
}

fn length(pairs: &[[&Usage; 2]]) -> u64 {
    pairs.iter().fold(0, |ns: u64, [a, b]| ns.saturating_add(a.t.abs_diff(b.t)))
}

/// CPU time, of microseconds, over time.
fn cpus(pairs: &[[&Usage; 2]], of: fn(&Usage) -> Option<u64>) -> Option<f64> {
    rate(pairs, of).map(|us| us * 1e3)
}

/// Growth of a total per ns.
fn rate(pairs: &[[&Usage; 2]], of: fn(&Usage) -> Option<u64>) -> Option<f64> {
    let (mut sum, mut known) = (0u64, 0u64);
    for [a, b] in pairs {
        // The total of the threads that live shrinks when one ends.
        if let Some(more) = of(b).zip(of(a)).and_then(|(b, a)| b.checked_sub(a)) {
            sum = sum.saturating_add(more);
            known = known.saturating_add(a.t.abs_diff(b.t));
        }
    }
    (known > 0 && known >= length(pairs) / 2).then(|| sum as f64 / known as f64)
}

/// A server takes memory for what its first request needs; what matters is what comes after that.
fn growth(samples: &[&Usage], requests: &[Request]) -> Option<MemoryGrowth> {
    let last = samples.iter().rfind(|r| r.anonymous.is_some())?;
    let mut begins: Vec<i64> = requests.iter().filter(|r| r.pid == last.pid).map(|r| r.start_ns).collect();
    begins.sort_unstable();
    let second = begins.get(1)?;
    let first = samples.iter().find(|r| r.t >= *second && r.anonymous.is_some())?;
    let counted = begins.iter().filter(|t| **t >= first.t && **t < last.t).count() as u64;
    let [before, after] = [first, last].map(|r| MemoryUse::of(r).own());
    let (before, after) = (before?, after?);
    let bytes = i64::try_from(after).ok()?.checked_sub_unsigned(before)?;
    (counted >= REQUESTS).then(|| MemoryGrowth {
        requests: counted,
        before,
        bytes,
        bytes_per_request: bytes as f64 / counted as f64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use pfi::record::{Entry, Footer, PhaseCall, Token};

    const S: i64 = 1_000_000_000;

    fn used(t: i64, cpu_us: u64, yields: u64, anonymous: u64) -> Usage {
        Usage {
            pid: 7,
            t: t * S,
            cpu_us: Some(cpu_us),
            team_us: Some(cpu_us / 2),
            yields: Some(yields),
            anonymous: Some(anonymous),
            files: Some(500),
            ..Usage::default()
        }
    }

    fn call(seq: u64, t: i64, dur: u64) -> Token {
        Token {
            seq,
            pid: 7,
            tid: 7,
            entry: Entry::Decode,
            n_tokens: Some(1),
            t,
            dur,
            cut: false,
            device: pfi::record::Device::default(),
        }
    }

    fn loaded(lost: u64) -> Loaded<'static> {
        // A call in the second and one in the fifth second.
        let tokens = vec![call(0, 3 * S / 2, 1000), call(1, 9 * S / 2, 1000)];
        let mut loaded = Loaded { tokens, ..Loaded::default() };
        let samples = [(0, 0, 0, 10), (1, 900_000, 5, 20), (2, 1_900_000, 9, 30), (3, 1_910_000, 12, 30)];
        let more = [(4, 1_920_000, 15, 90), (5, 2_920_000, 20, 40), (6, 2_930_000, 24, 40)];
        loaded.causes.usage = samples.into_iter().chain(more).map(|(t, c, y, a)| used(t, c, y, a)).collect();
        let kinds = vec![pfi::record::KindCount { kind: "call", seen: 2 + lost, recorded: 2, lost }];
        loaded.footer = Some(Footer { kinds, ..Footer::default() });
        loaded
    }

    fn of(loaded: &mut Loaded<'_>, requests: &[Request]) -> ProcessUsage {
        let line = crate::recorded::calls::timeline(loaded);
        let all = usage(loaded, &line, requests);
        let [one] = all.as_slice() else { panic!("{all:?}") };
        one.clone()
    }

    #[test]
    fn idle_is_what_lies_between_samples_without_a_call_and_after_the_first_one() {
        let found = of(&mut loaded(0), &[]);
        let idle = found.idle.expect("two intervals, and the last one");
        assert_eq!(
            idle.ns, 3_000_000_000,
            "2 to 4 and 5 to 6 s; what comes before the first call is a beginning"
        );
        assert_eq!((idle.cpus, idle.wakeups_per_s), (Some(0.01), Some(10.0 / 3.0)));
        assert_eq!(idle.team_cpus, Some(0.005));
        assert_eq!(found.most.anonymous, Some(90));
        assert_eq!((found.ns, found.samples), (6_000_000_000, 7));
        assert_eq!(of(&mut loaded(1), &[]).idle, None, "the lost event may have been a call");
        let mut cut = loaded(0);
        cut.tokens[1].cut = true;
        assert_eq!(of(&mut cut, &[]).idle.expect("before it").ns, 2_000_000_000, "a call that did not end");
        let mut phase = loaded(0);
        let load = PhaseCall { what: "load", pid: 7, tid: 7, t: 11 * S / 2, dur: 1, cut: true };
        phase.causes.phases.push(load);
        assert_eq!(
            of(&mut phase, &[]).idle.expect("before it").ns,
            2_000_000_000,
            "a phase that did not end"
        );
        let mut unknown = loaded(0);
        unknown.causes.usage[3].cpu_us = None;
        unknown.causes.usage[6].yields = Some(1);
        let idle = of(&mut unknown, &[]).idle.expect("its time is known");
        assert_eq!((idle.ns, idle.cpus), (3_000_000_000, None), "known in one of three seconds");
        assert_eq!(idle.wakeups_per_s, Some(3.0), "without the interval in which a thread ended");
    }

    #[test]
    fn growth_is_told_from_the_second_request_on() {
        let request = |t: i64| Request {
            pid: 7,
            start_ns: t,
            prefill_calls: 1,
            prompt_tokens: None,
            ttft_ns: None,
            prefill_ns: 0,
            decode_calls: 1,
        };
        let begins = [0, S / 2, 3 * S / 2, 5 * S / 2, 9 * S / 2];
        let requests: Vec<Request> = begins.into_iter().map(request).collect();
        let growth = of(&mut loaded(0), &requests).growth.expect("three after the second");
        assert_eq!(
            (growth.requests, growth.before, growth.bytes),
            (3, 20, 20),
            "from 20 after a second to 40 at the end"
        );
        assert_eq!(of(&mut loaded(0), &requests[..4]).growth, None, "two");
    }
}
