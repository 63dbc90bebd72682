//! Formats of the activations that each weight type is multiplied with, and the conversion of rows to them.
//!
//! Rounding is that of llama.cpp's own kernels for the weight type: `quantize_row_q8_0` as in
//! ggml/src/ggml-cpu/arch/x86/quants.c (to nearest even; the scale rounded to f16), `quantize_row_q8_K_ref` in
//! ggml/src/ggml-quants.c (scaled by the signed value of largest magnitude).

use half::f16;

use crate::quant::TensorType;

/// Format of a prepared row of activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ActivationFormat {
    /// `cols` f32, unchanged.
    F32,
    /// `cols` f32, rounded to f16.
    F16,
    /// `cols` f32, rounded to bfloat16.
    Bf16,
    /// `cols / 32` [`Q8Block`].
    Q8,
    /// `cols / 256` [`Q8KBlock`].
    Q8K,
}

/// What activations of 8 bits share a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ActivationScale {
    /// A block, as in llama.cpp.
    #[default]
    Block,
    /// All of a token (a row), as published for MNN's products of 4-bit weights and 8-bit activations.
    Token,
}

/// 32 activations as 8-bit integers.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Q8Block {
    /// Value = `q * d`, -127..=127.
    pub q: [i8; 32],
    /// abs-max / 127, rounded to f16.
    pub d: f32,
    /// The scale times the sum of `q`, rounded to f16 once, for weights with a minimum (Q4_1).
    pub s: f32,
    /// -8 times the sum of `q`: corrects for an offset of 8 (Q4_0 as unsigned nibbles).
    pub minus_8: i32,
    /// -128 times the sum of `q`: corrects for an offset of 128 (Q8_0 as unsigned bytes).
    pub minus_128: i32,
}

/// 256 activations as 8-bit integers.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Q8KBlock {
    /// Value = `q * d`, -127..=127; the value of largest magnitude is -127.
    pub q: [i8; 256],
    /// Sum of each group of 16 of `q`.
    pub sums: [i16; 16],
    /// The value of largest magnitude / -127; may be negative.
    pub d: f32,
    /// Pads the size to a multiple of 16.
    pub unused: [u32; 3],
}

impl ActivationFormat {
    /// The activation format for weights of this type.
    pub fn of(ty: TensorType) -> Self {
        match ty {
            TensorType::F32 => Self::F32,
            TensorType::F16 => Self::F16,
            TensorType::BF16 => Self::Bf16,
            TensorType::Q4_0
            | TensorType::Q4_1
            | TensorType::Q8_0
            | TensorType::Iq4Nl
            | TensorType::Mxfp4 => Self::Q8,
            TensorType::Q4K | TensorType::Q5K | TensorType::Q6K | TensorType::Iq4Xs => Self::Q8K,
        }
    }

    /// Activations in one block; rows consist of complete blocks.
    pub fn block(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 1,
            Self::Q8 => 32,
            Self::Q8K => 256,
        }
    }

    /// Bytes of one block.
    fn block_bytes(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 4,
            Self::Q8 => size_of::<Q8Block>(),
            Self::Q8K => size_of::<Q8KBlock>(),
        }
    }
}

/// Rows of f32 are not spaced by a multiple of this: a dozen of them would compete for the same cache sets.
const ALIAS: usize = 512;

/// Bytes of a prepared row of `cols` activations; a partial block at the end counts as a full one.
pub fn prepared_row_bytes(format: ActivationFormat, cols: usize) -> usize {
    let bytes = cols.div_ceil(format.block()) * format.block_bytes();
    if format.block() == 1 && bytes.is_multiple_of(ALIAS) { bytes + 64 } else { bytes }
}

/// A plain value that can be read from any bytes.
///
/// # Safety
/// The type must have no padding, and every bit pattern must be valid.
pub(crate) unsafe trait PlainNumber: Copy {}
// SAFETY: integers and floats; the structs are repr(C), made of such types without padding.
unsafe impl PlainNumber for f32 {}
// SAFETY: as above.
unsafe impl PlainNumber for Q8Block {}
// SAFETY: as above.
unsafe impl PlainNumber for Q8KBlock {}

/// The bytes as values. Returns fewer if the bytes are not aligned, which callers rule out.
pub(crate) fn view<T: PlainNumber>(bytes: &[u8]) -> &[T] {
    // SAFETY: `Plain`.
    let (head, body, _) = unsafe { bytes.align_to::<T>() };
    debug_assert!(head.is_empty());
    body
}

pub(crate) fn view_mut<T: PlainNumber>(bytes: &mut [u8]) -> &mut [T] {
    // SAFETY: `Plain`, in both directions.
    let (head, body, _) = unsafe { bytes.align_to_mut::<T>() };
    debug_assert!(head.is_empty());
    body
}

/// Rounds to nearest even for magnitudes below 2^22: the low bits of the sum are the integer.
fn nearest(x: f32) -> i32 {
    const MAGIC: f32 = 12_582_912.0;
    (x + MAGIC).to_bits().wrapping_sub(MAGIC.to_bits()) as i32
}

/// The first of the values of largest magnitude; a NaN is none.
pub(crate) fn largest(x: &[f32]) -> f32 {
    // Sixteen maxima at a time, which compilers turn into vector instructions.
    let mut most = [0.0f32; 16];
    for part in x.chunks(16) {
        for (most, v) in most.iter_mut().zip(part) {
            *most = if v.abs() > *most { v.abs() } else { *most };
        }
    }
    let most = most.iter().copied().fold(0.0, f32::max);
    x.iter().copied().find(|v| v.abs() == most).unwrap_or(0.0)
}

/// `most` is the value of largest magnitude among those that share the scale.
pub(crate) fn q8_block(x: &[f32; 32], most: f32) -> Q8Block {
    let amax = most.abs();
    let inverse = if amax != 0.0 { 127.0 / amax } else { 0.0 };
    let d = f16::from_f32(amax / 127.0).to_f32();
    let q = x.map(|v| nearest(v * inverse) as i8);
    let sum: i32 = q.iter().map(|q| i32::from(*q)).sum();
    let s = f16::from_f32(amax / 127.0 * sum as f32).to_f32();
    Q8Block { q, d, s, minus_8: -8 * sum, minus_128: -128 * sum }
}

/// `largest` as `most` of [`q8_block`].
pub(crate) fn q8k_block(x: &[f32; 256], largest: f32) -> Q8KBlock {
    let scale = if largest != 0.0 { -127.0 / largest } else { 0.0 };
    let d = if largest != 0.0 { 1.0 / scale } else { 0.0 };
    let q = x.map(|v| nearest(v * scale).min(127) as i8);
    let mut sums = [0; 16];
    for (sum, part) in sums.iter_mut().zip(q.as_chunks::<16>().0) {
        *sum = part.iter().map(|q| i16::from(*q)).sum();
    }
    Q8KBlock { q, sums, d, unused: [0; 3] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(size_of::<Q8Block>(), 48);
        assert_eq!(size_of::<Q8KBlock>(), 304);
        assert_eq!(prepared_row_bytes(ActivationFormat::Q8, 64), 96);
        assert_eq!(prepared_row_bytes(ActivationFormat::Q8K, 512), 608);
        assert_eq!(prepared_row_bytes(ActivationFormat::F16, 5), 20);
    }

    #[test]
    fn q8_by_hand() {
        let mut x = [0.0f32; 32];
        // amax 127 -> d = 1: ties go to even.
        x[..6].copy_from_slice(&[127.0, -127.0, 0.5, -1.5, 2.49, -1.51]);
        let b = q8_block(&x, largest(&x));
        assert_eq!(b.q[..7], [127, -127, 0, -2, 2, -2, 0]);
        assert_eq!((b.d, b.s, b.minus_8, b.minus_128), (1.0, -2.0, 16, 256));
        assert_eq!(
            q8_block(&[0.0; 32], 0.0),
            Q8Block { q: [0; 32], d: 0.0, s: 0.0, minus_8: 0, minus_128: 0 }
        );
    }

    #[test]
    fn q8k_takes_the_sign_of_the_first_largest_value() {
        let mut x = [0.0f32; 256];
        (x[3], x[20]) = (4.0, -4.0);
        let b = q8k_block(&x, largest(&x));
        assert_eq!((b.q[3], b.q[20]), (-127, 127));
        assert_eq!((b.sums[0], b.sums[1]), (-127, 127));
        assert!((b.d + 4.0 / 127.0).abs() < 1e-8);
    }

    #[test]
    fn hostile_values_do_not_panic() {
        for v in [f32::NAN, f32::INFINITY, f32::MAX, f32::MIN_POSITIVE] {
            let _ = (q8_block(&[v; 32], v), q8k_block(&[v; 256], v));
        }
    }
}
