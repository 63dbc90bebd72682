//! Node lists of the target's graphs, and how many op hits each thread must make for them. Allocates only when
//! created.

use crate::capture::event;

/// Maximum nodes kept per graph; the BPF side has the same limit (NODES_MAX).
const MAX_NODES: usize = 8192;
/// Graphs kept, by (process, cgraph).
const LISTS: usize = 16;

struct List {
    tgid: u32,
    cgraph: u64,
    total: u32,
    /// `node_info` of src/bpf/event.h for each node.
    nodes: heapless::Vec<u32, MAX_NODES>,
}

/// The kept node lists.
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
        // A chunk was lost: the list stays incomplete and is not used.
        if list.nodes.len() != e.first as usize || list.total != e.total || list.tgid != e.h.tgid {
            return;
        }
        let n = (e.total.saturating_sub(e.first) as usize).min(e.node.len());
        let _ = list.nodes.extend_from_slice(&e.info[..n]);
    }

    /// Nodes that each thread must dispatch, fused ones counted individually; None if the list is incomplete. `ops`
    /// says which ops are no work (NONE, RESHAPE, VIEW, PERMUTE, TRANSPOSE), and which are NONE; `nops` says
    /// whether the engine dispatches the former anyway, except NONE (before 2025-11).
    pub fn demand(&self, tgid: u32, cgraph: u64, ops: &[(bool, bool)], nops: bool) -> Option<u32> {
        let list = self.lists.iter().find(|l| l.tgid == tgid && l.cgraph == cgraph)?;
        if list.nodes.len() != list.total as usize || list.nodes.iter().any(|i| i & event::NODE_UNREAD != 0) {
            return None;
        }
        let runs = |info: &&u32| {
            let (nop, none) = ops.get((*info & event::NODE_OP) as usize).copied().unwrap_or_default();
            !none && (nops || !nop) && *info & event::NODE_EMPTY == 0
        };
        // Engines that mark the nodes to compute (since 2026-01) skip unmarked ones.
        let marked = list.nodes.iter().any(|i| i & event::NODE_COMPUTE != 0);
        let wanted = |info: &&u32| !marked || *info & event::NODE_COMPUTE != 0;
        Some(list.nodes.iter().filter(runs).filter(wanted).count() as u32)
    }
}
