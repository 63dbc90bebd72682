//! `ggml-runner`: a model generator and reference kernels.
#![allow(clippy::disallowed_methods, reason = "few rows are sorted here, and not in the program for boards")]

pub mod abi;
pub mod bench;
pub mod compute;
pub mod engine;
pub mod model;
pub mod optimise;
pub mod parts;
pub mod peaks_table;
pub mod pool;
pub mod quality;
pub mod reading;
pub mod roofline;
pub mod slots;
pub mod synth;
pub mod tokenizer;
pub mod truth;

// In a separate crate so that it is compiled for speed.
pub use kernels::{self, peak};
