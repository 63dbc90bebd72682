//! One op on one thread, and where the threads meet.

use std::ffi::c_void;
use std::sync::atomic::Ordering;

use super::Pool;
use crate::runner::abi::{ComputeParams, Op, Tensor};

/// # Safety
/// `params.threadpool` must point to the live pool that runs the calling thread.
unsafe fn pool(params: &ComputeParams) -> &Pool {
    // SAFETY: as the caller says.
    unsafe { &*params.threadpool.cast::<Pool>() }
}

/// Waits until all threads of the graph are here: for ops whose second half needs all of the first.
#[inline(always)]
pub fn barrier(params: &ComputeParams) {
    // SAFETY: only the compute loop makes params, and it fills in its own pool.
    unsafe { ggml_barrier(params.threadpool) }
}

/// The next piece of work that no other thread has, counted from 0. Every [`barrier`] and every new op start again.
#[inline]
pub fn next_chunk(params: &ComputeParams) -> usize {
    // SAFETY: only the compute loop makes params, and it fills in its own pool.
    unsafe { pool(params) }.chunk.0.fetch_add(1, Ordering::Relaxed)
}

/// Computes a node, on each of the threads.
///
/// # Safety
/// The params must be those of a running graph's compute loop, and the node one of the graph's.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn ggml_compute_forward(params: *const ComputeParams, node: *mut Tensor) {
    // SAFETY: as the caller says.
    let (params, tensor) = unsafe { (&*params, &*node) };
    if tensor.op == Op::MUL_MAT_ID {
        // SAFETY: as the caller says.
        return unsafe { ggml_compute_forward_mul_mat_id(params, node) };
    }
    // SAFETY: as the caller says.
    (unsafe { pool(params) }.functions.forward)(params, tensor)
}

/// Computes a MUL_MAT_ID node: the experts that were chosen.
///
/// # Safety
/// See [`ggml_compute_forward`].
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn ggml_compute_forward_mul_mat_id(params: *const ComputeParams, node: *mut Tensor) {
    // SAFETY: as the caller says.
    let (params, node) = unsafe { (&*params, &*node) };
    // SAFETY: as the caller says.
    (unsafe { pool(params) }.functions.forward)(params, node)
}

/// Computes RMS_NORM and the MUL behind it as one.
///
/// # Safety
/// See [`ggml_compute_forward`].
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn ggml_compute_forward_rms_norm_mul_fused(
    params: *const ComputeParams,
    norm: *mut Tensor,
    mul: *mut Tensor,
) {
    // SAFETY: as the caller says.
    let (params, norm, mul) = unsafe { (&*params, &*norm, &*mul) };
    // SAFETY: as the caller says.
    (unsafe { pool(params) }.functions.rms_norm_mul)(params, norm, mul)
}

/// Waits until all threads of the graph are here.
///
/// # Safety
/// `threadpool` must be the live pool that runs the calling thread.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn ggml_barrier(threadpool: *mut c_void) {
    // SAFETY: as the caller says.
    let pool = unsafe { &*threadpool.cast::<Pool>() };
    let n = pool.active.load(Ordering::Relaxed);
    let next_op = || pool.chunk.0.store(0, Ordering::Relaxed);
    if n == 1 {
        return next_op();
    }
    pool.barrier.wait(n, pool.spins, next_op);
}
