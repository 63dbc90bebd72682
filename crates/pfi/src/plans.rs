//! The writer's table of plans in their wire encoding, bounded in number and bytes. The least recently used are
//! evicted first.

use super::coding::{PlanHit, put_hits};
use super::table::hash_of;

/// Most bytes of encoded plans kept at a time; the current plan always fits.
const MAX_BYTES: usize = 4 << 20;

pub(crate) struct InternedPlan {
    pub id: u32,
    pub pid: u32,
    pub n_nodes: u32,
    /// Encoding of `record::Plan::hits`.
    pub hits: Vec<u8>,
    /// Block in which it was last written; 0 = never.
    pub written: u32,
    hash: u32,
    /// Logical clock at the last use.
    used: u64,
}

pub(crate) struct Plans {
    plans: Vec<InternedPlan>,
    max: usize,
    bytes: usize,
    next_id: u32,
    clock: u64,
    coded: Vec<u8>,
}

impl Plans {
    pub fn new(max: usize) -> Plans {
        Plans {
            plans: Vec::with_capacity(max),
            max,
            bytes: 0,
            next_id: 0,
            clock: 0,
            coded: Vec::with_capacity(64 << 10),
        }
    }

    /// The id of the plan with this content, new if it is not in the table.
    pub fn intern(&mut self, pid: u32, n_nodes: u32, hits: &[PlanHit]) -> u32 {
        self.coded.clear();
        put_hits(&mut self.coded, hits);
        self.clock += 1;
        let hash = hash_of((pid, n_nodes, self.coded.as_slice()));
        let same = |p: &&mut InternedPlan| {
            p.hash == hash && p.pid == pid && p.n_nodes == n_nodes && p.hits == self.coded
        };
        if let Some(plan) = self.plans.iter_mut().find(same) {
            plan.used = self.clock;
            return plan.id;
        }
        let id = self.next_id;
        self.next_id = self.next_id.wrapping_add(1);
        let mut store = self.make_room();
        store.clear();
        store.extend_from_slice(&self.coded);
        self.bytes += store.len();
        self.plans.push(InternedPlan { id, pid, n_nodes, hits: store, written: 0, hash, used: self.clock });
        id
    }

    /// Evicts old plans until the new one fits, and returns the buffer of one of them for reuse.
    fn make_room(&mut self) -> Vec<u8> {
        let mut store = Vec::new();
        while self.plans.len() >= self.max || self.bytes + self.coded.len() > MAX_BYTES {
            let Some(oldest) = (0..self.plans.len()).min_by_key(|i| self.plans[*i].used) else { break };
            store = self.plans.swap_remove(oldest).hits;
            self.bytes -= store.len();
        }
        store
    }

    /// The plan `id`, marked as used now.
    pub fn get(&mut self, id: u32) -> Option<&mut InternedPlan> {
        self.clock += 1;
        let plan = self.plans.iter_mut().find(|p| p.id == id)?;
        plan.used = self.clock;
        Some(plan)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interns_by_content_and_keeps_what_is_used() {
        let hit = |tensor| [PlanHit { tensor, fused: None }];
        let mut p = Plans::new(2);
        assert_eq!(p.intern(1, 5, &hit(1)), 0);
        assert_eq!(p.intern(1, 5, &hit(2)), 1);
        assert_eq!(p.intern(1, 5, &hit(1)), 0);
        assert_eq!(p.intern(1, 6, &hit(1)), 2);
        assert!(p.get(0).is_some() && p.get(1).is_none() && p.get(2).is_some());
    }
}
