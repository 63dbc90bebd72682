//! The memory of a graph: its tensors and nodes, and decisions about them.
//!
//! A graph is rebuilt many times in the same space: the same nodes in the same order, only with other sizes. So
//! every address is stable and nothing is allocated.

use crate::abi::accessors::ggml_graph_next_uid;
use crate::abi::{GgmlGraph, GgmlTensor, Op};
use crate::compute::{NodeState, WorkSizes};
use crate::kernels::Isa;
use crate::optimise::Optimiser;
use crate::optimise::fixed::{Fixed, Tensors};
use std::ptr::null_mut;

/// See the module documentation.
pub(super) struct Space {
    tensors: Tensors,
    states: Fixed<NodeState>,
    nodes: Box<[*mut GgmlTensor]>,
    /// How often each node is used as a source.
    counts: Box<[i32]>,
    graph: Box<GgmlGraph>,
    n_nodes: usize,
}

/// A tensor of the graph being built.
pub(super) type NodePtr = *mut GgmlTensor;

impl Space {
    /// Capacity for this many tensors.
    pub(super) fn new(capacity: usize, isa: Isa) -> Self {
        Self {
            tensors: Tensors::new(capacity),
            states: Fixed::new((0..capacity).map(|_| NodeState::new(isa)).collect()),
            nodes: vec![null_mut(); capacity].into(),
            counts: vec![0; capacity].into(),
            graph: Box::new(GgmlGraph::EMPTY),
            n_nodes: 0,
        }
    }

    /// Starts a new graph.
    pub(super) fn clear(&mut self) {
        self.tensors.clear();
        self.n_nodes = 0;
    }

    /// Number of nodes so far.
    pub(super) fn len(&self) -> usize {
        self.n_nodes
    }

    /// Adds a tensor to the space, as the graph's next node unless it is a leaf.
    ///
    /// # Panics
    /// If the capacity was computed wrongly.
    pub(super) fn put(&mut self, mut tensor: GgmlTensor) -> NodePtr {
        let place = self.tensors.len();
        let leaf = tensor.op == Op::NONE;
        if !leaf {
            tensor.extra = self.states.at(place).cast();
        }
        let node = self.tensors.put(tensor);
        if !leaf {
            self.nodes[self.n_nodes] = node;
            self.n_nodes += 1;
        }
        node
    }

    /// The tensors.
    pub(super) fn tensors(&mut self) -> &mut Tensors {
        &mut self.tensors
    }

    /// Removes nodes from the list that the steps have removed from the graph.
    pub(super) fn retain(&mut self, steps: &Optimiser) {
        let mut n = 0;
        for i in 0..self.n_nodes {
            let node = self.nodes[i];
            if self.tensors.place(node).is_some_and(|place| !steps.is_gone(place)) {
                self.nodes[n] = node;
                n += 1;
            }
        }
        self.n_nodes = n;
    }

    /// Completes the graph: assigns data to tensors and a new uid to the graph. `work` is the work memory for all
    /// nodes.
    pub(super) fn finish(&mut self, base: *mut u8, steps: &Optimiser, work: WorkSizes) -> *mut GgmlGraph {
        for i in 0..self.tensors.len() {
            self.states.get_mut(i).work = work;
            if let Some(offset) = steps.place(i) {
                self.tensors.get_mut(i).data = base.wrapping_add(offset).cast();
            }
        }
        self.place_views();
        self.graph.set_nodes(&mut self.nodes[..self.n_nodes]);
        self.count_uses();
        self.graph.use_counts = self.counts.as_mut_ptr();
        self.graph.uid = ggml_graph_next_uid();
        &raw mut *self.graph
    }

    fn count_uses(&mut self) {
        self.counts.fill(0);
        for node in &self.nodes[..self.n_nodes] {
            // SAFETY: a tensor of this space.
            for source in unsafe { (**node).src } {
                // Nodes are in the space in order, so the list of them is sorted by address.
                if let Ok(place) = self.nodes[..self.n_nodes].binary_search(&source) {
                    self.counts[place] += 1;
                }
            }
        }
    }

    /// Points views at the data that they are views of, which precedes them in the space.
    fn place_views(&mut self) {
        for i in 0..self.tensors.len() {
            let (source, offset) = (self.tensors.get(i).view_src, self.tensors.get(i).view_offs);
            if !source.is_null() {
                // SAFETY: a tensor of this space or of the cache, both alive.
                let data = unsafe { (*source).data };
                self.tensors.get_mut(i).data = data.wrapping_byte_add(offset);
            }
        }
    }

    /// The state of a node of this space.
    pub(super) fn state(&mut self, node: NodePtr) -> Option<&mut NodeState> {
        let place = self.tensors.place(node)?;
        Some(self.states.get_mut(place))
    }

    /// The nodes in order.
    pub(super) fn nodes(&self) -> &[NodePtr] {
        &self.nodes[..self.n_nodes]
    }
}
