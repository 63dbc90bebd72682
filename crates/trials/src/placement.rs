//! Where a run's threads really were: the CPUs on which the processes below a recorder were seen running.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::{Duration, Instant};

use machine::proc::StatFields;
use machine::{affinity, target};

/// Interval between two searches for processes: it reads a file of each process of the machine.
const SEARCH: Duration = Duration::from_millis(500);
/// Maximum number of processes that are looked at.
const PROCESSES: usize = 64;

/// CPUs seen so far.
#[derive(Debug, Clone, Default)]
pub struct Placement {
    pub seen: BTreeSet<u32>,
    /// The sets of CPUs to which threads were bound, if that was wanted.
    pub masks: BTreeSet<Vec<u32>>,
    with_masks: bool,
    processes: Vec<u32>,
    searched: Option<Instant>,
}

impl Placement {
    pub fn new(with_masks: bool) -> Placement {
        Placement { with_masks, ..Placement::default() }
    }

    /// Looks at the processes below this one once.
    pub fn look(&mut self, recorder: u32) {
        if self.searched.is_none_or(|at| at.elapsed() >= SEARCH) {
            self.searched = Some(Instant::now());
            self.processes = descendants(recorder);
        }
        let program = |pid: u32| fs::read_link(format!("/proc/{pid}/exe")).ok();
        let own = program(recorder);
        // What the recorder has forked runs the recorder's program, on CPUs of its own: a command before its exec, and
        // helpers, which have no program any more while they end.
        let other = |pid: u32| program(pid).is_some_and(|program| own.as_ref() != Some(&program));
        for pid in self.processes.iter().filter(|pid| other(**pid)) {
            self.seen.extend(target::running_on(*pid));
            if self.with_masks {
                let threads = affinity::threads(*pid).into_iter();
                self.masks.extend(threads.filter_map(|tid| affinity::of_thread(tid).ok()));
            }
        }
    }

    /// CPUs that were used although they were not given.
    pub fn outside(&self, given: &[u32]) -> Vec<u32> {
        self.seen.iter().copied().filter(|cpu| !given.contains(cpu)).collect()
    }
}

/// Descendants of a process, at most [`PROCESSES`].
pub fn descendants(pid: u32) -> Vec<u32> {
    below(pid, &parents())
}

/// Descendants of a process. Threads are not in the table: a recorder's own are not taken for its command's.
fn below(pid: u32, parents: &BTreeMap<u32, u32>) -> Vec<u32> {
    let is_below = |mut of: u32| {
        // A table read while processes end may have a circle.
        for _ in 0..PROCESSES {
            match parents.get(&of) {
                Some(parent) if *parent == pid => return true,
                Some(parent) => of = *parent,
                None => return false,
            }
        }
        false
    };
    parents.keys().copied().filter(|of| is_below(*of)).take(PROCESSES).collect()
}

/// The parent of each process.
fn parents() -> BTreeMap<u32, u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    let parent = |pid: u32| StatFields::of(pid)?.number(4);
    pids.filter_map(|pid| Some((pid, parent(pid)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::Signal;
    use std::os::unix::process::CommandExt;

    #[test]
    fn descendants_are_found_whatever_the_table_says() {
        let parents = BTreeMap::from([(10, 1), (11, 10), (12, 11), (20, 1), (30, 31), (31, 30)]);
        assert_eq!(below(10, &parents), [11, 12]);
        assert_eq!(below(1, &parents), [10, 11, 12, 20]);
        assert!(below(12, &parents).is_empty());
    }

    /// A process group of its own, killed at the end.
    struct Group(std::process::Child);

    impl Drop for Group {
        fn drop(&mut self) {
            let _ =
                rustix::process::kill_process_group(rustix::process::Pid::from_child(&self.0), Signal::KILL);
            let _ = self.0.wait();
        }
    }

    /// Where the child processes of a shell with this script run: at most `looks` samples, one every 10 ms.
    fn seen(script: &str, looks: u32) -> Placement {
        let mut command = std::process::Command::new("sh");
        command.args(["-c", script]).stdout(std::process::Stdio::null()).process_group(0);
        let shell = Group(command.spawn().expect("a shell"));
        let mut placement = Placement::default();
        // It may need a moment to begin, and does not run in every moment.
        for _ in 0..looks {
            placement.searched = None;
            placement.look(shell.0.id());
            if !placement.seen.is_empty() {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        placement
    }

    #[test]
    fn a_grandchild_that_computes_is_seen() {
        let placement = seen("(yes; :) & wait", 500);
        assert!(!placement.seen.is_empty());
        assert!(placement.outside(&placement.seen.iter().copied().collect::<Vec<_>>()).is_empty());
        assert_eq!(placement.outside(&[]).len(), placement.seen.len());
    }

    #[test]
    fn a_child_before_its_exec_is_not() {
        assert!(seen("(while :; do :; done) & wait", 50).seen.is_empty());
    }
}
