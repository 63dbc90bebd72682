//! Node lists of the target's graphs and what they demand: how many op hits each thread must make. Uses `structure`.
//! Allocates only when created.

use super::event;
use super::structure::{Desc, FLAG_COMPUTE, Structure};

/// Nodes kept of one graph; the BPF side stops there too (NODES_MAX).
const MAX_NODES: usize = 8192;
/// Graphs remembered, by (process, cgraph).
const LISTS: usize = 16;

struct List {
    tgid: u32,
    cgraph: u64,
    total: u32,
    nodes: heapless::Vec<u64, MAX_NODES>,
}

/// The lists.
pub struct NodeLists {
    lists: Vec<List>,
    next: usize,
}

impl Default for NodeLists {
    fn default() -> Self {
        NodeLists { lists: Vec::with_capacity(LISTS), next: 0 }
    }
}

impl NodeLists {
    /// Takes a chunk of a list, as it arrives.
    pub fn chunk(&mut self, e: &event::Nodes) {
        let found = self.lists.iter().position(|l| l.tgid == e.h.tgid && l.cgraph == e.cgraph);
        let i = match found {
            Some(i) => i,
            None if self.lists.len() < LISTS => {
                self.lists.push(List { tgid: 0, cgraph: 0, total: 0, nodes: heapless::Vec::new() });
                self.lists.len() - 1
            }
            None => {
                self.next = (self.next + 1) % LISTS;
                self.next
            }
        };
        let list = &mut self.lists[i];
        if e.first == 0 {
            (list.tgid, list.cgraph, list.total) = (e.h.tgid, e.cgraph, e.total);
            list.nodes.clear();
        }
        // A chunk was lost: the list stays short, and is not used.
        if list.nodes.len() != e.first as usize || list.total != e.total || list.tgid != e.h.tgid {
            return;
        }
        let n = (e.total.saturating_sub(e.first) as usize).min(e.node.len());
        let _ = list.nodes.extend_from_slice(&e.node[..n]);
    }

    /// Nodes that each thread must dispatch, fused ones counted one by one; None when the list is not whole or a node
    /// could not be read. `nops`: the engine dispatches views and reshapes too (before 2025-11). `fetch` reads a tensor
    /// that no event described: a node that never runs and is no op's source.
    pub fn demand(
        &self,
        tensors: &mut Structure,
        (tgid, cgraph): (u32, u64),
        nops: bool,
        fetch: &mut dyn FnMut(u32, u64) -> Option<Desc>,
    ) -> Option<u32> {
        let list = self.lists.iter().find(|l| l.tgid == tgid && l.cgraph == cgraph)?;
        if list.nodes.len() != list.total as usize {
            return None;
        }
        let (mut run, mut flagged, mut marked) = (0, 0, false);
        for &addr in &list.nodes {
            if tensors.get(tgid, addr).is_none() {
                let desc = fetch(tgid, addr)?;
                tensors.update(tgid, addr, desc);
            }
            let d = tensors.get(tgid, addr)?;
            marked |= d.flags & FLAG_COMPUTE != 0;
            if !d.none && (nops || !d.nop) && !d.empty() {
                run += 1;
                flagged += u32::from(d.flags & FLAG_COMPUTE != 0);
            }
        }
        // Engines that mark the nodes to compute (since 2026-01) skip those without the mark.
        Some(if marked { flagged } else { run })
    }
}
