//! Element-wise and row-wise kernels on slices: norms, rotary embedding, gated units, softmax, sorting, conversions.
//!
//! Every function takes the `Isa` to run on, which this machine must have (`Isa::available`), and processes as
//! many elements as its shortest slice has. [`scalar`] has the same functions in plain Rust as the reference for
//! tests.

mod lanes;
pub mod scalar;

use super::Isa;
use super::simd::per_isa;

/// Which elements of a head form a pair that is rotated together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rope {
    /// Adjacent: 2i and 2i + 1 (llama).
    Norm,
    /// i and i + n_dims / 2 (qwen2, gemma2).
    Neox,
}

/// How positions are converted to angles.
#[derive(Debug, Clone, Copy)]
pub struct RopeAngles<'a> {
    /// Elements of a head that are rotated; even.
    pub n_dims: usize,
    /// Base of the wavelengths (`rope.freq_base`).
    pub freq_base: f32,
    /// Factor for the position (1 / `rope.scaling.factor` for linear scaling, else 1).
    pub freq_scale: f32,
    /// Factor for the result (`rope.scaling.attn_factor`, usually 1).
    pub attn_factor: f32,
    /// One divisor per pair (`rope_freqs.weight`).
    pub freq_factors: Option<&'a [f32]>,
}

/// The activation function of a gated unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Glu {
    /// x·sigmoid(x).
    Silu,
    /// The tanh form of GELU in f16 precision like GGML's table: argument and value are rounded to f16 between
    /// -10 and 10, 0 below and x above.
    Gelu,
}

impl RopeAngles<'_> {
    /// Cosine and sine of each pair's angle at position `pos`; both slices have n_dims / 2 elements. The angle is
    /// a running product in f32, as in GGML, so that long positions round the same way.
    pub fn at(&self, pos: i32, cos: &mut [f32], sin: &mut [f32]) {
        let step = self.freq_base.powf(-2.0 / self.n_dims as f32);
        let mut theta = pos as f32;
        for (i, (c, s)) in cos.iter_mut().zip(sin).enumerate() {
            let divisor = self.freq_factors.and_then(|f| f.get(i)).copied().unwrap_or(1.0);
            let angle = self.freq_scale * (theta / divisor);
            *c = angle.cos() * self.attn_factor;
            *s = angle.sin() * self.attn_factor;
            theta *= step;
        }
    }
}

per_isa! {
    /// y = x / sqrt(mean(x²) + eps), times `weight` if given.
    pub fn rms_norm(x: &[f32], weight: Option<&[f32]>, eps: f32, y: &mut [f32]) = lanes::rms_norm, scalar::rms_norm;
    /// Rotates one head: `x` and `y` have its elements, `cos` and `sin` one value per pair ([`RopeAngles::at`]);
    /// elements beyond the pairs are copied.
    pub fn rope(kind: Rope, cos: &[f32], sin: &[f32], x: &[f32], y: &mut [f32]) = lanes::rope, scalar::rope;
    /// y = activation(gate)·up.
    pub fn glu(kind: Glu, gate: &[f32], up: &[f32], y: &mut [f32]) = lanes::glu, scalar::glu;
    /// y = x·sigmoid(x).
    pub fn silu(x: &[f32], y: &mut [f32]) = lanes::silu, scalar::silu;
    /// GELU as in [`Glu::Gelu`].
    pub fn gelu(x: &[f32], y: &mut [f32]) = lanes::gelu, scalar::gelu;
    /// y = 1 / (1 + e^-x).
    pub fn sigmoid(x: &[f32], y: &mut [f32]) = lanes::sigmoid, scalar::sigmoid;
    /// y = tanh(x).
    pub fn tanh(x: &[f32], y: &mut [f32]) = lanes::tanh, scalar::tanh;
    /// y = a + b.
    pub fn add(a: &[f32], b: &[f32], y: &mut [f32]) = lanes::add, scalar::add;
    /// y = a·b.
    pub fn mul(a: &[f32], b: &[f32], y: &mut [f32]) = lanes::mul, scalar::mul;
    /// y = a / b.
    pub fn div(a: &[f32], b: &[f32], y: &mut [f32]) = lanes::div, scalar::div;
    /// y = x².
    pub fn sqr(x: &[f32], y: &mut [f32]) = lanes::sqr, scalar::sqr;
    /// y = x·factor + bias.
    pub fn scale(x: &[f32], factor: f32, bias: f32, y: &mut [f32]) = lanes::scale, scalar::scale;
    /// y = softmax(x·factor + mask). If all elements are masked (-inf), the result is zeros.
    pub fn softmax(x: &[f32], mask: Option<&[f32]>, factor: f32, y: &mut [f32]) = lanes::softmax, scalar::softmax;
    /// The sum of all elements.
    pub fn sum(x: &[f32]) -> f32 = lanes::sum, scalar::sum;
    /// Rounds to f16, to nearest even.
    pub fn f32_to_f16(x: &[f32], y: &mut [u16]) = lanes::f32_to_f16, scalar::f32_to_f16;
    /// Widens f16 values.
    pub fn f16_to_f32(x: &[u16], y: &mut [f32]) = lanes::f16_to_f32, scalar::f16_to_f32;
    /// Widens bfloat16 values.
    pub fn bf16_to_f32(x: &[u16], y: &mut [f32]) = lanes::bf16_to_f32, scalar::bf16_to_f32;
}

/// The mean of all elements; 0 of none.
pub fn mean(isa: Isa, x: &[f32]) -> f32 {
    sum(isa, x) / x.len().max(1) as f32
}

/// y = √x, which every instruction set rounds to the nearest; NaN for negative numbers.
pub fn sqrt(x: &[f32], y: &mut [f32]) {
    for (x, y) in x.iter().zip(y) {
        *y = x.sqrt();
    }
}

/// Rounds to bfloat16, to nearest even; NaN stays NaN.
pub fn f32_to_bf16(x: &[f32], y: &mut [u16]) {
    for (x, y) in x.iter().zip(y) {
        *y = half::bf16::from_f32(*x).to_bits();
    }
}

/// Indices of the elements of `x`, largest first; among equal ones the lower index first. NaN sorts as in
/// `f32::total_cmp`. Writes as many as the shorter slice has; all of `x` is considered only if `ids` is as long
/// as `x`: then its beginning is the top k for every k.
pub fn argsort_descending(x: &[f32], ids: &mut [i32]) {
    let n = x.len().min(ids.len());
    let (x, ids) = (&x[..n], &mut ids[..n]);
    for (i, id) in ids.iter_mut().enumerate() {
        *id = i as i32;
    }
    // Adding 0 makes the two zeros equal.
    let key = |i: i32| x[i as usize] + 0.0;
    ids.sort_unstable_by(|&a, &b| key(b).total_cmp(&key(a)).then(a.cmp(&b)));
}

#[cfg(test)]
mod tests;
