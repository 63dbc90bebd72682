//! A weight matrix in the layout that the kernels of one instruction set read.

mod pack;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::format::ActivationFormat;
use super::isa::Isa;
use super::memory::Memory;
use super::reading::{Chosen, Reading};
use super::recipe::Recipe;
use crate::peak::{ReadPattern, read_bytes};
use crate::quant::TensorType;

/// Where the weights are kept.
#[derive(Debug, Clone)]
pub enum MatrixPlacement<'a> {
    /// Copied from these bytes into newly allocated memory, in the order that suits the kernels.
    Packed(&'a [u8]),
    /// The same in pages of the base size, to show what huge pages gain.
    PackedInSmallPages(&'a [u8]),
    /// Left in place, in GGUF's order: for models that do not fit into memory. Slower.
    Mapped(SharedBytes),
}

/// How a matrix keeps weights that are put into it later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MatrixLayout {
    /// In the order that suits the kernels.
    Packed,
    /// The same in pages of the base size.
    PackedInSmallPages,
    /// In GGUF's order. Slower.
    AsInFile,
}

/// A range of bytes with shared ownership, such as part of a mapped file.
#[derive(Clone)]
pub struct SharedBytes {
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
    reading: Chosen,
    store: MatrixBytes,
}

#[derive(Debug)]
enum MatrixBytes {
    Own(Memory),
    Shared(SharedBytes),
}

/// Why a matrix could not be made.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum MatrixError {
    /// The number of bytes does not match the shape.
    #[error("{rows} rows of {cols} {} need {need:?} bytes, got {bytes}", ty.name())]
    Size { ty: TensorType, rows: usize, cols: usize, need: Option<usize>, bytes: usize },
    /// No memory for the repacked weights.
    #[error("not enough memory for {bytes} bytes of weights")]
    Memory { bytes: usize },
    /// The processor lacks the instructions.
    #[error("this processor does not support {0}")]
    Isa(Isa),
    /// The weights are those of a file, used in place.
    #[error("weights that are used in place cannot be replaced")]
    InPlace,
}

impl SharedBytes {
    /// `range` of the owner's bytes; `None` if it exceeds them.
    pub fn new(owner: Arc<dyn AsRef<[u8]> + Send + Sync>, range: Range<usize>) -> Option<Self> {
        (*owner).as_ref().get(range.clone())?;
        Some(Self { owner, range })
    }

    fn bytes(&self) -> &[u8] {
        (*self.owner).as_ref().get(self.range.clone()).unwrap_or_default()
    }
}

impl fmt::Debug for SharedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Shared").field(&self.range).finish()
    }
}

impl Matrix {
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

    /// Instruction set that the weights are packed for.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The format that activations must be prepared in.
    pub fn format(&self) -> ActivationFormat {
        ActivationFormat::of(self.ty)
    }

    /// Rows that are computed together: row ranges must begin at a multiple of it.
    pub fn group(&self) -> usize {
        self.recipe.group
    }

    /// Tokens and rows of the innermost loop, if it was designed for the number of registers.
    pub fn tile(&self) -> Option<(usize, usize)> {
        self.recipe.tile
    }

    /// Bytes of the weights as stored in memory.
    pub fn bytes(&self) -> usize {
        self.data().len()
    }

    /// Bytes of scratch memory that [`super::matmul()`] needs for this many tokens.
    pub fn scratch_bytes(&self, tokens: usize) -> usize {
        (self.recipe.scratch_bytes)(self.cols, tokens)
    }

    /// The ways to read the weights for one token, the default first; empty: there is only one.
    pub fn readings(&self) -> &'static [Reading] {
        self.recipe.readings
    }

    /// How one token's products read the weights.
    pub fn reading(&self) -> Reading {
        self.reading.of(self.recipe.readings)
    }

    /// Reads the weights in this way from now on, if it is one of [`Self::readings`].
    pub fn set_reading(&self, reading: Reading) {
        self.reading.set(self.recipe.readings, reading);
    }

    /// Only reads the weights of these rows, for comparison with a product; complete groups of rows.
    pub fn read_only(&self, rows: Range<usize>, pattern: ReadPattern) {
        let (group, bytes) = (self.group().max(1), self.panel_bytes());
        let (from, to) = (rows.start / group * bytes, rows.end.div_ceil(group) * bytes);
        read_bytes(self.data().get(from..to).unwrap_or_default(), pattern);
    }

    pub(crate) fn recipe(&self) -> &'static Recipe {
        self.recipe
    }

    /// All panels (groups of rows), `panel_bytes` each.
    pub(crate) fn data(&self) -> &[u8] {
        match &self.store {
            MatrixBytes::Own(memory) => memory.bytes(),
            MatrixBytes::Shared(shared) => shared.bytes(),
        }
    }

    /// Bytes of one group of rows.
    pub(crate) fn panel_bytes(&self) -> usize {
        (self.recipe.panel_bytes)(self.ty, self.cols)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_sizes_are_errors() {
        let new = |rows, cols, len| {
            let bytes = vec![0; len];
            Matrix::new(TensorType::Q4_0, rows, cols, MatrixPlacement::Packed(&bytes), Isa::Scalar)
                .map(|m| m.bytes())
        };
        assert_eq!(new(2, 64, 72), Ok(72));
        assert!(matches!(new(2, 64, 71), Err(MatrixError::Size { need: Some(72), .. })));
        assert!(matches!(new(2, 33, 72), Err(MatrixError::Size { need: None, .. })));
        assert!(matches!(new(usize::MAX, 64, 72), Err(MatrixError::Size { need: None, .. })));
        assert_eq!(new(0, 64, 0), Ok(0));
        assert_eq!(new(4, 0, 0), Ok(0));
    }

    /// A matrix made of these bytes is to have the same layout.
    fn placed(layout: MatrixLayout, bytes: &[u8]) -> MatrixPlacement<'_> {
        match layout {
            MatrixLayout::Packed => MatrixPlacement::Packed(bytes),
            MatrixLayout::PackedInSmallPages => MatrixPlacement::PackedInSmallPages(bytes),
            MatrixLayout::AsInFile => {
                let all: Arc<dyn AsRef<[u8]> + Send + Sync> = Arc::new(bytes.to_vec());
                MatrixPlacement::Mapped(SharedBytes::new(all, 0..bytes.len()).expect("within"))
            }
        }
    }

    #[test]
    fn other_weights_replace_all_of_the_first() {
        use crate::quant::encode;
        let (rows, cols) = (19, 512);
        let bytes = |ty: TensorType, seed: usize| {
            let values: Vec<f32> =
                (0..rows * cols).map(|i| ((i * 7 + seed * 31) % 97) as f32 / 50.0 - 1.0).collect();
            let row = ty.row_bytes(cols as u64).expect("whole blocks") as usize;
            let mut out = vec![0; rows * row];
            encode(ty, &values, &mut out).expect("whole blocks");
            out
        };
        let layouts = [MatrixLayout::Packed, MatrixLayout::PackedInSmallPages, MatrixLayout::AsInFile];
        for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
            for (ty, layout) in TensorType::ALL.into_iter().flat_map(|t| layouts.map(|l| (t, l))) {
                let mut blank = Matrix::blank(ty, rows, cols, layout, isa).expect("memory");
                assert!(blank.data().iter().all(|b| *b == 0));
                for seed in [1, 2] {
                    let wanted = bytes(ty, seed);
                    blank.refill(&wanted).expect("the same size");
                    let made = Matrix::new(ty, rows, cols, placed(layout, &wanted), isa).expect("memory");
                    assert!(blank.data() == made.data(), "{ty:?} {isa} {layout:?}");
                    assert_eq!(blank.group(), made.group());
                }
                assert!(matches!(blank.refill(&[0; 3]), Err(MatrixError::Size { bytes: 3, .. })));
                if layout == MatrixLayout::AsInFile {
                    let wanted = bytes(ty, 1);
                    let mut shared =
                        Matrix::new(ty, rows, cols, placed(layout, &wanted), isa).expect("memory");
                    assert_eq!(shared.refill(&wanted), Err(MatrixError::InPlace));
                }
            }
        }
    }

    #[test]
    fn shared_bytes_end_where_their_owner_does() {
        let owner: Arc<dyn AsRef<[u8]> + Send + Sync> = Arc::new(vec![0u8; 10]);
        assert!(SharedBytes::new(Arc::clone(&owner), 0..10).is_some());
        assert!(SharedBytes::new(owner, 1..11).is_none());
    }
}
