//! Memory for one expert's part of the weights. Uses the kernels.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};

use crate::kernels::{Isa, Matrix, MatrixError, MatrixLayout, Reading};
use crate::parts::{KernelParts, q4_0_as_bytes};
use ggml::quant::TensorType;

/// A matrix with fewer bytes is not put into huge pages: of each, up to one page would remain unused.
const HUGE_FROM: u64 = 16 << 20;

/// Shape of an expert's part, and how it is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartShape {
    /// Type in the file.
    ty: TensorType,
    rows: usize,
    cols: usize,
    layout: MatrixLayout,
    /// Q4_0 is kept as bytes.
    as_bytes: bool,
    isa: Isa,
}

impl PartShape {
    /// `bytes`: those of the expert's part in the file. Without the part `layout`, it is kept as in the file.
    pub fn new(ty: TensorType, [cols, rows]: [usize; 2], bytes: u64, parts: KernelParts, isa: Isa) -> Self {
        let layout = match (parts.layout, parts.hugepages && bytes >= HUGE_FROM) {
            (false, _) => MatrixLayout::AsInFile,
            (true, true) => MatrixLayout::Packed,
            (true, false) => MatrixLayout::PackedInSmallPages,
        };
        let as_bytes = parts.layout && !parts.uint4 && ty == TensorType::Q4_0;
        Self { ty, rows, cols, layout, as_bytes, isa }
    }

    /// A matrix of this shape with another number of rows.
    fn blank(self, rows: usize) -> Result<Matrix, MatrixError> {
        let ty = if self.as_bytes { TensorType::Q8_0 } else { self.ty };
        Matrix::blank(ty, rows, self.cols, self.layout, self.isa)
    }

    /// A matrix without rows, which knows everything that matrices of this shape have in common.
    ///
    /// # Errors
    /// The processor lacks the instruction set.
    pub fn pattern(self) -> Result<Matrix, MatrixError> {
        self.blank(0)
    }
}

/// Memory for an expert's part.
pub struct SlotBuffer {
    /// The locks are never contended: a buffer is computed with only when nothing is read into it.
    matrix: RwLock<Matrix>,
    as_bytes: bool,
    /// A read into it is queued or under way.
    pending: AtomicBool,
}

impl SlotBuffer {
    /// # Errors
    /// Not enough memory.
    pub fn new(shape: PartShape) -> Result<Self, MatrixError> {
        let matrix = RwLock::new(shape.blank(shape.rows)?);
        Ok(Self { matrix, as_bytes: shape.as_bytes, pending: AtomicBool::new(false) })
    }

    /// Computes with the weights.
    pub fn with<R>(&self, compute: impl FnOnce(&Matrix) -> R) -> R {
        // The memory of a matrix is valid whatever happened to the thread that filled it.
        compute(&self.matrix.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the weights by those of the file.
    pub(super) fn fill(&self, weights: &[u8]) -> Result<(), MatrixError> {
        let mut matrix = self.matrix.write().unwrap_or_else(PoisonError::into_inner);
        if self.as_bytes { matrix.refill(&q4_0_as_bytes(weights)) } else { matrix.refill(weights) }
    }

    pub(super) fn is_pending(&self) -> bool {
        self.pending.load(Ordering::Acquire)
    }

    pub(super) fn set_pending(&self, pending: bool) {
        self.pending.store(pending, Ordering::Release);
    }

    /// Reads weights of this type in this way from now on.
    pub(super) fn set_reading(&self, ty: Option<TensorType>, reading: Reading) {
        self.with(|m| {
            if ty.is_none_or(|ty| ty == m.ty()) {
                m.set_reading(reading);
            }
        });
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> u64 {
        self.with(|m| m.bytes() as u64)
    }
}
