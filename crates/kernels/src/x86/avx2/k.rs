//! Types with blocks of 256: Q4_K and Q6_K. The scales of parts are integers, and so are the sums over a block.

#![allow(clippy::needless_range_loop, reason = "loops over tokens and vectors index several arrays alike")]

use std::arch::x86_64::*;

use super::super::panel::{self, Q4K_BLOCK, Q6K_BLOCK};
use super::super::tiles::ProductTile;
use super::{FloatSums, TILE, VECTORS, four, load, load_halves, nibbles, store};
use crate::format::Q8KBlock;
use crate::matmul::MatmulJob;

pub(super) const Q4K: u8 = 0;
pub(super) const Q6K: u8 = 1;

/// A panel times at most four tokens.
///
/// # Safety
/// The processor must have the instructions.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn tile_of<const KIND: u8>(job: &MatmulJob<'_>, part: &ProductTile) {
    match part.tokens {
        1 => tile::<KIND, 1>(job, part),
        2 => tile::<KIND, 2>(job, part),
        3 => {
            tile::<KIND, 2>(job, &ProductTile { tokens: 2, ..*part });
            tile::<KIND, 1>(job, &ProductTile { tokens: 1, first: part.first + 2, ..*part });
        }
        _ => tile::<KIND, TILE>(job, part),
    }
}

#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c")]
fn tile<const KIND: u8, const T: usize>(job: &MatmulJob<'_>, part: &ProductTile) {
    let mut w = job.panel(part.panel).as_ptr();
    let mut act = [std::ptr::null::<Q8KBlock>(); T];
    for t in 0..T {
        act[t] = job.act(part.first + t).as_ptr().cast();
    }
    let mut sums: FloatSums<T> = [[_mm256_setzero_ps(); VECTORS]; T];
    for _ in 0..job.matrix.cols() / 256 {
        // SAFETY: the panel and each prepared row have this many blocks.
        unsafe {
            part.ahead.prefetch(w);
            for v in 0..VECTORS {
                if KIND == Q4K {
                    q4k_vector(w, v, &act, &mut sums);
                } else {
                    q6k_vector(w, v, &act, &mut sums);
                }
            }
            w = w.add(if KIND == Q4K { Q4K_BLOCK } else { Q6K_BLOCK });
            for t in 0..T {
                act[t] = act[t].add(1);
            }
        }
    }
    store(job, part, &sums);
}

/// Eight rows of a Q4_K block.
///
/// # Safety
/// There must be a block of the panel and of each prepared row.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn q4k_vector<const T: usize>(
    w: *const u8,
    v: usize,
    act: &[*const Q8KBlock; T],
    sums: &mut FloatSums<T>,
) {
    let zero = _mm256_setzero_si256();
    let (mut products, mut minima) = ([zero; T], [zero; T]);
    // SAFETY: guaranteed by the caller; offsets as `panel` lays them out.
    unsafe {
        for part in 0..8 {
            let from = w.add(part * 512 + v / 2 * 256 + 32 * (v % 2));
            let mut words = [zero; T];
            for j in 0..4 {
                let both = load(from.add(64 * j));
                for high in [false, true] {
                    let values = nibbles(both, high);
                    for t in 0..T {
                        let a = four(act[t].cast::<i8>().add(32 * part + 16 * usize::from(high) + 4 * j));
                        words[t] = _mm256_add_epi16(words[t], _mm256_maddubs_epi16(values, a));
                    }
                }
            }
            let scale = twice(w.add(panel::Q4K_SCALES + 32 * part + 8 * v));
            let minimum = twice(w.add(panel::Q4K_MINIMA + 32 * part + 8 * v));
            for t in 0..T {
                products[t] = _mm256_add_epi32(products[t], _mm256_madd_epi16(words[t], scale));
                let pair = pair_of_sums(act[t], part);
                minima[t] = _mm256_add_epi32(minima[t], _mm256_madd_epi16(minimum, pair));
            }
        }
        let d = load_halves(w.add(panel::Q4K_HALVES + 16 * v));
        let min = load_halves(w.add(panel::Q4K_HALVES + 64 + 16 * v));
        for t in 0..T {
            let product = _mm256_mul_ps(_mm256_cvtepi32_ps(products[t]), d);
            let minimum = _mm256_mul_ps(_mm256_cvtepi32_ps(minima[t]), min);
            let scale = _mm256_set1_ps((*act[t]).d);
            sums[t][v] = _mm256_fmadd_ps(_mm256_sub_ps(product, minimum), scale, sums[t][v]);
        }
    }
}

/// Eight rows of a Q6_K block.
///
/// # Safety
/// There must be a block of the panel and of each prepared row.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn q6k_vector<const T: usize>(
    w: *const u8,
    v: usize,
    act: &[*const Q8KBlock; T],
    sums: &mut FloatSums<T>,
) {
    let zero = _mm256_setzero_si256();
    let (mut products, mut offsets) = ([zero; T], [zero; T]);
    // SAFETY: guaranteed by the caller; offsets as `panel` lays them out.
    unsafe {
        for part in 0..8 {
            let from = w.add(part * 768 + v / 2 * 384 + 32 * (v % 2));
            // Two scales per row.
            let pairs =
                _mm256_cvtepi8_epi16(_mm_load_si128(w.add(panel::Q6K_SCALES + 64 * part + 16 * v).cast()));
            let low = _mm256_and_si256(pairs, _mm256_set1_epi32(0xffff));
            let high = _mm256_srli_epi32::<16>(pairs);
            let scales = [
                _mm256_or_si256(low, _mm256_slli_epi32::<16>(low)),
                _mm256_or_si256(high, _mm256_slli_epi32::<16>(high)),
            ];
            for quarter in 0..4 {
                let half = quarter / 2;
                // Eight elements fit 16 bits: 4 · 63 · 127.
                let values =
                    [six_bits(from, half, quarter % 2 * 2), six_bits(from, half, quarter % 2 * 2 + 1)];
                for t in 0..T {
                    let a = act[t].cast::<i8>().add(32 * part + 8 * quarter);
                    let words = _mm256_add_epi16(
                        _mm256_maddubs_epi16(values[0], four(a)),
                        _mm256_maddubs_epi16(values[1], four(a.add(4))),
                    );
                    products[t] = _mm256_add_epi32(products[t], _mm256_madd_epi16(words, scales[half]));
                }
            }
            for t in 0..T {
                let pair = pair_of_sums(act[t], part);
                offsets[t] = _mm256_add_epi32(offsets[t], _mm256_madd_epi16(pairs, pair));
            }
        }
        let d = load_halves(w.add(panel::Q6K_HALVES + 16 * v));
        for t in 0..T {
            // Stored values are 32 too large.
            let total = _mm256_sub_epi32(products[t], _mm256_slli_epi32::<5>(offsets[t]));
            let product = _mm256_mul_ps(_mm256_cvtepi32_ps(total), d);
            sums[t][v] = _mm256_fmadd_ps(product, _mm256_set1_ps((*act[t]).d), sums[t][v]);
        }
    }
}

/// Four of 16 elements of eight rows, in the layout of `panel::pack_q6k`; `half` selects 16 of the 32.
///
/// # Safety
/// There must be a part of one vector of 16 rows, from our 32 bytes of it on.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn six_bits(from: *const u8, half: usize, j: usize) -> __m256i {
    // SAFETY: guaranteed by the caller.
    let (low, high) = unsafe { (load(from.add(64 * j)), load(from.add(256 + 64 * (j / 2)))) };
    let high = match (half, j % 2) {
        (0, 0) => _mm256_slli_epi16::<4>(high),
        (0, _) => _mm256_slli_epi16::<2>(high),
        (_, 0) => high,
        _ => _mm256_srli_epi16::<2>(high),
    };
    _mm256_or_si256(nibbles(low, half == 1), _mm256_and_si256(high, _mm256_set1_epi8(0x30)))
}

/// Two sums of 16 elements, broadcast to each lane.
///
/// # Safety
/// There must be a block, and `part` must be below 8.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn pair_of_sums(act: *const Q8KBlock, part: usize) -> __m256i {
    // SAFETY: guaranteed by the caller; the sums follow the 256 values.
    unsafe { four(act.cast::<i8>().add(256 + 4 * part)) }
}

/// Eight unsigned bytes, each as both words of a lane.
///
/// # Safety
/// Eight bytes must be readable.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn twice(from: *const u8) -> __m256i {
    // SAFETY: guaranteed by the caller.
    let value = _mm256_cvtepu8_epi32(unsafe { _mm_loadl_epi64(from.cast()) });
    _mm256_or_si256(value, _mm256_slli_epi32::<16>(value))
}
