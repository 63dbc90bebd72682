//! Which run each recorded process belongs to, and how fast it is. A run is a process and all its descendants by
//! fork.

use crate::recorder::meter::Meter;
use crate::recorder::requests::{Requests, of_unknown};
use pfi::record::Chunk;
use requests::Call;

/// Maximum processes with their own meter, of about 6 kB each.
pub const MOST: usize = 256;

struct TreeProcess {
    pid: u32,
    /// The first process of its run; 0: unknown.
    run: u32,
    /// An event of it has arrived.
    met: bool,
}

/// The recorded processes.
#[derive(Default)]
pub struct ProcessTree {
    /// Sorted by pid.
    all: Vec<TreeProcess>,
    /// Meters of each run's first process, and of processes that have made a call. When a process ends, its counts
    /// go to its run.
    pub meters: Vec<Meter>,
    /// Requests, as far as calls show them.
    pub requests: Requests,
    /// Meters and requests are wanted.
    pub metering: bool,
    /// Requests in progress are wanted without meters: each process is a run of its own.
    pub listing: bool,
    /// More processes made calls than there are meters.
    pub crowded: bool,
    /// Processes with at least one event so far.
    pub came: u64,
    /// Processes whose fork was not seen.
    pub unattributed: Vec<u32>,
    /// When a process was last dropped, CLOCK_MONOTONIC ns: its earlier events may arrive later.
    left: u64,
}

impl ProcessTree {
    fn at(&self, pid: u32) -> Result<usize, usize> {
        self.all.binary_search_by(|one| one.pid.cmp(&pid))
    }

    /// The first process of its run, 0 if unknown; None: the process is not recorded.
    pub fn run_of(&self, pid: u32) -> Option<u32> {
        self.at(pid).ok().map(|i| self.all[i].run)
    }

    /// The processes of a run.
    pub fn of(&self, run: u32) -> Vec<u32> {
        self.all.iter().filter(|one| one.run == run).map(|one| one.pid).collect()
    }

    /// The processes of a run with at least one event, at most [`MOST`].
    pub fn met_of(&self, run: u32) -> Vec<u32> {
        let met = self.all.iter().filter(|one| one.run == run && one.met);
        met.take(MOST).map(|one| one.pid).collect()
    }

    /// Whether an event of it has arrived.
    pub fn is_met(&self, pid: u32) -> bool {
        self.at(pid).is_ok_and(|i| self.all[i].met)
    }

    /// An event of a process arrived, at `t`; true: its first one.
    pub fn meet(&mut self, pid: u32, t: u64) -> bool {
        let i = match self.at(pid) {
            Ok(i) => i,
            // The last event of a process that was dropped.
            Err(_) if self.metering && t <= self.left => return false,
            Err(i) => {
                self.stray(i, pid);
                i
            }
        };
        let first = !std::mem::replace(&mut self.all[i].met, true);
        self.came += u64::from(first);
        first
    }

    fn stray(&mut self, i: usize, pid: u32) {
        self.all.insert(i, TreeProcess { pid, run: 0, met: false });
        if self.metering {
            self.unattributed.push(pid);
        }
    }

    /// A process has a child.
    pub fn born(&mut self, parent: u32, pid: u32) {
        match (self.at(pid), self.run_of(parent)) {
            (Ok(_), _) => {}
            (Err(i), None | Some(0)) => self.stray(i, pid),
            (Err(i), Some(run)) => self.all.insert(i, TreeProcess { pid, run, met: false }),
        }
    }

    /// A recorded process is the first of its run.
    pub fn begin(&mut self, pid: u32) {
        self.leave(pid, 0);
        self.meters.retain(|m| m.pid != pid);
        self.meters.push(Meter::new(pid, pid));
        self.adopt(pid, pid);
    }

    /// A process belongs to this run, whatever was known of it, and its counts go to the run; the run's first
    /// process may have ended unnoticed.
    pub fn adopt(&mut self, pid: u32, run: u32) {
        if !self.meters.iter().any(|m| m.pid == run) {
            let mut first = Meter::new(run, run);
            first.ended = true;
            self.meters.push(first);
        }
        match self.at(pid) {
            Ok(i) => self.all[i].run = run,
            Err(i) => self.all.insert(i, TreeProcess { pid, run, met: false }),
        }
        self.own(pid, run);
    }

    /// The counts of a process, which may have ended, go to this run.
    pub fn own(&mut self, pid: u32, run: u32) {
        self.requests.own(pid, run);
        if let Some(i) = self.meters.iter().position(|m| m.pid == pid) {
            self.meters[i].run = run;
            self.gather(i);
        }
    }

    /// A process is not recorded from `t` on.
    pub fn leave(&mut self, pid: u32, t: u64) {
        self.left = self.left.max(t);
        let Ok(i) = self.at(pid) else { return };
        self.requests.exit(pid);
        let run = self.all.remove(i).run;
        if let Some(i) = self.meters.iter().position(|m| m.pid == pid) {
            self.meters[i].ended = true;
            self.gather(i);
        }
        if self.all.iter().all(|one| one.run != run) {
            self.meters.iter_mut().filter(|m| m.pid == run).for_each(|m| m.over = true);
        }
    }

    /// Removes the meter of a child that has ended and adds its counts to the run's first process.
    fn gather(&mut self, i: usize) {
        let m = &self.meters[i];
        if !m.ended || m.run == 0 || m.run == m.pid {
            return;
        }
        let (run, last) = (m.run, m.last);
        let rate = Meter::rate_of_run(&self.meters, run, last);
        let child = self.meters.swap_remove(i);
        if let Some(first) = self.meters.iter_mut().find(|m| m.pid == child.run) {
            first.absorb(&child);
            first.before = rate.or(first.before);
        }
    }

    /// A call of a process has returned; see [`Meter::call`].
    pub fn call(&mut self, pid: u32, t: u64, dur: u64, tokens: u32) {
        self.over(pid, t, Some(dur), tokens);
    }

    /// The same for a call whose device work ended unseen.
    pub fn unseen(&mut self, pid: u32, t: u64) {
        self.over(pid, t, None, 0);
    }

    /// A call on a batch has returned, for [`ProcessTree::requests`]. `chunks`: what it has computed, empty if that is not
    /// known.
    pub fn batch(&mut self, call: &Call, chunks: &[Chunk]) {
        let run = match self.metering {
            true => self.run_of(call.pid),
            false => Some(call.pid).filter(|_| self.listing),
        };
        let Some(run) = run else { return };
        // A process whose run is not known is asked for, or dropped.
        let run = if run == 0 { of_unknown(call.pid) } else { run };
        self.requests.call(run, call, chunks);
    }

    fn over(&mut self, pid: u32, t: u64, dur: Option<u64>, tokens: u32) {
        let Some(run) = self.run_of(pid).filter(|_| self.metering) else { return };
        let of = |meters: &[Meter], pid| meters.iter().position(|m| m.pid == pid);
        let mut i = of(&self.meters, pid);
        if i.is_none() && self.meters.len() < MOST {
            i = Some(self.meters.len());
            self.meters.push(Meter::new(pid, run));
        }
        if let Some(i) = i {
            return match dur {
                Some(dur) => self.meters[i].call(t, dur, tokens),
                None => self.meters[i].unseen(t),
            };
        }
        self.crowded = true;
        if let Some(i) = of(&self.meters, run) {
            match dur {
                Some(dur) => self.meters[i].count(t, dur, tokens),
                None => self.meters[i].unseen(t),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process_tree() -> ProcessTree {
        let mut process_tree = ProcessTree { metering: true, ..ProcessTree::default() };
        process_tree.begin(5);
        process_tree
    }

    fn calls(process_tree: &ProcessTree) -> u64 {
        Meter::of_run(&process_tree.meters, 5).calls
    }

    #[test]
    fn children_count_for_their_run_and_it_ends_with_the_last() {
        let mut process_tree = process_tree();
        process_tree.born(5, 9);
        process_tree.born(9, 7);
        assert!(process_tree.meet(7, 1) && !process_tree.meet(7, 2) && process_tree.unattributed.is_empty());
        for (t, pid) in [(10, 7), (20, 9), (30, 9)] {
            process_tree.call(pid, t, 1000, 1);
        }
        assert_eq!((calls(&process_tree), process_tree.meters.len()), (3, 3));
        process_tree.leave(9, 40);
        process_tree.leave(5, 41);
        process_tree.call(9, 42, 1000, 1);
        assert_eq!((calls(&process_tree), process_tree.meters.len()), (3, 2), "who has left counts no more");
        assert!(process_tree.meters[0].ended && !process_tree.meters[0].over, "a child is left");
        process_tree.leave(7, 50);
        assert_eq!((calls(&process_tree), process_tree.meters.len(), process_tree.of(5).len()), (3, 1, 0));
        assert!(process_tree.meters[0].over);
    }

    #[test]
    fn one_of_whose_fork_nothing_was_seen_is_asked_for() {
        let mut process_tree = process_tree();
        assert!(process_tree.meet(8, 10));
        process_tree.call(8, 20, 1000, 1);
        process_tree.leave(8, 30);
        assert_eq!((process_tree.unattributed.as_slice(), calls(&process_tree)), (&[8][..], 0));
        process_tree.own(8, 5);
        assert_eq!((calls(&process_tree), process_tree.meters.len(), process_tree.run_of(8)), (1, 1, None));
        assert!(!process_tree.meet(8, 29), "it arrives late");
        assert!(process_tree.meet(8, 31), "another one");
        process_tree.adopt(8, 5);
        assert_eq!(process_tree.of(5), [5, 8]);
        // A child that runs its own engine starts its own run.
        process_tree.call(8, 40, 1000, 1);
        process_tree.begin(8);
        process_tree.call(8, 50, 1000, 1);
        assert_eq!((calls(&process_tree), Meter::of_run(&process_tree.meters, 8).calls), (2, 1));
        // A process that outlives the first process of its run.
        process_tree.adopt(30, 3);
        assert!(process_tree.meters.iter().any(|m| m.pid == 3 && m.ended && !m.over));
        process_tree.leave(30, 60);
        assert!(process_tree.meters.iter().any(|m| m.pid == 3 && m.over));
    }

    #[test]
    fn tokens_of_a_process_whose_fork_was_not_seen_are_its_runs() {
        let mut tree = process_tree();
        let batch = |tree: &mut ProcessTree, n: u64| {
            let (start, end) = (n as i64 * 10, n as i64 * 10 + 9);
            let call = Call { id: n, pid: 8, context: 1, width: 1, start, end, seen: true, encodes: false };
            tree.batch(&call, &[Chunk { seq: 0, pos: n as i64, tokens: 1, outputs: 1 }]);
        };
        tree.meet(8, 10);
        (1..4).for_each(|n| batch(&mut tree, n));
        assert_eq!(tree.requests.take(), None);
        tree.adopt(8, 5);
        let mut seen = 0;
        let mut add = |tree: &mut ProcessTree| {
            while let Some((run, tally)) = tree.requests.take() {
                assert_eq!(run, 5);
                seen += tally.tokens;
            }
        };
        add(&mut tree);
        (4..6).for_each(|n| batch(&mut tree, n));
        tree.leave(8, 100);
        add(&mut tree);
        assert_eq!(seen, 5);
        // It may be told only when it has ended.
        tree.meet(8, 200);
        (20..24).for_each(|n| batch(&mut tree, n));
        tree.leave(8, 300);
        assert_eq!(tree.requests.take(), None);
        tree.own(8, 5);
        assert_eq!(tree.requests.take().map(|(run, tally)| (run, tally.tokens)), Some((5, 4)));
    }

    #[test]
    fn beyond_the_most_meters_calls_count_all_the_same() {
        let mut process_tree = process_tree();
        for pid in 10..10 + 2 * MOST as u32 {
            process_tree.born(5, pid);
            process_tree.call(pid, 1, 1000, 1);
        }
        assert_eq!(
            (calls(&process_tree), process_tree.meters.len(), process_tree.crowded),
            (2 * MOST as u64, MOST, true)
        );
        for pid in process_tree.of(5) {
            process_tree.leave(pid, 2);
        }
        assert_eq!((calls(&process_tree), process_tree.meters.len()), (2 * MOST as u64, 1));
    }
}
