//! The order in which panels and tokens are multiplied, and what is prefetched meanwhile.

use std::arch::x86_64::{_MM_HINT_NTA, _MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};

use crate::matmul::MatmulJob;
use crate::reading::{Cache, Reading};

/// Bytes of weights that stay in the L2 cache during all tokens, along with as many being prefetched.
const CHUNK_BYTES: usize = 256 << 10;
pub(super) const CACHE_LINE: usize = 64;

/// Part of a product: a panel of weights times a few tokens, and what to prefetch meanwhile.
#[derive(Clone, Copy)]
pub(super) struct ProductTile {
    pub panel: usize,
    pub first: usize,
    pub tokens: usize,
    pub ahead: Ahead,
    /// Panels read at the same time, and their distance from each other.
    pub streams: usize,
    pub apart: usize,
}

/// The cache lines to prefetch for each block of weights: how many, their distance from the block's start, and where
/// they go.
#[derive(Clone, Copy)]
pub(super) struct Ahead {
    pub distance: usize,
    pub lines: usize,
    pub into: Cache,
}

impl Ahead {
    /// The `i`th of eight shares, for the same block start.
    pub(super) fn eighth(self, i: usize) -> Self {
        let from = self.lines * i / 8;
        Self {
            distance: self.distance + from * CACHE_LINE,
            lines: self.lines * (i + 1) / 8 - from,
            into: self.into,
        }
    }

    /// Prefetches the cache lines that go with the block at `w`. Any address is allowed.
    #[inline(always)]
    pub(super) fn prefetch(self, w: *const u8) {
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
pub(super) fn each_tile(job: &MatmulJob<'_>, most: usize, run: impl Fn(&ProductTile)) {
    if job.tokens() == 1 {
        return each_panel(job, run);
    }
    let chunk = (CHUNK_BYTES / job.matrix.panel_bytes().max(1)).max(1);
    each_tile_of(job, most, chunk, |_, _| (), |part, _| run(part));
}

/// Calls `begin` with the range of panels of each chunk, and then `run` with each tile of it and its first panel. Tiles
/// are as even as possible.
pub(super) fn each_tile_of(
    job: &MatmulJob<'_>,
    most: usize,
    chunk: usize,
    begin: impl Fn(usize, usize),
    run: impl Fn(&ProductTile, usize),
) {
    let (group, end) = (job.matrix.group(), job.rows.end.div_ceil(job.matrix.group()));
    let tiles = job.tokens().div_ceil(most);
    let block_lines = block_lines(job);
    let lines = block_lines.div_ceil((tiles - 1).max(1));
    for start in (job.rows.start / group..end).step_by(chunk) {
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
    let group = job.matrix.group();
    let (start, end) = (job.rows.start / group, job.rows.end.div_ceil(group));
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
    let blocks = job.matrix.cols() / job.matrix.ty().block();
    (job.matrix.panel_bytes() / blocks.max(1)).div_ceil(CACHE_LINE)
}

fn ahead_of(reading: Reading, block_lines: usize) -> Ahead {
    let lines = if reading.distance == 0 { 0 } else { block_lines };
    Ahead { distance: reading.distance, lines, into: reading.into }
}
