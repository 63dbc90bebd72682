//! Creates a matrix: chooses its recipe and repacks its weights accordingly.

use super::{Matrix, MatrixBytes, MatrixError, MatrixPlacement};
use crate::choose;
use crate::isa::Isa;
use crate::memory::Memory;
use crate::quant::TensorType;
use crate::reading::Chosen;
use crate::recipe::Recipe;

impl Matrix {
    /// Weights for the kernels of `isa`.
    ///
    /// # Errors
    /// [`MatrixError`] if the bytes don't match the shape, the processor lacks `isa`, or memory runs out.
    pub fn new(
        ty: TensorType,
        rows: usize,
        cols: usize,
        weights: MatrixPlacement<'_>,
        isa: Isa,
    ) -> Result<Self, MatrixError> {
        if !isa.available() {
            return Err(MatrixError::Isa(isa));
        }
        let bytes = match &weights {
            MatrixPlacement::Packed(bytes) | MatrixPlacement::PackedInSmallPages(bytes) => bytes.len(),
            MatrixPlacement::Mapped(shared) => shared.bytes().len(),
        };
        let row_bytes = ty.row_bytes(cols as u64).and_then(|b| usize::try_from(b).ok());
        let need = row_bytes.and_then(|b| b.checked_mul(rows));
        let Some((row_bytes, _)) = row_bytes.zip(need.filter(|n| *n == bytes)) else {
            return Err(MatrixError::Size { ty, rows, cols, need, bytes });
        };
        let huge = !matches!(weights, MatrixPlacement::PackedInSmallPages(_));
        let (recipe, store) = match weights {
            MatrixPlacement::Packed(bytes) | MatrixPlacement::PackedInSmallPages(bytes) => {
                let recipe = choose::packed(isa, ty);
                (recipe, MatrixBytes::Own(pack(recipe, bytes, (row_bytes, rows, cols), huge)?))
            }
            MatrixPlacement::Mapped(shared) => (choose::mapped(isa, ty), MatrixBytes::Shared(shared)),
        };
        Ok(Self { ty, rows, cols, isa, recipe, reading: Chosen::default(), store })
    }
}

fn pack(
    recipe: &Recipe,
    bytes: &[u8],
    (row_bytes, rows, cols): (usize, usize, usize),
    huge: bool,
) -> Result<Memory, MatrixError> {
    let Some(pack) = recipe.pack else {
        let mut memory =
            Memory::zeroed(bytes.len(), huge).ok_or(MatrixError::Memory { bytes: bytes.len() })?;
        memory.bytes_mut().copy_from_slice(bytes);
        return Ok(memory);
    };
    let panel_bytes = (recipe.panel_bytes)(recipe.ty, cols);
    let total = panel_bytes.checked_mul(rows.div_ceil(recipe.group));
    let mut memory = total
        .and_then(|total| Memory::zeroed(total, huge))
        .ok_or(MatrixError::Memory { bytes: total.unwrap_or(usize::MAX) })?;
    if row_bytes > 0 && panel_bytes > 0 {
        let groups = bytes.chunks(row_bytes * recipe.group);
        for (source, panel) in groups.zip(memory.bytes_mut().chunks_exact_mut(panel_bytes)) {
            pack(source, row_bytes, panel);
        }
    }
    Ok(memory)
}
