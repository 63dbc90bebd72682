//! Kernels for x86-64. Weights of both instruction sets lie in the panels of [`panel`].

mod avx512;
mod panel;

use super::recipe::Recipe;
use super::{Format, Isa};
use crate::ggml::quant::TensorType;

/// The recipe for repacked weights, if there is one.
pub(super) fn recipe(isa: Isa, ty: TensorType) -> Option<&'static Recipe> {
    match isa {
        Isa::Avx512Vnni => avx512::recipe(ty),
        _ => None,
    }
}

/// Prepares as many whole blocks as there are, if there is a way for this format; see [`super::prepare_row`].
pub(super) fn prepare_row(isa: Isa, format: Format, src: &[f32], dst: &mut [u8]) -> bool {
    match isa {
        Isa::Avx512Vnni => avx512::prepare_row(format, src, dst),
        _ => false,
    }
}
