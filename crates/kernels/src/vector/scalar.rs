//! The kernels of this module in plain Rust: the reference, and the code for `Isa::Scalar`.

use super::{Glu, Rope};
use half::{bf16, f16};

/// sqrt(2 / pi).
const GELU_SCALE: f32 = 0.797_884_6;
/// Weight of the cubic term of GELU's tanh form.
const GELU_CUBIC: f32 = 0.044_715;
/// Beyond this GGML does not use its GELU table: the result is 0 or x.
const GELU_LIMIT: f32 = 10.0;

fn map(x: &[f32], y: &mut [f32], f: impl Fn(f32) -> f32) {
    for (x, y) in x.iter().zip(y) {
        *y = f(*x);
    }
}

fn zip(a: &[f32], b: &[f32], y: &mut [f32], f: impl Fn(f32, f32) -> f32) {
    for ((a, b), y) in a.iter().zip(b).zip(y) {
        *y = f(*a, *b);
    }
}

fn silu_of(x: f32) -> f32 {
    x / (1.0 + (-x).exp())
}

fn gelu_of(x: f32) -> f32 {
    if x <= -GELU_LIMIT {
        return 0.0;
    }
    if x >= GELU_LIMIT {
        return x;
    }
    let x = f16::from_f32(x).to_f32();
    let inner = GELU_SCALE * x * (1.0 + GELU_CUBIC * x * x);
    f16::from_f32(0.5 * x * (1.0 + inner.tanh())).to_f32()
}

pub fn rms_norm(x: &[f32], weight: Option<&[f32]>, eps: f32, y: &mut [f32]) {
    let sum: f64 = x.iter().map(|v| f64::from(v * v)).sum();
    let factor = 1.0 / ((sum / x.len().max(1) as f64) as f32 + eps).sqrt();
    match weight {
        Some(w) => zip(x, w, y, |x, w| x * factor * w),
        None => map(x, y, |x| x * factor),
    }
}

pub fn rope(kind: Rope, cos: &[f32], sin: &[f32], x: &[f32], y: &mut [f32]) {
    let n = x.len().min(y.len());
    let pairs = cos.len().min(sin.len()).min(n / 2);
    for i in 0..pairs {
        let (a, b) = match kind {
            Rope::Norm => (2 * i, 2 * i + 1),
            Rope::Neox => (i, i + pairs),
        };
        let (x0, x1) = (x[a], x[b]);
        y[a] = x0 * cos[i] - x1 * sin[i];
        y[b] = x0 * sin[i] + x1 * cos[i];
    }
    y[2 * pairs..n].copy_from_slice(&x[2 * pairs..n]);
}

pub fn glu(kind: Glu, gate: &[f32], up: &[f32], y: &mut [f32]) {
    match kind {
        Glu::Silu => zip(gate, up, y, |g, u| silu_of(g) * u),
        Glu::Gelu => zip(gate, up, y, |g, u| gelu_of(g) * u),
    }
}

pub fn silu(x: &[f32], y: &mut [f32]) {
    map(x, y, silu_of);
}

pub fn gelu(x: &[f32], y: &mut [f32]) {
    map(x, y, gelu_of);
}

pub fn sigmoid(x: &[f32], y: &mut [f32]) {
    map(x, y, |x| 1.0 / (1.0 + (-x).exp()));
}

pub fn tanh(x: &[f32], y: &mut [f32]) {
    map(x, y, f32::tanh);
}

pub fn add(a: &[f32], b: &[f32], y: &mut [f32]) {
    zip(a, b, y, |a, b| a + b);
}

pub fn mul(a: &[f32], b: &[f32], y: &mut [f32]) {
    zip(a, b, y, |a, b| a * b);
}

pub fn div(a: &[f32], b: &[f32], y: &mut [f32]) {
    zip(a, b, y, |a, b| a / b);
}

pub fn sqr(x: &[f32], y: &mut [f32]) {
    map(x, y, |x| x * x);
}

pub fn scale(x: &[f32], factor: f32, bias: f32, y: &mut [f32]) {
    map(x, y, |x| x * factor + bias);
}

pub fn softmax(x: &[f32], mask: Option<&[f32]>, factor: f32, y: &mut [f32]) {
    match mask {
        Some(mask) => zip(x, mask, y, |x, m| x * factor + m),
        None => scale(x, factor, 0.0, y),
    }
    let n = x.len().min(y.len()).min(mask.map_or(usize::MAX, <[f32]>::len));
    let y = &mut y[..n];
    let max = y.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if max == f32::NEG_INFINITY {
        y.fill(0.0);
        return;
    }
    let mut sum = 0.0f64;
    for v in y.iter_mut() {
        *v = (*v - max).exp();
        sum += f64::from(*v);
    }
    let factor = (1.0 / sum) as f32;
    y.iter_mut().for_each(|v| *v *= factor);
}

pub fn sum(x: &[f32]) -> f32 {
    x.iter().map(|v| f64::from(*v)).sum::<f64>() as f32
}

pub fn f32_to_f16(x: &[f32], y: &mut [u16]) {
    for (x, y) in x.iter().zip(y) {
        *y = f16::from_f32(*x).to_bits();
    }
}

pub fn f16_to_f32(x: &[u16], y: &mut [f32]) {
    for (x, y) in x.iter().zip(y) {
        *y = f16::from_bits(*x).to_f32();
    }
}

pub fn bf16_to_f32(x: &[u16], y: &mut [f32]) {
    for (x, y) in x.iter().zip(y) {
        *y = bf16::from_bits(*x).to_f32();
    }
}
