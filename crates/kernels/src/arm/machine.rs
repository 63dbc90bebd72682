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

    /// Whether it pays to widen panels: with products that take many instructions, nothing is saved.
    const WIDENS: bool;

    /// Adds the products of 16 columns. `w[step * (8 / ROWS) + u]` has the columns of a step for one unit of
    /// rows; `acts` has the columns for each step and token, 8 N bytes in total.
    ///
    /// # Safety
    /// The processor must have the instructions, and `acts` must be readable.
    unsafe fn stretch<const N: usize>(sums: &mut [int32x4_t; N], w: &[uint8x16_t; 8], acts: *const u8);

    /// Adds the products of 8 columns with those of a stretch: 128 times with its first 8, and with the others. `w` is
    /// the first half of a stretch's.
    ///
    /// # Safety
    /// As for [`Self::stretch`].
    unsafe fn minima<const N: usize>(sums: &mut [int32x4_t; N], w: &[uint8x16_t; 4], acts: *const u8);

    /// Adds the products of a part's columns of the upper or lower 4 rows (`HALF` 0 or 1) and 8 tokens, each times the
    /// scale of its row. `part` has a register of scales for each unit of rows, then for each half its columns,
    /// `[stretch][step][unit]`; `sums[i * (4 / ROWS) + u]` is for unit `i` of the tokens and unit `u` of the rows.
    /// `STRETCHES` is 1 or 2.
    ///
    /// # Safety
    /// As for [`Self::stretch`]; `part` must be readable.
    unsafe fn add_scaled<const HALF: usize, const STRETCHES: usize>(
        sums: &mut [int32x4_t; 8],
        part: *const u8,
        acts: *const u8,
    );

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

/// The upper four of eight f16 values as floats.
#[inline(always)]
pub(super) fn from_high_halves(bits: uint16x8_t) -> float32x4_t {
    let value: float32x4_t;
    // SAFETY: part of the AArch64 baseline; only registers are used.
    unsafe {
        asm!("fcvtl2 {o:v}.4s, {i:v}.8h", o = lateout(vreg) value, i = in(vreg) bits,
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

/// 4 rows of 8 columns, at an offset from a half's first, times 8 tokens, at two offsets.
macro_rules! smmla_step {
    ($w:literal, $low:literal, $high:literal) => {
        concat!(
            "ldp {w0:q}, {w1:q}, [{part}, #{first} + ",
            $w,
            "]\n",
            "ldp {t0:q}, {t1:q}, [{acts}, #",
            $low,
            "]\n",
            "smmla {p0:v}.4s, {t0:v}.16b, {w0:v}.16b\n",
            "smmla {p1:v}.4s, {t0:v}.16b, {w1:v}.16b\n",
            "smmla {p2:v}.4s, {t1:v}.16b, {w0:v}.16b\n",
            "smmla {p3:v}.4s, {t1:v}.16b, {w1:v}.16b\n",
            "ldp {t0:q}, {t1:q}, [{acts}, #",
            $high,
            "]\n",
            "smmla {p4:v}.4s, {t0:v}.16b, {w0:v}.16b\n",
            "smmla {p5:v}.4s, {t0:v}.16b, {w1:v}.16b\n",
            "smmla {p6:v}.4s, {t1:v}.16b, {w0:v}.16b\n",
            "smmla {p7:v}.4s, {t1:v}.16b, {w1:v}.16b\n"
        )
    };
}

/// A half of a part in one piece, with its first columns and its scales at these offsets: the compiler would split
/// loads of pairs and keep sums in memory.
macro_rules! smmla_half {
    ($sums:ident, $part:ident, $acts:ident, $first:expr, $scales:expr; $($step:expr),*) => {{
        let [a, b, c, d, e, f, g, h] = $sums;
        asm!(".arch_extension i8mm",
            "movi {p0:v}.2d, #0", "movi {p1:v}.2d, #0", "movi {p2:v}.2d, #0", "movi {p3:v}.2d, #0",
            "movi {p4:v}.2d, #0", "movi {p5:v}.2d, #0", "movi {p6:v}.2d, #0", "movi {p7:v}.2d, #0",
            $($step,)*
            "ldp {w0:q}, {w1:q}, [{part}, #{scales}]",
            "mla {a:v}.4s, {p0:v}.4s, {w0:v}.4s", "mla {b:v}.4s, {p1:v}.4s, {w1:v}.4s",
            "mla {c:v}.4s, {p2:v}.4s, {w0:v}.4s", "mla {d:v}.4s, {p3:v}.4s, {w1:v}.4s",
            "mla {e:v}.4s, {p4:v}.4s, {w0:v}.4s", "mla {f:v}.4s, {p5:v}.4s, {w1:v}.4s",
            "mla {g:v}.4s, {p6:v}.4s, {w0:v}.4s", "mla {h:v}.4s, {p7:v}.4s, {w1:v}.4s",
            part = in(reg) $part, acts = in(reg) $acts, first = const $first, scales = const $scales,
            a = inout(vreg) *a, b = inout(vreg) *b, c = inout(vreg) *c, d = inout(vreg) *d,
            e = inout(vreg) *e, f = inout(vreg) *f, g = inout(vreg) *g, h = inout(vreg) *h,
            w0 = out(vreg) _, w1 = out(vreg) _, t0 = out(vreg) _, t1 = out(vreg) _,
            p0 = out(vreg) _, p1 = out(vreg) _, p2 = out(vreg) _, p3 = out(vreg) _,
            p4 = out(vreg) _, p5 = out(vreg) _, p6 = out(vreg) _, p7 = out(vreg) _,
            options(pure, readonly, nostack, preserves_flags));
    }};
}

impl ArmIsa for I8mm {
    const ROWS: usize = 2;
    const WIDENS: bool = true;

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
    unsafe fn minima<const N: usize>(sums: &mut [int32x4_t; N], w: &[uint8x16_t; 4], acts: *const u8) {
        for i in 0..N / 4 {
            // SAFETY: N / 4 registers of two tokens each per step; the caller guarantees the instruction.
            unsafe {
                let (high, low) =
                    (vld1q_s8(acts.add(i * 16).cast()), vld1q_s8(acts.add((N / 4 + i) * 16).cast()));
                for (sum, w) in sums[i * 4..].iter_mut().zip(w) {
                    smmla(sum, high, *w);
                    *sum = vshlq_n_s32::<7>(*sum);
                    smmla(sum, low, *w);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn add_scaled<const HALF: usize, const STRETCHES: usize>(
        sums: &mut [int32x4_t; 8],
        part: *const u8,
        acts: *const u8,
    ) {
        // SAFETY: reads the part's scales and columns and the activations for them, which the caller guarantees as it
        // does the instruction.
        unsafe {
            if STRETCHES == 1 {
                smmla_half!(sums, part, acts, 64 + 64 * HALF, 32 * HALF;
                    smmla_step!("0", "0", "32"), smmla_step!("32", "64", "96"));
            } else {
                smmla_half!(sums, part, acts, 64 + 128 * HALF, 32 * HALF;
                    smmla_step!("0", "0", "32"), smmla_step!("32", "64", "96"),
                    smmla_step!("64", "128", "160"), smmla_step!("96", "192", "224"));
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
    ($machine:ty, $dot:ident, widens: $widens:literal) => {
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

            /// The products of 4 rows with tokens 2 `I` and 2 `I` + 1 of 8.
            #[inline(always)]
            unsafe fn pair<const I: usize, const STRETCHES: usize>(
                w: *const u8,
                acts: *const u8,
            ) -> [int32x4_t; 2] {
                // SAFETY: two registers of four tokens each per step; the caller guarantees the instruction.
                unsafe {
                    let mut sums = [vdupq_n_s32(0); 2];
                    for step in 0..4 * STRETCHES {
                        let w = vld1q_u8(w.add(16 * step));
                        let tokens = vld1q_s8(acts.add((step * 2 + I / 2) * 16).cast());
                        if I % 2 == 0 {
                            $dot::<0>(&mut sums[0], w, tokens);
                            $dot::<1>(&mut sums[1], w, tokens);
                        } else {
                            $dot::<2>(&mut sums[0], w, tokens);
                            $dot::<3>(&mut sums[1], w, tokens);
                        }
                    }
                    sums
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
            const WIDENS: bool = $widens;

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
            unsafe fn minima<const N: usize>(
                sums: &mut [int32x4_t; N],
                w: &[uint8x16_t; 4],
                acts: *const u8,
            ) {
                let [a, b, c, d] = *w;
                let twice = [a, b, c, d, a, b, c, d];
                // SAFETY: guaranteed by the caller; shifts are in the baseline.
                unsafe {
                    Self::step::<0, N>(sums, &twice, acts);
                    Self::step::<1, N>(sums, &twice, acts);
                    for sum in sums.iter_mut() {
                        *sum = vshlq_n_s32::<7>(*sum);
                    }
                    Self::step::<2, N>(sums, &twice, acts);
                    Self::step::<3, N>(sums, &twice, acts);
                }
            }

            #[inline(always)]
            unsafe fn add_scaled<const HALF: usize, const STRETCHES: usize>(
                sums: &mut [int32x4_t; 8],
                part: *const u8,
                acts: *const u8,
            ) {
                // SAFETY: guaranteed by the caller.
                unsafe {
                    let (w, scale) =
                        (part.add(32 + 64 * STRETCHES * HALF), vld1q_s32(part.add(16 * HALF).cast()));
                    let mut add = |at: usize, products: [int32x4_t; 2]| {
                        sums[at] = vmlaq_s32(sums[at], products[0], scale);
                        sums[at + 1] = vmlaq_s32(sums[at + 1], products[1], scale);
                    };
                    add(0, Self::pair::<0, STRETCHES>(w, acts));
                    add(2, Self::pair::<1, STRETCHES>(w, acts));
                    add(4, Self::pair::<2, STRETCHES>(w, acts));
                    add(6, Self::pair::<3, STRETCHES>(w, acts));
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

by_lanes!(Dot, sdot, widens: true);
by_lanes!(Baseline, plain_dot, widens: false);
