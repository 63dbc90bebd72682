//! Recipes: the code that packs and multiplies weights of a type on an instruction set.

use super::matmul::MatmulJob;
use super::reading::Reading;
use crate::quant::TensorType;

/// Fills a zeroed panel from its rows in GGUF's order: (rows, bytes per row, panel). The last panel may have
/// fewer rows than the group.
pub(crate) type Pack = fn(&[u8], usize, &mut [u8]);

/// Runs a job whose rows and tokens are within bounds, are not empty and begin at a multiple of the group, with
/// the requested scratch memory.
pub(crate) type RecipeFn = fn(&MatmulJob<'_>, &mut [u8]);

/// How one instruction set stores and multiplies weights of one type.
#[derive(Debug)]
pub(crate) struct Recipe {
    /// Type of the weights.
    pub ty: TensorType,
    /// Rows in a panel.
    pub group: usize,
    /// Tokens and rows of the innermost loop, if it was designed for the number of registers.
    pub tile: Option<(usize, usize)>,
    /// Bytes of a panel with rows of this many elements.
    pub panel_bytes: fn(TensorType, usize) -> usize,
    /// `None`: rows are kept as in the file, without padding.
    pub pack: Option<Pack>,
    /// Bytes of scratch memory for rows of this many elements and for this many tokens.
    pub scratch_bytes: fn(usize, usize) -> usize,
    /// Ways to read the weights for one token, the default first; empty: there is only one.
    pub readings: &'static [Reading],
    pub run: RecipeFn,
}

impl Recipe {
    /// For rows as stored in the file, without scratch memory.
    pub(crate) const fn of_rows(ty: TensorType, run: RecipeFn) -> Self {
        Self {
            ty,
            group: 1,
            tile: None,
            panel_bytes: row_bytes,
            pack: None,
            scratch_bytes: no_scratch,
            readings: &[],
            run,
        }
    }
}

/// Bytes of a row in the file.
fn row_bytes(ty: TensorType, cols: usize) -> usize {
    cols / ty.block() * ty.block_bytes()
}

/// For recipes that need no scratch memory.
pub(crate) fn no_scratch(_cols: usize, _tokens: usize) -> usize {
    0
}
