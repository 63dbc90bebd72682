//! All engines that run now: one scan of all processes, for a program that does not wait for more.

use std::io;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::{Finder, FoundProcess};
use machine::ready;

/// What one scan has found.
#[derive(Debug, Default)]
pub struct RunningEngines {
    /// Ordered by pid; a process with several engines is there once.
    pub found: Vec<FoundProcess>,
    /// Why there may be more, a sentence each without a full stop.
    pub missing: Vec<String>,
}

impl Finder {
    /// Examines all processes once, at most for `most`.
    ///
    /// # Errors
    /// No descriptors left.
    pub fn once(most: Duration) -> io::Result<RunningEngines> {
        let mut finder = Finder::by_asking("one scan is asked for")?;
        let begin = Instant::now();
        let mut found = Vec::new();
        let mut missing = Vec::new();
        loop {
            found.extend(finder.poll());
            if finder.has_scanned_since(begin) {
                break;
            }
            let left = most.saturating_sub(begin.elapsed());
            if left.is_zero() {
                missing.push(format!("not all processes were examined within {} s", most.as_secs()));
                break;
            }
            let fds = finder.fds();
            let mut fds: Vec<_> = fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
            ready::wait(&mut fds, left);
        }
        missing.extend(finder.lacks.strip_prefix("; ").map(str::to_owned));
        missing.extend(finder.not_opened());
        common::order::by_key(&mut found, |f| (f.pid.into(), 0));
        found.dedup_by_key(|f| f.pid);
        Ok(RunningEngines { found, missing })
    }

    /// Whether a scan of all processes has ended since then, and all that it found is examined.
    fn has_scanned_since(&self, begin: Instant) -> bool {
        // The time of the next scan is set when one ends.
        self.sweep.is_none() && self.due > begin && !self.waiting.any() && self.lookers.rest()
    }
}
