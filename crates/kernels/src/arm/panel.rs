//! Arranges weights and activations in the order in which the tiles read them.
//!
//! Weights: panels of 8 rows. A block has the per-row header data, then its quants in stretches of 16 columns:
//! for each step of `16 / ROWS` columns and each unit of `ROWS` rows, a register holding the columns of one row
//! after those of another. Registers of nibbles hold an even step in the low nibbles and the following odd step
//! in the high nibbles.
//!
//! Activations: tiles of 1, 2, 4 or 8 tokens. A block has the scale of each token, then for each part, if the type
//! needs it, one number per token ([`PackedType::extra`]), and the quants in stretches: for each step, token by token,
//! its columns. Per-token lists have at least four entries. If parts have minima, a stretch follows for them: its first
//! 8 columns have the numbers of the parts, divided by 128, the others what remains.

use super::machine::ArmIsa;
use super::types::{Activations, PackedType, block_bytes};
use super::wide::{wide_block_bytes, widens};
use crate::format::view;
use crate::matmul::MatmulJob;
use crate::quant::TensorType;

/// Rows of a panel of weights.
pub(super) const ROWS: usize = 8;
/// Columns of a stretch.
pub(super) const STRETCH: usize = 16;
/// Most tokens in a tile.
pub(super) const TOKENS: usize = 8;
/// Tokens arranged at a time: they fit the L2 cache along with the weights.
const TURN: usize = 64;

/// Multiplies a panel with a tile.
pub(super) type Multiply = fn(&MatmulJob<'_>, &[u8], &[u8], PanelPlace);

/// What the packing and tile loops need to know about a kernel. They are not instantiated per instruction set and
/// type, to keep the program small.
pub(super) struct Kernel {
    /// Columns of one row or token in a register.
    pub run: usize,
    /// Columns of a block.
    pub block: usize,
    /// Bytes per block for tiles of 1, 2, 4 and 8 tokens.
    pub tile_block_bytes: [usize; 4],
    /// Arranges a tile.
    pub pack_tile: fn(&MatmulJob<'_>, Tile, &mut [u8]),
    /// Multiplies a panel with a tile of 1, 2, 4 or 8 tokens.
    pub multiply: [Multiply; 4],
    /// What the last of these multiplies, if not the panel itself.
    pub wide: Option<Wide>,
}

/// How a panel is widened for tiles of 8 tokens.
#[derive(Clone, Copy)]
pub(super) struct Wide {
    /// Bytes of a block of a wide panel.
    pub block_bytes: usize,
    /// Widens a panel.
    pub widen: fn(&[u8], &mut [u8]),
}

/// Row, first token and number of tokens of a panel and a tile.
#[derive(Clone, Copy)]
pub(super) struct PanelPlace {
    pub row: usize,
    pub token: usize,
    pub tokens: usize,
}

/// Tokens of the job covered by a tile, and the tile's capacity.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    first: usize,
    count: usize,
    tokens: usize,
    /// Columns of one token in a register.
    run: usize,
}

/// The quants of one stretch as registers, one byte per quant: `[step][unit of rows][row][column]`.
fn interleave(run: usize, quant: impl Fn(usize, usize) -> u8) -> [[u8; 16]; 8] {
    let in_register = 16 / run;
    let units = ROWS / in_register;
    let mut registers = [[0; 16]; 8];
    for (r, register) in registers.iter_mut().enumerate() {
        let (step, unit) = (r / units, r % units);
        for (i, byte) in register.iter_mut().enumerate() {
            *byte = quant(unit * in_register + i / run, step * run + i % run);
        }
    }
    registers
}

/// Position of a row's column in the registers of a stretch.
pub(super) fn place(run: usize, row: usize, column: usize) -> usize {
    let in_register = 16 / run;
    let register = column / run * (ROWS / in_register) + row / in_register;
    register * 16 + row % in_register * run + column % run
}

/// A panel from its rows as stored in the file. Missing rows stay zero.
pub(super) fn pack<M: ArmIsa, T: PackedType>(source: &[u8], row_bytes: usize, panel: &mut [u8]) {
    pack_type::<T>(source, row_bytes, panel, 16 / M::ROWS);
}

#[inline(never)]
fn pack_type<T: PackedType>(source: &[u8], row_bytes: usize, panel: &mut [u8], run: usize) {
    let bytes = T::TENSOR.block_bytes();
    for (b, block) in panel.chunks_exact_mut(block_bytes::<T>()).enumerate() {
        let (head, quants) = block.split_at_mut(T::HEAD_BYTES);
        let of_row =
            |row: usize| source.get(row * row_bytes + b * bytes..).and_then(|rest| rest.get(..bytes));
        for (row, source) in (0..ROWS).filter_map(|row| Some((row, of_row(row)?))) {
            T::head(source, row, head, run);
        }
        for (stretch, out) in quants.chunks_exact_mut(T::STRETCH_BYTES).enumerate() {
            let quant =
                |row, column| of_row(row).map_or(0, |source| T::quant(source, stretch * STRETCH + column));
            T::store(&interleave(run, quant), ROWS * run / 16, out);
        }
    }
}

/// Bytes of a panel, for the recipe.
pub(super) fn panel_bytes<T: PackedType>(_ty: TensorType, cols: usize) -> usize {
    cols / T::BLOCK * block_bytes::<T>()
}

/// Entries in a per-token list.
pub(super) const fn list(tokens: usize) -> usize {
    if tokens < 4 { 4 } else { tokens }
}

/// Bytes of a part's list of [`PackedType::extra`].
pub(super) const fn extra_bytes<T: PackedType>(tokens: usize) -> usize {
    if T::LISTS { 4 * list(tokens) } else { 0 }
}

/// Bytes of a block of a tile.
pub(super) const fn tile_block_bytes<T: PackedType>(tokens: usize) -> usize {
    let minima = if T::MINIMA { STRETCH * tokens } else { 0 };
    4 * list(tokens) + T::BLOCK / T::PART * extra_bytes::<T>(tokens) + T::BLOCK * tokens + minima
}

/// Scratch memory of a product: tiles, then a wide panel.
pub(super) fn scratch_bytes<M: ArmIsa, T: PackedType>(cols: usize, tokens: usize) -> usize {
    let wide = if widens::<M, T>() && tokens > TOKENS / 2 { wide_block_bytes::<M, T>() } else { 0 };
    let tiles = tokens.min(TURN).div_ceil(TOKENS) * tile_block_bytes::<T>(TOKENS);
    cols / T::BLOCK * (tiles + wide)
}

/// One tile from prepared rows.
pub(super) fn pack_tile<T: PackedType>(job: &MatmulJob<'_>, at: Tile, tile: &mut [u8]) {
    let order = Order {
        part_columns: T::PART,
        extra_bytes: extra_bytes::<T>(at.tokens),
        block_bytes: tile_block_bytes::<T>(at.tokens),
        extra: T::extra,
    };
    pack_acts(job, at, tile, order);
}

/// The order of a tile's block.
struct Order<A> {
    part_columns: usize,
    extra_bytes: usize,
    block_bytes: usize,
    extra: fn(&A, usize) -> u32,
}

#[inline(never)]
fn pack_acts<A: Activations>(job: &MatmulJob<'_>, at: Tile, tile: &mut [u8], order: Order<A>) {
    let Tile { first, count, tokens, .. } = at;
    let (list, parts) = (4 * list(tokens), A::COLUMNS / order.part_columns);
    let part_bytes = order.extra_bytes + order.part_columns * tokens;
    tile.fill(0);
    for token in 0..count {
        let blocks = tile.chunks_exact_mut(order.block_bytes);
        for (block, acts) in blocks.zip(view::<A>(job.act(first + token))) {
            let (scales, rest) = block.split_at_mut(list);
            let (quants, minima) = rest.split_at_mut(parts * part_bytes);
            scales[4 * token..][..4].copy_from_slice(&acts.scale().to_ne_bytes());
            for (p, part) in quants.chunks_exact_mut(part_bytes).enumerate() {
                let (extras, quants) = part.split_at_mut(order.extra_bytes);
                if let Some(extra) = extras.get_mut(4 * token..4 * token + 4) {
                    extra.copy_from_slice(&(order.extra)(acts, p).to_ne_bytes());
                }
                pack_columns(
                    at,
                    token,
                    &acts.quants()[p * order.part_columns..][..order.part_columns],
                    quants,
                );
            }
            if !minima.is_empty() {
                let mut columns = [0; STRETCH];
                for p in 0..parts {
                    (columns[p], columns[STRETCH / 2 + p]) = split((order.extra)(acts, p).cast_signed());
                }
                pack_columns(at, token, &columns, minima);
            }
        }
    }
}

/// A sum of 32 quants as a multiple of 128 and what remains.
fn split(sum: i32) -> (i8, i8) {
    let rest = ((sum + 64) & 127) - 64;
    (((sum - rest) >> 7) as i8, rest as i8)
}

/// A token's columns.
fn pack_columns(at: Tile, token: usize, from: &[i8], to: &mut [u8]) {
    let places = to.chunks_exact_mut(at.run).skip(token).step_by(at.tokens);
    for (to, from) in places.zip(from.chunks_exact(at.run)) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = from.cast_unsigned();
        }
    }
}

/// Multiplies tile by tile.
#[inline(never)]
pub(super) fn run(job: &MatmulJob<'_>, scratch: &mut [u8], kernel: &Kernel) {
    let blocks = job.matrix.cols() / kernel.block;
    // With the matrix instructions a register holds two tokens.
    let least = kernel.run / 4;
    // Index of the smallest tile (a power of two) for this many tokens.
    let size = |tokens: usize| tokens.max(least).next_power_of_two().ilog2() as usize;
    let tile_bytes = |size: usize| blocks * kernel.tile_block_bytes[size];
    for first in (0..job.tokens()).step_by(TURN) {
        let count = TURN.min(job.tokens() - first);
        let tiles = || {
            (0..count).step_by(TOKENS).map(|at| {
                let tokens = TOKENS.min(count - at);
                let start = at / TOKENS * tile_bytes(3);
                (first + at, tokens, start..start + tile_bytes(size(tokens)))
            })
        };
        let (packed, rest) = scratch.split_at_mut(count.div_ceil(TOKENS) * tile_bytes(3));
        for (first, count, place) in tiles() {
            let tile = Tile { first, count, tokens: 1 << size(count), run: kernel.run };
            (kernel.pack_tile)(job, tile, &mut packed[place]);
        }
        let wide = kernel.wide.filter(|_| size(count.min(TOKENS)) == 3);
        for row in job.rows.clone().step_by(ROWS) {
            let panel = job.panel(row / ROWS);
            let widened = wide.map_or(panel, |wide| {
                let to = &mut rest[..blocks * wide.block_bytes];
                (wide.widen)(panel, to);
                to
            });
            for (token, tokens, place) in tiles() {
                let (size, at) = (size(tokens), PanelPlace { row, token, tokens });
                let panel = if size == 3 { widened } else { panel };
                kernel.multiply[size](job, panel, &packed[place], at);
            }
        }
    }
}
