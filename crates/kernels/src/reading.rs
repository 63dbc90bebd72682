//! How a product of one token, which uses each weight once, reads its weights from memory.
//!
//! Results do not depend on it; how fast it is depends on the machine. A recipe names the ways that it knows, its
//! default first, and whoever runs a model may measure them ([`crate::Matrix::set_reading`]).

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Serialize;

/// A way to read weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Reading {
    /// Places read at the same time, at equal distances.
    pub streams: usize,
    /// Prefetch distance in bytes; 0: left to the hardware.
    pub distance: usize,
    /// Where prefetched lines go.
    pub into: Cache,
}

/// Where a prefetched cache line goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Cache {
    /// All levels.
    L1,
    /// All levels but the first.
    L2,
    /// The first level, as data that is used once: on many machines past the others.
    Once,
}

impl Reading {
    /// One stream, without prefetching by instructions.
    pub const PLAIN: Self = Self { streams: 1, distance: 0, into: Cache::L1 };
}

impl fmt::Display for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let many = if self.streams == 1 { "" } else { "s" };
        write!(f, "{} stream{many}, ", self.streams)?;
        match (self.distance, self.into) {
            (0, _) => f.write_str("no prefetch"),
            (bytes, Cache::L1) => write!(f, "prefetch {bytes} bytes ahead"),
            (bytes, Cache::L2) => write!(f, "prefetch {bytes} bytes ahead into L2"),
            (bytes, Cache::Once) => write!(f, "prefetch {bytes} bytes ahead for one use"),
        }
    }
}

/// An index of a recipe's readings that may change while threads read it.
#[derive(Debug, Default)]
pub(crate) struct Chosen(AtomicUsize);

impl Chosen {
    /// The chosen one of these.
    pub(crate) fn of(&self, readings: &[Reading]) -> Reading {
        // Any value is a valid choice, and nothing else is published by it.
        readings.get(self.0.load(Ordering::Relaxed)).copied().unwrap_or(Reading::PLAIN)
    }

    /// Chooses it if it is one of these.
    pub(crate) fn set(&self, readings: &[Reading], reading: Reading) {
        if let Some(index) = readings.iter().position(|r| *r == reading) {
            self.0.store(index, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_recipe_knows_is_chosen() {
        let known = [Reading { streams: 2, distance: 64, into: Cache::L2 }, Reading::PLAIN];
        let chosen = Chosen::default();
        assert_eq!(chosen.of(&known), known[0]);
        chosen.set(&known, Reading::PLAIN);
        assert_eq!(chosen.of(&known), Reading::PLAIN);
        chosen.set(&known, Reading { streams: 9, ..known[0] });
        assert_eq!(chosen.of(&known), Reading::PLAIN);
        assert_eq!(chosen.of(&[]), Reading::PLAIN);
    }

    #[test]
    fn they_have_names() {
        let said = |streams, distance, into| Reading { streams, distance, into }.to_string();
        assert_eq!(said(1, 0, Cache::L1), "1 stream, no prefetch");
        assert_eq!(said(2, 4096, Cache::L1), "2 streams, prefetch 4096 bytes ahead");
        assert_eq!(said(1, 8192, Cache::L2), "1 stream, prefetch 8192 bytes ahead into L2");
    }
}
