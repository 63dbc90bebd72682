//! AVX2: panels of 8 rows, see [`panel`]. A tile is one of them times a few tokens, or several times one token: then
//! each is read as a stream of its own, and they share what is loaded of the activations.
//!
//! `vpmaddubsw` multiplies unsigned by signed bytes and adds adjacent products in 16 bits, with saturation:
//! nibbles leave room for all 32 elements of a block, six bits for 8 elements, full bytes for two.

#![allow(clippy::needless_range_loop, reason = "loops over tokens and panels index several arrays alike")]

mod k;
pub(super) mod panel;
mod prepare;
mod small;

use std::arch::x86_64::*;
use std::ops::Range;
use std::sync::atomic::{Ordering, compiler_fence};

use super::tiles::{CACHE_LINE, ProductTile, each_tile};
use crate::matmul::MatmulJob;
use crate::quant::TensorType;
use crate::reading::{Cache, Reading};
use crate::recipe::{Recipe, no_scratch};

pub(super) use prepare::prepare_row;

/// Most tokens in a tile.
const TILE: usize = 4;
/// Ways to read weights: which is fastest depends on the memory, the caches and the hardware prefetcher.
const READINGS: &[Reading] = &[
    Reading { streams: 2, distance: 2048, into: Cache::L1 },
    Reading { streams: 2, distance: 1024, into: Cache::L1 },
    Reading { streams: 4, distance: 512, into: Cache::L1 },
    Reading { streams: 4, distance: 1024, into: Cache::L1 },
    Reading { streams: 4, distance: 2048, into: Cache::L1 },
    Reading { streams: 4, distance: 0, into: Cache::L1 },
    Reading { streams: 1, distance: 2048, into: Cache::L1 },
    Reading { streams: 1, distance: 4096, into: Cache::L1 },
    Reading { streams: 1, distance: 8192, into: Cache::L1 },
    Reading::PLAIN,
];

/// Sums of a tile, by panel and token.
type FloatSums<const S: usize, const T: usize> = [[__m256; T]; S];
type Integers<const S: usize, const T: usize> = [[__m256i; T]; S];

recipes! { tile of panel::ROWS, q6_K with no_scratch, run_q6k }

static Q5K: Recipe = Recipe {
    ty: TensorType::Q5K,
    pack: Some(panel::pack_q5k),
    run: |job, _| run(job, k::tile_of::<{ k::Q5K }>),
    ..Q4_0
};
static IQ4_NL: Recipe =
    Recipe { ty: TensorType::Iq4Nl, run: |job, _| run(job, small::tile_of::<{ small::IQ4_NL }>), ..Q4_0 };
static IQ4_XS: Recipe = Recipe {
    ty: TensorType::Iq4Xs,
    pack: Some(panel::pack_iq4_xs),
    run: |job, _| run(job, k::tile_of::<{ k::IQ4_XS }>),
    ..Q4_0
};
static MXFP4: Recipe = Recipe {
    ty: TensorType::Mxfp4,
    pack: Some(panel::pack_mxfp4),
    run: |job, _| run(job, small::tile_of::<{ small::MXFP4 }>),
    ..Q4_0
};

/// The recipe of a type, if there is one.
pub(super) fn recipe(ty: TensorType) -> Option<&'static Recipe> {
    match ty {
        TensorType::Q5K => Some(&Q5K),
        TensorType::Iq4Nl => Some(&IQ4_NL),
        TensorType::Iq4Xs => Some(&IQ4_XS),
        TensorType::Mxfp4 => Some(&MXFP4),
        _ => common(ty),
    }
}

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

/// Products of nibbles from vectors `of` of their bytes, in 16 bits. `value` gets the panel, the number of the vector of
/// nibbles (low ones are even) and the nibbles, and returns unsigned bytes. At most 32767 must come together in a word.
///
/// # Safety
/// There must be the nibbles of each panel and as many activations of each token.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn half_bytes<const S: usize, const T: usize>(
    w: &[*const u8; S],
    act: &[*const i8; T],
    of: Range<usize>,
    value: impl Fn(usize, usize, __m256i) -> __m256i,
) -> Integers<S, T> {
    let mut words = [[_mm256_setzero_si256(); T]; S];
    for j in of {
        in_order::<T>();
        for s in 0..S {
            // SAFETY: guaranteed by the caller.
            let both = nibbles(unsafe { load(w[s].add(32 * j)) });
            let values = [value(s, 2 * j, both[0]), value(s, 2 * j + 1, both[1])];
            for t in 0..T {
                for high in 0..2 {
                    // SAFETY: as above.
                    let a = unsafe { four(act[t].add(16 * high + 4 * j)) };
                    words[s][t] = _mm256_add_epi16(words[s][t], _mm256_maddubs_epi16(values[high], a));
                }
            }
        }
    }
    words
}

/// Products of values in a table, whose indices are nibbles, times a scale for each panel (two equal words).
///
/// # Safety
/// As of [`half_bytes`].
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn indexed<const S: usize, const T: usize>(
    w: &[*const u8; S],
    act: &[*const i8; T],
    table: &[i8; 16],
    scale: &[__m256i; S],
) -> Integers<S, T> {
    let mut dots = [[_mm256_setzero_si256(); T]; S];
    let table = both_halves(table);
    for j in 0..4 {
        in_order::<T>();
        for s in 0..S {
            // SAFETY: guaranteed by the caller.
            let both = nibbles(unsafe { load(w[s].add(32 * j)) });
            for high in 0..2 {
                let values = _mm256_shuffle_epi8(table, both[high]);
                for t in 0..T {
                    // SAFETY: as above.
                    let words = signed(values, unsafe { four(act[t].add(16 * high + 4 * j)) });
                    dots[s][t] = _mm256_add_epi32(dots[s][t], _mm256_madd_epi16(words, scale[s]));
                }
            }
        }
    }
    dots
}

/// A compiler barrier for tiles of several tokens: without it the compiler loads all activations first and spills them to
/// the stack.
#[inline(always)]
fn in_order<const T: usize>() {
    if T > 1 {
        compiler_fence(Ordering::SeqCst);
    }
}

/// Prefetches a block of each panel read at the same time. Without branches: the compiler would move loads
/// before them and spill the values.
#[inline(always)]
fn prefetch<const S: usize>(w: &[*const u8; S], distance: usize, bytes: usize) {
    for w in w {
        for line in 0..bytes.div_ceil(CACHE_LINE) {
            // SAFETY: a hint; SSE is part of x86-64.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(w.wrapping_add(distance + CACHE_LINE * line).cast()) };
        }
    }
}

/// Products of signed bytes in 16 bits: magnitudes of the weights, with their signs moved to the activations.
#[inline]
#[target_feature(enable = "avx2")]
fn signed(weights: __m256i, a: __m256i) -> __m256i {
    _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(a, weights))
}

/// A table for `vpshufb`, which looks up in each half of a vector.
#[inline]
#[target_feature(enable = "avx2")]
fn both_halves(table: &[i8; 16]) -> __m256i {
    // SAFETY: 16 bytes.
    _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(table.as_ptr().cast()) })
}

/// Low and high nibbles.
#[inline]
#[target_feature(enable = "avx2")]
fn nibbles(both: __m256i) -> [__m256i; 2] {
    let mask = _mm256_set1_epi8(15);
    [_mm256_and_si256(both, mask), _mm256_and_si256(_mm256_srli_epi16::<4>(both), mask)]
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
