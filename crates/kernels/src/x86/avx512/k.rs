//! Types with blocks of 256: Q4_K and Q6_K.
//!
//! `T` tokens times a panel of 32 rows, two vectors of 16. The products of a part of 32 (Q4_K) or 16 (Q6_K)
//! elements are multiplied by the part's integer scale and summed as integers over the block, which is exact; the
//! conversion to float comes once per block.

#![allow(clippy::needless_range_loop, reason = "loops over tokens and vectors index several arrays alike")]

use std::arch::x86_64::*;

use super::super::panel::{self, Q4K_BLOCK, Q6K_BLOCK};
use super::super::tiles::{Ahead, ProductTile};
use super::{load, load_halves, low_high, store};
use crate::format::Q8KBlock;
use crate::matmul::MatmulJob;

pub(super) const Q4K: u8 = 0;
pub(super) const Q6K: u8 = 1;

pub(super) type IntSums<const T: usize> = [[__m512i; 2]; T];

/// A panel times at most six tokens.
///
/// # Safety
/// The processor must have the instructions.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c,fma")]
pub(super) unsafe fn tile_of<const KIND: u8>(job: &MatmulJob<'_>, part: &ProductTile) {
    match part.tokens {
        1 => match part.streams {
            2 => tile::<KIND, 1, 2>(job, part),
            _ => tile::<KIND, 1, 1>(job, part),
        },
        2 => tile::<KIND, 2, 1>(job, part),
        3 => tile::<KIND, 3, 1>(job, part),
        4 => tile::<KIND, 4, 1>(job, part),
        5 => {
            tile::<KIND, 3, 1>(job, &ProductTile { tokens: 3, ..*part });
            tile::<KIND, 2, 1>(job, &ProductTile { tokens: 2, first: part.first + 3, ..*part });
        }
        _ => tile::<KIND, 6, 1>(job, part),
    }
}

#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c,fma")]
fn tile<const KIND: u8, const T: usize, const S: usize>(job: &MatmulJob<'_>, part: &ProductTile) {
    let mut w = [std::ptr::null(); S];
    for s in 0..S {
        w[s] = job.panel(part.panel + s * part.apart).as_ptr();
    }
    let mut act = [std::ptr::null::<Q8KBlock>(); T];
    for t in 0..T {
        act[t] = job.act(part.first + t).as_ptr().cast();
    }
    let mut sums = [[[_mm512_setzero_ps(); 2]; T]; S];
    for _ in 0..job.matrix.cols() / 256 {
        // SAFETY: the panel and each prepared row have this many blocks.
        unsafe {
            for s in 0..S {
                if KIND == Q4K {
                    q4k_block(w[s], part.ahead, &act, &mut sums[s]);
                    w[s] = w[s].add(Q4K_BLOCK);
                } else {
                    q6k_block(w[s], part.ahead, &act, &mut sums[s]);
                    w[s] = w[s].add(Q6K_BLOCK);
                }
            }
            for t in 0..T {
                act[t] = act[t].add(1);
            }
        }
    }
    for s in 0..S {
        store(job, &ProductTile { panel: part.panel + s * part.apart, ..*part }, &sums[s]);
    }
}

/// # Safety
/// There must be a block of the panel and of each prepared row.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c,fma")]
unsafe fn q4k_block<const T: usize>(
    w: *const u8,
    ahead: Ahead,
    act: &[*const Q8KBlock; T],
    sums: &mut [[__m512; 2]; T],
) {
    let zero = _mm512_setzero_si512();
    let (mut products, mut minima) = ([[zero; 2]; T], [[zero; 2]; T]);
    // SAFETY: offsets within the block, as `panel` lays it out.
    unsafe {
        for part in 0..8 {
            ahead.eighth(part).prefetch(w);
            let from = w.add(part * 512);
            let mut dots = [[zero; 2]; T];
            for j in 0..4 {
                let (low, high) = low_high([load(from.add(64 * j)), load(from.add(256 + 64 * j))]);
                dot(&mut dots, low, act, 8 * part + j);
                dot(&mut dots, high, act, 8 * part + 4 + j);
            }
            let scales = [
                bytes(w.add(panel::Q4K_SCALES + 32 * part)),
                bytes(w.add(panel::Q4K_SCALES + 32 * part + 16)),
            ];
            for t in 0..T {
                for g in 0..2 {
                    let scaled = _mm512_mullo_epi32(dots[t][g], scales[g]);
                    products[t][g] = _mm512_add_epi32(products[t][g], scaled);
                }
            }
        }
        for part in 0..8 {
            let mut twice = [zero; 2];
            for g in 0..2 {
                // A part's minimum applies to both of its sums of 16.
                let minimum = bytes(w.add(panel::Q4K_MINIMA + 32 * part + 16 * g));
                twice[g] = _mm512_or_si512(minimum, _mm512_slli_epi32::<16>(minimum));
            }
            for t in 0..T {
                let pair = pair_of_sums(act[t], part);
                for g in 0..2 {
                    minima[t][g] = _mm512_dpwssd_epi32(minima[t][g], twice[g], pair);
                }
            }
        }
        let (d, min) = (load_halves(w.add(panel::Q4K_HALVES)), load_halves(w.add(panel::Q4K_HALVES + 64)));
        for t in 0..T {
            let scale = _mm512_set1_ps((*act[t]).d);
            for g in 0..2 {
                let product = _mm512_mul_ps(_mm512_cvtepi32_ps(products[t][g]), d[g]);
                let minimum = _mm512_mul_ps(_mm512_cvtepi32_ps(minima[t][g]), min[g]);
                sums[t][g] = _mm512_fmadd_ps(_mm512_sub_ps(product, minimum), scale, sums[t][g]);
            }
        }
    }
}

/// # Safety
/// There must be a block of the panel and of each prepared row.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c,fma")]
unsafe fn q6k_block<const T: usize>(
    w: *const u8,
    ahead: Ahead,
    act: &[*const Q8KBlock; T],
    sums: &mut [[__m512; 2]; T],
) {
    let zero = _mm512_setzero_si512();
    let mut products = [[zero; 2]; T];
    let mut offsets = [[zero; 2]; T];
    // SAFETY: offsets within the block, as `panel` lays it out.
    unsafe {
        for part in 0..8 {
            ahead.eighth(part).prefetch(w);
            let from = w.add(part * 768);
            let pairs = [
                words(w.add(panel::Q6K_SCALES + 64 * part)),
                words(w.add(panel::Q6K_SCALES + 64 * part + 32)),
            ];
            for half in 0..2 {
                let mut dots = [[zero; 2]; T];
                for j in 0..4 {
                    let values = [six_bits(from, half, j), six_bits(from.add(384), half, j)];
                    dot(&mut dots, values, act, 8 * part + 4 * half + j);
                }
                let scales = if half == 0 {
                    [even_words(pairs[0]), even_words(pairs[1])]
                } else {
                    [_mm512_srai_epi32::<16>(pairs[0]), _mm512_srai_epi32::<16>(pairs[1])]
                };
                for t in 0..T {
                    for g in 0..2 {
                        let scaled = _mm512_mullo_epi32(dots[t][g], scales[g]);
                        products[t][g] = _mm512_add_epi32(products[t][g], scaled);
                    }
                }
            }
            for t in 0..T {
                let pair = pair_of_sums(act[t], part);
                for g in 0..2 {
                    offsets[t][g] = _mm512_dpwssd_epi32(offsets[t][g], pairs[g], pair);
                }
            }
        }
        let d = load_halves(w.add(panel::Q6K_HALVES));
        for t in 0..T {
            let scale = _mm512_set1_ps((*act[t]).d);
            for g in 0..2 {
                // Stored values are 32 too large.
                let total = _mm512_sub_epi32(products[t][g], _mm512_slli_epi32::<5>(offsets[t][g]));
                let product = _mm512_mul_ps(_mm512_cvtepi32_ps(total), d[g]);
                sums[t][g] = _mm512_fmadd_ps(product, scale, sums[t][g]);
            }
        }
    }
}

/// Four of 16 elements of 16 rows, in the layout of `panel::pack_q6k`; `half` selects 16 of the 32.
///
/// # Safety
/// There must be a part of one vector of rows, 384 bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn six_bits(from: *const u8, half: usize, j: usize) -> __m512i {
    // SAFETY: guaranteed by the caller.
    let (low, high) = unsafe { (load(from.add(64 * j)), load(from.add(256 + 64 * (j / 2)))) };
    let low = if half == 0 { low } else { _mm512_srli_epi16::<4>(low) };
    let high = match (half, j % 2) {
        (0, 0) => _mm512_slli_epi16::<4>(high),
        (0, _) => _mm512_slli_epi16::<2>(high),
        (_, 0) => high,
        _ => _mm512_srli_epi16::<2>(high),
    };
    let high = _mm512_and_si512(high, _mm512_set1_epi8(0x30));
    // (low & 15) | high
    _mm512_ternarylogic_epi32::<0xea>(low, _mm512_set1_epi8(15), high)
}

/// Adds the products of four elements of 32 rows and all tokens.
///
/// # Safety
/// There must be a block of each prepared row, and `four` must be below 64.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
pub(super) unsafe fn dot<const T: usize>(
    dots: &mut IntSums<T>,
    w: [__m512i; 2],
    act: &[*const Q8KBlock; T],
    four: usize,
) {
    for t in 0..T {
        // SAFETY: guaranteed by the caller; `q` comes first in the block.
        let a = _mm512_set1_epi32(unsafe { act[t].cast::<i32>().add(four).read() });
        dots[t][0] = _mm512_dpbusd_epi32(dots[t][0], w[0], a);
        dots[t][1] = _mm512_dpbusd_epi32(dots[t][1], w[1], a);
    }
}

/// Two sums of 16 elements, broadcast to each lane.
///
/// # Safety
/// There must be a block, and `part` must be below 8.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn pair_of_sums(act: *const Q8KBlock, part: usize) -> __m512i {
    // SAFETY: guaranteed by the caller; the sums follow the 256 values, and the block is aligned to 4.
    _mm512_set1_epi32(unsafe { act.cast::<i32>().add(64 + part).read() })
}

/// 16 unsigned bytes as integers.
///
/// # Safety
/// 16 bytes must be readable.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn bytes(from: *const u8) -> __m512i {
    // SAFETY: guaranteed by the caller.
    _mm512_cvtepu8_epi32(unsafe { _mm_loadu_si128(from.cast()) })
}

/// 32 signed bytes as words.
///
/// # Safety
/// 32 bytes must be readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn words(from: *const u8) -> __m512i {
    // SAFETY: guaranteed by the caller.
    _mm512_cvtepi8_epi16(unsafe { _mm256_loadu_si256(from.cast()) })
}

/// The lower word of each lane, sign-extended.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn even_words(pairs: __m512i) -> __m512i {
    _mm512_srai_epi32::<16>(_mm512_slli_epi32::<16>(pairs))
}
