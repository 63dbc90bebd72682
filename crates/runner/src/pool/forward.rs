//! Runs one op on one thread, and synchronizes the threads.

use std::ffi::c_void;
use std::sync::atomic::Ordering;

use super::Pool;
use crate::abi::{ComputeParams, GgmlTensor, Op};

/// # Safety
/// `params.threadpool` must point to the live pool that runs the calling thread.
unsafe fn pool(params: &ComputeParams) -> &Pool {
    // SAFETY: guaranteed by the caller.
    unsafe { &*params.threadpool.cast::<Pool>() }
}

/// Waits for all threads of the graph: for ops whose second half needs all of the first.
#[inline(always)]
pub fn barrier(params: &ComputeParams) {
    // SAFETY: only the compute loop creates params, and it fills in its own pool.
    unsafe { ggml_barrier(params.threadpool) }
}

/// The next chunk of work that no other thread has taken, counted from 0. Restarts with each [`barrier`] and each
/// op.
#[inline]
pub fn next_chunk(params: &ComputeParams) -> usize {
    // SAFETY: only the compute loop creates params, and it fills in its own pool.
    unsafe { pool(params) }.chunk.0.fetch_add(1, Ordering::Relaxed)
}

/// Lets [`next_chunk`] count from 0 again. Only for the one thread of a graph; several wait at a [`barrier`].
#[inline]
pub fn restart_chunks(params: &ComputeParams) {
    // SAFETY: only the compute loop creates params, and it fills in its own pool.
    unsafe { pool(params) }.chunk.0.store(0, Ordering::Relaxed);
}

/// Computes a node; called on each thread.
///
/// # Safety
/// The params must be those of a running graph's compute loop, and the node must belong to that graph.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn ggml_compute_forward(params: *const ComputeParams, node: *mut GgmlTensor) {
    // SAFETY: guaranteed by the caller.
    let (params, tensor) = unsafe { (&*params, &*node) };
    if tensor.op == Op::MUL_MAT_ID {
        // SAFETY: guaranteed by the caller.
        return unsafe { ggml_compute_forward_mul_mat_id(params, node) };
    }
    // SAFETY: guaranteed by the caller.
    (unsafe { pool(params) }.functions.forward)(params, tensor)
}

/// Computes a MUL_MAT_ID node for the experts that were chosen.
///
/// # Safety
/// See [`ggml_compute_forward`].
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn ggml_compute_forward_mul_mat_id(
    params: *const ComputeParams,
    node: *mut GgmlTensor,
) {
    // SAFETY: guaranteed by the caller.
    let (params, node) = unsafe { (&*params, &*node) };
    // SAFETY: guaranteed by the caller.
    (unsafe { pool(params) }.functions.forward)(params, node)
}

/// Computes RMS_NORM and the following MUL as one.
///
/// # Safety
/// See [`ggml_compute_forward`].
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn ggml_compute_forward_rms_norm_mul_fused(
    params: *const ComputeParams,
    norm: *mut GgmlTensor,
    mul: *mut GgmlTensor,
) {
    // SAFETY: guaranteed by the caller.
    let (params, norm, mul) = unsafe { (&*params, &*norm, &*mul) };
    // SAFETY: guaranteed by the caller.
    (unsafe { pool(params) }.functions.rms_norm_mul)(params, norm, mul)
}

/// Waits for all threads of the graph.
///
/// # Safety
/// `threadpool` must be the live pool that runs the calling thread.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn ggml_barrier(threadpool: *mut c_void) {
    // SAFETY: guaranteed by the caller.
    let pool = unsafe { &*threadpool.cast::<Pool>() };
    let n = pool.active.load(Ordering::Relaxed);
    let next_op = || pool.chunk.0.store(0, Ordering::Relaxed);
    if n == 1 {
        return next_op();
    }
    pool.barrier.wait(n, pool.spins, next_op);
}
