//! Tensor types that this crate writes itself, and the quantisation of rows into them.
//!
//! These are facts for a *producer* of GGUF files. What a profiled engine calls its types and how large its blocks
//! are is read from the engine, never from here.
//!
//! Sources: ids are `enum ggml_type` in ggml/include/ggml.h (append-only since 2024-03), block sizes and layouts are
//! `block_q*` in ggml/src/ggml-common.h, the arithmetic is `quantize_row_*_ref` in ggml/src/ggml-quants.c.
//! The results are equal to those functions bit by bit for finite input on a build that does not fuse multiply and
//! add. Uses nothing else of this crate.

use half::f16;
use half::slice::HalfFloatSliceExt;

/// Elements of one block of Q4_0, Q4_1 and Q8_0.
const SMALL_BLOCK: usize = 32;
/// Elements of one super-block of the K types.
const K_BLOCK: usize = 256;

/// A GGML tensor type known to this crate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TensorType {
    F32,
    F16,
    Q4_0,
    Q4_1,
    Q8_0,
    Q4K,
    Q6K,
    BF16,
}

/// Why a row can't be encoded.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum QuantError {
    /// There is an id and a block size for this type, but no encoder.
    #[error("no encoder for type {0}: use f32, f16, q8_0 or q4_0")]
    NoEncoder(&'static str),
    /// The row does not end on a block border, or the output does not fit the row.
    #[error("a row of {elements} elements does not make {bytes} bytes of {ty} (blocks of {block} elements)")]
    Size { elements: usize, bytes: usize, ty: &'static str, block: usize },
}

impl TensorType {
    /// All types, in the order of their ids.
    pub const ALL: [Self; 8] =
        [Self::F32, Self::F16, Self::Q4_0, Self::Q4_1, Self::Q8_0, Self::Q4K, Self::Q6K, Self::BF16];

    /// Number in `enum ggml_type`, as written to GGUF files.
    pub fn id(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q4_0 => 2,
            Self::Q4_1 => 3,
            Self::Q8_0 => 8,
            Self::Q4K => 12,
            Self::Q6K => 14,
            Self::BF16 => 30,
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
            Self::Q6K => "q6_K",
            Self::BF16 => "bf16",
        }
    }

    /// Elements of one block.
    pub fn block(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q8_0 => SMALL_BLOCK,
            Self::Q4K | Self::Q6K => K_BLOCK,
        }
    }

    /// Bytes of one block. `d`, `m` and `dmin` are halves.
    pub fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            // d, then 4 bits an element.
            Self::Q4_0 => 2 + SMALL_BLOCK / 2,
            // d, m, then 4 bits an element.
            Self::Q4_1 => 4 + SMALL_BLOCK / 2,
            // d, then 8 bits an element.
            Self::Q8_0 => 2 + SMALL_BLOCK,
            // d, dmin, 12 bytes of 6-bit scales, 4 bits an element.
            Self::Q4K => 4 + 12 + K_BLOCK / 2,
            // 6 bits an element in two planes, a scale for each 16, d.
            Self::Q6K => K_BLOCK / 2 + K_BLOCK / 4 + K_BLOCK / 16 + 2,
        }
    }

    /// Bytes of a row of `elements`; `None` when it does not end on a block border or overflows.
    pub fn row_bytes(self, elements: u64) -> Option<u64> {
        let block = self.block() as u64;
        if !elements.is_multiple_of(block) {
            return None;
        }
        (elements / block).checked_mul(self.block_bytes() as u64)
    }
}

impl std::str::FromStr for TensorType {
    type Err = UnknownType;

    /// The type of this name; upper or lower case is the same.
    fn from_str(name: &str) -> Result<Self, UnknownType> {
        Self::ALL.into_iter().find(|t| t.name().eq_ignore_ascii_case(name)).ok_or(UnknownType)
    }
}

/// A name that is none of [`TensorType::name`]'s.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("there are f32, f16, bf16, q8_0, q4_0, q4_1, q4_k and q6_k")]
pub struct UnknownType;

/// Encodes one row (or several whole rows of the same tensor) into `out`, which must have exactly the row's size.
///
/// # Errors
/// [`QuantError`] when the type has no encoder or the sizes don't match.
pub fn encode(ty: TensorType, row: &[f32], out: &mut [u8]) -> Result<(), QuantError> {
    if ty.row_bytes(row.len() as u64) != Some(out.len() as u64) {
        let (elements, bytes) = (row.len(), out.len());
        return Err(QuantError::Size { elements, bytes, ty: ty.name(), block: ty.block() });
    }
    match ty {
        TensorType::F32 => {
            for (o, v) in out.chunks_exact_mut(4).zip(row) {
                o.copy_from_slice(&v.to_le_bytes());
            }
        }
        TensorType::F16 => encode_f16(row, out),
        TensorType::Q8_0 => each_block(row, out, q8_0_block),
        TensorType::Q4_0 => each_block(row, out, q4_0_block),
        other => return Err(QuantError::NoEncoder(other.name())),
    }
    Ok(())
}

/// Round to nearest even, in slices so that `half` may use the processor's own conversion.
fn encode_f16(row: &[f32], out: &mut [u8]) {
    let mut halves = [f16::ZERO; 256];
    for (values, bytes) in row.chunks(halves.len()).zip(out.chunks_mut(halves.len() * 2)) {
        // `chunks` bounds the length by that of `halves`.
        let part = &mut halves[..values.len()];
        part.convert_from_f32_slice(values);
        for (o, h) in bytes.chunks_exact_mut(2).zip(part) {
            o.copy_from_slice(&h.to_le_bytes());
        }
    }
}

fn each_block<const BYTES: usize>(
    row: &[f32],
    out: &mut [u8],
    encode: fn(&[f32; SMALL_BLOCK]) -> [u8; BYTES],
) {
    for (x, o) in row.as_chunks::<SMALL_BLOCK>().0.iter().zip(out.as_chunks_mut::<BYTES>().0) {
        *o = encode(x);
    }
}

/// Largest absolute value of a block, in eight lanes (the order does not change a maximum).
fn abs_max(x: &[f32; SMALL_BLOCK]) -> f32 {
    let mut lanes = [0.0f32; 8];
    for part in x.as_chunks::<8>().0 {
        for (lane, v) in lanes.iter_mut().zip(part) {
            let a = v.abs();
            *lane = if *lane < a { a } else { *lane };
        }
    }
    lanes.into_iter().fold(0.0, |m, v| if m < v { v } else { m })
}

/// Half `d` = amax/127, then round(x/d), halves away from zero.
fn q8_0_block(x: &[f32; SMALL_BLOCK]) -> [u8; 34] {
    let d = abs_max(x) / 127.0;
    let id = if d != 0.0 { 1.0 / d } else { 0.0 };
    let mut out = [0; 34];
    let (head, body) = out.split_at_mut(2);
    head.copy_from_slice(&f16::from_f32(d).to_le_bytes());
    for (o, v) in body.iter_mut().zip(x) {
        // Rounding by way of the exact fraction: `f32::round` is a library call on a baseline x86-64.
        let scaled = v * id;
        let whole = scaled as i32;
        let fraction = scaled - whole as f32;
        *o = (whole + i32::from(fraction >= 0.5) - i32::from(fraction <= -0.5)) as u8;
    }
    out
}

/// Half `d` = (the value of largest magnitude)/-8, then min(15, trunc(x/d + 8.5)); element j in the low and j+16 in
/// the high nibble of byte j. A block of zeros has d = -0.0, as the reference has it.
fn q4_0_block(x: &[f32; SMALL_BLOCK]) -> [u8; 18] {
    let amax = abs_max(x);
    // Of equal magnitudes the first one decides the sign.
    let max = x.iter().copied().find(|v| v.abs() == amax).unwrap_or(0.0);
    let max = if amax == 0.0 { 0.0 } else { max };
    let d = max / -8.0;
    let id = if d != 0.0 { 1.0 / d } else { 0.0 };
    let mut out = [0; 18];
    let (head, body) = out.split_at_mut(2);
    head.copy_from_slice(&f16::from_f32(d).to_le_bytes());
    let (low, high) = x.split_at(SMALL_BLOCK / 2);
    for ((o, a), b) in body.iter_mut().zip(low).zip(high) {
        let a = ((a * id + 8.5) as i32).min(15) as u8;
        let b = ((b * id + 8.5) as i32).min(15) as u8;
        *o = a | (b << 4);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(ty: TensorType, x: &[f32; 32]) -> Vec<u8> {
        let mut out = vec![0; ty.block_bytes()];
        encode(ty, x, &mut out).expect("a whole block");
        out
    }

    #[test]
    fn sizes_are_those_of_ggml_common_h() {
        let sizes: Vec<_> = TensorType::ALL.iter().map(|t| (t.id(), t.block(), t.block_bytes())).collect();
        let expected = [
            (0, 1, 4),
            (1, 1, 2),
            (2, 32, 18),
            (3, 32, 20),
            (8, 32, 34),
            (12, 256, 144),
            (14, 256, 210),
            (30, 1, 2),
        ];
        assert_eq!(sizes, expected);
        assert_eq!(TensorType::from_id(8), Some(TensorType::Q8_0));
        assert_eq!(TensorType::from_id(31), None);
        assert_eq!(TensorType::Q4_0.row_bytes(64), Some(36));
        assert_eq!(TensorType::Q4_0.row_bytes(33), None);
        assert_eq!(TensorType::F32.row_bytes(u64::MAX), None);
    }

    #[test]
    fn q4_0_by_hand() {
        // -8..=7 and its mirror: d = -8/-8 = 1, so the low nibbles are x + 8; 8.5 - 8 truncates to 0.
        let mut x = [0.0f32; 32];
        for j in 0..16 {
            x[j] = j as f32 - 8.0;
            x[j + 16] = 7.0 - j as f32;
        }
        let out = block(TensorType::Q4_0, &x);
        assert_eq!(&out[..2], &[0x00, 0x3c]);
        let expected: Vec<u8> = (0..16u8).map(|j| j | ((15 - j) << 4)).collect();
        assert_eq!(&out[2..], &expected[..]);
    }

    #[test]
    fn q4_0_takes_the_sign_of_the_first_largest_value() {
        let mut x = [0.0f32; 32];
        x[3] = 4.0;
        x[20] = -4.0;
        let out = block(TensorType::Q4_0, &x);
        // d = 4/-8 = -0.5 = 0xb800; x[3] -> -8 + 8.5 = 0; x[20] -> 8 + 8.5 = 16 -> 15; zeros -> 8.
        assert_eq!(&out[..2], &[0x00, 0xb8]);
        assert_eq!(out[2 + 3], 0x80);
        assert_eq!(out[2 + 4], 0xf8);
        assert_eq!(out[2], 0x88);
    }

    #[test]
    fn zeros_keep_the_reference_s_negative_scale() {
        let out = block(TensorType::Q4_0, &[0.0; 32]);
        assert_eq!(&out[..2], &[0x00, 0x80]);
        assert!(out[2..].iter().all(|b| *b == 0x88));
        assert_eq!(block(TensorType::Q8_0, &[0.0; 32]), vec![0; 34]);
        assert_eq!(block(TensorType::Q4_0, &[-0.0; 32])[..2], [0x00, 0x80]);
    }

    #[test]
    fn q8_0_by_hand() {
        let mut x = [0.0f32; 32];
        // amax 127 -> d = 1: halves go away from zero.
        x[..6].copy_from_slice(&[127.0, -127.0, 0.5, -0.5, 2.49, -1.51]);
        let out = block(TensorType::Q8_0, &x);
        assert_eq!(&out[..2], &[0x00, 0x3c]);
        assert_eq!(&out[2..9], &[127, 0x81, 1, 0xff, 2, 0xfe, 0]);
        // The float just below one half stays zero.
        x[2] = 0.5f32.next_down();
        assert_eq!(block(TensorType::Q8_0, &x)[4], 0);
    }

    #[test]
    fn halves_round_to_even_past_a_slice_border() {
        let mut row = vec![1.0f32; 300];
        row[299] = 1.0 + 1.0 / 2048.0;
        row[298] = 65520.0;
        let mut out = vec![0; 600];
        encode(TensorType::F16, &row, &mut out).expect("sizes match");
        assert_eq!(&out[594..], &[0x00, 0x3c, 0x00, 0x7c, 0x00, 0x3c]);
    }

    #[test]
    fn wrong_sizes_and_missing_encoders_are_errors() {
        let mut out = [0; 18];
        assert!(matches!(encode(TensorType::Q4_0, &[0.0; 31], &mut out), Err(QuantError::Size { .. })));
        assert!(matches!(encode(TensorType::Q4_0, &[0.0; 64], &mut out), Err(QuantError::Size { .. })));
        let mut out = [0; 20];
        assert_eq!(encode(TensorType::Q4_1, &[0.0; 32], &mut out), Err(QuantError::NoEncoder("q4_1")));
    }
}
