//! Computes the ops of a graph: reads a node's sources, calls kernels for this thread's share, writes its data.
//!
//! Every thread calls [`forward`] for every node; the pool puts a barrier between nodes. A node that needs a
//! barrier inside (after preparing activations, before combining parts) waits itself. Decisions made when the
//! graph was built are in the node's [`NodeState`].

mod attention;
mod elements;
mod experts;
mod matmul;
mod rows;
mod slow;
mod state;
mod tensor;
mod thread;
mod weight;

pub use attention::work as attention_work;
pub use experts::work as experts_work;
pub use matmul::work as matmul_work;
pub use slow::Slow;
pub use state::{NodeState, WorkSizes};
pub use weight::{BytesOwner, Weight, WeightError};

use self::thread::ComputeThread;
use super::abi::{ComputeParams, GgmlTensor, Op};
use slow::Drag;

/// Computes this thread's share of a node.
///
/// An op that no architecture here uses leaves the node's data unchanged.
///
/// # Safety
/// `node` must come from a graph of `model::graph` whose buffers are alive and whose work memory (`params.wdata`,
/// of [`WorkSizes::bytes`] for the number of threads) is shared by exactly the threads of `params`. All of them must
/// call this for the same nodes in the same order, with a barrier in between.
pub unsafe fn forward(params: &ComputeParams, node: &GgmlTensor) {
    if node.is_empty() || node.is_nop() {
        return;
    }
    let thread = ComputeThread::new(params);
    // SAFETY: one of our nodes.
    let drag = Drag::begin(unsafe { NodeState::of(node) }.slow);
    // SAFETY: guaranteed by the caller.
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
            Op::MEAN => rows::mean(thread, node),
            Op::ADD | Op::ADD1 | Op::MUL | Op::DIV => elements::binary(thread, node),
            Op::SQR | Op::SQRT | Op::SCALE | Op::UNARY => elements::unary(thread, node),
            Op::GLU => elements::glu(thread, node),
            _ => {}
        }
    }
    drag.end();
}

/// Computes this thread's share of a RMS_NORM node and the following MUL node in one pass; the first one's own
/// data is not written.
///
/// # Safety
/// As for [`forward`], and `mul` must multiply `norm` by a vector.
pub unsafe fn forward_norm_mul(params: &ComputeParams, norm: &GgmlTensor, mul: &GgmlTensor) {
    if !mul.is_empty() {
        // SAFETY: our own nodes.
        let drag = Drag::begin(unsafe { NodeState::of(norm).slow.max(NodeState::of(mul).slow) });
        // SAFETY: guaranteed by the caller.
        unsafe { rows::rms_norm(ComputeThread::new(params), norm, Some(mul)) }
        drag.end();
    }
}
