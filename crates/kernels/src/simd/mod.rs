//! f32 vectors with a common interface, so that a kernel is written once and compiled for every instruction set.
//!
//! A kernel is an `#[inline(always)]` function generic over [`Simd`]; [`per_isa!`] makes the function that
//! selects the instruction set at run time and enters the kernel through a function with the right
//! `target_feature`s. Everything on that path must be inlined into that function, hence `inline(always)`, and
//! types with methods instead of closures.

#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86;

/// The f32 vector of one instruction set.
///
/// # Safety
/// All methods require the CPU to have the instruction set; those with pointers require valid memory there.
/// `_part` methods touch only the first `n` elements, `n` at most [`Simd::N`]; elements not loaded are 0.
pub(crate) trait Simd: Copy {
    /// Elements per vector.
    const N: usize;
    /// Number of vector registers.
    const REGISTERS: usize;
    /// Adjacent vectors in a matrix kernel's tile, and rows of broadcasts multiplied with them, chosen so that
    /// accumulators and operands fit the registers.
    const TILE: (usize, usize);
    type V: Copy;

    unsafe fn splat(x: f32) -> Self::V;
    unsafe fn load(p: *const f32) -> Self::V;
    unsafe fn load_part(p: *const f32, n: usize) -> Self::V;
    unsafe fn store(p: *mut f32, v: Self::V);
    unsafe fn store_part(p: *mut f32, v: Self::V, n: usize);
    /// Stores to aligned memory, bypassing the caches if there is such an instruction.
    unsafe fn store_past_caches(p: *mut f32, v: Self::V);
    /// Prefetches the cache line at `p`, which need not be valid.
    unsafe fn prefetch(p: *const u8);
    unsafe fn load_f16(p: *const u16) -> Self::V;
    unsafe fn load_f16_part(p: *const u16, n: usize) -> Self::V;
    unsafe fn store_f16(p: *mut u16, v: Self::V);
    unsafe fn store_f16_part(p: *mut u16, v: Self::V, n: usize);
    unsafe fn load_bf16(p: *const u16) -> Self::V;
    unsafe fn load_bf16_part(p: *const u16, n: usize) -> Self::V;

    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V;
    /// a·b + c, rounded once.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V;
    /// Rounds to the nearest integer.
    unsafe fn round(a: Self::V) -> Self::V;
    /// a·2^n for integers n from -126 to 127.
    unsafe fn scale_by_power(a: Self::V, n: Self::V) -> Self::V;
    /// `x` where a < b, else `y`; per lane.
    unsafe fn if_less(a: Self::V, b: Self::V, x: Self::V, y: Self::V) -> Self::V;
    /// Magnitude of `a`, sign of `b`.
    unsafe fn copysign(a: Self::V, b: Self::V) -> Self::V;
    /// Rounds through f16 and back.
    unsafe fn round_f16(a: Self::V) -> Self::V;
    /// Sum over the lanes.
    unsafe fn sum(a: Self::V) -> f32;
    /// Maximum over the lanes.
    unsafe fn maximum(a: Self::V) -> f32;
    /// Sum over the lanes of each of four vectors, written to `p[0..4]`.
    unsafe fn sum4(p: *mut f32, v: [Self::V; 4]);

    /// e^x; 0 below -87.3 (the smallest normal number), and capped at e^88.3, which f32 can still represent.
    #[inline(always)]
    unsafe fn exp(x: Self::V) -> Self::V {
        // Cephes' expf: x = n·ln 2 + r, a polynomial for e^r. The two parts of ln 2 make r exact.
        const POLY: [f32; 6] =
            [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];
        // SAFETY: lane arithmetic; the caller guarantees the instruction set.
        unsafe {
            let low = Self::splat(-87.33);
            let clamped = Self::min(Self::max(x, low), Self::splat(88.3));
            let n = Self::round(Self::mul(clamped, Self::splat(std::f32::consts::LOG2_E)));
            let r = Self::fma(n, Self::splat(-0.693_359_4), clamped);
            let r = Self::fma(n, Self::splat(2.121_944_4e-4), r);
            let mut p = Self::splat(POLY[0]);
            p = Self::fma(p, r, Self::splat(POLY[1]));
            p = Self::fma(p, r, Self::splat(POLY[2]));
            p = Self::fma(p, r, Self::splat(POLY[3]));
            p = Self::fma(p, r, Self::splat(POLY[4]));
            p = Self::fma(p, r, Self::splat(POLY[5]));
            let y = Self::fma(Self::mul(p, r), r, Self::add(r, Self::splat(1.0)));
            Self::if_less(x, low, Self::splat(0.0), Self::scale_by_power(y, n))
        }
    }

    /// tanh(x).
    #[inline(always)]
    unsafe fn tanh(x: Self::V) -> Self::V {
        // Cephes' tanhf: a polynomial where 1 - 2/(e^2x + 1) would cancel.
        const POLY: [f32; 5] =
            [-5.704_988_7e-3, 2.063_909e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328e-1];
        // SAFETY: lane arithmetic; the caller guarantees the instruction set.
        unsafe {
            let one = Self::splat(1.0);
            let magnitude = Self::copysign(x, one);
            let e = Self::exp(Self::add(magnitude, magnitude));
            let far = Self::sub(one, Self::div(Self::splat(2.0), Self::add(e, one)));
            let z = Self::mul(x, x);
            let mut p = Self::splat(POLY[0]);
            p = Self::fma(p, z, Self::splat(POLY[1]));
            p = Self::fma(p, z, Self::splat(POLY[2]));
            p = Self::fma(p, z, Self::splat(POLY[3]));
            p = Self::fma(p, z, Self::splat(POLY[4]));
            let near = Self::fma(Self::mul(p, z), x, x);
            Self::if_less(magnitude, Self::splat(0.625), near, Self::copysign(far, x))
        }
    }
}

/// Defines functions that run a kernel on the instruction set given as their first argument:
/// `pub fn name(args) -> result = generic, scalar;` where `generic::<S: Simd>(args)` is the kernel and `scalar(args)`
/// the plain version.
macro_rules! per_isa {
    ($($(#[$doc:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $generic:path, $scalar:path;)*) => {$(
        $(#[$doc])*
        $vis fn $name(isa: $crate::isa::Isa, $($arg: $ty),*) $(-> $ret)? {
            use $crate::isa::Isa;
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn avx2($($arg: $ty),*) $(-> $ret)? {
                use $generic as kernel;
                // SAFETY: this function enables the instruction set.
                unsafe { kernel::<$crate::simd::x86::Avx2>($($arg),*) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
            unsafe fn avx512($($arg: $ty),*) $(-> $ret)? {
                use $generic as kernel;
                // SAFETY: this function enables the instruction set.
                unsafe { kernel::<$crate::simd::x86::Avx512>($($arg),*) }
            }
            #[cfg(target_arch = "aarch64")]
            unsafe fn neon($($arg: $ty),*) $(-> $ret)? {
                use $generic as kernel;
                // SAFETY: this function enables the instruction set.
                unsafe { kernel::<$crate::simd::neon::Neon>($($arg),*) }
            }
            match isa {
                #[cfg(target_arch = "x86_64")]
                // SAFETY: an `Isa` in use is one that this machine has.
                Isa::Avx2 => unsafe { avx2($($arg),*) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: an `Isa` in use is one that this machine has.
                Isa::Avx512Vnni => unsafe { avx512($($arg),*) },
                #[cfg(target_arch = "aarch64")]
                // SAFETY: an `Isa` in use is one that this machine has.
                Isa::Neon | Isa::NeonDot | Isa::NeonI8mm => unsafe { neon($($arg),*) },
                _ => $scalar($($arg),*),
            }
        }
    )*};
}
pub(crate) use per_isa;
