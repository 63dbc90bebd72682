//! Types with blocks of several parts (Q4_K, Q5_K, Q6_K, IQ4_XS) for many tokens: a panel is widened once and then multiplied with all tiles of 8 tokens.
//!
//! A wide panel has bytes in place of fewer bits, already without their offset, and a part's scales as the registers
//! that its sums are multiplied with. A part has only 16 or 32 columns, so these scales cost as much as half the
//! products or all: a part is computed as two halves of 4 rows, so that its sums and the block's fit the registers.
//!
//! A block is the scale of each row; where there are minima, the scale of each row's and then those of the panel; then
//! for each part the scales of all units of rows, and for each half the quants of each step and each of its units.

use std::arch::aarch64::*;
use std::hint::black_box;
use std::sync::atomic::{Ordering, compiler_fence};

use super::machine::ArmIsa;
use super::panel::{PanelPlace, ROWS, STRETCH, TOKENS, extra_bytes, list, tile_block_bytes};
use super::tile::{add_minima, bytes, halves, scale, write};
use super::types::{PackedType, block_bytes};
use crate::matmul::MatmulJob;

/// Registers of sums.
const SUMS: usize = 16;
/// Bytes of a number of each row.
const HALVES: usize = 2 * ROWS;
/// Bytes of the minima of 8 parts.
const MINIMA: usize = 8 * ROWS;

/// Whether panels are widened.
pub(super) const fn widens<M: ArmIsa, T: PackedType>() -> bool {
    M::WIDENS && T::WIDE.is_some()
}

/// Bytes before the parts.
const fn head<T: PackedType>() -> usize {
    if T::MINIMA { 2 * HALVES + MINIMA } else { HALVES }
}

/// Bytes of the scales of a part.
const fn scales<M: ArmIsa>() -> usize {
    16 * (ROWS / M::ROWS)
}

/// Bytes of a part.
const fn part_bytes<M: ArmIsa, T: PackedType>() -> usize {
    scales::<M>() + ROWS * T::PART
}

/// Bytes of a block.
pub(super) const fn wide_block_bytes<M: ArmIsa, T: PackedType>() -> usize {
    head::<T>() + T::BLOCK / T::PART * part_bytes::<M, T>()
}

/// Widens a panel.
pub(super) fn widen<M: ArmIsa, T: PackedType>(panel: &[u8], wide: &mut [u8]) {
    let (parts, halves) = (T::BLOCK / T::PART, if T::MINIMA { 2 * HALVES } else { HALVES });
    let blocks = panel.chunks_exact(block_bytes::<T>());
    for (from, to) in blocks.zip(wide.chunks_exact_mut(wide_block_bytes::<M, T>())) {
        let (from, quants) = from.split_at(T::HEAD_BYTES);
        let (scales_of, minima) = from[halves..].split_at(parts * ROWS);
        let (head, to) = to.split_at_mut(head::<T>());
        head[..halves].copy_from_slice(&from[..halves]);
        head[halves..].copy_from_slice(minima);
        let from =
            scales_of.chunks_exact(ROWS).zip(quants.chunks_exact(T::STRETCH_BYTES * T::PART / STRETCH));
        for ((scales_of, quants), to) in from.zip(to.chunks_exact_mut(part_bytes::<M, T>())) {
            // SAFETY: 8 scales, the quants of a part, and a wide part.
            unsafe { widen_part::<M, T>(scales_of.as_ptr(), quants.as_ptr(), to.as_mut_ptr()) };
        }
    }
}

/// # Safety
/// There must be the scales and the quants of a part, and space for a wide one.
#[inline(always)]
unsafe fn widen_part<M: ArmIsa, T: PackedType>(scales_of: *const u8, quants: *const u8, to: *mut u8) {
    let (units, stretches) = (ROWS / M::ROWS, T::PART / STRETCH);
    // SAFETY: guaranteed by the caller.
    unsafe {
        let rows = bytes(scales_of);
        for u in 0..units {
            vst1q_u32(to.add(16 * u).cast(), M::of_rows(rows, u));
        }
        let (to, offset) = (to.add(scales::<M>()), vdupq_n_u8(T::WIDE.unwrap_or(0)));
        for stretch in 0..stretches {
            let quants = quants.add(stretch * T::STRETCH_BYTES);
            let quants = if M::ROWS == 2 { T::load::<4>(quants) } else { T::load::<2>(quants) };
            for (i, quants) in quants.into_iter().enumerate() {
                let (step, unit) = (i / units, i % units);
                let (half, unit) = (unit / (units / 2), unit % (units / 2));
                let at = (half * stretches + stretch) * 4 + step * (units / 2) + unit;
                vst1q_u8(to.add(16 * at), vsubq_u8(quants, offset));
            }
        }
    }
}

/// Multiplies a wide panel with a tile of 8 tokens.
pub(super) fn multiply<M: ArmIsa, T: PackedType>(job: &MatmulJob<'_>, w: &[u8], a: &[u8], at: PanelPlace) {
    let blocks = job.matrix.cols() / T::BLOCK;
    assert!(w.len() >= blocks * wide_block_bytes::<M, T>());
    assert!(a.len() >= blocks * tile_block_bytes::<T>(TOKENS));
    // Kept as a loop: unrolled, it is large and not faster.
    let parts = black_box(T::BLOCK / T::PART);
    // SAFETY: sizes were checked above; the matrix was made for an available machine.
    let totals = unsafe { dot::<M, T>(w.as_ptr(), a.as_ptr(), (blocks, parts)) };
    write::<M, SUMS>(job, &totals, at);
}

/// The dot products of 8 rows and 8 tokens.
///
/// # Safety
/// The machine's instructions must be available, and `w` and `a` must have `blocks` blocks of `parts` parts.
#[inline(never)]
unsafe fn dot<M: ArmIsa, T: PackedType>(
    mut w: *const u8,
    mut a: *const u8,
    (blocks, parts): (usize, usize),
) -> [float32x4_t; SUMS] {
    // SAFETY: guaranteed by the caller for each block.
    unsafe {
        let mut totals = [vdupq_n_f32(0.0); SUMS];
        for _ in 0..blocks {
            let (sums, acts) = block::<M, T>(w, a, parts);
            scale::<M, SUMS>(&mut totals, &sums, halves(w), a);
            if T::MINIMA {
                add_minima::<M, SUMS>(&mut totals, (w.add(HALVES), w.add(2 * HALVES)), (a, acts));
            }
            w = w.add(wide_block_bytes::<M, T>());
            a = a.add(tile_block_bytes::<T>(TOKENS));
        }
        totals
    }
}

/// The integer sums of a block, and the end of its activations.
#[inline(always)]
unsafe fn block<M: ArmIsa, T: PackedType>(
    w: *const u8,
    a: *const u8,
    parts: usize,
) -> ([int32x4_t; SUMS], *const u8) {
    let units = 4 / M::ROWS;
    // SAFETY: the caller guarantees a block at both pointers.
    unsafe {
        let (mut upper, mut lower) = ([vdupq_n_s32(0); SUMS / 2], [vdupq_n_s32(0); SUMS / 2]);
        let (mut part, mut acts) = (w.add(head::<T>()), a.add(4 * list(TOKENS)));
        for _ in 0..parts {
            // The list corrects offsets of packed quants.
            acts = acts.add(extra_bytes::<T>(TOKENS));
            half::<M, T, 0>(&mut upper, part, acts);
            // There are no registers to keep the activations in for the other half.
            compiler_fence(Ordering::SeqCst);
            half::<M, T, 1>(&mut lower, part, acts);
            part = part.add(part_bytes::<M, T>());
            acts = acts.add(T::PART * TOKENS);
        }
        // All units of rows for each unit of the tokens.
        let mut sums = [vdupq_n_s32(0); SUMS];
        for (i, (upper, lower)) in upper.into_iter().zip(lower).enumerate() {
            let at = i / units * 2 * units + i % units;
            (sums[at], sums[at + units]) = (upper, lower);
        }
        (sums, acts)
    }
}

#[inline(always)]
unsafe fn half<M: ArmIsa, T: PackedType, const HALF: usize>(
    sums: &mut [int32x4_t; SUMS / 2],
    part: *const u8,
    acts: *const u8,
) {
    // SAFETY: the caller guarantees a part at both pointers.
    unsafe {
        if T::PART == STRETCH {
            M::add_scaled::<HALF, 1>(sums, part, acts);
        } else {
            M::add_scaled::<HALF, 2>(sums, part, acts);
        }
    }
}
