//! The memory of a graph: its tensors and nodes, decisions about them, and the placement of their data.
//!
//! A graph is rebuilt many times in the same space: the same nodes in the same order, only with other sizes. So
//! every address is stable and nothing is allocated. Data placement is planned once, for the largest sizes.

use crate::abi::accessors::ggml_graph_next_uid;
use crate::abi::{FLAG_COMPUTE, FLAG_INPUT, GgmlGraph, GgmlTensor, Op};
use crate::compute::{NodeState, WorkSizes};
use crate::kernels::Isa;
use std::ptr::null_mut;

/// Alignment of a tensor's data.
const ALIGN: usize = 64;

/// Items at fixed addresses: pointers to one stay valid while others are changed, which Rust's aliasing rules
/// would not allow for pointers into a box.
struct Fixed<T> {
    base: *mut T,
    len: usize,
}

impl<T> Fixed<T> {
    fn new(things: Vec<T>) -> Self {
        let len = things.len();
        Self { base: Box::into_raw(things.into_boxed_slice()).cast(), len }
    }

    /// Address of an item.
    fn at(&self, i: usize) -> *mut T {
        assert!(i < self.len, "the graph has more tensors than were counted");
        // SAFETY: within the allocation.
        unsafe { self.base.add(i) }
    }

    /// A shared reference to an item.
    fn get(&self, i: usize) -> &T {
        // SAFETY: `at` is within the allocation, and whatever changes items borrows the space as `&mut`.
        unsafe { &*self.at(i) }
    }

    /// A mutable reference to an item.
    fn get_mut(&mut self, i: usize) -> &mut T {
        // SAFETY: as in `get`, borrowed mutably.
        unsafe { &mut *self.at(i) }
    }
}

impl<T> Drop for Fixed<T> {
    fn drop(&mut self) {
        // SAFETY: created by `Box::into_raw` from a slice of this length.
        drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(self.base, self.len)) });
    }
}

/// See the module documentation.
pub(super) struct Space {
    tensors: Fixed<GgmlTensor>,
    states: Fixed<NodeState>,
    nodes: Box<[*mut GgmlTensor]>,
    /// How often each node is used as a source.
    counts: Box<[i32]>,
    /// Offset of each tensor's data in the buffer, by tensor index; empty before planning.
    offsets: Vec<usize>,
    graph: Box<GgmlGraph>,
    n_tensors: usize,
    n_nodes: usize,
}

/// A tensor of the graph being built.
pub(super) type NodePtr = *mut GgmlTensor;

impl Space {
    /// Capacity for this many tensors.
    pub(super) fn new(capacity: usize, isa: Isa) -> Self {
        Self {
            tensors: Fixed::new(vec![GgmlTensor::EMPTY; capacity]),
            states: Fixed::new((0..capacity).map(|_| NodeState::new(isa)).collect()),
            nodes: vec![null_mut(); capacity].into(),
            counts: vec![0; capacity].into(),
            offsets: Vec::new(),
            graph: Box::new(GgmlGraph::EMPTY),
            n_tensors: 0,
            n_nodes: 0,
        }
    }

    /// Starts a new graph.
    pub(super) fn clear(&mut self) {
        self.n_tensors = 0;
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
        let place = self.n_tensors;
        self.n_tensors += 1;
        let leaf = tensor.op == Op::NONE;
        if !leaf {
            tensor.extra = self.states.at(place).cast();
        }
        let node = self.tensors.at(place);
        // SAFETY: a tensor of this space, which nobody reads while it is borrowed mutably.
        unsafe { *node = tensor };
        if !leaf {
            self.nodes[self.n_nodes] = node;
            self.n_nodes += 1;
        }
        node
    }

    /// Completes the graph: assigns data to tensors and a new uid to the graph. `work` is the work memory for all
    /// nodes.
    pub(super) fn finish(&mut self, base: *mut u8, work: WorkSizes) -> *mut GgmlGraph {
        for i in 0..self.n_tensors {
            self.states.get_mut(i).work = work;
            let tensor = self.tensors.get_mut(i);
            if let Some(offset) = self.offsets.get(i).filter(|_| owns_data(tensor)) {
                tensor.data = base.wrapping_add(*offset).cast();
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
        for i in 0..self.n_tensors {
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
        let place = self.place(node)?;
        Some(self.states.get_mut(place))
    }

    fn place(&self, tensor: *const GgmlTensor) -> Option<usize> {
        let bytes = (tensor as usize).checked_sub(self.tensors.base as usize)?;
        Some(bytes / size_of::<GgmlTensor>()).filter(|i| *i < self.n_tensors)
    }

    /// The nodes in order.
    pub(super) fn nodes(&self) -> &[NodePtr] {
        &self.nodes[..self.n_nodes]
    }

    /// Plans the data placement from the graph in the space, which must be the largest to come. Returns the bytes
    /// needed.
    ///
    /// Memory is reused once the last node that uses it is done, but never for that node's own result: no kernel
    /// reads where it writes. Inputs keep their memory.
    pub(super) fn plan(&mut self) -> usize {
        let last = self.last_uses();
        let mut free = FreeList::default();
        self.offsets = vec![0; self.n_tensors];
        // Tensors are in computation order, leaves before their users.
        for i in 0..self.n_tensors {
            if owns_data(self.tensors.get(i)) {
                self.offsets[i] = free.take(data_bytes(self.tensors.get(i)));
            }
            for gone in (0..i).filter(|g| last[*g] == i && owns_data(self.tensors.get(*g))) {
                free.give(self.offsets[gone], data_bytes(self.tensors.get(gone)));
            }
        }
        free.end
    }

    /// For each tensor, the index of the last one that uses its data, or its own index if none does; `usize::MAX`
    /// for inputs and the result, which only the next graph may replace.
    fn last_uses(&self) -> Vec<usize> {
        let mut last: Vec<usize> = (0..self.n_tensors).collect();
        for i in 0..self.n_tensors {
            let t = self.tensors.get(i);
            // A norm is computed by the following multiplication, so its source must stay until then.
            let until = if t.op == Op::RMS_NORM { i + 1 } else { i };
            for source in t.src.iter().chain([&t.view_src]).filter(|s| !s.is_null()) {
                if let Some(place) = self.owner(*source) {
                    last[place] = last[place].max(until);
                }
            }
            if t.flags & FLAG_INPUT != 0 {
                last[i] = usize::MAX;
            }
        }
        if let Some(end) = last.last_mut() {
            *end = usize::MAX;
        }
        last
    }

    /// Index of the tensor that owns the data of a tensor, if it is in this space.
    fn owner(&self, tensor: *const GgmlTensor) -> Option<usize> {
        let place = self.place(tensor)?;
        let source = self.tensors.get(place).view_src;
        if source.is_null() { Some(place) } else { self.place(source) }
    }
}

/// Whether the buffer has room for the tensor: not for views or tensors that are never computed.
fn owns_data(t: &GgmlTensor) -> bool {
    t.view_src.is_null() && t.flags & (FLAG_COMPUTE | FLAG_INPUT) != 0
}

fn data_bytes(t: &GgmlTensor) -> usize {
    t.contiguous_bytes().next_multiple_of(ALIGN)
}

/// Free parts of a buffer that grows as needed.
#[derive(Debug, Default)]
struct FreeList {
    /// (offset, bytes), ascending, never adjacent.
    parts: Vec<(usize, usize)>,
    end: usize,
}

impl FreeList {
    /// The smallest part that is large enough, otherwise the end of the buffer.
    fn take(&mut self, bytes: usize) -> usize {
        let fits = self.parts.iter().enumerate().filter(|(_, p)| p.1 >= bytes);
        if let Some((i, &(offset, size))) = fits.min_by_key(|(_, p)| p.1) {
            if size == bytes {
                self.parts.remove(i);
            } else {
                self.parts[i] = (offset + bytes, size - bytes);
            }
            return offset;
        }
        let offset = self.end;
        self.end += bytes;
        offset
    }

    fn give(&mut self, offset: usize, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let i = self.parts.partition_point(|p| p.0 < offset);
        self.parts.insert(i, (offset, bytes));
        for i in [i, i.wrapping_sub(1)] {
            if let Some(&[(a, n), (b, m)]) = self.parts.get(i..).and_then(|p| p.first_chunk())
                && a + n == b
            {
                self.parts[i] = (a, n + m);
                self.parts.remove(i + 1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_parts_grow_together_and_are_used_again() {
        let mut free = FreeList::default();
        let at: Vec<usize> = [64, 128, 64, 64].map(|n| free.take(n)).to_vec();
        assert_eq!(at, [0, 64, 192, 256]);
        free.give(0, 64);
        free.give(192, 64);
        assert_eq!(free.take(128), 320);
        free.give(64, 128);
        assert_eq!(free.parts, [(0, 256)]);
        assert_eq!(free.take(256), 0);
        assert_eq!((free.take(64), free.end), (448, 512));
    }
}
