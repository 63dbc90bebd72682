//! Decisions about a node, made when its graph is built.

use super::super::abi::GgmlTensor;
use super::super::kernels::{ActivationScale, Isa};

/// Alignment of each part of the work memory.
pub(super) const ALIGN: usize = 64;

/// Parts of the work memory in bytes, each a multiple of 64: one shared by all threads, then for each thread its
/// prepared activations and its kernels' scratch memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WorkSizes {
    pub shared: usize,
    pub own: usize,
    pub scratch: usize,
}

impl WorkSizes {
    /// Work memory that is enough for both.
    pub fn max(self, other: Self) -> Self {
        Self {
            shared: self.shared.max(other.shared).next_multiple_of(ALIGN),
            own: self.own.max(other.own).next_multiple_of(ALIGN),
            scratch: self.scratch.max(other.scratch).next_multiple_of(ALIGN),
        }
    }

    /// Bytes for this many threads, including alignment of the start.
    pub fn bytes(self, threads: usize) -> usize {
        self.own.saturating_add(self.scratch).saturating_mul(threads).saturating_add(self.shared + ALIGN)
    }
}

/// Decisions about a node. A node's `extra` points to its state.
#[derive(Debug)]
pub struct NodeState {
    /// Instruction set of the kernels.
    pub isa: Isa,
    /// Attention may multiply f16 values as they are.
    pub halves: bool,
    /// What activations of 8 bits share a scale.
    pub scale: ActivationScale,
    /// This node prepares the activations; otherwise an earlier node has left them in the work memory.
    pub prepares: bool,
    /// Share of its time by which it is slowed down.
    pub slow: f32,
    /// Work memory of the complete graph.
    pub work: WorkSizes,
}

impl NodeState {
    /// A node's state, without work memory.
    pub const fn new(isa: Isa) -> Self {
        Self {
            isa,
            halves: true,
            scale: ActivationScale::Block,
            prepares: true,
            slow: 0.0,
            work: WorkSizes { shared: 0, own: 0, scratch: 0 },
        }
    }

    /// The state of a node.
    ///
    /// # Safety
    /// `extra` must be null or point to a state that outlives the node.
    pub unsafe fn of(node: &GgmlTensor) -> &NodeState {
        static NONE: NodeState = NodeState::new(Isa::Scalar);
        // SAFETY: guaranteed by the caller.
        unsafe { node.extra.cast::<NodeState>().as_ref() }.unwrap_or(&NONE)
    }
}
