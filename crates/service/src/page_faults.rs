//! Page faults of the recorded processes since each was first looked at. The kernel counts them anyway.

use machine::proc::StatFields;
use std::fs;

/// Maximum processes looked at.
const MOST: usize = 1024;

/// Page faults, of all recorded processes so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PageFaults {
    /// That had to wait for a disk.
    pub major: u64,
    pub minor: u64,
}

/// A process, and its faults when it was last looked at.
struct Looked {
    pid: u32,
    start: u64,
    faults: PageFaults,
}

/// Sums up faults.
#[derive(Default)]
pub struct FaultCounts {
    known: Vec<Looked>,
    all: Option<PageFaults>,
}

impl FaultCounts {
    /// Looks at the processes recorded now. What one had before it was first looked at does not count, nor does what it
    /// had after it was last looked at.
    pub fn look(&mut self, pids: impl Iterator<Item = u32>) {
        self.look_with(pids, &|pid| parse(&fs::read(format!("/proc/{pid}/stat")).ok()?));
    }

    fn look_with(
        &mut self,
        pids: impl Iterator<Item = u32>,
        read: &dyn Fn(u32) -> Option<(u64, PageFaults)>,
    ) {
        let mut now: Vec<Looked> = Vec::with_capacity(self.known.len());
        for pid in pids.take(MOST) {
            let Some((start, faults)) = read(pid).filter(|_| now.iter().all(|p| p.pid != pid)) else {
                continue;
            };
            let before =
                self.known.iter().find(|p| (p.pid, p.start) == (pid, start)).map_or(faults, |p| p.faults);
            let all = self.all.get_or_insert_default();
            all.major += faults.major.saturating_sub(before.major);
            all.minor += faults.minor.saturating_sub(before.minor);
            now.push(Looked { pid, start, faults });
        }
        self.known = now;
    }

    /// None: no process was looked at yet.
    pub fn all(&self) -> Option<PageFaults> {
        self.all
    }
}

/// Start and faults of a process.
fn parse(stat: &[u8]) -> Option<(u64, PageFaults)> {
    let fields = StatFields::parse(stat)?;
    Some((fields.number(22)?, PageFaults { major: fields.number(12)?, minor: fields.number(10)? }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_growth_counts() {
        let mut counts = FaultCounts::default();
        let look = |counts: &mut FaultCounts, all: &[(u32, u64, u64)]| {
            let of = |pid| {
                all.iter().find(|p| p.0 == pid).map(|p| (p.1, PageFaults { major: p.2, minor: 10 * p.2 }))
            };
            // A process may be in two runs for a moment.
            counts.look_with(all.iter().chain(all).map(|p| p.0), &of);
            counts.all().map(|f| (f.major, f.minor))
        };
        assert_eq!(look(&mut counts, &[]), None);
        assert_eq!(look(&mut counts, &[(7, 1, 100)]), Some((0, 0)));
        assert_eq!(look(&mut counts, &[(7, 1, 103), (8, 1, 50)]), Some((3, 30)));
        // The same pid, another process.
        assert_eq!(look(&mut counts, &[(7, 2, 5), (8, 1, 52)]), Some((5, 50)));
        assert_eq!(look(&mut counts, &[]), Some((5, 50)));
        assert_eq!(look(&mut counts, &[(8, 1, 60)]), Some((5, 50)));
    }

    #[test]
    fn fields_of_a_process() {
        let line =
            b"4711 (a (b) c) S 1 4711 4711 0 -1 4194560 1234 0 56 0 10 2 0 0 20 0 7 0 98765 1048576 300 0\n";
        assert_eq!(parse(line), Some((98765, PageFaults { major: 56, minor: 1234 })));
        assert_eq!(parse(b"1 (a) S 1"), None);
        // The kernel's own line; QEMU emulates it for its guests with zeros.
        assert!(parse(&fs::read("/proc/self/stat").expect("here")).is_some());
    }
}
