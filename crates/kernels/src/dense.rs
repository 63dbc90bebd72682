//! Unquantised weights (F32, F16, BF16) times f32 activations, on vectors of any instruction set.
//!
//! Packed weights are in panels of 16 rows, `[cols][16]`: a product is a scalar of the activations times a vector
//! of rows, for few tokens and for many, with no cross-lane step. Unpacked rows are multiplied along their
//! length.
//!
//! `unsafe` functions here require the instruction set of their `Simd`; bounds are those of a checked [`MatmulJob`].

use super::format::ActivationFormat;
use super::format::{view, view_mut};
use super::isa::Isa;
use super::matmul::MatmulJob;
use super::recipe::{Recipe, no_scratch};
use super::simd::{Simd, per_isa};
use crate::quant::TensorType;

/// Rows of a panel: one vector of AVX-512, two of AVX2, four of NEON.
const GROUP: usize = 16;
/// Bytes of a tile's weights that are multiplied with all tokens before moving on: they stay in the L1 cache.
const BLOCK_BYTES: usize = 32 << 10;
/// Tokens multiplied with a row at a time if weights are not packed.
const ROW_TOKENS: usize = 4;
/// Prefetch distance for weights with few tokens, bytes.
const AHEAD: usize = 2048;

/// How a weight is stored.
trait DenseWeight: Copy {
    const BYTES: usize;
    /// # Safety
    /// [`Simd::N`] weights must be readable.
    unsafe fn load<S: Simd>(p: *const u8) -> S::V;
    /// # Safety
    /// `n` weights must be readable, `n` below [`Simd::N`].
    unsafe fn load_part<S: Simd>(p: *const u8, n: usize) -> S::V;
}

macro_rules! weights {
    ($($name:ident $bytes:literal $load:ident $load_part:ident;)*) => {$(
        #[derive(Clone, Copy)]
        struct $name;
        impl DenseWeight for $name {
            const BYTES: usize = $bytes;
            #[inline(always)]
            unsafe fn load<S: Simd>(p: *const u8) -> S::V {
                // SAFETY: guaranteed by the caller.
                unsafe { S::$load(p.cast()) }
            }
            #[inline(always)]
            unsafe fn load_part<S: Simd>(p: *const u8, n: usize) -> S::V {
                // SAFETY: guaranteed by the caller.
                unsafe { S::$load_part(p.cast(), n) }
            }
        }
    )*};
}
weights! {
    F32 4 load load_part;
    F16 2 load_f16 load_f16_part;
    Bf16 2 load_bf16 load_bf16_part;
}

/// Recipes of a type, and its kernels for each instruction set.
macro_rules! types {
    ($($ty:ident $module:ident $weight:ident;)*) => {
        $(mod $module {
            use super::*;

            pub static PACKED: Recipe = Recipe {
                ty: TensorType::$ty,
                group: GROUP,
                tile: None,
                panel_bytes: |_, cols| cols * GROUP * $weight::BYTES,
                pack: Some(pack::<{ $weight::BYTES }>),
                scratch_bytes: no_scratch,
                readings: &[],
                run: |job, _| run_panels(job.matrix.isa(), job),
            };
            pub static ROWS: Recipe = Recipe::of_rows(TensorType::$ty, |job, _| run_rows(job.matrix.isa(), job));

            per_isa! {
                fn run_panels(job: &MatmulJob<'_>) = panels_of, unused;
                fn run_rows(job: &MatmulJob<'_>) = rows_of, unused;
            }

            #[inline(always)]
            unsafe fn panels_of<S: Simd>(job: &MatmulJob<'_>) {
                // SAFETY: the caller guarantees the instruction set.
                unsafe { panels::<S, $weight>(job) }
            }

            #[inline(always)]
            unsafe fn rows_of<S: Simd>(job: &MatmulJob<'_>) {
                // SAFETY: the caller guarantees the instruction set.
                unsafe { rows::<S, $weight>(job) }
            }
        })*

        /// The recipe for repacked weights of a type, if it is unquantised and `isa` has vectors.
        pub(super) fn packed(isa: Isa, ty: TensorType) -> Option<&'static Recipe> {
            match ty {
                _ if isa == Isa::Scalar => None,
                $(TensorType::$ty => Some(&$module::PACKED),)*
                _ => None,
            }
        }

        /// The recipe for weights in GGUF's order, under the same conditions.
        pub(super) fn mapped(isa: Isa, ty: TensorType) -> Option<&'static Recipe> {
            match ty {
                _ if isa == Isa::Scalar => None,
                $(TensorType::$ty => Some(&$module::ROWS),)*
                _ => None,
            }
        }
    };
}
types! {
    F32 f32_kernels F32;
    F16 f16_kernels F16;
    BF16 bf16_kernels Bf16;
}

/// The scalar instruction set has separate recipes.
fn unused(_: &MatmulJob<'_>) {}

/// Rearranges rows with `BYTES` per element to `[cols][16]`.
fn pack<const BYTES: usize>(rows: &[u8], row_bytes: usize, panel: &mut [u8]) {
    let (to, _) = panel.as_chunks_mut::<BYTES>();
    for (r, row) in rows.chunks_exact(row_bytes).enumerate() {
        for (k, element) in row.as_chunks::<BYTES>().0.iter().enumerate() {
            to[k * GROUP + r] = *element;
        }
    }
}

/// Converts a row to one of these types' formats: f32, rounded to the weight type's precision. False: another
/// format, or no vectors.
pub(super) fn prepare_row(isa: Isa, format: ActivationFormat, src: &[f32], dst: &mut [u8]) -> bool {
    if isa != Isa::Scalar && format == ActivationFormat::F16 {
        round_row(isa, src, view_mut(dst));
        return true;
    }
    false
}

per_isa! {
    fn round_row(src: &[f32], dst: &mut [f32]) = round_lanes, round_scalar;
}

fn round_scalar(_: &[f32], _: &mut [f32]) {}

#[inline(always)]
unsafe fn round_lanes<S: Simd>(src: &[f32], dst: &mut [f32]) {
    let n = src.len().min(dst.len());
    // SAFETY: the first `n` elements of both are in bounds.
    unsafe {
        for i in (0..n).step_by(S::N) {
            let part = S::N.min(n - i);
            let x = S::round_f16(S::load_part(src.as_ptr().add(i), part));
            S::store_part(dst.as_mut_ptr().add(i), x, part);
        }
    }
}

/// Position of a tile: panels from `panel`, columns `cols`, tokens from `token`.
#[derive(Clone, Copy)]
struct TilePlace {
    panel: usize,
    cols: (usize, usize),
    token: usize,
}

/// Loops over groups of panels that fill a tile, blocks of columns, and tiles of tokens.
#[inline(always)]
unsafe fn panels<S: Simd, W: DenseWeight>(job: &MatmulJob<'_>) {
    let wide = (S::TILE.0 * S::N / GROUP).max(1);
    let depth =
        if job.tokens() <= S::TILE.1 { job.matrix.cols() } else { BLOCK_BYTES / (W::BYTES * GROUP * wide) };
    let mut panel = job.rows.start / GROUP;
    let end = job.rows.end.div_ceil(GROUP);
    while panel < end {
        let count = if end - panel >= wide { wide } else { 1 };
        let mut from = 0;
        loop {
            let to = job.matrix.cols().min(from + depth);
            let mut token = 0;
            while token < job.tokens() {
                let at = TilePlace { panel, cols: (from, to), token };
                // SAFETY: panels, columns and tokens are the job's.
                token += unsafe { tile::<S, W>(job, at, count) };
            }
            from = to;
            if from == job.matrix.cols() {
                break;
            }
        }
        panel += count;
    }
}

/// One register tile with as many tokens as fit and are left. Returns their number.
#[inline(always)]
unsafe fn tile<S: Simd, W: DenseWeight>(job: &MatmulJob<'_>, at: TilePlace, panels: usize) -> usize {
    let left = job.tokens() - at.token;
    // SAFETY: guaranteed by the caller.
    unsafe {
        match (panels * GROUP / S::N, S::TILE.1, left) {
            (1, 12, 12..) => tile_of::<S, W, 1, 12>(job, at),
            (1, 12, 4..) => tile_of::<S, W, 1, 4>(job, at),
            (1, 12, 2..) => tile_of::<S, W, 1, 2>(job, at),
            (1, _, _) => tile_of::<S, W, 1, 1>(job, at),
            (2, 12, 12..) => tile_of::<S, W, 2, 12>(job, at),
            (2, 12, 8..) => tile_of::<S, W, 2, 8>(job, at),
            (2, 6, 6..) => tile_of::<S, W, 2, 6>(job, at),
            (2, _, 4..) => tile_of::<S, W, 2, 4>(job, at),
            (2, _, 2..) => tile_of::<S, W, 2, 2>(job, at),
            (2, _, _) => tile_of::<S, W, 2, 1>(job, at),
            (_, _, 6..) => tile_of::<S, W, 4, 6>(job, at),
            (_, _, 4..) => tile_of::<S, W, 4, 4>(job, at),
            (_, _, 2..) => tile_of::<S, W, 4, 2>(job, at),
            _ => tile_of::<S, W, 4, 1>(job, at),
        }
    }
}

/// `NV` vectors of rows times `T` tokens; adds to what earlier columns left in the results.
#[inline(always)]
unsafe fn tile_of<S: Simd, W: DenseWeight, const NV: usize, const T: usize>(
    job: &MatmulJob<'_>,
    at: TilePlace,
) -> usize {
    let (from, to) = at.cols;
    let mut w = [std::ptr::null::<u8>(); NV];
    for (j, w) in w.iter_mut().enumerate() {
        let (panel, lane) = (at.panel + j * S::N / GROUP, j * S::N % GROUP);
        *w = job.panel(panel)[(from * GROUP + lane) * W::BYTES..].as_ptr();
    }
    let mut x = [std::ptr::null::<f32>(); T];
    for (t, x) in x.iter_mut().enumerate() {
        *x = view::<f32>(job.act(at.token + t))[from..].as_ptr();
    }
    // SAFETY: `w` and `x` have `to - from` columns; results are those of the job's rows.
    unsafe {
        let mut acc = [[S::splat(0.0); NV]; T];
        for k in 0..to - from {
            let mut weights = [S::splat(0.0); NV];
            for (v, w) in weights.iter_mut().zip(w) {
                let w = w.add(k * GROUP * W::BYTES);
                *v = W::load::<S>(w);
                if T <= 2 {
                    S::prefetch(w.wrapping_add(AHEAD));
                }
            }
            for (acc, x) in acc.iter_mut().zip(x) {
                let x = S::splat(*x.add(k));
                for (a, v) in acc.iter_mut().zip(weights) {
                    *a = S::fma(x, v, *a);
                }
            }
        }
        // Through memory: the loop below is not unrolled and would otherwise force the sums out of registers.
        let mut sums = [[[0.0f32; GROUP]; NV]; T];
        for (sums, acc) in sums.iter_mut().zip(acc) {
            for (sums, a) in sums.iter_mut().zip(acc) {
                S::store(sums.as_mut_ptr(), a);
            }
        }
        for (t, sums) in sums.iter().enumerate() {
            for (j, sums) in sums.iter().enumerate() {
                let (p, n) = result::<S>(job, at, j, t);
                let mut sum = S::load(sums.as_ptr());
                if from > 0 {
                    sum = S::add(sum, S::load_part(p, n));
                }
                S::store_part(p, sum, n);
            }
        }
    }
    T
}

/// Where the results of vector `j` and token `t` of a tile go, and how many of its rows the job has.
#[inline(always)]
unsafe fn result<S: Simd>(job: &MatmulJob<'_>, at: TilePlace, j: usize, t: usize) -> (*mut f32, usize) {
    let row = at.panel * GROUP + j * S::N;
    let n = job.rows.end.saturating_sub(row).min(S::N);
    (job.out(at.token + t, row.min(job.rows.end - 1)), n)
}

/// Rows as stored in the file: a few tokens at a time along the row.
#[inline(always)]
unsafe fn rows<S: Simd, W: DenseWeight>(job: &MatmulJob<'_>) {
    for row in job.rows.clone() {
        let mut token = 0;
        while token < job.tokens() {
            // SAFETY: row and tokens are the job's.
            token += unsafe {
                if job.tokens() - token >= ROW_TOKENS {
                    row_of::<S, W, ROW_TOKENS>(job, row, token)
                } else {
                    row_of::<S, W, 1>(job, row, token)
                }
            };
        }
    }
}

/// One row times `T` tokens. Returns `T`.
#[inline(always)]
unsafe fn row_of<S: Simd, W: DenseWeight, const T: usize>(
    job: &MatmulJob<'_>,
    row: usize,
    token: usize,
) -> usize {
    let cols = job.matrix.cols();
    let w = job.panel(row).as_ptr();
    let mut x = [std::ptr::null::<f32>(); T];
    for (t, x) in x.iter_mut().enumerate() {
        *x = view::<f32>(job.act(token + t)).as_ptr();
    }
    // SAFETY: the row and each token have `cols` columns.
    unsafe {
        // Two sums per token hide the latency of the additions.
        let mut acc = [[S::splat(0.0); 2]; T];
        let whole = cols - cols % S::N;
        for k in (0..whole).step_by(S::N) {
            let v = W::load::<S>(w.add(k * W::BYTES));
            for (acc, x) in acc.iter_mut().zip(x) {
                let a = &mut acc[k / S::N % 2];
                *a = S::fma(S::load(x.add(k)), v, *a);
            }
        }
        if whole < cols {
            let v = W::load_part::<S>(w.add(whole * W::BYTES), cols - whole);
            for (acc, x) in acc.iter_mut().zip(x) {
                acc[0] = S::fma(S::load_part(x.add(whole), cols - whole), v, acc[0]);
            }
        }
        for (t, acc) in acc.iter().enumerate() {
            job.out(token + t, row).write(S::sum(S::add(acc[0], acc[1])));
        }
    }
    T
}
