//! `ggml-runner`: model generator and reference kernels. May use `ggml`.

pub mod abi;
pub mod bench;
pub mod compute;
pub mod engine;
pub mod model;
pub mod pool;
pub mod roofline;
pub mod synth;
pub mod tokenizer;
pub mod truth;

// Compiled for speed, in a crate of their own.
pub use ggml_kernels::runner::{kernels, peak};
