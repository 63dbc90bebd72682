//! How events are read from the kernel: the ring buffer, or one perf buffer per CPU, whose events are sorted by
//! time again. Allocates only when created.

use std::cell::{Cell, RefCell};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use libbpf_rs::{MapHandle, PerfBuffer, PerfBufferBuilder, RingBuffer, RingBufferBuilder};

use crate::capture::event;
use crate::capture::source::Sink;
use machine::usage;

/// Events wait this long for older ones from other CPUs. A program takes an event's timestamp some microseconds
/// before sending it.
pub(super) const SLACK_NS: u64 = 20_000_000;
/// Bytes and events that can wait.
const ARENA: usize = 8 << 20;
const EVENTS: usize = 128 << 10;

/// A channel out of the kernel.
pub enum Transport {
    Ring { ring: RingBuffer<'static>, wake: OwnedFd, until: Rc<Cell<u64>> },
    Perf { buffer: PerfBuffer<'static>, order: Rc<RefCell<SortQueue>>, sink: Sink },
}

impl Transport {
    /// Reads the ring buffer `map` (leaked: it lives as long as the process).
    pub fn ring(map: &'static MapHandle, sink: Sink) -> libbpf_rs::Result<Transport> {
        let mut builder = RingBufferBuilder::new();
        let until = Rc::new(Cell::new(u64::MAX));
        let end = until.clone();
        builder.add(map, move |bytes| {
            sink.borrow_mut()(bytes);
            // A negative value ends the pass behind this event.
            if event::time(bytes).is_some_and(|t| t >= end.get()) { -libc::EINTR } else { 0 }
        })?;
        Ok(Transport::Ring { ring: builder.build()?, wake: edge_wait(map.as_fd())?, until })
    }

    /// Reads the perf buffers of `map`, with `bytes` of memory per CPU.
    pub fn perf(map: &'static MapHandle, bytes: u32, sink: Sink) -> libbpf_rs::Result<Transport> {
        let order = Rc::new(RefCell::new(SortQueue::default()));
        let (arrive, sink2) = (order.clone(), sink.clone());
        let pages = (bytes as usize / page_size()).max(1).next_power_of_two();
        let buffer = PerfBufferBuilder::new(map)
            .pages(pages)
            .sample_cb(move |_cpu, bytes: &[u8]| {
                arrive.borrow_mut().push(bytes, &mut |b| sink2.borrow_mut()(b))
            })
            .build()?;
        Ok(Transport::Perf { buffer, order, sink })
    }

    /// Waits up to `timeout` and passes on what has arrived. Returns early if a lot has arrived (the BPF side wakes
    /// us by bytes waiting), or on a signal. Ends at the first event that is later than its beginning: engines that
    /// send as fast as events are taken would keep it for ever.
    pub fn poll(&mut self, timeout: Duration) {
        match self {
            Transport::Ring { ring, wake, until } => {
                machine::wake::epoll(wake.as_fd(), timeout);
                until.set(usage::now());
                let _ = ring.consume();
                until.set(u64::MAX);
            }
            Transport::Perf { buffer, order, sink } => {
                machine::wake::poll(&mut [], timeout);
                let before = usage::now();
                let _ = buffer.consume();
                order.borrow_mut().release(before.saturating_sub(SLACK_NS), &mut |b| sink.borrow_mut()(b));
            }
        }
    }

    /// Passes on everything that is left, after the probes are removed.
    pub fn finish(&mut self) {
        match self {
            Transport::Ring { ring, .. } => drop(ring.consume()),
            Transport::Perf { buffer, order, sink } => {
                let _ = buffer.consume();
                order.borrow_mut().release(u64::MAX, &mut |b| sink.borrow_mut()(b));
            }
        }
    }
}

/// Page size, bytes.
pub fn page_size() -> usize {
    // SAFETY: sysconf only reads.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// Events waiting to be sorted: each starts with its time and has a length that is a multiple of eight bytes.
pub struct SortQueue {
    /// u64, so that every event is aligned.
    arena: Vec<u64>,
    /// Time, position in the arena and length in words.
    events: Vec<(u64, u32, u32)>,
}

impl Default for SortQueue {
    fn default() -> Self {
        SortQueue { arena: Vec::with_capacity(ARENA / 8), events: Vec::with_capacity(EVENTS) }
    }
}

impl SortQueue {
    /// Adds an event; if there is no room, the older half is released first.
    pub(super) fn push(&mut self, bytes: &[u8], sink: &mut dyn FnMut(&[u8])) {
        let words = bytes.len() / 8;
        if self.events.len() == EVENTS || self.arena.len() + words > ARENA / 8 {
            self.events.sort_unstable();
            let middle = self.events.get(self.events.len() / 2).map_or(u64::MAX, |e| e.0);
            self.release(middle, sink);
        }
        let at = self.arena.len();
        self.arena
            .extend(bytes.chunks_exact(8).map(|w| u64::from_ne_bytes(w.try_into().unwrap_or_default())));
        let time = event::time(as_bytes(&self.arena[at..])).unwrap_or(0);
        self.events.push((time, at as u32, words as u32));
    }

    /// Passes on the events older than `before`, oldest first.
    pub(super) fn release(&mut self, before: u64, sink: &mut dyn FnMut(&[u8])) {
        self.events.sort_unstable();
        let n = self.events.partition_point(|e| e.0 < before);
        for &(_, at, words) in &self.events[..n] {
            sink(as_bytes(&self.arena[at as usize..(at + words) as usize]));
        }
        self.events.drain(..n);
        // The remaining events move to the front, in order of position, so that the arena is contiguous again.
        #[expect(clippy::disallowed_methods, reason = "the drain loop allocates nothing")]
        self.events.sort_unstable_by_key(|e| e.1);
        let mut end = 0;
        for e in &mut self.events {
            self.arena.copy_within(e.1 as usize..(e.1 + e.2) as usize, end);
            e.1 = end as u32;
            end += e.2 as usize;
        }
        self.arena.truncate(end);
    }
}

fn as_bytes(words: &[u64]) -> &[u8] {
    // SAFETY: any u64 is eight valid bytes, and the borrow keeps them alive.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), words.len() * 8) }
}

/// A valid kernel-side size of a ring buffer: a power of two, at least one page.
pub fn ring_bytes(wanted: u64) -> u32 {
    let page = page_size() as u64;
    wanted.clamp(page, 1 << 30).next_power_of_two() as u32
}

/// An epoll on `fd` that wakes only on the kernel's wakeups. If it were level-triggered, like libbpf's own, it
/// would return immediately whenever a byte is waiting, and spin.
fn edge_wait(fd: BorrowedFd<'_>) -> libbpf_rs::Result<OwnedFd> {
    let fail = || libbpf_rs::Error::from(std::io::Error::last_os_error());
    // SAFETY: plain system calls; nothing else owns the returned descriptor.
    unsafe {
        let epoll = libc::epoll_create1(libc::EPOLL_CLOEXEC);
        if epoll < 0 {
            return Err(fail());
        }
        let epoll = OwnedFd::from_raw_fd(epoll);
        let mut event = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: 0 };
        match libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd.as_raw_fd(), &raw mut event) {
            0 => Ok(epoll),
            _ => Err(fail()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(ts: u64) -> [u8; 56] {
        let mut e = [0; 56];
        e[..8].copy_from_slice(&ts.to_ne_bytes());
        e
    }

    #[test]
    fn events_of_several_cpus_come_out_in_order_of_time() {
        let mut order = SortQueue::default();
        let mut seen = Vec::new();
        let mut sink = |b: &[u8]| seen.push(event::time(b).expect("aligned and long enough"));
        for ts in [5, 9, 7, 3, 8, 1] {
            order.push(&event(ts), &mut sink);
        }
        order.release(7, &mut sink);
        order.push(&event(6), &mut sink);
        order.release(u64::MAX, &mut sink);
        assert_eq!(seen, [1, 3, 5, 6, 7, 8, 9]);
    }

    #[test]
    fn a_full_arena_lets_the_older_half_go() {
        let mut order = SortQueue::default();
        let mut seen = Vec::new();
        for ts in 0..EVENTS as u64 + 1 {
            order.push(&event(ts), &mut |b| seen.push(event::time(b).expect("an event")));
        }
        assert!(!seen.is_empty() && seen.is_sorted());
    }
}
