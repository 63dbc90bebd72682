//! AVX2, on the same panels as AVX-512: 32 rows are four vectors of 8.
//!
//! `vpmaddubsw` multiplies unsigned with signed bytes and adds neighbours to 16 bits, which saturate: nibbles leave room
//! for all 32 elements of a block, six bits for 8 elements, whole bytes for two.

mod k;
mod prepare;
mod small;

use std::arch::x86_64::*;

use super::{Ahead, CACHE_LINE, Tile, each_tile, panel};
use crate::ggml::quant::TensorType;
use crate::runner::kernels::matmul::Job;
use crate::runner::kernels::recipe::{Recipe, no_scratch};

pub(super) use prepare::prepare_row;

/// Most tokens of a tile.
const TILE: usize = 4;
/// Vectors of rows of a panel.
const VECTORS: usize = panel::ROWS / 8;

/// Float sums of a tile, in the first-level cache: 16 registers are too few for them.
type Sums<const T: usize> = [[__m256; VECTORS]; T];

recipes! { tile of 8, bytes packed by panel::pack_q8_0_signed }

/// # Safety
/// 32 bytes, aligned.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load(from: *const u8) -> __m256i {
    // SAFETY: the caller's.
    unsafe { _mm256_load_si256(from.cast()) }
}

/// Eight halves as floats.
///
/// # Safety
/// 16 bytes, aligned.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn load_halves(from: *const u8) -> __m256 {
    // SAFETY: the caller's.
    _mm256_cvtph_ps(unsafe { _mm_load_si128(from.cast()) })
}

/// Four bytes in each lane.
///
/// # Safety
/// Four bytes.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn four(from: *const i8) -> __m256i {
    // SAFETY: the caller's.
    _mm256_set1_epi32(unsafe { from.cast::<i32>().read_unaligned() })
}

/// Low or high nibbles.
#[inline]
#[target_feature(enable = "avx2")]
fn nibbles(both: __m256i, high: bool) -> __m256i {
    let of = if high { _mm256_srli_epi16::<4>(both) } else { both };
    _mm256_and_si256(of, _mm256_set1_epi8(15))
}

/// Asks for the lines that go with the block at `w`. Any address may be asked for.
#[inline]
#[target_feature(enable = "avx2")]
fn prefetch(w: *const u8, ahead: Ahead) {
    for line in 0..ahead.lines {
        _mm_prefetch::<_MM_HINT_T0>(w.wrapping_add(ahead.distance + CACHE_LINE * line).cast());
    }
}

/// Writes the results of a panel, as many rows as the job has.
#[inline]
#[target_feature(enable = "avx2")]
fn store<const T: usize>(job: &Job<'_>, part: &Tile, sums: &Sums<T>) {
    let row = part.panel * panel::ROWS;
    let rows = (job.rows.end - row).min(panel::ROWS);
    for (t, sums) in sums.iter().enumerate() {
        // SAFETY: eight floats each, in order; as many are written as the job has rows.
        unsafe {
            let from = sums.as_ptr().cast::<f32>();
            job.out(part.first + t, row).copy_from_nonoverlapping(from, rows);
        }
    }
}
