//! Node lists of the target's graphs: how many op hits each thread must make for them, and which nodes another
//! backend than the CPU's computes. Allocates only when created.

use crate::capture::event;

/// Maximum nodes kept per graph; the BPF side has the same limit (NODES_MAX).
pub const MAX_NODES: usize = 8192;
/// Graphs kept, by (process, cgraph).
const LISTS: usize = 16;

/// The nodes of one graph.
pub struct NodeList {
    tgid: u32,
    cgraph: u64,
    total: u32,
    /// `node_info` of src/bpf/event.h for each node.
    info: heapless::Vec<u32, MAX_NODES>,
    /// Address of each.
    address: heapless::Vec<u64, MAX_NODES>,
}

impl NodeList {
    /// Whether all nodes have arrived and could be read.
    fn complete(&self) -> bool {
        self.info.len() == self.total as usize && self.info.iter().all(|i| i & event::NODE_UNREAD == 0)
    }

    /// Indices and addresses of the nodes that need work, in order. `ops` says which ops are no work (NONE, RESHAPE, VIEW, PERMUTE,
    /// TRANSPOSE), and which are NONE; `nops` says whether the engine dispatches the former anyway, except NONE
    /// (before 2025-11).
    fn work<'a>(&'a self, ops: &'a [(bool, bool)], nops: bool) -> impl Iterator<Item = (u32, u64)> + 'a {
        // Engines that mark the nodes to compute (since 2026-01) skip unmarked ones.
        let marked = self.info.iter().any(|i| i & event::NODE_COMPUTE != 0);
        let runs = move |info: u32| {
            let (nop, none) = ops.get((info & event::NODE_OP) as usize).copied().unwrap_or_default();
            let wanted = !marked || info & event::NODE_COMPUTE != 0;
            !none && (nops || !nop) && info & event::NODE_EMPTY == 0 && wanted
        };
        let all = (0..).zip(self.info.iter().zip(&self.address));
        all.filter(move |(_, (info, _))| runs(**info)).map(|(i, (_, at))| (i, *at))
    }
}

/// The kept node lists.
pub struct NodeLists {
    lists: Vec<NodeList>,
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
                self.lists.push(NodeList {
                    tgid: 0,
                    cgraph: 0,
                    total: 0,
                    info: heapless::Vec::new(),
                    address: heapless::Vec::new(),
                });
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
            list.info.clear();
            list.address.clear();
        }
        // A chunk was lost: the list stays incomplete and is not used.
        if list.info.len() != e.first as usize || list.total != e.total || list.tgid != e.h.tgid {
            return;
        }
        let n = (e.total.saturating_sub(e.first) as usize).min(e.node.len());
        let _ = list.info.extend_from_slice(&e.info[..n]);
        let _ = list.address.extend_from_slice(&e.node[..n]);
    }

    /// The complete list of a graph.
    fn of(&self, tgid: u32, cgraph: u64) -> Option<&NodeList> {
        self.lists.iter().find(|l| l.tgid == tgid && l.cgraph == cgraph).filter(|l| l.complete())
    }

    /// Nodes that each thread must dispatch, fused ones counted individually; None if the list is incomplete.
    pub fn demand(&self, tgid: u32, cgraph: u64, ops: &[(bool, bool)], nops: bool) -> Option<u32> {
        Some(self.of(tgid, cgraph)?.work(ops, nops).count() as u32)
    }

    /// Index of the node at an address, searched from index `from` on; None if the list is incomplete or has no such
    /// node.
    pub fn index_of(&self, tgid: u32, cgraph: u64, address: u64, from: u32) -> Option<u32> {
        let nodes = &self.of(tgid, cgraph)?.address;
        let from = (from as usize).min(nodes.len());
        let (before, after) = nodes.split_at(from);
        let at = |part: &[u64]| part.iter().position(|a| *a == address);
        let found = at(after).map(|i| from + i).or_else(|| at(before))?;
        u32::try_from(found).ok()
    }

    /// Whether `object` is the graph or its node of this index; unknown, so true, if the list is incomplete.
    pub fn has(&self, tgid: u32, cgraph: u64, object: u64, index: u32) -> bool {
        let node = |list: &NodeList| list.address.get(index as usize) == Some(&object);
        object == cgraph || self.of(tgid, cgraph).is_none_or(node)
    }

    /// Indices and addresses of the nodes that a backend other than the CPU's computes; None if the list is incomplete. Such
    /// backends skip what is no work.
    pub fn offloaded<'a>(
        &'a self,
        tgid: u32,
        cgraph: u64,
        ops: &'a [(bool, bool)],
    ) -> Option<impl Iterator<Item = (u32, u64)> + 'a> {
        Some(self.of(tgid, cgraph)?.work(ops, false))
    }
}
