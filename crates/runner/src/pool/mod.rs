//! The threads that run graphs, and GGML's functions around them, under GGML's names.
//!
//! The call chain of a token is GGML's: [`llama_decode`](context::llama_decode) →
//! `ggml_backend_sched_graph_compute_async` → per split `ggml_backend_graph_compute_async` → `ggml_graph_plan`,
//! `ggml_graph_compute` → on every thread, for every node, `ggml_compute_forward` and then `ggml_barrier`. Each
//! of these is a real call to a function with C's calling convention that stays in the program's symbol table.

pub mod context;
pub mod forward;
pub mod graph;
pub mod sched;
pub mod sync;

pub use kernels::pin;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use super::abi::accessors::{self, KeptSymbol, kept};
use super::abi::{ComputeParams, GgmlGraph, GgmlTensor};
use super::truth::Truth;
use sync::{Barrier, CachePadded, Futex};

pub use context::Context;
pub use forward::{barrier, next_chunk, restart_chunks};
pub use sched::BackendSched;

/// Most threads per pool (GGML_MAX_N_THREADS).
pub const MAX_THREADS: usize = 512;

/// The implementations of the ops. Every thread of the pool calls these for every node. The threads share the
/// work by `params.ith` of `params.nth`, and may use [`barrier`] and [`next_chunk`].
#[derive(Clone, Copy)]
pub struct Functions {
    /// Computes a node.
    pub forward: fn(&ComputeParams, &GgmlTensor),
    /// Computes RMS_NORM and the following MUL as one.
    pub rms_norm_mul: fn(&ComputeParams, &GgmlTensor, &GgmlTensor),
    /// Bytes of memory shared by all threads (`params.wdata`) that a node needs with this many threads.
    pub work_size: fn(&GgmlTensor, usize) -> usize,
}

/// Why a pool could not be created.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    #[error("{0} threads: give 1 to {MAX_THREADS}")]
    Count(usize),
    #[error("thread {0} could not be started: {1}")]
    Start(usize, std::io::Error),
}

/// What all threads share: the work, and where they synchronize. `ggml_compute_params.threadpool` points here.
pub struct Pool {
    functions: Functions,
    barrier: Barrier,
    /// One per thread: changes when there is work for it.
    calls: Box<[Futex]>,
    /// Threads working on the current graph.
    active: AtomicU32,
    spins: u32,
    /// Next chunk of work in the current op; reset to 0 by every barrier.
    chunk: CachePadded<AtomicUsize>,
    graph: AtomicPtr<GgmlGraph>,
    work: AtomicPtr<c_void>,
    work_size: AtomicUsize,
    stop: AtomicBool,
    /// Whether nodes that can run as one do so.
    fuse: AtomicBool,
    truth: OnceLock<Arc<Truth>>,
}

/// A pool with its threads, which end when it is dropped. The calling thread is number 0.
pub struct Threads {
    pool: Arc<Pool>,
    handles: Vec<JoinHandle<()>>,
}

impl Threads {
    /// Starts a pool of `n` threads, including the calling one; with `pin`, each stays on its own CPU (CPUs are
    /// assigned in rotation if there are fewer).
    pub fn new(n: usize, pin: bool, functions: Functions) -> Result<Threads, PoolError> {
        if !(1..=MAX_THREADS).contains(&n) {
            return Err(PoolError::Count(n));
        }
        keep_exports();
        let cpus = if pin { pin::cpus() } else { Vec::new() };
        let place = |ith: usize| cpus.get(ith.checked_rem(cpus.len())?).copied();
        let pool = Arc::new(Pool {
            functions,
            barrier: Barrier::default(),
            calls: (0..n).map(|_| Futex::default()).collect(),
            active: AtomicU32::new(1),
            spins: sync::measure_spins(),
            chunk: CachePadded::default(),
            graph: AtomicPtr::default(),
            work: AtomicPtr::default(),
            work_size: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            fuse: AtomicBool::new(true),
            truth: OnceLock::new(),
        });
        let mut threads = Threads { pool, handles: Vec::with_capacity(n - 1) };
        for ith in 1..n {
            let (pool, cpu) = (threads.pool.clone(), place(ith));
            let run = move || pool.worker(ith, cpu);
            let thread = std::thread::Builder::new().name(format!("worker-{ith}")).spawn(run);
            threads.handles.push(thread.map_err(|e| PoolError::Start(ith, e))?);
        }
        if let Some(cpu) = place(0) {
            // If the kernel refuses, the thread runs where it is allowed to.
            pin::stay_on(cpu);
        }
        Ok(threads)
    }

    /// The pool itself.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Whether RMS_NORM and the following MUL run as one, as they do at first.
    pub fn fuse(&self, on: bool) {
        self.pool.fuse.store(on, Ordering::Relaxed);
    }

    /// Makes the threads record when each op began and ended. Only the first call has an effect.
    pub fn record(&self, truth: Arc<Truth>) {
        // The cell rejects a second record, and there is nobody to report it to.
        let _ = self.pool.truth.set(truth);
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.pool.stop.store(true, Ordering::Relaxed);
        self.pool.calls.iter().for_each(|c| c.set(c.get().wrapping_add(1)));
        for thread in self.handles.drain(..) {
            // A thread that panicked has ended the program.
            let _ = thread.join();
        }
    }
}

impl Pool {
    /// Number of threads, including the caller's.
    pub fn threads(&self) -> usize {
        self.calls.len()
    }

    /// The record that the threads keep, if any.
    pub fn truth(&self) -> Option<&Truth> {
        self.truth.get().map(|t| &**t)
    }

    /// The pointer that represents this pool in GGML's structs.
    pub fn as_ptr(&self) -> *mut c_void {
        (&raw const *self).cast_mut().cast()
    }

    fn worker(&self, ith: usize, cpu: Option<usize>) {
        if let Some(cpu) = cpu {
            // If the kernel refuses, the thread runs where it is allowed to.
            pin::stay_on(cpu);
        }
        let Some(call) = self.calls.get(ith) else { return };
        let mut seen = 0;
        loop {
            call.wait_while(seen, self.spins);
            seen = call.get();
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            graph::thread(self, ith);
        }
    }

    /// Runs a graph on the first `n` threads; the caller is thread 0.
    fn run(&self, graph: *mut GgmlGraph, work: *mut c_void, work_size: usize, n: usize) {
        self.graph.store(graph, Ordering::Relaxed);
        self.work.store(work, Ordering::Relaxed);
        self.work_size.store(work_size, Ordering::Relaxed);
        self.active.store(u32::try_from(n).unwrap_or(1), Ordering::Relaxed);
        self.chunk.0.store(0, Ordering::Relaxed);
        // A thread that sees its call changed also sees what was stored above.
        self.calls.iter().take(n).skip(1).for_each(|c| c.set(c.get().wrapping_add(1)));
        graph::thread(self, 0);
    }
}

/// Functions on the call chain of a token.
static WAY: [KeptSymbol; 12] = kept![
    context::llama_decode,
    sched::ggml_backend_sched_graph_compute_async,
    sched::ggml_backend_graph_compute_async,
    graph::ggml_graph_plan,
    graph::ggml_graph_compute,
    forward::ggml_compute_forward,
    forward::ggml_compute_forward_mul_mat_id,
    forward::ggml_compute_forward_rms_norm_mul_fused,
    forward::ggml_barrier,
    graph::ggml_threadpool_new,
    graph::ggml_threadpool_free,
    graph::ggml_threadpool_get_n_threads,
];

/// Keeps GGML's functions and tables in any program that has a pool.
fn keep_exports() {
    accessors::keep(&accessors::ACCESSORS);
    accessors::keep(&accessors::TABLES);
    accessors::keep(&WAY);
}

#[cfg(test)]
mod tests;
