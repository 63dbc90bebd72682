//! Panels of 32 rows: weights in the order in which the kernels with AVX-512 read them, one ascending stream.
//!
//! A panel is a sequence of blocks, each with the quantised values of all rows followed by their scales, so that
//! every load is aligned to a cache line. Values are interleaved in groups of four: 64 bytes hold 4 bytes each of
//! 16 rows, so each 32-bit lane is a row. The four bytes are consecutive elements of a dot product. Nibbles keep
//! GGUF's order, so the low ones are elements 4j..4j+4 and the high ones 16+4j..16+4j+4 of a block. Rows missing
//! in the matrix are zeros, including their scales.

use crate::quant::TensorType;
use crate::scalar::{q4k_scale_min, q6k_element};

/// Rows in a panel.
pub(super) const ROWS: usize = 32;
/// Rows in one vector of 16 lanes.
const LANES: usize = 16;

/// Size of a block of 32 elements for all rows: values, then scales (and minima).
pub(super) const Q4_0_BLOCK: usize = ROWS * (16 + 2);
pub(super) const Q4_1_BLOCK: usize = ROWS * (16 + 4);
pub(super) const Q8_0_BLOCK: usize = ROWS * (32 + 2);

/// Size of a block of 256 elements for all rows, and the offsets of its scales, minima and f16 values.
pub(super) const Q4K_BLOCK: usize = Q4K_HALVES + ROWS * 4;
pub(super) const Q4K_SCALES: usize = ROWS * 128;
pub(super) const Q4K_MINIMA: usize = Q4K_SCALES + ROWS * 8;
pub(super) const Q4K_HALVES: usize = Q4K_MINIMA + ROWS * 8;
pub(super) const Q6K_BLOCK: usize = Q6K_HALVES + ROWS * 2;
pub(super) const Q6K_SCALES: usize = ROWS * 192;
pub(super) const Q6K_HALVES: usize = Q6K_SCALES + ROWS * 16;

/// Bytes of a panel.
pub(super) fn bytes(ty: TensorType, cols: usize) -> usize {
    let block = match ty {
        TensorType::Q4K => Q4K_BLOCK,
        _ => ty.block_bytes() * ROWS,
    };
    cols / ty.block() * block
}

/// Calls `f` for each row and block of the rows with (row, block within the row, bytes of the block).
pub(super) fn each_block<const BYTES: usize>(
    rows: &[u8],
    row_bytes: usize,
    mut f: impl FnMut(usize, usize, &[u8; BYTES]),
) {
    for (row, bytes) in rows.chunks_exact(row_bytes).enumerate() {
        for (block, bytes) in bytes.as_chunks().0.iter().enumerate() {
            f(row, block, bytes);
        }
    }
}

/// Spreads a row's bytes over chunks of 64, four to each, starting at `to`.
fn interleave(values: &[u8], row: usize, to: &mut [u8]) {
    let start = row / LANES * values.len() * LANES + row % LANES * 4;
    let places = to[start..].chunks_mut(4 * LANES);
    for (four, place) in values.as_chunks::<4>().0.iter().zip(places) {
        if let Some(place) = place.first_chunk_mut() {
            *place = *four;
        }
    }
}

pub(super) fn put_half(half: &[u8], row: usize, to: &mut [u8]) {
    to[2 * row..2 * row + 2].copy_from_slice(half);
}

pub(super) fn pack_q4_0(rows: &[u8], row_bytes: usize, panel: &mut [u8]) {
    each_block::<18>(rows, row_bytes, |row, block, bytes| {
        let to = &mut panel[block * Q4_0_BLOCK..][..Q4_0_BLOCK];
        interleave(&bytes[2..], row, to);
        put_half(&bytes[..2], row, &mut to[ROWS * 16..]);
    });
}

/// Scales of all rows, then minima.
pub(super) fn pack_q4_1(rows: &[u8], row_bytes: usize, panel: &mut [u8]) {
    each_block::<20>(rows, row_bytes, |row, block, bytes| {
        let to = &mut panel[block * Q4_1_BLOCK..][..Q4_1_BLOCK];
        interleave(&bytes[4..], row, to);
        put_half(&bytes[..2], row, &mut to[ROWS * 16..]);
        put_half(&bytes[2..4], row, &mut to[ROWS * 18..]);
    });
}

/// Values as unsigned bytes, offset by 128.
pub(super) fn pack_q8_0(rows: &[u8], row_bytes: usize, panel: &mut [u8]) {
    each_block::<34>(rows, row_bytes, |row, block, bytes| {
        let to = &mut panel[block * Q8_0_BLOCK..][..Q8_0_BLOCK];
        let values: [u8; 32] = std::array::from_fn(|i| bytes[2 + i] ^ 0x80);
        interleave(&values, row, to);
        put_half(&bytes[..2], row, &mut to[ROWS * 32..]);
    });
}

/// Parts of 32 elements, with nibbles as in Q4_0; then for each part a scale and for each part a minimum of all
/// rows, one byte each; then d and dmin.
pub(super) fn pack_q4k(rows: &[u8], row_bytes: usize, panel: &mut [u8]) {
    each_block::<144>(rows, row_bytes, |row, block, bytes| {
        let to = &mut panel[block * Q4K_BLOCK..][..Q4K_BLOCK];
        let packed = bytes[4..].first_chunk().unwrap_or(&[0; 12]);
        for part in 0..8 {
            let values = &bytes[16 + part / 2 * 32..][..32];
            let nibble = |i: usize| values[i] >> (4 * (part % 2)) & 15;
            let nibbles: [u8; 16] = std::array::from_fn(|i| nibble(i) | nibble(16 + i) << 4);
            interleave(&nibbles, row, &mut to[part * ROWS * 16..]);
            let (scale, minimum) = q4k_scale_min(packed, part);
            to[Q4K_SCALES + ROWS * part + row] = scale;
            to[Q4K_MINIMA + ROWS * part + row] = minimum;
        }
        put_half(&bytes[..2], row, &mut to[Q4K_HALVES..]);
        put_half(&bytes[2..4], row, &mut to[Q4K_HALVES + ROWS * 2..]);
    });
}

/// Parts of 32 elements; for each vector of rows 256 bytes of nibbles as in Q4_0 and 128 bytes of the upper two
/// bits: byte i (of 8 per row) has those of elements 8(i / 4) + i % 4, 4 more, 16 more and 20 more, from the
/// lowest bits up. Then for each part two signed scales of all rows, then d.
pub(super) fn pack_q6k(rows: &[u8], row_bytes: usize, panel: &mut [u8]) {
    each_block::<210>(rows, row_bytes, |row, block, bytes| {
        let to = &mut panel[block * Q6K_BLOCK..][..Q6K_BLOCK];
        for part in 0..8 {
            let element = |i: usize| q6k_element(bytes, part * 32 + i);
            let low: [u8; 16] = std::array::from_fn(|i| element(i) & 15 | element(16 + i) << 4);
            let high: [u8; 8] = std::array::from_fn(|i| {
                let at = 8 * (i / 4) + i % 4;
                [at, at + 4, at + 16, at + 20].iter().rev().fold(0, |bits, at| bits << 2 | element(*at) >> 4)
            });
            // `interleave` finds the vector of rows by the size of its input: here vectors are 384 apart.
            let from = part * ROWS * 24 + row / LANES * 384;
            interleave(&low, row % LANES, &mut to[from..]);
            interleave(&high, row % LANES, &mut to[from + 256..]);
            let scales = Q6K_SCALES + ROWS * 2 * part + 2 * row;
            to[scales..scales + 2].copy_from_slice(&bytes[192 + 2 * part..194 + 2 * part]);
        }
        put_half(&bytes[208..], row, &mut to[Q6K_HALVES..]);
    });
}
