//! A weight matrix in the form that the kernels of one instruction set read.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::memory::Memory;
use super::recipe::{self, Recipe};
use super::{Format, Isa};
use crate::ggml::quant::TensorType;

/// Where the weights lie while they are used.
#[derive(Debug, Clone)]
pub enum Placement<'a> {
    /// Copied from these bytes into memory of their own, in the order that suits the kernels.
    Packed(&'a [u8]),
    /// Left where they are, in GGUF's own order: for models that do not fit into memory. Slower.
    Mapped(Shared),
}

/// Part of bytes with several owners, such as a mapped file.
#[derive(Clone)]
pub struct Shared {
    owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
    range: Range<usize>,
}

/// Weights `[rows][cols]`, row-major in GGUF; `cols` is the length of the dot products.
#[derive(Debug)]
pub struct Matrix {
    ty: TensorType,
    rows: usize,
    cols: usize,
    isa: Isa,
    recipe: &'static Recipe,
    store: Store,
}

#[derive(Debug)]
enum Store {
    Own(Memory),
    Shared(Shared),
}

/// Why there is no matrix.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum MatrixError {
    /// The bytes are not those of the shape.
    #[error("{rows} rows of {cols} {} need {need:?} bytes, not {bytes}", ty.name())]
    Size { ty: TensorType, rows: usize, cols: usize, need: Option<usize>, bytes: usize },
    /// No memory for the repacked weights.
    #[error("no memory for {bytes} bytes of weights")]
    Memory { bytes: usize },
    /// The processor lacks the instructions.
    #[error("this processor does not have {0}")]
    Isa(Isa),
}

impl Shared {
    /// `range` of the owner's bytes; `None` when it goes past their end.
    pub fn new(owner: Arc<dyn AsRef<[u8]> + Send + Sync>, range: Range<usize>) -> Option<Self> {
        (*owner).as_ref().get(range.clone())?;
        Some(Self { owner, range })
    }

    fn bytes(&self) -> &[u8] {
        (*self.owner).as_ref().get(self.range.clone()).unwrap_or_default()
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Shared").field(&self.range).finish()
    }
}

impl Matrix {
    /// Weights for the kernels of `isa`.
    ///
    /// # Errors
    /// [`MatrixError`] when the bytes don't fit the shape, the processor lacks `isa`, or memory runs out.
    pub fn new(
        ty: TensorType,
        rows: usize,
        cols: usize,
        weights: Placement<'_>,
        isa: Isa,
    ) -> Result<Self, MatrixError> {
        if !isa.available() {
            return Err(MatrixError::Isa(isa));
        }
        let bytes = match &weights {
            Placement::Packed(bytes) => bytes.len(),
            Placement::Mapped(shared) => shared.bytes().len(),
        };
        let row_bytes = ty.row_bytes(cols as u64).and_then(|b| usize::try_from(b).ok());
        let need = row_bytes.and_then(|b| b.checked_mul(rows));
        let Some((row_bytes, _)) = row_bytes.zip(need.filter(|n| *n == bytes)) else {
            return Err(MatrixError::Size { ty, rows, cols, need, bytes });
        };
        let (recipe, store) = match weights {
            Placement::Packed(bytes) => {
                let recipe = recipe::packed(isa, ty);
                (recipe, Store::Own(pack(recipe, bytes, row_bytes, rows, cols)?))
            }
            Placement::Mapped(shared) => (recipe::mapped(isa, ty), Store::Shared(shared)),
        };
        Ok(Self { ty, rows, cols, isa, recipe, store })
    }

    /// Type of the weights.
    pub fn ty(&self) -> TensorType {
        self.ty
    }

    /// Number of dot products.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Length of the dot products.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Instruction set that it is packed for.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// What activations must be prepared to.
    pub fn format(&self) -> Format {
        Format::of(self.ty)
    }

    /// Rows that are computed together: ranges of rows begin at a multiple of it.
    pub fn group(&self) -> usize {
        self.recipe.group
    }

    /// Tokens and rows of the innermost loop, where it is made for the number of registers.
    pub fn tile(&self) -> Option<(usize, usize)> {
        self.recipe.tile
    }

    /// Bytes of the weights as they lie in memory.
    pub fn bytes(&self) -> usize {
        self.data().len()
    }

    /// Bytes of scratch memory that [`super::matmul()`] wants for this many tokens.
    pub fn scratch_bytes(&self, tokens: usize) -> usize {
        (self.recipe.scratch_bytes)(self.cols, tokens)
    }

    pub(crate) fn recipe(&self) -> &'static Recipe {
        self.recipe
    }

    /// All panels (groups of rows), each of `panel_bytes`.
    pub(crate) fn data(&self) -> &[u8] {
        match &self.store {
            Store::Own(memory) => memory.bytes(),
            Store::Shared(shared) => shared.bytes(),
        }
    }

    /// Bytes of one group of rows.
    pub(crate) fn panel_bytes(&self) -> usize {
        (self.recipe.panel_bytes)(self.ty, self.cols)
    }
}

fn pack(
    recipe: &Recipe,
    bytes: &[u8],
    row_bytes: usize,
    rows: usize,
    cols: usize,
) -> Result<Memory, MatrixError> {
    let Some(pack) = recipe.pack else {
        let mut memory = Memory::zeroed(bytes.len()).ok_or(MatrixError::Memory { bytes: bytes.len() })?;
        memory.bytes_mut().copy_from_slice(bytes);
        return Ok(memory);
    };
    let panel_bytes = (recipe.panel_bytes)(recipe.ty, cols);
    let total = panel_bytes.checked_mul(rows.div_ceil(recipe.group));
    let mut memory =
        total.and_then(Memory::zeroed).ok_or(MatrixError::Memory { bytes: total.unwrap_or(usize::MAX) })?;
    if row_bytes > 0 && panel_bytes > 0 {
        let groups = bytes.chunks(row_bytes * recipe.group);
        for (source, panel) in groups.zip(memory.bytes_mut().chunks_exact_mut(panel_bytes)) {
            pack(source, row_bytes, panel);
        }
    }
    Ok(memory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_sizes_are_errors() {
        let new = |rows, cols, len| {
            let bytes = vec![0; len];
            Matrix::new(TensorType::Q4_0, rows, cols, Placement::Packed(&bytes), Isa::Scalar)
                .map(|m| m.bytes())
        };
        assert_eq!(new(2, 64, 72), Ok(72));
        assert!(matches!(new(2, 64, 71), Err(MatrixError::Size { need: Some(72), .. })));
        assert!(matches!(new(2, 33, 72), Err(MatrixError::Size { need: None, .. })));
        assert!(matches!(new(usize::MAX, 64, 72), Err(MatrixError::Size { need: None, .. })));
        assert_eq!(new(0, 64, 0), Ok(0));
        assert_eq!(new(4, 0, 0), Ok(0));
    }

    #[test]
    fn shared_bytes_end_where_their_owner_does() {
        let owner: Arc<dyn AsRef<[u8]> + Send + Sync> = Arc::new(vec![0u8; 10]);
        assert!(Shared::new(Arc::clone(&owner), 0..10).is_some());
        assert!(Shared::new(owner, 1..11).is_none());
    }
}
