//! AVX-512 with VNNI.
//!
//! One kernel for all types with blocks of 32: `T` tokens times a panel of 32 rows, two vectors of 16 rows. Its
//! registers at T = 6 are 12 integer sums, 12 float sums, 4 vectors of weights, one of activations and a mask.
//! `vpdpbusd` runs in two of four pipes and so do multiplications; the 16 of them for a block and token cost four
//! more multiplications (row's scale, token's scale), which makes 80 % of the peak the ceiling.

use std::arch::x86_64::*;

use super::panel;
use crate::ggml::quant::TensorType;
use crate::runner::kernels::Format;
use crate::runner::kernels::format::{Q8Block, view_mut};
use crate::runner::kernels::matmul::Job;
use crate::runner::kernels::recipe::{Recipe, no_scratch};

/// Weights that stay in the second-level cache while all tokens pass by.
const CHUNK_BYTES: usize = 384 << 10;
/// Most tokens of a tile.
const TILE: usize = 6;

const Q4_0: u8 = 0;
const Q4_1: u8 = 1;
const Q8_0: u8 = 2;

static Q4_0_RECIPE: Recipe = Recipe {
    ty: TensorType::Q4_0,
    group: panel::ROWS,
    panel_bytes: panel::bytes,
    pack: Some(panel::pack_q4_0),
    scratch_bytes: no_scratch,
    run: |job, _| run::<Q4_0>(job),
};
static Q4_1_RECIPE: Recipe = Recipe {
    ty: TensorType::Q4_1,
    pack: Some(panel::pack_q4_1),
    run: |job, _| run::<Q4_1>(job),
    ..Q4_0_RECIPE
};
static Q8_0_RECIPE: Recipe = Recipe {
    ty: TensorType::Q8_0,
    pack: Some(panel::pack_q8_0_unsigned),
    run: |job, _| run::<Q8_0>(job),
    ..Q4_0_RECIPE
};

/// The recipe of a type, if there is one.
pub(super) fn recipe(ty: TensorType) -> Option<&'static Recipe> {
    match ty {
        TensorType::Q4_0 => Some(&Q4_0_RECIPE),
        TensorType::Q4_1 => Some(&Q4_1_RECIPE),
        TensorType::Q8_0 => Some(&Q8_0_RECIPE),
        _ => None,
    }
}

/// Chunks of rows that stay in the cache, times tiles of tokens that stay in the first-level cache, times panels.
fn run<const KIND: u8>(job: &Job<'_>) {
    let panels = job.rows.start / panel::ROWS..job.rows.end.div_ceil(panel::ROWS);
    let chunk = (CHUNK_BYTES / job.matrix.panel_bytes().max(1)).max(1);
    let tiles = job.tokens().div_ceil(TILE);
    let mut start = panels.start;
    while start < panels.end {
        let end = panels.end.min(start + chunk);
        for tile in 0..tiles {
            let first = job.tokens() * tile / tiles;
            let count = job.tokens() * (tile + 1) / tiles - first;
            for p in start..end {
                // SAFETY: the recipe is only used where the instructions exist.
                unsafe { tile_of::<KIND>(job, p, first, count) };
            }
        }
        start = end;
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c,fma")]
fn tile_of<const KIND: u8>(job: &Job<'_>, panel: usize, first: usize, count: usize) {
    match count {
        1 => tile::<KIND, 1>(job, panel, first),
        2 => tile::<KIND, 2>(job, panel, first),
        3 => tile::<KIND, 3>(job, panel, first),
        4 => tile::<KIND, 4>(job, panel, first),
        5 => tile::<KIND, 5>(job, panel, first),
        _ => tile::<KIND, 6>(job, panel, first),
    }
}

#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c,fma")]
fn tile<const KIND: u8, const T: usize>(job: &Job<'_>, panel: usize, first: usize) {
    let block_bytes = match KIND {
        Q4_0 => panel::Q4_0_BLOCK,
        Q4_1 => panel::Q4_1_BLOCK,
        _ => panel::Q8_0_BLOCK,
    };
    let mut w = job.panel(panel).as_ptr();
    let acts: [*const u8; T] = std::array::from_fn(|t| job.act(first + t).as_ptr());
    let mask = _mm512_set1_epi8(15);
    let mut sums = [[_mm512_setzero_ps(); 2]; T];
    let mut at = 0;
    for _ in 0..job.matrix.cols() / 32 {
        // SAFETY: the panel has this many blocks, each prepared row too.
        unsafe {
            let act = acts.map(|a| a.add(at).cast::<Q8Block>());
            let mut dots = act.map(|a| {
                [match KIND {
                    Q4_0 => _mm512_set1_epi32((*a).minus_8),
                    Q4_1 => _mm512_setzero_si512(),
                    _ => _mm512_set1_epi32((*a).minus_128),
                }; 2]
            });
            if KIND == Q8_0 {
                for j in 0..8 {
                    let w = [w.add(64 * j), w.add(512 + 64 * j)].map(|w| _mm512_load_si512(w.cast()));
                    dot(&mut dots, w, &act, j);
                }
            } else {
                for j in 0..4 {
                    let w = [w.add(64 * j), w.add(256 + 64 * j)].map(|w| _mm512_load_si512(w.cast()));
                    dot(&mut dots, w.map(|w| _mm512_and_si512(w, mask)), &act, j);
                    let high = w.map(|w| _mm512_and_si512(_mm512_srli_epi16::<4>(w), mask));
                    dot(&mut dots, high, &act, 4 + j);
                }
            }
            let halves = if KIND == Q8_0 { w.add(1024) } else { w.add(512) };
            let scales = [halves, halves.add(32)].map(|h| _mm512_cvtph_ps(_mm256_load_si256(h.cast())));
            for t in 0..T {
                let d = _mm512_set1_ps((*act[t]).d);
                for g in 0..2 {
                    let scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(dots[t][g]), scales[g]);
                    sums[t][g] = _mm512_fmadd_ps(scaled, d, sums[t][g]);
                }
            }
            if KIND == Q4_1 {
                let minima = [w.add(576), w.add(608)].map(|h| _mm512_cvtph_ps(_mm256_load_si256(h.cast())));
                for t in 0..T {
                    let s = _mm512_set1_ps((*act[t]).s);
                    for g in 0..2 {
                        sums[t][g] = _mm512_fmadd_ps(minima[g], s, sums[t][g]);
                    }
                }
            }
            w = w.add(block_bytes);
            at += size_of::<Q8Block>();
        }
    }
    store(job, panel, first, &sums);
}

/// Adds the products of four elements of 32 rows and all tokens.
///
/// # Safety
/// As of the pointers.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
unsafe fn dot<const T: usize>(
    dots: &mut [[__m512i; 2]; T],
    w: [__m512i; 2],
    act: &[*const Q8Block; T],
    four: usize,
) {
    for t in 0..T {
        // SAFETY: the caller's; `q` comes first in the block and has eight fours.
        let a = _mm512_set1_epi32(unsafe { act[t].cast::<i32>().add(four).read() });
        dots[t][0] = _mm512_dpbusd_epi32(dots[t][0], w[0], a);
        dots[t][1] = _mm512_dpbusd_epi32(dots[t][1], w[1], a);
    }
}

/// Writes the results of a panel, as many rows as the job has.
#[inline]
#[target_feature(enable = "avx512f")]
fn store<const T: usize>(job: &Job<'_>, panel: usize, first: usize, sums: &[[__m512; 2]; T]) {
    let row = panel * panel::ROWS;
    let rows = (job.rows.end - row).min(panel::ROWS);
    let mask = if rows == panel::ROWS { u32::MAX } else { (1 << rows) - 1 };
    for (t, sums) in sums.iter().enumerate() {
        let to = job.out(first + t, row);
        // SAFETY: the mask is that of the job's own rows.
        unsafe {
            _mm512_mask_storeu_ps(to, mask as u16, sums[0]);
            _mm512_mask_storeu_ps(to.wrapping_add(16), (mask >> 16) as u16, sums[1]);
        }
    }
}

/// Prepares all whole blocks, if there is a way for this format.
pub(super) fn prepare_row(format: Format, src: &[f32], dst: &mut [u8]) -> bool {
    match format {
        Format::Q8 => {
            for (x, to) in src.as_chunks().0.iter().zip(view_mut::<Q8Block>(dst)) {
                // SAFETY: only reached where the instructions exist.
                *to = unsafe { q8_block(x) };
            }
            true
        }
        _ => false,
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
fn q8_block(x: &[f32; 32]) -> Q8Block {
    // SAFETY: two times 16 values.
    let x = unsafe { [_mm512_loadu_ps(x.as_ptr()), _mm512_loadu_ps(x.as_ptr().add(16))] };
    let amax = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(x[0]), _mm512_abs_ps(x[1])));
    let inverse = _mm512_set1_ps(if amax != 0.0 { 127.0 / amax } else { 0.0 });
    let q = x.map(|x| _mm512_cvtps_epi32(_mm512_mul_ps(x, inverse)));
    let sum = _mm512_reduce_add_epi32(_mm512_add_epi32(q[0], q[1]));
    let half = _mm_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm_set_ss(amax / 127.0));
    let d = _mm_cvtss_f32(_mm_cvtph_ps(half));
    let mut out = Q8Block {
        q: [0; 32],
        d,
        s: d * sum as f32,
        minus_8: sum.wrapping_mul(-8),
        minus_128: sum.wrapping_mul(-128),
    };
    // SAFETY: two times 16 values.
    unsafe {
        _mm_storeu_si128(out.q.as_mut_ptr().cast(), _mm512_cvtepi32_epi8(q[0]));
        _mm_storeu_si128(out.q.as_mut_ptr().add(16).cast(), _mm512_cvtepi32_epi8(q[1]));
    }
    out
}
