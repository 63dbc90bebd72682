//! `ggml-runner`: model generator and reference kernels. May use `ggml`.

pub mod abi;
pub mod kernels;
pub mod synth;
