//! The scheduler: cuts a graph into splits, each for one backend, and runs them.
//!
//! There is one backend, GGML's CPU, and on request a second one with a different GUID that computes on the same
//! threads. The layers then alternate between the two, so that a tracer sees a partitioned graph.

use std::ffi::c_char;
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use super::graph::{ALLOC_FAILED, SUCCESS, ggml_graph_compute, ggml_graph_plan};
use super::{Pool, Threads};
use crate::abi::accessors::ggml_graph_next_uid;
use crate::abi::{GgmlBackend, GgmlGraph, Interface, MAX_BACKENDS, SchedHead};
use crate::truth::{self, TruthLevel};

/// The GUID of GGML's CPU backend (ggml-cpu.cpp, unchanged since 2024-02).
static CPU_GUID: [u8; 16] =
    [0xaa, 0x67, 0xc7, 0x43, 0x96, 0xe6, 0xa3, 0x8a, 0xe3, 0xaf, 0xea, 0x92, 0x36, 0xbc, 0xfc, 0x89];
/// The GUID of the second backend, not used by any GGML backend (listed in crates/ggml/src/backend_guid.rs).
static SECOND_GUID: [u8; 16] = *b"ggml-runner-2nd!";

/// Nodes with this name prefix end a layer (llama.cpp's graph builders).
const LAYER_END: &str = "l_out-";

/// Why a graph was not computed.
#[derive(Debug, thiserror::Error)]
pub enum ComputeError {
    #[error("not enough memory for the {0} bytes that the threads share while running the graph")]
    OutOfMemory(usize),
    #[error("the graph could not be run")]
    Failed,
}

/// Memory in units of cache lines.
#[repr(align(64))]
#[derive(Clone, Copy)]
struct CacheLine(#[allow(dead_code, reason = "only its size and place count")] [u8; 64]);

/// What the backends share: the threads and their memory.
struct SharedPool {
    pool: Arc<Pool>,
    n_threads: AtomicI32,
    work: Vec<CacheLine>,
    /// Bytes requested last.
    wanted: usize,
}

/// A part of a graph for one backend.
struct GraphSplit {
    backend: usize,
    graph: GgmlGraph,
}

/// `ggml_backend_sched`.
#[repr(C)]
pub struct BackendSched {
    head: SchedHead,
    /// The graph that was split last, by address and uid.
    cut: (*const GgmlGraph, u64),
    splits: Vec<GraphSplit>,
    backends: Box<[GgmlBackend]>,
    shared: *mut SharedPool,
    // Last, so that the threads end after everything that they may access.
    threads: Threads,
}

extern "C" fn cpu_name(_: *mut GgmlBackend) -> *const c_char {
    c"CPU".as_ptr()
}

extern "C" fn second_name(_: *mut GgmlBackend) -> *const c_char {
    c"ggml-runner's second".as_ptr()
}

fn backend(guid: &'static [u8; 16], second: bool, shared: *mut SharedPool) -> GgmlBackend {
    let iface = Interface {
        get_name: Some(if second { second_name } else { cpu_name }),
        before: [null(); 11],
        graph_compute,
        after: [null(); 3],
    };
    GgmlBackend { guid, iface, device: null_mut(), context: shared.cast() }
}

impl BackendSched {
    /// A scheduler on these threads with one backend, or with two.
    pub fn new(threads: Threads, two_backends: bool) -> Box<BackendSched> {
        let pool = threads.pool().clone();
        let n_threads = AtomicI32::new(i32::try_from(pool.threads()).unwrap_or(1));
        let shared = Box::into_raw(Box::new(SharedPool { pool, n_threads, work: Vec::new(), wanted: 0 }));
        let kinds = [(&CPU_GUID, false), (&SECOND_GUID, true)];
        let kinds = kinds.into_iter().take(1 + usize::from(two_backends));
        let mut backends: Box<[GgmlBackend]> =
            kinds.map(|(guid, second)| backend(guid, second, shared)).collect();
        let mut head = SchedHead {
            is_reset: true,
            is_alloc: true,
            n_backends: i32::from(two_backends) + 1,
            backends: [null_mut(); MAX_BACKENDS],
        };
        for (slot, backend) in head.backends.iter_mut().zip(&mut backends) {
            *slot = backend;
        }
        Box::new(BackendSched { head, cut: (null(), 0), splits: Vec::new(), backends, shared, threads })
    }

    /// The threads.
    pub fn threads(&self) -> &Threads {
        &self.threads
    }

    /// For the graph computed last: the backend and the number of nodes of each split.
    pub fn parts(&self) -> impl Iterator<Item = (usize, usize)> {
        self.splits.iter().map(|s| (s.backend, usize::try_from(s.graph.n_nodes).unwrap_or(0)))
    }

    /// Sets how many of the threads run the next graphs; at least one, at most all.
    pub fn set_threads(&self, n: usize) {
        let n = i32::try_from(n.clamp(1, self.threads.pool().threads())).unwrap_or(1);
        // SAFETY: `shared` lives as long as this scheduler.
        unsafe { &*self.shared }.n_threads.store(n, Ordering::Relaxed);
    }

    /// Computes all nodes of a graph. A graph that has changed must have a different `uid`.
    ///
    /// # Safety
    /// The nodes must be live tensors with valid sources and data, of shapes that the pool's functions accept.
    pub unsafe fn compute(&mut self, graph: &mut GgmlGraph) -> Result<(), ComputeError> {
        let pool = self.threads.pool().clone();
        let nodes = u32::try_from(graph.n_nodes).unwrap_or(0);
        let status = truth::span(pool.truth(), TruthLevel::Graph, nodes, graph.uid, || {
            // SAFETY: guaranteed by the caller.
            unsafe { ggml_backend_sched_graph_compute_async(self, graph) }
        });
        match status {
            SUCCESS => Ok(()),
            // SAFETY: `shared` lives as long as this scheduler, and no graph is running.
            ALLOC_FAILED => Err(ComputeError::OutOfMemory(unsafe { &*self.shared }.wanted)),
            _ => Err(ComputeError::Failed),
        }
    }

    /// Splits a graph that has not been seen before. Memory is allocated only here.
    fn split(&mut self, graph: &GgmlGraph) {
        if self.cut == (&raw const *graph, graph.uid) && graph.uid != 0 {
            return;
        }
        self.splits.clear();
        // SAFETY: the caller of `compute` guarantees the nodes.
        let nodes = unsafe { graph.nodes() };
        let mut first = 0;
        for end in ends(nodes.iter().map(|n| n.name()), self.backends.len()) {
            let mut part = graph.view(first, end - first);
            part.uid = ggml_graph_next_uid();
            self.splits.push(GraphSplit { backend: self.splits.len() % self.backends.len(), graph: part });
            first = end;
        }
        self.cut = (graph, graph.uid);
    }
}

/// Where the splits of a graph end: with one backend after the last node, otherwise also after every layer.
fn ends<'a>(names: impl ExactSizeIterator<Item = &'a str>, backends: usize) -> Vec<usize> {
    let all = names.len();
    let layers = names.enumerate().filter(|(_, n)| backends > 1 && n.starts_with(LAYER_END));
    let mut ends: Vec<usize> = layers.map(|(i, _)| i + 1).filter(|&i| i < all).collect();
    ends.push(all);
    ends
}

impl Drop for BackendSched {
    fn drop(&mut self) {
        // SAFETY: created by `Box::into_raw` in `new`; no graph is running, so nothing uses it any more.
        drop(unsafe { Box::from_raw(self.shared) });
    }
}

/// Runs a graph on a scheduler's backends and returns when it is done.
///
/// # Safety
/// See [`BackendSched::compute`].
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn ggml_backend_sched_graph_compute_async(
    sched: *mut BackendSched,
    graph: *mut GgmlGraph,
) -> i32 {
    // SAFETY: guaranteed by the caller.
    let sched = unsafe { &mut *sched };
    // SAFETY: guaranteed by the caller.
    sched.split(unsafe { &*graph });
    let mut status = SUCCESS;
    for split in &mut sched.splits {
        let backend = sched.head.backends.get(split.backend).copied().unwrap_or(null_mut());
        // SAFETY: the scheduler's backends live as long as it does; the split is a part of the caller's graph.
        status = unsafe { ggml_backend_graph_compute_async(backend, &mut split.graph) };
        if status != SUCCESS {
            break;
        }
    }
    if let Some(truth) = sched.threads.pool().truth() {
        truth.end(TruthLevel::Graph);
    }
    status
}

/// Runs a graph on a backend.
///
/// # Safety
/// `backend` must belong to a scheduler, and the graph's nodes must meet the conditions of [`BackendSched::compute`].
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn ggml_backend_graph_compute_async(
    backend: *mut GgmlBackend,
    graph: *mut GgmlGraph,
) -> i32 {
    // SAFETY: guaranteed by the caller.
    unsafe { ((*backend).iface.graph_compute)(backend, graph) }
}

/// The backend's compute function: runs a graph on the threads.
unsafe extern "C" fn graph_compute(backend: *mut GgmlBackend, graph: *mut GgmlGraph) -> i32 {
    // SAFETY: called through a scheduler's backend, whose context was set by `Sched::new`; one graph at a time.
    let shared = unsafe { &mut *(*backend).context.cast::<SharedPool>() };
    let n = shared.n_threads.load(Ordering::Relaxed);
    // SAFETY: the graph is the caller's, the pool this scheduler's.
    let mut plan = unsafe { ggml_graph_plan(graph, n, shared.pool.as_ptr()) };
    shared.wanted = plan.work_size;
    let lines = plan.work_size.div_ceil(size_of::<CacheLine>());
    if lines > shared.work.len() {
        if shared.work.try_reserve_exact(lines - shared.work.len()).is_err() {
            return ALLOC_FAILED;
        }
        shared.work.resize(lines, CacheLine([0; 64]));
    }
    plan.work_data = shared.work.as_mut_ptr().cast();
    let truth = shared.pool.truth();
    if let Some(truth) = truth {
        // SAFETY: the caller of `Sched::compute` guarantees the graph.
        unsafe { truth.graph(&*graph) }
    }
    let threads = plan.n_threads.cast_unsigned();
    // SAFETY: the graph is the caller's.
    let uid = unsafe { (*graph).uid };
    // SAFETY: planned for this graph, and the memory has the planned size.
    truth::span(truth, TruthLevel::CpuGraph, threads, uid, || unsafe { ggml_graph_compute(graph, &plan) })
}
