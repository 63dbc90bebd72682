//! GGUF files: a streaming writer, and a reader for untrusted bytes.
//!
//! Layout (ggml/include/gguf.h): magic, version u32, tensor count u64, metadata count u64; metadata (key, kind,
//! value); tensor descriptions (name, dimension count u32, dimensions u64, type u32, offset u64); then, aligned,
//! the tensor data, with each tensor aligned again. Little-endian; a string is its length (u64) followed by its
//! bytes.

pub mod general;
pub mod reader;
pub mod types;
pub mod writer;

/// First four bytes of a file.
pub const MAGIC: [u8; 4] = *b"GGUF";
/// Version that the writer produces.
pub const VERSION: u32 = 3;
/// Alignment of tensor data unless the metadata sets another, bytes.
pub const DEFAULT_ALIGNMENT: u64 = 32;
/// Metadata key that changes the alignment.
pub const ALIGNMENT_KEY: &str = "general.alignment";
/// `GGML_MAX_DIMS`.
pub const MAX_DIMS: usize = 4;

/// `enum gguf_type`: the kind of a metadata value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ValueKind {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    String = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

impl ValueKind {
    /// The kind with this number.
    pub fn from_id(id: u32) -> Option<Self> {
        use ValueKind::*;
        [U8, I8, U16, I16, U32, I32, F32, Bool, String, Array, U64, I64, F64]
            .into_iter()
            .find(|k| *k as u32 == id)
    }

    /// Bytes of a fixed-size value; `None` for strings and arrays.
    pub fn size(self) -> Option<usize> {
        match self {
            ValueKind::U8 | ValueKind::I8 | ValueKind::Bool => Some(1),
            ValueKind::U16 | ValueKind::I16 => Some(2),
            ValueKind::U32 | ValueKind::I32 | ValueKind::F32 => Some(4),
            ValueKind::U64 | ValueKind::I64 | ValueKind::F64 => Some(8),
            ValueKind::String | ValueKind::Array => None,
        }
    }
}
