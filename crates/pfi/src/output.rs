//! Output of a trace: data is appended, and the last block's header is overwritten if the output supports that.

use std::fs::File;
use std::io::{self, Write};

use super::block::{BLOCK_HEADER, BlockHeader};

/// A destination for a trace.
pub trait Output: Write {
    /// True if `write_at` works: the output is a regular file or memory.
    fn seekable(&self) -> bool;

    /// Overwrites earlier bytes; `pos` counts from the first byte written. Appending continues at the end.
    fn write_at(&mut self, pos: u64, bytes: &[u8]) -> io::Result<()>;
}

impl Output for Vec<u8> {
    fn seekable(&self) -> bool {
        true
    }

    fn write_at(&mut self, pos: u64, bytes: &[u8]) -> io::Result<()> {
        let from = usize::try_from(pos).map_err(|_| io::ErrorKind::InvalidInput)?;
        let place = from.checked_add(bytes.len()).and_then(|to| self.get_mut(from..to));
        place.ok_or(io::ErrorKind::InvalidInput)?.copy_from_slice(bytes);
        Ok(())
    }
}

/// The file must be empty at first and not opened for appending, because Linux then ignores the position of a
/// write.
impl Output for File {
    fn seekable(&self) -> bool {
        self.metadata().is_ok_and(|m| m.is_file())
    }

    #[cfg(unix)]
    fn write_at(&mut self, pos: u64, bytes: &[u8]) -> io::Result<()> {
        std::os::unix::fs::FileExt::write_all_at(self, bytes, pos)
    }

    #[cfg(not(unix))]
    fn write_at(&mut self, pos: u64, bytes: &[u8]) -> io::Result<()> {
        use std::io::{Seek, SeekFrom};
        self.seek(SeekFrom::Start(pos))?;
        self.write_all(bytes)?;
        self.seek(SeekFrom::End(0)).map(drop)
    }
}

impl<T: Output + ?Sized> Output for Box<T> {
    fn seekable(&self) -> bool {
        (**self).seekable()
    }

    fn write_at(&mut self, pos: u64, bytes: &[u8]) -> io::Result<()> {
        (**self).write_at(pos, bytes)
    }
}

/// Append-only, even if redirected to a file: others may already have written to it.
impl Output for io::Stdout {
    fn seekable(&self) -> bool {
        false
    }

    fn write_at(&mut self, _: u64, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

impl Output for io::Sink {
    fn seekable(&self) -> bool {
        true
    }

    fn write_at(&mut self, _: u64, _: &[u8]) -> io::Result<()> {
        Ok(())
    }
}

impl<W: Output + ?Sized> Output for &mut W {
    fn seekable(&self) -> bool {
        (**self).seekable()
    }

    fn write_at(&mut self, pos: u64, bytes: &[u8]) -> io::Result<()> {
        (**self).write_at(pos, bytes)
    }
}

type WriteAt<W> = fn(&mut W, u64, &[u8]) -> io::Result<()>;

/// The file while its last block grows. It is a valid trace wherever it is cut off: a block's payload is written
/// before the header that counts it.
pub(crate) struct Growing<W> {
    out: W,
    write_at: Option<WriteAt<W>>,
    /// Bytes appended.
    written: u64,
    /// Where the last block begins.
    start: u64,
    /// Bytes of its payload in the file, and their CRC.
    done: usize,
    crc: u32,
}

impl<W: Write> Growing<W> {
    pub fn new(out: W) -> Growing<W>
    where
        W: Output,
    {
        let write_at: Option<WriteAt<W>> = out.seekable().then_some(W::write_at);
        Growing { out, write_at, written: 0, start: 0, done: 0, crc: 0 }
    }

    /// True if `put` may be called more than once per block.
    pub fn grows(&self) -> bool {
        self.write_at.is_some()
    }

    pub fn written(&self) -> u64 {
        self.written
    }

    /// Bytes of the open block's payload in the file.
    pub fn done(&self) -> usize {
        self.done
    }

    /// Where the next block begins if this one ends with `payload` bytes.
    pub fn next_header(&self, payload: usize) -> u64 {
        let start = if self.done > 0 { self.start } else { self.written };
        start + (BLOCK_HEADER + payload) as u64
    }

    pub fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)?;
        self.written += bytes.len() as u64;
        Ok(())
    }

    /// Writes the block in `bytes` (space for the header first) to the file: the new part of the payload, then
    /// the header in one small write. If headers cannot be overwritten, a block may be put only once.
    pub fn put(&mut self, bytes: &mut [u8], seq: u32, first_ts: u64) -> io::Result<()> {
        let (head, payload) = bytes.split_at_mut(BLOCK_HEADER.min(bytes.len()));
        let new = payload.get(self.done..).unwrap_or_default();
        let crc = crc32c::crc32c_append(self.crc, new);
        let header = BlockHeader::new(payload.len(), crc, seq, first_ts).to_bytes();
        let len = payload.len();
        match self.write_at {
            Some(write_at) if self.done > 0 => {
                let start = self.start;
                let at = BLOCK_HEADER + self.done;
                self.append(bytes.get(at..).unwrap_or_default())?;
                write_at(&mut self.out, start, &header)?;
            }
            _ => {
                head.copy_from_slice(&header);
                self.start = self.written;
                self.append(bytes)?;
            }
        }
        (self.done, self.crc) = (len, crc);
        Ok(())
    }

    /// The block is complete; the next `put` begins another.
    pub fn next(&mut self) {
        (self.done, self.crc) = (0, 0);
    }

    pub fn finish(mut self) -> io::Result<W> {
        self.out.flush()?;
        Ok(self.out)
    }
}
