//! Panels of 8 rows: the rows of one vector, in one ascending stream.
//!
//! A panel is a sequence of blocks, each with the quantised values of all rows followed by their scales. 32 bytes hold
//! 4 bytes each of 8 rows, so each 32-bit lane is a row; the four bytes are consecutive elements of a dot product.
//! Nibbles keep GGUF's order, so the low ones are elements 4j..4j+4 and the high ones 16+4j..16+4j+4 of a block or part.
//! Rows missing in the matrix are zeros, including their scales. Everything is aligned to 16 bytes.

use super::super::panel::{each_block, put_half};
use crate::quant::TensorType;
use crate::scalar::{q4k_scale_min, q6k_element};

/// Rows in a panel.
pub(in super::super) const ROWS: usize = 8;

/// Bytes of 32 nibbles of all rows.
pub(super) const NIBBLES: usize = ROWS * 16;
/// Bytes of the values of a Q8_0 block of all rows.
pub(super) const BYTES: usize = ROWS * 32;

/// A block of Q4_K: nibbles of 8 parts of 32 elements; for each part the scales of all rows; for each two parts the
/// minima of all rows, those of a row side by side; d and dmin.
pub(super) const Q4K_SCALES: usize = 8 * NIBBLES;
pub(super) const Q4K_MINIMA: usize = Q4K_SCALES + ROWS * 8;
pub(super) const Q4K_HALVES: usize = Q4K_MINIMA + ROWS * 8;
pub(super) const Q4K_BLOCK: usize = Q4K_HALVES + ROWS * 4;

/// A block of Q6_K: for each 16 elements three vectors, each with the lower six bits of 4 elements and above them two
/// bits of the last 4, the lowest first; after two of these the two scales of each row; d behind all 8 parts.
pub(super) const Q6K_PART: usize = ROWS * 26;
/// Bytes of 16 elements.
pub(super) const Q6K_HALF: usize = ROWS * 12;
pub(super) const Q6K_HALVES: usize = 8 * Q6K_PART;
pub(super) const Q6K_BLOCK: usize = Q6K_HALVES + ROWS * 2;

/// Bytes of a panel.
pub(in super::super) fn bytes(ty: TensorType, cols: usize) -> usize {
    let block = match ty {
        TensorType::Q4K => Q4K_BLOCK,
        _ => ty.block_bytes() * ROWS,
    };
    cols / ty.block() * block
}

/// Spreads a row's bytes over vectors, four to each.
fn interleave(values: &[u8], row: usize, to: &mut [u8]) {
    for (four, place) in values.as_chunks::<4>().0.iter().zip(to[4 * row..].chunks_mut(4 * ROWS)) {
        if let Some(place) = place.first_chunk_mut() {
            *place = *four;
        }
    }
}

/// Packs blocks of `BYTES` bytes that begin with `HALVES` f16 values: the others first, then those.
fn pack_small<const BYTES: usize, const HALVES: usize>(rows: &[u8], row_bytes: usize, panel: &mut [u8]) {
    each_block::<BYTES>(rows, row_bytes, |row, block, bytes| {
        let to = &mut panel[block * BYTES * ROWS..][..BYTES * ROWS];
        let (halves, values) = bytes.split_at(2 * HALVES);
        interleave(values, row, to);
        for (i, half) in halves.chunks_exact(2).enumerate() {
            put_half(half, row, &mut to[ROWS * (values.len() + 2 * i)..]);
        }
    });
}

pub(super) fn pack_q4_0(rows: &[u8], row_bytes: usize, panel: &mut [u8]) {
    pack_small::<18, 1>(rows, row_bytes, panel);
}

pub(super) fn pack_q4_1(rows: &[u8], row_bytes: usize, panel: &mut [u8]) {
    pack_small::<20, 2>(rows, row_bytes, panel);
}

pub(super) fn pack_q8_0(rows: &[u8], row_bytes: usize, panel: &mut [u8]) {
    pack_small::<34, 1>(rows, row_bytes, panel);
}

pub(super) fn pack_q4k(rows: &[u8], row_bytes: usize, panel: &mut [u8]) {
    each_block::<144>(rows, row_bytes, |row, block, bytes| {
        let to = &mut panel[block * Q4K_BLOCK..][..Q4K_BLOCK];
        let packed = bytes[4..].first_chunk().unwrap_or(&[0; 12]);
        for part in 0..8 {
            let values = &bytes[16 + part / 2 * 32..][..32];
            let nibble = |i: usize| values[i] >> (4 * (part % 2)) & 15;
            let nibbles: [u8; 16] = std::array::from_fn(|i| nibble(i) | nibble(16 + i) << 4);
            interleave(&nibbles, row, &mut to[part * NIBBLES..]);
            let (scale, minimum) = q4k_scale_min(packed, part);
            to[Q4K_SCALES + ROWS * part + row] = scale;
            to[Q4K_MINIMA + 2 * ROWS * (part / 2) + 2 * row + part % 2] = minimum;
        }
        put_half(&bytes[..2], row, &mut to[Q4K_HALVES..]);
        put_half(&bytes[2..4], row, &mut to[Q4K_HALVES + ROWS * 2..]);
    });
}

pub(super) fn pack_q6k(rows: &[u8], row_bytes: usize, panel: &mut [u8]) {
    each_block::<210>(rows, row_bytes, |row, block, bytes| {
        let to = &mut panel[block * Q6K_BLOCK..][..Q6K_BLOCK];
        for half in 0..16 {
            let element = |i: usize| q6k_element(bytes, 16 * half + i);
            let six: [u8; 12] =
                std::array::from_fn(|i| element(i) | element(12 + i % 4) >> (2 * (i / 4)) << 6);
            interleave(&six, row, &mut to[half / 2 * Q6K_PART + half % 2 * Q6K_HALF..]);
            to[half / 2 * Q6K_PART + 2 * Q6K_HALF + 2 * row + half % 2] = bytes[192 + half];
        }
        put_half(&bytes[208..], row, &mut to[Q6K_HALVES..]);
    });
}
