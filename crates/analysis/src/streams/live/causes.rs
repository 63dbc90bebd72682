//! What threads did in their ops, from the scheduler's records as they arrive: the time of a slice is split as in
//! `report`. An off-CPU interval is recorded when it ends, and the slices around it are recorded later.

use std::collections::HashMap;

use crate::sums::attribution::parts::TimeParts;
use crate::sums::attribution::sched::{FEATURE, OffCpuCursor, OffCpuSpan};
use pfi::record::{Availability, Detail, Feature, LevelChange, OffCpu};

/// Off-CPU intervals kept for each thread: more than an engine has between two records of its slices.
const KEPT: usize = 512;
/// Threads whose intervals are kept.
const THREADS: usize = 1024;

/// The latest off-CPU intervals of each thread.
#[derive(Default)]
pub struct LiveScheduler {
    threads: HashMap<u32, Vec<OffCpuSpan>>,
    /// Only threads that have an interval were followed.
    partly: bool,
    /// When the level last changed, and whether it includes the scheduler from then on and did before.
    change: Option<(i64, bool, bool)>,
    /// A level includes the scheduler: otherwise it is recorded at every level, or not at all.
    is_level: bool,
}

impl LiveScheduler {
    pub fn off_cpu(&mut self, r: &OffCpu) {
        if self.threads.len() >= THREADS && !self.threads.contains_key(&r.tid) {
            self.partly = true;
            return;
        }
        let list = self.threads.entry(r.tid).or_default();
        let mut span = OffCpuSpan::new(r, 0);
        // Intervals of a thread do not overlap, whatever the trace says.
        span.from = span.from.max(list.last().map_or(i64::MIN, |last| last.to));
        span.runnable = span.runnable.max(span.from);
        if span.from < span.to {
            if list.len() >= KEPT {
                list.drain(..KEPT / 2);
            }
            list.push(span);
        }
    }

    pub fn level(&mut self, r: &LevelChange<'_>) {
        let on = r.to >= Detail::Scheduler;
        self.is_level |= on;
        self.change = Some((r.t, on, self.change.is_none_or(|(_, on, _)| on)));
    }

    pub fn feature(&mut self, r: &Feature<'_>) {
        if r.name == FEATURE {
            self.partly |= r.state != Availability::Whole;
        }
    }

    /// What is known of a thread from `t` on.
    pub fn thread(&self, tid: u32, t: i64) -> LiveThreadTimes<'_> {
        let list = match self.threads.get(&tid) {
            Some(list) => Some(list.as_slice()),
            // The others have intervals, so this thread never left its CPU.
            None => (!self.partly && !self.threads.is_empty()).then_some(&[][..]),
        };
        LiveThreadTimes { cursor: list.map(|list| OffCpuCursor::new(list, t)), scheduler: self }
    }

    /// Whether the scheduler was recorded for all of this time.
    fn known(&self, from: i64, to: i64) -> bool {
        match self.change.filter(|_| self.is_level) {
            None => true,
            Some((t, on, _)) if from >= t => on,
            Some((t, _, before)) => before && to <= t,
        }
    }
}

/// A thread's off-CPU times, read along with its slices.
pub struct LiveThreadTimes<'s> {
    cursor: Option<OffCpuCursor<'s>>,
    scheduler: &'s LiveScheduler,
}

impl LiveThreadTimes<'_> {
    /// Adds the time of a slice, and of the wait at the barrier after it, as far as they are known.
    pub fn slice(&mut self, start: i64, (time, wait): (Option<u64>, Option<u64>), parts: &mut TimeParts) {
        let end = start.saturating_add_unsigned(time.unwrap_or(0));
        let next = end.saturating_add_unsigned(wait.unwrap_or(0));
        let Some(cursor) = self.cursor.as_mut().filter(|_| self.scheduler.known(start, next)) else {
            let all = time.unwrap_or(0).saturating_add(wait.unwrap_or(0));
            parts.unknown_ns = parts.unknown_ns.saturating_add(all);
            return;
        };
        let mut add = |kind, ns: u64| {
            let sum = parts.off(kind);
            *sum = sum.saturating_add(ns);
        };
        let computing = cursor.lay(start, end, |piece| add(piece.kind, piece.ns));
        let mut in_barrier = 0u64;
        let barrier = cursor.lay(end, next, |piece| {
            add(piece.kind.at_barrier(), piece.ns);
            in_barrier = in_barrier.saturating_add(piece.ns);
        });
        parts.computing_ns = parts.computing_ns.saturating_add(computing);
        parts.barrier_ns = parts.barrier_ns.saturating_add(barrier);
        parts.off_cpu_in_barrier_ns = parts.off_cpu_in_barrier_ns.saturating_add(in_barrier);
    }
}
