//! A hash index of fixed capacity: maps a hash to a slot number and allocates only at creation.

/// Open addressing with linear probing; the caller keeps the values and compares them.
pub(crate) struct HashIndex {
    /// Hash, and slot + 1 (0: empty).
    cells: Vec<(u32, u32)>,
    mask: usize,
}

impl HashIndex {
    /// Room for `slots` entries at a load factor of at most one half.
    pub fn new(slots: usize) -> HashIndex {
        let size = (slots * 2).next_power_of_two();
        HashIndex { cells: vec![(0, 0); size], mask: size - 1 }
    }

    /// The slot under `hash` that `same` accepts.
    pub fn find(&self, hash: u32, mut same: impl FnMut(usize) -> bool) -> Option<usize> {
        let mut at = hash as usize & self.mask;
        loop {
            let (h, slot) = self.cells[at];
            let slot = (slot as usize).checked_sub(1)?;
            if h == hash && same(slot) {
                return Some(slot);
            }
            at = (at + 1) & self.mask;
        }
    }

    /// Adds an entry. The caller never exceeds the capacity it asked for, so an empty cell exists.
    pub fn insert(&mut self, hash: u32, slot: usize) {
        let mut at = hash as usize & self.mask;
        while self.cells[at].1 != 0 {
            at = (at + 1) & self.mask;
        }
        self.cells[at] = (hash, slot as u32 + 1);
    }

    /// Removes an entry and closes the gap it leaves in its chain.
    pub fn remove(&mut self, hash: u32, slot: usize) {
        let mut hole = hash as usize & self.mask;
        while self.cells[hole] != (hash, slot as u32 + 1) {
            if self.cells[hole].1 == 0 {
                return;
            }
            hole = (hole + 1) & self.mask;
        }
        let mut at = hole;
        loop {
            at = (at + 1) & self.mask;
            let (h, s) = self.cells[at];
            if s == 0 {
                break;
            }
            // An entry may move to the hole unless its home lies cyclically between the hole and its current
            // cell.
            let from_home = at.wrapping_sub(h as usize) & self.mask;
            let from_hole = at.wrapping_sub(hole) & self.mask;
            if from_home >= from_hole {
                self.cells[hole] = (h, s);
                hole = at;
            }
        }
        self.cells[hole] = (0, 0);
    }
}

/// A 32-bit hash of `value`; the same in every run.
pub(crate) fn hash_of(value: impl std::hash::Hash) -> u32 {
    use std::hash::Hasher;
    let mut hasher = std::hash::DefaultHasher::new();
    value.hash(&mut hasher);
    let h = hasher.finish();
    (h ^ (h >> 32)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn behaves_like_a_map_under_churn() {
        let mut index = HashIndex::new(64);
        let mut live = std::collections::VecDeque::new();
        for i in 0..10_000usize {
            // A few distinct hashes make long chains that wrap around the end.
            let hash = (i as u32 * 7919 % 13) * 11;
            let slot = if live.len() == 64 {
                let (h, s) = live.pop_front().unwrap();
                index.remove(h, s);
                assert_eq!(index.find(h, |x| x == s), None);
                s
            } else {
                i
            };
            index.insert(hash, slot);
            live.push_back((hash, slot));
            for &(h, s) in &live {
                assert_eq!(index.find(h, |x| x == s), Some(s));
            }
        }
    }
}
