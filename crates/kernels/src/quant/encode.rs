//! Encodes rows of numbers into blocks.
//!
//! The arithmetic of F16, BF16, Q8_0, Q4_0 and Q4_1 is that of `quantize_row_*_ref` (ggml/src/ggml-quants.c),
//! bit-identical for finite input to a build that does not fuse multiply and add. The K types and those with
//! tables use GGML's layout with a simple fit implemented here.

use super::block::{SMALL_BLOCK, abs_max, bounds, largest};
use super::k_blocks::{q4_k_block, q5_k_block, q6_k_block};
use super::tables::{iq4_nl_block, iq4_xs_block, mxfp4_block};
use super::{QuantError, TensorType};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// Encodes one row (or several complete rows of the same tensor) into `out`, which must have exactly the row's
/// size.
///
/// # Errors
/// [`QuantError`] if the sizes don't match.
pub fn encode(ty: TensorType, row: &[f32], out: &mut [u8]) -> Result<(), QuantError> {
    ty.check(row.len(), out.len())?;
    match ty {
        TensorType::F32 => {
            for (o, v) in out.chunks_exact_mut(4).zip(row) {
                o.copy_from_slice(&v.to_le_bytes());
            }
        }
        TensorType::F16 => encode_f16(row, out),
        TensorType::Q8_0 => each_block(row, out, q8_0_block),
        TensorType::Q4_0 => each_block(row, out, q4_0_block),
        TensorType::Q4_1 => each_block(row, out, q4_1_block),
        TensorType::Q4K => each_block(row, out, q4_k_block),
        TensorType::Q5K => each_block(row, out, q5_k_block),
        TensorType::Q6K => each_block(row, out, q6_k_block),
        TensorType::Iq4Nl => each_block(row, out, iq4_nl_block),
        TensorType::Iq4Xs => each_block(row, out, iq4_xs_block),
        TensorType::Mxfp4 => each_block(row, out, mxfp4_block),
        TensorType::BF16 => {
            for (o, v) in out.chunks_exact_mut(2).zip(row) {
                o.copy_from_slice(&bf16::from_f32(*v).to_le_bytes());
            }
        }
    }
    Ok(())
}

/// Rounds to nearest even, in slices so that `half` can use the processor's own conversion.
fn encode_f16(row: &[f32], out: &mut [u8]) {
    let mut halves = [f16::ZERO; 256];
    for (values, bytes) in row.chunks(halves.len()).zip(out.chunks_mut(halves.len() * 2)) {
        // `chunks` limits the length to that of `halves`.
        let part = &mut halves[..values.len()];
        part.convert_from_f32_slice(values);
        for (o, h) in bytes.chunks_exact_mut(2).zip(part) {
            o.copy_from_slice(&h.to_le_bytes());
        }
    }
}

fn each_block<const ELEMENTS: usize, const BYTES: usize>(
    row: &[f32],
    out: &mut [u8],
    encode: fn(&[f32; ELEMENTS]) -> [u8; BYTES],
) {
    for (x, o) in row.as_chunks::<ELEMENTS>().0.iter().zip(out.as_chunks_mut::<BYTES>().0) {
        *o = encode(x);
    }
}

/// f16 `d` = amax/127, then round(x/d), ties away from zero.
fn q8_0_block(x: &[f32; SMALL_BLOCK]) -> [u8; 34] {
    let d = abs_max(x) / 127.0;
    let id = if d != 0.0 { 1.0 / d } else { 0.0 };
    let mut out = [0; 34];
    let (head, body) = out.split_at_mut(2);
    head.copy_from_slice(&f16::from_f32(d).to_le_bytes());
    for (o, v) in body.iter_mut().zip(x) {
        // Round via the exact fraction: `f32::round` is a library call on baseline x86-64.
        let scaled = v * id;
        let whole = scaled as i32;
        let fraction = scaled - whole as f32;
        *o = (whole + i32::from(fraction >= 0.5) - i32::from(fraction <= -0.5)) as u8;
    }
    out
}

/// f16 `d` = (the value of largest magnitude)/-8, then min(15, trunc(x/d + 8.5)); byte j has element j in its low
/// nibble and element j+16 in its high nibble. A block of zeros has d = -0.0, like the reference.
fn q4_0_block(x: &[f32; SMALL_BLOCK]) -> [u8; 18] {
    let d = largest(x) / -8.0;
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

/// f16 `d` = (max - min)/15 and `m` = min, then min(15, trunc((x - min)/d + 0.5)); nibbles as in Q4_0.
fn q4_1_block(x: &[f32; SMALL_BLOCK]) -> [u8; 20] {
    let (min, max) = bounds(x);
    let d = (max - min) / 15.0;
    let id = if d != 0.0 { 1.0 / d } else { 0.0 };
    let mut out = [0; 20];
    let (head, body) = out.split_at_mut(4);
    let (scale, offset) = head.split_at_mut(2);
    scale.copy_from_slice(&f16::from_f32(d).to_le_bytes());
    offset.copy_from_slice(&f16::from_f32(min).to_le_bytes());
    let (low, high) = x.split_at(SMALL_BLOCK / 2);
    for ((o, a), b) in body.iter_mut().zip(low).zip(high) {
        let a = (((a - min) * id + 0.5) as i32).min(15) as u8;
        let b = (((b - min) * id + 0.5) as i32).min(15) as u8;
        *o = a | (b << 4);
    }
    out
}
