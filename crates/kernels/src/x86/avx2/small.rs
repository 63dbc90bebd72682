//! Types with blocks of 32: Q4_0, Q4_1 and Q8_0.

#![allow(clippy::needless_range_loop, reason = "loops over tokens and vectors index several arrays alike")]

use std::arch::x86_64::*;

use super::super::panel;
use super::super::tiles::ProductTile;
use super::{FloatSums, TILE, VECTORS, four, load, load_halves, nibbles, store};
use crate::format::Q8Block;
use crate::matmul::MatmulJob;

pub(super) const Q4_0: u8 = 0;
pub(super) const Q4_1: u8 = 1;
pub(super) const Q8_0: u8 = 2;

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
    let block_bytes = match KIND {
        Q4_0 => panel::Q4_0_BLOCK,
        Q4_1 => panel::Q4_1_BLOCK,
        _ => panel::Q8_0_BLOCK,
    };
    let mut w = job.panel(part.panel).as_ptr();
    let mut act = [std::ptr::null::<Q8Block>(); T];
    for t in 0..T {
        act[t] = job.act(part.first + t).as_ptr().cast();
    }
    let mut sums: FloatSums<T> = [[_mm256_setzero_ps(); VECTORS]; T];
    for _ in 0..job.matrix.cols() / 32 {
        // SAFETY: the panel and each prepared row have this many blocks.
        unsafe {
            part.ahead.prefetch(w);
            for v in 0..VECTORS {
                vector::<KIND, T>(w, v, &act, &mut sums);
            }
            w = w.add(block_bytes);
            for t in 0..T {
                act[t] = act[t].add(1);
            }
        }
    }
    store(job, part, &sums);
}

/// Eight rows of a block.
///
/// # Safety
/// There must be a block of the panel and of each prepared row.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn vector<const KIND: u8, const T: usize>(
    w: *const u8,
    v: usize,
    act: &[*const Q8Block; T],
    sums: &mut FloatSums<T>,
) {
    // A vector of 16 panel rows alternates between two of ours.
    let chunk = 32 * (v % 2);
    // SAFETY: guaranteed by the caller; offsets as `panel` lays them out.
    unsafe {
        let (dots, halves) = if KIND == Q8_0 {
            (bytes(w.add(v / 2 * 512 + chunk), act), w.add(1024))
        } else {
            (half_bytes(w.add(v / 2 * 256 + chunk), act), w.add(512))
        };
        let scale = load_halves(halves.add(16 * v));
        for t in 0..T {
            let a = &*act[t];
            let dot =
                if KIND == Q4_0 { _mm256_add_epi32(dots[t], _mm256_set1_epi32(a.minus_8)) } else { dots[t] };
            let scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(dot), scale);
            sums[t][v] = _mm256_fmadd_ps(scaled, _mm256_set1_ps(a.d), sums[t][v]);
            if KIND == Q4_1 {
                let minimum = load_halves(halves.add(64 + 16 * v));
                sums[t][v] = _mm256_fmadd_ps(minimum, _mm256_set1_ps(a.s), sums[t][v]);
            }
        }
    }
}

/// Products of nibbles: at most 32 · 15 · 127 / 2 in 16 bits.
///
/// # Safety
/// There must be 256 bytes, of which every other 32 are read, and a block of each prepared row.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn half_bytes<const T: usize>(w: *const u8, act: &[*const Q8Block; T]) -> [__m256i; T] {
    let mut words = [_mm256_setzero_si256(); T];
    for j in 0..4 {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let both = load(w.add(64 * j));
            for high in [false, true] {
                let values = nibbles(both, high);
                for t in 0..T {
                    let a = four(act[t].cast::<i8>().add(16 * usize::from(high) + 4 * j));
                    words[t] = _mm256_add_epi16(words[t], _mm256_maddubs_epi16(values, a));
                }
            }
        }
    }
    for t in 0..T {
        words[t] = _mm256_madd_epi16(words[t], _mm256_set1_epi16(1));
    }
    words
}

/// Products of signed bytes: magnitudes of the weights, with their signs moved to the activations.
///
/// # Safety
/// There must be 512 bytes, of which every other 32 are read, and a block of each prepared row.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn bytes<const T: usize>(w: *const u8, act: &[*const Q8Block; T]) -> [__m256i; T] {
    let mut dots = [_mm256_setzero_si256(); T];
    for j in 0..8 {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let signed = load(w.add(64 * j));
            let magnitude = _mm256_abs_epi8(signed);
            for t in 0..T {
                let a = _mm256_sign_epi8(four(act[t].cast::<i8>().add(4 * j)), signed);
                let words = _mm256_maddubs_epi16(magnitude, a);
                dots[t] = _mm256_add_epi32(dots[t], _mm256_madd_epi16(words, _mm256_set1_epi16(1)));
            }
        }
    }
    dots
}
