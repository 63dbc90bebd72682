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

static Q4_0: Recipe = Recipe {
    ty: TensorType::Q4_0,
    group: panel::ROWS,
    tile: Some((TILE, 8)),
    panel_bytes: panel::bytes,
    pack: Some(panel::pack_q4_0),
    scratch_bytes: no_scratch,
    run: |job, _| run(job, small::tile_of::<{ small::Q4_0 }>),
};
static Q4_1: Recipe = Recipe {
    ty: TensorType::Q4_1,
    pack: Some(panel::pack_q4_1),
    run: |job, _| run(job, small::tile_of::<{ small::Q4_1 }>),
    ..Q4_0
};
static Q8_0: Recipe = Recipe {
    ty: TensorType::Q8_0,
    pack: Some(panel::pack_q8_0_signed),
    run: |job, _| run(job, small::tile_of::<{ small::Q8_0 }>),
    ..Q4_0
};
static Q4K: Recipe = Recipe {
    ty: TensorType::Q4K,
    pack: Some(panel::pack_q4k),
    run: |job, _| run(job, k::tile_of::<{ k::Q4K }>),
    ..Q4_0
};
static Q6K: Recipe = Recipe {
    ty: TensorType::Q6K,
    pack: Some(panel::pack_q6k),
    run: |job, _| run(job, k::tile_of::<{ k::Q6K }>),
    ..Q4_0
};

/// The recipe of a type, if there is one.
pub(super) fn recipe(ty: TensorType) -> Option<&'static Recipe> {
    match ty {
        TensorType::Q4_0 => Some(&Q4_0),
        TensorType::Q4_1 => Some(&Q4_1),
        TensorType::Q8_0 => Some(&Q8_0),
        TensorType::Q4K => Some(&Q4K),
        TensorType::Q6K => Some(&Q6K),
        _ => None,
    }
}

fn run(job: &Job<'_>, tile: unsafe fn(&Job<'_>, &Tile)) {
    // SAFETY: a recipe of this instruction set is only used where the processor has it.
    each_tile(job, TILE, |part| unsafe { tile(job, part) });
}

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
