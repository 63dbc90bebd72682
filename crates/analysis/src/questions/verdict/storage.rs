//! What a phase read from storage: bytes of mapped files that came into the page cache.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use crate::recorded::calls::{Phase, Timeline};
use crate::recorded::load::Loaded;
use crate::sums::file_reads::in_calls;

/// Bytes of mapped files that came from storage during the calls of a phase.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StorageReads {
    /// All of them, and the mean of a call.
    pub storage_bytes: u64,
    pub bytes_a_call: f64,
    /// The part of them that had been read before: the kernel had dropped them meanwhile.
    pub again: f64,
    /// Where the read-ahead of the file that was read most is set, and the value, KiB.
    #[serde(skip)]
    pub read_ahead: Option<(String, u64)>,
}

impl StorageReads {
    /// None: nothing was read, or it was not recorded.
    pub fn of(loaded: &Loaded<'_>, line: &Timeline, phase: Phase) -> Option<StorageReads> {
        let causes = &loaded.causes;
        let calls = line.calls.iter().filter(|c| c.phase == phase).count();
        let within = in_calls(line, |of| of == phase);
        let (mut by_file, mut again, mut seen) = (BTreeMap::<u32, u64>::new(), 0u64, Pages::default());
        for r in &causes.file_reads {
            let known = if r.addr == 0 { 0 } else { seen.add(r.pid, r.addr, r.bytes) };
            if within(r) {
                let sum = by_file.entry(r.file).or_default();
                *sum = sum.saturating_add(r.bytes);
                again = again.saturating_add(known);
            }
        }
        let (most, _) = by_file.iter().max_by_key(|(_, bytes)| **bytes)?;
        let file = causes.read_files.iter().find(|f| f.id == *most);
        let all = by_file.values().fold(0u64, |sum, b| sum.saturating_add(*b));
        Some(StorageReads {
            storage_bytes: all,
            bytes_a_call: all as f64 / calls.max(1) as f64,
            again: again as f64 / all.max(1) as f64,
            read_ahead: file.and_then(|f| Some((f.setting.to_owned(), f.read_ahead_kb?))),
        })
    }
}

/// Pages of 4 KiB that were seen: 64 of them a word.
#[derive(Default)]
struct Pages(HashMap<(u32, u64), u64>);

/// log2 of the bytes of a page, and of a word's pages; most words that one read may have (64 GiB), and that are kept (1 TiB):
/// no file takes more memory.
const PAGE: u32 = 12;
const WORD: u32 = PAGE + 6;
const MOST: u64 = 1 << (36 - WORD);
const KEPT: usize = 1 << (40 - WORD);

impl Pages {
    /// Bytes of these that were seen before.
    fn add(&mut self, pid: u32, addr: u64, bytes: u64) -> u64 {
        let (first, last) = (addr >> PAGE, addr.saturating_add(bytes.max(1) - 1) >> PAGE);
        let mut known = 0;
        for word in (first >> 6..=last >> 6).take(MOST as usize) {
            if self.0.len() >= KEPT {
                break;
            }
            let from = first.max(word << 6) & 63;
            let until = last.min(word << 6 | 63) & 63;
            let mask = (u64::MAX << from) & (u64::MAX >> (63 - until));
            let seen = self.0.entry((pid, word)).or_default();
            known += u64::from((*seen & mask).count_ones());
            *seen |= mask;
        }
        known << PAGE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_again_is_counted() {
        let mut pages = Pages::default();
        assert_eq!(pages.add(1, 0x7000_0000, 1 << 20), 0);
        assert_eq!(pages.add(1, 0x7000_0000, 1 << 20), 1 << 20);
        assert_eq!(pages.add(2, 0x7000_0000, 1 << 20), 0);
        // Half of it was read before.
        assert_eq!(pages.add(1, 0x7008_0000, 1 << 20), 1 << 19);
        assert_eq!(pages.add(1, 0x7000_3000, 4096), 4096);
        assert_eq!(pages.add(1, 5 << 40, 12288), 0);
        // Damaged files end.
        pages.add(1, u64::MAX - 5, u64::MAX);
        assert_eq!(pages.add(1, 1, 0), 0);
    }
}
