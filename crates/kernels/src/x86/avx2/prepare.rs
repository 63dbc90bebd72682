//! Converts activations to 8-bit integers. Results equal those of the plain code.

use std::arch::x86_64::*;

use crate::format::ActivationFormat;
use crate::format::{Q8Block, view_mut};

/// Prepares all complete blocks, if this format is supported.
pub(in super::super) fn prepare_row(
    format: ActivationFormat,
    row: Option<f32>,
    src: &[f32],
    dst: &mut [u8],
) -> bool {
    if format != ActivationFormat::Q8 {
        return false;
    }
    for (x, to) in src.as_chunks().0.iter().zip(view_mut::<Q8Block>(dst)) {
        // SAFETY: only reached if the instructions exist.
        unsafe { q8_block(x, row, to) };
    }
    true
}

#[target_feature(enable = "avx2,f16c")]
fn q8_block(x: &[f32; 32], row: Option<f32>, to: &mut Q8Block) {
    let mut v = [_mm256_setzero_ps(); 4];
    let mut most = _mm256_setzero_ps();
    for (v, from) in v.iter_mut().zip(x.as_chunks::<8>().0) {
        // SAFETY: eight values.
        *v = unsafe { _mm256_loadu_ps(from.as_ptr()) };
        most = _mm256_max_ps(_mm256_andnot_ps(_mm256_set1_ps(-0.0), *v), most);
    }
    let amax = row.map_or_else(|| largest(most), f32::abs);
    let inverse = _mm256_set1_ps(if amax != 0.0 { 127.0 / amax } else { 0.0 });
    let mut q = [_mm256_setzero_si256(); 4];
    for (q, v) in q.iter_mut().zip(v) {
        *q = _mm256_cvtps_epi32(_mm256_mul_ps(v, inverse));
    }
    let total = _mm256_add_epi32(_mm256_add_epi32(q[0], q[1]), _mm256_add_epi32(q[2], q[3]));
    let words = [_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3])];
    // Packing works within register halves: groups of four bytes come out of order.
    let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    let bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(words[0], words[1]), order);
    // SAFETY: 32 bytes.
    unsafe { _mm256_storeu_si256(to.q.as_mut_ptr().cast(), bytes) };
    let mut lanes = [0i32; 8];
    // SAFETY: eight integers.
    unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), total) };
    let sum = lanes.iter().fold(0i32, |a, b| a.wrapping_add(*b));
    let scale = amax / 127.0;
    // Round both to f16 in one conversion.
    let halves = _mm_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm_setr_ps(scale, scale * sum as f32, 0.0, 0.0));
    let rounded = _mm_cvtph_ps(halves);
    to.d = _mm_cvtss_f32(rounded);
    to.s = _mm_cvtss_f32(_mm_movehdup_ps(rounded));
    to.minus_8 = sum.wrapping_mul(-8);
    to.minus_128 = sum.wrapping_mul(-128);
}

/// The largest of eight values.
#[inline]
#[target_feature(enable = "avx2")]
fn largest(v: __m256) -> f32 {
    let four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
    let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
}
