//! Limits on the cost of searching a target for an engine: bytes, files, names and time.
//!
//! The owner of a file decides how long its tables are and how many files there are. Each step is charged here
//! before it is done. Once a limit is reached, nothing more is read, so that all loops end, and the first limit and
//! its file are reported.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The limits for one target.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes read. Symbols and strings of the largest GPU libraries are a few hundred MB.
    pub bytes: u64,
    /// Files examined; a desktop program has a few hundred.
    pub files: u64,
    /// Names looked up: directory entries, and possible locations of a library.
    pub names: u64,
    /// Files with a part of an engine; the largest package has sixteen.
    pub modules: u64,
    /// Time until its engines are found; normally below a second.
    pub time: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        let time = Duration::from_secs(30);
        Limits { bytes: 16 << 30, files: 4096, names: 1 << 17, modules: 256, time }
    }
}

/// A limit that was reached.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "gave up searching for an engine at {file}: this target takes more than {limit}, and no engine needs \
     that much; try again if the machine was busy, otherwise give the engine's own program or library"
)]
pub struct Spent {
    /// The file at which it was reached.
    pub file: String,
    pub limit: Limit,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    Bytes(u64),
    Files(u64),
    Names(u64),
    Modules(u64),
    Time(Duration),
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Limit::Bytes(n) => write!(f, "{} GiB of tables to read", n >> 30),
            Limit::Files(n) => write!(f, "{n} files to examine"),
            Limit::Names(n) => write!(f, "{n} names to look up in directories"),
            Limit::Modules(n) => write!(f, "{n} files with parts of an engine"),
            Limit::Time(t) => write!(f, "{} s", t.as_secs()),
        }
    }
}

/// The costs of one target so far.
#[derive(Debug)]
pub struct Budget {
    limits: Limits,
    end: Instant,
    /// The time limit applies.
    timed: AtomicBool,
    bytes: AtomicU64,
    files: AtomicU64,
    names: AtomicU64,
    modules: AtomicU64,
    spent: Mutex<Option<Spent>>,
}

impl Budget {
    /// For one target, starting now.
    pub fn new(limits: Limits) -> Budget {
        let zero = || AtomicU64::new(0);
        Budget {
            limits,
            end: Instant::now() + limits.time,
            timed: AtomicBool::new(true),
            bytes: zero(),
            files: zero(),
            names: zero(),
            modules: zero(),
            spent: Mutex::new(None),
        }
    }

    /// For a single file, without a time limit.
    pub fn untimed() -> Budget {
        let budget = Budget::default();
        budget.found();
        budget
    }

    /// The search is over: further reads of the files found have no time limit, and bytes are counted from zero again.
    pub fn found(&self) {
        self.timed.store(false, Ordering::Relaxed);
        self.bytes.store(0, Ordering::Relaxed);
    }

    /// The limit that was reached, if any.
    pub fn spent(&self) -> Option<Spent> {
        self.spent.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether this many bytes of this file may be read.
    pub fn bytes(&self, n: u64, file: &str) -> bool {
        self.charge(&self.bytes, n, self.limits.bytes, Limit::Bytes, file)
    }

    /// Whether one more file may be examined.
    pub fn file(&self, file: &str) -> bool {
        self.charge(&self.files, 1, self.limits.files, Limit::Files, file)
    }

    /// Whether one more name may be looked up.
    pub fn name(&self, file: &str) -> bool {
        self.charge(&self.names, 1, self.limits.names, Limit::Names, file)
    }

    /// Whether one more file with a part of an engine may be kept.
    pub fn module(&self, file: &str) -> bool {
        self.charge(&self.modules, 1, self.limits.modules, Limit::Modules, file)
    }

    fn charge(&self, account: &AtomicU64, n: u64, most: u64, limit: fn(u64) -> Limit, file: &str) -> bool {
        let so_far = account.fetch_add(n, Ordering::Relaxed).saturating_add(n);
        let reached = match so_far > most {
            true => limit(most),
            false if self.timed.load(Ordering::Relaxed) && Instant::now() >= self.end => {
                Limit::Time(self.limits.time)
            }
            false => return true,
        };
        // The first limit is reported.
        let mut spent = self.spent.lock().unwrap_or_else(PoisonError::into_inner);
        spent.get_or_insert_with(|| Spent { file: file.to_owned(), limit: reached });
        false
    }
}

impl Default for Budget {
    fn default() -> Budget {
        Budget::new(Limits::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_limit_is_told_with_its_file() {
        let limits = Limits { bytes: 10 << 30, files: 2, ..Limits::default() };
        let budget = Budget::new(limits);
        assert!(budget.bytes(limits.bytes, "/a") && budget.file("/a") && budget.file("/b"));
        assert!(budget.spent().is_none());
        assert!(!budget.bytes(1, "/b") && !budget.file("/c"));
        let said = budget.spent().expect("reached").to_string();
        assert!(said.contains("at /b") && said.contains("10 GiB") && said.contains("try again"), "{said}");
    }

    #[test]
    fn time_counts_until_the_engine_is_found() {
        let limits = Limits { time: Duration::ZERO, ..Limits::default() };
        let budget = Budget::new(limits);
        assert!(!budget.name("/a"));
        assert_eq!(budget.spent().expect("reached").limit, Limit::Time(Duration::ZERO));
        let found = Budget::new(limits);
        found.found();
        assert!(found.bytes(1, "/a") && found.spent().is_none());
    }
}
