//! Super-blocks of the K types: 256 elements, with small scales for parts of them.

use super::block::{K_BLOCK, SMALL_BLOCK, bounds};
use half::f16;

/// Parts of a Q4_K or Q5_K block, 32 elements each, with a scale and a minimum.
const PARTS: usize = K_BLOCK / SMALL_BLOCK;
/// Elements in a part of a Q6_K block, which has a scale.
const Q6_PART: usize = 16;
const Q6_PARTS: usize = K_BLOCK / Q6_PART;
/// Largest scale or minimum in six bits.
const SIX_BITS: f32 = 63.0;

/// Bytes of one Q4_K block: f16 `d` and `dmin`, twelve bytes of scales, nibbles.
pub type BlockQ4K = [u8; 144];
/// Bytes of one Q5_K block: as of Q4_K, with 32 bytes of fifth bits before the nibbles.
pub type BlockQ5K = [u8; 176];
/// Bytes of one Q6_K block: low four bits, high two bits, scales, f16 `d`.
pub type BlockQ6K = [u8; 210];

/// Nearest integer; for |v| below 2^22, where adding 1.5 * 2^23 pushes the fraction out of a float.
fn nearest(v: f32) -> i32 {
    ((v + 12_582_912.0).to_bits() & 0x007f_ffff) as i32 - 0x0040_0000
}

/// `a / b`, or 0 if that is not finite.
fn ratio(a: f32, b: f32) -> f32 {
    let r = a / b;
    if r.is_finite() { r } else { 0.0 }
}

/// Each part spans its smallest value (at most 0) to its largest in `most` steps; scales and minima are in 63rds of
/// the block's largest. Returns `d`, `dmin` and the scales as they are stored, and the values.
fn spans(x: &[f32; K_BLOCK], most: f32) -> ([u8; 16], [u8; K_BLOCK]) {
    let mut steps = [0.0f32; PARTS];
    let mut depths = [0.0f32; PARTS];
    for ((part, step), depth) in x.as_chunks::<SMALL_BLOCK>().0.iter().zip(&mut steps).zip(&mut depths) {
        let (min, max) = bounds(part);
        *depth = if min < 0.0 { -min } else { 0.0 };
        *step = (max + *depth) / most;
    }
    let (max_step, max_depth) = (bounds(&steps).1.max(0.0), bounds(&depths).1.max(0.0));
    let (d, dmin) = (f16::from_f32(max_step / SIX_BITS), f16::from_f32(max_depth / SIX_BITS));
    let six = |v: f32, of: f32| nearest(SIX_BITS * ratio(v, of)).clamp(0, 63) as u8;
    let scales = steps.map(|s| six(s, max_step));
    let minima = depths.map(|m| six(m, max_depth));

    let (mut head, mut q) = ([0; 16], [0; K_BLOCK]);
    head[..2].copy_from_slice(&d.to_le_bytes());
    head[2..4].copy_from_slice(&dmin.to_le_bytes());
    head[4..].copy_from_slice(&pack_scales(&scales, &minima));
    for (i, (q, v)) in q.iter_mut().zip(x).enumerate() {
        let part = i / SMALL_BLOCK;
        let (step, depth) = (d.to_f32() * f32::from(scales[part]), dmin.to_f32() * f32::from(minima[part]));
        *q = nearest(ratio(v + depth, step).clamp(0.0, most)) as u8;
    }
    (head, q)
}

/// Two parts share 32 bytes of nibbles: the even one uses the low ones.
fn nibbles(q: &[u8; K_BLOCK], out: &mut [u8]) {
    for (i, q) in q.iter().enumerate() {
        let part = i / SMALL_BLOCK;
        out[part / 2 * SMALL_BLOCK + i % SMALL_BLOCK] |= (q & 15) << (part % 2 * 4);
    }
}

/// Four bits per element, see [`spans`].
pub fn q4_k_block(x: &[f32; K_BLOCK]) -> BlockQ4K {
    let (head, q) = spans(x, 15.0);
    let mut out = [0; 144];
    out[..16].copy_from_slice(&head);
    nibbles(&q, &mut out[16..]);
    out
}

/// Five bits per element: the fifth of a part's element `l` is bit `part` of byte `l` before the nibbles.
pub fn q5_k_block(x: &[f32; K_BLOCK]) -> BlockQ5K {
    let (head, q) = spans(x, 31.0);
    let mut out = [0; 176];
    out[..16].copy_from_slice(&head);
    for (i, q) in q.iter().enumerate() {
        out[16 + i % SMALL_BLOCK] |= q >> 4 << (i / SMALL_BLOCK);
    }
    nibbles(&q, &mut out[48..]);
    out
}

/// Eight scales and eight minima of six bits: the first four of each are in the low bits of a byte; the last four
/// are nibbles of the third group of four bytes, with their two high bits on top of the first eight bytes.
fn pack_scales(scales: &[u8; PARTS], minima: &[u8; PARTS]) -> [u8; 12] {
    let mut out = [0; 12];
    for j in 0..4 {
        out[j] = scales[j] | (scales[j + 4] >> 4 << 6);
        out[j + 4] = minima[j] | (minima[j + 4] >> 4 << 6);
        out[j + 8] = (scales[j + 4] & 0xf) | (minima[j + 4] << 4);
    }
    out
}

/// The inverse of [`pack_scales`].
fn unpack_scales(bytes: &[u8; 12]) -> ([u8; PARTS], [u8; PARTS]) {
    let (mut scales, mut minima) = ([0; PARTS], [0; PARTS]);
    for j in 0..4 {
        (scales[j], minima[j]) = (bytes[j] & 63, bytes[j + 4] & 63);
        scales[j + 4] = (bytes[j + 8] & 0xf) | (bytes[j] >> 6 << 4);
        minima[j + 4] = (bytes[j + 8] >> 4) | (bytes[j + 4] >> 6 << 4);
    }
    (scales, minima)
}

/// Element = d * scale * value - dmin * minimum, with the value of an element.
fn decode_spans(block: &[u8], value: impl Fn(usize) -> u8, out: &mut [f32; K_BLOCK]) {
    let (d, dmin) = (half(block, 0), half(block, 2));
    let mut packed = [0; 12];
    packed.copy_from_slice(&block[4..16]);
    let (scales, minima) = unpack_scales(&packed);
    for (i, v) in out.iter_mut().enumerate() {
        let part = i / SMALL_BLOCK;
        *v = d * f32::from(scales[part]) * f32::from(value(i)) - dmin * f32::from(minima[part]);
    }
}

/// The nibble of an element.
fn nibble(bytes: &[u8], i: usize) -> u8 {
    let part = i / SMALL_BLOCK;
    bytes[part / 2 * SMALL_BLOCK + i % SMALL_BLOCK] >> (part % 2 * 4) & 15
}

pub fn decode_q4_k(block: &BlockQ4K, out: &mut [f32; K_BLOCK]) {
    decode_spans(block, |i| nibble(&block[16..], i), out);
}

pub fn decode_q5_k(block: &BlockQ5K, out: &mut [f32; K_BLOCK]) {
    decode_spans(block, |i| q5_k_element(block, i), out);
}

/// A value of a Q5_K block.
pub(crate) fn q5_k_element(block: &BlockQ5K, i: usize) -> u8 {
    nibble(&block[48..], i) | (block[16 + i % SMALL_BLOCK] >> (i / SMALL_BLOCK) & 1) << 4
}

/// Where the bits of element `i` are: byte and shift of the low nibble, byte and shift of the high pair. Each
/// half of the block has 64 bytes of nibbles and 32 bytes of pairs; four elements spaced by 32 share a byte of
/// pairs, two spaced by 64 share a byte of nibbles.
fn q6_place(i: usize) -> (usize, usize, usize, usize) {
    let (in_half, half, row, column) = (i % 128, i / 128, i % 128 / 32, i % 32);
    (half * 64 + in_half % 64, row / 2 * 4, 128 + half * 32 + column, row * 2)
}

/// Each part is scaled by its value of largest magnitude in 32 steps; scales are in signed 128ths of the block's
/// largest.
pub fn q6_k_block(x: &[f32; K_BLOCK]) -> BlockQ6K {
    let mut steps = [0.0f32; Q6_PARTS];
    for (part, step) in x.as_chunks::<Q6_PART>().0.iter().zip(&mut steps) {
        let (min, max) = bounds(part);
        *step = (if -min > max { min } else { max }) / -32.0;
    }
    let (min, max) = bounds(&steps);
    let widest = if -min > max { min } else { max };
    let d = f16::from_f32(widest / -128.0);
    let scales = steps.map(|s| nearest(-128.0 * ratio(s, widest)).clamp(-128, 127) as i8);

    let mut out = [0; 210];
    for (i, v) in x.iter().enumerate() {
        let step = d.to_f32() * f32::from(scales[i / Q6_PART]);
        let q = (nearest(ratio(*v, step).clamp(-32.0, 31.0)) + 32) as u8;
        let (low, low_shift, high, high_shift) = q6_place(i);
        out[low] |= (q & 0xf) << low_shift;
        out[high] |= (q >> 4) << high_shift;
    }
    for (o, s) in out[192..208].iter_mut().zip(scales) {
        *o = s as u8;
    }
    out[208..].copy_from_slice(&d.to_le_bytes());
    out
}

/// Element = d * scale * (six bits - 32).
pub fn decode_q6_k(block: &BlockQ6K, out: &mut [f32; K_BLOCK]) {
    let d = half(block, 208);
    for (i, v) in out.iter_mut().enumerate() {
        let (low, low_shift, high, high_shift) = q6_place(i);
        let q = ((block[low] >> low_shift) & 0xf) | (((block[high] >> high_shift) & 3) << 4);
        let scale = block[192 + i / Q6_PART] as i8;
        *v = d * f32::from(scale) * f32::from(q as i8 - 32);
    }
}

/// The f16 at byte `at` of a block.
fn half(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}
