//! The writer's table of tensors: content in, id out, fixed capacity. The least recently used are evicted first.

use super::record::Tensor;
use super::table::{HashIndex, hash_of};

/// Longest name kept of a tensor, bytes of UTF-8.
pub(crate) const MAX_NAME: usize = 255;
/// Most source slots of a tensor (ggml has GGML_MAX_SRC = 10).
pub(crate) const MAX_SRC: usize = 16;

pub(crate) type TensorName = heapless::String<MAX_NAME>;

/// Everything that identifies a tensor, in memory of fixed size; the sources' ids as [`coded`] says.
pub(crate) type KeptTensor = Tensor<TensorName, heapless::Vec<u32, MAX_SRC>>;

/// An id + 1, 0 for none.
pub(crate) fn coded(id: Option<u32>) -> u32 {
    id.map_or(0, |id| id.wrapping_add(1))
}

pub(crate) struct InternedTensor {
    pub id: u32,
    hash: u32,
    /// Block in which it was last interned or written.
    touched: u32,
    /// Block in which it was last written; 0 = never.
    pub written: u32,
    pub content: KeptTensor,
}

pub(crate) struct Tensors {
    entries: Vec<InternedTensor>,
    by_content: HashIndex,
    by_id: HashIndex,
    next_id: u32,
    /// Where the next search for an entry to evict starts.
    hand: usize,
    max: usize,
}

/// Spreads consecutive ids.
fn id_hash(id: u32) -> u32 {
    id.wrapping_mul(0x9E37_79B1)
}

impl Tensors {
    pub fn new(max: usize) -> Tensors {
        Tensors {
            entries: Vec::with_capacity(max),
            by_content: HashIndex::new(max),
            by_id: HashIndex::new(max),
            next_id: 0,
            hand: 0,
            max,
        }
    }

    /// The id of `content`, new if it is not in the table; `block` is the number of the current block.
    pub fn intern(&mut self, content: KeptTensor, block: u32) -> u32 {
        let hash = hash_of(&content);
        if let Some(slot) = self.by_content.find(hash, |s| self.entries[s].content == content) {
            self.entries[slot].touched = block;
            return self.entries[slot].id;
        }
        let id = self.next_id;
        self.next_id = self.next_id.wrapping_add(1);
        let entry = InternedTensor { id, hash, touched: block, written: 0, content };
        let slot = if self.entries.len() < self.max {
            self.entries.push(entry);
            self.entries.len() - 1
        } else {
            let slot = self.victim(block);
            self.by_content.remove(self.entries[slot].hash, slot);
            self.by_id.remove(id_hash(self.entries[slot].id), slot);
            self.entries[slot] = entry;
            slot
        };
        self.by_content.insert(hash, slot);
        self.by_id.insert(id_hash(id), slot);
        id
    }

    /// The next entry used neither in this block nor in the two before it; the oldest one if there is none.
    fn victim(&mut self, block: u32) -> usize {
        let n = self.entries.len();
        for i in 0..n {
            let slot = (self.hand + i) % n;
            if self.entries[slot].touched.saturating_add(2) < block {
                self.hand = slot + 1;
                return slot;
            }
        }
        (0..n).min_by_key(|s| self.entries[*s].id).unwrap_or(0)
    }

    pub fn slot(&self, id: u32) -> Option<usize> {
        self.by_id.find(id_hash(id), |s| self.entries[s].id == id)
    }

    pub fn entry(&self, slot: usize) -> &InternedTensor {
        &self.entries[slot]
    }

    pub fn mark_written(&mut self, slot: usize, block: u32) {
        self.entries[slot].written = block;
        self.entries[slot].touched = block;
    }

    /// Slots of the tensors that `slot` refers to: the sources, then the tensor it is a view of.
    pub fn reference(&self, slot: usize, i: usize) -> Option<Option<usize>> {
        let c = &self.entries[slot].content;
        let coded = if i < c.src.len() {
            c.src[i]
        } else if i == c.src.len() {
            coded(c.view_src)
        } else {
            return None;
        };
        Some(coded.checked_sub(1).and_then(|id| self.slot(id)))
    }
}

/// A tensor's name as stored in the trace: up to the first NUL, valid UTF-8 without control characters, cut at
/// [`MAX_NAME`] bytes.
pub(crate) fn sanitise(name: &[u8]) -> TensorName {
    let mut out = TensorName::new();
    let end = name.iter().position(|b| *b == 0).unwrap_or(name.len());
    for chunk in name[..end].utf8_chunks() {
        let bad = (!chunk.invalid().is_empty()).then_some(char::REPLACEMENT_CHARACTER);
        for c in chunk.valid().chars().chain(bad) {
            let c = if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
            if out.push(c).is_err() {
                return out;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_clean_and_short() {
        assert_eq!(sanitise(b"blk.0.attn_q.weight\0junk"), "blk.0.attn_q.weight");
        assert_eq!(sanitise(b"a\xffb\x1b[31m"), "a\u{fffd}b\u{fffd}[31m");
        assert_eq!(sanitise("é".repeat(200).as_bytes()).len(), 254);
    }

    fn content(addr: u64) -> KeptTensor {
        KeptTensor {
            pid: 1,
            addr,
            known: false,
            op: 0,
            ty: 0,
            flags: 0,
            name: TensorName::new(),
            ne: [1; 4],
            nb: None,
            src: heapless::Vec::new(),
            view_src: None,
        }
    }

    #[test]
    fn a_full_table_gives_up_what_was_not_used_lately() {
        let mut t = Tensors::new(4);
        let ids: Vec<u32> = (0..4).map(|a| t.intern(content(a), 1)).collect();
        assert_eq!(ids, [0, 1, 2, 3]);
        for block in 2..10 {
            let slot = t.slot(0).unwrap();
            t.mark_written(slot, block);
        }
        assert_eq!(t.intern(content(100), 9), 4);
        assert_eq!(t.intern(content(101), 9), 5);
        assert!(t.slot(0).is_some() && t.slot(1).is_none() && t.slot(2).is_none() && t.slot(3).is_some());
        assert_eq!(t.intern(content(1), 9), 6, "an id is never used twice");
    }
}
