//! Types with blocks of 256: Q4_K and Q6_K. Integer sums fit 32 bits for a whole block.

#![allow(clippy::needless_range_loop, reason = "loops over tokens and panels index several arrays alike")]

use std::arch::x86_64::*;

use super::super::tiles::{Ahead, ProductTile};
use super::panel::{self, NIBBLES, Q4K_BLOCK, Q6K_BLOCK, Q6K_HALF, Q6K_PART, ROWS};
use super::{FloatSums, four, half_bytes, load, load_halves, store};
use crate::format::Q8KBlock;
use crate::matmul::MatmulJob;

pub(super) const Q4K: u8 = 0;
pub(super) const Q6K: u8 = 1;

/// Some panels times one token, or a panel times at most four.
///
/// # Safety
/// The processor must have the instructions.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn tile_of<const KIND: u8>(job: &MatmulJob<'_>, part: &ProductTile) {
    match (part.streams, part.tokens) {
        (4, _) => tile::<KIND, 4, 1>(job, part),
        (2, _) => tile::<KIND, 2, 1>(job, part),
        (_, 1) => tile::<KIND, 1, 1>(job, part),
        (_, 2) => tile::<KIND, 1, 2>(job, part),
        (_, 3) => tile::<KIND, 1, 3>(job, part),
        _ => tile::<KIND, 1, 4>(job, part),
    }
}

#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c")]
fn tile<const KIND: u8, const S: usize, const T: usize>(job: &MatmulJob<'_>, part: &ProductTile) {
    let (mut w, mut act) = ([std::ptr::null::<u8>(); S], [std::ptr::null::<Q8KBlock>(); T]);
    for s in 0..S {
        w[s] = job.panel(part.panel + s * part.apart).as_ptr();
    }
    for t in 0..T {
        act[t] = job.act(part.first + t).as_ptr().cast();
    }
    let mut sums: FloatSums<S, T> = [[_mm256_setzero_ps(); T]; S];
    for _ in 0..job.matrix.cols() / 256 {
        // SAFETY: each panel and each prepared row have this many blocks.
        unsafe {
            if KIND == Q4K {
                q4k_block(&w, &act, part.ahead, &mut sums);
            } else {
                q6k_block(&w, &act, part.ahead, &mut sums);
            }
            for s in 0..S {
                w[s] = w[s].add(if KIND == Q4K { Q4K_BLOCK } else { Q6K_BLOCK });
            }
            for t in 0..T {
                act[t] = act[t].add(1);
            }
        }
    }
    store(job, part, &sums);
}

/// A block of Q4_K.
///
/// # Safety
/// There must be a block of each panel and of each prepared row.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn q4k_block<const S: usize, const T: usize>(
    w: &[*const u8; S],
    act: &[*const Q8KBlock; T],
    ahead: Ahead,
    sums: &mut FloatSums<S, T>,
) {
    // Bytes 0 to 7 or 8 to 15 of 16, each as both words of a lane.
    let spread = _mm256_setr_epi8(
        0, -1, 0, -1, 1, -1, 1, -1, 2, -1, 2, -1, 3, -1, 3, -1, 4, -1, 4, -1, 5, -1, 5, -1, 6, -1, 6, -1, 7,
        -1, 7, -1,
    );
    let spread = [spread, _mm256_or_si256(spread, _mm256_set1_epi16(8))];
    let zero = [[_mm256_setzero_si256(); T]; S];
    let (mut products, mut minima) = (zero, zero);
    let mut totals = [[0i16; 8]; T];
    // SAFETY: guaranteed by the caller; offsets as `panel` lays them out.
    unsafe {
        for t in 0..T {
            sums_of_parts(act[t], &mut totals[t]);
        }
        for part in 0..8 {
            let (mut from, mut a) = (*w, [std::ptr::null::<i8>(); T]);
            for s in 0..S {
                ahead.eighth(part).prefetch(w[s]);
                from[s] = w[s].add(NIBBLES * part);
            }
            for t in 0..T {
                a[t] = act[t].cast::<i8>().add(32 * part);
            }
            let words = half_bytes(&from, &a);
            for s in 0..S {
                let scales = w[s].add(panel::Q4K_SCALES + 2 * ROWS * (part / 2));
                let scales = _mm256_broadcastsi128_si256(_mm_loadu_si128(scales.cast()));
                let scale = _mm256_shuffle_epi8(scales, spread[part % 2]);
                for t in 0..T {
                    let product = _mm256_madd_epi16(words[s][t], scale);
                    products[s][t] = _mm256_add_epi32(products[s][t], product);
                }
            }
        }
        for two in 0..4 {
            for s in 0..S {
                let pairs = _mm_loadu_si128(w[s].add(panel::Q4K_MINIMA + 2 * ROWS * two).cast());
                let pairs = _mm256_cvtepu8_epi16(pairs);
                for t in 0..T {
                    let total = four(totals[t].as_ptr().add(2 * two).cast());
                    minima[s][t] = _mm256_add_epi32(minima[s][t], _mm256_madd_epi16(pairs, total));
                }
            }
        }
        for s in 0..S {
            let d = load_halves(w[s].add(panel::Q4K_HALVES));
            let min = load_halves(w[s].add(panel::Q4K_HALVES + 2 * ROWS));
            for t in 0..T {
                let scale = _mm256_set1_ps((*act[t]).d);
                let (product, minimum) =
                    (_mm256_cvtepi32_ps(products[s][t]), _mm256_cvtepi32_ps(minima[s][t]));
                let sum = _mm256_fmadd_ps(product, _mm256_mul_ps(d, scale), sums[s][t]);
                sums[s][t] = _mm256_fnmadd_ps(minimum, _mm256_mul_ps(min, scale), sum);
            }
        }
    }
}

/// The sums of the 8 parts of a block of activations.
///
/// # Safety
/// There must be a block.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn sums_of_parts(act: *const Q8KBlock, to: &mut [i16; 8]) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let halves = _mm256_loadu_si256((&raw const (*act).sums).cast());
        let sums = _mm256_madd_epi16(halves, _mm256_set1_epi16(1));
        let words = _mm_packs_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256::<1>(sums));
        _mm_storeu_si128(to.as_mut_ptr().cast(), words);
    }
}

/// A block of Q6_K.
///
/// # Safety
/// There must be a block of each panel and of each prepared row.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn q6k_block<const S: usize, const T: usize>(
    w: &[*const u8; S],
    act: &[*const Q8KBlock; T],
    ahead: Ahead,
    sums: &mut FloatSums<S, T>,
) {
    // The first or the second word of each lane as both of them.
    let first = _mm256_setr_epi8(
        0, 1, 0, 1, 4, 5, 4, 5, 8, 9, 8, 9, 12, 13, 12, 13, 0, 1, 0, 1, 4, 5, 4, 5, 8, 9, 8, 9, 12, 13, 12,
        13,
    );
    let spread = [first, _mm256_or_si256(first, _mm256_set1_epi8(2))];
    let zero = [[_mm256_setzero_si256(); T]; S];
    let (mut products, mut offsets) = (zero, zero);
    // SAFETY: guaranteed by the caller; offsets as `panel` lays them out.
    unsafe {
        for part in 0..8 {
            for s in 0..S {
                ahead.eighth(part).prefetch(w[s]);
                let from = w[s].add(Q6K_PART * part);
                let pairs = _mm256_cvtepi8_epi16(_mm_loadu_si128(from.add(2 * Q6K_HALF).cast()));
                for half in 0..2 {
                    let scale = _mm256_shuffle_epi8(pairs, spread[half]);
                    let values = six_bits(from.add(Q6K_HALF * half));
                    for t in 0..T {
                        let a = act[t].cast::<i8>().add(32 * part + 16 * half);
                        // Eight elements fit 16 bits: 4 · 63 · 127.
                        for two in [0, 2] {
                            let words = _mm256_add_epi16(
                                _mm256_maddubs_epi16(values[two], four(a.add(4 * two))),
                                _mm256_maddubs_epi16(values[two + 1], four(a.add(4 * two + 4))),
                            );
                            products[s][t] =
                                _mm256_add_epi32(products[s][t], _mm256_madd_epi16(words, scale));
                        }
                    }
                }
                for t in 0..T {
                    // Two sums of 16 elements; the sums follow the 256 values.
                    let sums = four(act[t].cast::<i8>().add(256 + 4 * part));
                    offsets[s][t] = _mm256_add_epi32(offsets[s][t], _mm256_madd_epi16(pairs, sums));
                }
            }
        }
        for s in 0..S {
            let d = load_halves(w[s].add(panel::Q6K_HALVES));
            for t in 0..T {
                // Stored values are 32 too large.
                let total = _mm256_sub_epi32(products[s][t], _mm256_slli_epi32::<5>(offsets[s][t]));
                let scale = _mm256_mul_ps(d, _mm256_set1_ps((*act[t]).d));
                sums[s][t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(total), scale, sums[s][t]);
            }
        }
    }
}

/// 16 elements of eight rows, in the layout of `panel::pack_q6k`.
///
/// # Safety
/// There must be three vectors.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn six_bits(from: *const u8) -> [__m256i; 4] {
    // SAFETY: guaranteed by the caller.
    let [a, b, c] = unsafe { [load(from), load(from.add(32)), load(from.add(64))] };
    let six = _mm256_set1_epi8(63);
    let upper = [
        _mm256_and_si256(_mm256_srli_epi16::<6>(a), _mm256_set1_epi8(3)),
        _mm256_and_si256(_mm256_srli_epi16::<4>(b), _mm256_set1_epi8(12)),
        _mm256_and_si256(_mm256_srli_epi16::<2>(c), _mm256_set1_epi8(48)),
    ];
    let last = _mm256_or_si256(_mm256_or_si256(upper[0], upper[1]), upper[2]);
    [_mm256_and_si256(a, six), _mm256_and_si256(b, six), _mm256_and_si256(c, six), last]
}
