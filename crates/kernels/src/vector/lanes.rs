//! The kernels of this module on SIMD vectors.

use super::{Glu, Rope};
use crate::simd::Simd;

/// A function of one number.
trait Map: Copy {
    /// # Safety
    /// The CPU must have the instruction set.
    unsafe fn of<S: Simd>(self, x: S::V) -> S::V;
}

/// A function of two numbers.
trait Zip: Copy {
    /// # Safety
    /// The CPU must have the instruction set.
    unsafe fn of<S: Simd>(self, a: S::V, b: S::V) -> S::V;
}

/// Defines a type with fields that implements a function on lanes of `S`.
macro_rules! lane_function {
    ($trait:ident $name:ident { $($field:ident: $ty:ty),* } <$s:ident>($($arg:ident),+) $body:block) => {
        #[derive(Clone, Copy)]
        struct $name { $($field: $ty),* }
        impl $trait for $name {
            #[inline(always)]
            unsafe fn of<$s: Simd>(self, $($arg: $s::V),+) -> $s::V {
                let Self { $($field),* } = self;
                // SAFETY: lane arithmetic; the caller guarantees the instruction set.
                unsafe { $body }
            }
        }
    };
}

lane_function!(Zip Add {} <S>(a, b) { S::add(a, b) });
lane_function!(Zip Mul {} <S>(a, b) { S::mul(a, b) });
lane_function!(Zip Div {} <S>(a, b) { S::div(a, b) });
lane_function!(Zip ScaledMul { factor: f32 } <S>(a, b) { S::mul(S::mul(a, S::splat(factor)), b) });
lane_function!(Zip ScaledAdd { factor: f32 } <S>(a, b) { S::fma(a, S::splat(factor), b) });
lane_function!(Zip SiluMul {} <S>(a, b) { S::mul(Silu {}.of::<S>(a), b) });
lane_function!(Zip GeluMul {} <S>(a, b) { S::mul(Gelu {}.of::<S>(a), b) });
lane_function!(Map Scale { factor: f32, bias: f32 } <S>(x) { S::fma(x, S::splat(factor), S::splat(bias)) });
lane_function!(Map ExpMinus { max: f32 } <S>(x) { S::exp(S::sub(x, S::splat(max))) });
lane_function!(Map Sqr {} <S>(x) { S::mul(x, x) });
lane_function!(Map Tanh {} <S>(x) { S::tanh(x) });
lane_function!(Map OnePlusExpMinus {} <S>(x) { S::add(S::splat(1.0), S::exp(S::sub(S::splat(0.0), x))) });
lane_function!(Map Sigmoid {} <S>(x) { S::div(S::splat(1.0), OnePlusExpMinus {}.of::<S>(x)) });
lane_function!(Map Silu {} <S>(x) { S::div(x, OnePlusExpMinus {}.of::<S>(x)) });
lane_function!(Map Gelu {} <S>(x) {
    // The constants are those of `scalar::gelu`.
    let h = S::round_f16(x);
    let cubic = S::fma(S::mul(S::splat(0.044_715), h), h, S::splat(1.0));
    let inner = S::mul(S::mul(h, S::splat(0.797_884_6)), cubic);
    let value = S::mul(S::mul(h, S::splat(0.5)), S::add(S::splat(1.0), S::tanh(inner)));
    let table = S::round_f16(value);
    let upper = S::if_less(x, S::splat(10.0), table, x);
    S::if_less(S::splat(-10.0), x, upper, S::splat(0.0))
});

#[inline(always)]
unsafe fn map<S: Simd>(f: impl Map, x: &[f32], y: &mut [f32]) {
    let n = x.len().min(y.len());
    let (x, y) = (x.as_ptr(), y.as_mut_ptr());
    let mut i = 0;
    // SAFETY: the first `n` elements of both are in bounds.
    unsafe {
        while i + S::N <= n {
            S::store(y.add(i), f.of::<S>(S::load(x.add(i))));
            i += S::N;
        }
        if i < n {
            S::store_part(y.add(i), f.of::<S>(S::load_part(x.add(i), n - i)), n - i);
        }
    }
}

#[inline(always)]
unsafe fn zip<S: Simd>(f: impl Zip, a: &[f32], b: &[f32], y: &mut [f32]) {
    let n = a.len().min(b.len()).min(y.len());
    let (a, b, y) = (a.as_ptr(), b.as_ptr(), y.as_mut_ptr());
    let mut i = 0;
    // SAFETY: the first `n` elements of all three are in bounds.
    unsafe {
        while i + S::N <= n {
            S::store(y.add(i), f.of::<S>(S::load(a.add(i)), S::load(b.add(i))));
            i += S::N;
        }
        if i < n {
            let (va, vb) = (S::load_part(a.add(i), n - i), S::load_part(b.add(i), n - i));
            S::store_part(y.add(i), f.of::<S>(va, vb), n - i);
        }
    }
}

macro_rules! maps {
    ($($name:ident = $f:expr;)*) => {$(
        #[inline(always)]
        pub(super) unsafe fn $name<S: Simd>(x: &[f32], y: &mut [f32]) {
            // SAFETY: the caller guarantees the instruction set.
            unsafe { map::<S>($f, x, y) }
        }
    )*};
}
maps! { sqr = Sqr {}; silu = Silu {}; gelu = Gelu {}; sigmoid = Sigmoid {}; tanh = Tanh {}; }

macro_rules! zips {
    ($($name:ident = $f:expr;)*) => {$(
        #[inline(always)]
        pub(super) unsafe fn $name<S: Simd>(a: &[f32], b: &[f32], y: &mut [f32]) {
            // SAFETY: the caller guarantees the instruction set.
            unsafe { zip::<S>($f, a, b, y) }
        }
    )*};
}
zips! { add = Add {}; mul = Mul {}; div = Div {}; }

#[inline(always)]
pub(super) unsafe fn scale<S: Simd>(x: &[f32], factor: f32, bias: f32, y: &mut [f32]) {
    // SAFETY: the caller guarantees the instruction set.
    unsafe { map::<S>(Scale { factor, bias }, x, y) }
}

#[inline(always)]
pub(super) unsafe fn glu<S: Simd>(kind: Glu, gate: &[f32], up: &[f32], y: &mut [f32]) {
    // SAFETY: the caller guarantees the instruction set.
    unsafe {
        match kind {
            Glu::Silu => zip::<S>(SiluMul {}, gate, up, y),
            Glu::Gelu => zip::<S>(GeluMul {}, gate, up, y),
        }
    }
}

/// Sum of `x`, or of its squares.
#[inline(always)]
unsafe fn reduce<S: Simd, const SQUARES: bool>(x: &[f32]) -> f32 {
    let (p, n) = (x.as_ptr(), x.len());
    let mut i = 0;
    // SAFETY: the first `n` elements are in bounds.
    unsafe {
        // Four sums hide the latency of the additions and reduce the rounding errors.
        let one = S::splat(1.0);
        let mut sums = [S::splat(0.0); 4];
        while i + 4 * S::N <= n {
            for (j, sum) in sums.iter_mut().enumerate() {
                let v = S::load(p.add(i + j * S::N));
                *sum = S::fma(v, if SQUARES { v } else { one }, *sum);
            }
            i += 4 * S::N;
        }
        while i < n {
            let v = S::load_part(p.add(i), S::N.min(n - i));
            sums[0] = S::fma(v, if SQUARES { v } else { one }, sums[0]);
            i += S::N;
        }
        S::sum(S::add(S::add(sums[0], sums[1]), S::add(sums[2], sums[3])))
    }
}

#[inline(always)]
pub(super) unsafe fn sum<S: Simd>(x: &[f32]) -> f32 {
    // SAFETY: the caller guarantees the instruction set.
    unsafe { reduce::<S, false>(x) }
}

#[inline(always)]
pub(super) unsafe fn rms_norm<S: Simd>(x: &[f32], weight: Option<&[f32]>, eps: f32, y: &mut [f32]) {
    // SAFETY: the caller guarantees the instruction set.
    unsafe {
        let factor = 1.0 / (reduce::<S, true>(x) / x.len().max(1) as f32 + eps).sqrt();
        match weight {
            Some(w) => zip::<S>(ScaledMul { factor }, x, w, y),
            None => map::<S>(Scale { factor, bias: 0.0 }, x, y),
        }
    }
}

#[inline(always)]
pub(super) unsafe fn rope<S: Simd>(kind: Rope, cos: &[f32], sin: &[f32], x: &[f32], y: &mut [f32]) {
    let n = x.len().min(y.len());
    let pairs = cos.len().min(sin.len()).min(n / 2);
    y[2 * pairs..n].copy_from_slice(&x[2 * pairs..n]);
    if kind == Rope::Norm {
        return neighbours(&cos[..pairs], &sin[..pairs], x, y);
    }
    let (c, s, p, q) = (cos.as_ptr(), sin.as_ptr(), x.as_ptr(), y.as_mut_ptr());
    let mut i = 0;
    // SAFETY: `i + part` is at most `pairs`, and `2 * pairs` at most `n`.
    unsafe {
        while i < pairs {
            let part = S::N.min(pairs - i);
            let (c, s) = (S::load_part(c.add(i), part), S::load_part(s.add(i), part));
            let (x0, x1) = (S::load_part(p.add(i), part), S::load_part(p.add(i + pairs), part));
            let y0 = S::fma(x0, c, S::sub(S::splat(0.0), S::mul(x1, s)));
            let y1 = S::fma(x0, s, S::mul(x1, c));
            S::store_part(q.add(i), y0, part);
            S::store_part(q.add(i + pairs), y1, part);
            i += S::N;
        }
    }
}

/// Rotates adjacent pairs. The compiler vectorizes it; which products are rounded is as in builds of GGML.
#[inline(always)]
fn neighbours(cos: &[f32], sin: &[f32], x: &[f32], y: &mut [f32]) {
    let pairs = x.as_chunks::<2>().0.iter().zip(y.as_chunks_mut::<2>().0);
    for ((c, s), ([x0, x1], y)) in cos.iter().zip(sin).zip(pairs) {
        *y = [x0.mul_add(*c, -(x1 * s)), x0.mul_add(*s, x1 * c)];
    }
}

#[inline(always)]
pub(super) unsafe fn softmax<S: Simd>(x: &[f32], mask: Option<&[f32]>, factor: f32, y: &mut [f32]) {
    let n = x.len().min(y.len()).min(mask.map_or(usize::MAX, <[f32]>::len));
    let (x, y) = (&x[..n], &mut y[..n]);
    // SAFETY: the caller guarantees the instruction set; reads stay below `n`.
    unsafe {
        match mask {
            Some(mask) => zip::<S>(ScaledAdd { factor }, x, mask, y),
            None => map::<S>(Scale { factor, bias: 0.0 }, x, y),
        }
        let max = maximum::<S>(y);
        if max == f32::NEG_INFINITY {
            y.fill(0.0);
            return;
        }
        map_in_place::<S>(ExpMinus { max }, y);
        let factor = 1.0 / reduce::<S, false>(y);
        map_in_place::<S>(Scale { factor, bias: 0.0 }, y);
    }
}

#[inline(always)]
unsafe fn maximum<S: Simd>(x: &[f32]) -> f32 {
    let whole = x.len() - x.len() % S::N;
    let mut max = x[whole..].iter().copied().fold(f32::NEG_INFINITY, f32::max);
    // SAFETY: reads end at `whole`.
    unsafe {
        let mut lanes = S::splat(f32::NEG_INFINITY);
        for i in (0..whole).step_by(S::N) {
            lanes = S::max(lanes, S::load(x.as_ptr().add(i)));
        }
        max = max.max(S::maximum(lanes));
    }
    max
}

#[inline(always)]
unsafe fn map_in_place<S: Simd>(f: impl Map, y: &mut [f32]) {
    let n = y.len();
    // SAFETY: a vector reads every element before it is written.
    unsafe {
        for i in (0..n).step_by(S::N) {
            let (p, part) = (y.as_mut_ptr().add(i), S::N.min(n - i));
            S::store_part(p, f.of::<S>(S::load_part(p, part)), part);
        }
    }
}

/// Conversions: a vector is loaded with `$load` or `$load_part` and stored with `$store` or `$store_part`.
macro_rules! conversions {
    ($($name:ident: $from:ty, $to:ty = $load:ident $load_part:ident $store:ident $store_part:ident;)*) => {$(
        #[inline(always)]
        pub(super) unsafe fn $name<S: Simd>(x: &[$from], y: &mut [$to]) {
            let n = x.len().min(y.len());
            let (x, y) = (x.as_ptr(), y.as_mut_ptr());
            let mut i = 0;
            // SAFETY: the first `n` elements of both are in bounds.
            unsafe {
                while i + S::N <= n {
                    S::$store(y.add(i), S::$load(x.add(i)));
                    i += S::N;
                }
                if i < n {
                    S::$store_part(y.add(i), S::$load_part(x.add(i), n - i), n - i);
                }
            }
        }
    )*};
}
conversions! {
    f32_to_f16: f32, u16 = load load_part store_f16 store_f16_part;
    f16_to_f32: u16, f32 = load_f16 load_f16_part store store_part;
    bf16_to_f32: u16, f32 = load_bf16 load_bf16_part store store_part;
}
