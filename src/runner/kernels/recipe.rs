//! Which code packs and multiplies weights of a type on an instruction set.

use super::matmul::Job;
use super::{Isa, dense, scalar};
use crate::ggml::quant::TensorType;

/// Fills a zeroed panel from its rows in GGUF's order: (rows, bytes of a row, panel). The last panel may have fewer
/// rows than the group.
pub(crate) type Pack = fn(&[u8], usize, &mut [u8]);

/// Does a job whose rows and tokens are within bounds, not empty, and begin at a multiple of the group, with the
/// scratch memory asked for.
pub(crate) type Run = fn(&Job<'_>, &mut [u8]);

/// How one instruction set keeps and multiplies weights of one type.
#[derive(Debug)]
pub(crate) struct Recipe {
    /// Type of the weights.
    pub ty: TensorType,
    /// Rows of a panel.
    pub group: usize,
    /// Tokens and rows of the innermost loop, where it is made for the number of registers.
    pub tile: Option<(usize, usize)>,
    /// Bytes of a panel, for rows of this many elements.
    pub panel_bytes: fn(TensorType, usize) -> usize,
    /// `None`: rows are kept as they are in the file, without padding.
    pub pack: Option<Pack>,
    /// Bytes of scratch memory for rows of this many elements and this many tokens.
    pub scratch_bytes: fn(usize, usize) -> usize,
    /// Multiplies.
    pub run: Run,
}

impl Recipe {
    /// Rows as they are in the file, without scratch memory.
    pub(crate) const fn of_rows(ty: TensorType, run: Run) -> Self {
        Self { ty, group: 1, tile: None, panel_bytes: row_bytes, pack: None, scratch_bytes: no_scratch, run }
    }
}

/// Bytes of a row in the file.
fn row_bytes(ty: TensorType, cols: usize) -> usize {
    cols / ty.block() * ty.block_bytes()
}

/// For recipes that need none.
pub(crate) fn no_scratch(_cols: usize, _tokens: usize) -> usize {
    0
}

/// Recipe for weights in memory of their own.
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
