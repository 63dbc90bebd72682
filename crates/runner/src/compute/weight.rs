//! A weight tensor in the form that kernels read: one matrix, or one for each expert.

use super::super::abi::GgmlTensor;
use super::super::kernels::{ActivationFormat, Isa, Matrix, MatrixError, MatrixPlacement, SharedBytes};
use crate::parts::{KernelParts, q4_0_as_bytes};
use crate::slots::{PartShape, SlotPart};
use ggml::quant::TensorType;
use std::ops::Range;
use std::sync::Arc;

/// Bytes of a file with shared ownership.
pub type BytesOwner = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// Why weights can't be used.
#[derive(Debug, thiserror::Error)]
pub enum WeightError {
    #[error(transparent)]
    Matrix(#[from] MatrixError),
    #[error("its data is outside the file")]
    Outside,
}

/// Weights of a MUL_MAT or MUL_MAT_ID node. A weight tensor's `extra` points to its weights.
pub struct Weight {
    /// One for all experts if their rows fill complete groups, otherwise one each. With slots, one without rows.
    parts: Vec<Matrix>,
    /// Rows per expert.
    rows: usize,
    experts: usize,
    /// Where the experts are if they are not in memory all the time.
    slots: Option<SlotPart>,
}

impl Weight {
    /// `range` of the file has `experts` matrices of `rows` rows of `cols` elements. They are packed, or used in
    /// place if `parts` has no layout.
    ///
    /// # Errors
    /// Missing data, not enough memory, or an instruction set that is not available.
    pub fn new(
        ty: TensorType,
        [cols, rows, experts]: [usize; 3],
        (file, range): (&BytesOwner, Range<usize>),
        parts: KernelParts,
        isa: Isa,
    ) -> Result<Self, WeightError> {
        let part = |rows: usize, range: Range<usize>| -> Result<Matrix, WeightError> {
            let place = if parts.layout {
                let bytes = (**file).as_ref().get(range).ok_or(WeightError::Outside)?;
                let place = |bytes| match parts.hugepages {
                    true => MatrixPlacement::Packed(bytes),
                    false => MatrixPlacement::PackedInSmallPages(bytes),
                };
                if !parts.uint4 && ty == TensorType::Q4_0 {
                    return Ok(Matrix::new(TensorType::Q8_0, rows, cols, place(&q4_0_as_bytes(bytes)), isa)?);
                }
                place(bytes)
            } else {
                MatrixPlacement::Mapped(
                    SharedBytes::new(Arc::clone(file), range).ok_or(WeightError::Outside)?,
                )
            };
            Ok(Matrix::new(ty, rows, cols, place, isa)?)
        };
        let all = rows.checked_mul(experts).ok_or(WeightError::Outside)?;
        let whole = part(all, range.clone())?;
        if experts == 1 || rows.is_multiple_of(whole.group()) {
            return Ok(Self { parts: vec![whole], rows, experts, slots: None });
        }
        drop(whole);
        let bytes = range.len() / experts.max(1);
        let matrices = (0..experts).map(|e| {
            let start = range.start + e * bytes;
            part(rows, start..start + bytes)
        });
        Ok(Self { parts: matrices.collect::<Result<_, _>>()?, rows, experts, slots: None })
    }

    /// Weights whose `experts` of `rows` rows are in slots.
    ///
    /// # Errors
    /// An instruction set that is not available.
    pub fn in_slots(
        slots: SlotPart,
        shape: PartShape,
        [rows, experts]: [usize; 2],
    ) -> Result<Self, WeightError> {
        Ok(Self { parts: vec![shape.pattern()?], rows, experts, slots: Some(slots) })
    }

    /// The weights that a tensor points to.
    ///
    /// # Safety
    /// `extra` must be null or point to a weight that outlives the tensor.
    pub unsafe fn of(tensor: &GgmlTensor) -> Option<&Weight> {
        // SAFETY: guaranteed by the caller.
        unsafe { tensor.extra.cast::<Weight>().as_ref() }
    }

    /// Where the experts are if they are not in memory all the time.
    pub(super) fn slots(&self) -> Option<&SlotPart> {
        self.slots.as_ref()
    }

    /// The nth expert that can be computed now: of all, or of a round of those in slots.
    pub(super) fn expert_now(&self, nth: usize) -> Option<usize> {
        match &self.slots {
            Some(slots) => slots.expert(nth),
            None => Some(nth).filter(|n| *n < self.experts),
        }
    }

    /// Computes with the matrix that contains an expert's rows, and the index of the first of them; not if the expert cannot
    /// be computed now.
    pub(super) fn with_expert(&self, expert: usize, compute: impl FnOnce(&Matrix, usize)) {
        match &self.slots {
            Some(slots) => {
                if let Some(buffer) = slots.buffer(expert) {
                    buffer.with(|matrix| compute(matrix, 0));
                }
            }
            None => {
                if let Some((matrix, first)) = self.expert(expert) {
                    compute(matrix, first);
                }
            }
        }
    }

    /// The matrix that contains an expert's rows (0 for a dense weight), and the index of the first of them. Not for experts
    /// in slots.
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

    /// Its matrices: one, or one for each expert.
    pub fn matrices(&self) -> impl Iterator<Item = &Matrix> {
        self.parts.iter()
    }

    /// Rows per expert.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Elements per row.
    pub fn cols(&self) -> usize {
        self.parts.first().map_or(0, Matrix::cols)
    }

    /// Number of experts; 1 for a dense weight.
    pub fn experts(&self) -> usize {
        self.experts
    }

    /// Row ranges must begin at a multiple of this.
    pub fn group(&self) -> usize {
        self.parts.first().map_or(1, Matrix::group)
    }

    /// The format that activations must be prepared in.
    pub fn format(&self) -> ActivationFormat {
        self.parts.first().map_or(ActivationFormat::F32, Matrix::format)
    }

    /// Scratch memory for this many tokens, bytes.
    pub fn scratch_bytes(&self, tokens: usize) -> usize {
        self.parts.iter().map(|m| m.scratch_bytes(tokens)).max().unwrap_or(0)
    }
}
