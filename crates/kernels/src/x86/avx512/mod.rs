//! AVX-512 with VNNI. Panels of 32 rows, see [`super::panel`].

mod k;
mod prepare;
mod small;
mod unpacked;

use std::arch::x86_64::*;

pub(super) use super::panel;
use super::tiles::{ProductTile, each_tile};
use crate::matmul::MatmulJob;
use crate::quant::TensorType;
use crate::reading::{Cache, Reading};
use crate::recipe::{Recipe, no_scratch};

pub(super) use prepare::prepare_row;

/// Most tokens in a tile: what fits 32 registers.
const TILE: usize = 6;
/// Ways to read weights: which is fastest depends on the memory, the caches and the hardware prefetcher.
const READINGS: &[Reading] = &[
    Reading { streams: 1, distance: 4096, into: Cache::L1 },
    Reading { streams: 1, distance: 2048, into: Cache::L1 },
    Reading { streams: 1, distance: 6144, into: Cache::L1 },
    Reading { streams: 1, distance: 8192, into: Cache::L1 },
    Reading { streams: 1, distance: 16384, into: Cache::L2 },
    Reading { streams: 1, distance: 8192, into: Cache::L2 },
    Reading { streams: 2, distance: 16384, into: Cache::L2 },
    Reading { streams: 1, distance: 6144, into: Cache::Once },
    Reading { streams: 2, distance: 4096, into: Cache::L1 },
    Reading::PLAIN,
];

recipes! {
    tile of panel::ROWS, q6_K with unpacked::scratch_bytes, run_q6k
}

fn run_q6k(job: &MatmulJob<'_>, scratch: &mut [u8]) {
    // SAFETY: a recipe of this instruction set is used only if the processor has it.
    if !unsafe { unpacked::run(job, scratch) } {
        run(job, k::tile_of::<{ k::Q6K }>);
    }
}

/// # Safety
/// 64 aligned bytes must be readable.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load(from: *const u8) -> __m512i {
    // SAFETY: guaranteed by the caller.
    unsafe { _mm512_load_si512(from.cast()) }
}

/// 32 f16 values as floats.
///
/// # Safety
/// 64 aligned bytes must be readable.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load_halves(from: *const u8) -> [__m512; 2] {
    // SAFETY: guaranteed by the caller.
    unsafe {
        [
            _mm512_cvtph_ps(_mm256_load_si256(from.cast())),
            _mm512_cvtph_ps(_mm256_load_si256(from.add(32).cast())),
        ]
    }
}

/// Low and high nibbles.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn low_high(both: [__m512i; 2]) -> ([__m512i; 2], [__m512i; 2]) {
    let mask = _mm512_set1_epi8(15);
    let low = [_mm512_and_si512(both[0], mask), _mm512_and_si512(both[1], mask)];
    let high = [_mm512_srli_epi16::<4>(both[0]), _mm512_srli_epi16::<4>(both[1])];
    (low, [_mm512_and_si512(high[0], mask), _mm512_and_si512(high[1], mask)])
}

/// Writes the results of a panel, for as many rows as the job has.
#[inline]
#[target_feature(enable = "avx512f")]
fn store<const T: usize>(job: &MatmulJob<'_>, tile: &ProductTile, sums: &[[__m512; 2]; T]) {
    let row = tile.panel * panel::ROWS;
    let rows = (job.rows.end - row).min(panel::ROWS);
    let mask = if rows == panel::ROWS { u32::MAX } else { (1 << rows) - 1 };
    for (t, sums) in sums.iter().enumerate() {
        let to = job.out(tile.first + t, row);
        // SAFETY: the mask covers only the job's own rows.
        unsafe {
            _mm512_mask_storeu_ps(to, mask as u16, sums[0]);
            _mm512_mask_storeu_ps(to.wrapping_add(16), (mask >> 16) as u16, sums[1]);
        }
    }
}
