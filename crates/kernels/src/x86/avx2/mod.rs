//! AVX2: panels of 8 rows, see [`panel`]. A tile is one of them times a few tokens, or several times one token: then
//! each is read as a stream of its own, and they share what is loaded of the activations.
//!
//! `vpmaddubsw` multiplies unsigned by signed bytes and adds adjacent products in 16 bits, with saturation:
//! nibbles leave room for all 32 elements of a block, six bits for 8 elements, full bytes for two.

mod k;
pub(super) mod panel;
mod prepare;
mod small;

use std::arch::x86_64::*;

use super::tiles::{ProductTile, each_tile};
use crate::matmul::MatmulJob;
use crate::quant::TensorType;
use crate::reading::{Cache, Reading};
use crate::recipe::{Recipe, no_scratch};

pub(super) use prepare::prepare_row;

/// Most tokens in a tile.
const TILE: usize = 4;
/// Ways to read weights: which is fastest depends on the memory, the caches and the hardware prefetcher.
const READINGS: &[Reading] = &[
    Reading { streams: 4, distance: 1024, into: Cache::L1 },
    Reading { streams: 4, distance: 512, into: Cache::L1 },
    Reading { streams: 4, distance: 2048, into: Cache::L1 },
    Reading { streams: 4, distance: 4096, into: Cache::L1 },
    Reading { streams: 4, distance: 1024, into: Cache::Once },
    Reading { streams: 4, distance: 0, into: Cache::L1 },
    Reading { streams: 2, distance: 2048, into: Cache::L1 },
    Reading { streams: 1, distance: 4096, into: Cache::L1 },
    Reading { streams: 1, distance: 16384, into: Cache::L2 },
    Reading::PLAIN,
];

/// Sums of a tile, by panel and token.
type FloatSums<const S: usize, const T: usize> = [[__m256; T]; S];
type Integers<const S: usize, const T: usize> = [[__m256i; T]; S];

recipes! { tile of panel::ROWS, q6_K with no_scratch, run_q6k }

fn run_q6k(job: &MatmulJob<'_>, _: &mut [u8]) {
    run(job, k::tile_of::<{ k::Q6K }>);
}

/// # Safety
/// 32 bytes must be readable.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load(from: *const u8) -> __m256i {
    // SAFETY: guaranteed by the caller.
    unsafe { _mm256_loadu_si256(from.cast()) }
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

/// Products of 32 nibbles, in 16 bits: at most 32 · 15 · 127 / 2.
///
/// # Safety
/// There must be the nibbles of each panel and as many activations of each token.
#[inline]
#[target_feature(enable = "avx2")]
#[allow(clippy::needless_range_loop, reason = "loops over tokens and panels index several arrays alike")]
unsafe fn half_bytes<const S: usize, const T: usize>(
    w: &[*const u8; S],
    act: &[*const i8; T],
) -> Integers<S, T> {
    let mask = _mm256_set1_epi8(15);
    let mut words = [[_mm256_setzero_si256(); T]; S];
    for j in 0..4 {
        for s in 0..S {
            // SAFETY: guaranteed by the caller.
            let both = unsafe { load(w[s].add(32 * j)) };
            let values = [_mm256_and_si256(both, mask), _mm256_and_si256(_mm256_srli_epi16::<4>(both), mask)];
            for t in 0..T {
                for (high, values) in values.into_iter().enumerate() {
                    // SAFETY: as above.
                    let a = unsafe { four(act[t].add(16 * high + 4 * j)) };
                    words[s][t] = _mm256_add_epi16(words[s][t], _mm256_maddubs_epi16(values, a));
                }
            }
        }
    }
    words
}

/// Writes the results of each panel, for as many rows as the job has.
#[inline]
#[target_feature(enable = "avx2")]
fn store<const S: usize, const T: usize>(job: &MatmulJob<'_>, part: &ProductTile, sums: &FloatSums<S, T>) {
    for (s, sums) in sums.iter().enumerate() {
        let row = (part.panel + s * part.apart) * panel::ROWS;
        let rows = (job.rows.end - row).min(panel::ROWS);
        for (t, sum) in sums.iter().enumerate() {
            // SAFETY: eight floats; only as many are written as the job has rows.
            unsafe {
                job.out(part.first + t, row).copy_from_nonoverlapping((&raw const *sum).cast(), rows);
            }
        }
    }
}
