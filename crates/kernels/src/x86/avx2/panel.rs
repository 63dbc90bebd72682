//! Panels of 8 rows: the rows of one vector, in one ascending stream.
//!
//! A panel is a sequence of blocks, each with the quantised values of all rows followed by their scales. 32 bytes hold
//! 4 bytes each of 8 rows, so each 32-bit lane is a row; the four bytes are consecutive elements of a dot product.
//! Nibbles keep GGUF's order, so the low ones are elements 4j..4j+4 and the high ones 16+4j..16+4j+4 of a block or part.
//! Rows missing in the matrix are zeros, including their scales. Everything is aligned to 16 bytes.

use super::super::panel::{each_block, put_half};
use crate::quant::TensorType;
use crate::quant::k_blocks::q5_k_element;
use crate::quant::tables::{e8m0_half, iq4_xs_scale};
use crate::scalar::{q4k_scale_min, q6k_element};

/// Rows in a panel.
pub(in super::super) const ROWS: usize = 8;

/// Bytes of 32 nibbles of all rows.
pub(super) const NIBBLES: usize = ROWS * 16;
/// Bytes of the values of a Q8_0 block of all rows.
pub(super) const BYTES: usize = ROWS * 32;

/// A block of Q4_K: nibbles of 8 parts of 32 elements; then for each part the scales of all rows; for each two parts the
/// minima of all rows, those of a row side by side; d and dmin.
pub(super) const Q4K_SCALES: usize = 8 * NIBBLES;
pub(super) const Q4K_BLOCK: usize = Q4K_SCALES + ROWS * 20;
/// Bytes from the scales to the others.
pub(super) const MINIMA: usize = ROWS * 8;
pub(super) const HALVES: usize = ROWS * 16;

/// A block of Q6_K: for each 16 elements three vectors, each with the lower six bits of 4 elements and above them two
/// bits of the last 4, the lowest first; after two of these the two scales of each row; d behind all 8 parts.
pub(super) const Q6K_PART: usize = ROWS * 26;
/// Bytes of 16 elements.
pub(super) const Q6K_HALF: usize = ROWS * 12;
pub(super) const Q6K_HALVES: usize = 8 * Q6K_PART;
pub(super) const Q6K_BLOCK: usize = Q6K_HALVES + ROWS * 2;

/// A block of Q5_K: as of Q4_K, with 32 fifth bits of each row behind the nibbles of a part. Of four bytes of a row, the
/// lowest bits from bit 4 up are those of the elements in low nibbles 0 to 4, 4 to 8 and so on, from bit 0 up of those
/// in high nibbles.
pub(super) const Q5K_PART: usize = NIBBLES + ROWS * 4;
pub(super) const Q5K_SCALES: usize = 8 * Q5K_PART;
pub(super) const Q5K_BLOCK: usize = Q5K_SCALES + ROWS * 20;

/// A block of IQ4_XS: nibbles of 8 parts, for each part the signed scales of all rows, then d.
pub(super) const IQ4_XS_SCALES: usize = 8 * NIBBLES;
pub(super) const IQ4_XS_HALVES: usize = IQ4_XS_SCALES + ROWS * 8;
pub(super) const IQ4_XS_BLOCK: usize = IQ4_XS_HALVES + ROWS * 2;

/// A block of MXFP4: nibbles, then the upper half of each row's scale as a float: it has no other bits.
const MXFP4_BLOCK: usize = NIBBLES + ROWS * 2;

/// Bytes of a panel.
pub(in super::super) fn bytes(ty: TensorType, cols: usize) -> usize {
    let block = match ty {
        TensorType::Q4K => Q4K_BLOCK,
        TensorType::Q5K => Q5K_BLOCK,
        TensorType::Iq4Xs => IQ4_XS_BLOCK,
        TensorType::Mxfp4 => MXFP4_BLOCK,
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

/// Scales, minima, d and dmin of a row from the begin of its block of Q4_K or Q5_K.
fn put_spans(head: &[u8], row: usize, to: &mut [u8]) {
    let packed = head[4..].first_chunk().unwrap_or(&[0; 12]);
    for part in 0..8 {
        let (scale, minimum) = q4k_scale_min(packed, part);
        to[ROWS * part + row] = scale;
        to[MINIMA + 2 * ROWS * (part / 2) + 2 * row + part % 2] = minimum;
    }
    put_half(&head[..2], row, &mut to[HALVES..]);
    put_half(&head[2..4], row, &mut to[HALVES + ROWS * 2..]);
}

pub(super) fn pack_q4k(rows: &[u8], row_bytes: usize, panel: &mut [u8]) {
    each_block::<144>(rows, row_bytes, |row, block, bytes| {
        let to = &mut panel[block * Q4K_BLOCK..][..Q4K_BLOCK];
        for part in 0..8 {
            let values = &bytes[16 + part / 2 * 32..][..32];
            let nibble = |i: usize| values[i] >> (4 * (part % 2)) & 15;
            let nibbles: [u8; 16] = std::array::from_fn(|i| nibble(i) | nibble(16 + i) << 4);
            interleave(&nibbles, row, &mut to[part * NIBBLES..]);
        }
        put_spans(bytes, row, &mut to[Q4K_SCALES..]);
    });
}

pub(super) fn pack_q5k(rows: &[u8], row_bytes: usize, panel: &mut [u8]) {
    each_block::<176>(rows, row_bytes, |row, block, bytes| {
        let to = &mut panel[block * Q5K_BLOCK..][..Q5K_BLOCK];
        for part in 0..8 {
            let element = |i: usize| q5_k_element(bytes, 32 * part + i);
            let nibbles: [u8; 16] = std::array::from_fn(|i| element(i) & 15 | element(16 + i) << 4);
            let fifths: [u8; 4] = std::array::from_fn(|i| {
                let fifth = |at: usize, bit: usize| element(at + i) >> 4 << bit;
                (0..4).fold(0, |bits, j| bits | fifth(4 * j, 4 + j) | fifth(16 + 4 * j, j))
            });
            interleave(&nibbles, row, &mut to[part * Q5K_PART..]);
            interleave(&fifths, row, &mut to[part * Q5K_PART + NIBBLES..]);
        }
        put_spans(bytes, row, &mut to[Q5K_SCALES..]);
    });
}

pub(super) fn pack_iq4_xs(rows: &[u8], row_bytes: usize, panel: &mut [u8]) {
    each_block::<136>(rows, row_bytes, |row, block, bytes| {
        let to = &mut panel[block * IQ4_XS_BLOCK..][..IQ4_XS_BLOCK];
        for part in 0..8 {
            interleave(&bytes[8 + 16 * part..][..16], row, &mut to[part * NIBBLES..]);
            to[IQ4_XS_SCALES + ROWS * part + row] = iq4_xs_scale(bytes, part).wrapping_sub(32);
        }
        put_half(&bytes[..2], row, &mut to[IQ4_XS_HALVES..]);
    });
}

pub(super) fn pack_mxfp4(rows: &[u8], row_bytes: usize, panel: &mut [u8]) {
    each_block::<17>(rows, row_bytes, |row, block, bytes| {
        let to = &mut panel[block * MXFP4_BLOCK..][..MXFP4_BLOCK];
        interleave(&bytes[1..], row, to);
        put_half(&e8m0_half(bytes[0]).to_le_bytes()[2..], row, &mut to[NIBBLES..]);
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
