//! Element-wise ops: ADD, ADD1, MUL, DIV, SQR, SQRT, SCALE, UNARY, GLU.

use super::super::abi::{GgmlTensor, GluOp, Op, UnaryOp};
use super::super::kernels::Isa;
use super::super::kernels::vector::{self, Glu};
use super::state::NodeState;
use super::tensor::{extent, part_mut, position, row, row_count};
use super::thread::ComputeThread;
use std::ops::Range;

/// f32 elements in a cache line: threads do not write to the same line.
const LINE: usize = 16;

/// Calls `f` with (row, columns) for this thread's share of a tensor: complete rows, or parts of rows if there
/// are fewer rows than threads.
fn each(thread: ComputeThread<'_>, t: &GgmlTensor, mut f: impl FnMut([usize; 3], Range<usize>)) {
    let (rows, cols) = (row_count(t), extent(t, 0));
    let (rows, cols) = if rows < thread.count {
        (0..rows, thread.share(cols, LINE))
    } else {
        (thread.share(rows, 1), 0..cols)
    };
    if !cols.is_empty() {
        rows.for_each(|i| f(position(t, i), cols.clone()));
    }
}

/// y = a op b; b is repeated to the size of a. A row of one element applies to the entire row.
///
/// # Safety
/// See [`super::forward`].
pub(super) unsafe fn binary(thread: ComputeThread<'_>, node: &GgmlTensor) {
    // SAFETY: sources of one of our nodes.
    let (Some(a), Some(b), state) = (unsafe { (node.source(0), node.source(1), NodeState::of(node)) }) else {
        return;
    };
    let isa = state.isa;
    each(thread, node, |at, cols| {
        let repeated = [0, 1, 2].map(|d| at[d] % extent(b, d + 1).max(1));
        // SAFETY: rows of this node and its sources; only this thread writes these columns.
        let (x, y, z) =
            unsafe { (row::<f32>(a, at), row::<f32>(b, repeated), part_mut::<f32>(node, at, &cols)) };
        let Some(x) = x.get(cols.clone()) else { return };
        match y {
            [one] => broadcast(isa, node.op, x, *one, z),
            y => pairwise(isa, node.op, x, y.get(cols).unwrap_or_default(), z),
        }
    });
}

fn pairwise(isa: Isa, op: Op, x: &[f32], y: &[f32], z: &mut [f32]) {
    match op {
        Op::ADD | Op::ADD1 => vector::add(isa, x, y, z),
        Op::MUL => vector::mul(isa, x, y, z),
        _ => vector::div(isa, x, y, z),
    }
}

fn broadcast(isa: Isa, op: Op, x: &[f32], y: f32, z: &mut [f32]) {
    match op {
        Op::ADD | Op::ADD1 => vector::scale(isa, x, 1.0, y, z),
        Op::MUL => vector::scale(isa, x, y, 0.0, z),
        // Not multiplied by the reciprocal, which would round twice.
        _ => z.iter_mut().zip(x).for_each(|(z, x)| *z = x / y),
    }
}

/// SQR, SQRT, SCALE and the UNARY functions.
///
/// # Safety
/// See [`super::forward`].
pub(super) unsafe fn unary(thread: ComputeThread<'_>, node: &GgmlTensor) {
    // SAFETY: sources of one of our nodes.
    let (Some(source), state) = (unsafe { (node.source(0), NodeState::of(node)) }) else { return };
    let (isa, kind) = (state.isa, node.unary());
    each(thread, node, |at, cols| {
        // SAFETY: rows of this node and its source; only this thread writes these columns.
        let (x, y) = unsafe { (row::<f32>(source, at), part_mut::<f32>(node, at, &cols)) };
        let Some(x) = x.get(cols) else { return };
        match kind {
            None if node.op == Op::SQR => vector::sqr(isa, x, y),
            None if node.op == Op::SQRT => vector::sqrt(x, y),
            None => vector::scale(isa, x, node.param_f32(0), node.param_f32(1), y),
            Some(UnaryOp::TANH) => vector::tanh(isa, x, y),
            Some(UnaryOp::SILU) => vector::silu(isa, x, y),
            Some(UnaryOp::SIGMOID) => vector::sigmoid(isa, x, y),
            Some(UnaryOp::GELU) => vector::gelu(isa, x, y),
            Some(_) => {}
        }
    });
}

/// y = activation(gate)·up.
///
/// # Safety
/// See [`super::forward`].
pub(super) unsafe fn glu(thread: ComputeThread<'_>, node: &GgmlTensor) {
    // SAFETY: sources of one of our nodes.
    let (Some(gate), Some(up), state) = (unsafe { (node.source(0), node.source(1), NodeState::of(node)) })
    else {
        return;
    };
    let kind = match node.glu() {
        Some(GluOp::SWIGLU) => Glu::Silu,
        Some(GluOp::GEGLU) => Glu::Gelu,
        _ => return,
    };
    each(thread, node, |at, cols| {
        // SAFETY: rows of this node and its sources; only this thread writes these columns.
        let (g, u, y) =
            unsafe { (row::<f32>(gate, at), row::<f32>(up, at), part_mut::<f32>(node, at, &cols)) };
        let (Some(g), Some(u)) = (g.get(cols.clone()), u.get(cols)) else { return };
        vector::glu(state.isa, kind, g, u, y);
    });
}
