//! Op hits of the graphs under way: one chain of fixed chunks for each thread, all from one arena, so that the drain loop
//! allocates nothing. Uses `pmc` for the number of counters.

use super::pmc;

/// Hits a chunk holds.
const CHUNK: usize = 32;
/// Chunks in the arena: 131,072 hits, e.g. 3,000 nodes on 40 threads.
const CHUNKS: usize = 4096;
const NONE: u16 = u16::MAX;

/// An op began on a thread.
#[derive(Debug, Clone, Copy, Default)]
pub struct Hit {
    pub tensor: u64,
    /// Second node of a fused op, else 0.
    pub tensor2: u64,
    pub start: u64,
    /// Entry of the barrier that followed; 0: not seen.
    pub end: u64,
}

/// What was counted in a hit.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    /// Counters whose count is known, a bit each.
    pub known: u32,
    pub count: [u64; pmc::MAX],
}

struct Chunk {
    hits: [Hit; CHUNK],
    next: u16,
}

/// The hits of one thread in one graph.
#[derive(Debug, Clone, Copy)]
pub struct Lane {
    first: u16,
    last: u16,
    /// Number of hits.
    pub len: u32,
    pub tid: u32,
}

impl Default for Lane {
    fn default() -> Self {
        Lane { first: NONE, last: NONE, len: 0, tid: 0 }
    }
}

/// All chunks; free ones form a chain. Chunks never used yet are not touched, so that they cost no memory.
pub struct Arena {
    chunks: Vec<Chunk>,
    /// Beside the chunks, once there is something to count.
    counts: Vec<[Counts; CHUNK]>,
    free: u16,
}

impl Default for Arena {
    fn default() -> Self {
        Arena { chunks: Vec::with_capacity(CHUNKS), counts: Vec::new(), free: NONE }
    }
}

impl Arena {
    /// From now on hits can have counts. Before any hit.
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
        self.chunks.push(Chunk { hits: [Hit::default(); CHUNK], next: NONE });
        if self.counts.capacity() > 0 {
            self.counts.push([Counts::default(); CHUNK]);
        }
        Some((self.chunks.len() - 1) as u16)
    }

    /// Appends a hit. False: the arena is full.
    pub fn push(&mut self, lane: &mut Lane, hit: Hit) -> bool {
        let at = lane.len as usize % CHUNK;
        if at == 0 {
            let Some(i) = self.take() else { return false };
            match lane.last {
                NONE => lane.first = i,
                last => self.chunks[last as usize].next = i,
            }
            lane.last = i;
        }
        self.chunks[lane.last as usize].hits[at] = hit;
        lane.len += 1;
        self.set_counts(lane, Counts::default());
        true
    }

    /// Gives the lane's newest hit its counts.
    pub fn set_counts(&mut self, lane: &Lane, counts: Counts) {
        let at = lane.len.wrapping_sub(1) as usize % CHUNK;
        if let Some(chunk) = self.counts.get_mut(lane.last as usize) {
            chunk[at] = counts;
        }
    }

    /// The lane's newest hit.
    pub fn last_mut(&mut self, lane: &Lane) -> Option<&mut Hit> {
        let at = (lane.len as usize).checked_sub(1)? % CHUNK;
        Some(&mut self.chunks.get_mut(lane.last as usize)?.hits[at])
    }

    /// The lane's hits, oldest first.
    pub fn iter(&self, lane: &Lane) -> impl Iterator<Item = &Hit> {
        self.counted(lane).map(|(hit, _)| hit)
    }

    /// The same with their counts, where there is something to count.
    pub fn counted(&self, lane: &Lane) -> impl Iterator<Item = (&Hit, Option<&Counts>)> {
        let (mut index, mut at) = (lane.first as usize, 0);
        let mut left = lane.len;
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

    /// Gives the lane's chunks back.
    pub fn release(&mut self, lane: &mut Lane) {
        if lane.last != NONE {
            self.chunks[lane.last as usize].next = self.free;
            self.free = lane.first;
        }
        *lane = Lane::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_share_the_arena_and_give_it_back() {
        let mut arena = Arena::default();
        for _ in 0..3 {
            let (mut a, mut b) = (Lane::default(), Lane::default());
            for i in 0..100u64 {
                assert!(arena.push(&mut a, Hit { start: i, ..Hit::default() }));
                assert!(arena.push(&mut b, Hit { start: 1000 + i, ..Hit::default() }));
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
        let mut lane = Lane::default();
        let pushed =
            std::iter::repeat_with(|| arena.push(&mut lane, Hit::default())).take_while(|ok| *ok).count();
        assert_eq!(pushed, CHUNK * CHUNKS);
    }
}
