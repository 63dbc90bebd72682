//! The bytes of a file with a foreign owner, read in pieces.
//!
//! The file is never mapped: its owner may truncate it at any time, and this process would then be killed by a signal.
//! With reads, truncation only gives fewer bytes. A few pages stay in memory for repeated access; holes are skipped.

use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use crate::budget::Budget;
use common::files;

/// Size of a cached page, bytes.
const PAGE: usize = 16 << 10;
/// Maximum number of cached pages.
const KEPT: usize = 32;
/// Bytes per read when a table is scanned; a multiple of the size of every kind of entry.
const PIECE: usize = 192 * 1024;

enum PageSource {
    File(Arc<File>),
    Memory(Vec<u8>),
}

/// A page and its number.
type CachedPage = (u64, Vec<u8>);

/// A file's bytes.
pub struct Pages {
    source: PageSource,
    len: u64,
    /// For the budget's messages.
    path: String,
    budget: Arc<Budget>,
    /// Each page at its number modulo KEPT.
    kept: Mutex<Vec<Option<CachedPage>>>,
}

impl Pages {
    /// Bytes of an open file, which now has `len` of them.
    pub fn of_file(file: Arc<File>, len: u64, path: &str, budget: Arc<Budget>) -> Pages {
        Pages::of(PageSource::File(file), len, path, budget)
    }

    /// Bytes in memory.
    pub fn of_bytes(bytes: Vec<u8>, path: &str) -> Pages {
        let len = bytes.len() as u64;
        Pages::of(PageSource::Memory(bytes), len, path, Arc::new(Budget::untimed()))
    }

    fn of(source: PageSource, len: u64, path: &str, budget: Arc<Budget>) -> Pages {
        Pages { source, len, path: path.to_owned(), budget, kept: Mutex::new(Vec::new()) }
    }

    /// Bytes of the file when it was opened.
    pub fn size(&self) -> u64 {
        self.len
    }

    /// Reads from `at` up to the buffer's length or the file's end; nothing once the budget is spent.
    ///
    /// # Errors
    /// The file cannot be read there.
    pub fn read(&self, at: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let want = usize::try_from(self.len.saturating_sub(at)).unwrap_or(usize::MAX).min(buffer.len());
        let Some(buffer) = buffer.get_mut(..want).filter(|b| !b.is_empty()) else { return Ok(0) };
        let file = match &self.source {
            PageSource::File(file) => file,
            PageSource::Memory(bytes) => {
                let from = bytes.get(usize::try_from(at).unwrap_or(usize::MAX)..).unwrap_or_default();
                buffer.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
                return Ok(want);
            }
        };
        if !self.budget.bytes(want as u64, &self.path) {
            return Ok(0);
        }
        files::read_up_to(file, at, buffer)
    }

    /// Up to `len` bytes from `at`, through the cached pages; fewer at the file's end, none if it cannot be read.
    pub fn take(&self, at: u64, len: usize) -> Vec<u8> {
        let there = usize::try_from(self.len.saturating_sub(at)).unwrap_or(usize::MAX);
        let mut out = vec![0; len.min(there)];
        let got = self.copy(at, &mut out);
        out.truncate(got);
        out
    }

    /// The same into a buffer. Returns the number of bytes.
    pub fn copy(&self, at: u64, buffer: &mut [u8]) -> usize {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.is_empty() {
            kept.resize_with(KEPT, || None);
        }
        let mut done = 0;
        while let Some(rest) = buffer.get_mut(done..).filter(|rest| !rest.is_empty()) {
            let Some(place) = at.checked_add(done as u64) else { break };
            let (number, inside) = (place / PAGE as u64, (place % PAGE as u64) as usize);
            let Some(slot) = kept.get_mut((number % KEPT as u64) as usize) else { break };
            if slot.as_ref().is_none_or(|page| page.0 != number) {
                let mut bytes = slot.take().map_or_else(Vec::new, |page| page.1);
                bytes.resize(PAGE, 0);
                // Unreadable bytes count as absent.
                let got = self.read(number * PAGE as u64, &mut bytes).unwrap_or(0);
                bytes.truncate(got);
                *slot = Some((number, bytes));
            }
            let from = slot.as_ref().and_then(|page| page.1.get(inside..)).unwrap_or_default();
            if from.is_empty() {
                break;
            }
            let n = from.len().min(rest.len());
            rest.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
            done += n;
        }
        done
    }

    /// Reads `len` bytes from `at` in pieces that start at a multiple of `unit` bytes (at most 4096) and include
    /// `overlap` bytes of the next one, each passed on with its distance from `at`. Holes longer than a piece are
    /// skipped: they are zeros. Stops when `each` returns false.
    pub fn pieces(
        &self,
        (at, len): (u64, u64),
        unit: usize,
        overlap: usize,
        each: &mut dyn FnMut(u64, &[u8]) -> bool,
    ) {
        let unit = unit.clamp(1, 4096);
        let step = PIECE / unit * unit;
        let end = at.saturating_add(len).min(self.len);
        let mut buffer = vec![0; step + overlap];
        let mut from = at;
        while from < end {
            match self.data_from(from) {
                None => return,
                Some(data) if data > from => {
                    // Back to the start of an entry, and to anything before the data that may extend into it.
                    let skip = (data - from).saturating_sub(overlap as u64) / unit as u64 * unit as u64;
                    from = from.saturating_add(skip);
                }
                Some(_) => {}
            }
            let want = usize::try_from(end.saturating_sub(from)).unwrap_or(usize::MAX).min(buffer.len());
            let Some(room) = buffer.get_mut(..want) else { return };
            let got = self.read(from, room).unwrap_or(0);
            if got == 0 || !each(from - at, room.get(..got).unwrap_or_default()) || got < want {
                return;
            }
            from = from.saturating_add(step as u64);
        }
    }

    /// The first position from `from` on that is not in a hole. None: there is none.
    fn data_from(&self, from: u64) -> Option<u64> {
        let PageSource::File(file) = &self.source else { return Some(from) };
        i64::try_from(from).ok()?;
        // The file position, which this moves, is never used.
        match seek(file, SeekFrom::Data(from)) {
            Ok(found) => Some(found),
            Err(Errno::NXIO) => None,
            // The file system does not support this.
            Err(_) => Some(from),
        }
    }

    /// Frees the cached pages; they are read again when needed.
    pub fn release(&self) {
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = Vec::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::FileExt;

    fn file_of(bytes: &[u8]) -> (Arc<File>, u64) {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(bytes).expect("written");
        (Arc::new(file), bytes.len() as u64)
    }

    fn pages(file: &Arc<File>, len: u64) -> Pages {
        Pages::of_file(file.clone(), len, "file", Arc::new(Budget::untimed()))
    }

    #[test]
    fn pieces_share_their_ends_and_cover_all() {
        let bytes: Vec<u8> = (0..3 * PIECE + 1000).map(|i| (i % 251) as u8).collect();
        let (file, len) = file_of(&bytes);
        for pages in [pages(&file, len), Pages::of_bytes(bytes.clone(), "memory")] {
            let mut next = 0;
            pages.pieces((100, len - 100), 24, 10, &mut |at, piece| {
                assert_eq!(at, next);
                assert_eq!(piece, &bytes[100 + at as usize..][..piece.len()]);
                next += (PIECE / 24 * 24) as u64;
                true
            });
            assert!(next >= len - 100);
            assert_eq!(pages.take(len - 3, 100), &bytes[bytes.len() - 3..]);
            assert_eq!(pages.take(PAGE as u64 - 5, 10), &bytes[PAGE - 5..PAGE + 5]);
            assert!(pages.take(len, 1).is_empty() && pages.take(u64::MAX, 9).is_empty());
        }
    }

    #[test]
    fn a_file_cut_short_gives_less() {
        let (file, len) = file_of(&vec![7; 4 * PIECE]);
        let pages = pages(&file, len);
        file.set_len(PIECE as u64 + 10).expect("cut");
        assert_eq!(pages.take(PIECE as u64 + 5, 100).len(), 5);
        let mut seen = 0;
        pages.pieces((0, len), 8, 0, &mut |_, piece| {
            seen += piece.len();
            true
        });
        assert_eq!(seen, PIECE + 10);
    }

    #[test]
    fn holes_cost_nothing() {
        let (file, _) = file_of(b"begin");
        let len = 4u64 << 30;
        file.set_len(len).expect("a hole");
        file.write_all_at(b"end", len - 3).expect("written");
        let budget = Arc::new(Budget::untimed());
        let pages = Pages::of_file(file, len, "file", budget);
        let (mut pieces, mut last) = (0, Vec::new());
        pages.pieces((0, len), 8, 0, &mut |_, piece| {
            pieces += 1;
            last = piece.to_vec();
            true
        });
        // Most Linux file systems support holes; otherwise everything is read.
        assert!(pieces < 10 || pieces as u64 == len.div_ceil(PIECE as u64), "{pieces}");
        assert!(last.ends_with(b"end"));
    }
}
