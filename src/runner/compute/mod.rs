//! What each op of a graph does: reads a node's sources, calls kernels for this thread's share, writes its data.
//! May use `abi`, `kernels`, and of `pool` where threads meet and who takes which part.
//!
//! [`forward`] is called by every thread for every node; the pool puts a barrier between nodes. A node that needs one
//! inside (preparing activations, joining parts) waits itself. What was decided when the graph was
//! built is in the node's [`State`].

mod attention;
mod elements;
mod experts;
mod matmul;
mod rows;
mod slow;
mod state;
mod tensor;
mod weight;

pub use attention::work as attention_work;
pub use experts::work as experts_work;
pub use matmul::work as matmul_work;
pub use slow::Slow;
pub use state::{State, Work};
pub use weight::{Owner, Weight, WeightError};

use super::abi::{ComputeParams, Op, Tensor};
use super::pool;
use slow::Drag;
use std::ops::Range;

/// One thread among those that work on a node.
#[derive(Clone, Copy)]
pub(crate) struct Thread<'a> {
    pub index: usize,
    pub count: usize,
    params: &'a ComputeParams,
}

impl<'a> Thread<'a> {
    fn new(params: &'a ComputeParams) -> Self {
        let count = usize::try_from(params.nth).unwrap_or(1).max(1);
        let index = usize::try_from(params.ith).unwrap_or(0).min(count - 1);
        Self { index, count, params }
    }

    /// This thread's part of `n` things, in multiples of `step` but for the last.
    fn share(&self, n: usize, step: usize) -> Range<usize> {
        let part = n.div_ceil(self.count).next_multiple_of(step.max(1));
        let start = (part * self.index).min(n);
        start..(start + part).min(n)
    }

    /// Takes the next part of the work, from 0 on at the start of a node and behind each barrier.
    fn take(&self) -> usize {
        pool::next_chunk(self.params)
    }

    /// Waits for the other threads.
    fn barrier(&self) {
        if self.count > 1 {
            pool::barrier(self.params);
        }
    }
}

/// Computes this thread's share of a node.
///
/// An op that no architecture here uses leaves the node's data as it is.
///
/// # Safety
/// `node` comes from a graph of `model::graph` whose buffers are alive and whose work memory (`params.wdata`, of
/// [`Work::bytes`] for the number of threads) is shared by exactly the threads of `params`; all of them call this for
/// the same nodes in the same order, with a barrier in between.
pub unsafe fn forward(params: &ComputeParams, node: &Tensor) {
    if node.is_empty() || node.is_nop() {
        return;
    }
    let thread = Thread::new(params);
    // SAFETY: a node of ours.
    let drag = Drag::begin(unsafe { State::of(node) }.slow);
    // SAFETY: passed on from the caller.
    unsafe {
        match node.op {
            Op::MUL_MAT => matmul::forward(thread, node),
            Op::MUL_MAT_ID => experts::forward(thread, node),
            Op::FLASH_ATTN_EXT => attention::forward(thread, node),
            Op::GET_ROWS => rows::get_rows(thread, node),
            Op::SET_ROWS => rows::set_rows(thread, node),
            Op::ROPE => rows::rope(thread, node),
            Op::RMS_NORM => rows::rms_norm(thread, node, None),
            Op::SOFT_MAX => rows::soft_max(thread, node),
            Op::ARGSORT => rows::argsort(thread, node),
            Op::ADD | Op::MUL | Op::DIV => elements::binary(thread, node),
            Op::SCALE | Op::UNARY => elements::unary(thread, node),
            Op::GLU => elements::glu(thread, node),
            _ => {}
        }
    }
    drag.end();
}

/// Computes this thread's share of a RMS_NORM node and the MUL node behind it in one go; the first one's own data is
/// not written.
///
/// # Safety
/// As for [`forward`], and `mul` multiplies `norm` with a vector.
pub unsafe fn forward_norm_mul(params: &ComputeParams, norm: &Tensor, mul: &Tensor) {
    if !mul.is_empty() {
        // SAFETY: nodes of ours.
        let drag = Drag::begin(unsafe { State::of(norm).slow.max(State::of(mul).slow) });
        // SAFETY: passed on from the caller.
        unsafe { rows::rms_norm(Thread::new(params), norm, Some(mul)) }
        drag.end();
    }
}
