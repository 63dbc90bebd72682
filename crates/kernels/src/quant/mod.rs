//! Tensor types that this crate reads and writes itself, and conversion of rows to and from them.
//!
//! This is for a *producer* or *runner* of GGUF files. The type names and block sizes of a profiled engine are
//! read from the engine, never from here.
//!
//! Sources: ids are `enum ggml_type` in ggml/include/ggml.h (append-only since 2024-03), block sizes and layouts
//! are `block_q*` in ggml/src/ggml-common.h.

mod block;
mod decode;
mod encode;
pub(crate) mod k_blocks;
pub(crate) mod tables;

use block::{K_BLOCK, SMALL_BLOCK};
pub use decode::decode;
pub use encode::encode;

/// A GGML tensor type known to this crate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TensorType {
    F32,
    F16,
    Q4_0,
    Q4_1,
    Q8_0,
    Q4K,
    Q5K,
    Q6K,
    Iq4Nl,
    Iq4Xs,
    BF16,
    Mxfp4,
}

/// Why a row can't be encoded or decoded.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum QuantError {
    /// The row does not end on a block boundary, or the bytes do not match the row.
    #[error("a row of {elements} elements does not fit {bytes} bytes of {ty} (blocks of {block} elements)")]
    Size { elements: usize, bytes: usize, ty: &'static str, block: usize },
}

impl TensorType {
    /// All types, in the order of their ids.
    pub const ALL: [Self; 12] = [
        Self::F32,
        Self::F16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q8_0,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::Iq4Nl,
        Self::Iq4Xs,
        Self::BF16,
        Self::Mxfp4,
    ];

    /// Number in `enum ggml_type`, as stored in GGUF files.
    pub fn id(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q4_0 => 2,
            Self::Q4_1 => 3,
            Self::Q8_0 => 8,
            Self::Q4K => 12,
            Self::Q5K => 13,
            Self::Q6K => 14,
            Self::Iq4Nl => 20,
            Self::Iq4Xs => 23,
            Self::BF16 => 30,
            Self::Mxfp4 => 39,
        }
    }

    /// The type with this number, if it is one of ours.
    pub fn from_id(id: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|t| t.id() == id)
    }

    /// Name as in GGML's `type_name`.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Q4_0 => "q4_0",
            Self::Q4_1 => "q4_1",
            Self::Q8_0 => "q8_0",
            Self::Q4K => "q4_K",
            Self::Q5K => "q5_K",
            Self::Q6K => "q6_K",
            Self::Iq4Nl => "iq4_nl",
            Self::Iq4Xs => "iq4_xs",
            Self::BF16 => "bf16",
            Self::Mxfp4 => "mxfp4",
        }
    }

    /// Elements per block.
    pub fn block(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q8_0 | Self::Iq4Nl | Self::Mxfp4 => SMALL_BLOCK,
            Self::Q4K | Self::Q5K | Self::Q6K | Self::Iq4Xs => K_BLOCK,
        }
    }

    /// Bytes per block. `d`, `m` and `dmin` are f16.
    pub fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            // d, then 4 bits per element.
            Self::Q4_0 | Self::Iq4Nl => 2 + SMALL_BLOCK / 2,
            // d, m, then 4 bits per element.
            Self::Q4_1 => 4 + SMALL_BLOCK / 2,
            // d, then 8 bits per element.
            Self::Q8_0 => 2 + SMALL_BLOCK,
            // d, dmin, 12 bytes of 6-bit scales, 4 bits per element.
            Self::Q4K => 4 + 12 + K_BLOCK / 2,
            // The same, and a fifth bit per element.
            Self::Q5K => 4 + 12 + K_BLOCK / 8 + K_BLOCK / 2,
            // d, 6-bit scales in two planes, 4 bits per element.
            Self::Iq4Xs => 2 + 2 + 4 + K_BLOCK / 2,
            // An exponent, then 4 bits per element.
            Self::Mxfp4 => 1 + SMALL_BLOCK / 2,
            // 6 bits per element in two planes, a scale per 16 elements, d.
            Self::Q6K => K_BLOCK / 2 + K_BLOCK / 4 + K_BLOCK / 16 + 2,
        }
    }

    /// Bytes of a row of `elements`; `None` if it does not end on a block boundary or overflows.
    pub fn row_bytes(self, elements: u64) -> Option<u64> {
        let block = self.block() as u64;
        if !elements.is_multiple_of(block) {
            return None;
        }
        (elements / block).checked_mul(self.block_bytes() as u64)
    }

    /// Checks that `bytes` is the size of a row of `elements`.
    fn check(self, elements: usize, bytes: usize) -> Result<(), QuantError> {
        if self.row_bytes(elements as u64) == Some(bytes as u64) {
            return Ok(());
        }
        Err(QuantError::Size { elements, bytes, ty: self.name(), block: self.block() })
    }
}

impl std::str::FromStr for TensorType {
    type Err = UnknownType;

    /// The type with this name, ignoring case.
    fn from_str(name: &str) -> Result<Self, UnknownType> {
        Self::ALL.into_iter().find(|t| t.name().eq_ignore_ascii_case(name)).ok_or(UnknownType)
    }
}

/// A name that is not the [`TensorType::name`] of any type.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("supported: f32, f16, bf16, q8_0, q4_0, q4_1, q4_k, q5_k, q6_k, iq4_nl, iq4_xs and mxfp4")]
pub struct UnknownType;

#[cfg(test)]
mod tests;
