//! The product of a panel of weights with a tile of activations: the innermost loops.
//!
//! A stretch of 16 columns is one pass of the inner loop. A tile of `e` by `h` registers needs `e h + e + h <=
//! 32` registers; the most products per load are then reached by 8 tokens by 8 rows: with `smmla` 4 by 4
//! registers of sums, 16 products for 8 loads. Block scales are applied outside the inner loop.

use std::arch::aarch64::*;
use std::hint::black_box;

use super::machine::{ArmIsa, from_halves, from_high_halves};
use super::panel::{PanelPlace, ROWS, STRETCH, extra_bytes, list, tile_block_bytes};
use super::types::{PackedType, block_bytes};
use crate::matmul::MatmulJob;
use crate::simd::Simd;
use crate::simd::neon::Neon;

const CACHE_LINE: usize = 64;

/// Eight values, one per row.
pub(super) type RowVector = [uint32x4_t; 2];

/// Multiplies, and writes the results of a tile of `N / 2` tokens.
pub(super) fn multiply<M: ArmIsa, T: PackedType, const N: usize>(
    job: &MatmulJob<'_>,
    w: &[u8],
    a: &[u8],
    at: PanelPlace,
) {
    let blocks = job.matrix.cols() / T::BLOCK;
    assert!(w.len() >= blocks * block_bytes::<T>() && a.len() >= blocks * tile_block_bytes::<T>(N / 2));
    // Kept as a loop for many tokens: if unrolled, a block's sums are moved around between registers.
    let stretches = if N < 16 { T::PART / STRETCH } else { black_box(T::PART / STRETCH) };
    let ahead = if N == M::LEAST { job.matrix.reading().distance } else { 0 };
    // SAFETY: sizes were checked above; the matrix was made for an available machine.
    let totals = unsafe {
        if ahead > 0 {
            dot::<M, T, N, true>(w.as_ptr(), a.as_ptr(), blocks, (stretches, ahead))
        } else {
            dot::<M, T, N, false>(w.as_ptr(), a.as_ptr(), blocks, (stretches, 0))
        }
    };
    write::<M, N>(job, &totals, at);
}

#[inline(never)]
pub(super) fn write<M: ArmIsa, const N: usize>(
    job: &MatmulJob<'_>,
    totals: &[float32x4_t; N],
    at: PanelPlace,
) {
    let rows = job.rows.end - at.row;
    for t in 0..at.tokens.min(N / 2) {
        let [low, high] = M::rows_of(totals, t);
        // SAFETY: the job's own rows of its own tokens, at most as many as there are.
        unsafe {
            let out = job.out(at.token + t, at.row);
            if rows >= ROWS {
                vst1q_f32(out, low);
                vst1q_f32(out.add(4), high);
            } else {
                let mut all = [0.0; ROWS];
                vst1q_f32(all.as_mut_ptr(), low);
                vst1q_f32(all.as_mut_ptr().add(4), high);
                out.copy_from_nonoverlapping(all.as_ptr(), rows);
            }
        }
    }
}

/// Eight f16 values.
#[inline(always)]
pub(super) unsafe fn halves(at: *const u8) -> RowVector {
    // SAFETY: the caller guarantees 16 bytes there.
    unsafe {
        let all = vld1q_u16(at.cast());
        let (low, high) = (from_halves(vget_low_u16(all)), from_high_halves(all));
        [vreinterpretq_u32_f32(low), vreinterpretq_u32_f32(high)]
    }
}

/// Eight sign-extended bytes: scales of Q6_K are signed, those of Q4_K need only 6 bits.
#[inline(always)]
pub(super) unsafe fn bytes(at: *const u8) -> RowVector {
    // SAFETY: the caller guarantees 8 bytes there.
    unsafe {
        let all = vmovl_s8(vld1_s8(at.cast()));
        let (low, high) = (vmovl_s16(vget_low_s16(all)), vmovl_s16(vget_high_s16(all)));
        [vreinterpretq_u32_s32(low), vreinterpretq_u32_s32(high)]
    }
}

/// For each sum register: its index, its tokens' values in the list, and its rows' values.
#[inline(always)]
unsafe fn each<M: ArmIsa, const N: usize>(
    tokens: *const u8,
    rows: RowVector,
    mut act: impl FnMut(usize, uint32x4_t, uint32x4_t),
) {
    let units = ROWS / M::ROWS;
    for i in 0..N / units {
        // SAFETY: the caller guarantees one value per token there.
        let token = unsafe { M::of_token(tokens, i) };
        for u in 0..units {
            act(i * units + u, token, M::of_rows(rows, u));
        }
    }
}

/// totals += sums · (scale of the rows · scale of the tokens), fused.
#[inline(always)]
pub(super) unsafe fn scale<M: ArmIsa, const N: usize>(
    totals: &mut [float32x4_t; N],
    sums: &[int32x4_t; N],
    rows: RowVector,
    tokens: *const u8,
) {
    // SAFETY: the caller guarantees one value per token there; the rest uses only registers.
    unsafe {
        each::<M, N>(tokens, rows, |i, token, row| {
            let factor = vmulq_f32(vreinterpretq_f32_u32(row), vreinterpretq_f32_u32(token));
            totals[i] = vfmaq_f32(totals[i], vcvtq_f32_s32(sums[i]), factor);
        });
    }
}

/// Location of a part's activations, its number of stretches, and how far ahead its weights are prefetched.
#[derive(Clone, Copy)]
struct PartActivations {
    extra: *const u8,
    stretches: usize,
    ahead: usize,
}

/// Prefetches a part's quants, and the head of a block that has no other part.
#[inline(always)]
fn prefetch<T: PackedType>(w: *const u8, ahead: usize) {
    let head = if T::PART == T::BLOCK { T::HEAD_BYTES } else { 0 };
    let bytes = head + T::PART / STRETCH * T::STRETCH_BYTES;
    for line in (0..bytes).step_by(CACHE_LINE) {
        // SAFETY: a prefetch hint may point anywhere.
        unsafe { Neon::prefetch(w.wrapping_add(ahead + line)) };
    }
}

/// The integer sums of a part, and the position of the next part's quants.
#[inline(always)]
unsafe fn sums<M: ArmIsa, T: PackedType, const N: usize>(
    mut w: *const u8,
    part: PartActivations,
) -> ([int32x4_t; N], *const u8) {
    // SAFETY: the caller guarantees a complete part at both pointers.
    unsafe {
        let zero = vdupq_n_u32(0);
        let mut sums = [vreinterpretq_s32_u32(zero); N];
        if T::BIAS {
            each::<M, N>(part.extra, [zero; 2], |i, token, _| sums[i] = vreinterpretq_s32_u32(token));
        }
        let mut acts = part.extra.add(extra_bytes::<T>(N / 2));
        if N == M::LEAST && part.ahead > 0 {
            prefetch::<T>(w, part.ahead);
        }
        for _ in 0..part.stretches {
            let quants = if M::ROWS == 2 { T::load::<4>(w) } else { T::load::<2>(w) };
            M::stretch(&mut sums, &quants, acts);
            w = w.add(T::STRETCH_BYTES);
            acts = acts.add(STRETCH * N / 2);
        }
        (sums, w)
    }
}

/// The dot products of 8 rows and `N / 2` tokens. The smallest tile, for which weights are read just once, can prefetch
/// them, `ahead` bytes early.
///
/// # Safety
/// The machine's instructions must be available, `w` and `a` must have `blocks` blocks, and parts `stretches`
/// stretches.
#[inline(never)]
unsafe fn dot<M: ArmIsa, T: PackedType, const N: usize, const AHEAD: bool>(
    mut w: *const u8,
    mut a: *const u8,
    blocks: usize,
    (stretches, ahead): (usize, usize),
) -> [float32x4_t; N] {
    let ahead = if AHEAD { ahead } else { 0 };
    // SAFETY: guaranteed by the caller for each block.
    unsafe {
        let mut totals = [vdupq_n_f32(0.0); N];
        for _ in 0..blocks {
            if T::PART == T::BLOCK {
                whole::<M, T, N>(&mut totals, w, a, (stretches, ahead));
            } else {
                in_parts::<M, T, N>(&mut totals, w, a, (stretches, ahead));
            }
            w = w.add(block_bytes::<T>());
            a = a.add(tile_block_bytes::<T>(N / 2));
        }
        totals
    }
}

/// A block with a single part: Q4_0, Q4_1, Q8_0, IQ4_NL, MXFP4.
#[inline(always)]
unsafe fn whole<M: ArmIsa, T: PackedType, const N: usize>(
    totals: &mut [float32x4_t; N],
    w: *const u8,
    a: *const u8,
    (stretches, ahead): (usize, usize),
) {
    // SAFETY: the caller guarantees a block at both pointers.
    unsafe {
        let extra = a.add(4 * list(N / 2));
        let (sums, _) = sums::<M, T, N>(w.add(T::HEAD_BYTES), PartActivations { extra, stretches, ahead });
        scale::<M, N>(totals, &sums, T::scales(w), a);
        if T::MINIMUM {
            each::<M, N>(extra, halves(w.add(2 * ROWS)), |i, token, row| {
                totals[i] = vfmaq_f32(totals[i], vreinterpretq_f32_u32(row), vreinterpretq_f32_u32(token));
            });
        }
    }
}

/// A block of several parts with integer scales: Q4_K, Q5_K, Q6_K, IQ4_XS.
#[inline(always)]
unsafe fn in_parts<M: ArmIsa, T: PackedType, const N: usize>(
    totals: &mut [float32x4_t; N],
    w: *const u8,
    a: *const u8,
    (stretches, ahead): (usize, usize),
) {
    let parts = T::BLOCK / T::PART;
    let (first, stride) = (4 * list(N / 2), extra_bytes::<T>(N / 2) + T::PART * N / 2);
    // SAFETY: the caller guarantees a block at both pointers.
    unsafe {
        let scales = w.add(if T::MINIMUM { 4 * ROWS } else { 2 * ROWS });
        let mut quants = w.add(T::HEAD_BYTES);
        let mut products = [vdupq_n_s32(0); N];
        for p in 0..parts {
            let extra = a.add(first + p * stride);
            let (sums, next) = sums::<M, T, N>(quants, PartActivations { extra, stretches, ahead });
            quants = next;
            each::<M, N>(extra, bytes(scales.add(p * ROWS)), |i, _, row| {
                products[i] = vmlaq_s32(products[i], sums[i], vreinterpretq_s32_u32(row));
            });
        }
        scale::<M, N>(totals, &products, halves(w), a);
        if T::MINIMA {
            let (minima, sums) = (scales.add(parts * ROWS), a.add(first + parts * stride));
            add_minima::<M, N>(totals, (w.add(2 * ROWS), minima), (a, sums));
        }
    }
}

/// Adds the products of the minima of 8 parts, already negative, with the sums of the tokens' parts. Scales of the rows,
/// and minima; scales of the tokens, and sums.
#[inline(always)]
pub(super) unsafe fn add_minima<M: ArmIsa, const N: usize>(
    totals: &mut [float32x4_t; N],
    (rows, minima): (*const u8, *const u8),
    (tokens, sums): (*const u8, *const u8),
) {
    // SAFETY: the caller guarantees these lists, minima for half a stretch, and sums for a stretch.
    unsafe {
        let mut registers = [vdupq_n_u8(0); 4];
        for (i, register) in registers.iter_mut().enumerate() {
            *register = vld1q_u8(minima.add(16 * i));
        }
        let mut products = [vdupq_n_s32(0); N];
        M::minima(&mut products, &registers, sums);
        scale::<M, N>(totals, &products, halves(rows), tokens);
    }
}
