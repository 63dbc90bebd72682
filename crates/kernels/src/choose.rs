//! Chooses the recipe of an instruction set for a weight type.

use crate::isa::Isa;
use crate::quant::TensorType;
use crate::recipe::Recipe;
use crate::{dense, scalar};

/// Recipe for repacked weights.
pub(crate) fn packed(isa: Isa, ty: TensorType) -> &'static Recipe {
    #[cfg(target_arch = "x86_64")]
    if let Some(recipe) = super::x86::recipe(isa, ty) {
        return recipe;
    }
    #[cfg(target_arch = "aarch64")]
    if let Some(recipe) = super::arm::packed(isa, ty) {
        return recipe;
    }
    dense::packed(isa, ty).unwrap_or_else(|| mapped(isa, ty))
}

/// Recipe for weights in GGUF's own order.
pub(crate) fn mapped(isa: Isa, ty: TensorType) -> &'static Recipe {
    #[cfg(target_arch = "x86_64")]
    if let Some(recipe) = super::x86::mapped(isa, ty) {
        return recipe;
    }
    dense::mapped(isa, ty).unwrap_or_else(|| scalar::recipe(ty))
}
