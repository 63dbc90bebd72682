//! A weight tensor as kernels read it: one matrix, or one for each expert.

use super::super::abi::Tensor;
use super::super::kernels::{Format, Isa, Matrix, MatrixError, Placement, Shared};
use crate::ggml::quant::TensorType;
use std::ops::Range;
use std::sync::Arc;

/// Bytes of a file with several owners.
pub type Owner = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// Why weights can't be used.
#[derive(Debug, thiserror::Error)]
pub enum WeightError {
    #[error(transparent)]
    Matrix(#[from] MatrixError),
    #[error("its data is not in the file")]
    Outside,
}

/// Weights of a MUL_MAT or MUL_MAT_ID node. Weight tensors point to theirs by `extra`.
#[derive(Debug)]
pub struct Weight {
    /// One for all experts where their rows fill whole groups, else one each.
    parts: Vec<Matrix>,
    /// Rows of an expert.
    rows: usize,
    experts: usize,
}

impl Weight {
    /// `range` of the file has `experts` matrices of `rows` rows of `cols` elements. They are packed, or used where
    /// they are.
    ///
    /// # Errors
    /// Data that is not there, no memory, or an instruction set that is not available.
    pub fn new(
        ty: TensorType,
        [cols, rows, experts]: [usize; 3],
        (file, range): (&Owner, Range<usize>),
        packed: bool,
        isa: Isa,
    ) -> Result<Self, WeightError> {
        let part = |rows: usize, range: Range<usize>| -> Result<Matrix, WeightError> {
            let place = if packed {
                let bytes = (**file).as_ref().get(range).ok_or(WeightError::Outside)?;
                Placement::Packed(bytes)
            } else {
                Placement::Mapped(Shared::new(Arc::clone(file), range).ok_or(WeightError::Outside)?)
            };
            Ok(Matrix::new(ty, rows, cols, place, isa)?)
        };
        let all = rows.checked_mul(experts).ok_or(WeightError::Outside)?;
        let whole = part(all, range.clone())?;
        if experts == 1 || rows.is_multiple_of(whole.group()) {
            return Ok(Self { parts: vec![whole], rows, experts });
        }
        drop(whole);
        let bytes = range.len() / experts.max(1);
        let parts = (0..experts).map(|e| {
            let start = range.start + e * bytes;
            part(rows, start..start + bytes)
        });
        Ok(Self { parts: parts.collect::<Result<_, _>>()?, rows, experts })
    }

    /// The weights that a tensor points to.
    ///
    /// # Safety
    /// `extra` is null or points to a weight that outlives the tensor.
    pub unsafe fn of(tensor: &Tensor) -> Option<&Weight> {
        // SAFETY: the caller vouches for it.
        unsafe { tensor.extra.cast::<Weight>().as_ref() }
    }

    /// The matrix with the rows of an expert (0 where there are none), and where they begin in it.
    pub fn expert(&self, expert: usize) -> Option<(&Matrix, usize)> {
        let first = self.parts.first()?;
        if expert >= self.experts {
            None
        } else if self.parts.len() == 1 {
            Some((first, expert * self.rows))
        } else {
            Some((self.parts.get(expert)?, 0))
        }
    }

    /// Rows of an expert.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Elements of a row.
    pub fn cols(&self) -> usize {
        self.parts.first().map_or(0, Matrix::cols)
    }

    /// Experts; 1 where there are none.
    pub fn experts(&self) -> usize {
        self.experts
    }

    /// Ranges of rows begin at a multiple of it.
    pub fn group(&self) -> usize {
        self.parts.first().map_or(1, Matrix::group)
    }

    /// What activations must be prepared to.
    pub fn format(&self) -> Format {
        self.parts.first().map_or(Format::F32, Matrix::format)
    }

    /// Scratch memory for this many tokens, bytes.
    pub fn scratch_bytes(&self, tokens: usize) -> usize {
        self.parts.iter().map(|m| m.scratch_bytes(tokens)).max().unwrap_or(0)
    }
}
