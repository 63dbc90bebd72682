//! Op hits of the graphs in progress: one chain of fixed chunks per thread, all from one arena, so that the drain
//! loop allocates nothing.

use crate::capture::event::{self, Op};
use crate::capture::pmc;

/// Hits per chunk.
const CHUNK: usize = 32;
/// Chunks in the arena: 131,072 hits, e.g. 3,000 nodes on 40 threads.
const CHUNKS: usize = 4096;
const NONE: u16 = u16::MAX;

/// An op began on a thread.
#[derive(Debug, Clone, Copy, Default)]
pub struct ThreadHit {
    pub tensor: u64,
    /// Second node of a fused op, otherwise 0.
    pub tensor2: u64,
    pub start: u64,
    /// Entry of the barrier that followed; 0: not seen.
    pub end: u64,
    /// Where it began; None: not known.
    pub cpu: Option<u16>,
}

impl ThreadHit {
    pub fn new(e: &Op) -> ThreadHit {
        let cpu = event::cpu_of(e);
        ThreadHit { tensor: e.tensor, tensor2: e.tensor2, start: e.h.ts, end: 0, cpu }
    }
}

/// The counts of a hit.
#[derive(Debug, Clone, Copy, Default)]
pub struct HitCounts {
    /// Counters with a known count, one bit each.
    pub known: u32,
    pub count: [u64; pmc::MAX],
}

struct Chunk {
    hits: [ThreadHit; CHUNK],
    next: u16,
}

/// The hits of one thread in one graph.
#[derive(Debug, Clone, Copy)]
pub struct ThreadHits {
    first: u16,
    last: u16,
    /// Number of hits.
    pub len: u32,
    pub tid: u32,
}

impl Default for ThreadHits {
    fn default() -> Self {
        ThreadHits { first: NONE, last: NONE, len: 0, tid: 0 }
    }
}

/// All chunks; free ones form a chain. Chunks that were never used are not touched, so they cost no memory.
pub struct Arena {
    chunks: Vec<Chunk>,
    /// Parallel to the chunks, once there is something to count.
    counts: Vec<[HitCounts; CHUNK]>,
    free: u16,
}

impl Default for Arena {
    fn default() -> Self {
        Arena { chunks: Vec::with_capacity(CHUNKS), counts: Vec::new(), free: NONE }
    }
}

impl Arena {
    /// From now on hits can have counts. Call before any hit.
    pub fn count(&mut self) {
        self.counts.reserve_exact(CHUNKS);
    }

    fn take(&mut self) -> Option<u16> {
        if self.free != NONE {
            let i = self.free;
            let chunk = self.chunks.get_mut(i as usize)?;
            self.free = chunk.next;
            chunk.next = NONE;
            return Some(i);
        }
        if self.chunks.len() == CHUNKS {
            return None;
        }
        self.chunks.push(Chunk { hits: [ThreadHit::default(); CHUNK], next: NONE });
        if self.counts.capacity() > 0 {
            self.counts.push([HitCounts::default(); CHUNK]);
        }
        Some((self.chunks.len() - 1) as u16)
    }

    /// Appends a hit. False: the arena is full.
    pub fn push(&mut self, thread: &mut ThreadHits, hit: ThreadHit) -> bool {
        let at = thread.len as usize % CHUNK;
        if at == 0 {
            let Some(i) = self.take() else { return false };
            match thread.last {
                NONE => thread.first = i,
                last => self.chunks[last as usize].next = i,
            }
            thread.last = i;
        }
        self.chunks[thread.last as usize].hits[at] = hit;
        thread.len += 1;
        self.set_counts(thread, HitCounts::default());
        true
    }

    /// Sets the counts of the thread's newest hit.
    pub fn set_counts(&mut self, thread: &ThreadHits, counts: HitCounts) {
        let at = thread.len.wrapping_sub(1) as usize % CHUNK;
        if let Some(chunk) = self.counts.get_mut(thread.last as usize) {
            chunk[at] = counts;
        }
    }

    /// The thread's newest hit.
    pub fn last_mut(&mut self, thread: &ThreadHits) -> Option<&mut ThreadHit> {
        let at = (thread.len as usize).checked_sub(1)? % CHUNK;
        Some(&mut self.chunks.get_mut(thread.last as usize)?.hits[at])
    }

    /// The thread's hits, oldest first.
    pub fn iter(&self, thread: &ThreadHits) -> impl Iterator<Item = &ThreadHit> {
        self.counted(thread).map(|(hit, _)| hit)
    }

    /// The same with their counts, if anything is counted.
    pub fn counted(&self, thread: &ThreadHits) -> impl Iterator<Item = (&ThreadHit, Option<&HitCounts>)> {
        let (mut index, mut at) = (thread.first as usize, 0);
        let mut left = thread.len;
        std::iter::from_fn(move || {
            left = left.checked_sub(1)?;
            if at == CHUNK {
                index = self.chunks.get(index)?.next as usize;
                at = 0;
            }
            at += 1;
            let hit = self.chunks.get(index)?.hits.get(at - 1)?;
            Some((hit, self.counts.get(index).and_then(|c| c.get(at - 1))))
        })
    }

    /// Frees the thread's chunks.
    pub fn release(&mut self, thread: &mut ThreadHits) {
        if thread.last != NONE {
            self.chunks[thread.last as usize].next = self.free;
            self.free = thread.first;
        }
        *thread = ThreadHits::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_share_the_arena_and_give_it_back() {
        let mut arena = Arena::default();
        for _ in 0..3 {
            let (mut a, mut b) = (ThreadHits::default(), ThreadHits::default());
            for i in 0..100u64 {
                assert!(arena.push(&mut a, ThreadHit { start: i, ..ThreadHit::default() }));
                assert!(arena.push(&mut b, ThreadHit { start: 1000 + i, ..ThreadHit::default() }));
            }
            assert!(arena.iter(&a).map(|h| h.start).eq(0..100));
            assert!(arena.iter(&b).map(|h| h.start).eq(1000..1100));
            assert_eq!(arena.last_mut(&b).map(|h| h.start), Some(1099));
            arena.release(&mut a);
            arena.release(&mut b);
        }
        assert_eq!(arena.chunks.len(), 8);
    }

    #[test]
    fn a_full_arena_says_so() {
        let mut arena = Arena::default();
        let mut thread = ThreadHits::default();
        let pushed = std::iter::repeat_with(|| arena.push(&mut thread, ThreadHit::default()))
            .take_while(|ok| *ok)
            .count();
        assert_eq!(pushed, CHUNK * CHUNKS);
    }
}
