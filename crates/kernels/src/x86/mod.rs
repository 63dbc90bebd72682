//! Kernels for x86-64. Both instruction sets use the weight panels of [`panel`].

/// The recipes of an instruction set, from its modules `small` and `k`, for tiles of `TILE` tokens and `$rows`
/// rows.
macro_rules! recipes {
    (tile of $rows:expr, bytes packed by $pack_q8_0:path, q6_K with $q6k_scratch:path, $q6k_run:path) => {
        static Q4_0: Recipe = Recipe {
            ty: TensorType::Q4_0,
            group: panel::ROWS,
            tile: Some((TILE, $rows)),
            panel_bytes: panel::bytes,
            pack: Some(panel::pack_q4_0),
            scratch_bytes: no_scratch,
            readings: READINGS,
            run: |job, _| run(job, small::tile_of::<{ small::Q4_0 }>),
        };
        static Q4_1: Recipe = Recipe {
            ty: TensorType::Q4_1,
            pack: Some(panel::pack_q4_1),
            run: |job, _| run(job, small::tile_of::<{ small::Q4_1 }>),
            ..Q4_0
        };
        static Q8_0: Recipe = Recipe {
            ty: TensorType::Q8_0,
            pack: Some($pack_q8_0),
            run: |job, _| run(job, small::tile_of::<{ small::Q8_0 }>),
            ..Q4_0
        };
        static Q4K: Recipe = Recipe {
            ty: TensorType::Q4K,
            pack: Some(panel::pack_q4k),
            run: |job, _| run(job, k::tile_of::<{ k::Q4K }>),
            ..Q4_0
        };
        static Q6K: Recipe = Recipe {
            ty: TensorType::Q6K,
            pack: Some(panel::pack_q6k),
            scratch_bytes: $q6k_scratch,
            run: $q6k_run,
            ..Q4_0
        };

        /// The recipe of a type, if there is one.
        pub(super) fn recipe(ty: TensorType) -> Option<&'static Recipe> {
            match ty {
                TensorType::Q4_0 => Some(&Q4_0),
                TensorType::Q4_1 => Some(&Q4_1),
                TensorType::Q8_0 => Some(&Q8_0),
                TensorType::Q4K => Some(&Q4K),
                TensorType::Q6K => Some(&Q6K),
                _ => None,
            }
        }

        fn run(job: &MatmulJob<'_>, tile: unsafe fn(&MatmulJob<'_>, &ProductTile)) {
            // SAFETY: a recipe of this instruction set is used only if the processor has it.
            each_tile(job, TILE, |part| unsafe { tile(job, part) });
        }
    };
}

mod avx2;
mod avx512;
mod panel;

use std::arch::x86_64::{_MM_HINT_NTA, _MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};

use super::format::ActivationFormat;
use super::isa::Isa;
use super::matmul::MatmulJob;
use super::reading::{Cache, Reading};
use super::recipe::Recipe;
use crate::quant::TensorType;

/// The recipe for repacked weights, if there is one.
pub(super) fn recipe(isa: Isa, ty: TensorType) -> Option<&'static Recipe> {
    match isa {
        Isa::Avx512Vnni => avx512::recipe(ty),
        Isa::Avx2 => avx2::recipe(ty),
        _ => None,
    }
}

/// The recipe for weights in GGUF's order, if there is one: panels are packed when they are needed.
pub(super) fn mapped(isa: Isa, ty: TensorType) -> Option<&'static Recipe> {
    macro_rules! mapped {
        ($isa:ident: $($ty:ident)*) => {
            match ty {
                $(TensorType::$ty => {
                    static MAPPED: Recipe = Recipe {
                        ty: TensorType::$ty,
                        group: panel::ROWS,
                        tile: None,
                        panel_bytes: panel::bytes,
                        pack: None,
                        scratch_bytes: |cols, _| panel::bytes(TensorType::$ty, cols) + CACHE_LINE,
                        readings: &[],
                        run: |job, scratch| run_mapped(job, scratch, $isa::recipe(TensorType::$ty)),
                    };
                    Some(&MAPPED)
                })*
                _ => None,
            }
        };
    }
    match isa {
        Isa::Avx512Vnni => mapped!(avx512: Q4_0 Q4_1 Q8_0 Q4K Q6K),
        Isa::Avx2 => mapped!(avx2: Q4_0 Q4_1 Q8_0 Q4K Q6K),
        _ => None,
    }
}

/// Packs one panel after the other into the scratch memory and multiplies it there.
fn run_mapped(job: &MatmulJob<'_>, scratch: &mut [u8], packed: Option<&'static Recipe>) {
    let Some((packed, pack)) = packed.and_then(|p| Some((p, p.pack?))) else { return };
    let (matrix, ty) = (job.matrix, job.matrix.ty());
    let row_bytes = matrix.cols() / ty.block() * ty.block_bytes();
    // The kernels read whole cache lines.
    let skip = scratch.as_ptr().align_offset(CACHE_LINE);
    let panel = &mut scratch[skip..][..panel::bytes(ty, matrix.cols())];
    for start in job.rows.clone().step_by(panel::ROWS) {
        let rows = start..(start + panel::ROWS).min(matrix.rows());
        if rows.len() < panel::ROWS {
            panel.fill(0);
        }
        if row_bytes > 0 {
            pack(&matrix.data()[rows.start * row_bytes..rows.end * row_bytes], row_bytes, panel);
        }
        (packed.run)(&job.with_panel(rows.start..rows.end.min(job.rows.end), panel), &mut []);
    }
}

/// Prepares all complete blocks, if this format is supported; see [`super::prepare_row`].
pub(super) fn prepare_row(isa: Isa, format: ActivationFormat, src: &[f32], dst: &mut [u8]) -> bool {
    match isa {
        Isa::Avx512Vnni => avx512::prepare_row(format, src, dst),
        Isa::Avx2 => avx2::prepare_row(format, src, dst),
        _ => false,
    }
}

/// Bytes of weights that stay in the L2 cache during all tokens, along with as many being prefetched.
const CHUNK_BYTES: usize = 256 << 10;
const CACHE_LINE: usize = 64;

/// Part of a product: a panel of weights times a few tokens, and what to prefetch meanwhile.
#[derive(Clone, Copy)]
struct ProductTile {
    panel: usize,
    first: usize,
    tokens: usize,
    ahead: Ahead,
    /// Panels read at the same time, and their distance from each other.
    streams: usize,
    apart: usize,
}

/// The cache lines to prefetch for each block of weights: how many, their distance from the block's start, and where
/// they go.
#[derive(Clone, Copy)]
struct Ahead {
    distance: usize,
    lines: usize,
    into: Cache,
}

impl Ahead {
    /// The `i`th of eight shares, for the same block start.
    fn eighth(self, i: usize) -> Self {
        let from = self.lines * i / 8;
        Self {
            distance: self.distance + from * CACHE_LINE,
            lines: self.lines * (i + 1) / 8 - from,
            into: self.into,
        }
    }

    /// Prefetches the cache lines that go with the block at `w`. Any address is allowed.
    #[inline(always)]
    fn prefetch(self, w: *const u8) {
        match self.into {
            Cache::L1 => self.prefetch_with::<_MM_HINT_T0>(w),
            Cache::L2 => self.prefetch_with::<_MM_HINT_T1>(w),
            Cache::Once => self.prefetch_with::<_MM_HINT_NTA>(w),
        }
    }

    #[inline(always)]
    fn prefetch_with<const HINT: i32>(self, w: *const u8) {
        for line in 0..self.lines {
            // SAFETY: a hint; SSE is part of x86-64.
            unsafe { _mm_prefetch::<HINT>(w.wrapping_add(self.distance + CACHE_LINE * line).cast()) };
        }
    }
}

/// Calls `run` with each tile: panels in chunks that stay in the L2 cache, and within them tokens in tiles that
/// stay in the L1 cache.
fn each_tile(job: &MatmulJob<'_>, most: usize, run: impl Fn(&ProductTile)) {
    if job.tokens() == 1 {
        return each_panel(job, run);
    }
    let chunk = (CHUNK_BYTES / job.matrix.panel_bytes().max(1)).max(1);
    each_tile_of(job, most, chunk, |_, _| (), |part, _| run(part));
}

/// Calls `begin` with the range of panels of each chunk, and then `run` with each tile of it and its first panel. Tiles
/// are as even as possible.
fn each_tile_of(
    job: &MatmulJob<'_>,
    most: usize,
    chunk: usize,
    begin: impl Fn(usize, usize),
    run: impl Fn(&ProductTile, usize),
) {
    let end = job.rows.end.div_ceil(panel::ROWS);
    let tiles = job.tokens().div_ceil(most);
    let block_lines = block_lines(job);
    let lines = block_lines.div_ceil((tiles - 1).max(1));
    for start in (job.rows.start / panel::ROWS..end).step_by(chunk) {
        let last = end.min(start + chunk);
        begin(start, last);
        for t in 0..tiles {
            let first = job.tokens() * t / tiles;
            let tokens = job.tokens() * (t + 1) / tiles - first;
            // The first tile may be the first to read the chunk; each of the others prefetches its share of the
            // next chunk.
            let ahead = match t.checked_sub(1) {
                None => ahead_of(job.matrix.reading(), block_lines),
                Some(t) => Ahead {
                    distance: chunk * job.matrix.panel_bytes() + t * lines * CACHE_LINE,
                    lines: lines.min(block_lines.saturating_sub(t * lines)),
                    into: Cache::L1,
                },
            };
            for panel in start..last {
                run(&ProductTile { panel, first, tokens, ahead, streams: 1, apart: 0 }, start);
            }
        }
    }
}

/// The same for one token, which reads all weights once: as the matrix's [`Reading`] says.
fn each_panel(job: &MatmulJob<'_>, run: impl Fn(&ProductTile)) {
    let reading = job.matrix.reading();
    let ahead = ahead_of(reading, block_lines(job));
    let (start, end) = (job.rows.start / panel::ROWS, job.rows.end.div_ceil(panel::ROWS));
    let apart = (end - start) / reading.streams.max(1);
    let together = ProductTile { panel: 0, first: 0, tokens: 1, ahead, streams: reading.streams, apart };
    for panel in start..start + apart {
        run(&ProductTile { panel, ..together });
    }
    for panel in start + apart * reading.streams..end {
        run(&ProductTile { panel, streams: 1, ..together });
    }
}

/// Cache lines of a block of a panel.
fn block_lines(job: &MatmulJob<'_>) -> usize {
    panel::block_bytes(job.matrix.ty()).div_ceil(CACHE_LINE)
}

fn ahead_of(reading: Reading, block_lines: usize) -> Ahead {
    let lines = if reading.distance == 0 { 0 } else { block_lines };
    Ahead { distance: reading.distance, lines, into: reading.into }
}
