//! How each AArch64 instruction set multiplies 16 columns of 8 rows with a tile of tokens.
//!
//! Sums are kept in four-lane registers: with `smmla` two tokens by two rows, otherwise one token by four rows.
//! The matrix and dot product instructions are written in assembly because Rust has no stable intrinsics for them
//! yet; everything else is in the AArch64 baseline.

use std::arch::aarch64::*;
use std::arch::asm;

/// An instruction set. `N` registers of sums cover `N / 2` tokens and 8 rows: `sums[i * (8 / ROWS) + u]` is for
/// unit `i` of the tokens and unit `u` of the rows.
pub(super) trait ArmIsa {
    /// Rows that share a register of weights, with `16 / ROWS` columns each.
    const ROWS: usize;
    /// Smallest number of sum registers.
    const LEAST: usize = 8 / Self::ROWS;

    /// Adds the products of 16 columns. `w[step * (8 / ROWS) + u]` has the columns of a step for one unit of
    /// rows; `acts` has the columns for each step and token, 8 N bytes in total.
    ///
    /// # Safety
    /// The processor must have the instructions, and `acts` must be readable.
    unsafe fn stretch<const N: usize>(sums: &mut [int32x4_t; N], w: &[uint8x16_t; 8], acts: *const u8);

    /// Loads one value per token (four bytes each), arranged like the sums of unit `i`.
    ///
    /// # Safety
    /// `values` must be readable up to at least the fourth token's value.
    unsafe fn of_token(values: *const u8, i: usize) -> uint32x4_t;

    /// Eight values, one per row, arranged like the sums of unit `u`.
    fn of_rows(values: [uint32x4_t; 2], u: usize) -> uint32x4_t;

    /// The eight rows of one token.
    fn rows_of<const N: usize>(totals: &[float32x4_t; N], token: usize) -> [float32x4_t; 2];
}

/// Four f16 values as floats.
#[inline(always)]
pub(super) fn from_halves(bits: uint16x4_t) -> float32x4_t {
    let value: float32x4_t;
    // SAFETY: part of the AArch64 baseline; only registers are used.
    unsafe {
        asm!("fcvtl {o:v}.4s, {i:v}.4h", o = lateout(vreg) value, i = in(vreg) bits,
            options(pure, nomem, nostack, preserves_flags));
    }
    value
}

/// The matrix instruction: two rows of 8 columns times two tokens of 8.
pub(super) struct I8mm;

#[inline(always)]
unsafe fn smmla(sums: &mut int32x4_t, tokens: int8x16_t, rows: uint8x16_t) {
    // SAFETY: the caller guarantees the instruction; only registers are used.
    unsafe {
        asm!(".arch_extension i8mm", "smmla {s:v}.4s, {t:v}.16b, {r:v}.16b",
            s = inout(vreg) *sums, t = in(vreg) tokens, r = in(vreg) rows,
            options(pure, nomem, nostack, preserves_flags));
    }
}

impl ArmIsa for I8mm {
    const ROWS: usize = 2;

    #[inline(always)]
    unsafe fn stretch<const N: usize>(sums: &mut [int32x4_t; N], w: &[uint8x16_t; 8], acts: *const u8) {
        for step in 0..2 {
            for i in 0..N / 4 {
                // SAFETY: N / 4 registers of two tokens each per step.
                let tokens = unsafe { vld1q_s8(acts.add((step * (N / 4) + i) * 16).cast()) };
                for u in 0..4 {
                    // SAFETY: the caller guarantees the instruction.
                    unsafe { smmla(&mut sums[i * 4 + u], tokens, w[step * 4 + u]) };
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn of_token(values: *const u8, i: usize) -> uint32x4_t {
        // SAFETY: values come in groups of four.
        unsafe {
            let four = vld1q_u32(values.add(i / 2 * 16).cast());
            if i.is_multiple_of(2) { vzip1q_u32(four, four) } else { vzip2q_u32(four, four) }
        }
    }

    #[inline(always)]
    fn of_rows(values: [uint32x4_t; 2], u: usize) -> uint32x4_t {
        // SAFETY: part of the AArch64 baseline.
        unsafe {
            let pairs = vreinterpretq_u64_u32(values[u / 2]);
            let pair = if u.is_multiple_of(2) { vzip1q_u64(pairs, pairs) } else { vzip2q_u64(pairs, pairs) };
            vreinterpretq_u32_u64(pair)
        }
    }

    #[inline(always)]
    fn rows_of<const N: usize>(totals: &[float32x4_t; N], token: usize) -> [float32x4_t; 2] {
        // SAFETY: part of the AArch64 baseline.
        let pick = |a, b| unsafe {
            let (a, b) = (vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b));
            let both = if token.is_multiple_of(2) { vzip1q_f64(a, b) } else { vzip2q_f64(a, b) };
            vreinterpretq_f32_f64(both)
        };
        let unit = token / 2 * 4;
        [pick(totals[unit], totals[unit + 1]), pick(totals[unit + 2], totals[unit + 3])]
    }
}

/// The dot product: four rows of 4 columns times one token of 4.
pub(super) struct Dot;

#[inline(always)]
unsafe fn sdot<const LANE: usize>(sums: &mut int32x4_t, rows: uint8x16_t, tokens: int8x16_t) {
    // SAFETY: the caller guarantees the instruction; only registers are used.
    unsafe {
        asm!(".arch_extension dotprod", "sdot {s:v}.4s, {r:v}.16b, {t:v}.4b[{lane}]",
            s = inout(vreg) *sums, r = in(vreg) rows, t = in(vreg) tokens, lane = const LANE,
            options(pure, nomem, nostack, preserves_flags));
    }
}

/// The same on baseline AArch64. Products of two columns fit 16 bits: weights of -128 times activations of -127.
pub(super) struct Baseline;

#[inline(always)]
unsafe fn plain_dot<const LANE: i32>(sums: &mut int32x4_t, rows: uint8x16_t, tokens: int8x16_t) {
    // SAFETY: part of the AArch64 baseline.
    unsafe {
        let rows = vreinterpretq_s8_u8(rows);
        let token = vreinterpretq_s8_s32(vdupq_laneq_s32::<LANE>(vreinterpretq_s32_s8(tokens)));
        let low = vmull_s8(vget_low_s8(rows), vget_low_s8(token));
        let high = vmull_high_s8(rows, token);
        *sums = vpadalq_s16(*sums, vpaddq_s16(low, high));
    }
}

/// One token by four rows, with the dot product of one lane. Steps and tokens are written out: a loop is not
/// always unrolled, and an instruction's lane must be a constant.
macro_rules! by_lanes {
    ($machine:ty, $dot:ident) => {
        impl $machine {
            /// One step of one token.
            #[inline(always)]
            unsafe fn lane<const STEP: usize, const TOKEN: usize, const N: usize>(
                sums: &mut [int32x4_t; N],
                w: &[uint8x16_t; 8],
                acts: *const u8,
            ) {
                let at = STEP * (N / 2) + TOKEN;
                for u in 0..2 {
                    // SAFETY: 4 N / 2 lanes, four per register; the caller guarantees the instruction.
                    unsafe {
                        let tokens = vld1q_s8(acts.add(at / 4 * 16).cast());
                        let (sums, w) = (&mut sums[TOKEN * 2 + u], w[STEP * 2 + u]);
                        match at % 4 {
                            0 => $dot::<0>(sums, w, tokens),
                            1 => $dot::<1>(sums, w, tokens),
                            2 => $dot::<2>(sums, w, tokens),
                            _ => $dot::<3>(sums, w, tokens),
                        }
                    }
                }
            }

            /// One step of all tokens.
            #[inline(always)]
            unsafe fn step<const STEP: usize, const N: usize>(
                sums: &mut [int32x4_t; N],
                w: &[uint8x16_t; 8],
                acts: *const u8,
            ) {
                // SAFETY: guaranteed by the caller.
                unsafe {
                    Self::lane::<STEP, 0, N>(sums, w, acts);
                    if N > 2 {
                        Self::lane::<STEP, 1, N>(sums, w, acts);
                    }
                    if N > 4 {
                        Self::lane::<STEP, 2, N>(sums, w, acts);
                        Self::lane::<STEP, 3, N>(sums, w, acts);
                    }
                    if N > 8 {
                        Self::lane::<STEP, 4, N>(sums, w, acts);
                        Self::lane::<STEP, 5, N>(sums, w, acts);
                        Self::lane::<STEP, 6, N>(sums, w, acts);
                        Self::lane::<STEP, 7, N>(sums, w, acts);
                    }
                }
            }
        }

        impl ArmIsa for $machine {
            const ROWS: usize = 4;

            #[inline(always)]
            unsafe fn stretch<const N: usize>(
                sums: &mut [int32x4_t; N],
                w: &[uint8x16_t; 8],
                acts: *const u8,
            ) {
                // SAFETY: guaranteed by the caller.
                unsafe {
                    Self::step::<0, N>(sums, w, acts);
                    Self::step::<1, N>(sums, w, acts);
                    Self::step::<2, N>(sums, w, acts);
                    Self::step::<3, N>(sums, w, acts);
                }
            }

            #[inline(always)]
            unsafe fn of_token(values: *const u8, i: usize) -> uint32x4_t {
                // SAFETY: one value per token.
                unsafe { vld1q_dup_u32(values.add(i * 4).cast()) }
            }

            #[inline(always)]
            fn of_rows(values: [uint32x4_t; 2], u: usize) -> uint32x4_t {
                values[u]
            }

            #[inline(always)]
            fn rows_of<const N: usize>(totals: &[float32x4_t; N], token: usize) -> [float32x4_t; 2] {
                [totals[token * 2], totals[token * 2 + 1]]
            }
        }
    };
}

by_lanes!(Dot, sdot);
by_lanes!(Baseline, plain_dot);
