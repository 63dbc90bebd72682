//! `ggml_backend`, the start of `ggml_backend_sched`, `ggml_backend_buffer` and `llama_batch`, as of 2026-04 and
//! later.

use std::ffi::{c_char, c_void};
use std::mem::{offset_of, size_of};

use super::graph::GgmlGraph;

/// Most backends per scheduler (GGML_SCHED_MAX_BACKENDS).
pub const MAX_BACKENDS: usize = 16;

/// A backend function that is never called here.
pub type Unused = *const c_void;

/// `ggml_backend_i`, the functions of a backend. Those listed by name only are never called here.
#[repr(C)]
#[derive(Clone)]
pub struct Interface {
    pub get_name: Option<unsafe extern "C" fn(*mut GgmlBackend) -> *const c_char>,
    /// free, set_tensor_async, get_tensor_async, set_tensor_2d_async, get_tensor_2d_async, cpy_tensor_async,
    /// synchronize, graph_plan_create, graph_plan_free, graph_plan_update, graph_plan_compute.
    pub before: [Unused; 11],
    /// Runs a graph; 0 means success.
    pub graph_compute: unsafe extern "C" fn(*mut GgmlBackend, *mut GgmlGraph) -> i32,
    /// event_record, event_wait, graph_optimize.
    pub after: [Unused; 3],
}

/// `ggml_backend`.
#[repr(C)]
pub struct GgmlBackend {
    /// Identifies the kind of backend.
    pub guid: *const [u8; 16],
    pub iface: Interface,
    pub device: *mut c_void,
    pub context: *mut c_void,
}

const _: () = {
    assert!(size_of::<Interface>() == 128);
    assert!(size_of::<GgmlBackend>() == 152);
    assert!(offset_of!(GgmlBackend, iface) == 8);
    assert!(offset_of!(GgmlBackend, iface) + offset_of!(Interface, graph_compute) == 104);
};

/// `ggml_backend_buffer`: memory that holds tensors.
#[repr(C)]
pub struct GgmlBuffer {
    pub iface: [Unused; 11],
    pub buft: *mut c_void,
    pub context: *mut c_void,
    pub size: usize,
    pub usage: i32,
}

const _: () = {
    assert!(size_of::<GgmlBuffer>() == 120);
    assert!(offset_of!(GgmlBuffer, buft) == 88);
};

/// The start of `ggml_backend_sched`; the rest depends on the scheduler.
#[repr(C)]
pub struct SchedHead {
    pub is_reset: bool,
    pub is_alloc: bool,
    pub n_backends: i32,
    pub backends: [*mut GgmlBackend; MAX_BACKENDS],
}

const _: () = {
    assert!(offset_of!(SchedHead, n_backends) == 4);
    assert!(offset_of!(SchedHead, backends) == 8);
};

/// `llama_batch`: the tokens of one call. Passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct LlamaBatch {
    pub n_tokens: i32,
    pub token: *mut i32,
    pub embd: *mut f32,
    pub pos: *mut i32,
    pub n_seq_id: *mut i32,
    pub seq_id: *mut *mut i32,
    pub logits: *mut i8,
}

const _: () = {
    assert!(size_of::<LlamaBatch>() == 56);
    assert!(offset_of!(LlamaBatch, token) == 8);
    assert!(offset_of!(LlamaBatch, logits) == 48);
};
