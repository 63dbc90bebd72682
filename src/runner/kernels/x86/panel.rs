//! Panels of 32 rows: weights in the order in which the kernels of x86-64 read them, one ascending stream.
//!
//! A panel is a sequence of blocks, each with the block's quantised values of all rows and then its scales, so that
//! every load is aligned to a cache line. Values are interleaved by fours: 64 bytes hold 4 bytes each of 16 rows,
//! which makes a 32-bit lane a row. The four bytes are consecutive elements of a dot product; nibbles keep GGUF's
//! order, so that the low ones are elements 4j..4j+4 and the high ones 16+4j..16+4j+4 of a block. Rows that the
//! matrix does not have are zeros, scales included.

use crate::ggml::quant::TensorType;

/// Rows of a panel.
pub(super) const ROWS: usize = 32;
/// Rows of one vector of 16 lanes.
const LANES: usize = 16;

/// What a block of 32 elements of all rows takes: values, then scales (and minima).
pub(super) const Q4_0_BLOCK: usize = ROWS * (16 + 2);
pub(super) const Q4_1_BLOCK: usize = ROWS * (16 + 4);
pub(super) const Q8_0_BLOCK: usize = ROWS * (32 + 2);

/// Bytes of a panel.
pub(super) fn bytes(ty: TensorType, cols: usize) -> usize {
    cols / ty.block() * ty.block_bytes() * ROWS
}

/// `f` for each row and block of the rows: (row, block within the row, bytes of the block).
fn each_block<const BYTES: usize>(
    rows: &[u8],
    row_bytes: usize,
    mut f: impl FnMut(usize, usize, &[u8; BYTES]),
) {
    for (row, bytes) in rows.chunks_exact(row_bytes).enumerate().take(ROWS) {
        for (block, bytes) in bytes.as_chunks().0.iter().enumerate() {
            f(row, block, bytes);
        }
    }
}

/// Spreads the bytes of a row over chunks of 64, four to each, from `to` on.
fn interleave(values: &[u8], row: usize, to: &mut [u8], flip: u8) {
    let start = row / LANES * values.len() * LANES + row % LANES * 4;
    for (j, four) in values.as_chunks::<4>().0.iter().enumerate() {
        let at = start + j * 4 * LANES;
        to[at..at + 4].copy_from_slice(&four.map(|b| b ^ flip));
    }
}

fn put_half(half: &[u8], row: usize, to: &mut [u8]) {
    to[2 * row..2 * row + 2].copy_from_slice(half);
}

pub(super) fn pack_q4_0(rows: &[u8], row_bytes: usize, panel: &mut [u8]) {
    each_block::<18>(rows, row_bytes, |row, block, bytes| {
        let to = &mut panel[block * Q4_0_BLOCK..][..Q4_0_BLOCK];
        interleave(&bytes[2..], row, to, 0);
        put_half(&bytes[..2], row, &mut to[ROWS * 16..]);
    });
}

/// Scales of all rows, then minima.
pub(super) fn pack_q4_1(rows: &[u8], row_bytes: usize, panel: &mut [u8]) {
    each_block::<20>(rows, row_bytes, |row, block, bytes| {
        let to = &mut panel[block * Q4_1_BLOCK..][..Q4_1_BLOCK];
        interleave(&bytes[4..], row, to, 0);
        put_half(&bytes[..2], row, &mut to[ROWS * 16..]);
        put_half(&bytes[2..4], row, &mut to[ROWS * 18..]);
    });
}

/// Values as unsigned bytes: 128 more than they are.
pub(super) fn pack_q8_0_unsigned(rows: &[u8], row_bytes: usize, panel: &mut [u8]) {
    each_block::<34>(rows, row_bytes, |row, block, bytes| {
        let to = &mut panel[block * Q8_0_BLOCK..][..Q8_0_BLOCK];
        interleave(&bytes[2..], row, to, 0x80);
        put_half(&bytes[..2], row, &mut to[ROWS * 32..]);
    });
}
