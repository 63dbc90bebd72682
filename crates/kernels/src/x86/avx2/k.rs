//! Types with blocks of 256: Q4_K, Q5_K, Q6_K and IQ4_XS. Integer sums fit 32 bits for a whole block.

use std::arch::x86_64::*;

use super::super::tiles::ProductTile;
use super::panel::{self, NIBBLES, Q5K_PART, Q6K_HALF, Q6K_PART, ROWS};
use super::{FloatSums, Integers, four, half_bytes, in_order, indexed, load, load_halves, prefetch, store};
use crate::format::Q8KBlock;
use crate::matmul::MatmulJob;
use crate::quant::tables::IQ4;

pub(super) const Q4K: u8 = 0;
pub(super) const Q5K: u8 = 1;
pub(super) const Q6K: u8 = 2;
pub(super) const IQ4_XS: u8 = 3;

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
    let bytes = match KIND {
        Q4K => panel::Q4K_BLOCK,
        Q5K => panel::Q5K_BLOCK,
        Q6K => panel::Q6K_BLOCK,
        _ => panel::IQ4_XS_BLOCK,
    };
    let mut sums: FloatSums<S, T> = [[_mm256_setzero_ps(); T]; S];
    for _ in 0..job.matrix.cols() / 256 {
        // SAFETY: each panel and each prepared row have this many blocks.
        unsafe {
            if T > 1 {
                part.ahead.prefetch(w[0]);
            }
            match KIND {
                Q6K => q6k_block(&w, &act, part.ahead.distance, &mut sums),
                IQ4_XS => iq4_xs_block(&w, &act, part.ahead.distance, &mut sums),
                _ => spans_block::<KIND, S, T>(&w, &act, part.ahead.distance, &mut sums),
            }
            for s in 0..S {
                w[s] = w[s].add(bytes);
            }
            for t in 0..T {
                act[t] = act[t].add(1);
            }
        }
    }
    store(job, part, &sums);
}

/// A block of Q4_K or Q5_K.
///
/// # Safety
/// There must be a block of each panel and of each prepared row.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn spans_block<const KIND: u8, const S: usize, const T: usize>(
    w: &[*const u8; S],
    act: &[*const Q8KBlock; T],
    distance: usize,
    sums: &mut FloatSums<S, T>,
) {
    let (part_bytes, at_scales) =
        if KIND == Q4K { (NIBBLES, panel::Q4K_SCALES) } else { (Q5K_PART, panel::Q5K_SCALES) };
    let zero = [[_mm256_setzero_si256(); T]; S];
    let (mut products, mut minima) = (zero, zero);
    let (mut totals, mut scales) = ([[0i16; 8]; T], *w);
    // SAFETY: guaranteed by the caller; offsets as `panel` lays them out.
    unsafe {
        for t in 0..T {
            sums_of_parts(act[t], &mut totals[t]);
        }
        for s in 0..S {
            scales[s] = w[s].add(at_scales);
        }
        for part in 0..8 {
            if T == 1 {
                prefetch(w, distance + part * part_bytes, part_bytes + ROWS * 2);
            }
            let (mut from, mut scale) = (*w, [_mm256_setzero_si256(); S]);
            for s in 0..S {
                from[s] = w[s].add(part_bytes * part);
                scale[s] = scale_of_part(scales[s], part);
            }
            let a = values_of_part(act, part);
            if KIND == Q4K {
                // All 32 elements fit 16 bits: 15 · 127 · 32 / 2.
                let words = half_bytes(&from, &a, 0..4, |_, _, nibbles| nibbles);
                add_scaled(&mut products, &words, &scale);
            } else {
                let mut fifths = scale;
                for s in 0..S {
                    fifths[s] = load(from[s].add(NIBBLES));
                }
                let value =
                    |s: usize, number, nibbles| _mm256_or_si256(nibbles, fifth_bit(fifths[s], number));
                // 16 elements fit 16 bits: 31 · 127 · 16 / 2.
                add_scaled(&mut products, &half_bytes(&from, &a, 0..2, value), &scale);
                add_scaled(&mut products, &half_bytes(&from, &a, 2..4, value), &scale);
            }
        }
        for two in 0..4 {
            for s in 0..S {
                let pairs = _mm_loadu_si128(scales[s].add(panel::MINIMA + 2 * ROWS * two).cast());
                let pairs = _mm256_cvtepu8_epi16(pairs);
                for t in 0..T {
                    let total = four(totals[t].as_ptr().add(2 * two).cast());
                    minima[s][t] = _mm256_add_epi32(minima[s][t], _mm256_madd_epi16(pairs, total));
                }
            }
        }
        for s in 0..S {
            let d = load_halves(scales[s].add(panel::HALVES));
            let min = load_halves(scales[s].add(panel::HALVES + 2 * ROWS));
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

/// The values of a part of each token's block.
///
/// # Safety
/// There must be a block of each; `part` must be below 8.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn values_of_part<const T: usize>(act: &[*const Q8KBlock; T], part: usize) -> [*const i8; T] {
    let mut a = [std::ptr::null(); T];
    for t in 0..T {
        // SAFETY: guaranteed by the caller; a block begins with its values.
        a[t] = unsafe { act[t].cast::<i8>().add(32 * part) };
    }
    a
}

/// Adds words times a scale for each panel.
#[inline]
#[target_feature(enable = "avx2")]
fn add_scaled<const S: usize, const T: usize>(
    to: &mut Integers<S, T>,
    words: &Integers<S, T>,
    scale: &[__m256i; S],
) {
    for s in 0..S {
        for t in 0..T {
            to[s][t] = _mm256_add_epi32(to[s][t], _mm256_madd_epi16(words[s][t], scale[s]));
        }
    }
}

/// The scale of each row, as both words of its lane: unsigned bytes of 8 parts.
///
/// # Safety
/// There must be the scales of 8 parts; `part` must be below 8.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn scale_of_part(scales: *const u8, part: usize) -> __m256i {
    // SAFETY: guaranteed by the caller.
    let (two, at) = unsafe {
        let two = _mm_loadu_si128(scales.add(2 * ROWS * (part / 2)).cast());
        (two, load(SPREAD[part % 2].as_ptr().cast()))
    };
    _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(two), at)
}

/// For `vpshufb`: the first or the last 8 of 16 bytes, each as two words. From memory: a branch would part a part's loads
/// from their use.
static SPREAD: [[i8; 32]; 2] = [
    [
        0, -1, 0, -1, 1, -1, 1, -1, 2, -1, 2, -1, 3, -1, 3, -1, 4, -1, 4, -1, 5, -1, 5, -1, 6, -1, 6, -1, 7,
        -1, 7, -1,
    ],
    [
        8, -1, 8, -1, 9, -1, 9, -1, 10, -1, 10, -1, 11, -1, 11, -1, 12, -1, 12, -1, 13, -1, 13, -1, 14, -1,
        14, -1, 15, -1, 15, -1,
    ],
];

/// The fifth bits of a vector of nibbles as bit 4 of each byte.
#[inline]
#[target_feature(enable = "avx2")]
fn fifth_bit(bits: __m256i, number: usize) -> __m256i {
    let moved = match number {
        0 => bits,
        1 => _mm256_slli_epi16::<4>(bits),
        2 => _mm256_srli_epi16::<1>(bits),
        3 => _mm256_slli_epi16::<3>(bits),
        4 => _mm256_srli_epi16::<2>(bits),
        5 => _mm256_slli_epi16::<2>(bits),
        6 => _mm256_srli_epi16::<3>(bits),
        _ => _mm256_slli_epi16::<1>(bits),
    };
    _mm256_and_si256(moved, _mm256_set1_epi8(16))
}

/// A block of IQ4_XS.
///
/// # Safety
/// There must be a block of each panel and of each prepared row.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn iq4_xs_block<const S: usize, const T: usize>(
    w: &[*const u8; S],
    act: &[*const Q8KBlock; T],
    distance: usize,
    sums: &mut FloatSums<S, T>,
) {
    let mut products = [[_mm256_setzero_si256(); T]; S];
    // SAFETY: guaranteed by the caller; offsets as `panel` lays them out.
    unsafe {
        for part in 0..8 {
            if T == 1 {
                prefetch(w, distance + part * NIBBLES, NIBBLES + ROWS);
            }
            let (mut from, mut scale) = (*w, [_mm256_setzero_si256(); S]);
            for s in 0..S {
                from[s] = w[s].add(NIBBLES * part);
                // Signed bytes: through the upper half of each word.
                let bytes = scale_of_part(w[s].add(panel::IQ4_XS_SCALES), part);
                scale[s] = _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(bytes));
            }
            let dots = indexed(&from, &values_of_part(act, part), &IQ4, &scale);
            for s in 0..S {
                for t in 0..T {
                    products[s][t] = _mm256_add_epi32(products[s][t], dots[s][t]);
                }
            }
        }
        for s in 0..S {
            let d = load_halves(w[s].add(panel::IQ4_XS_HALVES));
            for t in 0..T {
                let scale = _mm256_mul_ps(d, _mm256_set1_ps((*act[t]).d));
                sums[s][t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(products[s][t]), scale, sums[s][t]);
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
    distance: usize,
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
            if T == 1 {
                prefetch(w, distance + part * Q6K_PART, Q6K_PART);
            }
            for s in 0..S {
                let from = w[s].add(Q6K_PART * part);
                let pairs = _mm256_cvtepi8_epi16(_mm_loadu_si128(from.add(2 * Q6K_HALF).cast()));
                for half in 0..2 {
                    in_order::<T>();
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
