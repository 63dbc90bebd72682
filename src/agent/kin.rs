//! Whose the recorded processes are, and how fast each is: a run is a process and all that came from it by fork. Uses `meter`.

use super::meter::Meter;

/// Most processes that have a meter of their own, of some 6 kB.
pub const MOST: usize = 256;

struct One {
    pid: u32,
    /// The first process of its run; 0: not known.
    run: u32,
    /// An event of it has come.
    met: bool,
}

/// The recorded processes.
#[derive(Default)]
pub struct Kin {
    /// Ascending by pid.
    all: Vec<One>,
    /// Of each run's first process, and of those that have made a call. One that ends leaves what it counted to its run.
    pub meters: Vec<Meter>,
    /// Somebody asks for meters.
    pub metering: bool,
    /// Calls were made by more processes than have meters.
    pub crowded: bool,
    /// Processes of which an event has come, so far.
    pub came: u64,
    /// Processes of whose fork nothing was seen.
    pub strays: Vec<u32>,
    /// When a process was last left, CLOCK_MONOTONIC ns: what it did before that may arrive later.
    left: u64,
}

impl Kin {
    fn at(&self, pid: u32) -> Result<usize, usize> {
        self.all.binary_search_by(|one| one.pid.cmp(&pid))
    }

    /// The first process of its run, 0 where that is not known; None: it is not recorded.
    pub fn run_of(&self, pid: u32) -> Option<u32> {
        self.at(pid).ok().map(|i| self.all[i].run)
    }

    /// The processes of a run.
    pub fn of(&self, run: u32) -> Vec<u32> {
        self.all.iter().filter(|one| one.run == run).map(|one| one.pid).collect()
    }

    /// Those of them of which an event has come, at most [`MOST`].
    pub fn met_of(&self, run: u32) -> Vec<u32> {
        let met = self.all.iter().filter(|one| one.run == run && one.met);
        met.take(MOST).map(|one| one.pid).collect()
    }

    /// Whether an event of it has come.
    pub fn is_met(&self, pid: u32) -> bool {
        self.at(pid).is_ok_and(|i| self.all[i].met)
    }

    /// An event of a process came, at `t`; true: the first one.
    pub fn meet(&mut self, pid: u32, t: u64) -> bool {
        let i = match self.at(pid) {
            Ok(i) => i,
            // The last of one that was let go.
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
        self.all.insert(i, One { pid, run: 0, met: false });
        if self.metering {
            self.strays.push(pid);
        }
    }

    /// A process has a child.
    pub fn born(&mut self, parent: u32, pid: u32) {
        match (self.at(pid), self.run_of(parent)) {
            (Ok(_), _) => {}
            (Err(i), None | Some(0)) => self.stray(i, pid),
            (Err(i), Some(run)) => self.all.insert(i, One { pid, run, met: false }),
        }
    }

    /// A process is recorded, and is the first of its run.
    pub fn begin(&mut self, pid: u32) {
        self.leave(pid, 0);
        self.meters.retain(|m| m.pid != pid);
        self.meters.push(Meter::new(pid, pid));
        self.adopt(pid, pid);
    }

    /// A process is of this run, whatever was known of it, and what it counted is the run's; its first process may have
    /// ended before anybody knew.
    pub fn adopt(&mut self, pid: u32, run: u32) {
        if !self.meters.iter().any(|m| m.pid == run) {
            let mut first = Meter::new(run, run);
            first.ended = true;
            self.meters.push(first);
        }
        match self.at(pid) {
            Ok(i) => self.all[i].run = run,
            Err(i) => self.all.insert(i, One { pid, run, met: false }),
        }
        self.own(pid, run);
    }

    /// What a process counted, which may have ended, is this run's.
    pub fn own(&mut self, pid: u32, run: u32) {
        if let Some(i) = self.meters.iter().position(|m| m.pid == pid) {
            self.meters[i].run = run;
            self.gather(i);
        }
    }

    /// A process is recorded no more from `t` on.
    pub fn leave(&mut self, pid: u32, t: u64) {
        self.left = self.left.max(t);
        let Ok(i) = self.at(pid) else { return };
        let run = self.all.remove(i).run;
        if let Some(i) = self.meters.iter().position(|m| m.pid == pid) {
            self.meters[i].ended = true;
            self.gather(i);
        }
        if self.all.iter().all(|one| one.run != run) {
            self.meters.iter_mut().filter(|m| m.pid == run).for_each(|m| m.over = true);
        }
    }

    /// The meter of a child that has ended goes, and what it counted to the run's first.
    fn gather(&mut self, i: usize) {
        let m = &self.meters[i];
        if !m.ended || m.run == 0 || m.run == m.pid {
            return;
        }
        let child = self.meters.swap_remove(i);
        if let Some(first) = self.meters.iter_mut().find(|m| m.pid == child.run) {
            first.absorb(&child);
        }
    }

    /// A call of a process has returned; as [`Meter::call`].
    pub fn call(&mut self, pid: u32, t: u64, dur: u64, decode: bool) {
        self.over(pid, t, Some(dur), decode);
    }

    /// The same, of a call of which it was not seen when a device had done its work.
    pub fn unseen(&mut self, pid: u32, t: u64, decode: bool) {
        self.over(pid, t, None, decode);
    }

    fn over(&mut self, pid: u32, t: u64, dur: Option<u64>, decode: bool) {
        let Some(run) = self.run_of(pid).filter(|_| self.metering) else { return };
        let of = |meters: &[Meter], pid| meters.iter().position(|m| m.pid == pid);
        let mut i = of(&self.meters, pid);
        if i.is_none() && self.meters.len() < MOST {
            i = Some(self.meters.len());
            self.meters.push(Meter::new(pid, run));
        }
        if let Some(i) = i {
            return match dur {
                Some(dur) => self.meters[i].call(t, dur, decode),
                None => self.meters[i].unseen(t, decode),
            };
        }
        self.crowded = true;
        if let Some(i) = of(&self.meters, run) {
            match dur {
                Some(dur) => self.meters[i].count(t, dur, decode),
                None => self.meters[i].unseen(t, decode),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kin() -> Kin {
        let mut kin = Kin { metering: true, ..Kin::default() };
        kin.begin(5);
        kin
    }

    fn tokens(kin: &Kin) -> u64 {
        Meter::of_run(&kin.meters, 5).tokens
    }

    #[test]
    fn children_count_for_their_run_and_it_ends_with_the_last() {
        let mut kin = kin();
        kin.born(5, 9);
        kin.born(9, 7);
        assert!(kin.meet(7, 1) && !kin.meet(7, 2) && kin.strays.is_empty());
        for (t, pid) in [(10, 7), (20, 9), (30, 9)] {
            kin.call(pid, t, 1000, true);
        }
        assert_eq!((tokens(&kin), kin.meters.len()), (3, 3));
        kin.leave(9, 40);
        kin.leave(5, 41);
        kin.call(9, 42, 1000, true);
        assert_eq!((tokens(&kin), kin.meters.len()), (3, 2), "who has left counts no more");
        assert!(kin.meters[0].ended && !kin.meters[0].over, "a child is left");
        kin.leave(7, 50);
        assert_eq!((tokens(&kin), kin.meters.len(), kin.of(5).len()), (3, 1, 0));
        assert!(kin.meters[0].over);
    }

    #[test]
    fn one_of_whose_fork_nothing_was_seen_is_asked_for() {
        let mut kin = kin();
        assert!(kin.meet(8, 10));
        kin.call(8, 20, 1000, true);
        kin.leave(8, 30);
        assert_eq!((kin.strays.as_slice(), tokens(&kin)), (&[8][..], 0));
        kin.own(8, 5);
        assert_eq!((tokens(&kin), kin.meters.len(), kin.run_of(8)), (1, 1, None));
        assert!(!kin.meet(8, 29), "it arrives late");
        assert!(kin.meet(8, 31), "another one");
        kin.adopt(8, 5);
        assert_eq!(kin.of(5), [5, 8]);
        // A child that runs an engine of its own is a run of its own.
        kin.call(8, 40, 1000, true);
        kin.begin(8);
        kin.call(8, 50, 1000, true);
        assert_eq!((tokens(&kin), Meter::of_run(&kin.meters, 8).tokens), (2, 1));
        // One that goes on without its run's first.
        kin.adopt(30, 3);
        assert!(kin.meters.iter().any(|m| m.pid == 3 && m.ended && !m.over));
        kin.leave(30, 60);
        assert!(kin.meters.iter().any(|m| m.pid == 3 && m.over));
    }

    #[test]
    fn beyond_the_most_meters_tokens_count_all_the_same() {
        let mut kin = kin();
        for pid in 10..10 + 2 * MOST as u32 {
            kin.born(5, pid);
            kin.call(pid, 1, 1000, true);
        }
        assert_eq!((tokens(&kin), kin.meters.len(), kin.crowded), (2 * MOST as u64, MOST, true));
        for pid in kin.of(5) {
            kin.leave(pid, 2);
        }
        assert_eq!((tokens(&kin), kin.meters.len()), (2 * MOST as u64, 1));
    }
}
