//! `ggml-runner`: model generator and reference kernels. May use `ggml`.

pub mod synth;
