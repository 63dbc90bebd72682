//! Decodes blocks into rows of numbers.
//!
//! The arithmetic is that of `dequantize_row_*` (ggml/src/ggml-quants.c) in the same order of operations, so the
//! results are bit-identical to a build that does not fuse multiply and add.

use super::block::SMALL_BLOCK;
use super::k_blocks::{decode_q4_k, decode_q5_k, decode_q6_k};
use super::tables::{decode_iq4_nl, decode_iq4_xs, decode_mxfp4};
use super::{QuantError, TensorType};
use half::{bf16, f16};

/// Decodes one row (or several complete rows of the same tensor): `bytes` must be exactly the size of `out` in
/// `ty`.
///
/// # Errors
/// [`QuantError`] if the sizes don't match.
pub fn decode(ty: TensorType, bytes: &[u8], out: &mut [f32]) -> Result<(), QuantError> {
    ty.check(out.len(), bytes.len())?;
    match ty {
        TensorType::F32 => each_block(bytes, out, |b, o| *o = [f32::from_le_bytes(*b)]),
        TensorType::F16 => each_block(bytes, out, |b, o| *o = [f16::from_le_bytes(*b).to_f32()]),
        TensorType::BF16 => each_block(bytes, out, |b, o| *o = [bf16::from_le_bytes(*b).to_f32()]),
        TensorType::Q8_0 => each_block(bytes, out, q8_0_block),
        TensorType::Q4_0 => each_block(bytes, out, q4_0_block),
        TensorType::Q4_1 => each_block(bytes, out, q4_1_block),
        TensorType::Q4K => each_block(bytes, out, decode_q4_k),
        TensorType::Q5K => each_block(bytes, out, decode_q5_k),
        TensorType::Q6K => each_block(bytes, out, decode_q6_k),
        TensorType::Iq4Nl => each_block(bytes, out, decode_iq4_nl),
        TensorType::Iq4Xs => each_block(bytes, out, decode_iq4_xs),
        TensorType::Mxfp4 => each_block(bytes, out, decode_mxfp4),
    }
    Ok(())
}

fn each_block<const BYTES: usize, const ELEMENTS: usize>(
    bytes: &[u8],
    out: &mut [f32],
    decode: impl Fn(&[u8; BYTES], &mut [f32; ELEMENTS]),
) {
    for (b, o) in bytes.as_chunks::<BYTES>().0.iter().zip(out.as_chunks_mut::<ELEMENTS>().0) {
        decode(b, o);
    }
}

fn q8_0_block(block: &[u8; 34], out: &mut [f32; SMALL_BLOCK]) {
    let [d0, d1, q @ ..] = block;
    let d = f16::from_le_bytes([*d0, *d1]).to_f32();
    for (o, q) in out.iter_mut().zip(q) {
        *o = f32::from(*q as i8) * d;
    }
}

fn q4_0_block(block: &[u8; 18], out: &mut [f32; SMALL_BLOCK]) {
    let [d0, d1, q @ ..] = block;
    let d = f16::from_le_bytes([*d0, *d1]).to_f32();
    let (low, high) = out.split_at_mut(SMALL_BLOCK / 2);
    for ((a, b), q) in low.iter_mut().zip(high).zip(q) {
        *a = f32::from((q & 0xf) as i8 - 8) * d;
        *b = f32::from((q >> 4) as i8 - 8) * d;
    }
}

fn q4_1_block(block: &[u8; 20], out: &mut [f32; SMALL_BLOCK]) {
    let [d0, d1, m0, m1, q @ ..] = block;
    let (d, m) = (f16::from_le_bytes([*d0, *d1]).to_f32(), f16::from_le_bytes([*m0, *m1]).to_f32());
    let (low, high) = out.split_at_mut(SMALL_BLOCK / 2);
    for ((a, b), q) in low.iter_mut().zip(high).zip(q) {
        *a = f32::from(q & 0xf) * d + m;
        *b = f32::from(q >> 4) * d + m;
    }
}
