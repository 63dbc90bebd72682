//! Few query rows on processors that multiply f16 values and add the products, which are exact, to f32 sums (`fmlal`):
//! keys are not widened.
//!
//! Queries are rounded to f16, which the caller has asked for, and scores are scaled afterwards: they are as exact as
//! with widened keys. Values are widened: weights rounded to f16 change the tokens that a model generates.

use std::arch::aarch64::*;
use std::arch::asm;

use super::super::plan::BLOCK;
use super::QueryTile;
use super::along::{AlongScratch, HeadBlock, HeadProducts, PAD, POSITIONS, Widened, keys};
use crate::simd::Simd;
use crate::simd::neon::Neon;

/// f16 values are multiplied as they are.
pub(super) struct Halves;

/// Values in a register.
const LANES: usize = 8;

/// Adds the products of eight values: of the first four to one register of sums, of the others to the next.
///
/// # Safety
/// The processor must have the instructions.
#[inline(always)]
unsafe fn add_products(low: &mut float32x4_t, high: &mut float32x4_t, a: uint16x8_t, b: uint16x8_t) {
    // SAFETY: the caller guarantees the instructions; only registers are used.
    unsafe {
        asm!(".arch_extension fp16fml", "fmlal {l:v}.4s, {a:v}.4h, {b:v}.4h", l = inout(vreg) *low,
            a = in(vreg) a, b = in(vreg) b, options(pure, nomem, nostack, preserves_flags));
        asm!(".arch_extension fp16fml", "fmlal2 {h:v}.4s, {a:v}.4h, {b:v}.4h", h = inout(vreg) *high,
            a = in(vreg) a, b = in(vreg) b, options(pure, nomem, nostack, preserves_flags));
    }
}

/// Eight values, of which only the first `n` are read; the others are 0.
///
/// # Safety
/// `n` values must be readable.
#[inline(always)]
unsafe fn load(p: *const u16, n: usize) -> uint16x8_t {
    // SAFETY: guaranteed by the caller.
    unsafe {
        if n >= LANES {
            return vld1q_u16(p);
        }
        let mut part = [0; LANES];
        std::ptr::copy_nonoverlapping(p, part.as_mut_ptr(), n);
        vld1q_u16(part.as_ptr())
    }
}

impl HeadProducts<Neon> for Halves {
    #[inline(always)]
    unsafe fn query(tile: &QueryTile<'_>, at: &AlongScratch, row: usize) {
        let (dk, (token, head)) = (tile.a.dk, tile.row(row));
        // SAFETY: the row exists; there is space for as many f32 values.
        unsafe {
            let from = tile.a.q.at(token, head);
            let to = at.q.cast::<u16>().add(row * dk.next_multiple_of(PAD));
            for d in (0..dk).step_by(Neon::N) {
                let n = Neon::N.min(dk - d);
                Neon::store_f16_part(to.add(d), Neon::load_part(from.add(d), n), n);
            }
        }
    }

    #[inline(always)]
    unsafe fn scores<const R: usize>(tile: &QueryTile<'_>, at: &AlongScratch, block: HeadBlock, i: usize) {
        let (dk, stride) = (tile.a.dk, tile.a.dk.next_multiple_of(PAD));
        // The sums of one or two rows are in twice as many registers: each waits for the one before.
        let second = usize::from(R < 4);
        // SAFETY: keys have `dk` elements, queries are padded with zeros; a row has BLOCK scores.
        unsafe {
            let k = keys::<Neon>(tile, block, i);
            let q = at.q.cast::<u16>().add(block.row * stride);
            let mut sums = [[[vdupq_n_f32(0.0); 2]; POSITIONS]; R];
            for d in (0..dk).step_by(LANES) {
                let k = k.map(|k| load(k.add(d), dk - d));
                for (r, sums) in sums.iter_mut().enumerate() {
                    let q = vld1q_u16(q.add(r * stride + d));
                    for (sum, k) in sums.iter_mut().zip(k) {
                        let (mut low, mut high) = (sum[0], sum[1]);
                        if second == 1 {
                            add_products(&mut low, &mut high, q, k);
                        } else {
                            add_both(&mut low, q, k);
                        }
                        (sum[0], sum[1]) = (low, high);
                    }
                }
            }
            for (r, sums) in sums.iter().enumerate() {
                let to = at.s.add((block.row + r) * BLOCK + i);
                Neon::sum4(to, sums.map(|[low, high]| if second == 1 { vaddq_f32(low, high) } else { low }));
                vst1q_f32(to, vmulq_n_f32(vld1q_f32(to), tile.query_factor()));
            }
        }
    }

    #[inline(always)]
    unsafe fn put_weights(row: *mut f32, i: usize, weights: float32x4_t) -> float32x4_t {
        // SAFETY: as for this method.
        unsafe { <Widened as HeadProducts<Neon>>::put_weights(row, i, weights) }
    }

    #[inline(always)]
    unsafe fn values<const R: usize>(tile: &QueryTile<'_>, at: &AlongScratch, block: HeadBlock) {
        // SAFETY: as for this method.
        unsafe { <Widened as HeadProducts<Neon>>::values::<R>(tile, at, block) }
    }
}

/// The same with a single register of sums.
///
/// # Safety
/// The processor must have the instructions.
#[inline(always)]
unsafe fn add_both(sums: &mut float32x4_t, a: uint16x8_t, b: uint16x8_t) {
    // SAFETY: the caller guarantees the instructions; only registers are used.
    unsafe {
        asm!(".arch_extension fp16fml", "fmlal {s:v}.4s, {a:v}.4h, {b:v}.4h", "fmlal2 {s:v}.4s, {a:v}.4h, {b:v}.4h",
            s = inout(vreg) *sums, a = in(vreg) a, b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags));
    }
}
