//! Events of one submission put together. An end without a beginning is counted, never guessed.

use std::collections::HashMap;

use super::decode::{Hit, Key};
use super::sources::{SourceDef, Step};
use pfi::Submission;

/// Submissions under way at a time; one that is never ended stays until there are that many.
const UNDER_WAY: usize = 16_384;
/// The end of a submission is noticed after it, and the counter is read before its event: times that break this by
/// more are not of the same counter, ns.
const SLACK: u64 = 1_000_000;

/// A submission that has not ended.
#[derive(Debug, Clone, Copy, Default)]
struct UnderWay {
    ring: Option<u32>,
    pid: u32,
    queued: Option<u64>,
    run: Option<u64>,
    /// The device's counter at `run`.
    ticks: Option<u64>,
}

/// What was put together.
#[derive(Debug, Default)]
pub struct Joined {
    under_way: HashMap<Key, UnderWay>,
    /// Ends of which no beginning was seen.
    pub without_start: u64,
    /// Submissions of which no end was seen, because there are too many or another took their place.
    pub without_end: u64,
    /// Ends whose times by the device's clock do not fit the host's.
    pub misfits: u64,
}

impl Joined {
    /// Takes an event, in order of time. `raw_to_mono` is what CLOCK_MONOTONIC is ahead of CLOCK_MONOTONIC_RAW, ns.
    /// Returns a submission that has ended, and its ring.
    pub fn take(
        &mut self,
        def: &SourceDef,
        hit: &Hit,
        raw_to_mono: i64,
    ) -> Option<(Option<u32>, Submission)> {
        match hit.step {
            Step::Queued => {
                let new =
                    UnderWay { ring: hit.ring, pid: hit.tgid, queued: Some(hit.t), ..UnderWay::default() };
                self.begin(hit.key, new);
                None
            }
            Step::Run => {
                let before = self.under_way.get(&hit.key).copied();
                // One that has run under this name already has ended unseen.
                let queued = before.filter(|b| b.run.is_none());
                self.without_end += u64::from(before.is_some() && queued.is_none());
                let was = queued.unwrap_or_default();
                let new = UnderWay { ring: hit.ring.or(was.ring), run: Some(hit.t), ticks: hit.ticks, ..was };
                self.put(hit.key, new);
                None
            }
            Step::Done => match self.under_way.remove(&hit.key) {
                Some(was) if was.run.is_some() => Some((was.ring, self.ended(def, &was, hit))),
                // Cancelled before it ran, or its beginning was not seen.
                _ => {
                    self.without_start += 1;
                    None
                }
            },
            Step::Period => {
                let period = period(hit, raw_to_mono);
                self.misfits += u64::from(period.is_none());
                Some((hit.ring, period?))
            }
        }
    }

    fn begin(&mut self, key: Key, new: UnderWay) {
        self.without_end += u64::from(self.under_way.contains_key(&key));
        self.put(key, new);
    }

    fn put(&mut self, key: Key, new: UnderWay) {
        if self.under_way.len() >= UNDER_WAY && !self.under_way.contains_key(&key) {
            self.without_end += self.under_way.len() as u64;
            self.under_way.clear();
        }
        self.under_way.insert(key, new);
    }

    fn ended(&mut self, def: &SourceDef, was: &UnderWay, hit: &Hit) -> Submission {
        let own = device_times(def, was, hit);
        let told = was.ticks.is_some() && hit.start.is_some() && hit.end.is_some();
        self.misfits += u64::from(told && own.is_none());
        let by_ticks = own.filter(|_| def.ticks.is_some()).map(|(start, end)| end.saturating_sub(start));
        Submission {
            pid: was.pid,
            queued: was.queued,
            run: was.run,
            started: own.map(|o| o.0),
            end: own.map_or(hit.t, |o| o.1),
            busy: hit.busy.or(by_ticks),
            clock: hit.clock,
        }
    }
}

/// Start and end by the device's counter, on the host's clock: the counter was read when the submission ran.
fn device_times(def: &SourceDef, was: &UnderWay, hit: &Hit) -> Option<(u64, u64)> {
    let (run, ticks, start, end) = (was.run?, was.ticks?, hit.start?, hit.end?);
    let took = end.checked_sub(start)?;
    // Ticks to ns.
    let (ns, of) = match def.ticks {
        Some(per_second) => (1_000_000_000, per_second),
        None => (hit.busy?, took),
    };
    let after = |tick: u64| {
        let ns = u128::from(tick.checked_sub(ticks)?) * u128::from(ns);
        run.checked_add(u64::try_from(ns.checked_div(of.into())?).ok()?)
    };
    let (start, end) = (after(start)?, after(end)?);
    (end <= hit.t.saturating_add(SLACK)).then_some((start, end))
}

fn period(hit: &Hit, raw_to_mono: i64) -> Option<Submission> {
    let at = |raw: Option<u64>| raw?.checked_add_signed(raw_to_mono);
    let (from, end) = (at(hit.start)?, at(hit.end)?);
    (from <= end).then_some(Submission { run: Some(from), end, busy: hit.busy, ..Submission::default() })
}
