//! Creates a matrix: chooses its recipe and repacks its weights accordingly.

use super::{Matrix, MatrixBytes, MatrixError, MatrixLayout, MatrixPlacement};
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
        let row_bytes = row_bytes(ty, rows, cols, bytes)?;
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

    /// A matrix of zero bytes, whose weights come later with [`Self::refill`].
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn blank(
        ty: TensorType,
        rows: usize,
        cols: usize,
        layout: MatrixLayout,
        isa: Isa,
    ) -> Result<Self, MatrixError> {
        if !isa.available() {
            return Err(MatrixError::Isa(isa));
        }
        let recipe = match layout {
            MatrixLayout::Packed | MatrixLayout::PackedInSmallPages => choose::packed(isa, ty),
            MatrixLayout::AsInFile => choose::mapped(isa, ty),
        };
        let row = ty.row_bytes(cols as u64).and_then(|b| usize::try_from(b).ok());
        let bytes = row.and_then(|b| b.checked_mul(rows)).unwrap_or(usize::MAX);
        let row_bytes = row_bytes(ty, rows, cols, bytes)?;
        let huge = layout != MatrixLayout::PackedInSmallPages;
        let store = MatrixBytes::Own(room(recipe, (row_bytes, rows, cols), huge)?);
        Ok(Self { ty, rows, cols, isa, recipe, reading: Chosen::default(), store })
    }

    /// Replaces all weights by these, which are in GGUF's order. Allocates nothing.
    ///
    /// # Errors
    /// The bytes don't match the shape, or the weights are used in place.
    pub fn refill(&mut self, weights: &[u8]) -> Result<(), MatrixError> {
        let row_bytes = row_bytes(self.ty, self.rows, self.cols, weights.len())?;
        let MatrixBytes::Own(memory) = &mut self.store else { return Err(MatrixError::InPlace) };
        fill(self.recipe, weights, (row_bytes, self.cols), memory, true);
        Ok(())
    }
}

/// Bytes of a row in GGUF's order, if that many rows have `bytes`.
fn row_bytes(ty: TensorType, rows: usize, cols: usize, bytes: usize) -> Result<usize, MatrixError> {
    let row = ty.row_bytes(cols as u64).and_then(|b| usize::try_from(b).ok());
    let need = row.and_then(|b| b.checked_mul(rows));
    match row.filter(|_| need == Some(bytes)) {
        Some(row) => Ok(row),
        None => Err(MatrixError::Size { ty, rows, cols, need, bytes }),
    }
}

fn pack(
    recipe: &Recipe,
    bytes: &[u8],
    (row_bytes, rows, cols): (usize, usize, usize),
    huge: bool,
) -> Result<Memory, MatrixError> {
    let mut memory = room(recipe, (row_bytes, rows, cols), huge)?;
    fill(recipe, bytes, (row_bytes, cols), &mut memory, false);
    Ok(memory)
}

/// Zeroed memory for the weights.
fn room(
    recipe: &Recipe,
    (row_bytes, rows, cols): (usize, usize, usize),
    huge: bool,
) -> Result<Memory, MatrixError> {
    let total = match recipe.pack {
        None => row_bytes.checked_mul(rows),
        Some(_) => (recipe.panel_bytes)(recipe.ty, cols).checked_mul(rows.div_ceil(recipe.group)),
    };
    total
        .and_then(|total| Memory::zeroed(total, huge))
        .ok_or(MatrixError::Memory { bytes: total.unwrap_or(usize::MAX) })
}

/// Puts weights into memory that [`room`] has made for them, and that holds others if it is `used`.
fn fill(recipe: &Recipe, bytes: &[u8], (row_bytes, cols): (usize, usize), memory: &mut Memory, used: bool) {
    let Some(pack) = recipe.pack else { return memory.bytes_mut().copy_from_slice(bytes) };
    let panel_bytes = (recipe.panel_bytes)(recipe.ty, cols);
    if row_bytes > 0 && panel_bytes > 0 {
        let groups = bytes.chunks(row_bytes * recipe.group);
        for (source, panel) in groups.zip(memory.bytes_mut().chunks_exact_mut(panel_bytes)) {
            if used {
                panel.fill(0);
            }
            pack(source, row_bytes, panel);
        }
    }
}
