//! Runs a graph on all threads: the plan, and the loop over the nodes.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::Ordering;

use super::forward::{ggml_barrier, ggml_compute_forward, ggml_compute_forward_rms_norm_mul_fused};
use super::{Functions, Pool, Threads};
use crate::abi::{ComputeParams, Cplan, FLAG_COMPUTE, FLAG_OUTPUT, GgmlGraph, GgmlTensor, Op};
use crate::truth;

/// GGML_STATUS_*.
pub const SUCCESS: i32 = 0;
pub const FAILED: i32 = -1;
pub const ALLOC_FAILED: i32 = -2;

/// True if nodes `i` and `i + 1` of the graph run as one: RMS_NORM and a MUL that is its only user (as in GGML).
pub(crate) fn is_fused(graph: &GgmlGraph, nodes: &[&GgmlTensor], i: usize) -> bool {
    let (Some(norm), Some(mul)) = (nodes.get(i), nodes.get(i + 1)) else { return false };
    if norm.op != Op::RMS_NORM || mul.op != Op::MUL || graph.use_counts.is_null() {
        return false;
    }
    // SAFETY: the builder of the graph provides a count for each node.
    let uses = unsafe { *graph.use_counts.add(i) };
    let is_source = mul.src[..2].iter().any(|s| std::ptr::eq(*s, *norm));
    is_source
        && uses == 1
        && norm.flags & FLAG_OUTPUT == 0
        && norm.flags & mul.flags & FLAG_COMPUTE != 0
        && norm.ne == mul.ne
}

/// How many pairs of a graph's nodes run as one, if nodes are fused.
///
/// # Safety
/// The graph's nodes must be live tensors.
pub(crate) unsafe fn fused_pairs(graph: &GgmlGraph) -> usize {
    // SAFETY: guaranteed by the caller.
    let nodes = unsafe { graph.nodes() };
    (0..nodes.len()).filter(|i| is_fused(graph, nodes, *i)).count()
}

/// Counts how many nodes use each node as a source, stores that in `counts`, and makes `counts` the graph's.
/// `counts` must be as long as the list of nodes and must not move while the graph is in use.
///
/// # Safety
/// The graph's nodes must be live tensors.
pub unsafe fn count_uses(graph: &mut GgmlGraph, counts: &mut [i32]) {
    // SAFETY: guaranteed by the caller.
    let nodes = unsafe { graph.nodes() };
    if counts.len() != nodes.len() {
        return;
    }
    let at: std::collections::HashMap<*const GgmlTensor, usize> =
        nodes.iter().enumerate().map(|(i, n)| (&raw const **n, i)).collect();
    counts.fill(0);
    for source in nodes.iter().flat_map(|n| n.src) {
        if let Some(count) = at.get(&source.cast_const()).and_then(|&i| counts.get_mut(i)) {
            *count += 1;
        }
    }
    graph.use_counts = counts.as_mut_ptr();
}

/// Runs all nodes of the pool's graph on thread `ith`.
pub(super) fn thread(pool: &Pool, ith: usize) {
    let graph = pool.graph.load(Ordering::Relaxed);
    // SAFETY: the caller of `ggml_graph_compute` waits until all threads have reached the barrier below.
    let graph = unsafe { &*graph };
    // SAFETY: the same, for its nodes.
    let nodes = unsafe { graph.nodes() };
    let params = ComputeParams {
        ith: i32::try_from(ith).unwrap_or(0),
        nth: i32::try_from(pool.active.load(Ordering::Relaxed)).unwrap_or(1),
        wsize: pool.work_size.load(Ordering::Relaxed),
        wdata: pool.work.load(Ordering::Relaxed),
        threadpool: pool.as_ptr(),
        use_ref: false,
    };
    let (truth, fuse) = (pool.truth(), pool.fuse.load(Ordering::Relaxed));
    let mut i = 0;
    while let Some(node) = nodes.get(i) {
        let at = i;
        i += 1;
        if node.is_nop() || node.is_empty() || node.flags & FLAG_COMPUTE == 0 {
            continue;
        }
        let fused = fuse && is_fused(graph, nodes, at);
        let tensor = (&raw const **node).cast_mut();
        // The clock is read before the call and before the barrier: a tracer's probes are on the first
        // instructions after these two readings, so that the entry into the kernel counts equally at both ends.
        let start = truth.map(|_| truth::now());
        if fused {
            let mul = nodes.get(i).map_or(null_mut(), |n| (&raw const **n).cast_mut());
            i += 1;
            // SAFETY: the params are this loop's, the nodes the graph's.
            unsafe { ggml_compute_forward_rms_norm_mul_fused(&params, tensor, mul) }
        } else {
            // SAFETY: the params are this loop's, the node the graph's.
            unsafe { ggml_compute_forward(&params, tensor) }
        }
        if let (Some(truth), Some(start)) = (truth, start) {
            truth.op(ith, at, start, truth::now());
            // SAFETY: sources of a node of the graph; the ids were written before this op.
            if let Some(ids) = unsafe { node.source(2) }.filter(|_| ith == 0 && node.op == Op::MUL_MAT_ID) {
                // SAFETY: as above; the builder of the graph makes them rows of 32-bit ids.
                unsafe { truth.experts(at, ids) };
            }
        }
        if i < nodes.len() {
            // SAFETY: the pool is alive and runs this thread.
            unsafe { ggml_barrier(params.threadpool) }
        }
    }
    // SAFETY: the pool is alive and runs this thread.
    unsafe { ggml_barrier(params.threadpool) }
}

/// How to run a graph: the number of threads and the size of their shared memory. The caller supplies the memory.
///
/// # Safety
/// `graph` must point to a graph of live tensors, `threadpool` to a live pool or be null.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn ggml_graph_plan(
    graph: *const GgmlGraph,
    n_threads: i32,
    threadpool: *mut c_void,
) -> Cplan {
    // SAFETY: guaranteed by the caller.
    let pool = unsafe { threadpool.cast::<Pool>().as_ref() };
    let most = pool.map_or(1, Pool::threads);
    let n = usize::try_from(n_threads).unwrap_or(1).clamp(1, most);
    let need = |functions: &Functions| {
        // SAFETY: guaranteed by the caller.
        let nodes = unsafe { (*graph).nodes() };
        nodes.iter().filter(|t| !t.is_nop()).map(|t| (functions.work_size)(t, n)).max().unwrap_or(0)
    };
    Cplan {
        work_size: pool.map_or(0, |p| need(&p.functions)),
        work_data: null_mut(),
        n_threads: i32::try_from(n).unwrap_or(1),
        threadpool,
        abort_callback: None,
        abort_callback_data: null_mut(),
        use_ref: false,
    }
}

/// Runs a graph as planned. The calling thread is thread 0.
///
/// # Safety
/// The plan must come from [`ggml_graph_plan`] for this graph, with `work_data` of at least `work_size` bytes;
/// only one thread may call this on a pool at a time.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn ggml_graph_compute(graph: *mut GgmlGraph, plan: *const Cplan) -> i32 {
    // SAFETY: guaranteed by the caller.
    let plan = unsafe { &*plan };
    // SAFETY: guaranteed by the caller.
    let Some(pool) = (unsafe { plan.threadpool.cast::<Pool>().as_ref() }) else { return FAILED };
    let n = usize::try_from(plan.n_threads).unwrap_or(1).clamp(1, pool.threads());
    pool.run(graph, plan.work_data.cast(), plan.work_size, n);
    if let Some(truth) = pool.truth() {
        truth.end(truth::TruthLevel::CpuGraph);
    }
    SUCCESS
}

/// Parameters of a pool. GGML has more fields here; nothing outside reads them.
#[repr(C)]
pub struct ThreadpoolParams {
    pub n_threads: usize,
    pub pin: bool,
    pub functions: Functions,
}

/// Starts a pool; null if the threads cannot be started.
///
/// # Safety
/// `params` must be null or point to params.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn ggml_threadpool_new(params: *const ThreadpoolParams) -> *mut Threads {
    // SAFETY: guaranteed by the caller.
    let threads = unsafe { params.as_ref() }.and_then(|p| Threads::new(p.n_threads, p.pin, p.functions).ok());
    threads.map_or(null_mut(), |t| Box::into_raw(Box::new(t)))
}

/// Ends a pool.
///
/// # Safety
/// `threads` must be null or come from [`ggml_threadpool_new`], and must not be used afterwards.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn ggml_threadpool_free(threads: *mut Threads) {
    if !threads.is_null() {
        // SAFETY: guaranteed by the caller.
        drop(unsafe { Box::from_raw(threads) });
    }
}

/// Number of threads in a pool.
///
/// # Safety
/// `threads` must come from [`ggml_threadpool_new`].
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn ggml_threadpool_get_n_threads(threads: *const Threads) -> i32 {
    // SAFETY: guaranteed by the caller.
    i32::try_from(unsafe { &*threads }.pool.threads()).unwrap_or(i32::MAX)
}
