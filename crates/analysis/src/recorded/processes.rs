//! The processes of a recording, and lookup of a requested one.

use crate::recorded::load::Loaded;
use common::order;

/// The recording has no such process.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("process {pid} was not recorded; recorded processes: {there}")]
pub struct NoProcess {
    pub pid: u32,
    /// The processes it has, for a message.
    pub there: String,
}

/// Maximum processes named in a message: a recording of a complete machine may have many.
const NAMED: usize = 16;

/// The processes of one recording.
#[derive(Debug, Clone, Default)]
pub struct Processes {
    /// Processes with calls or graphs, ascending; if there are none, all described processes.
    pub active: Vec<u32>,
    /// Described processes, with their programs.
    told: Vec<(u32, String)>,
}

impl Processes {
    pub fn of(loaded: &Loaded<'_>) -> Processes {
        let told: Vec<(u32, String)> = loaded.processes.iter().map(|p| (p.pid, p.exe.to_string())).collect();
        let calls = loaded.tokens.iter().map(|r| r.pid).chain(loaded.graphs.iter().map(|r| r.pid));
        let mut active: Vec<u32> = calls.chain(loaded.cpu_graphs.iter().map(|r| r.pid)).collect();
        if active.is_empty() {
            active.extend(told.iter().map(|(pid, _)| *pid));
        }
        order::by_key(&mut active, |pid| ((*pid).into(), 0));
        active.dedup();
        Processes { active, told }
    }

    /// Whether the recording has a process.
    pub fn has(&self, pid: u32) -> bool {
        self.active.binary_search(&pid).is_ok() || self.told.iter().any(|(told, _)| *told == pid)
    }

    /// Looks up a requested process.
    ///
    /// # Errors
    /// The recording does not have it.
    pub fn wanted(&self, pid: u32) -> Result<u32, NoProcess> {
        if self.has(pid) { Ok(pid) } else { Err(NoProcess { pid, there: self.list() }) }
    }

    /// The first processes with their programs, for a message.
    pub fn list(&self) -> String {
        let exe = |pid: u32| self.told.iter().find(|(told, _)| *told == pid).map_or("", |(_, exe)| exe);
        let one = |pid: &u32| match exe(*pid) {
            "" => pid.to_string(),
            exe => format!("{pid} ({exe})"),
        };
        let named: Vec<String> = self.active.iter().take(NAMED).map(one).collect();
        match self.active.len().saturating_sub(NAMED) {
            _ if named.is_empty() => "none".into(),
            0 => named.join(", "),
            more => format!("{} and {more} more", named.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pfi::record::{Entry, Process, Token};

    #[test]
    fn processes_with_calls_are_named_and_others_known() {
        let token = |pid| Token {
            seq: 0,
            pid,
            tid: pid,
            entry: Entry::Decode,
            n_tokens: None,
            t: 0,
            dur: 1,
            cut: false,
            device: Default::default(),
        };
        let process = |pid, exe| Process { pid, engine: 0, exe, cmdline: "" };
        let mut loaded =
            Loaded { processes: vec![process(9, "/bin/idle"), process(7, "/bin/x")], ..Loaded::default() };
        assert_eq!(Processes::of(&loaded).list(), "7 (/bin/x), 9 (/bin/idle)");
        loaded.tokens = vec![token(7), token(3), token(7)];
        let all = Processes::of(&loaded);
        assert_eq!((all.active.as_slice(), all.list().as_str()), (&[3, 7][..], "3, 7 (/bin/x)"));
        assert_eq!([3, 7, 9, 8].map(|pid| all.has(pid)), [true, true, true, false]);
        let refused = all.wanted(8).unwrap_err().to_string();
        assert_eq!(refused, "process 8 was not recorded; recorded processes: 3, 7 (/bin/x)");
        loaded.tokens = (0..20).map(token).collect();
        assert!(Processes::of(&loaded).list().ends_with(", 15 and 4 more"));
        assert_eq!(Processes::default().list(), "none");
    }
}
