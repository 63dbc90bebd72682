//! Types with blocks of 32: Q4_0, Q4_1 and Q8_0.
//!
//! `T` tokens times a panel of 32 rows, two vectors of 16. At T = 6 the registers hold 12 integer sums, 12 float
//! sums, up to 4 vectors of weights, one of activations and a mask. Per block, token and vector, `vpdpbusd` runs
//! 8 times, followed by two multiplications (by the row's scale and by the token's), all on the same two of four
//! pipes: this limits the code to 80 % of the peak.

#![allow(clippy::needless_range_loop, reason = "loops over tokens and vectors index several arrays alike")]

use std::arch::x86_64::*;

use super::super::panel;
use super::super::tiles::{Ahead, ProductTile};
use super::{load, load_halves, low_high, store};
use crate::format::Q8Block;
use crate::matmul::MatmulJob;

pub(super) const Q4_0: u8 = 0;
pub(super) const Q4_1: u8 = 1;
pub(super) const Q8_0: u8 = 2;

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
        5 => tile::<KIND, 5, 1>(job, part),
        _ => tile::<KIND, 6, 1>(job, part),
    }
}

#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c,fma")]
fn tile<const KIND: u8, const T: usize, const S: usize>(job: &MatmulJob<'_>, part: &ProductTile) {
    let block_bytes = match KIND {
        Q4_0 => panel::Q4_0_BLOCK,
        Q4_1 => panel::Q4_1_BLOCK,
        _ => panel::Q8_0_BLOCK,
    };
    let mut w = [std::ptr::null(); S];
    for s in 0..S {
        w[s] = job.panel(part.panel + s * part.apart).as_ptr();
    }
    let mut act = [std::ptr::null::<Q8Block>(); T];
    for t in 0..T {
        act[t] = job.act(part.first + t).as_ptr().cast();
    }
    let mut sums = [[[_mm512_setzero_ps(); 2]; T]; S];
    for block in 0..job.matrix.cols() / 32 {
        for s in 0..S {
            // SAFETY: the panel and each prepared row have this many blocks.
            unsafe {
                block_of::<KIND, T>(w[s], part.ahead, &act, block, &mut sums[s]);
                w[s] = w[s].add(block_bytes);
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
unsafe fn block_of<const KIND: u8, const T: usize>(
    w: *const u8,
    ahead: Ahead,
    act: &[*const Q8Block; T],
    block: usize,
    sums: &mut [[__m512; 2]; T],
) {
    let mut dots = [[_mm512_setzero_si512(); 2]; T];
    // SAFETY: guaranteed by the caller.
    unsafe {
        for t in 0..T {
            let start = match KIND {
                Q4_0 => _mm512_set1_epi32((*act[t].add(block)).minus_8),
                Q4_1 => _mm512_setzero_si512(),
                _ => _mm512_set1_epi32((*act[t].add(block)).minus_128),
            };
            dots[t] = [start; 2];
        }
        ahead.prefetch(w);
        if KIND == Q8_0 {
            for j in 0..8 {
                let weights = [load(w.add(64 * j)), load(w.add(512 + 64 * j))];
                dot(&mut dots, weights, act, block, j);
            }
        } else {
            for j in 0..4 {
                let both = [load(w.add(64 * j)), load(w.add(256 + 64 * j))];
                let (low, high) = low_high(both);
                dot(&mut dots, low, act, block, j);
                dot(&mut dots, high, act, block, 4 + j);
            }
        }
        let halves = if KIND == Q8_0 { w.add(1024) } else { w.add(512) };
        let scales = load_halves(halves);
        for t in 0..T {
            let d = _mm512_set1_ps((*act[t].add(block)).d);
            for g in 0..2 {
                let scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(dots[t][g]), scales[g]);
                sums[t][g] = _mm512_fmadd_ps(scaled, d, sums[t][g]);
            }
        }
        if KIND == Q4_1 {
            let minima = load_halves(w.add(576));
            for t in 0..T {
                let s = _mm512_set1_ps((*act[t].add(block)).s);
                for g in 0..2 {
                    sums[t][g] = _mm512_fmadd_ps(minima[g], s, sums[t][g]);
                }
            }
        }
    }
}

/// Adds the products of four elements of 32 rows and all tokens.
///
/// # Safety
/// The pointers must be valid for these reads.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
unsafe fn dot<const T: usize>(
    dots: &mut [[__m512i; 2]; T],
    w: [__m512i; 2],
    act: &[*const Q8Block; T],
    block: usize,
    four: usize,
) {
    for t in 0..T {
        // SAFETY: guaranteed by the caller; `q` comes first in the block and has eight groups of four.
        let a = _mm512_set1_epi32(unsafe { act[t].add(block).cast::<i32>().add(four).read() });
        dots[t][0] = _mm512_dpbusd_epi32(dots[t][0], w[0], a);
        dots[t][1] = _mm512_dpbusd_epi32(dots[t][1], w[1], a);
    }
}
