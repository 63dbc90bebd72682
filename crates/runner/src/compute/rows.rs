//! Row-wise ops: GET_ROWS, SET_ROWS, RMS_NORM, MEAN, ROPE, SOFT_MAX, ARGSORT.

use super::super::abi::{GgmlTensor, GgmlType};
use super::super::kernels::vector::{self, Rope, RopeAngles};
use super::state::NodeState;
use super::tensor::{all, at, extent, position, row, row_count, row_mut};
use super::thread::ComputeThread;
use ggml::quant::{TensorType, decode};

/// Size of the sine and cosine tables below: most pairs in a head.
const MAX_PAIRS: usize = 512;
/// `GGML_ROPE_TYPE_NEOX`.
pub const ROPE_NEOX: i32 = 2;

/// An index from the input, clamped to the rows that exist.
fn clamp(index: i64, rows: usize) -> usize {
    usize::try_from(index).unwrap_or(0).min(rows.saturating_sub(1))
}

/// Copies the table rows selected by the indices, as f32.
///
/// # Safety
/// See [`super::forward`].
pub(super) unsafe fn get_rows(thread: ComputeThread<'_>, node: &GgmlTensor) {
    // SAFETY: sources of one of our nodes.
    let (Some(table), Some(ids), state) = (unsafe { (node.source(0), node.source(1), NodeState::of(node)) })
    else {
        return;
    };
    let Some(ty) = TensorType::from_id(table.ty as u32) else { return };
    let Some(bytes) = table.ty.row_bytes(extent(table, 0)) else { return };
    for i in thread.share(row_count(node), 1) {
        let [i1, i2, i3] = position(node, i);
        // SAFETY: one index per row of the node, and a row of the table for each clamped index.
        unsafe {
            let id = row::<i32>(ids, [i2, i3, 0])[i1];
            let from = at(table, [clamp(i64::from(id), extent(table, 1)), i2, i3]);
            let to = row_mut::<f32>(node, [i1, i2, i3]);
            if ty == TensorType::F16 {
                vector::f16_to_f32(state.isa, std::slice::from_raw_parts(from.cast(), to.len()), to);
            } else {
                // The sizes are those of one row, so this can't fail.
                let _ = decode(ty, std::slice::from_raw_parts(from, bytes), to);
            }
        }
    }
}

/// Writes rows to the positions given by the indices, rounded to f16.
///
/// # Safety
/// See [`super::forward`].
pub(super) unsafe fn set_rows(thread: ComputeThread<'_>, node: &GgmlTensor) {
    // SAFETY: sources of one of our nodes.
    let (Some(source), Some(ids), state) = (unsafe { (node.source(0), node.source(1), NodeState::of(node)) })
    else {
        return;
    };
    if node.ty != GgmlType::F16 {
        return;
    }
    // SAFETY: the indices are a contiguous list, one per row; each cache row is written once.
    unsafe {
        let ids = all::<i64>(ids);
        for i in thread.share(row_count(source).min(ids.len()), 1) {
            let to = row_mut::<u16>(node, [clamp(ids[i], extent(node, 1)), 0, 0]);
            vector::f32_to_f16(state.isa, row(source, position(source, i)), to);
        }
    }
}

/// y = x / sqrt(mean(x²) + eps); with `mul`, its weight is applied and its data is written instead.
///
/// # Safety
/// See [`super::forward`].
pub(super) unsafe fn rms_norm(thread: ComputeThread<'_>, norm: &GgmlTensor, mul: Option<&GgmlTensor>) {
    // SAFETY: sources of our nodes.
    let (Some(source), state, weight) =
        (unsafe { (norm.source(0), NodeState::of(norm), mul.and_then(|m| m.source(1))) })
    else {
        return;
    };
    let out = mul.unwrap_or(norm);
    for i in thread.share(row_count(out), 1) {
        let at = position(out, i);
        // SAFETY: rows of these nodes; only this thread writes this one.
        unsafe {
            let weight = weight.map(|w| row::<f32>(w, [0; 3]));
            vector::rms_norm(state.isa, row(source, at), weight, norm.param_f32(0), row_mut(out, at));
        }
    }
}

/// The mean of each row.
///
/// # Safety
/// See [`super::forward`].
pub(super) unsafe fn mean(thread: ComputeThread<'_>, node: &GgmlTensor) {
    // SAFETY: sources of one of our nodes.
    let (Some(source), state) = (unsafe { (node.source(0), NodeState::of(node)) }) else { return };
    for i in thread.share(row_count(node), 1) {
        let at = position(node, i);
        // SAFETY: rows of these nodes; only this thread writes this one, which has one element.
        unsafe { row_mut::<f32>(node, at).fill(vector::mean(state.isa, row(source, at))) };
    }
}

/// Rotates each head by its token's position.
///
/// # Safety
/// See [`super::forward`].
pub(super) unsafe fn rope(thread: ComputeThread<'_>, node: &GgmlTensor) {
    // SAFETY: sources of one of our nodes; positions and factors are contiguous.
    let (Some(source), positions, factors, state) = (unsafe {
        let positions = node.source(1).map(|p| all::<i32>(p)).unwrap_or_default();
        (node.source(0), positions, node.source(2).map(|f| all::<f32>(f)), NodeState::of(node))
    }) else {
        return;
    };
    let n_dims = usize::try_from(node.param_i32(1)).unwrap_or(0);
    let angles = RopeAngles {
        n_dims,
        freq_base: node.param_f32(5),
        freq_scale: node.param_f32(6),
        attn_factor: node.param_f32(8),
        freq_factors: factors,
    };
    let kind = if node.param_i32(2) == ROPE_NEOX { Rope::Neox } else { Rope::Norm };
    let (mut cos, mut sin) = ([0.0f32; MAX_PAIRS], [0.0f32; MAX_PAIRS]);
    let pairs = (n_dims / 2).min(MAX_PAIRS);
    let mut turned = None;
    for i in thread.share(row_count(node), 1) {
        let at = position(node, i);
        let Some(pos) = positions.get(at[1]) else { return };
        let (cos, sin) = (&mut cos[..pairs], &mut sin[..pairs]);
        if turned != Some(*pos) {
            angles.at(*pos, cos, sin);
            turned = Some(*pos);
        }
        // SAFETY: heads of these nodes; only this thread writes this one.
        unsafe { vector::rope(state.isa, kind, cos, sin, row(source, at), row_mut(node, at)) };
    }
}

/// Softmax of each row.
///
/// # Safety
/// See [`super::forward`].
pub(super) unsafe fn soft_max(thread: ComputeThread<'_>, node: &GgmlTensor) {
    // SAFETY: sources of one of our nodes.
    let (Some(source), state) = (unsafe { (node.source(0), NodeState::of(node)) }) else { return };
    for i in thread.share(row_count(node), 1) {
        let at = position(node, i);
        // SAFETY: rows of these nodes; only this thread writes this one.
        unsafe { vector::softmax(state.isa, row(source, at), None, node.param_f32(0), row_mut(node, at)) };
    }
}

/// Indices of each row's elements, largest first.
///
/// # Safety
/// See [`super::forward`].
pub(super) unsafe fn argsort(thread: ComputeThread<'_>, node: &GgmlTensor) {
    // SAFETY: sources of one of our nodes.
    let Some(source) = (unsafe { node.source(0) }) else { return };
    for i in thread.share(row_count(node), 1) {
        let at = position(node, i);
        // SAFETY: rows of these nodes; only this thread writes this one.
        unsafe { vector::argsort_descending(row(source, at), row_mut(node, at)) };
    }
}
