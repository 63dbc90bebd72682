//! What caches of experts would hold: the ops of a layer, replayed under each policy.

use crate::recorded::calls::Phase;
use crate::sums::attribution::expert_ops::{LayerOp, LayerOps};
use common::order;
use ggml::expert_cache::{ExpertPolicy, ExpertSlots, Successors};

/// What reading experts of one layer at the same time takes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ReadTimes {
    /// ns for one expert, for two, and so on.
    pub ns: Vec<f64>,
}

impl ReadTimes {
    /// ns for `experts` experts; beyond those known, in proportion. None: nothing is known.
    pub fn of(&self, experts: usize) -> Option<f64> {
        let known = self.ns.len();
        match experts {
            0 => Some(0.0),
            _ if experts <= known => self.ns.get(experts - 1).copied(),
            _ => self.ns.last().map(|last| last * experts as f64 / known as f64),
        }
    }
}

/// What was needed of a cache, and what it had.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Held {
    /// Experts that ops needed, each once an op.
    pub needed: u64,
    pub hits: u64,
    /// Experts read before an op needed them.
    pub early: u64,
    /// What ops waited for experts, ns: if they computed nothing meanwhile, and those read early took as long; and if they
    /// computed the others meanwhile, and early reads took nothing.
    pub most_ns: f64,
    pub least_ns: f64,
}

impl Held {
    pub fn hit_rate(&self) -> Option<f64> {
        (self.needed > 0).then(|| self.hits as f64 / self.needed as f64)
    }

    pub fn merge(&mut self, o: &Held) {
        self.needed += o.needed;
        self.hits += o.hits;
        self.early += o.early;
        self.most_ns += o.most_ns;
        self.least_ns += o.least_ns;
    }
}

/// Counts by part of the recording: `None` leaves an op out.
pub type PartOf<'p> = &'p dyn Fn(&LayerOp) -> Option<usize>;

/// A layer's ops, each counted in its part.
pub struct Replay<'l> {
    pub layer: &'l LayerOps,
    pub slots: usize,
    pub parts: usize,
    pub part: PartOf<'l>,
    pub times: &'l ReadTimes,
    /// Time that an op computes its experts, ns.
    pub compute_ns: f64,
}

impl Replay<'_> {
    fn count(&self, mut hits: impl FnMut(&LayerOp, &[u16]) -> (usize, usize)) -> Vec<Held> {
        let mut held = vec![Held::default(); self.parts];
        for op in &self.layer.ops {
            let needed = self.layer.needed(op);
            let (there, early) = hits(op, needed);
            if let Some(of) = (self.part)(op).and_then(|part| held.get_mut(part)) {
                let wait = |experts| self.times.of(experts).unwrap_or(0.0);
                let missed = needed.len().saturating_sub(there);
                of.merge(&Held {
                    needed: needed.len() as u64,
                    hits: there as u64,
                    early: early as u64,
                    most_ns: wait(missed + early),
                    least_ns: (wait(missed) - self.compute_ns).max(0.0),
                });
            }
        }
        held
    }

    /// Slots that start empty and follow `policy`.
    pub fn slots(&self, policy: ExpertPolicy) -> Vec<Held> {
        let mut slots = ExpertSlots::new(policy, self.slots, self.layer.experts);
        let mut reads = Vec::new();
        self.count(|_, needed| {
            reads.clear();
            (slots.need(needed, &mut reads), 0)
        })
    }

    /// The least recently used expert goes, and those likely after the experts of the layer before are read while that one
    /// computes; learned from the ops so far. Without ids of the layer before, nothing is read early.
    pub fn early(&self, before: Option<&LayerOps>) -> Vec<Held> {
        let mut slots = ExpertSlots::new(ExpertPolicy::Lru, self.slots, self.layer.experts);
        let mut likely = Successors::new(before.map_or(0, |l| l.experts), self.layer.experts);
        let (mut reads, mut earlier) = (Vec::new(), before.map(|l| l.ops.iter().peekable()));
        self.count(|op, needed| {
            reads.clear();
            let single = |o: &LayerOp| o.tokens == 1;
            let mut of_before = None;
            if let (Some(layer), Some(ops)) = (before, &mut earlier) {
                while ops.next_if(|o| o.graph < op.graph).is_some() {}
                of_before = ops.next_if(|o| o.graph == op.graph && single(o)).map(|o| layer.needed(o));
            }
            let Some(of_before) = of_before.filter(|_| single(op)) else {
                return (slots.need(needed, &mut reads), 0);
            };
            slots.expect(&likely.after(of_before), of_before.len(), &mut reads);
            let early = reads.len();
            let hits = slots.need(needed, &mut reads);
            likely.learn(of_before, needed);
            (hits, early)
        })
    }

    /// The experts of `pinned` stay; any other is read each time.
    pub fn pinned(&self, pinned: impl Fn(&LayerOp) -> usize, by: &[Vec<u16>]) -> Vec<Held> {
        let of: Vec<Vec<bool>> = by.iter().map(|ranked| self.marks(ranked)).collect();
        self.count(|op, needed| {
            let marks = of.get(pinned(op)).map(Vec::as_slice).unwrap_or_default();
            (needed.iter().filter(|e| marks.get(usize::from(**e)) == Some(&true)).count(), 0)
        })
    }

    fn marks(&self, ranked: &[u16]) -> Vec<bool> {
        let mut marks = vec![false; self.layer.experts];
        for expert in ranked.iter().take(self.slots) {
            if let Some(mark) = marks.get_mut(usize::from(*expert)) {
                *mark = true;
            }
        }
        marks
    }

    /// No cache that reads an expert when it is needed has more hits: what is kept after an op is what is needed next (Belady
    /// 1966, with the choice not to keep what was read).
    pub fn optimum(&self) -> Vec<Held> {
        let next = next_uses(self.layer);
        let mut next = next.iter();
        // Experts kept, and the op that needs each next.
        let mut kept: Vec<(u64, u16)> = Vec::with_capacity(self.slots + 1);
        self.count(|_, needed| {
            let mut hits = 0;
            for expert in needed {
                let at = next.next().copied().unwrap_or(u64::MAX);
                match kept.iter_mut().find(|(_, e)| e == expert) {
                    Some(there) => {
                        hits += 1;
                        there.0 = at;
                    }
                    None => kept.push((at, *expert)),
                }
            }
            while kept.len() > self.slots {
                let Some((last, _)) = kept.iter().enumerate().max_by_key(|(_, of)| **of) else { break };
                kept.swap_remove(last);
            }
            (hits, 0)
        })
    }
}

/// For each expert of each op: the number of the op that needs it next.
fn next_uses(layer: &LayerOps) -> Vec<u64> {
    let mut of_expert = vec![u64::MAX; layer.experts];
    let mut all = Vec::new();
    for (i, op) in layer.ops.iter().enumerate().rev() {
        // The same order in reverse, of an op as well.
        for expert in layer.needed(op).iter().rev() {
            let Some(next) = of_expert.get_mut(usize::from(*expert)) else { continue };
            all.push(std::mem::replace(next, i as u64));
        }
    }
    all.reverse();
    all
}

/// The experts of a layer by how often decode needed them in the ops of which `counted` is true, most often first; those that
/// it never needed are missing.
pub fn ranked(layer: &LayerOps, counted: impl Fn(&LayerOp) -> bool) -> Vec<(u16, u64)> {
    let mut uses = vec![0u64; layer.experts];
    for op in layer.ops.iter().filter(|op| op.phase != Phase::Prefill && counted(op)) {
        for expert in layer.needed(op) {
            if let Some(n) = uses.get_mut(usize::from(*expert)) {
                *n += 1;
            }
        }
    }
    let mut ranked: Vec<(u16, u64)> = (0..).zip(uses).filter(|(_, n)| *n > 0).collect();
    order::by_key(&mut ranked, |(expert, n)| (!n, (*expert).into()));
    ranked
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sums::attribution::expert_ops::made::layer;
    use proptest::prelude::*;

    fn rate(held: &[Held]) -> (u64, u64) {
        held.iter().fold((0, 0), |sum, h| (sum.0 + h.hits, sum.1 + h.needed))
    }

    fn replay(layer: &LayerOps, slots: usize) -> Replay<'_> {
        static FREE: ReadTimes = ReadTimes { ns: Vec::new() };
        Replay { layer, slots, parts: 1, part: &|_| Some(0), times: &FREE, compute_ns: 0.0 }
    }

    #[test]
    fn an_op_waits_for_all_that_it_reads_at_the_same_time() {
        let times = ReadTimes { ns: vec![10.0, 12.0] };
        assert_eq!([0, 1, 2, 4].map(|n| times.of(n)), [0.0, 10.0, 12.0, 24.0].map(Some));
        assert_eq!(ReadTimes::default().of(1), None);
        // Two missed, none, one.
        let of = layer(3, &[vec![0, 1], vec![1, 0], vec![0, 2]]);
        let held = Replay { times: &times, ..replay(&of, 2) }.slots(ExpertPolicy::Lru);
        assert_eq!((held[0].hits, held[0].most_ns, held[0].least_ns), (3, 22.0, 22.0));
        // What an op computes meanwhile it does not wait for.
        let held = Replay { times: &times, compute_ns: 11.0, ..replay(&of, 2) }.slots(ExpertPolicy::Lru);
        assert_eq!((held[0].most_ns, held[0].least_ns), (22.0, 1.0));
        let ops: Vec<Vec<u16>> = (0..12).map(|i| vec![i % 4]).collect();
        let (before, after) = (layer(4, &ops), layer(4, &ops));
        let held = Replay { times: &times, ..replay(&after, 2) }.early(Some(&before));
        // Four were missed, and the other eight were read early.
        assert_eq!((held[0].most_ns, held[0].least_ns), (120.0, 40.0));
    }

    #[test]
    fn the_optimum_keeps_what_is_needed_next() {
        // A cycle of three through two slots: LRU never hits; the optimum keeps 0 and 1 and reads 2 each time.
        let of = layer(3, &[vec![0], vec![1], vec![2], vec![0], vec![1], vec![2], vec![0]]);
        let r = replay(&of, 2);
        assert_eq!((rate(&r.slots(ExpertPolicy::Lru)), rate(&r.optimum())), ((0, 7), (3, 7)));
    }

    #[test]
    fn experts_that_follow_each_other_are_read_early() {
        let ops: Vec<Vec<u16>> = (0..12).map(|i| vec![i % 4]).collect();
        let (before, after) = (layer(4, &ops), layer(4, &ops));
        // Two slots and four experts in turn: never a hit, but after the first round each is known.
        let r = replay(&after, 2);
        assert_eq!(rate(&r.early(None)), (0, 12));
        let held = r.early(Some(&before));
        assert_eq!((held[0].hits, held[0].early), (8, 8));
    }

    #[test]
    fn pinned_experts_are_those_of_their_profile() {
        let of = layer(4, &[vec![0], vec![0], vec![3], vec![0], vec![2]]);
        let by = ranked(&of, |_| true);
        assert_eq!(by, [(0, 3), (2, 1), (3, 1)]);
        let by = [by.into_iter().map(|(e, _)| e).collect::<Vec<_>>()];
        assert_eq!(rate(&replay(&of, 1).pinned(|_| 0, &by)), (3, 5));
        assert_eq!(rate(&replay(&of, 2).pinned(|_| 0, &by)), (4, 5));
        assert_eq!(rate(&replay(&of, 2).pinned(|_| 7, &by)), (0, 5));
    }

    #[test]
    fn ops_are_counted_in_their_part() {
        let of = layer(2, &[vec![0], vec![0], vec![1], vec![0]]);
        let part = |op: &LayerOp| (op.graph != 1).then_some((op.graph / 2) as usize);
        let held = Replay { parts: 2, part: &part, ..replay(&of, 2) }.slots(ExpertPolicy::Lru);
        assert_eq!(held.iter().map(|h| (h.hits, h.needed)).collect::<Vec<_>>(), [(0, 1), (1, 2)]);
    }

    proptest! {
        /// No policy that reads on demand is better than the optimum, and with room for all each expert is read once.
        #[test]
        fn nothing_is_better_than_the_optimum(
            ops in prop::collection::vec(prop::collection::hash_set(0u16..8, 0..4), 1..60),
            slots in 0usize..9,
        ) {
            let ops: Vec<Vec<u16>> = ops.into_iter().map(|op| op.into_iter().collect()).collect();
            let of = layer(8, &ops);
            let r = replay(&of, slots);
            let best = rate(&r.optimum());
            let by = [ranked(&of, |_| true).into_iter().map(|(e, _)| e).collect::<Vec<_>>()];
            for policy in [ExpertPolicy::Lru, ExpertPolicy::Lfu] {
                prop_assert!(rate(&r.slots(policy)).0 <= best.0);
            }
            let distinct = ops.iter().flatten().collect::<std::collections::HashSet<_>>().len();
            // What is pinned was read before.
            prop_assert!(rate(&r.pinned(|_| 0, &by)).0 <= best.0 + slots.min(distinct) as u64);
            if slots >= 8 {
                prop_assert_eq!(best.1 - best.0, distinct as u64);
                prop_assert_eq!(rate(&r.slots(ExpertPolicy::Lru)), best);
            }
            if slots == 0 {
                prop_assert_eq!(best.0, 0);
            }
        }
    }
}
