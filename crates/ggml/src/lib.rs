//! Facts about GGML: op and type names, block sizes, op costs, the GGUF format.
// Model files are untrusted input.
#![warn(clippy::indexing_slicing)]

pub mod backend_guid;
pub mod cost;
pub mod expert_cache;
pub mod expert_pins;
pub mod gguf;
pub mod model_shape;
pub mod names;
pub mod roofline;

// In a separate crate so that it is compiled for speed.
pub use kernels::quant;
