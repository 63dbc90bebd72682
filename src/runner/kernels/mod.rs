//! Number crunching of `ggml-runner`: slices, pointers, sizes and an instruction set in, numbers out.
//!
//! Knows nothing of tensors, graphs or threads; uses `ggml::quant` for the types of weights alone. A weight matrix
//! is repacked once for the machine ([`Matrix`]), activations are brought into the form that its type asks for
//! ([`prepare_row`]), and [`matmul()`] multiplies the two. Which code does it is a `Recipe`: one for each
//! instruction set and type, so that a new kernel is a file with its recipes and a line in `recipe.rs`. Attention ([`attention`]) and what works on single
//! elements and rows ([`vector`]) are written once on vectors of any length (`simd`).

#[cfg(target_arch = "aarch64")]
mod arm;
pub mod attention;
mod dense;
pub mod format;
pub mod isa;
pub mod matmul;
pub mod matrix;
mod memory;
mod recipe;
mod scalar;
pub(super) mod simd;
#[cfg(test)]
mod tests;
pub mod vector;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use format::{Format, prepare_row, prepared_row_bytes};
pub use isa::Isa;
pub use matmul::{Acts, Index, Out, matmul};
pub use matrix::{Matrix, MatrixError, Placement, Shared};
