//! The calls of samplers in progress: as in src/bpf/phases.h.

use std::collections::HashMap;

/// Calls of a thread in progress at a time, and threads: as there.
const MOST: usize = 8;
const MAX_THREADS: usize = 1024;

/// A call of a sampler.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SamplerFrame {
    pub sp: u64,
    pub start: u64,
    pub table: u64,
    /// ns in calls of others that it made and that have ended.
    pub within: u64,
    pub does: u32,
}

/// Those of a thread, the outermost first, within the call of the phase that began at `since`.
#[derive(Default)]
struct ThreadCalls {
    since: u64,
    frames: heapless::Vec<SamplerFrame, MOST>,
}

impl ThreadCalls {
    /// Forgets the calls that began deeper in the stack than `sp`.
    fn unwind(&mut self, since: u64, sp: u64) {
        if std::mem::replace(&mut self.since, since) != since {
            self.frames.clear();
        }
        while self.frames.last().is_some_and(|f| f.sp < sp) {
            self.frames.pop();
        }
    }
}

#[derive(Default)]
pub struct SamplerCalls(HashMap<u32, ThreadCalls>);

impl SamplerCalls {
    /// A call begins, in a call of the phase that began at `since`.
    pub fn enter(&mut self, tid: u32, since: u64, frame: SamplerFrame) {
        if self.0.len() >= MAX_THREADS {
            self.0.clear();
        }
        let calls = self.0.entry(tid).or_default();
        calls.unwind(since, frame.sp.saturating_add(1));
        // Without room it is a part of the one that calls it.
        let _ = calls.frames.push(frame);
    }

    /// A function that was entered at `sp` has returned: the call of a sampler that this is, if it is one.
    pub fn exit(&mut self, tid: u32, since: u64, sp: u64, at: u64) -> Option<SamplerFrame> {
        let calls = self.0.get_mut(&tid)?;
        calls.unwind(since, sp);
        let ended = calls.frames.last().filter(|f| f.sp == sp).copied()?;
        calls.frames.pop();
        if let Some(outer) = calls.frames.last_mut() {
            outer.within = outer.within.saturating_add(at.saturating_sub(ended.start));
        }
        Some(ended)
    }

    /// A thread has ended.
    pub fn forget(&mut self, tid: u32) {
        self.0.remove(&tid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_in_members_is_known_and_what_never_returns_is_forgotten() {
        let mut calls = SamplerCalls::default();
        let frame = |sp, start| SamplerFrame { sp, start, table: sp, ..SamplerFrame::default() };
        calls.enter(1, 10, frame(900, 10));
        calls.enter(1, 10, frame(800, 20));
        assert_eq!(calls.exit(1, 10, 800, 50).map(|f| (f.table, f.within)), Some((800, 0)));
        // It ends by an exception: the next one began at the same depth.
        calls.enter(1, 10, frame(800, 60));
        calls.enter(1, 10, frame(700, 65));
        calls.enter(1, 10, frame(800, 70));
        assert_eq!(calls.exit(1, 10, 800, 75).map(|f| f.start), Some(70));
        // What is no sampler, and another thread.
        assert_eq!((calls.exit(1, 10, 850, 80), calls.exit(2, 10, 900, 80)), (None, None));
        assert_eq!(calls.exit(1, 10, 900, 90).map(|f| (f.start, f.within)), Some((10, 30 + 5)));
        // A later call of the phase.
        calls.enter(1, 10, frame(900, 95));
        calls.enter(1, 99, frame(900, 99));
        assert_eq!(calls.exit(1, 99, 900, 100).map(|f| f.start), Some(99));
        // Deeper than what is followed.
        (0..12).for_each(|i| calls.enter(1, 99, frame(800 - i, 100 + i)));
        assert_eq!(calls.exit(1, 99, 789, 120), None);
        assert_eq!(calls.exit(1, 99, 793, 121).map(|f| f.within), Some(0));
        calls.forget(1);
        assert_eq!(calls.exit(1, 99, 800, 130), None);
    }
}
