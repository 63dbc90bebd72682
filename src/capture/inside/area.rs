//! The memory that a recorded process shares with the recorder (crates/inside/lib/area.h). Whatever the process writes
//! there is untrusted: nothing is read twice, and each record is checked against the ring's own bounds.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::FromRawFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};

use crate::capture::event::{COUNTERS, KINDS};
use crate::capture::source::EventStats;
use crate::capture::transport::ring_bytes;

/// Name of the memory in the maps of a process.
pub const NAME: &CStr = c"profinfer-inside";

/// What the memory begins with when the process's code is as in its files again.
pub const RESTORED: [u8; 8] = [0; 8];

/// Rings of a process.
pub fn shards() -> usize {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    cpus.next_power_of_two().min(inside::SHARDS)
}

/// The largest event is `ev_tensors`; a record is never longer.
const MOST: usize = 8192;

pub struct Area {
    /// The descriptor that the process gets; afterwards only the mapping is needed.
    pub file: Option<File>,
    map: MmapRaw,
    shards: usize,
    ring: usize,
    /// How far each ring is read. The process may write anything where it is told.
    tails: Vec<u64>,
    /// The process wrote what cannot be a record.
    pub broken: bool,
}

impl Area {
    /// New memory with as many rings as threads can run at the same time, each of this size in bytes.
    ///
    /// # Errors
    /// The kernel has no memory file, or no address space.
    pub fn new(start: &inside::Start, ring: u64) -> io::Result<Area> {
        let shards = shards();
        let ring = ring_bytes(ring) as usize;
        let bytes = inside::RINGS_AT + shards * (inside::RING_HEAD + ring);
        // SAFETY: a name that ends with a zero; a descriptor that nothing else owns.
        let file = unsafe {
            match libc::memfd_create(NAME.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) {
                -1 => return Err(io::Error::last_os_error()),
                fd => File::from_raw_fd(fd),
            }
        };
        file.set_len(bytes as u64)?;
        // The process could cut it, and the recorder would end by SIGBUS.
        rustix::fs::fcntl_add_seals(&file, rustix::fs::SealFlags::SHRINK | rustix::fs::SealFlags::GROW)?;
        let map = MmapOptions::new().len(bytes).map_raw(&file)?;
        let area = Area { file: Some(file), map, shards, ring, tails: vec![0; shards], broken: false };
        let start =
            inside::Start { magic: inside::MAGIC, shards: shards as u32, ring_bytes: ring as u32, ..*start };
        area.write(0, inside::bytes(&start));
        Ok(area)
    }

    pub fn bytes(&self) -> u64 {
        self.map.len() as u64
    }

    /// Writes at an offset. Used where the process only reads, or before it can.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        if at.checked_add(bytes.len()).is_some_and(|end| end <= self.map.len()) {
            // SAFETY: within the mapping, as just checked; it is memory of this process that only raw pointers name.
            unsafe {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.map.as_mut_ptr().add(at), bytes.len())
            };
        }
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        static NONE: AtomicU64 = AtomicU64::new(0);
        if !at.is_multiple_of(8) || at + 8 > self.map.len() {
            return &NONE;
        }
        // SAFETY: aligned and within the mapping, which lives as long as `self`; other accesses are atomic too.
        unsafe { AtomicU64::from_ptr(self.map.as_mut_ptr().add(at).cast()) }
    }

    fn half(&self, at: usize) -> &AtomicU32 {
        static NONE: AtomicU32 = AtomicU32::new(0);
        if !at.is_multiple_of(4) || at + 4 > self.map.len() {
            return &NONE;
        }
        // SAFETY: as in `word`.
        unsafe { AtomicU32::from_ptr(self.map.as_mut_ptr().add(at).cast()) }
    }

    /// Turns a program of a site on or off.
    pub fn arm(&self, site: usize, leave: bool, on: bool) {
        let at =
            inside::SITES_AT + site.min(inside::SITES - 1) * inside::SITE_BYTES + if leave { 4 } else { 0 };
        self.half(at).store(on.into(), Ordering::Release);
    }

    /// Turns both programs of a site off.
    pub fn disarm(&self, site: usize) {
        [false, true].into_iter().for_each(|leave| self.arm(site, leave, false));
    }

    /// The table of sites as it is.
    pub fn read_sites(&self, into: &mut [u8]) {
        for (i, word) in into.chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(&self.word(inside::SITES_AT + 8 * i).load(Ordering::Relaxed).to_ne_bytes());
        }
    }

    pub fn site(&self, at: usize, site: &inside::Site) {
        self.write(inside::SITES_AT + at.min(inside::SITES - 1) * inside::SITE_BYTES, inside::bytes(site));
    }

    /// Sets the constants of an engine.
    pub fn engine(&self, engine: u16, constants: &[u8]) {
        let engine = usize::from(engine).min(inside::ENGINES - 1);
        let constants = constants.get(..inside::ENGINE_BYTES).unwrap_or(constants);
        self.write(inside::ENGINES_AT + engine * inside::ENGINE_BYTES, constants);
    }

    /// The engines of the process, as bits; 0: nothing is recorded.
    pub fn admit(&self, engines: u32) {
        self.half(inside::ENGINES_OF_PROC).store(engines, Ordering::Release);
    }

    /// The process's code is as in its files again: others may probe it.
    pub fn mark_restored(&self) {
        self.write(0, &RESTORED);
    }

    /// From the next hit on, the structure of each graph is sent again.
    pub fn forget_graphs(&self) {
        self.half(inside::FORGET_AT).fetch_add(1, Ordering::Relaxed);
    }

    /// Passes on the records that have arrived, ring by ring; `into` is memory for one.
    pub fn read(&mut self, into: &mut [u64], sink: &mut dyn FnMut(&mut [u64])) {
        for shard in 0..self.shards {
            let head = inside::RINGS_AT + shard * (inside::RING_HEAD + self.ring);
            while !self.broken && self.next(shard, head, into, sink) {}
        }
    }

    /// False: there is none.
    fn next(
        &mut self,
        shard: usize,
        head: usize,
        into: &mut [u64],
        sink: &mut dyn FnMut(&mut [u64]),
    ) -> bool {
        let Some(&tail) = self.tails.get(shard) else { return false };
        let at = tail as usize & (self.ring - 1);
        let data = head + inside::RING_HEAD;
        let first = self.word(data + at).load(Ordering::Acquire);
        if first & inside::RECORD_DONE == 0 {
            // Being written, or nothing: only zero is possible.
            self.broken |= first != 0;
            return false;
        }
        let length = (first & !(inside::RECORD_DONE | inside::RECORD_SKIP)) as usize;
        let skip = first & inside::RECORD_SKIP != 0;
        let most = if skip { self.ring } else { MOST };
        if length < 8 || !length.is_multiple_of(8) || length > most || at + length > self.ring {
            self.broken = true;
            return false;
        }
        if !skip {
            let Some(event) = into.get_mut(..length / 8 - 1) else { return false };
            for (i, word) in event.iter_mut().enumerate() {
                *word = self.word(data + at + 8 + 8 * i).load(Ordering::Relaxed);
            }
            sink(event);
        }
        // What is not written yet must read as zero in the next round.
        (0..length / 8).for_each(|i| self.word(data + at + 8 * i).store(0, Ordering::Relaxed));
        let tail = tail.wrapping_add(length as u64);
        if let Some(t) = self.tails.get_mut(shard) {
            *t = tail;
        }
        self.word(head + inside::TAIL_AT).store(tail, Ordering::Release);
        true
    }

    /// Adds what was seen and lost so far.
    pub fn count(&self, stats: &mut EventStats) {
        for shard in 0..self.shards {
            let counts = |i: usize| {
                let at = inside::COUNTS_AT + shard * inside::COUNTS_BYTES + i * 16;
                (self.word(at).load(Ordering::Relaxed), self.word(at + 8).load(Ordering::Relaxed))
            };
            for (i, kind) in stats.kinds.iter_mut().enumerate() {
                let (seen, lost) = counts(i);
                kind.seen = kind.seen.saturating_add(seen);
                kind.lost = kind.lost.saturating_add(lost.min(seen));
            }
            for (i, counter) in stats.counters.iter_mut().enumerate() {
                *counter = counter.saturating_add(counts(KINDS + i).0);
            }
        }
    }
}

const _: () = assert!((KINDS + COUNTERS) * 16 <= inside::COUNTS_BYTES);

#[cfg(test)]
mod tests {
    use super::*;

    fn area() -> Area {
        Area::new(&inside::Start::default(), 4096).expect("a memory file")
    }

    fn put(area: &Area, at: usize, words: &[u64]) {
        let data = inside::RINGS_AT + inside::RING_HEAD;
        words.iter().enumerate().for_each(|(i, w)| area.write(data + at + 8 * i, &w.to_ne_bytes()));
    }

    fn taken(area: &mut Area) -> Vec<Vec<u64>> {
        let (mut into, mut all) = ([0; MOST / 8], Vec::new());
        area.read(&mut into, &mut |event| all.push(event.to_vec()));
        all
    }

    #[test]
    fn records_are_read_in_order_and_their_room_is_zero_again() {
        let mut area = area();
        let ring = area.ring as u64;
        put(&area, 0, &[24 | inside::RECORD_DONE, 1, 2, 16 | inside::RECORD_DONE, 3]);
        assert_eq!(taken(&mut area), [vec![1, 2], vec![3]]);
        assert_eq!(taken(&mut area), [[0; 0]; 0].map(|e| e.to_vec()));
        put(&area, 40, &[(ring - 40) | inside::RECORD_DONE | inside::RECORD_SKIP]);
        put(&area, 0, &[16 | inside::RECORD_DONE, 4]);
        assert_eq!(taken(&mut area), [vec![4]]);
        assert!(!area.broken);
        let data = inside::RINGS_AT + inside::RING_HEAD;
        assert!((0..area.ring).step_by(8).all(|at| area.word(data + at).load(Ordering::Relaxed) == 0));
    }

    #[test]
    fn what_cannot_be_a_record_ends_the_reading() {
        for first in
            [1, 4 | inside::RECORD_DONE, 12 | inside::RECORD_DONE, u64::MAX, (1 << 40) | inside::RECORD_DONE]
        {
            let mut area = area();
            put(&area, 0, &[first]);
            assert!(taken(&mut area).is_empty() && area.broken, "{first:x}");
        }
    }

    #[test]
    fn counts_that_a_process_forges_do_not_overflow() {
        let area = area();
        (0..2).for_each(|shard| {
            area.write(inside::COUNTS_AT + shard * inside::COUNTS_BYTES, &[0xff; 1024]);
        });
        let mut stats = EventStats::default();
        area.count(&mut stats);
        assert_eq!((stats.kinds[0].seen, stats.kinds[0].lost), (u64::MAX, u64::MAX));
    }
}
