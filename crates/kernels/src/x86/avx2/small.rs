//! Types with blocks of 32: Q4_0, Q4_1, Q8_0, IQ4_NL and MXFP4.

use std::arch::x86_64::*;

use super::super::tiles::ProductTile;
use super::panel::{BYTES, NIBBLES, ROWS};
use super::{
    FloatSums, Integers, both_halves, four, half_bytes, in_order, indexed, load, load_halves, prefetch,
    signed, store,
};
use crate::format::Q8Block;
use crate::matmul::MatmulJob;
use crate::quant::tables::{self, IQ4};

pub(super) const Q4_0: u8 = 0;
pub(super) const Q4_1: u8 = 1;
pub(super) const Q8_0: u8 = 2;
pub(super) const IQ4_NL: u8 = 3;
pub(super) const MXFP4: u8 = 4;

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
    let (values, halves) = match KIND {
        Q4_1 => (NIBBLES, 2),
        Q8_0 => (BYTES, 1),
        _ => (NIBBLES, 1),
    };
    let (mut w, mut act) = ([std::ptr::null::<u8>(); S], [std::ptr::null::<Q8Block>(); T]);
    for s in 0..S {
        w[s] = job.panel(part.panel + s * part.apart).as_ptr();
    }
    for t in 0..T {
        act[t] = job.act(part.first + t).as_ptr().cast();
    }
    let mut sums: FloatSums<S, T> = [[_mm256_setzero_ps(); T]; S];
    for _ in 0..job.matrix.cols() / 32 {
        // SAFETY: each panel and each prepared row have this many blocks.
        unsafe {
            if T == 1 {
                prefetch(&w, part.ahead.distance, values + halves * 2 * ROWS);
            } else {
                part.ahead.prefetch(w[0]);
            }
            let dots = dots::<KIND, S, T>(&w, &act);
            for s in 0..S {
                let scale = w[s].add(values);
                let scale = if KIND == MXFP4 { load_upper_halves(scale) } else { load_halves(scale) };
                for t in 0..T {
                    let a = &*act[t];
                    // Stored values are 8, and those from the table 12 too large.
                    let dot = match KIND {
                        Q4_0 => _mm256_add_epi32(dots[s][t], _mm256_set1_epi32(a.minus_8)),
                        MXFP4 => {
                            _mm256_add_epi32(dots[s][t], _mm256_set1_epi32(a.minus_8 + (a.minus_8 >> 1)))
                        }
                        _ => dots[s][t],
                    };
                    let scale = _mm256_mul_ps(scale, _mm256_set1_ps(a.d));
                    sums[s][t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), scale, sums[s][t]);
                    if KIND == Q4_1 {
                        let minimum = load_halves(w[s].add(values + 2 * ROWS));
                        sums[s][t] = _mm256_fmadd_ps(minimum, _mm256_set1_ps(a.s), sums[s][t]);
                    }
                }
                w[s] = w[s].add(values + halves * 2 * ROWS);
            }
            for t in 0..T {
                act[t] = act[t].add(1);
            }
        }
    }
    store(job, part, &sums);
}

/// Products of a block.
///
/// # Safety
/// There must be a block of each panel and of each prepared row.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn dots<const KIND: u8, const S: usize, const T: usize>(
    w: &[*const u8; S],
    act: &[*const Q8Block; T],
) -> Integers<S, T> {
    let one = _mm256_set1_epi16(1);
    let mut a = [std::ptr::null::<i8>(); T];
    for t in 0..T {
        // A block begins with its values.
        a[t] = act[t].cast();
    }
    // SAFETY: guaranteed by the caller.
    unsafe {
        match KIND {
            Q8_0 => bytes(w, &a),
            IQ4_NL => indexed(w, &a, &IQ4, &[one; S]),
            MXFP4 => {
                let table = _mm256_add_epi8(both_halves(&tables::MXFP4), _mm256_set1_epi8(12));
                let value = |_, _, index| _mm256_shuffle_epi8(table, index);
                // 16 elements fit 16 bits: 24 · 127 · 16 / 2.
                let (first, last) = (half_bytes(w, &a, 0..2, value), half_bytes(w, &a, 2..4, value));
                let mut dots = first;
                for s in 0..S {
                    for t in 0..T {
                        let sums = [_mm256_madd_epi16(first[s][t], one), _mm256_madd_epi16(last[s][t], one)];
                        dots[s][t] = _mm256_add_epi32(sums[0], sums[1]);
                    }
                }
                dots
            }
            _ => {
                // All 32 elements fit 16 bits: 15 · 127 · 32 / 2.
                let mut dots = half_bytes(w, &a, 0..4, |_, _, nibbles| nibbles);
                for s in 0..S {
                    for t in 0..T {
                        dots[s][t] = _mm256_madd_epi16(dots[s][t], one);
                    }
                }
                dots
            }
        }
    }
}

/// Products of signed bytes.
///
/// # Safety
/// There must be the values of each panel and as many activations of each token.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn bytes<const S: usize, const T: usize>(w: &[*const u8; S], act: &[*const i8; T]) -> Integers<S, T> {
    let mut dots = [[_mm256_setzero_si256(); T]; S];
    for j in 0..8 {
        in_order::<T>();
        for s in 0..S {
            // SAFETY: guaranteed by the caller.
            unsafe {
                let weights = load(w[s].add(32 * j));
                for t in 0..T {
                    let words = signed(weights, four(act[t].add(4 * j)));
                    let sums = _mm256_madd_epi16(words, _mm256_set1_epi16(1));
                    dots[s][t] = _mm256_add_epi32(dots[s][t], sums);
                }
            }
        }
    }
    dots
}

/// Eight floats whose upper halves are given; the lower ones are zero.
///
/// # Safety
/// 16 bytes must be readable.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load_upper_halves(from: *const u8) -> __m256 {
    // SAFETY: guaranteed by the caller.
    let halves = _mm256_cvtepu16_epi32(unsafe { _mm_loadu_si128(from.cast()) });
    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(halves))
}
