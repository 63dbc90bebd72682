//! New or changed processes, where the kernel does not report mappings: the sizes of all processes are polled.

use std::collections::BTreeMap;

use machine::proc::{self, ProcStat};

/// Maximum rounds between examinations of a process that keeps changing: 2 to this power.
const SELDOM: u32 = 4;

/// A process as last seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PolledProcess {
    start: u64,
    size: u64,
    stack: u64,
    /// Number of examinations, and the round before which there is no other.
    looks: u32,
    due: u64,
    /// The last round in which it existed.
    round: u64,
}

/// All processes of the machine, polled one by one in each round.
#[derive(Default)]
pub struct Polled {
    seen: BTreeMap<u32, PolledProcess>,
    round: u64,
}

impl Polled {
    /// Begins another round.
    pub fn begin(&mut self) {
        self.round += 1;
    }

    /// Whether a process must be examined: it is new, or has mapped or unmapped something since. One that always
    /// does is examined less and less often, down to every sixteenth round.
    pub fn changed(&mut self, pid: u32) -> bool {
        proc::stat(pid).is_some_and(|stat| self.compare(pid, &stat))
    }

    fn compare(&mut self, pid: u32, stat: &ProcStat) -> bool {
        let &ProcStat { start, size, stack, .. } = stat;
        // Its count continues while it runs the same program.
        let old = self.seen.get_mut(&pid).filter(|o| (o.start, o.stack) == (start, stack));
        let looks = match old {
            Some(old) if old.size == size || old.due > self.round => {
                old.round = self.round;
                return false;
            }
            old => old.map_or(0, |o| o.looks),
        };
        let due = self.round + (1 << (looks / 4).min(SELDOM));
        self.seen.insert(pid, PolledProcess { start, size, stack, looks: looks + 1, due, round: self.round });
        // Kernel threads have no memory.
        size > 0
    }

    /// The round is over: processes not polled in it are gone.
    pub fn end(&mut self) {
        self.seen.retain(|_, s| s.round == self.round);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(start: u64, size: u64) -> ProcStat {
        ProcStat { parent: 1, start, size, stack: 1 }
    }

    /// One round; returns the processes to examine.
    fn round(all: &mut Polled, now: &[(u32, ProcStat)]) -> Vec<u32> {
        all.begin();
        let changed = now.iter().filter(|(pid, stat)| all.compare(*pid, stat)).map(|(pid, _)| *pid).collect();
        all.end();
        changed
    }

    #[test]
    fn what_is_new_or_changed_is_looked_at() {
        let mut all = Polled::default();
        let two = [(2, process(0, 0)), (5, process(10, 100))];
        assert_eq!(round(&mut all, &two), [5]);
        assert!(round(&mut all, &two).is_empty());
        assert_eq!(round(&mut all, &[(5, process(10, 101))]), [5]);
        // Another process with the same pid, and another program in the same process.
        assert_eq!(round(&mut all, &[(5, process(11, 101))]), [5]);
        assert_eq!(round(&mut all, &[(5, ProcStat { stack: 2, ..process(11, 101) })]), [5]);
        round(&mut all, &[]);
        assert!(all.seen.is_empty());
        all.begin();
        assert!(all.changed(std::process::id()) && !all.changed(u32::MAX));
    }

    #[test]
    fn one_that_changes_always_is_looked_at_seldom() {
        let mut all = Polled::default();
        let looks = |all: &mut Polled, n: u64| {
            (0..n).filter(|_| !round(all, &[(5, process(10, all.round + 1))]).is_empty()).count()
        };
        assert_eq!(looks(&mut all, 5), 5);
        looks(&mut all, 200);
        assert_eq!(looks(&mut all, 160), 10);
        // The last change is seen eventually.
        let last = all.round;
        let seen = (0..17).any(|_| !round(&mut all, &[(5, process(10, last))]).is_empty());
        assert!(seen || all.seen[&5].size == last);
    }
}
