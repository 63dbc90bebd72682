//! The compute kernels of `ggml-runner`: slices, pointers, sizes and an instruction set in, numbers out.
//!
//! Independent of tensors, graphs and threads; of `ggml` only the weight types in `ggml::quant` are used. A
//! weight matrix is repacked once for the machine ([`Matrix`]), activations are converted to the format that its
//! type requires ([`prepare_row`]), and [`matmul()`] multiplies the two. Which code does it is a `Recipe`, one
//! per instruction set and type, so that a new kernel is a file with its recipes and a line in `recipe.rs`.
//! Attention ([`attention`]) and kernels on single elements and rows ([`vector`]) are written once on vectors of
//! any length (`simd`).
#![allow(clippy::disallowed_methods, reason = "few rows are sorted here, and not in the program for boards")]

#[cfg(target_arch = "aarch64")]
mod arm;
pub mod attention;
mod choose;
mod dense;
pub mod format;
pub mod isa;
pub mod matmul;
pub mod matrix;
mod memory;
pub mod peak;
pub mod pin;
pub mod prepare;
pub mod quant;
pub mod reading;
mod recipe;
mod scalar;
pub(crate) mod simd;
#[cfg(test)]
mod tests;
pub mod vector;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use format::{ActivationFormat, ActivationScale, prepared_row_bytes};
pub use isa::Isa;
pub use matmul::{Acts, ResultRows, RowIndex, matmul};
pub use matrix::{Matrix, MatrixError, MatrixLayout, MatrixPlacement, SharedBytes};
pub use prepare::{prepare_row, prepare_row_scaled};
pub use reading::Reading;
