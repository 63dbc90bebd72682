//! Progress of long work, on a terminal only.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use cli::progress::left;

/// Minimum time between redraws.
const EVERY: Duration = Duration::from_millis(100);

/// A line on standard error that shows how much of `total` is done; silent if that is not a terminal.
#[derive(Debug)]
pub struct ProgressLine<'a> {
    name: &'a str,
    /// Name of the unit, and items per unit.
    unit: (&'a str, u64),
    total: u64,
    done: u64,
    begun: Instant,
    /// When the line was last drawn; `None`: never draw.
    drawn: Option<Instant>,
}

impl<'a> ProgressLine<'a> {
    /// Work of `total` bytes.
    pub fn new(name: &'a str, total: u64) -> Self {
        Self::counted(name, ("MB", 1_000_000), total)
    }

    /// Progress of `total` items, shown in the unit `unit.0`, which has `unit.1` items.
    pub fn counted(name: &'a str, unit: (&'a str, u64), total: u64) -> Self {
        let drawn = io::stderr().is_terminal().then(Instant::now);
        Self { name, unit, total, done: 0, begun: Instant::now(), drawn }
    }

    /// `more` of the total are done.
    pub fn add(&mut self, more: u64) {
        self.done = self.done.saturating_add(more);
        let Some(drawn) = self.drawn.as_mut().filter(|d| d.elapsed() >= EVERY) else { return };
        *drawn = Instant::now();
        let percent = self.done.saturating_mul(100) / self.total.max(1);
        let (unit, size) = (self.unit.0, self.unit.1.max(1));
        let (name, done, total) = (self.name, self.done / size, self.total / size);
        // The line is optional; the work continues without it.
        let left = left(self.begun.elapsed(), self.done, self.total);
        let _ = write!(io::stderr(), "\r{name}: {percent} % ({done} of {total} {unit}){left}\x1b[K");
    }
}

impl Drop for ProgressLine<'_> {
    fn drop(&mut self) {
        if self.drawn.is_some() {
            // Return to the start of the line and clear it.
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}
