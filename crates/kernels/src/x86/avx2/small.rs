//! Types with blocks of 32: Q4_0, Q4_1 and Q8_0.

#![allow(clippy::needless_range_loop, reason = "loops over tokens and panels index several arrays alike")]

use std::arch::x86_64::*;

use super::super::tiles::ProductTile;
use super::panel::{BYTES, NIBBLES, ROWS};
use super::{FloatSums, Integers, four, half_bytes, load, load_halves, store};
use crate::format::Q8Block;
use crate::matmul::MatmulJob;

pub(super) const Q4_0: u8 = 0;
pub(super) const Q4_1: u8 = 1;
pub(super) const Q8_0: u8 = 2;

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
        Q4_0 => (NIBBLES, 1),
        Q4_1 => (NIBBLES, 2),
        _ => (BYTES, 1),
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
            for s in 0..S {
                part.ahead.prefetch(w[s]);
            }
            let dots = if KIND == Q8_0 { bytes(&w, &act) } else { nibbles(&w, &act) };
            for s in 0..S {
                let scale = load_halves(w[s].add(values));
                for t in 0..T {
                    let a = &*act[t];
                    let offset = _mm256_set1_epi32(a.minus_8);
                    let dot = if KIND == Q4_0 { _mm256_add_epi32(dots[s][t], offset) } else { dots[s][t] };
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

/// Products of nibbles.
///
/// # Safety
/// There must be a block of each panel and of each prepared row.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn nibbles<const S: usize, const T: usize>(
    w: &[*const u8; S],
    act: &[*const Q8Block; T],
) -> Integers<S, T> {
    let mut a = [std::ptr::null::<i8>(); T];
    for t in 0..T {
        a[t] = act[t].cast();
    }
    // SAFETY: guaranteed by the caller; a block begins with its values.
    let mut dots = unsafe { half_bytes(w, &a) };
    for s in 0..S {
        for t in 0..T {
            dots[s][t] = _mm256_madd_epi16(dots[s][t], _mm256_set1_epi16(1));
        }
    }
    dots
}

/// Products of signed bytes: magnitudes of the weights, with their signs moved to the activations.
///
/// # Safety
/// There must be a block of each panel and of each prepared row.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn bytes<const S: usize, const T: usize>(
    w: &[*const u8; S],
    act: &[*const Q8Block; T],
) -> Integers<S, T> {
    let mut dots = [[_mm256_setzero_si256(); T]; S];
    for j in 0..8 {
        for s in 0..S {
            // SAFETY: guaranteed by the caller.
            unsafe {
                let signed = load(w[s].add(32 * j));
                let magnitude = _mm256_abs_epi8(signed);
                for t in 0..T {
                    let a = _mm256_sign_epi8(four(act[t].cast::<i8>().add(4 * j)), signed);
                    let words = _mm256_maddubs_epi16(magnitude, a);
                    let sums = _mm256_madd_epi16(words, _mm256_set1_epi16(1));
                    dots[s][t] = _mm256_add_epi32(dots[s][t], sums);
                }
            }
        }
    }
    dots
}
