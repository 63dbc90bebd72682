//! The off-CPU times of each thread, in order and without overlap, ready to be matched with its slices.

use std::collections::HashMap;

use super::parts::Off;
use crate::recorded::load::Loaded;
use common::order;
use pfi::record::{Availability, Detail, OffCpu, Tristate};

/// Name of the Feature record.
pub const FEATURE: &str = "scheduler";

/// State of a thread that left its CPU by itself, where the kernel does not tell more: 1 or 2.
const ASLEEP: u8 = 3;

/// An off-CPU interval of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OffCpuSpan {
    pub from: i64,
    pub to: i64,
    /// From here on the thread was runnable.
    pub runnable: i64,
    /// Why it could not run before that.
    pub kind: Off,
    /// Index of its record in the trace.
    pub record: usize,
}

impl OffCpuSpan {
    /// `record` is the index of the record in the trace.
    pub fn new(r: &OffCpu, record: usize) -> OffCpuSpan {
        let to = r.t.saturating_add_unsigned(r.dur);
        let runnable = to.saturating_sub_unsigned(runnable(r));
        OffCpuSpan { from: r.t, to, runnable, kind: kind(r), record }
    }
}

/// A piece of an [`OffCpuSpan`] of one kind.
pub struct OffCpuPiece {
    pub kind: Off,
    pub ns: u64,
    pub record: usize,
}

/// Off-CPU times of all threads.
pub struct OffCpuTimes {
    threads: HashMap<u32, Vec<OffCpuSpan>>,
    /// True if a thread without a record was never off-CPU; otherwise it was not followed.
    whole: bool,
    /// Times at which recording of scheduler events was switched on or off, in order. Empty if no level change
    /// did that.
    switched: Vec<(i64, bool)>,
}

/// The kind of time a thread that cannot run spends.
fn kind(r: &OffCpu) -> Off {
    match (r.state, r.fault, r.io) {
        (0, ..) => Off::Preempted,
        (_, Tristate::Yes, _) => Off::Faulting,
        (_, _, Tristate::Yes) => Off::Io,
        (1, ..) => Off::Idle,
        (ASLEEP, ..) => Off::Asleep,
        _ => Off::Blocked,
    }
}

/// How long a thread was runnable, ns; all of its off-CPU time if it was preempted.
pub fn runnable(r: &OffCpu) -> u64 {
    if r.state == 0 { r.dur } else { r.runnable.unwrap_or(0).min(r.dur) }
}

impl OffCpuTimes {
    pub fn new(loaded: &Loaded<'_>) -> OffCpuTimes {
        let mut threads: HashMap<u32, Vec<OffCpuSpan>> = HashMap::new();
        for (record, r) in loaded.causes.off_cpu.iter().enumerate() {
            threads.entry(r.tid).or_default().push(OffCpuSpan::new(r, record));
        }
        for list in threads.values_mut() {
            order::by_key(list, |a| (order::time(a.from), order::time(a.to)));
            let mut end = i64::MIN;
            for a in list.iter_mut() {
                // Off-CPU intervals of a thread do not overlap, whatever the file says.
                a.from = a.from.max(end).min(a.to);
                a.runnable = a.runnable.max(a.from);
                end = end.max(a.to);
            }
            list.retain(|a| a.from < a.to);
        }
        let whole =
            loaded.causes.features.iter().any(|f| f.name == FEATURE && f.state == Availability::Whole);
        let mut switched: Vec<_> =
            loaded.causes.levels.iter().map(|l| (l.t, l.to >= Detail::Scheduler)).collect();
        order::by_key(&mut switched, |(t, _)| (order::time(*t), 0));
        // If no level includes the scheduler, recording it does not depend on the level.
        if switched.iter().all(|(_, on)| !on) {
            switched.clear();
        }
        OffCpuTimes { threads, whole, switched }
    }

    /// True if the trace has any scheduler data.
    pub fn any(&self) -> bool {
        self.whole || !self.threads.is_empty()
    }

    /// Whether scheduler events were recorded for all of the time from `from` to `to`.
    pub fn known(&self, from: i64, to: i64) -> bool {
        // Before the first change they were: a recording that begins without them says so immediately.
        let before = self.switched.partition_point(|(at, _)| *at <= from).saturating_sub(1);
        let mut during = self.switched.iter().skip(before).take_while(|(at, _)| *at <= from || *at < to);
        during.all(|(_, on)| *on)
    }

    /// The thread's off-CPU times as far as they were recorded, in order.
    pub fn recorded(&self, tid: u32) -> &[OffCpuSpan] {
        self.threads.get(&tid).map_or(&[], Vec::as_slice)
    }

    /// The thread's off-CPU times, in order; `None` unless they are known for all of the time from `from` to
    /// `to`.
    pub fn thread(&self, tid: u32, from: i64, to: i64) -> Option<&[OffCpuSpan]> {
        if !self.known(from, to) {
            return None;
        }
        match self.threads.get(&tid) {
            Some(list) => Some(list),
            None => self.whole.then_some(&[]),
        }
    }
}

/// A forward-only position in a thread's list, advanced along with its slices.
pub struct OffCpuCursor<'s> {
    list: &'s [OffCpuSpan],
    at: usize,
}

impl<'s> OffCpuCursor<'s> {
    /// Positioned before the first interval that is not over at `t`.
    pub fn new(list: &'s [OffCpuSpan], t: i64) -> OffCpuCursor<'s> {
        OffCpuCursor { list, at: list.partition_point(|a| a.to <= t) }
    }

    /// Yields the pieces inside `from..to`; returns the time in it that the thread was on a CPU.
    pub fn lay(&mut self, from: i64, to: i64, mut each: impl FnMut(OffCpuPiece)) -> u64 {
        let mut offcpu = 0;
        while self.list.get(self.at).is_some_and(|a| a.to <= from) {
            self.at += 1;
        }
        for a in self.list.get(self.at..).unwrap_or_default() {
            if a.from >= to {
                break;
            }
            for (kind, start, end) in [(a.kind, a.from, a.runnable), (Off::Preempted, a.runnable, a.to)] {
                let ns = end.min(to).saturating_sub(start.max(from)).max(0).unsigned_abs();
                if ns > 0 {
                    offcpu += ns;
                    each(OffCpuPiece { kind, ns, record: a.record });
                }
            }
        }
        to.saturating_sub(from).max(0).unsigned_abs().saturating_sub(offcpu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(t: i64, dur: u64, state: u8, runnable: Option<u64>) -> OffCpu {
        OffCpu {
            pid: 1,
            tid: 1,
            t,
            dur,
            runnable,
            state,
            io: Tristate::No,
            fault: Tristate::No,
            cpu: 0,
            to_cpu: 0,
            by: 2,
            from: 3,
            waker: 0,
            cut: false,
        }
    }

    fn sched(off_cpu: Vec<OffCpu>) -> OffCpuTimes {
        let mut loaded = Loaded::default();
        loaded.causes.off_cpu = off_cpu;
        OffCpuTimes::new(&loaded)
    }

    fn laid(s: &OffCpuTimes, from: i64, to: i64) -> (u64, Vec<(Off, u64)>) {
        let mut pieces = Vec::new();
        let list = s.thread(1, from, to).unwrap();
        let on = OffCpuCursor::new(list, from).lay(from, to, |p| pieces.push((p.kind, p.ns)));
        (on, pieces)
    }

    #[test]
    fn a_sleeper_is_preempted_from_its_wake_up_on() {
        let s = sched(vec![record(100, 50, 1, Some(20)), record(200, 10, 0, None)]);
        assert_eq!(
            laid(&s, 0, 300),
            (240, vec![(Off::Idle, 30), (Off::Preempted, 20), (Off::Preempted, 10)])
        );
        // Cut on both sides, and within one piece.
        assert_eq!(laid(&s, 120, 140), (0, vec![(Off::Idle, 10), (Off::Preempted, 10)]));
        assert_eq!(laid(&s, 205, 206), (0, vec![(Off::Preempted, 1)]));
        assert_eq!(laid(&s, 150, 200), (50, vec![]));
    }

    #[test]
    fn states_are_as_the_kernel_means_them() {
        let of = |state, fault, io| kind(&OffCpu { fault, io, ..record(0, 1, state, None) });
        assert_eq!(of(0, Tristate::Yes, Tristate::Yes), Off::Preempted);
        assert_eq!(of(1, Tristate::No, Tristate::No), Off::Idle);
        assert_eq!(of(2, Tristate::Yes, Tristate::Yes), Off::Faulting);
        assert_eq!(of(2, Tristate::Unknown, Tristate::Yes), Off::Io);
        assert_eq!(of(2, Tristate::Unknown, Tristate::Unknown), Off::Blocked);
        assert_eq!(of(4, Tristate::No, Tristate::No), Off::Blocked);
        let asleep = of(3, Tristate::Unknown, Tristate::Unknown);
        assert_eq!((asleep, asleep.at_barrier()), (Off::Asleep, Off::Idle));
        assert_eq!(Off::Faulting.at_barrier(), Off::Faulting);
    }

    #[test]
    fn a_thread_without_records_is_known_only_where_all_were_followed() {
        use pfi::record::Feature;
        let mut loaded = Loaded::default();
        assert!(!OffCpuTimes::new(&loaded).any());
        loaded.causes.off_cpu = vec![record(0, 1, 1, None)];
        assert!(OffCpuTimes::new(&loaded).thread(7, 0, 1).is_none());
        let feature = |state| Feature { name: FEATURE, state, why: "" };
        loaded.causes.features = vec![feature(Availability::Whole)];
        assert_eq!(OffCpuTimes::new(&loaded).thread(7, 0, 1), Some(&[][..]));
        loaded.causes.features = vec![feature(Availability::Partly)];
        assert_eq!(OffCpuTimes::new(&loaded).thread(7, 0, 1), None);
    }

    #[test]
    fn nothing_is_known_while_the_level_is_too_low() {
        use pfi::record::LevelChange;
        let mut loaded = Loaded::default();
        loaded.causes.off_cpu = vec![record(0, 1, 1, None)];
        let level =
            |t, to| LevelChange { t, to, one_in: 1, predicted_ppm: None, measured_ppm: None, why: "" };
        loaded.causes.levels =
            vec![level(10, Detail::Op), level(20, Detail::Scheduler), level(40, Detail::Counters)];
        let known = |loaded: &Loaded<'_>, from, to| OffCpuTimes::new(loaded).thread(1, from, to).is_some();
        let at = |times: [(i64, i64); 7]| times.map(|(from, to)| known(&loaded, from, to));
        let times = [(5, 6), (10, 11), (19, 20), (20, 20), (20, 40), (20, 41), (45, 46)];
        assert_eq!(at(times), [true, false, false, true, true, false, false]);
        // Level changes that never include the scheduler do not affect it.
        loaded.causes.levels.retain(|l| l.to != Detail::Scheduler);
        assert!(times.iter().all(|(from, to)| known(&loaded, *from, *to)));
    }

    proptest! {
        /// Whatever intervals a file has, the parts of a time range add up to it.
        #[test]
        fn parts_are_the_whole(
            raw in prop::collection::vec((-100i64..1000, 0u64..200, 0u8..4, prop::option::of(0u64..300)), 0..30),
            cuts in prop::collection::btree_set(-50i64..1200, 2..12),
        ) {
            let s = sched(raw.into_iter().map(|(t, dur, state, run)| record(t, dur, state, run)).collect());
            let cuts: Vec<i64> = cuts.into_iter().collect();
            let list = s.thread(1, 0, 1).unwrap_or(&[]);
            let mut cursor = OffCpuCursor::new(list, cuts[0]);
            let (mut on, mut off) = (0, 0);
            for w in cuts.windows(2) {
                on += cursor.lay(w[0], w[1], |p| off += p.ns);
            }
            let whole = cuts[0].abs_diff(*cuts.last().unwrap());
            prop_assert_eq!(on + off, whole);
            // One long range gives the same result as many short ones.
            let mut at_once = 0;
            OffCpuCursor::new(list, cuts[0]).lay(cuts[0], *cuts.last().unwrap(), |p| at_once += p.ns);
            prop_assert_eq!(off, at_once);
        }
    }
}
