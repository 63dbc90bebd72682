//! The targets' states as last read, and when they may be read again.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use machine::target_state::{ReadState, StateReader};

/// Shortest interval between readings.
const OFTEN: Duration = Duration::from_secs(1);
/// Reading takes at most one in this many parts of the time.
const SHARE: u32 = 1000;

/// When something may be read again, given what it took.
pub fn next(took: Duration) -> Instant {
    Instant::now() + OFTEN.max(took.saturating_mul(SHARE))
}

/// A process, as last read.
pub struct WatchedState {
    pub state: ReadState,
    /// As first read.
    pub first: ReadState,
    /// When its memory in huge pages may be read again.
    pub huge_at: Instant,
}

/// The targets' states.
#[derive(Default)]
pub struct States {
    pub reader: StateReader,
    pub all: BTreeMap<u32, WatchedState>,
    pub next: Option<Instant>,
}

impl States {
    /// The processes.
    pub fn pids(&self) -> impl Iterator<Item = u32> {
        self.all.keys().copied()
    }

    pub fn read_huge(&self, pid: u32, state: &mut ReadState) -> Instant {
        let begin = Instant::now();
        self.reader.read_huge(pid, state);
        next(begin.elapsed())
    }
}
