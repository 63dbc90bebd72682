//! Q6_K for many tokens: a few panels at a time are unpacked into scratch memory, which stays in the L2 cache while all
//! tokens are multiplied with it.
//!
//! Unpacking once for all tokens takes the bit operations out of the innermost loop, of which six bits need many. What
//! is left there for each part of 32 elements is eight `vpdpbusd`, two multiplications by the scales of 16 and one of the
//! sums of activations, all on the same pipes: at most 8 of 11 of the peak. Results are those of [`super::k`].

#![allow(clippy::needless_range_loop, reason = "loops over tokens and vectors index several arrays alike")]

use std::arch::x86_64::*;

use super::super::panel::{self, Q6K_BLOCK};
use super::super::tiles::{Ahead, CACHE_LINE, ProductTile, each_tile_of};
use super::k::{IntSums, dot, even_words, pair_of_sums, six_bits, words};
use super::{TILE, load, load_halves, store};
use crate::format::Q8KBlock;
use crate::matmul::MatmulJob;

/// A block of 256 elements of 32 rows: values as bytes, `[part][vector of rows][four elements]`; scales as integers,
/// `[part][half][vector of rows]`, and as pairs of words, `[part][vector of rows]`; d as floats, `[vector of rows]`.
const BLOCK: usize = FLOATS + 2 * 64;
const SCALES: usize = 8 * 1024;
const PAIRS: usize = SCALES + 8 * 4 * 64;
const FLOATS: usize = PAIRS + 8 * 2 * 64;
/// Bytes of panels that are unpacked at a time, unless one alone is larger.
const CHUNK_BYTES: usize = 256 << 10;

/// Bytes of an unpacked panel.
fn panel_bytes(cols: usize) -> usize {
    cols / 256 * BLOCK
}

/// Panels that are unpacked at a time.
fn chunk(cols: usize) -> usize {
    (CHUNK_BYTES / panel_bytes(cols).max(1)).max(1)
}

/// Bytes of scratch memory for this number of tokens. Up to two tiles, multiplying takes less time than unpacking.
pub(super) fn scratch_bytes(cols: usize, tokens: usize) -> usize {
    if tokens <= 2 * TILE { 0 } else { chunk(cols) * panel_bytes(cols) + CACHE_LINE }
}

/// Multiplies if the scratch memory is enough; `false`: nothing was done.
///
/// # Safety
/// The processor must have the instructions.
pub(super) unsafe fn run(job: &MatmulJob<'_>, scratch: &mut [u8]) -> bool {
    let (cols, tokens) = (job.matrix.cols(), job.tokens());
    let need = scratch_bytes(cols, tokens);
    if need == 0 || scratch.len() < need || cols == 0 {
        return false;
    }
    let skip = scratch.as_ptr().align_offset(CACHE_LINE);
    let base = scratch[skip..][..need - CACHE_LINE].as_mut_ptr();
    let place = |panel: usize, start: usize| base.wrapping_add((panel - start) * panel_bytes(cols));
    let unpack = |panel: usize, start: usize| {
        // SAFETY: a chunk has room for its panels, each in its own place; the processor has the instructions.
        unsafe { unpack(job.panel(panel), cols / 256, place(panel, start)) }
    };
    each_tile_of(
        job,
        TILE,
        chunk(cols),
        |start, end| (start..end).for_each(|p| unpack(p, start)),
        |part, start| {
            // SAFETY: the panel was unpacked with the chunk; the processor has the instructions.
            unsafe { tile_of(job, part, place(part.panel, start)) }
        },
    );
    true
}

/// Unpacks a panel with this number of blocks.
///
/// # Safety
/// The processor must have the instructions, and `to` must have room for the blocks, aligned to 64.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c")]
unsafe fn unpack(panel: &[u8], blocks: usize, to: *mut u8) {
    for block in 0..blocks {
        // SAFETY: offsets within a block of the panel and one of `to`.
        unsafe {
            let (w, to) = (panel.as_ptr().add(block * Q6K_BLOCK), to.add(block * BLOCK));
            for part in 0..8 {
                for g in 0..2 {
                    let from = w.add(part * 768 + g * 384);
                    for four in 0..8 {
                        put(to.add(part * 1024 + g * 512 + four * 64), six_bits(from, four / 4, four % 4));
                    }
                    let pair = words(w.add(panel::Q6K_SCALES + 64 * part + 32 * g));
                    put(to.add(SCALES + part * 256 + g * 64), even_words(pair));
                    put(to.add(SCALES + part * 256 + 128 + g * 64), _mm512_srai_epi32::<16>(pair));
                    put(to.add(PAIRS + part * 128 + g * 64), pair);
                }
            }
            let d = load_halves(w.add(panel::Q6K_HALVES));
            _mm512_store_ps(to.add(FLOATS).cast(), d[0]);
            _mm512_store_ps(to.add(FLOATS + 64).cast(), d[1]);
        }
    }
}

/// # Safety
/// 64 aligned bytes must be writable.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn put(to: *mut u8, values: __m512i) {
    // SAFETY: guaranteed by the caller.
    unsafe { _mm512_store_si512(to.cast(), values) };
}

/// An unpacked panel times at most six tokens.
///
/// # Safety
/// The processor must have the instructions, and the panel must be at `w`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c,fma")]
unsafe fn tile_of(job: &MatmulJob<'_>, part: &ProductTile, w: *const u8) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        match part.tokens {
            1 => tile::<1>(job, part, w),
            2 => tile::<2>(job, part, w),
            3 => tile::<3>(job, part, w),
            4 => tile::<4>(job, part, w),
            5 => tile::<5>(job, part, w),
            _ => tile::<6>(job, part, w),
        }
    }
}

/// # Safety
/// As [`tile_of`].
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c,fma")]
unsafe fn tile<const T: usize>(job: &MatmulJob<'_>, part: &ProductTile, w: *const u8) {
    let mut act = [std::ptr::null::<Q8KBlock>(); T];
    for t in 0..T {
        act[t] = job.act(part.first + t).as_ptr().cast();
    }
    let mut sums = [[_mm512_setzero_ps(); 2]; T];
    // What to prefetch belongs to the packed panel.
    let packed = job.panel(part.panel).as_ptr();
    for block in 0..job.matrix.cols() / 256 {
        // SAFETY: the panel and each prepared row have this many blocks.
        unsafe {
            let next = (packed.wrapping_add(block * Q6K_BLOCK), part.ahead);
            let w = w.add(block * BLOCK);
            block_of(w, next, &act, &mut sums);
            for t in 0..T {
                act[t] = act[t].add(1);
            }
        }
    }
    store(job, part, &sums);
}

/// Adds the products of all parts, times their scales.
///
/// # Safety
/// There must be an unpacked block, and a block of each prepared row.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn products<const T: usize>(
    w: *const u8,
    (packed, ahead): (*const u8, Ahead),
    act: &[*const Q8KBlock; T],
    sums: &mut IntSums<T>,
) {
    // SAFETY: offsets within the block.
    unsafe {
        for part in 0..8 {
            ahead.eighth(part).prefetch(packed);
            for half in 0..2 {
                let mut dots = [[_mm512_setzero_si512(); 2]; T];
                for j in 0..4 {
                    let four = half * 4 + j;
                    let values = w.add(part * 1024 + four * 64);
                    dot(&mut dots, [load(values), load(values.add(512))], act, 8 * part + four);
                }
                let scales = w.add(SCALES + part * 256 + half * 128);
                let scales = [load(scales), load(scales.add(64))];
                for t in 0..T {
                    for g in 0..2 {
                        let scaled = _mm512_mullo_epi32(dots[t][g], scales[g]);
                        sums[t][g] = _mm512_add_epi32(sums[t][g], scaled);
                    }
                }
            }
        }
    }
}

/// Adds the sums of activations times the pairs of words.
///
/// # Safety
/// As [`products`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn offsets<const T: usize>(w: *const u8, act: &[*const Q8KBlock; T]) -> IntSums<T> {
    let mut sums = [[_mm512_setzero_si512(); 2]; T];
    // SAFETY: offsets within the block.
    unsafe {
        for part in 0..8 {
            let pairs = w.add(PAIRS + part * 128);
            let pairs = [load(pairs), load(pairs.add(64))];
            for t in 0..T {
                let pair = pair_of_sums(act[t], part);
                for g in 0..2 {
                    sums[t][g] = _mm512_dpwssd_epi32(sums[t][g], pairs[g], pair);
                }
            }
        }
    }
    sums
}

/// # Safety
/// As [`products`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,fma")]
unsafe fn block_of<const T: usize>(
    w: *const u8,
    next: (*const u8, Ahead),
    act: &[*const Q8KBlock; T],
    sums: &mut [[__m512; 2]; T],
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        // Stored values are 32 too large.
        let mut total = offsets(w, act);
        for t in 0..T {
            for g in 0..2 {
                let zero = _mm512_setzero_si512();
                total[t][g] = _mm512_sub_epi32(zero, _mm512_slli_epi32::<5>(total[t][g]));
            }
        }
        products(w, next, act, &mut total);
        for t in 0..T {
            let scale = _mm512_set1_ps((*act[t]).d);
            for g in 0..2 {
                let d = _mm512_load_ps(w.add(FLOATS + 64 * g).cast());
                let product = _mm512_mul_ps(_mm512_cvtepi32_ps(total[t][g]), d);
                sums[t][g] = _mm512_fmadd_ps(product, scale, sums[t][g]);
            }
        }
    }
}
