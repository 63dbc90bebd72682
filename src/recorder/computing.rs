//! What each recorded process computes on the CPU at the moment: a prompt or a token, and with how many threads. For a
//! service that gives the engine's threads other CPUs at a change.

use heapless::{Deque, Vec};

/// Maximum processes, and graphs of one process that are computed at the same time. What is beyond is not reported.
const PROCESSES: usize = 64;
const GRAPHS: usize = 8;
/// Maximum changes waiting to be taken; the oldest is dropped.
const CHANGES: usize = 64;

/// A process computes something else from now on, or with other threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ComputingChange {
    pub pid: u32,
    /// When its first graph began, CLOCK_MONOTONIC ns.
    pub t: u64,
    /// More than one token at a time, as the engine decides when it chooses between its two numbers of threads.
    pub prompt: bool,
    /// Threads that compute, of all graphs at the same time; 0: not known.
    pub threads: u32,
    /// Several threads of the process have computed graphs at the same time, now or earlier.
    pub several: bool,
}

struct Computing {
    pid: u32,
    /// The last change reported.
    told: Option<(bool, u32, bool)>,
    /// Calling threads with a graph in progress, and the threads that compute it.
    open: Vec<(u32, u32), GRAPHS>,
    several: bool,
}

/// The recorded processes.
#[derive(Default)]
pub struct ComputingWatch {
    all: Vec<Computing, PROCESSES>,
    changes: Deque<ComputingChange, CHANGES>,
}

impl ComputingWatch {
    /// A graph on the CPU begins, called by the thread `tid`: of this many tokens, computed by this many threads; 0: not
    /// known.
    pub fn begin(&mut self, (pid, tid): (u32, u32), t: u64, width: u32, threads: u32) {
        if self.all.iter().all(|of| of.pid != pid)
            && self.all.push(Computing { pid, told: None, open: Vec::new(), several: false }).is_err()
        {
            return;
        }
        let Some(of) = self.all.iter_mut().find(|of| of.pid == pid) else { return };
        of.open.retain(|(caller, _)| *caller != tid);
        // Without room the sum would be too small.
        let counted = of.open.push((tid, threads)).is_ok();
        of.several |= of.open.len() > 1 || !counted;
        let known = counted && of.open.iter().all(|(_, n)| *n > 0);
        let threads = if known { of.open.iter().fold(0u32, |sum, (_, n)| sum.saturating_add(*n)) } else { 0 };
        // A graph whose tokens are not known changes nothing that is known of the phase.
        let prompt = if width > 0 { width > 1 } else { of.told.is_some_and(|told| told.0) };
        let now = (prompt, threads, of.several);
        if of.told != Some(now) {
            of.told = Some(now);
            if self.changes.is_full() {
                self.changes.pop_front();
            }
            let _ = self.changes.push_back(ComputingChange { pid, t, prompt, threads, several: of.several });
        }
    }

    /// The graph called by a thread has ended.
    pub fn end(&mut self, pid: u32, tid: u32) {
        if let Some(of) = self.all.iter_mut().find(|of| of.pid == pid) {
            of.open.retain(|(caller, _)| *caller != tid);
        }
    }

    /// A process is not recorded any longer.
    pub fn forget(&mut self, pid: u32) {
        self.all.retain(|of| of.pid != pid);
    }

    /// The oldest change that was not taken yet.
    pub fn take(&mut self) -> Option<ComputingChange> {
        self.changes.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(watch: &mut ComputingWatch) -> std::vec::Vec<(u64, bool, u32, bool)> {
        std::iter::from_fn(|| watch.take()).map(|c| (c.t, c.prompt, c.threads, c.several)).collect()
    }

    #[test]
    fn a_change_is_reported_once() {
        let mut watch = ComputingWatch::default();
        for (t, width, threads) in [(1, 512, 4), (2, 7, 4), (3, 1, 2), (4, 1, 2), (5, 0, 2), (6, 1, 0)] {
            watch.begin((7, 70), t, width, threads);
            watch.end(7, 70);
        }
        let all = [(1, true, 4, false), (3, false, 2, false), (6, false, 0, false)];
        assert_eq!(changes(&mut watch), all);
        watch.forget(7);
        watch.begin((7, 70), 7, 1, 2);
        assert_eq!(changes(&mut watch), [(7, false, 2, false)], "another process");
    }

    #[test]
    fn threads_of_graphs_at_the_same_time_add_up() {
        let mut watch = ComputingWatch::default();
        watch.begin((7, 70), 1, 1, 2);
        // Its end was lost.
        watch.begin((7, 70), 2, 1, 2);
        watch.begin((7, 71), 3, 1, 3);
        watch.end(7, 70);
        watch.end(7, 71);
        watch.begin((7, 70), 4, 1, 2);
        assert_eq!(
            changes(&mut watch),
            [(1, false, 2, false), (3, false, 5, true), (4, false, 2, true)],
            "it may be so again"
        );
        for tid in 0..100 {
            watch.begin((9, tid), 5, 1, 1);
        }
        assert_eq!(changes(&mut watch).last(), Some(&(5, false, 0, true)), "too many are an unknown number");
        for pid in 100..1000 {
            watch.begin((pid, pid), 6, 1, 1);
        }
        assert_eq!(changes(&mut watch).len(), PROCESSES - 2);
    }
}
