//! Facts about GGML: op and type names, block sizes, cost of an op, GGUF. Uses nothing else of this crate.

pub mod backend_guid;
pub mod cost;
pub mod gguf;
pub mod names;
pub mod roofline;

// Compiled for speed, in a crate of its own.
pub use ggml_kernels::ggml::quant;
