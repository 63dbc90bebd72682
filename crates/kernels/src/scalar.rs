//! Plain kernels on rows as stored in the file: the reference for all others, and the fallback.
//!
//! Layouts are `block_q*` of ggml/src/ggml-common.h, and values are decoded as by `dequantize_row_*` in
//! ggml/src/ggml-quants.c. Integer products are summed exactly within a block; blocks are added in order, each
//! with a fused multiply-add of the product of the two scales. Kernels that follow this give identical bits.

use half::{bf16, f16};

use super::format::{Q8Block, Q8KBlock, view};
use super::matmul::MatmulJob;
use super::recipe::Recipe;
use crate::quant::k_blocks::q5_k_element;
use crate::quant::{TensorType, tables};

static F32: Recipe = Recipe::of_rows(TensorType::F32, |job, _| run(job, |w, a| f32_dot(w, view(a))));
static F16: Recipe =
    Recipe::of_rows(TensorType::F16, |job, _| run(job, |w, a| half_dot(w, view(a), from_f16)));
static BF16: Recipe =
    Recipe::of_rows(TensorType::BF16, |job, _| run(job, |w, a| half_dot(w, view(a), from_bf16)));
static Q4_0: Recipe =
    Recipe::of_rows(TensorType::Q4_0, |job, _| run(job, |w, a| small_dot(w, a, q4_0_block)));
static Q4_1: Recipe =
    Recipe::of_rows(TensorType::Q4_1, |job, _| run(job, |w, a| small_dot(w, a, q4_1_block)));
static Q8_0: Recipe =
    Recipe::of_rows(TensorType::Q8_0, |job, _| run(job, |w, a| small_dot(w, a, q8_0_block)));
static Q4K: Recipe = Recipe::of_rows(TensorType::Q4K, |job, _| run(job, |w, a| k_dot(w, a, q4k_block)));
static Q6K: Recipe = Recipe::of_rows(TensorType::Q6K, |job, _| run(job, |w, a| k_dot(w, a, q6k_block)));
static Q5K: Recipe = Recipe::of_rows(TensorType::Q5K, |job, _| run(job, |w, a| k_dot(w, a, q5k_block)));
static IQ4_NL: Recipe =
    Recipe::of_rows(TensorType::Iq4Nl, |job, _| run(job, |w, a| small_dot(w, a, iq4_nl_block)));
static IQ4_XS: Recipe =
    Recipe::of_rows(TensorType::Iq4Xs, |job, _| run(job, |w, a| k_dot(w, a, iq4_xs_block)));
static MXFP4: Recipe =
    Recipe::of_rows(TensorType::Mxfp4, |job, _| run(job, |w, a| small_dot(w, a, mxfp4_block)));

/// The recipe of a type.
pub(super) fn recipe(ty: TensorType) -> &'static Recipe {
    match ty {
        TensorType::F32 => &F32,
        TensorType::F16 => &F16,
        TensorType::BF16 => &BF16,
        TensorType::Q4_0 => &Q4_0,
        TensorType::Q4_1 => &Q4_1,
        TensorType::Q8_0 => &Q8_0,
        TensorType::Q4K => &Q4K,
        TensorType::Q5K => &Q5K,
        TensorType::Q6K => &Q6K,
        TensorType::Iq4Nl => &IQ4_NL,
        TensorType::Iq4Xs => &IQ4_XS,
        TensorType::Mxfp4 => &MXFP4,
    }
}

/// Multiplies every row with every token.
fn run(job: &MatmulJob<'_>, dot: impl Fn(&[u8], &[u8]) -> f32) {
    for row in job.rows.clone() {
        let weights = job.panel(row);
        for token in 0..job.tokens() {
            // SAFETY: the job's own row and token.
            unsafe { job.out(token, row).write(dot(weights, job.act(token))) };
        }
    }
}

fn from_f16(bits: u16) -> f32 {
    f16::from_bits(bits).to_f32()
}

fn from_bf16(bits: u16) -> f32 {
    bf16::from_bits(bits).to_f32()
}

fn f32_dot(w: &[u8], a: &[f32]) -> f32 {
    w.as_chunks().0.iter().zip(a).map(|(w, a)| f32::from_le_bytes(*w) * a).sum()
}

fn half_dot(w: &[u8], a: &[f32], read: fn(u16) -> f32) -> f32 {
    w.as_chunks().0.iter().zip(a).map(|(w, a)| read(u16::from_le_bytes(*w)) * a).sum()
}

fn small_dot<const BYTES: usize>(w: &[u8], a: &[u8], block: fn(f32, &[u8; BYTES], &Q8Block) -> f32) -> f32 {
    w.as_chunks().0.iter().zip(view(a)).fold(0.0, |sum, (w, a)| block(sum, w, a))
}

fn k_dot<const BYTES: usize>(w: &[u8], a: &[u8], block: fn(f32, &[u8; BYTES], &Q8KBlock) -> f32) -> f32 {
    w.as_chunks().0.iter().zip(view(a)).fold(0.0, |sum, (w, a)| block(sum, w, a))
}

/// The f16 at byte `at`.
fn half_at(bytes: &[u8], at: usize) -> f32 {
    from_f16(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}

/// Sum of (nibble - offset) · q; byte j holds elements j and j + 16.
fn nibbles(w: &[u8], q: &[i8; 32], offset: i32) -> i32 {
    let (low, high) = q.split_at(16);
    let pairs = w.iter().zip(low.iter().zip(high));
    pairs
        .map(|(b, (l, h))| {
            (i32::from(b & 15) - offset) * i32::from(*l) + (i32::from(b >> 4) - offset) * i32::from(*h)
        })
        .sum()
}

fn q4_0_block(sum: f32, w: &[u8; 18], a: &Q8Block) -> f32 {
    (nibbles(&w[2..], &a.q, 8) as f32).mul_add(half_at(w, 0) * a.d, sum)
}

fn q4_1_block(sum: f32, w: &[u8; 20], a: &Q8Block) -> f32 {
    let sum = (nibbles(&w[4..], &a.q, 0) as f32).mul_add(half_at(w, 0) * a.d, sum);
    half_at(w, 2).mul_add(a.s, sum)
}

fn q8_0_block(sum: f32, w: &[u8; 34], a: &Q8Block) -> f32 {
    let products: i32 = w[2..].iter().zip(&a.q).map(|(w, a)| i32::from(*w as i8) * i32::from(*a)).sum();
    (products as f32).mul_add(half_at(w, 0) * a.d, sum)
}

/// Scale and minimum of a part of 32, 6 bits each: `get_scale_min_k4` of ggml-quants.c.
pub(super) fn q4k_scale_min(packed: &[u8; 12], part: usize) -> (u8, u8) {
    if part < 4 {
        (packed[part] & 63, packed[part + 4] & 63)
    } else {
        let both = packed[part + 4];
        (both & 15 | packed[part - 4] >> 6 << 4, both >> 4 | packed[part] >> 6 << 4)
    }
}

/// Products of the values of `element` with a scale and a minimum for each part of 32: blocks of Q4_K and Q5_K begin with
/// d, dmin and scales.
fn spans_block(sum: f32, w: &[u8], a: &Q8KBlock, element: impl Fn(usize) -> u8) -> f32 {
    let (d, min) = (half_at(w, 0), half_at(w, 2));
    let mut packed = [0; 12];
    packed.copy_from_slice(&w[4..16]);
    let (mut products, mut minima) = (0, 0);
    for (part, q) in a.q.as_chunks::<32>().0.iter().enumerate() {
        let (scale, minimum) = q4k_scale_min(&packed, part);
        let part_sum: i32 =
            q.iter().enumerate().map(|(i, q)| i32::from(element(32 * part + i)) * i32::from(*q)).sum();
        products += i32::from(scale) * part_sum;
        minima += i32::from(minimum) * (i32::from(a.sums[2 * part]) + i32::from(a.sums[2 * part + 1]));
    }
    let sum = (products as f32).mul_add(d * a.d, sum);
    (-minima as f32).mul_add(min * a.d, sum)
}

/// 32 bytes for each 64 elements, the first 32 of them in the low nibbles.
fn q4k_block(sum: f32, w: &[u8; 144], a: &Q8KBlock) -> f32 {
    spans_block(sum, w, a, |i| w[16 + i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15)
}

fn q5k_block(sum: f32, w: &[u8; 176], a: &Q8KBlock) -> f32 {
    spans_block(sum, w, a, |i| q5_k_element(w, i))
}

/// Sum of table\[nibble] · q; byte j holds elements j and j + 16.
fn indexed(table: &[i8; 16], w: &[u8], q: &[i8]) -> i32 {
    let value = |index: u8| i32::from(table[usize::from(index)]);
    let (low, high) = q.split_at(16);
    let pairs = w.iter().zip(low.iter().zip(high));
    pairs.map(|(b, (l, h))| value(b & 15) * i32::from(*l) + value(b >> 4) * i32::from(*h)).sum()
}

fn iq4_nl_block(sum: f32, w: &[u8; 18], a: &Q8Block) -> f32 {
    (indexed(&tables::IQ4, &w[2..], &a.q) as f32).mul_add(half_at(w, 0) * a.d, sum)
}

fn mxfp4_block(sum: f32, w: &[u8; 17], a: &Q8Block) -> f32 {
    (indexed(&tables::MXFP4, &w[1..], &a.q) as f32).mul_add(tables::e8m0_half(w[0]) * a.d, sum)
}

fn iq4_xs_block(sum: f32, w: &[u8; 136], a: &Q8KBlock) -> f32 {
    let parts = w[8..].as_chunks::<16>().0.iter().zip(a.q.as_chunks::<32>().0).enumerate();
    let scale = |part: usize| i32::from(tables::iq4_xs_scale(w, part)) - 32;
    let products: i32 = parts.map(|(i, (w, q))| scale(i) * indexed(&tables::IQ4, w, q)).sum();
    (products as f32).mul_add(half_at(w, 0) * a.d, sum)
}

/// Element of a Q6_K block, without its offset of 32: 128 bytes of low nibbles, 64 bytes of upper two bits.
pub(super) fn q6k_element(w: &[u8; 210], at: usize) -> u8 {
    let (half, within) = (at / 128, at % 128);
    let (quarter, l) = (within / 32, within % 32);
    let low = w[64 * half + 32 * (quarter % 2) + l] >> (4 * (quarter / 2)) & 15;
    let high = w[128 + 32 * half + l] >> (2 * quarter) & 3;
    low | high << 4
}

/// A signed scale for each 16 elements follows the two bit planes, then d.
fn q6k_block(sum: f32, w: &[u8; 210], a: &Q8KBlock) -> f32 {
    let mut products = 0;
    for (part, q) in a.q.as_chunks::<16>().0.iter().enumerate() {
        let element = |i| i32::from(q6k_element(w, 16 * part + i)) - 32;
        let part_sum: i32 = q.iter().enumerate().map(|(i, q)| element(i) * i32::from(*q)).sum();
        products += i32::from(w[192 + part] as i8) * part_sum;
    }
    (products as f32).mul_add(half_at(w, 208) * a.d, sum)
}

#[cfg(test)]
mod tests {
    use super::super::*;
    use crate::quant::TensorType;
    use crate::quant::encode;

    fn product(ty: TensorType, weights: &[f32], acts: &[f32]) -> f32 {
        let bytes = ty.row_bytes(weights.len() as u64).expect("whole blocks") as usize;
        let mut row = vec![0; bytes];
        encode(ty, weights, &mut row).expect("an encoder");
        let m =
            Matrix::new(ty, 1, weights.len(), MatrixPlacement::Packed(&row), Isa::Scalar).expect("a matrix");
        // f32 for alignment.
        let mut words = vec![0f32; prepared_row_bytes(m.format(), acts.len()).div_ceil(4)];
        // SAFETY: numbers viewed as bytes.
        let (_, prepared, _) = unsafe { words.align_to_mut::<u8>() };
        prepare_row(Isa::Scalar, m.format(), acts, prepared);
        let mut out = [0.0];
        // SAFETY: one row with one value.
        let to = unsafe { ResultRows::new(out.as_mut_ptr(), 1, RowIndex::First(1)) };
        matmul(&m, &Acts::new(prepared, prepared.len(), RowIndex::First(1)), 0..1, &to, &mut []);
        out[0]
    }

    #[test]
    fn products_are_close_to_those_of_the_values() {
        let w: Vec<f32> = (0..512).map(|i| (i as f32 * 0.7).sin()).collect();
        let a: Vec<f32> = (0..512).map(|i| (i as f32 * 0.7 + 0.3).sin() * 3.0).collect();
        let exact: f32 = w.iter().zip(&a).map(|(w, a)| w * a).sum();
        let types = [
            (TensorType::F32, 1e-6),
            (TensorType::F16, 1e-3),
            (TensorType::Q8_0, 1e-2),
            (TensorType::Q4_0, 0.05),
        ];
        for (ty, tolerance) in types {
            let got = product(ty, &w, &a);
            assert!((got - exact).abs() <= tolerance * exact.abs(), "{ty:?}: {got} for {exact}");
        }
    }
}
