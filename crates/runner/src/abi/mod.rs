//! GGML's current structs, numbers and names, so that a tracer takes this program for GGML.
//!
//! Every size and offset is asserted at compile time against values read from real builds; a tracer reads exactly
//! these bytes. Layouts are those of 64-bit machines (x86-64 and arm64 agree).
//!
//! - [`tensor`], [`graph`], [`backend`]: the structs;
//! - [`ops`], [`types`]: numbers and name tables, in GGML's order;
//! - [`accessors`]: GGML's small functions, from whose code a tracer finds the fields.

pub mod accessors;
pub mod backend;
pub mod graph;
pub mod ops;
pub mod tensor;
pub mod text;
pub mod types;

pub use backend::{GgmlBackend, GgmlBuffer, Interface, LlamaBatch, MAX_BACKENDS, SchedHead};
pub use graph::{ComputeParams, Cplan, GgmlGraph};
pub use ops::{GluOp, Op, UnaryOp};
pub use tensor::{FLAG_COMPUTE, FLAG_INPUT, FLAG_OUTPUT, GgmlTensor, MAX_NAME, MAX_SRC};
pub use text::Text;
pub use types::{GgmlType, TypeTraits};
