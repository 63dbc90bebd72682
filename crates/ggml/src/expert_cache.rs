//! Which experts of a layer stay in a few slots, and which are read early: the rules of ggml-runner, and of what is
//! predicted for it. Uses nothing else.
//!
//! An op needs a set of experts, each once. An expert that is in a slot when the op begins is a hit; any other is read.

/// Which expert makes room for one that is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ExpertPolicy {
    /// The one that was needed the longest time ago.
    Lru,
    /// The one that was needed the fewest times since the beginning; of several, the one of the longest time ago.
    Lfu,
    /// None: the experts of the beginning stay.
    Pin,
}

/// An expert to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertRead {
    pub expert: u16,
    /// The slot that it stays in; none if it is needed for this op alone.
    pub slot: Option<u32>,
}

/// Parts of a key: when an expert was needed last, how often above it, and at the top that it must stay now.
const LAST_BITS: u32 = 38;
const LAST: u64 = (1 << LAST_BITS) - 1;
const WANTED: u64 = 1 << 63;
const MOST_NEEDED: u64 = (1 << (63 - LAST_BITS)) - 1;

/// The slots of a layer.
#[derive(Debug, Clone)]
pub struct ExpertSlots {
    policy: ExpertPolicy,
    /// Expert of each slot in use, and its place in the order in which they go ([`ExpertSlots::key`]): a search reads these alone.
    held: Vec<u16>,
    keys: Vec<u64>,
    slots: usize,
    /// By expert: its slot, when it was needed or read last, and how often it was needed.
    of: Vec<HeldExpert>,
    tick: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct HeldExpert {
    slot: Option<u32>,
    last: u64,
    needed: u64,
}

impl ExpertSlots {
    /// Empty slots of a layer of `experts` experts; no more slots than experts are made.
    pub fn new(policy: ExpertPolicy, slots: usize, experts: usize) -> Self {
        let slots = slots.min(experts);
        ExpertSlots {
            policy,
            held: Vec::with_capacity(slots),
            keys: Vec::with_capacity(slots),
            slots,
            of: vec![HeldExpert::default(); experts],
            tick: 0,
        }
    }

    /// Slots in which the first of these experts stay until they make room. Gives what to read.
    pub fn warmed(mut self, experts: &[u16]) -> (Self, Vec<ExpertRead>) {
        let mut reads = Vec::new();
        for expert in experts.iter().take(self.slots).rev() {
            self.put(*expert, 0, &mut reads);
        }
        (self, reads)
    }

    /// The slot of an expert.
    pub fn slot(&self, expert: u16) -> Option<u32> {
        self.of.get(usize::from(expert))?.slot
    }

    /// An op needs these experts, each named once; adds what is to be read, and gives the number of hits. Experts that the
    /// layer does not have are neither.
    pub fn need(&mut self, wanted: &[u16], reads: &mut Vec<ExpertRead>) -> usize {
        let missing = |s: &Self, e: u16| s.of.get(usize::from(e)).is_some_and(|h| h.slot.is_none());
        let absent: Vec<u16> = wanted.iter().copied().filter(|e| missing(self, *e)).collect();
        // Of more experts than slots, the last ones stay.
        let (passing, staying) = wanted.split_at(wanted.len().saturating_sub(self.slots));
        self.touch(passing);
        let since = self.tick + 1;
        self.touch(staying);
        for expert in &absent {
            match self.policy != ExpertPolicy::Pin && staying.contains(expert) {
                true => self.put(*expert, since, reads),
                false => reads.push(ExpertRead { expert: *expert, slot: None }),
            }
        }
        wanted.iter().filter(|e| usize::from(**e) < self.of.len()).count() - absent.len()
    }

    /// These experts may be needed soon: adds those to read now. At most as many are read as leave room for the experts of
    /// one op, `used`.
    pub fn expect(&mut self, predicted: &[u16], used: usize, reads: &mut Vec<ExpertRead>) {
        let since = self.tick + 1;
        for expert in predicted.iter().take(self.slots.saturating_sub(used)) {
            let Some(of) = self.of.get_mut(usize::from(*expert)) else { continue };
            self.tick += 1;
            of.last = self.tick;
            match of.slot {
                Some(slot) => self.keep(slot, *expert),
                None => self.put(*expert, since, reads),
            }
        }
    }

    fn touch(&mut self, experts: &[u16]) {
        for expert in experts {
            self.tick += 1;
            if let Some(of) = self.of.get_mut(usize::from(*expert)) {
                of.last = self.tick;
                of.needed += 1;
                if let Some(slot) = of.slot {
                    self.keep(slot, *expert);
                }
            }
        }
    }

    /// The lowest goes first: when it was needed last, or above it how often it was needed.
    fn key(&self, expert: u16) -> u64 {
        let of = self.of.get(usize::from(expert)).copied().unwrap_or_default();
        let last = of.last & LAST;
        if self.policy == ExpertPolicy::Lfu { of.needed.min(MOST_NEEDED) << LAST_BITS | last } else { last }
    }

    /// An expert of a slot was needed.
    fn keep(&mut self, slot: u32, expert: u16) {
        let now = self.key(expert);
        if let Some(key) = self.keys.get_mut(slot as usize) {
            *key = now;
        }
    }

    /// Reads an expert into a free slot, or into that of the one to go; experts needed or expected since `since` go last.
    fn put(&mut self, expert: u16, since: u64, reads: &mut Vec<ExpertRead>) {
        let slot = if self.held.len() < self.slots {
            self.held.push(expert);
            self.keys.push(0);
            self.held.len() - 1
        } else {
            let goes = |key: u64| if key & LAST >= since { key | WANTED } else { key };
            let Some((slot, _)) = self.keys.iter().enumerate().min_by_key(|(_, key)| goes(**key)) else {
                return;
            };
            slot
        };
        if let Some(held) = self.held.get_mut(slot) {
            let before = std::mem::replace(held, expert);
            if let Some(of) = self.of.get_mut(usize::from(before)) {
                of.slot = None;
            }
        }
        let slot = Some(slot as u32);
        if let Some(of) = self.of.get_mut(usize::from(expert)) {
            of.slot = slot;
        }
        if let Some(slot) = slot {
            self.keep(slot, expert);
        }
        reads.push(ExpertRead { expert, slot });
    }
}

/// Which experts of the next layer follow those of a layer, as far as it was seen.
#[derive(Debug, Clone)]
pub struct Successors {
    next: usize,
    /// By expert here and there: how often the two were needed by the same token.
    seen: Vec<u32>,
    /// By expert here: the one there that was seen most often with it.
    most: Vec<Option<u16>>,
}

impl Successors {
    /// Of a layer with `here` experts and the next with `next`.
    pub fn new(here: usize, next: usize) -> Self {
        Successors { next, seen: vec![0; here.saturating_mul(next)], most: vec![None; here] }
    }

    /// A token needed these experts here, and those in the next layer.
    pub fn learn(&mut self, here: &[u16], next: &[u16]) {
        for from in here.iter().map(|e| usize::from(*e)) {
            let row = from.saturating_mul(self.next);
            let (Some(seen), Some(most)) =
                (self.seen.get_mut(row..row.saturating_add(self.next)), self.most.get_mut(from))
            else {
                continue;
            };
            for to in next {
                let Some(n) = seen.get_mut(usize::from(*to)) else { continue };
                *n = n.saturating_add(1);
                let n = *n;
                let best = most.and_then(|m| seen.get(usize::from(m)).copied()).unwrap_or(0);
                if n > best {
                    *most = Some(*to);
                }
            }
        }
    }

    /// The experts of the next layer that are likely after these, each once.
    pub fn after(&self, here: &[u16]) -> Vec<u16> {
        let mut likely = Vec::with_capacity(here.len());
        for to in here.iter().filter_map(|e| *self.most.get(usize::from(*e))?) {
            if !likely.contains(&to) {
                likely.push(to);
            }
        }
        likely
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn slots(policy: ExpertPolicy, slots: usize) -> ExpertSlots {
        ExpertSlots::new(policy, slots, 8)
    }

    fn needed(s: &mut ExpertSlots, wanted: &[u16]) -> (usize, Vec<(u16, Option<u32>)>) {
        let mut reads = Vec::new();
        let hits = s.need(wanted, &mut reads);
        (hits, reads.iter().map(|r| (r.expert, r.slot)).collect())
    }

    #[test]
    fn what_was_needed_least_recently_goes() {
        let mut s = slots(ExpertPolicy::Lru, 3);
        assert_eq!(needed(&mut s, &[0, 1]), (0, vec![(0, Some(0)), (1, Some(1))]));
        assert_eq!(needed(&mut s, &[0, 2]), (1, vec![(2, Some(2))]));
        // 1 is the oldest, but is needed: 0 goes, which was needed before 2.
        assert_eq!(needed(&mut s, &[3, 1]), (1, vec![(3, Some(0))]));
        assert_eq!((s.slot(3), s.slot(0)), (Some(0), None));
    }

    #[test]
    fn what_was_needed_least_often_goes() {
        let mut s = slots(ExpertPolicy::Lfu, 2);
        for wanted in [[0], [0], [1], [2]] {
            needed(&mut s, &wanted);
        }
        assert_eq!((s.slot(0), s.slot(1), s.slot(2)), (Some(0), None, Some(1)));
        // Needed by this op, it stays, however rare it is.
        assert_eq!(needed(&mut s, &[2, 3]), (1, vec![(3, Some(0))]));
    }

    #[test]
    fn pinned_experts_stay_and_others_pass() {
        let (mut s, reads) = slots(ExpertPolicy::Pin, 2).warmed(&[5, 6, 7]);
        assert_eq!(reads.len(), 2);
        assert_eq!(needed(&mut s, &[5, 7]), (1, vec![(7, None)]));
        assert_eq!(needed(&mut s, &[6, 7]), (1, vec![(7, None)]));
    }

    #[test]
    fn more_experts_than_slots_pass_through() {
        let mut s = slots(ExpertPolicy::Lru, 2);
        let (hits, reads) = needed(&mut s, &[0, 1, 2]);
        assert_eq!((hits, reads), (0, vec![(0, None), (1, Some(0)), (2, Some(1))]));
        assert_eq!(needed(&mut s, &[0, 1, 2]).0, 2);
        // No slots, and experts that do not exist.
        assert_eq!(needed(&mut slots(ExpertPolicy::Lfu, 0), &[0, 1]).0, 0);
        assert_eq!(needed(&mut s, &[99]), (0, vec![]));
    }

    #[test]
    fn expected_experts_are_hits_and_leave_room_for_an_op() {
        let mut s = slots(ExpertPolicy::Lru, 4);
        needed(&mut s, &[0, 1]);
        let mut reads = Vec::new();
        s.expect(&[2, 3, 4], 2, &mut reads);
        assert_eq!(reads.iter().map(|r| r.expert).collect::<Vec<_>>(), [2, 3]);
        assert_eq!(needed(&mut s, &[2, 5]).0, 1);
    }

    #[test]
    fn successors_are_those_seen_most() {
        let mut s = Successors::new(4, 4);
        assert!(s.after(&[0, 1]).is_empty());
        s.learn(&[0, 1], &[2, 3]);
        s.learn(&[0], &[3]);
        assert_eq!((s.after(&[0]), s.after(&[1]), s.after(&[0, 1])), (vec![3], vec![2], vec![3, 2]));
        s.learn(&[9], &[1]);
        s.learn(&[3], &[9]);
        assert!(s.after(&[3, 9]).is_empty());
    }

    proptest! {
        /// A slot holds one expert, an expert is in one slot, and what an op needed is there after it if there is room.
        #[test]
        fn slots_and_experts_agree(
            ops in prop::collection::vec(prop::collection::hash_set(0u16..9, 0..5), 1..80),
            count in 0usize..9,
            lfu in any::<bool>(),
        ) {
            let mut s = slots(if lfu { ExpertPolicy::Lfu } else { ExpertPolicy::Lru }, count);
            for op in ops {
                let wanted: Vec<u16> = op.into_iter().collect();
                let there = wanted.iter().filter(|e| s.slot(**e).is_some()).count();
                let mut reads = Vec::new();
                prop_assert_eq!(s.need(&wanted, &mut reads), there);
                let known = wanted.iter().filter(|e| **e < 8).count();
                prop_assert_eq!(reads.len() + there, known);
                for (slot, expert) in s.held.iter().enumerate() {
                    prop_assert_eq!(s.slot(*expert), Some(slot as u32));
                }
                prop_assert_eq!((0..8).filter(|e| s.slot(*e).is_some()).count(), s.held.len());
                if wanted.len() <= count {
                    prop_assert!(wanted.iter().filter(|e| **e < 8).all(|e| s.slot(*e).is_some()));
                }
            }
        }
    }
}
