//! When a device backend enqueued the nodes of a split: collects the hits of its function for one node, and writes them as
//! groups of the split's plan when the split's call returns. Allocates only when created.

use std::io::Write;

use crate::recorder::nodes::MAX_NODES;
use pfi::{Encoder, EnqueueRun, WriteError};

/// Splits in progress on different threads.
const SPLITS: usize = 4;
/// More nodes than any backend fuses into one group: the largest patterns of ggml-vulkan.cpp, for the choice of experts,
/// have about a dozen.
const TOO_MANY: u32 = 32;

/// What the hits of a split say about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SplitFit {
    /// There were none.
    Unhit,
    /// They are its nodes.
    Fits,
    /// They leave out more nodes than a backend fuses: not all were seen, or the function is another one.
    Misfit,
}

/// A node is enqueued.
#[derive(Debug, Clone, Copy)]
pub struct NodeHit {
    /// The node's index in its graph.
    pub index: u32,
    pub t: u64,
    /// Kernels that the thread had given to a device before.
    pub kernels: u32,
}

/// Nodes that were enqueued together.
#[derive(Debug, Clone, Copy)]
struct Group {
    nodes: u32,
    ns: u64,
    kernels: u32,
}

/// The hits of one split.
struct SplitHits {
    tid: u32,
    seq: u64,
    hits: Vec<NodeHit>,
}

/// The hits of splits in progress.
pub struct EnqueueHits {
    splits: Vec<SplitHits>,
    groups: Vec<Group>,
    /// Hits outside any split, or beyond the room for them.
    pub unplaced: u64,
}

impl Default for EnqueueHits {
    fn default() -> Self {
        let split = || SplitHits { tid: 0, seq: 0, hits: Vec::with_capacity(MAX_NODES) };
        EnqueueHits {
            splits: (0..SPLITS).map(|_| split()).collect(),
            groups: Vec::with_capacity(MAX_NODES),
            unplaced: 0,
        }
    }
}

impl EnqueueHits {
    /// A node of the split `seq` is enqueued.
    pub fn hit(&mut self, tid: u32, seq: u64, hit: NodeHit) {
        let own = self.splits.iter().position(|s| s.tid == tid && s.seq == seq && !s.hits.is_empty());
        // Hits of a split that never returned make room.
        let free = || self.splits.iter().position(|s| s.hits.is_empty() || s.tid == tid);
        let Some(split) = own.or_else(free).and_then(|i| self.splits.get_mut(i)) else {
            self.unplaced += 1;
            return;
        };
        if own.is_none() {
            (split.tid, split.seq) = (tid, seq);
            split.hits.clear();
        }
        if split.hits.len() < MAX_NODES {
            split.hits.push(hit);
        } else {
            self.unplaced += 1;
        }
    }

    /// Index of the split's last hit.
    pub fn last_index(&self, tid: u32, seq: u64) -> Option<u32> {
        let split = self.splits.iter().find(|s| s.tid == tid && s.seq == seq)?;
        split.hits.last().map(|hit| hit.index)
    }

    /// The split `run.split` has returned at `end`, a hit with the index of no node: writes its groups if they fit. `work` are the indices of the plan's
    /// nodes; what else was hit is no work, and its time goes to the group before it.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub fn write<W: Write>(
        &mut self,
        run: EnqueueRun,
        end: NodeHit,
        work: impl Iterator<Item = u32>,
        enc: &mut Encoder<W>,
    ) -> Result<SplitFit, WriteError> {
        let own = |s: &&mut SplitHits| s.tid == run.tid && s.seq == run.split && !s.hits.is_empty();
        let Some(split) = self.splits.iter_mut().find(own) else {
            self.groups.clear();
            return Ok(SplitFit::Unhit);
        };
        let (mut first, mut begin) = (0, None);
        let mut work = work.peekable();
        self.groups.clear();
        // Older backends go over the graph several times, to find out what memory it needs; the last time counts.
        let again = split
            .hits
            .windows(2)
            .rposition(|w| matches!(w, [a, b] if b.index < a.index))
            .map_or(0, |i| i + 1);
        let hits = split.hits.get(again..).unwrap_or_default();
        let rest = hits.iter().skip(1).copied().chain([end]);
        for (&hit, next) in hits.iter().zip(rest) {
            let ns = next.t.saturating_sub(hit.t);
            let kernels = next.kernels.wrapping_sub(hit.kernels);
            while begin.is_none() && work.next_if(|w| *w < hit.index).is_some() {
                first += 1;
            }
            let mut nodes = 0;
            while work.next_if(|w| *w < next.index).is_some() {
                nodes += 1;
            }
            match (nodes, self.groups.last_mut()) {
                (0, None) => {}
                (0, Some(last)) => {
                    last.ns = last.ns.saturating_add(ns);
                    last.kernels = last.kernels.wrapping_add(kernels);
                }
                (nodes, _) => {
                    begin.get_or_insert(hit.t);
                    self.groups.push(Group { nodes, ns, kernels });
                }
            }
        }
        split.hits.clear();
        if self.groups.iter().any(|g| g.nodes > TOO_MANY) {
            self.groups.clear();
            return Ok(SplitFit::Misfit);
        }
        if let Some(t) = begin {
            let groups = self.groups.iter().map(|g| (g.nodes, g.ns));
            let run = EnqueueRun { first, t: t as i64, ..run };
            enc.enqueued(&run, groups).inspect_err(|_| self.groups.clear())?;
        }
        Ok(SplitFit::Fits)
    }

    /// The kernels of each group that the last call of `write` has written; none the next time.
    pub fn take_kernels(&mut self) -> impl Iterator<Item = u32> {
        self.groups.drain(..).map(|g| g.kernels)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder::sample;
    use pfi::record::{Enqueued, Record};
    use pfi::{PlanHit, Trace};

    /// What is written of hits at these indices, one every 10 ns, for a plan of these nodes: first, start, groups.
    fn written(hits: &[u32], work: &[u32]) -> Option<(u32, i64, Vec<u8>)> {
        let mut enc = Encoder::new(Vec::new(), Default::default(), &sample::HEADER).expect("written");
        let mut all = EnqueueHits::default();
        for (i, index) in hits.iter().enumerate() {
            all.hit(7, 3, NodeHit { index: *index, t: 100 + 10 * i as u64, kernels: 2 * i as u32 });
        }
        let nodes: Vec<PlanHit> = work.iter().map(|w| PlanHit { tensor: *w, fused: None }).collect();
        let plan = enc.plan(1, 9, &nodes).expect("a plan");
        let run = EnqueueRun { split: 3, pid: 1, tid: 7, plan, first: 0, t: 0 };
        let n = hits.len() as u32;
        let end = NodeHit { index: u32::MAX, t: 100 + 10 * u64::from(n), kernels: 2 * n };
        let fit = all.write(run, end, work.iter().copied(), &mut enc);
        let fit = fit.expect("written");
        assert_eq!(fit == SplitFit::Unhit, hits.is_empty());
        let trace = Trace::from_bytes(enc.finish(&sample::footer()).expect("written")).expect("a trace");
        let mut found = None;
        for i in 0..trace.blocks().len() {
            for r in trace.block(i).expect("whole").records() {
                if let Record::Enqueued(Enqueued { first, t, data, .. }) = r.expect("a record") {
                    found = Some((first, t, data.to_vec()));
                }
            }
        }
        found
    }

    #[test]
    fn nodes_up_to_the_next_hit_are_one_group() {
        // The nodes 1 and 2 are fused; 3 is a view.
        assert_eq!(written(&[0, 1, 3, 4], &[0, 1, 2, 4]), Some((0, 100, vec![1, 10, 2, 20, 1, 10])));
    }

    #[test]
    fn nodes_before_the_first_hit_were_not_seen() {
        assert_eq!(written(&[2, 3], &[0, 1, 2, 3]), Some((2, 100, vec![1, 10, 1, 10])));
        // A view before the first node of a group has no group to add to.
        assert_eq!(written(&[0, 1], &[1]), Some((0, 110, vec![1, 10])));
        assert_eq!(written(&[], &[1]), None);
        assert_eq!(written(&[5], &[1]), None);
    }

    #[test]
    fn groups_larger_than_any_fusion_are_not_written() {
        let work: Vec<u32> = (0..100).collect();
        assert!(written(&[0, 32, 64, 96], &work).is_some());
        assert_eq!(written(&[0, 33, 64, 96], &work), None);
        assert_eq!(written(&[0, 32, 64], &work), None, "the last nodes");
    }

    #[test]
    fn the_last_pass_over_the_graph_counts() {
        assert_eq!(written(&[0, 1, 2, 0, 1, 2], &[0, 2]), Some((0, 130, vec![1, 20, 1, 10])));
    }

    #[test]
    fn a_split_that_never_returned_leaves_its_place() {
        let mut all = EnqueueHits::default();
        let at = |t| NodeHit { index: 0, t, kernels: 0 };
        (0..9).for_each(|seq| all.hit(7, seq, at(seq)));
        assert_eq!((all.unplaced, all.splits.iter().filter(|s| !s.hits.is_empty()).count()), (0, 1));
        (0..9).for_each(|tid| all.hit(tid, 20, at(1)));
        assert_eq!(all.unplaced, 5);
    }
}
