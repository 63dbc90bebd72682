//! Reads a GGUF file's head (metadata and tensor descriptions) from untrusted bytes, usually a memory map.
//!
//! Only small tables are copied. Every length is checked against the bytes available before it is used, so that
//! memory use stays proportional to the file. Versions 2 and 3, little-endian.

use super::{ALIGNMENT_KEY, DEFAULT_ALIGNMENT, MAGIC, MAX_DIMS, ValueKind};
use crate::quant::TensorType;
use std::collections::HashSet;

/// Longest key or tensor name, bytes. Upstream has 63, derivatives of GGML up to 159 (their `GGML_MAX_NAME`).
const MAX_NAME: u64 = 255;
/// Most metadata entries; real files have a few dozen.
const MAX_METADATA: u64 = 1 << 16;
/// Most tensors; the largest public models have a few thousand.
const MAX_TENSORS: u64 = 1 << 20;
/// Most items of an array that a longer head could hold; the largest vocabularies have under a million.
const MAX_HEAD_ITEMS: u64 = 1 << 26;
/// Smallest encoding of a metadata entry: key length, kind, one-byte value.
const MIN_ENTRY: usize = 8 + 4 + 1;
/// Smallest encoding of a tensor: name length, dimension count, one dimension, type, offset.
const MIN_TENSOR: usize = 8 + 4 + 8 + 4 + 8;

/// Why a file can't be read. Offsets are bytes from the start of the file.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum GgufReadError {
    #[error("not a GGUF file: it does not start with 'GGUF'")]
    Magic,
    #[error("GGUF version {0} is not supported; supported: 2 and 3")]
    Version(u32),
    #[error("big-endian GGUF files are not supported")]
    BigEndian,
    #[error("the file ends inside {what}: {need} bytes are needed at offset {offset}, but {left} are left")]
    Truncated { what: &'static str, offset: usize, need: u64, left: usize },
    #[error("{what}: {count} exceeds the possible maximum of {max} (offset {offset})")]
    TooMany { what: &'static str, count: u64, max: u64, offset: usize },
    #[error("{what} at offset {offset} is not valid UTF-8")]
    Utf8 { what: &'static str, offset: usize },
    #[error("metadata '{key}': type {id} is unknown or not allowed here")]
    Kind { key: String, id: u32 },
    #[error("metadata '{0}' is given twice")]
    DuplicateKey(String),
    #[error("tensor '{0}' is given twice")]
    DuplicateTensor(String),
    #[error("general.alignment must be a power of two from 1 to 65536, as u32")]
    Alignment,
    #[error("tensor '{name}': {why}")]
    Tensor { name: String, why: &'static str },
}

impl GgufReadError {
    /// Whether the bytes given end too early for what they announce: a longer beginning of the file may be valid.
    pub fn is_cut(&self) -> bool {
        match self {
            GgufReadError::Truncated { .. } => true,
            // The maximum of a count follows from the bytes left, but not below the absolute limits.
            GgufReadError::TooMany { what, count, .. } => match *what {
                "tensor count" => *count <= MAX_TENSORS,
                "metadata count" => *count <= MAX_METADATA,
                "array length" => *count <= MAX_HEAD_ITEMS,
                _ => false,
            },
            _ => false,
        }
    }
}

/// A metadata value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum GgufValue<'a> {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    Str(&'a str),
    Array(Array<'a>),
}

impl GgufValue<'_> {
    /// The value as an unsigned integer, whatever width it was stored in; `None` if negative or of another kind.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            GgufValue::U8(v) => Some(v.into()),
            GgufValue::U16(v) => Some(v.into()),
            GgufValue::U32(v) => Some(v.into()),
            GgufValue::U64(v) => Some(v),
            GgufValue::I8(v) => v.try_into().ok(),
            GgufValue::I16(v) => v.try_into().ok(),
            GgufValue::I32(v) => v.try_into().ok(),
            GgufValue::I64(v) => v.try_into().ok(),
            _ => None,
        }
    }
}

/// An array of metadata values of one kind, decoded during iteration.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Array<'a> {
    kind: ValueKind,
    len: u64,
    bytes: &'a [u8],
}

impl<'a> Array<'a> {
    /// Kind of the elements; never an array.
    pub fn kind(&self) -> ValueKind {
        self.kind
    }

    /// Number of elements.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements of a string array as bytes (real vocabularies contain tokens that are not UTF-8); empty for
    /// other arrays.
    pub fn strings(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let mut cursor = GgufCursor { all: self.bytes, at: 0 };
        let count = if self.kind == ValueKind::String { self.len } else { 0 };
        (0..count).map_while(move |_| cursor.bytes("a string", u64::MAX).ok())
    }

    /// The elements of an array of fixed-size values; empty for a string array.
    pub fn values(&self) -> impl Iterator<Item = GgufValue<'a>> + use<'a> {
        let mut cursor = GgufCursor { all: self.bytes, at: 0 };
        let kind = self.kind;
        let count = if kind.size().is_some() { self.len } else { 0 };
        (0..count).map_while(move |_| cursor.scalar(kind).ok().flatten())
    }
}

/// A tensor's entry in a file: where its data is. No op has it as its result, so it has neither op nor sources.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GgufTensor<'a> {
    pub name: &'a str,
    /// Elements per dimension, row length first; dimensions missing in the file are 1.
    pub dims: [u64; MAX_DIMS],
    /// Number of dimensions in the file.
    pub dim_count: usize,
    /// Number in `enum ggml_type`.
    pub type_id: u32,
    /// Where the data begins, bytes from the start of the file.
    pub offset: u64,
    /// Bytes of data; `None` if the type is not a [`TensorType`].
    pub bytes: Option<u64>,
}

/// A file's head.
#[derive(Debug, Clone, PartialEq)]
pub struct Gguf<'a> {
    pub version: u32,
    /// Alignment of tensor data, bytes.
    pub alignment: u64,
    /// In file order.
    pub metadata: Vec<(&'a str, GgufValue<'a>)>,
    /// In file order.
    pub tensors: Vec<GgufTensor<'a>>,
    /// Where tensor data begins, bytes from the start of the file.
    pub data_offset: u64,
}

impl<'a> Gguf<'a> {
    /// Reads the head of a file; `file` is its complete content.
    ///
    /// # Errors
    /// [`GgufReadError`]: the first violation found, including tensor data outside the file.
    pub fn parse(file: &'a [u8]) -> Result<Self, GgufReadError> {
        Self::parse_within(file, file.len() as u64)
    }

    /// Reads the head alone: `start` is the beginning of a file whose tensor data may be missing.
    ///
    /// # Errors
    /// As [`Self::parse`], but for data outside the file. [`GgufReadError::is_cut`]: more of the file is needed.
    pub fn parse_head(start: &'a [u8]) -> Result<Self, GgufReadError> {
        Self::parse_within(start, i64::MAX as u64)
    }

    fn parse_within(file: &'a [u8], len: u64) -> Result<Self, GgufReadError> {
        let mut c = GgufCursor { all: file, at: 0 };
        if file.get(..4) != Some(&MAGIC) {
            return Err(GgufReadError::Magic);
        }
        c.at = 4;
        let version = c.u32("the version")?;
        match version {
            2 | 3 => {}
            _ if matches!(version.swap_bytes(), 1..=3) => return Err(GgufReadError::BigEndian),
            _ => return Err(GgufReadError::Version(version)),
        }
        let tensor_count = c.count("tensor count", MAX_TENSORS, MIN_TENSOR)?;
        let entry_count = c.count("metadata count", MAX_METADATA, MIN_ENTRY)?;
        let metadata = read_metadata(&mut c, entry_count)?;
        let alignment = alignment(&metadata)?;
        let mut tensors = read_tensors(&mut c, tensor_count)?;
        let data_offset = (c.at as u64).next_multiple_of(alignment);
        place(&mut tensors, data_offset, alignment, len)?;
        Ok(Self { version, alignment, metadata, tensors, data_offset })
    }

    /// The metadata value with this key.
    pub fn get(&self, key: &str) -> Option<&GgufValue<'a>> {
        self.metadata.iter().find(|(k, _)| *k == key).map(|(_, v)| v)
    }
}

fn read_metadata<'a>(
    c: &mut GgufCursor<'a>,
    count: usize,
) -> Result<Vec<(&'a str, GgufValue<'a>)>, GgufReadError> {
    let mut metadata = Vec::with_capacity(count);
    let mut seen = HashSet::with_capacity(count);
    for _ in 0..count {
        let key = c.text("a metadata key", MAX_NAME)?;
        let id = c.u32("a metadata kind")?;
        let wrong = || GgufReadError::Kind { key: key.to_owned(), id };
        let kind = ValueKind::from_id(id).ok_or_else(wrong)?;
        let value = match kind {
            ValueKind::String => GgufValue::Str(c.text("a metadata string", u64::MAX)?),
            ValueKind::Array => GgufValue::Array(read_array(c, key)?),
            _ => c.scalar(kind)?.ok_or_else(wrong)?,
        };
        if !seen.insert(key) {
            return Err(GgufReadError::DuplicateKey(key.to_owned()));
        }
        metadata.push((key, value));
    }
    Ok(metadata)
}

fn read_array<'a>(c: &mut GgufCursor<'a>, key: &str) -> Result<Array<'a>, GgufReadError> {
    let id = c.u32("an array kind")?;
    let kind = ValueKind::from_id(id)
        .filter(|k| *k != ValueKind::Array)
        .ok_or_else(|| GgufReadError::Kind { key: key.to_owned(), id })?;
    // An element has at least this many bytes (a string: its length field), so the file size bounds the count.
    let len = c.count("array length", u64::MAX, kind.size().unwrap_or(8))?;
    let start = c.at;
    match kind.size() {
        Some(size) => drop(c.take("an array", (len as u64).saturating_mul(size as u64))?),
        None => {
            for _ in 0..len {
                c.bytes("a string of an array", u64::MAX)?;
            }
        }
    }
    Ok(Array { kind, len: len as u64, bytes: c.all.get(start..c.at).unwrap_or_default() })
}

fn alignment(metadata: &[(&str, GgufValue<'_>)]) -> Result<u64, GgufReadError> {
    match metadata.iter().find(|(k, _)| *k == ALIGNMENT_KEY) {
        None => Ok(DEFAULT_ALIGNMENT),
        Some((_, GgufValue::U32(v))) if v.is_power_of_two() && *v <= 1 << 16 => Ok(u64::from(*v)),
        Some(_) => Err(GgufReadError::Alignment),
    }
}

fn read_tensors<'a>(c: &mut GgufCursor<'a>, count: usize) -> Result<Vec<GgufTensor<'a>>, GgufReadError> {
    let mut tensors = Vec::with_capacity(count);
    let mut seen = HashSet::with_capacity(count);
    for _ in 0..count {
        let name = c.text("a tensor name", MAX_NAME)?;
        let wrong = |why| GgufReadError::Tensor { name: name.to_owned(), why };
        let dim_count = c.u32("a dimension count")? as usize;
        if dim_count == 0 || dim_count > MAX_DIMS {
            return Err(wrong("it must have 1 to 4 dimensions"));
        }
        let mut dims = [1u64; MAX_DIMS];
        for d in dims.iter_mut().take(dim_count) {
            *d = c.u64("a dimension")?;
        }
        let type_id = c.u32("a tensor type")?;
        let offset = c.u64("a tensor offset")?;
        let elements = dims.iter().try_fold(1u64, |n, d| n.checked_mul(*d));
        if elements.is_none_or(|n| n > i64::MAX as u64) {
            return Err(wrong("it has too many elements"));
        }
        let bytes = match TensorType::from_id(type_id) {
            None => None,
            Some(ty) => Some(tensor_bytes(ty, &dims).ok_or_else(|| wrong("its rows are not whole blocks"))?),
        };
        if !seen.insert(name) {
            return Err(GgufReadError::DuplicateTensor(name.to_owned()));
        }
        tensors.push(GgufTensor { name, dims, dim_count, type_id, offset, bytes });
    }
    Ok(tensors)
}

fn tensor_bytes(ty: TensorType, dims: &[u64; MAX_DIMS]) -> Option<u64> {
    let [row, rest @ ..] = dims;
    rest.iter().try_fold(ty.row_bytes(*row)?, |n, d| n.checked_mul(*d))
}

/// Converts offsets within the data to offsets within the file, and checks that the data is inside the file.
fn place(
    tensors: &mut [GgufTensor<'_>],
    data_offset: u64,
    alignment: u64,
    file: u64,
) -> Result<(), GgufReadError> {
    for t in tensors {
        let wrong = |why| GgufReadError::Tensor { name: t.name.to_owned(), why };
        if !t.offset.is_multiple_of(alignment) {
            return Err(wrong("its offset is not aligned"));
        }
        let start = data_offset.checked_add(t.offset);
        let end = start.and_then(|s| s.checked_add(t.bytes.unwrap_or(0)));
        match (start, end) {
            (Some(start), Some(end)) if end <= file => t.offset = start,
            _ => return Err(wrong("its data is outside the file (is the file truncated?)")),
        }
    }
    Ok(())
}

#[derive(Debug, Clone, Copy)]
struct GgufCursor<'a> {
    all: &'a [u8],
    at: usize,
}

impl<'a> GgufCursor<'a> {
    fn left(&self) -> usize {
        self.all.len().saturating_sub(self.at)
    }

    fn take(&mut self, what: &'static str, need: u64) -> Result<&'a [u8], GgufReadError> {
        let end = usize::try_from(need).ok().and_then(|n| self.at.checked_add(n));
        let Some((bytes, end)) = end.and_then(|e| Some((self.all.get(self.at..e)?, e))) else {
            return Err(GgufReadError::Truncated { what, offset: self.at, need, left: self.left() });
        };
        self.at = end;
        Ok(bytes)
    }

    fn fixed<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], GgufReadError> {
        let bytes = self.take(what, N as u64)?;
        // `take` returned N bytes.
        Ok(bytes.first_chunk().copied().unwrap_or([0; N]))
    }

    fn u32(&mut self, what: &'static str) -> Result<u32, GgufReadError> {
        Ok(u32::from_le_bytes(self.fixed(what)?))
    }

    fn u64(&mut self, what: &'static str) -> Result<u64, GgufReadError> {
        Ok(u64::from_le_bytes(self.fixed(what)?))
    }

    /// A count of items that take at least `smallest` bytes each.
    fn count(&mut self, what: &'static str, limit: u64, smallest: usize) -> Result<usize, GgufReadError> {
        let offset = self.at;
        let count = self.u64(what)?;
        let max = limit.min((self.left() / smallest.max(1)) as u64);
        if count > max {
            return Err(GgufReadError::TooMany { what, count, max, offset });
        }
        Ok(count as usize)
    }

    fn bytes(&mut self, what: &'static str, max: u64) -> Result<&'a [u8], GgufReadError> {
        let offset = self.at;
        let len = self.u64(what)?;
        if len > max {
            return Err(GgufReadError::TooMany { what, count: len, max, offset });
        }
        self.take(what, len)
    }

    fn text(&mut self, what: &'static str, max: u64) -> Result<&'a str, GgufReadError> {
        let offset = self.at;
        std::str::from_utf8(self.bytes(what, max)?).map_err(|_| GgufReadError::Utf8 { what, offset })
    }

    /// A fixed-size value; `None` for strings and arrays.
    fn scalar(&mut self, kind: ValueKind) -> Result<Option<GgufValue<'a>>, GgufReadError> {
        const WHAT: &str = "a metadata value";
        Ok(Some(match kind {
            ValueKind::U8 => GgufValue::U8(u8::from_le_bytes(self.fixed(WHAT)?)),
            ValueKind::I8 => GgufValue::I8(i8::from_le_bytes(self.fixed(WHAT)?)),
            ValueKind::U16 => GgufValue::U16(u16::from_le_bytes(self.fixed(WHAT)?)),
            ValueKind::I16 => GgufValue::I16(i16::from_le_bytes(self.fixed(WHAT)?)),
            ValueKind::U32 => GgufValue::U32(u32::from_le_bytes(self.fixed(WHAT)?)),
            ValueKind::I32 => GgufValue::I32(i32::from_le_bytes(self.fixed(WHAT)?)),
            ValueKind::U64 => GgufValue::U64(u64::from_le_bytes(self.fixed(WHAT)?)),
            ValueKind::I64 => GgufValue::I64(i64::from_le_bytes(self.fixed(WHAT)?)),
            ValueKind::F32 => GgufValue::F32(f32::from_le_bytes(self.fixed(WHAT)?)),
            ValueKind::F64 => GgufValue::F64(f64::from_le_bytes(self.fixed(WHAT)?)),
            ValueKind::Bool => GgufValue::Bool(self.fixed::<1>(WHAT)? != [0]),
            ValueKind::String | ValueKind::Array => return Ok(None),
        }))
    }
}

#[cfg(test)]
mod tests;
