//! Storage of a trace's bytes: in memory, or in a file that is read in pieces.
//!
//! A file is never mapped: anyone who can write it may truncate it while it is read, and access to the map would
//! then kill the reader.

use std::fs::File;
use std::io;

#[cfg(target_os = "linux")]
use rustix::fs::{SeekFrom, seek};
#[cfg(target_os = "linux")]
use rustix::io::Errno;

use common::files;

/// A trace's bytes.
pub enum TraceBytes {
    /// A file, and its size when it was opened.
    File(File, u64),
    Memory(Vec<u8>),
}

impl TraceBytes {
    pub fn len(&self) -> u64 {
        match self {
            TraceBytes::File(_, len) => *len,
            TraceBytes::Memory(bytes) => bytes.len() as u64,
        }
    }

    /// Reads the bytes available from `at` on, up to the buffer's length.
    pub fn read(&self, at: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let want = usize::try_from(self.len().saturating_sub(at)).unwrap_or(usize::MAX).min(buffer.len());
        let Some(buffer) = buffer.get_mut(..want) else { return Ok(0) };
        let file = match self {
            TraceBytes::File(file, _) => file,
            TraceBytes::Memory(bytes) => {
                let from = usize::try_from(at).ok().and_then(|at| bytes.get(at..)?.get(..want));
                from.into_iter().for_each(|from| buffer.copy_from_slice(from));
                return Ok(want);
            }
        };
        files::read_up_to(file, at, buffer)
    }

    /// `len` bytes starting at `at`; fewer if the file has shrunk or cannot be read. Holes are not read, so they
    /// take no memory.
    pub fn take(&self, at: u64, len: usize) -> Box<[u8]> {
        /// Bytes read at a time.
        const PIECE: usize = 1 << 20;
        let mut bytes = vec![0; len];
        let mut done = 0;
        while done < len {
            let place = at.saturating_add(done as u64);
            // A hole up to the file's end counts as present as far as the file reaches.
            let data = self.data_from(place).unwrap_or_else(|| self.now().max(place));
            let hole = usize::try_from(data - place).unwrap_or(usize::MAX).min(len - done);
            done += hole;
            let Some(room) = bytes.get_mut(done..len.min(done + PIECE)).filter(|room| !room.is_empty())
            else {
                break;
            };
            let want = room.len();
            let got = self.read(at.saturating_add(done as u64), room).unwrap_or(0);
            done += got;
            if got < want {
                break;
            }
        }
        bytes.truncate(done);
        bytes.into_boxed_slice()
    }

    /// Bytes present now.
    fn now(&self) -> u64 {
        match self {
            TraceBytes::File(file, len) => file.metadata().map_or(0, |meta| meta.len().min(*len)),
            TraceBytes::Memory(bytes) => bytes.len() as u64,
        }
    }

    /// Position of the next bytes that are not a hole, from `from` on. None if there are none.
    #[cfg(target_os = "linux")]
    pub fn data_from(&self, from: u64) -> Option<u64> {
        let TraceBytes::File(file, len) = self else { return (from < self.len()).then_some(from) };
        i64::try_from(from).ok().filter(|_| from < *len)?;
        // The file's position, which this moves, is never used.
        match seek(file, SeekFrom::Data(from)) {
            Ok(found) => Some(found).filter(|found| found < len),
            Err(Errno::NXIO) => None,
            // A file system without SEEK_DATA.
            Err(_) => Some(from),
        }
    }

    #[cfg(not(target_os = "linux"))]
    pub fn data_from(&self, from: u64) -> Option<u64> {
        (from < self.len()).then_some(from)
    }
}
