//! Streaming GGUF v3 writer: everything but tensor data is declared first, then the data follows in order, in
//! chunks of any size. Never seeks, so standard output works as well as a file.

use super::{DEFAULT_ALIGNMENT, MAGIC, MAX_DIMS, VERSION, ValueKind};
use crate::quant::TensorType;
use std::collections::HashSet;
use std::io::{self, Write};

/// `GGML_MAX_NAME` of upstream GGML, including the terminating zero: names must be shorter than this many bytes.
pub const MAX_NAME: usize = 64;

/// A metadata value, of the kinds that a model file needs.
#[derive(Debug, Clone, PartialEq)]
pub enum NewGgufValue {
    U32(u32),
    I32(i32),
    U64(u64),
    F32(f32),
    Bool(bool),
    Str(String),
    Strings(Vec<String>),
    F32s(Vec<f32>),
    I32s(Vec<i32>),
}

/// Why a file can't be written.
#[derive(Debug, thiserror::Error)]
pub enum GgufWriteError {
    #[error("metadata key '{0}' is given twice")]
    DuplicateKey(String),
    #[error("tensor '{0}' is declared twice")]
    DuplicateTensor(String),
    #[error("tensor name '{0}' is longer than {max} bytes", max = MAX_NAME - 1)]
    LongName(String),
    #[error(
        "tensor '{name}': dimensions {dims:?} can't be stored as {ty} (1 to 4 dimensions, none zero, rows in whole blocks)"
    )]
    Shape { name: String, dims: Vec<u64>, ty: &'static str },
    #[error("data for tensor '{name}' goes {excess} bytes past its end")]
    TooMuch { name: String, excess: u64 },
    #[error("the file ends {missing} bytes before the end of tensor '{name}'")]
    TooLittle { name: String, missing: u64 },
    #[error(transparent)]
    Io(#[from] io::Error),
}

#[derive(Debug, Clone)]
struct Declared {
    name: String,
    dims: Vec<u64>,
    ty: TensorType,
    bytes: u64,
}

/// Everything before the tensor data.
#[derive(Debug, Default, Clone)]
pub struct GgufHeader {
    metadata: Vec<(String, NewGgufValue)>,
    tensors: Vec<Declared>,
    keys: HashSet<String>,
    names: HashSet<String>,
}

impl GgufHeader {
    /// Adds a metadata entry.
    ///
    /// # Errors
    /// [`GgufWriteError::DuplicateKey`].
    pub fn set(&mut self, key: impl Into<String>, value: NewGgufValue) -> Result<(), GgufWriteError> {
        let key = key.into();
        if !self.keys.insert(key.clone()) {
            return Err(GgufWriteError::DuplicateKey(key));
        }
        self.metadata.push((key, value));
        Ok(())
    }

    /// Declares the next tensor. `dims[0]` is the row length (GGML's `ne` order).
    ///
    /// # Errors
    /// The name is taken or too long, or the shape does not fit the type.
    pub fn tensor(&mut self, name: &str, ty: TensorType, dims: &[u64]) -> Result<(), GgufWriteError> {
        if name.len() >= MAX_NAME {
            return Err(GgufWriteError::LongName(name.to_owned()));
        }
        let bytes = tensor_bytes(ty, dims).ok_or_else(|| GgufWriteError::Shape {
            name: name.to_owned(),
            dims: dims.to_vec(),
            ty: ty.name(),
        })?;
        if !self.names.insert(name.to_owned()) {
            return Err(GgufWriteError::DuplicateTensor(name.to_owned()));
        }
        self.tensors.push(Declared { name: name.to_owned(), dims: dims.to_vec(), ty, bytes });
        Ok(())
    }

    /// Bytes of the complete file.
    pub fn file_bytes(&self) -> u64 {
        let data: u64 = self.tensors.iter().map(|t| pad(t.bytes)).sum();
        pad(self.encode().len() as u64) + data
    }

    /// Writes the header; the data is written through the returned [`DataWriter`].
    ///
    /// # Errors
    /// Those of `out`.
    pub fn begin<W: Write>(self, mut out: W) -> Result<DataWriter<W>, GgufWriteError> {
        let mut head = self.encode();
        head.resize(pad(head.len() as u64) as usize, 0);
        out.write_all(&head)?;
        Ok(DataWriter { out, tensors: self.tensors, current: 0, written: 0 })
    }

    fn encode(&self) -> Vec<u8> {
        let mut b = Vec::new();
        b.extend(MAGIC);
        b.extend(VERSION.to_le_bytes());
        b.extend((self.tensors.len() as u64).to_le_bytes());
        b.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            put_str(&mut b, key);
            put_value(&mut b, value);
        }
        let mut offset = 0u64;
        for t in &self.tensors {
            put_str(&mut b, &t.name);
            b.extend((t.dims.len() as u32).to_le_bytes());
            t.dims.iter().for_each(|d| b.extend(d.to_le_bytes()));
            b.extend(t.ty.id().to_le_bytes());
            b.extend(offset.to_le_bytes());
            offset += pad(t.bytes);
        }
        b
    }
}

/// Takes the tensor data in declaration order.
#[derive(Debug)]
pub struct DataWriter<W: Write> {
    out: W,
    tensors: Vec<Declared>,
    current: usize,
    /// Bytes of the current tensor already written.
    written: u64,
}

impl<W: Write> DataWriter<W> {
    /// Writes the next chunk of the current tensor; moves on to the next tensor when this one is full.
    ///
    /// # Errors
    /// [`GgufWriteError::TooMuch`] past the end of the tensor, and those of the output.
    pub fn write(&mut self, part: &[u8]) -> Result<(), GgufWriteError> {
        let len = part.len() as u64;
        let Some(t) = self.tensors.get(self.current) else {
            return Err(GgufWriteError::TooMuch { name: "(after the last)".to_owned(), excess: len });
        };
        let left = t.bytes - self.written;
        if len > left {
            return Err(GgufWriteError::TooMuch { name: t.name.clone(), excess: len - left });
        }
        self.out.write_all(part)?;
        self.written += len;
        if self.written == t.bytes {
            let zeros = [0u8; DEFAULT_ALIGNMENT as usize];
            let gap = (pad(t.bytes) - t.bytes) as usize;
            self.out.write_all(zeros.get(..gap).unwrap_or_default())?;
            self.current += 1;
            self.written = 0;
        }
        Ok(())
    }

    /// Flushes and returns the output.
    ///
    /// # Errors
    /// [`GgufWriteError::TooLittle`] if data is missing, and those of the output.
    pub fn finish(mut self) -> Result<W, GgufWriteError> {
        if let Some(t) = self.tensors.get(self.current) {
            return Err(GgufWriteError::TooLittle { name: t.name.clone(), missing: t.bytes - self.written });
        }
        self.out.flush()?;
        Ok(self.out)
    }
}

/// Bytes of a tensor, `None` if the shape does not fit the type. Bounded so that sums of offsets can't overflow.
fn tensor_bytes(ty: TensorType, dims: &[u64]) -> Option<u64> {
    let (row, rest) = dims.split_first()?;
    if dims.len() > MAX_DIMS || dims.contains(&0) {
        return None;
    }
    let rows = rest.iter().try_fold(1u64, |n, d| n.checked_mul(*d))?;
    ty.row_bytes(*row)?.checked_mul(rows).filter(|b| *b < 1 << 48)
}

fn pad(n: u64) -> u64 {
    n.next_multiple_of(DEFAULT_ALIGNMENT)
}

fn put_str(b: &mut Vec<u8>, s: &str) {
    b.extend((s.len() as u64).to_le_bytes());
    b.extend(s.as_bytes());
}

fn put_kind(b: &mut Vec<u8>, kind: ValueKind) {
    b.extend((kind as u32).to_le_bytes());
}

fn put_array(b: &mut Vec<u8>, kind: ValueKind, len: usize) {
    put_kind(b, ValueKind::Array);
    put_kind(b, kind);
    b.extend((len as u64).to_le_bytes());
}

fn put_value(b: &mut Vec<u8>, value: &NewGgufValue) {
    match value {
        NewGgufValue::U32(v) => (put_kind(b, ValueKind::U32), b.extend(v.to_le_bytes())).1,
        NewGgufValue::I32(v) => (put_kind(b, ValueKind::I32), b.extend(v.to_le_bytes())).1,
        NewGgufValue::U64(v) => (put_kind(b, ValueKind::U64), b.extend(v.to_le_bytes())).1,
        NewGgufValue::F32(v) => (put_kind(b, ValueKind::F32), b.extend(v.to_le_bytes())).1,
        NewGgufValue::Bool(v) => (put_kind(b, ValueKind::Bool), b.push(u8::from(*v))).1,
        NewGgufValue::Str(v) => (put_kind(b, ValueKind::String), put_str(b, v)).1,
        NewGgufValue::Strings(v) => {
            put_array(b, ValueKind::String, v.len());
            v.iter().for_each(|s| put_str(b, s));
        }
        NewGgufValue::F32s(v) => {
            put_array(b, ValueKind::F32, v.len());
            v.iter().for_each(|x| b.extend(x.to_le_bytes()));
        }
        NewGgufValue::I32s(v) => {
            put_array(b, ValueKind::I32, v.len());
            v.iter().for_each(|x| b.extend(x.to_le_bytes()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_file_byte_by_byte() {
        let mut h = GgufHeader::default();
        h.set("a", NewGgufValue::U32(7)).expect("new key");
        h.tensor("t", TensorType::F32, &[2]).expect("fits");
        let bytes = h.file_bytes();
        let mut body = h.begin(Vec::new()).expect("memory");
        body.write(&[1; 4]).expect("first half");
        body.write(&[2; 4]).expect("second half");
        let out = body.finish().expect("complete");
        assert_eq!(out.len() as u64, bytes);
        let mut expected = b"GGUF\x03\0\0\0".to_vec();
        expected.extend([1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        expected.extend(b"\x01\0\0\0\0\0\0\0a\x04\0\0\0\x07\0\0\0");
        expected.extend(b"\x01\0\0\0\0\0\0\0t\x01\0\0\0\x02\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
        expected.resize(96, 0);
        expected.extend([1, 1, 1, 1, 2, 2, 2, 2]);
        expected.resize(128, 0);
        assert_eq!(out, expected);
    }

    #[test]
    fn declarations_are_checked() {
        let mut h = GgufHeader::default();
        h.set("a", NewGgufValue::Bool(true)).expect("new key");
        assert!(matches!(h.set("a", NewGgufValue::Bool(true)), Err(GgufWriteError::DuplicateKey(_))));
        h.tensor("t", TensorType::Q4_0, &[32, 2]).expect("fits");
        assert!(matches!(h.tensor("t", TensorType::F32, &[1]), Err(GgufWriteError::DuplicateTensor(_))));
        assert!(matches!(h.tensor(&"n".repeat(64), TensorType::F32, &[1]), Err(GgufWriteError::LongName(_))));
        for dims in [&[33, 1][..], &[], &[32, 0], &[1, 1, 1, 1, 1], &[u64::MAX - 31, 1 << 20]] {
            assert!(
                matches!(h.tensor("u", TensorType::Q4_0, dims), Err(GgufWriteError::Shape { .. })),
                "{dims:?}"
            );
        }
    }

    #[test]
    fn data_must_fit_the_declaration() {
        let mut h = GgufHeader::default();
        h.tensor("t", TensorType::F32, &[2]).expect("fits");
        let mut body = h.clone().begin(Vec::new()).expect("memory");
        assert!(matches!(body.write(&[0; 9]), Err(GgufWriteError::TooMuch { excess: 1, .. })));
        body.write(&[0; 5]).expect("part");
        assert!(matches!(body.finish(), Err(GgufWriteError::TooLittle { missing: 3, .. })));
        let mut body = h.begin(Vec::new()).expect("memory");
        body.write(&[0; 8]).expect("all");
        assert!(matches!(body.write(&[0]), Err(GgufWriteError::TooMuch { .. })));
    }
}
