//! NEON vectors, the baseline of aarch64. Each function requires what [`Simd`] says; each `unsafe` block has
//! intrinsics of the instruction set that the caller guarantees.
#![allow(clippy::undocumented_unsafe_blocks, reason = "one contract for all methods: that of the trait")]

use super::Simd;
use half::f16;
use half::slice::HalfFloatSliceExt;
use std::arch::aarch64::*;

/// 4 lanes.
#[derive(Clone, Copy)]
pub(crate) struct Neon;

/// Widens `n` f16 values, at most 4.
#[inline(always)]
unsafe fn halves(p: *const u16, n: usize) -> [f32; 4] {
    let (mut part, mut wide) = ([f16::ZERO; 4], [0.0f32; 4]);
    // SAFETY: `n` f16 values are readable; `f16` is a `u16` in memory.
    unsafe { std::ptr::copy_nonoverlapping(p.cast::<f16>(), part.as_mut_ptr(), n) };
    // Uses the half crate's assembly for the conversion instructions, which every aarch64 CPU has.
    part.convert_to_f32_slice(&mut wide);
    wide
}

// SAFETY (all of it): see the trait; every method is lane arithmetic or touches memory that its caller
// guarantees.
impl Simd for Neon {
    const N: usize = 4;
    const REGISTERS: usize = 32;
    const TILE: (usize, usize) = (4, 6);
    type V = float32x4_t;

    #[inline(always)]
    unsafe fn splat(x: f32) -> float32x4_t {
        unsafe { vdupq_n_f32(x) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> float32x4_t {
        unsafe { vld1q_f32(p) }
    }
    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize) -> float32x4_t {
        let mut part = [0.0f32; 4];
        unsafe {
            std::ptr::copy_nonoverlapping(p, part.as_mut_ptr(), n);
            vld1q_f32(part.as_ptr())
        }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: float32x4_t) {
        unsafe { vst1q_f32(p, v) }
    }
    #[inline(always)]
    unsafe fn store_part(p: *mut f32, v: float32x4_t, n: usize) {
        let mut part = [0.0f32; 4];
        unsafe {
            vst1q_f32(part.as_mut_ptr(), v);
            std::ptr::copy_nonoverlapping(part.as_ptr(), p, n);
        }
    }
    #[inline(always)]
    unsafe fn store_past_caches(p: *mut f32, v: float32x4_t) {
        unsafe { vst1q_f32(p, v) }
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        // A hint that changes no register and no memory visible to the program.
        unsafe {
            std::arch::asm!("prfm pldl1keep, [{p}]", p = in(reg) p, options(readonly, nostack, preserves_flags))
        }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> float32x4_t {
        let v: float32x4_t;
        // The intrinsic is not stable; the instruction is in the base architecture.
        unsafe {
            let h = vld1_u16(p);
            std::arch::asm!("fcvtl {v:v}.4s, {h:v}.4h", v = out(vreg) v, h = in(vreg) h, options(pure, nomem, nostack));
        }
        v
    }
    #[inline(always)]
    unsafe fn load_f16_part(p: *const u16, n: usize) -> float32x4_t {
        unsafe { vld1q_f32(halves(p, n).as_ptr()) }
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, v: float32x4_t) {
        let h: uint16x4_t;
        unsafe {
            std::arch::asm!("fcvtn {h:v}.4h, {v:v}.4s", h = out(vreg) h, v = in(vreg) v, options(pure, nomem, nostack));
            vst1_u16(p, h);
        }
    }
    #[inline(always)]
    unsafe fn store_f16_part(p: *mut u16, v: float32x4_t, n: usize) {
        let mut part = [0u16; 4];
        unsafe {
            Self::store_f16(part.as_mut_ptr(), v);
            std::ptr::copy_nonoverlapping(part.as_ptr(), p, n);
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> float32x4_t {
        unsafe { vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(p))) }
    }
    #[inline(always)]
    unsafe fn load_bf16_part(p: *const u16, n: usize) -> float32x4_t {
        let mut part = [0u16; 4];
        unsafe {
            std::ptr::copy_nonoverlapping(p, part.as_mut_ptr(), n);
            Self::load_bf16(part.as_ptr())
        }
    }
    #[inline(always)]
    unsafe fn add(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vaddq_f32(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vsubq_f32(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vmulq_f32(a, b) }
    }
    #[inline(always)]
    unsafe fn div(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vdivq_f32(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        unsafe { vfmaq_f32(c, a, b) }
    }
    #[inline(always)]
    unsafe fn max(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vmaxq_f32(a, b) }
    }
    #[inline(always)]
    unsafe fn min(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vminq_f32(a, b) }
    }
    #[inline(always)]
    unsafe fn round(a: float32x4_t) -> float32x4_t {
        unsafe { vrndnq_f32(a) }
    }
    #[inline(always)]
    unsafe fn scale_by_power(a: float32x4_t, n: float32x4_t) -> float32x4_t {
        unsafe {
            let exponent = vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127));
            vmulq_f32(a, vreinterpretq_f32_s32(vshlq_n_s32::<23>(exponent)))
        }
    }
    #[inline(always)]
    unsafe fn if_less(a: float32x4_t, b: float32x4_t, x: float32x4_t, y: float32x4_t) -> float32x4_t {
        unsafe { vbslq_f32(vcltq_f32(a, b), x, y) }
    }
    #[inline(always)]
    unsafe fn copysign(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vbslq_f32(vdupq_n_u32(0x8000_0000), b, a) }
    }
    #[inline(always)]
    unsafe fn round_f16(a: float32x4_t) -> float32x4_t {
        let mut part = [0u16; 4];
        unsafe {
            Self::store_f16(part.as_mut_ptr(), a);
            Self::load_f16(part.as_ptr())
        }
    }
    #[inline(always)]
    unsafe fn sum(a: float32x4_t) -> f32 {
        unsafe { vaddvq_f32(a) }
    }
    #[inline(always)]
    unsafe fn maximum(a: float32x4_t) -> f32 {
        unsafe { vmaxvq_f32(a) }
    }
    #[inline(always)]
    unsafe fn sum4(p: *mut f32, [a, b, c, d]: [float32x4_t; 4]) {
        unsafe { vst1q_f32(p, vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d))) }
    }
}
