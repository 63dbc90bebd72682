//! What the kernel tells everybody of a process of theirs: how long its threads ran and waited for a CPU in all
//! (/proc/PID/task/TID/schedstat), and its major page faults (/proc/PID/stat).

use std::collections::HashMap;
use std::fs;
use std::time::{Duration, Instant};

use crate::capture::sched;
use machine::proc::StatFields;

/// How often they are read: what a thread did after the last reading is gone with it.
const INTERVAL: Duration = Duration::from_secs(1);

/// Less than this is from before a process computed, ns.
const LEAST: u64 = 100_000_000;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Sum {
    ran: u64,
    waited: u64,
}

/// The sums of the recorded processes, since each began.
#[derive(Default)]
pub struct Sums {
    threads: HashMap<u32, Sum>,
    /// Of earlier threads with the same ids.
    past: Sum,
    faults: HashMap<u32, u64>,
    read: Option<Instant>,
}

impl Sums {
    /// Reads them again, unless they were read a moment ago.
    pub fn pass(&mut self, pids: impl Iterator<Item = u32>) {
        if self.read.is_none_or(|read| read.elapsed() >= INTERVAL) {
            self.read(pids);
        }
    }

    pub fn read(&mut self, pids: impl Iterator<Item = u32>) {
        self.read = Some(Instant::now());
        for pid in pids {
            for tid in sched::threads(pid) {
                let text =
                    fs::read_to_string(format!("/proc/{pid}/task/{tid}/schedstat")).unwrap_or_default();
                self.add(tid, &text);
            }
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            self.faults.extend(major_faults(&stat).map(|n| (pid, n)));
        }
    }

    fn add(&mut self, tid: u32, text: &str) {
        let mut words = text.split_ascii_whitespace().map_while(|word| word.parse().ok());
        let (Some(ran), Some(waited)) = (words.next(), words.next()) else { return };
        let old = self.threads.insert(tid, Sum { ran, waited }).unwrap_or_default();
        if ran < old.ran {
            self.past.ran += old.ran;
            self.past.waited += old.waited;
        }
    }

    /// As text. None: nothing is known, as on kernels without these sums, which then are zero, and of processes that ended
    /// before they could be read again.
    pub fn text(&self) -> Option<String> {
        let all = self.threads.values().fold(self.past, |all, of| Sum {
            ran: all.ran.saturating_add(of.ran),
            waited: all.waited.saturating_add(of.waited),
        });
        let seconds = |ns: u64| ns as f64 / 1e9;
        let faults: u64 = self.faults.values().fold(0, |all, n| all.saturating_add(*n));
        (all.ran > LEAST).then(|| {
            format!(
                "in all, threads ran {:.2} s, waited {:.2} s for a CPU, and had {faults} major page faults (/proc, read once \
                 a second)",
                seconds(all.ran),
                seconds(all.waited)
            )
        })
    }
}

/// Field 12 of /proc/PID/stat (proc(5)).
fn major_faults(stat: &str) -> Option<u64> {
    StatFields::parse(stat.as_bytes())?.number(12)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_add_up_also_those_that_are_gone() {
        let mut sums = Sums::default();
        assert_eq!(sums.text(), None);
        for (tid, text) in
            [(1, "1000000000 20000000 7"), (2, "500000000 0 1"), (2, "10000000 5000000 1"), (3, "x")]
        {
            sums.add(tid, text);
        }
        sums.faults.insert(1, 3);
        let text = sums.text().expect("known");
        assert!(text.contains("ran 1.51 s, waited 0.03 s") && text.contains("3 major"), "{text}");
        let mut none = Sums::default();
        none.add(1, "0 0 0");
        assert_eq!(none.text(), None, "a kernel that does not count");
    }

    #[test]
    fn this_process_has_run() {
        let mut sums = Sums::default();
        sums.read([std::process::id()].into_iter());
        assert!(sums.faults.contains_key(&std::process::id()));
        let stat = "7 (a) b) S 1 7 7 0 -1 4194304 100 0 42 0 5 6 0 0 20 0 1 0 9 0";
        assert_eq!(major_faults(stat), Some(42));
    }
}
