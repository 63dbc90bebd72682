//! Types whose 4 bits are the index of a value in a table: IQ4_NL, IQ4_XS and MXFP4.
//!
//! Tables are `kvalues_iq4nl` and `kvalues_mxfp4` of ggml/src/ggml-common.h. Encoding is a simple fit implemented here,
//! but that of MXFP4, which is `quantize_row_mxfp4_ref` (ggml/src/ggml-quants.c).

use super::block::{K_BLOCK, SMALL_BLOCK, abs_max, largest};
use half::f16;

/// Values of IQ4_NL and IQ4_XS.
pub(crate) const IQ4: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
/// Values of MXFP4, doubled: E2M1 floats.
pub(crate) const MXFP4: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Half the value of an E8M0 scale, since the table of MXFP4 holds doubled values: `GGML_E8M0_TO_FP32_HALF` of
/// ggml/src/ggml-impl.h.
pub(crate) fn e8m0_half(exponent: u8) -> f32 {
    f32::from_bits(match exponent {
        0 | 1 => 0x0020_0000 << exponent,
        _ => (u32::from(exponent) - 1) << 23,
    })
}

/// Scale of part `part` of an IQ4_XS block, without its offset of 32.
pub(crate) fn iq4_xs_scale(block: &[u8; 136], part: usize) -> u8 {
    let high = u16::from_le_bytes([block[2], block[3]]) >> (2 * part) & 3;
    block[4 + part / 2] >> (4 * (part % 2)) & 15 | (high as u8) << 4
}

/// The index of the nearest value; of two, the first.
fn nearest(table: &[i8; 16], value: f32) -> u8 {
    let distance = |i: u8| (f32::from(table[usize::from(i)]) - value).abs();
    (1..16).fold(0, |best, i| if distance(i) < distance(best) { i } else { best })
}

/// Byte j has the index of element j in its low nibble and that of element j + 16 in its high nibble.
fn indices(table: &[i8; 16], x: &[f32], inverse: f32, out: &mut [u8]) {
    let (low, high) = x.split_at(SMALL_BLOCK / 2);
    for ((o, a), b) in out.iter_mut().zip(low).zip(high) {
        *o = nearest(table, a * inverse) | nearest(table, b * inverse) << 4;
    }
}

fn values(table: &[i8; 16], bytes: &[u8], scale: f32, out: &mut [f32]) {
    let (low, high) = out.split_at_mut(SMALL_BLOCK / 2);
    for ((a, b), byte) in low.iter_mut().zip(high).zip(bytes) {
        *a = scale * f32::from(table[usize::from(byte & 15)]);
        *b = scale * f32::from(table[usize::from(byte >> 4)]);
    }
}

fn inverse(scale: f32) -> f32 {
    if scale != 0.0 { 1.0 / scale } else { 0.0 }
}

/// The value of largest magnitude gets the first entry of the table.
pub(super) fn iq4_nl_block(x: &[f32; SMALL_BLOCK]) -> [u8; 18] {
    let d = f16::from_f32(largest(x) / f32::from(IQ4[0]));
    let mut out = [0; 18];
    out[..2].copy_from_slice(&d.to_le_bytes());
    indices(&IQ4, x, inverse(d.to_f32()), &mut out[2..]);
    out
}

pub(super) fn decode_iq4_nl(block: &[u8; 18], out: &mut [f32; SMALL_BLOCK]) {
    values(&IQ4, &block[2..], f16::from_le_bytes([block[0], block[1]]).to_f32(), out);
}

/// Each part is scaled like a block of IQ4_NL; scales are in signed 32nds of the block's largest.
pub(super) fn iq4_xs_block(x: &[f32; K_BLOCK]) -> [u8; 136] {
    let parts = x.as_chunks::<SMALL_BLOCK>().0;
    let mut steps = [0.0f32; K_BLOCK / SMALL_BLOCK];
    for (step, part) in steps.iter_mut().zip(parts) {
        *step = largest(part) / f32::from(IQ4[0]);
    }
    let d = f16::from_f32(largest(&steps) / -32.0);
    let mut out = [0; 136];
    out[..2].copy_from_slice(&d.to_le_bytes());
    for (i, (step, part)) in steps.iter().zip(parts).enumerate() {
        let scale = (step * inverse(d.to_f32())).round_ties_even().clamp(-32.0, 31.0);
        let stored = (scale as i8 + 32) as u8;
        out[4 + i / 2] |= (stored & 15) << (4 * (i % 2));
        out[2 + i / 4] |= stored >> 4 << (2 * (i % 4));
        indices(&IQ4, part, inverse(d.to_f32() * scale), &mut out[8 + 16 * i..][..16]);
    }
    out
}

pub(super) fn decode_iq4_xs(block: &[u8; 136], out: &mut [f32; K_BLOCK]) {
    let d = f16::from_le_bytes([block[0], block[1]]).to_f32();
    for (i, part) in out.as_chunks_mut::<SMALL_BLOCK>().0.iter_mut().enumerate() {
        let scale = d * f32::from(iq4_xs_scale(block, i) as i8 - 32);
        values(&IQ4, &block[8 + 16 * i..][..16], scale, part);
    }
}

/// The exponent is that of the largest magnitude, less two: the largest value of E2M1 is 6.
pub(super) fn mxfp4_block(x: &[f32; SMALL_BLOCK]) -> [u8; 17] {
    // Both formats have the same bias.
    let exponent = (abs_max(x).to_bits() >> 23).saturating_sub(2);
    let mut out = [0; 17];
    out[0] = exponent as u8;
    indices(&MXFP4, x, inverse(e8m0_half(out[0])), &mut out[1..]);
    out
}

pub(super) fn decode_mxfp4(block: &[u8; 17], out: &mut [f32; SMALL_BLOCK]) {
    values(&MXFP4, &block[1..], e8m0_half(block[0]), out);
}
