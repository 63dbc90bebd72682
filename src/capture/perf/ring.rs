//! The ring that the kernel fills for one CPU, and its records.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};
use perf_event_open_sys::bindings::{
    PERF_RECORD_COMM, PERF_RECORD_EXIT, PERF_RECORD_FORK, PERF_RECORD_LOST, PERF_RECORD_MISC_COMM_EXEC,
    PERF_RECORD_MISC_SWITCH_OUT, PERF_RECORD_MISC_SWITCH_OUT_PREEMPT, PERF_RECORD_MMAP2, PERF_RECORD_SAMPLE,
    PERF_RECORD_SWITCH, perf_event_mmap_page,
};

use super::event;
use crate::capture::transport::page_size;

/// Longest record that the kernel's 16-bit size can describe.
const LONGEST: usize = 1 << 16;
/// Longest mapping record, bytes.
const PATH_RECORD: u64 = 4096 + 128;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PerfRecord<'a> {
    /// A hit of an event. `raw` starts with the event's number and ends, after its fields, with padding.
    Sample { tgid: u32, tid: u32, time: u64, raw: &'a [u8] },
    /// This many records were lost before this one for lack of space.
    Lost(u64),
    /// A thread started, made by thread `maker`; a process, if `tid` equals `tgid`.
    Fork { tgid: u32, tid: u32, parent: u32, maker: u32, time: u64 },
    /// A thread ended.
    Exit { tgid: u32, tid: u32, time: u64 },
    /// A process has mapped a file as executable.
    Mapped(Area<'a>),
    /// A process has executed another program.
    Exec { tgid: u32, time: u64 },
    /// A thread was switched in or out.
    Switch { tgid: u32, tid: u32, time: u64, how: SwitchKind },
    /// A kind that was not requested.
    Other,
}

/// A context switch of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SwitchKind {
    In,
    /// It went to sleep, for whatever reason.
    Out,
    /// It could have run on.
    Preempted,
}

impl PerfRecord<'_> {
    /// When it happened, CLOCK_MONOTONIC ns; None: it says nothing of that.
    fn time(&self) -> Option<u64> {
        match *self {
            PerfRecord::Sample { time, .. }
            | PerfRecord::Fork { time, .. }
            | PerfRecord::Exit { time, .. }
            | PerfRecord::Exec { time, .. }
            | PerfRecord::Switch { time, .. }
            | PerfRecord::Mapped(Area { time, .. }) => Some(time),
            PerfRecord::Lost(_) | PerfRecord::Other => None,
        }
    }
}

/// Part of a file in a process's memory, as reported by the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Area<'a> {
    pub tgid: u32,
    pub time: u64,
    pub start: u64,
    pub len: u64,
    /// Its start in the file, bytes.
    pub offset: u64,
    /// Device: major and minor.
    pub dev: (u32, u32),
    /// 0: no file.
    pub inode: u64,
    /// As the process sees it.
    pub path: &'a [u8],
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

/// A header's flags.
fn flags(bytes: &[u8]) -> Option<u32> {
    Some(u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?).into())
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

/// Bytes at the end of a record of [`event::images`]: process, thread and time.
const IDENTITY: usize = 16;

/// The time that ends a record, and the bytes before it from `at` up to the first zero.
fn tail(body: &[u8], at: usize) -> Option<(u64, &[u8])> {
    let end = body.len().checked_sub(IDENTITY)?;
    let text = body.get(at..end)?;
    let len = text.iter().position(|&b| b == 0).unwrap_or(text.len());
    Some((u64_at(body, end + 8)?, &text[..len]))
}

fn mapped(body: &[u8]) -> Option<Area<'_>> {
    let (time, path) = tail(body, 64)?;
    Some(Area {
        tgid: u32_at(body, 0)?,
        time,
        start: u64_at(body, 8)?,
        len: u64_at(body, 16)?,
        offset: u64_at(body, 24)?,
        dev: (u32_at(body, 32)?, u32_at(body, 36)?),
        inode: u64_at(body, 40)?,
        path,
    })
}

/// A switch has nothing but its flags and its identity.
fn switch(flags: u32, body: &[u8]) -> Option<PerfRecord<'static>> {
    let at = body.len().checked_sub(IDENTITY)?;
    let how = match (flags & PERF_RECORD_MISC_SWITCH_OUT, flags & PERF_RECORD_MISC_SWITCH_OUT_PREEMPT) {
        (0, _) => SwitchKind::In,
        (_, 0) => SwitchKind::Out,
        _ => SwitchKind::Preempted,
    };
    Some(PerfRecord::Switch {
        tgid: u32_at(body, at)?,
        tid: u32_at(body, at + 4)?,
        time: u64_at(body, at + 8)?,
        how,
    })
}

/// Parses `bytes` as a record, header included. None: too short for its kind.
pub fn parse(bytes: &[u8]) -> Option<PerfRecord<'_>> {
    let (kind, body) = (u32_at(bytes, 0)?, bytes.get(8..)?);
    Some(match kind {
        PERF_RECORD_SAMPLE => {
            let len = u32_at(body, 16)? as usize;
            let raw = body.get(20..20usize.checked_add(len)?)?;
            PerfRecord::Sample { tgid: u32_at(body, 0)?, tid: u32_at(body, 4)?, time: u64_at(body, 8)?, raw }
        }
        PERF_RECORD_LOST => PerfRecord::Lost(u64_at(body, 8)?),
        PERF_RECORD_FORK => PerfRecord::Fork {
            tgid: u32_at(body, 0)?,
            parent: u32_at(body, 4)?,
            tid: u32_at(body, 8)?,
            maker: u32_at(body, 12)?,
            time: u64_at(body, 16)?,
        },
        PERF_RECORD_MMAP2 => PerfRecord::Mapped(mapped(body)?),
        PERF_RECORD_SWITCH => switch(flags(bytes)?, body)?,
        PERF_RECORD_COMM if flags(bytes)? & PERF_RECORD_MISC_COMM_EXEC != 0 => {
            PerfRecord::Exec { tgid: u32_at(body, 0)?, time: tail(body, 8)?.0 }
        }
        PERF_RECORD_EXIT => {
            PerfRecord::Exit { tgid: u32_at(body, 0)?, tid: u32_at(body, 8)?, time: u64_at(body, 16)? }
        }
        _ => PerfRecord::Other,
    })
}

/// Length of the record that starts with the eight bytes of `head`, if `waiting` bytes can hold it.
fn length(head: u64, waiting: u64) -> Option<usize> {
    let [.., a, b] = head.to_ne_bytes();
    let len = u16::from_ne_bytes([a, b]);
    (len >= 8 && len % 8 == 0 && u64::from(len) <= waiting).then_some(len.into())
}

/// A CPU's ring. After a fork the child has no mapping at its address, and can only drop it.
pub struct Ring {
    map: ManuallyDrop<MmapRaw>,
    /// The process that has it mapped.
    owner: u32,
    event: OwnedFd,
    /// Bytes of data, a power of two, after the first page.
    size: usize,
    page: usize,
    /// A record as one contiguous piece.
    record: Vec<u8>,
    /// Records that could not be parsed.
    pub malformed: u64,
}

impl Ring {
    /// Creates the ring of a CPU, to which events can be joined; its own event reports processes that start and end.
    pub fn open(cpu: u32, bytes: u32) -> io::Result<Ring> {
        Ring::of(event::tasks(cpu, bytes / 4)?, bytes)
    }

    /// Creates an event's ring: `bytes` (rounded up to a power of two, at least one page) and a page for the positions.
    pub fn of(event: OwnedFd, bytes: u32) -> io::Result<Ring> {
        let page = page_size();
        let size = (bytes as usize).max(page).next_power_of_two();
        let map = ManuallyDrop::new(MmapOptions::new().len(size + page).map_raw(event.as_raw_fd())?);
        let (owner, record) = (std::process::id(), Vec::with_capacity(LONGEST));
        Ok(Ring { map, owner, event, size, page, record, malformed: 0 })
    }

    fn positions(&self) -> (&AtomicU64, &AtomicU64) {
        let first = self.map.as_mut_ptr().cast::<perf_event_mmap_page>();
        // SAFETY: the first page holds this struct for as long as the map lives; its two positions are aligned
        // words that the kernel and we exchange by loads and stores.
        unsafe {
            (
                AtomicU64::from_ptr(&raw mut (*first).data_head),
                AtomicU64::from_ptr(&raw mut (*first).data_tail),
            )
        }
    }

    /// The ring is so full that a record may have been lost. The kernel reports a loss only with the next record
    /// that fits.
    pub fn is_tight(&self) -> bool {
        let (head, tail) = self.positions();
        let waiting = head.load(Ordering::Acquire).wrapping_sub(tail.load(Ordering::Relaxed));
        // The longest records have a path of 4 KiB.
        waiting.saturating_add(PATH_RECORD) > self.size as u64
    }

    /// Eight bytes of data at a position, which is a multiple of eight.
    fn word(&self, at: u64) -> u64 {
        let at = (at as usize) & (self.size - 1) & !7;
        // SAFETY: within the data by the mask, aligned to eight; the kernel does not write the bytes before its head.
        unsafe { self.map.as_ptr().add(self.page + at).cast::<u64>().read() }
    }

    /// Where the waiting records end.
    pub fn head(&self) -> u64 {
        self.positions().0.load(Ordering::Acquire)
    }

    /// Passes on all waiting records and frees their space.
    pub fn read(&mut self, take: &mut dyn FnMut(PerfRecord<'_>)) {
        self.read_until(self.head(), u64::MAX, take);
    }

    /// Passes on the records before `head` up to the first one after `until`, ns, and frees their space. Returns the time of
    /// that one; None: all were passed on.
    pub fn read_until(&mut self, head: u64, until: u64, take: &mut dyn FnMut(PerfRecord<'_>)) -> Option<u64> {
        let mut tail = self.positions().1.load(Ordering::Relaxed);
        let mut later = None;
        while head != tail {
            let Some(len) = length(self.word(tail), head.wrapping_sub(tail)) else {
                // There is no valid record here, so the rest cannot be split into records.
                self.malformed += 1;
                tail = head;
                break;
            };
            self.record.clear();
            for at in 0..len as u64 / 8 {
                self.record.extend_from_slice(&self.word(tail.wrapping_add(at * 8)).to_ne_bytes());
            }
            match parse(&self.record) {
                Some(record) => {
                    later = record.time().filter(|time| *time > until);
                    if later.is_some() {
                        break;
                    }
                    take(record);
                }
                None => self.malformed += 1,
            }
            tail = tail.wrapping_add(len as u64);
        }
        self.positions().1.store(tail, Ordering::Release);
        later
    }
}

/// Reads rings in the order of their records' times, so that none is read far ahead of another; `take` gets a ring's index.
/// What is written meanwhile waits for the next call. `next` is memory for it: each ring's end and the time of its next record.
pub fn merge(rings: &mut [Ring], next: &mut Vec<(u64, u64)>, take: &mut dyn FnMut(usize, PerfRecord<'_>)) {
    next.clear();
    next.extend(rings.iter().map(|ring| (ring.head(), 0)));
    loop {
        let (mut first, mut second) = ((usize::MAX, u64::MAX), u64::MAX);
        for (i, &(_, time)) in next.iter().enumerate() {
            if time < first.1 {
                (first, second) = ((i, time), first.1);
            } else {
                second = second.min(time);
            }
        }
        let Some((ring, (head, time))) = rings.get_mut(first.0).zip(next.get_mut(first.0)) else { return };
        let all = ring.read_until(*head, second, &mut |record| take(first.0, record));
        *time = all.unwrap_or(u64::MAX);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // A forked child does not inherit this mapping, so there the addresses may be in use for something else.
        if self.owner == std::process::id() {
            // SAFETY: dropped once, here, and not used after.
            unsafe { ManuallyDrop::drop(&mut self.map) };
        }
    }
}

impl AsFd for Ring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A ring in a file instead of the kernel's memory, with samples of these times.
    fn ring_of(times: &[u64]) -> Ring {
        use std::os::unix::fs::FileExt as _;
        let (file, page) = (tempfile::tempfile().expect("a file"), page_size());
        file.set_len(2 * page as u64).expect("room");
        let mut data = Vec::new();
        for time in times {
            let mut one = sample(&[]);
            one[16..24].copy_from_slice(&time.to_ne_bytes());
            one.extend([0; 4]);
            let len = (one.len() as u16).to_ne_bytes();
            one[6..8].copy_from_slice(&len);
            data.extend(one);
        }
        file.write_all_at(&data, page as u64).expect("written");
        let head = std::mem::offset_of!(perf_event_mmap_page, data_head) as u64;
        file.write_all_at(&(data.len() as u64).to_ne_bytes(), head).expect("written");
        Ring::of(file.into(), page as u32).expect("mapped")
    }

    #[test]
    fn rings_are_read_in_the_order_of_time() {
        let mut rings = [ring_of(&[10, 11, 30, 60]), ring_of(&[]), ring_of(&[5, 20, 31, 70])];
        let (mut next, mut seen) = (Vec::new(), Vec::new());
        merge(&mut rings, &mut next, &mut |ring, record| {
            seen.push((record.time().expect("a sample"), ring));
        });
        assert_eq!(seen, [(5, 2), (10, 0), (11, 0), (20, 2), (30, 0), (31, 2), (60, 0), (70, 2)]);
        seen.clear();
        merge(&mut rings, &mut next, &mut |_, record| seen.push((record.time().expect("a sample"), 0)));
        assert_eq!(seen, [], "each once");
    }

    fn sample(raw: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(PERF_RECORD_SAMPLE.to_ne_bytes());
        out.extend([0; 4]);
        out.extend([7u32.to_ne_bytes(), 8u32.to_ne_bytes()].concat());
        out.extend(99u64.to_ne_bytes());
        out.extend((raw.len() as u32).to_ne_bytes());
        out.extend(raw);
        out
    }

    #[test]
    fn samples_and_tasks_are_read() {
        let bytes = sample(b"abcd");
        assert_eq!(parse(&bytes), Some(PerfRecord::Sample { tgid: 7, tid: 8, time: 99, raw: b"abcd" }));
        let mut fork = vec![0; 32];
        fork[..4].copy_from_slice(&PERF_RECORD_FORK.to_ne_bytes());
        for (at, v) in [(8, 5u32), (12, 4), (16, 6), (20, 3), (24, 77)] {
            fork[at..at + 4].copy_from_slice(&v.to_ne_bytes());
        }
        assert_eq!(parse(&fork), Some(PerfRecord::Fork { tgid: 5, tid: 6, parent: 4, maker: 3, time: 77 }));
        fork[..4].copy_from_slice(&PERF_RECORD_LOST.to_ne_bytes());
        assert!(matches!(parse(&fork), Some(PerfRecord::Lost(_))));
    }

    /// A record with kind and flags, whose body is these four-byte words, a text, and the identity (5, 6, time 99).
    fn image(kind: u32, misc: u32, words: &[u32], text: &[u8]) -> Vec<u8> {
        let mut out = kind.to_ne_bytes().to_vec();
        out.extend([misc as u16, 0].map(u16::to_ne_bytes).concat());
        out.extend(words.iter().flat_map(|w| w.to_ne_bytes()));
        out.extend(text);
        out.extend(vec![0; 8 - text.len() % 8]);
        out.extend([5u32, 6].map(u32::to_ne_bytes).concat());
        out.extend(99u64.to_ne_bytes());
        out
    }

    #[test]
    fn switches_are_read() {
        let of = |misc, how| {
            let mut bytes = image(PERF_RECORD_SWITCH, misc, &[], b"1234567");
            // Nothing but the identity.
            bytes.drain(8..16);
            assert_eq!(parse(&bytes), Some(PerfRecord::Switch { tgid: 5, tid: 6, time: 99, how }));
            assert_eq!(parse(&bytes[..16]), None);
        };
        of(0, SwitchKind::In);
        of(PERF_RECORD_MISC_SWITCH_OUT, SwitchKind::Out);
        of(PERF_RECORD_MISC_SWITCH_OUT | PERF_RECORD_MISC_SWITCH_OUT_PREEMPT, SwitchKind::Preempted);
    }

    fn mapping(path: &[u8]) -> Vec<u8> {
        // Eight-byte numbers have their low half first, as on all supported machines.
        let words = [5, 6, 0x1000, 0, 0x2000, 0, 0x3000, 0, 8, 1, 77, 0, 0, 0, 5, 2];
        image(PERF_RECORD_MMAP2, 2, &words, path)
    }

    #[test]
    fn mappings_and_execs_are_read() {
        let bytes = mapping(b"/lib/libggml-base.so");
        let area = Area {
            tgid: 5,
            time: 99,
            start: 0x1000,
            len: 0x2000,
            offset: 0x3000,
            dev: (8, 1),
            inode: 77,
            path: b"/lib/libggml-base.so",
        };
        assert_eq!(parse(&bytes), Some(PerfRecord::Mapped(area)));
        let exec = image(PERF_RECORD_COMM, PERF_RECORD_MISC_COMM_EXEC | 2, &[5, 6], b"llama-cli");
        assert_eq!(parse(&exec), Some(PerfRecord::Exec { tgid: 5, time: 99 }));
        // A thread sets its name.
        assert_eq!(parse(&image(PERF_RECORD_COMM, 2, &[5, 6], b"worker")), Some(PerfRecord::Other));
    }

    #[test]
    fn a_length_beyond_what_waits_is_none() {
        let head =
            |len: u16| u64::from_ne_bytes([0, 0, 0, 0, 0, 0, len.to_ne_bytes()[0], len.to_ne_bytes()[1]]);
        assert_eq!(length(head(16), 16), Some(16));
        for (len, waiting) in [(16, 8), (0, 64), (7, 64), (12, 64)] {
            assert_eq!(length(head(len), waiting), None);
        }
    }

    proptest! {
        #[test]
        fn no_bytes_are_read_beyond_their_end(kind in 0u32..16, body in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut bytes = kind.to_ne_bytes().to_vec();
            bytes.extend(body);
            if let Some(PerfRecord::Sample { raw, .. }) = parse(&bytes) {
                prop_assert!(raw.len() + 28 <= bytes.len());
            }
        }

        #[test]
        fn a_cut_mapping_shows_nothing_beyond_its_end(path in proptest::collection::vec(any::<u8>(), 0..100), cut in 0usize..200) {
            let bytes = mapping(&path);
            let cut = &bytes[..bytes.len().saturating_sub(cut)];
            if let Some(PerfRecord::Mapped(area)) = parse(cut) {
                prop_assert!(area.path.len() + 72 + IDENTITY <= cut.len());
                prop_assert!(!area.path.contains(&0));
            }
        }

        #[test]
        fn a_cut_sample_is_no_sample(raw in proptest::collection::vec(any::<u8>(), 1..100), cut in 1usize..100) {
            let bytes = sample(&raw);
            prop_assert!(parse(&bytes[..bytes.len().saturating_sub(cut)]).is_none());
        }
    }
}
