//! Weights and activations in the order that the tiles read them.
//!
//! Weights: panels of 8 rows. A block has what its rows say of it, then its quants in stretches of 16 columns: for
//! each step of `16 / ROWS` columns and each unit of `ROWS` rows a register with the columns of one row after those
//! of another. Registers of nibbles hold an even step in the low and the odd step after it in the high nibbles.
//!
//! Activations: tiles of 1, 2, 4 or 8 tokens. A block has the scale of each token, then part by part a number a token
//! ([`Type::extra`]) and the quants in stretches: for each step, token by token, its columns. Lists of a value a token
//! are at least four long.

use super::machine::Machine;
use super::types::{Activations, Type, block_bytes};
use crate::ggml::quant::TensorType;
use crate::runner::kernels::format::view;
use crate::runner::kernels::matmul::Job;

/// Rows of a panel of weights.
pub(super) const ROWS: usize = 8;
/// Columns of a stretch.
pub(super) const STRETCH: usize = 16;
/// Most tokens of a tile.
pub(super) const TOKENS: usize = 8;
/// Tokens that are brought into order at a time: in the second level of the cache beside the weights.
const TURN: usize = 64;

/// The quants of one stretch as registers, one byte a quant: `[step][unit of rows][row][column]`.
fn interleave<M: Machine>(quant: impl Fn(usize, usize) -> u8) -> [[u8; 16]; 8] {
    let (units, run) = (ROWS / M::ROWS, 16 / M::ROWS);
    let mut registers = [[0; 16]; 8];
    for (r, register) in registers.iter_mut().enumerate() {
        let (step, unit) = (r / units, r % units);
        for (i, byte) in register.iter_mut().enumerate() {
            *byte = quant(unit * M::ROWS + i / run, step * run + i % run);
        }
    }
    registers
}

/// A panel from its rows as they are in the file. Rows that are not there stay zero.
pub(super) fn pack<M: Machine, T: Type>(source: &[u8], row_bytes: usize, panel: &mut [u8]) {
    let rows: Vec<&[u8]> = source.chunks(row_bytes).collect();
    let bytes = T::TENSOR.block_bytes();
    for (b, block) in panel.chunks_exact_mut(block_bytes::<T>()).enumerate() {
        let (head, quants) = block.split_at_mut(T::HEAD_BYTES);
        let of_row = |row: usize| rows.get(row).and_then(|r| r.get(b * bytes..(b + 1) * bytes));
        let quant = |row, column| of_row(row).map_or(0, |source| T::quant(source, column));
        for (row, source) in (0..ROWS).filter_map(|row| Some((row, of_row(row)?))) {
            T::head(source, row, head);
        }
        for (stretch, out) in quants.chunks_exact_mut(T::STRETCH_BYTES).enumerate() {
            let registers = interleave::<M>(|row, column| quant(row, stretch * STRETCH + column));
            T::store(&registers, ROWS / M::ROWS, out);
        }
    }
}

/// Values in a list of one a token.
pub(super) const fn list(tokens: usize) -> usize {
    if tokens < 4 { 4 } else { tokens }
}

/// Bytes of a panel, for the recipe.
pub(super) fn panel_bytes<T: Type>(_ty: TensorType, cols: usize) -> usize {
    cols / T::BLOCK * block_bytes::<T>()
}

/// Bytes of a block of a tile.
pub(super) const fn tile_block_bytes<T: Type>(tokens: usize) -> usize {
    4 * list(tokens) + T::BLOCK / T::PART * 4 * list(tokens) + T::BLOCK * tokens
}

fn tile_bytes<T: Type>(cols: usize, tokens: usize) -> usize {
    cols / T::BLOCK * tile_block_bytes::<T>(tokens)
}

/// Scratch memory of a product.
pub(super) fn scratch_bytes<T: Type>(cols: usize, tokens: usize) -> usize {
    tokens.min(TURN).div_ceil(TOKENS) * tile_bytes::<T>(cols, TOKENS)
}

/// Tokens of the tile for so many.
fn tile_tokens<M: Machine>(tokens: usize) -> usize {
    tokens.min(TOKENS).next_power_of_two().max(M::LEAST / 2)
}

/// One tile from the tokens `first..first + count`.
fn pack_tile<M: Machine, T: Type>(job: &Job<'_>, first: usize, count: usize, tile: &mut [u8]) {
    let (tokens, run) = (tile_tokens::<M>(count), 16 / M::ROWS);
    let list = 4 * list(tokens);
    tile.fill(0);
    for token in 0..count {
        let blocks = tile.chunks_exact_mut(tile_block_bytes::<T>(tokens));
        for (block, acts) in blocks.zip(view::<T::Acts>(job.act(first + token))) {
            let (scales, parts) = block.split_at_mut(list);
            scales[4 * token..][..4].copy_from_slice(&acts.scale().to_ne_bytes());
            for (p, part) in parts.chunks_exact_mut(list + T::PART * tokens).enumerate() {
                let (extras, quants) = part.split_at_mut(list);
                extras[4 * token..][..4].copy_from_slice(&T::extra(acts, p).to_ne_bytes());
                let from = acts.quants()[p * T::PART..].chunks_exact(run);
                for (to, from) in quants.chunks_exact_mut(run).skip(token).step_by(tokens).zip(from) {
                    for (to, from) in to.iter_mut().zip(from) {
                        *to = from.cast_unsigned();
                    }
                }
            }
        }
    }
}

/// Multiplies, tile by tile.
pub(super) fn run<M: Machine, T: Type>(job: &Job<'_>, scratch: &mut [u8]) {
    let cols = job.matrix.cols();
    let tile_bytes_of = |tokens| tile_bytes::<T>(cols, tokens);
    for first in (0..job.tokens()).step_by(TURN) {
        let count = TURN.min(job.tokens() - first);
        let tiles = || {
            (0..count).step_by(TOKENS).map(|at| {
                let tokens = TOKENS.min(count - at);
                let start = at / TOKENS * tile_bytes_of(TOKENS);
                (first + at, tokens, start..start + tile_bytes_of(tile_tokens::<M>(tokens)))
            })
        };
        for (token, tokens, place) in tiles() {
            pack_tile::<M, T>(job, token, tokens, &mut scratch[place]);
        }
        for row in job.rows.clone().step_by(ROWS) {
            for (token, tokens, place) in tiles() {
                let (w, a) = (job.panel(row / ROWS), &scratch[place]);
                let at = (row, token, tokens);
                match tile_tokens::<M>(tokens) {
                    1 => super::tile::multiply::<M, T, 2>(job, w, a, at),
                    2 => super::tile::multiply::<M, T, 4>(job, w, a, at),
                    4 => super::tile::multiply::<M, T, 8>(job, w, a, at),
                    _ => super::tile::multiply::<M, T, 16>(job, w, a, at),
                }
            }
        }
    }
}
