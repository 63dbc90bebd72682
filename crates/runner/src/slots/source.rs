//! Where experts are read from: the model file past the page cache, or its mapping. Uses the system alone.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use memmap2::{Mmap, MmapMut};

/// Alignment of direct reads in memory and in the file; a multiple of what any usual disk demands.
const BLOCK: u64 = 4096;

/// Where experts come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ExpertsFrom {
    /// Read from the file.
    #[default]
    Disk,
    /// Copied from the mapped file.
    Memory,
}

/// The weights of a model file.
pub enum ExpertSource {
    /// By reads that bypass the page cache.
    Direct(File),
    /// By reads whose pages are given back at once: the file system has no direct reads.
    Buffered(File),
    /// From the mapped file.
    Memory(Arc<Mmap>),
}

/// A reader's memory for what it reads: whole blocks.
pub struct ReadRoom(MmapMut);

impl ReadRoom {
    /// Room for ranges of up to `bytes`.
    ///
    /// # Errors
    /// Not enough memory.
    pub fn new(bytes: u64) -> io::Result<Self> {
        let whole = bytes.checked_add(2 * BLOCK).and_then(|n| usize::try_from(n).ok());
        MmapMut::map_anon(whole.ok_or(io::ErrorKind::OutOfMemory)?).map(ReadRoom)
    }
}

impl ExpertSource {
    /// The file and its mapping; a block at `at` is read to find out whether the file system has direct reads.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn new(file: File, map: &Arc<Mmap>, from: ExpertsFrom, at: u64) -> io::Result<Self> {
        if from == ExpertsFrom::Memory {
            return Ok(Self::Memory(Arc::clone(map)));
        }
        if set_direct(&file, true) {
            let mut room = ReadRoom::new(BLOCK)?;
            let direct = Self::Direct(file);
            return match direct.read(at..at + 1, &mut room, |_| ()) {
                Err(e) if e.kind() == io::ErrorKind::InvalidInput => Ok(direct.buffered()),
                Err(e) => Err(e),
                Ok(()) => Ok(direct),
            };
        }
        Ok(Self::Buffered(file))
    }

    fn buffered(self) -> Self {
        match self {
            Self::Direct(file) => {
                set_direct(&file, false);
                Self::Buffered(file)
            }
            other => other,
        }
    }

    /// How it is read.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Direct(_) => "direct",
            Self::Buffered(_) => "buffered",
            Self::Memory(_) => "memory",
        }
    }

    /// Gives a range of the file to `take`. The room must have been made for as many bytes.
    ///
    /// # Errors
    /// The range cannot be read.
    pub fn read<R>(
        &self,
        range: Range<u64>,
        room: &mut ReadRoom,
        take: impl FnOnce(&[u8]) -> R,
    ) -> io::Result<R> {
        let outside = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let file = match self {
            Self::Memory(map) => {
                let at = |n| usize::try_from(n).unwrap_or(usize::MAX);
                return map.get(at(range.start)..at(range.end)).map(take).ok_or_else(outside);
            }
            Self::Direct(file) | Self::Buffered(file) => file,
        };
        let start = range.start / BLOCK * BLOCK;
        let end = range.end.next_multiple_of(BLOCK);
        let skip = (range.start - start) as usize;
        let need = (range.end - start) as usize;
        let blocks = room.0.get_mut(..(end - start) as usize).ok_or(io::ErrorKind::OutOfMemory)?;
        let mut have = 0;
        while have < need {
            // After a short read, direct reads go on at the last whole block.
            let from = have / BLOCK as usize * BLOCK as usize;
            let Some(rest) = blocks.get_mut(from..) else { return Err(outside()) };
            let got = match read_at(file, rest, start + from as u64) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                got => from + got?,
            };
            if got <= have {
                return Err(outside());
            }
            have = got;
        }
        if matches!(self, Self::Buffered(_)) {
            forget(file, start..end);
        }
        blocks.get(skip..need).map(take).ok_or_else(outside)
    }
}

#[cfg(unix)]
fn read_at(file: &File, to: &mut [u8], at: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, to, at)
}

#[cfg(not(unix))]
fn read_at(_: &File, _: &mut [u8], _: u64) -> io::Result<usize> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Makes reads bypass the page cache, or not; false if the file system does not offer that.
#[cfg(target_os = "linux")]
fn set_direct(file: &File, on: bool) -> bool {
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
    fcntl_getfl(file).and_then(|mut flags| {
        flags.set(OFlags::DIRECT, on);
        fcntl_setfl(file, flags)
    }) == Ok(())
}

#[cfg(not(target_os = "linux"))]
fn set_direct(_: &File, _: bool) -> bool {
    false
}

/// Lets the kernel drop the pages of a range; those that are mapped and in use stay.
#[cfg(target_os = "linux")]
fn forget(file: &File, range: Range<u64>) {
    let len = std::num::NonZeroU64::new(range.end - range.start);
    // Only advice: a kernel that does not take it keeps the pages.
    let _ = rustix::fs::fadvise(file, range.start, len, rustix::fs::Advice::DontNeed);
}

#[cfg(not(target_os = "linux"))]
fn forget(_: &File, _: Range<u64>) {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn every_way_reads_the_same_bytes_up_to_the_end() {
        let mut file = tempfile::tempfile().expect("a file");
        let bytes: Vec<u8> = (0..20_001u32).map(|i| (i * 7 % 251) as u8).collect();
        file.write_all(&bytes).expect("room");
        // SAFETY: nobody truncates the file.
        let map = Arc::new(unsafe { Mmap::map(&file) }.expect("a mapping"));
        let copy = || file.try_clone().expect("a copy");
        let memory = ExpertSource::new(copy(), &map, ExpertsFrom::Memory, 0).expect("a source");
        let disk = ExpertSource::new(copy(), &map, ExpertsFrom::Disk, 5000).expect("a source");
        assert_eq!(memory.name(), "memory");
        assert!(["direct", "buffered"].contains(&disk.name()));
        let mut room = ReadRoom::new(20_001).expect("memory");
        let mut check = |source: &ExpertSource| {
            for range in [0..1, 0..4096, 1..20_001, 4095..4097, 20_000..20_001, 8192..12_288] {
                let read = source.read(range.clone(), &mut room, <[u8]>::to_vec).expect("read");
                assert!(read == bytes[range.start as usize..range.end as usize], "{range:?}");
            }
            for range in [20_000..20_002, 30_000..30_001] {
                let error = source.read(range, &mut room, |_| ()).expect_err("behind the end");
                assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
            }
        };
        check(&memory);
        check(&disk);
        // The copies share their flags: this one is last.
        check(&disk.buffered());
    }
}
