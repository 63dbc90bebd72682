//! GGML's structs, numbers and names as they are today, for a program that a tracer shall take for GGML. Uses nothing.
//!
//! Every size and offset is asserted at compile time against what was read out of real builds; a tracer reads exactly
//! these bytes. Layouts are those of 64-bit machines (x86-64 and arm64 agree).
//!
//! - [`tensor`], [`graph`], [`backend`]: the structs;
//! - [`ops`], [`types`]: numbers and name tables, in GGML's order;
//! - [`accessors`]: GGML's tiny functions, by whose code a tracer finds the fields.

pub mod accessors;
pub mod backend;
pub mod graph;
pub mod ops;
pub mod tensor;
pub mod types;

pub use backend::{Backend, Batch, Buffer, Interface, MAX_BACKENDS, SchedHead};
pub use graph::{ComputeParams, Cplan, Graph};
pub use ops::{GluOp, Op, UnaryOp};
pub use tensor::{FLAG_COMPUTE, FLAG_INPUT, FLAG_OUTPUT, MAX_NAME, MAX_SRC, Tensor};
pub use types::{Type, TypeTraits};

/// A pointer to a NUL-terminated text with static lifetime, for tables that foreign code reads.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Text(*const std::ffi::c_char);

// SAFETY: it points to constant memory that is never written.
unsafe impl Sync for Text {}

impl Text {
    /// Wraps a text constant.
    pub const fn new(text: &'static std::ffi::CStr) -> Text {
        Text(text.as_ptr())
    }

    /// The bare pointer.
    pub const fn as_ptr(self) -> *const std::ffi::c_char {
        self.0
    }

    /// The text itself; empty if it is not UTF-8.
    pub fn as_str(self) -> &'static str {
        // SAFETY: `new` is the only way to make one, so the pointer is to a static NUL-terminated text.
        unsafe { std::ffi::CStr::from_ptr(self.0) }.to_str().unwrap_or("")
    }
}
