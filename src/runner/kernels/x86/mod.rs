//! Kernels for x86-64. Weights of both instruction sets lie in the panels of [`panel`].

mod avx2;
mod avx512;
mod panel;

use super::matmul::Job;
use super::recipe::Recipe;
use super::{Format, Isa};
use crate::ggml::quant::TensorType;

/// The recipe for repacked weights, if there is one.
pub(super) fn recipe(isa: Isa, ty: TensorType) -> Option<&'static Recipe> {
    match isa {
        Isa::Avx512Vnni => avx512::recipe(ty),
        Isa::Avx2 => avx2::recipe(ty),
        _ => None,
    }
}

/// Prepares as many whole blocks as there are, if there is a way for this format; see [`super::prepare_row`].
pub(super) fn prepare_row(isa: Isa, format: Format, src: &[f32], dst: &mut [u8]) -> bool {
    match isa {
        Isa::Avx512Vnni => avx512::prepare_row(format, src, dst),
        Isa::Avx2 => avx2::prepare_row(format, src, dst),
        _ => false,
    }
}

/// Weights that stay in the second-level cache while all tokens pass by, beside as many that are on their way there.
const CHUNK_BYTES: usize = 256 << 10;
/// Bytes ahead of the weights in use that are asked for where they are used once: what memory delivers in 100 ns.
const DISTANCE: usize = 4096;
const CACHE_LINE: usize = 64;

/// Part of a product: a panel of weights times a few tokens, and what to fetch meanwhile.
#[derive(Clone, Copy)]
struct Tile {
    panel: usize,
    first: usize,
    tokens: usize,
    ahead: Ahead,
}

/// For each block of weights, the cache lines to ask for: so many, from so far behind the block's start.
#[derive(Clone, Copy)]
struct Ahead {
    distance: usize,
    lines: usize,
}

impl Ahead {
    /// The `i`th of eight shares, behind the same start.
    fn eighth(self, i: usize) -> Self {
        let from = self.lines * i / 8;
        Self { distance: self.distance + from * CACHE_LINE, lines: self.lines * (i + 1) / 8 - from }
    }
}

/// Calls `run` with each tile: panels in chunks that stay in the second-level cache, within them tokens in tiles that
/// stay in the first-level cache. Tiles are as even as can be.
fn each_tile(job: &Job<'_>, most: usize, run: impl Fn(&Tile)) {
    let end = job.rows.end.div_ceil(panel::ROWS);
    let panel_bytes = job.matrix.panel_bytes();
    let chunk = (CHUNK_BYTES / panel_bytes.max(1)).max(1);
    let tiles = job.tokens().div_ceil(most);
    let block_lines = panel::block_bytes(job.matrix.ty()).div_ceil(CACHE_LINE);
    let lines = block_lines.div_ceil((tiles - 1).max(1));
    for start in (job.rows.start / panel::ROWS..end).step_by(chunk) {
        for t in 0..tiles {
            let first = job.tokens() * t / tiles;
            let tokens = job.tokens() * (t + 1) / tiles - first;
            // The first tile may be the first to read the chunk; the others fetch the next one, each its lines of it.
            let ahead = match t.checked_sub(1) {
                None => Ahead { distance: DISTANCE, lines: block_lines },
                Some(t) => Ahead {
                    distance: chunk * panel_bytes + t * lines * CACHE_LINE,
                    lines: lines.min(block_lines.saturating_sub(t * lines)),
                },
            };
            for panel in start..end.min(start + chunk) {
                run(&Tile { panel, first, tokens, ahead });
            }
        }
    }
}
