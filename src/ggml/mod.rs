//! Facts about GGML: op and type names, block sizes, cost of an op, GGUF. Uses nothing else of this crate.

pub mod backend_guid;
pub mod cost;
pub mod gguf;
pub mod names;
pub mod quant;
pub mod roofline;
