//! Processes that are new or have changed, where the kernel does not tell: all of them are asked for their size now and then.
//! Uses `facts`.

use super::facts;

/// Rounds between two looks at a process that goes on changing, at most: 2 to this power.
const SELDOM: u32 = 4;

/// A process as it was last looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    pid: u32,
    start: u64,
    size: u64,
    stack: u64,
    /// How often, and not again before which round.
    looks: u32,
    due: u64,
}

/// All processes of the machine.
#[derive(Default)]
pub struct Polled {
    /// Ascending by pid.
    seen: Vec<Seen>,
    round: u64,
}

impl Polled {
    /// Processes to look at: new ones, and those that have mapped or unmapped something since. A process that always does is
    /// looked at less and less often, down to every sixteenth round.
    pub fn changed(&mut self) -> Vec<u32> {
        let stats = facts::processes().into_iter().filter_map(|pid| {
            facts::stat(pid).map(|s| Seen {
                pid,
                start: s.start,
                size: s.size,
                stack: s.stack,
                looks: 0,
                due: 0,
            })
        });
        self.compare(stats.collect())
    }

    fn compare(&mut self, mut now: Vec<Seen>) -> Vec<u32> {
        self.round += 1;
        let mut changed = Vec::new();
        for process in &mut now {
            let old = self.seen.binary_search_by(|s| s.pid.cmp(&process.pid)).ok().map(|at| self.seen[at]);
            // Its looks count on as long as it runs the same program.
            let old = old.filter(|o| (o.start, o.stack) == (process.start, process.stack));
            match old {
                Some(old) if old.size == process.size || old.due > self.round => *process = old,
                old => {
                    let looks = old.map_or(0, |o| o.looks);
                    (process.looks, process.due) = (looks + 1, self.round + (1 << (looks / 4).min(SELDOM)));
                    // Kernel threads have no memory.
                    if process.size > 0 {
                        changed.push(process.pid);
                    }
                }
            }
        }
        self.seen = now;
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, start: u64, size: u64) -> Seen {
        Seen { pid, start, size, stack: 1, looks: 0, due: 0 }
    }

    #[test]
    fn what_is_new_or_changed_is_looked_at() {
        let mut all = Polled::default();
        let two = || vec![process(2, 0, 0), process(5, 10, 100)];
        assert_eq!(all.compare(two()), [5]);
        assert!(all.compare(two()).is_empty());
        assert_eq!(all.compare(vec![process(5, 10, 101)]), [5]);
        // Another process of the same number, and another program in the same process.
        assert_eq!(all.compare(vec![process(5, 11, 101)]), [5]);
        assert_eq!(all.compare(vec![Seen { stack: 2, ..process(5, 11, 101) }]), [5]);
        all.compare(Vec::new());
        assert!(all.seen.is_empty());
    }

    #[test]
    fn one_that_changes_always_is_looked_at_seldom() {
        let mut all = Polled::default();
        let looks = |all: &mut Polled, n: u64| {
            (0..n).filter(|_| !all.compare(vec![process(5, 10, all.round + 1)]).is_empty()).count()
        };
        assert_eq!(looks(&mut all, 5), 5);
        looks(&mut all, 200);
        assert_eq!(looks(&mut all, 160), 10);
        // What changed last is seen in the end.
        let last = all.round;
        assert!(
            (0..17).any(|_| !all.compare(vec![process(5, 10, last)]).is_empty()) || all.seen[0].size == last
        );
    }
}
