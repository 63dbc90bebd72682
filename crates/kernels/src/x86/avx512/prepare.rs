//! Converts activations to 8-bit integers. Results equal those of the plain code.

use std::arch::x86_64::*;

use crate::format::ActivationFormat;
use crate::format::{Q8Block, Q8KBlock, view_mut};

/// Prepares all complete blocks, if this format is supported.
pub(in super::super) fn prepare_row(
    format: ActivationFormat,
    row: Option<f32>,
    src: &[f32],
    dst: &mut [u8],
) -> bool {
    match format {
        ActivationFormat::Q8 => {
            for (x, to) in src.as_chunks().0.iter().zip(view_mut::<Q8Block>(dst)) {
                // SAFETY: only reached if the instructions exist.
                *to = unsafe { q8_block(x, row) };
            }
            true
        }
        ActivationFormat::Q8K => {
            for (x, to) in src.as_chunks().0.iter().zip(view_mut::<Q8KBlock>(dst)) {
                // SAFETY: as above.
                unsafe { q8k_block(x, row, to) };
            }
            true
        }
        ActivationFormat::F32 | ActivationFormat::F16 | ActivationFormat::Bf16 => false,
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
fn q8_block(x: &[f32; 32], row: Option<f32>) -> Q8Block {
    // SAFETY: two times 16 values.
    let x = unsafe { [_mm512_loadu_ps(x.as_ptr()), _mm512_loadu_ps(x.as_ptr().add(16))] };
    let own = || _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(x[0]), _mm512_abs_ps(x[1])));
    let amax = row.map_or_else(own, f32::abs);
    let inverse = _mm512_set1_ps(if amax != 0.0 { 127.0 / amax } else { 0.0 });
    let q =
        [_mm512_cvtps_epi32(_mm512_mul_ps(x[0], inverse)), _mm512_cvtps_epi32(_mm512_mul_ps(x[1], inverse))];
    let sum = _mm512_reduce_add_epi32(_mm512_add_epi32(q[0], q[1]));
    let scale = amax / 127.0;
    // Round both to f16 in one conversion.
    let halves = _mm_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm_setr_ps(scale, scale * sum as f32, 0.0, 0.0));
    let rounded = _mm_cvtph_ps(halves);
    let (d, s) = (_mm_cvtss_f32(rounded), _mm_cvtss_f32(_mm_movehdup_ps(rounded)));
    let mut out =
        Q8Block { q: [0; 32], d, s, minus_8: sum.wrapping_mul(-8), minus_128: sum.wrapping_mul(-128) };
    // SAFETY: two times 16 values.
    unsafe {
        _mm_storeu_si128(out.q.as_mut_ptr().cast(), _mm512_cvtepi32_epi8(q[0]));
        _mm_storeu_si128(out.q.as_mut_ptr().add(16).cast(), _mm512_cvtepi32_epi8(q[1]));
    }
    out
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn q8k_block(x: &[f32; 256], row: Option<f32>, to: &mut Q8KBlock) {
    let at = x.as_ptr();
    let mut most = _mm512_setzero_ps();
    for i in 0..16 {
        // SAFETY: 16 times 16 values.
        most = _mm512_max_ps(most, _mm512_abs_ps(unsafe { _mm512_loadu_ps(at.add(16 * i)) }));
    }
    let amax = _mm512_reduce_max_ps(most);
    // Of values with equal magnitude, the first decides the sign. As in the plain code, a NaN is not a maximum.
    let own = || x.iter().copied().find(|v| v.abs() == amax).unwrap_or(0.0);
    let largest = row.unwrap_or_else(own);
    let scale = if largest != 0.0 { -127.0 / largest } else { 0.0 };
    to.d = if largest != 0.0 { 1.0 / scale } else { 0.0 };
    to.unused = [0; 3];
    for i in 0..16 {
        // SAFETY: 16 values in, 16 bytes out.
        unsafe {
            let scaled = _mm512_mul_ps(_mm512_loadu_ps(at.add(16 * i)), _mm512_set1_ps(scale));
            let q = _mm512_min_epi32(_mm512_cvtps_epi32(scaled), _mm512_set1_epi32(127));
            _mm_storeu_si128(to.q.as_mut_ptr().add(16 * i).cast(), _mm512_cvtepi32_epi8(q));
            to.sums[i] = _mm512_reduce_add_epi32(q) as i16;
        }
    }
}
