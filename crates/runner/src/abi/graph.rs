//! `ggml_cgraph`, `ggml_compute_params` and `ggml_cplan`, as of 2026-04 and later.

use std::ffi::c_void;
use std::mem::{offset_of, size_of};
use std::ptr::null_mut;

use super::tensor::GgmlTensor;

/// `ggml_hash_set`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct HashSet {
    pub size: usize,
    pub used: *mut u32,
    pub keys: *mut *mut GgmlTensor,
}

/// `ggml_cgraph`: the nodes in execution order.
#[repr(C)]
#[derive(Clone)]
pub struct GgmlGraph {
    /// Capacity in nodes.
    pub size: i32,
    pub n_nodes: i32,
    pub n_leafs: i32,
    pub nodes: *mut *mut GgmlTensor,
    pub grads: *mut *mut GgmlTensor,
    pub grad_accs: *mut *mut GgmlTensor,
    pub leafs: *mut *mut GgmlTensor,
    /// For each node, how many nodes use it. GGML indexes this by a node's hash slot; here it is the index in
    /// `nodes`.
    pub use_counts: *mut i32,
    pub visited: HashSet,
    pub order: i32,
    /// Changes with each rebuild, see [`next_uid`](super::accessors::ggml_graph_next_uid).
    pub uid: u64,
}

const _: () = {
    assert!(size_of::<GgmlGraph>() == 96);
    assert!(offset_of!(GgmlGraph, n_nodes) == 4);
    assert!(offset_of!(GgmlGraph, nodes) == 16);
    assert!(offset_of!(GgmlGraph, leafs) == 40);
    assert!(offset_of!(GgmlGraph, use_counts) == 48);
    assert!(offset_of!(GgmlGraph, uid) == 88);
};

impl GgmlGraph {
    /// A graph without nodes.
    pub const EMPTY: GgmlGraph = GgmlGraph {
        size: 0,
        n_nodes: 0,
        n_leafs: 0,
        nodes: null_mut(),
        grads: null_mut(),
        grad_accs: null_mut(),
        leafs: null_mut(),
        use_counts: null_mut(),
        visited: HashSet { size: 0, used: null_mut(), keys: null_mut() },
        order: 0,
        uid: 0,
    };

    /// Makes `nodes` the graph's list; `nodes` must not move while the graph is in use.
    pub fn set_nodes(&mut self, nodes: &mut [*mut GgmlTensor]) {
        self.nodes = nodes.as_mut_ptr();
        self.n_nodes = i32::try_from(nodes.len()).unwrap_or(i32::MAX);
        self.size = self.n_nodes;
    }

    /// The list of nodes.
    ///
    /// # Safety
    /// `nodes` must point to `n_nodes` pointers that stay valid, and so must the tensors they point to.
    pub unsafe fn nodes(&self) -> &[&GgmlTensor] {
        let len = usize::try_from(self.n_nodes).unwrap_or(0);
        if self.nodes.is_null() || len == 0 {
            return &[];
        }
        // SAFETY: the caller guarantees the list; a reference has the layout of a non-null pointer.
        unsafe { std::slice::from_raw_parts(self.nodes.cast::<&GgmlTensor>(), len) }
    }

    /// The part of the graph that starts at `first` and has `count` nodes, over the same list
    /// (`ggml_graph_view`).
    ///
    /// Returns an empty graph if the list has no such part.
    pub fn view(&self, first: usize, count: usize) -> GgmlGraph {
        let len = usize::try_from(self.n_nodes).unwrap_or(0);
        let fits = first.checked_add(count).is_some_and(|end| end <= len);
        let count = if fits { count } else { 0 };
        let n_nodes = i32::try_from(count).unwrap_or(0);
        // The offsets are within the lists, or the view is empty.
        let at = if n_nodes == 0 { 0 } else { first };
        let counts = self.use_counts;
        let use_counts = if counts.is_null() { counts } else { counts.wrapping_add(at) };
        // A view has no room for more nodes.
        GgmlGraph {
            size: 0,
            n_nodes,
            n_leafs: 0,
            nodes: self.nodes.wrapping_add(at),
            use_counts,
            leafs: null_mut(),
            ..self.clone()
        }
    }
}

/// `ggml_compute_params`: what a thread is given for each op.
#[repr(C)]
#[derive(Clone)]
pub struct ComputeParams {
    /// This thread's number, from 0.
    pub ith: i32,
    /// Number of threads working on the graph.
    pub nth: i32,
    /// Bytes of scratch memory shared by all threads.
    pub wsize: usize,
    pub wdata: *mut c_void,
    /// The pool, for `ggml_barrier`.
    pub threadpool: *mut c_void,
    pub use_ref: bool,
}

const _: () = {
    assert!(size_of::<ComputeParams>() == 40);
    assert!(offset_of!(ComputeParams, nth) == 4);
    assert!(offset_of!(ComputeParams, wdata) == 16);
    assert!(offset_of!(ComputeParams, threadpool) == 24);
};

/// `ggml_cplan`: how to run a graph.
#[repr(C)]
#[derive(Clone)]
pub struct Cplan {
    pub work_size: usize,
    pub work_data: *mut u8,
    pub n_threads: i32,
    pub threadpool: *mut c_void,
    pub abort_callback: Option<unsafe extern "C" fn(*mut c_void) -> bool>,
    pub abort_callback_data: *mut c_void,
    pub use_ref: bool,
}

const _: () = {
    assert!(size_of::<Cplan>() == 56);
    assert!(offset_of!(Cplan, n_threads) == 16);
    assert!(offset_of!(Cplan, threadpool) == 24);
    assert!(offset_of!(Cplan, use_ref) == 48);
};
