//! `ggml-runner`: model generator and reference kernels. May use `ggml`.

pub mod abi;
pub mod kernels;
pub mod peak;
pub mod pool;
pub mod synth;
pub mod tokenizer;
pub mod truth;
