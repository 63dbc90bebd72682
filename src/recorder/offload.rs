//! What a split gives to a backend other than the CPU's: its nodes, as a plan in the trace. Allocates only when created.

use std::io::Write;

use crate::capture::structure::TensorTable;
use crate::recorder::nodes::{MAX_NODES, NodeLists};
use pfi::{Encoder, PlanHit, WriteError};

/// Plans kept, by (process, cgraph).
const PLANS: usize = 32;
/// The encoder keeps the 256 plans used last: one last used this many plans ago is written again rather than assumed
/// to be there. CPU graphs count theirs separately.
const FRESH: u64 = 128;

/// The plan of a split's graph, valid while neither its nodes nor any tensor changes.
#[derive(Clone, Copy)]
struct SplitPlan {
    tgid: u32,
    cgraph: u64,
    version: u64,
    id: u32,
    /// Plans written when this one was last used.
    used: u64,
}

/// The plans of splits on other backends.
pub struct SplitPlans {
    plans: heapless::Deque<SplitPlan, PLANS>,
    hits: Vec<PlanHit>,
    /// Plans written so far.
    written: u64,
}

impl Default for SplitPlans {
    fn default() -> Self {
        SplitPlans { plans: heapless::Deque::new(), hits: Vec::with_capacity(MAX_NODES), written: 0 }
    }
}

impl SplitPlans {
    /// The nodes of a graph have changed.
    pub fn forget(&mut self, tgid: u32, cgraph: u64) {
        for p in self.plans.iter_mut().filter(|p| (p.tgid, p.cgraph) == (tgid, cgraph)) {
            p.version = 0;
        }
    }

    /// The plan of a graph; None if its nodes are not known. `ops` as in [`NodeLists::demand`].
    ///
    /// # Errors
    /// The trace cannot be written.
    pub fn plan<W: Write>(
        &mut self,
        (tgid, cgraph, n_nodes): (u32, u64, u32),
        nodes: &NodeLists,
        ops: &[(bool, bool)],
        tensors: &mut TensorTable,
        enc: &mut Encoder<W>,
    ) -> Result<Option<u32>, WriteError> {
        let (version, written) = (tensors.version(), self.written);
        let mut old = self.plans.iter_mut().find(|p| (p.tgid, p.cgraph) == (tgid, cgraph));
        if let Some(p) = &mut old
            && p.version == version
            && written - p.used < FRESH
        {
            p.used = written;
            return Ok(Some(p.id));
        }
        let Some(work) = nodes.offloaded(tgid, cgraph, ops) else { return Ok(None) };
        self.hits.clear();
        for (_, at) in work {
            self.hits.push(PlanHit { tensor: tensors.intern(enc, tgid, at)?, fused: None });
        }
        let id = enc.plan(tgid, n_nodes, &self.hits)?;
        self.written += 1;
        let new = SplitPlan { tgid, cgraph, version, id, used: self.written };
        match old {
            Some(p) => *p = new,
            None => {
                if self.plans.is_full() {
                    self.plans.pop_front();
                }
                let _ = self.plans.push_back(new);
            }
        }
        Ok(Some(id))
    }
}
