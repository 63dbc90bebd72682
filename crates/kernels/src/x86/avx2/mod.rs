//! AVX2, on the same panels as AVX-512: 32 rows are four vectors of 8.
//!
//! `vpmaddubsw` multiplies unsigned by signed bytes and adds adjacent products in 16 bits, with saturation:
//! nibbles leave room for all 32 elements of a block, six bits for 8 elements, full bytes for two.

mod k;
mod prepare;
mod small;

use std::arch::x86_64::*;

use super::panel;
use super::tiles::{ProductTile, each_tile};
use crate::matmul::MatmulJob;
use crate::quant::TensorType;
use crate::reading::{Cache, Reading};
use crate::recipe::{Recipe, no_scratch};

pub(super) use prepare::prepare_row;

/// Most tokens in a tile.
const TILE: usize = 4;
/// Ways to read weights; 16 registers are too few for two streams.
const READINGS: &[Reading] = &[
    Reading { streams: 1, distance: 4096, into: Cache::L1 },
    Reading { streams: 1, distance: 2048, into: Cache::L1 },
    Reading { streams: 1, distance: 8192, into: Cache::L1 },
    Reading { streams: 1, distance: 16384, into: Cache::L2 },
    Reading { streams: 1, distance: 6144, into: Cache::Once },
    Reading::PLAIN,
];
/// Vectors of rows in a panel.
const VECTORS: usize = panel::ROWS / 8;

/// Float sums of a tile, in the L1 cache: 16 registers are too few for them.
type FloatSums<const T: usize> = [[__m256; VECTORS]; T];

recipes! { tile of 8, bytes packed by panel::pack_q8_0_signed, q6_K with no_scratch, run_q6k }

fn run_q6k(job: &MatmulJob<'_>, _: &mut [u8]) {
    run(job, k::tile_of::<{ k::Q6K }>);
}

/// # Safety
/// 32 aligned bytes must be readable.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load(from: *const u8) -> __m256i {
    // SAFETY: guaranteed by the caller.
    unsafe { _mm256_load_si256(from.cast()) }
}

/// Eight f16 values as floats.
///
/// # Safety
/// 16 aligned bytes must be readable.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn load_halves(from: *const u8) -> __m256 {
    // SAFETY: guaranteed by the caller.
    _mm256_cvtph_ps(unsafe { _mm_load_si128(from.cast()) })
}

/// Four bytes, broadcast to each lane.
///
/// # Safety
/// Four bytes must be readable.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn four(from: *const i8) -> __m256i {
    // SAFETY: guaranteed by the caller.
    _mm256_set1_epi32(unsafe { from.cast::<i32>().read_unaligned() })
}

/// Low or high nibbles.
#[inline]
#[target_feature(enable = "avx2")]
fn nibbles(both: __m256i, high: bool) -> __m256i {
    let of = if high { _mm256_srli_epi16::<4>(both) } else { both };
    _mm256_and_si256(of, _mm256_set1_epi8(15))
}

/// Writes the results of a panel, for as many rows as the job has.
#[inline]
#[target_feature(enable = "avx2")]
fn store<const T: usize>(job: &MatmulJob<'_>, part: &ProductTile, sums: &FloatSums<T>) {
    let row = part.panel * panel::ROWS;
    let rows = (job.rows.end - row).min(panel::ROWS);
    for (t, sums) in sums.iter().enumerate() {
        // SAFETY: eight floats each, in order; only as many are written as the job has rows.
        unsafe {
            let from = sums.as_ptr().cast::<f32>();
            job.out(part.first + t, row).copy_from_nonoverlapping(from, rows);
        }
    }
}
