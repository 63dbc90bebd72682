//! Times matrix products alone, on made-up weights.
//!
//! A single matrix would stay in the caches, so products cycle through enough copies to exceed any cache.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::reading::{self, ReadingChoice};

use super::kernels::{
    Acts, Isa, Matrix, MatrixError, MatrixPlacement, ResultRows, RowIndex, matmul, prepare_row,
    prepared_row_bytes,
};
use ggml::quant::TensorType;

/// Bytes of weights to cycle through: more than a last-level cache holds.
pub const FOOTPRINT: usize = 192 << 20;
/// Bytes of weights per measurement if there are few tokens.
const SLICE: usize = 16 << 20;
/// From this many tokens on, rows are handed out dynamically and fewer copies suffice.
const MANY: usize = 16;
/// Rows handed out at a time.
const CHUNK_ROWS: usize = 128;

/// Why a product cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    #[error(transparent)]
    Matrix(#[from] MatrixError),
    #[error(
        "cannot start {n} threads: {source}; use fewer with -t, or raise the limit (ulimit -u, pids.max)"
    )]
    Threads { n: usize, source: std::io::Error },
}

/// What to measure: the product of a matrix `[rows][cols]` with a number of tokens.
#[derive(Debug, Clone, Copy)]
pub struct BenchCase {
    pub ty: TensorType,
    pub rows: usize,
    pub cols: usize,
    pub tokens: usize,
    pub isa: Isa,
    pub threads: usize,
}

/// The measurement of one product. Rates are in 10^9 per second; a multiply-add is two operations.
#[derive(Debug, Clone, Serialize)]
pub struct Timing {
    /// Median, in microseconds.
    pub us: f64,
    /// Weights read, counted by their size in the file.
    pub weights_gb_s: f64,
    pub gop_s: f64,
    /// Tokens and rows of the kernel's innermost loop.
    pub tile: Option<(usize, usize)>,
    /// One token: the ways to read the weights, and the chosen one.
    pub reading: Option<ReadingChoice>,
}

/// Tile of `ep` tokens times `hp` vectors of rows for this many registers: the one with the fewest loads by MNN's
/// rule, which minimises (e / ep) (h / hp) (l hp + l ep + hp ep) with ep hp + ep + hp <= registers, for `e`
/// tokens, `h` vectors of rows and depth `l`. Both are at least 1.
pub fn tile_by_rule(registers: usize, e: usize, h: usize, l: usize) -> (usize, usize) {
    let loads = |(ep, hp): &(usize, usize)| e.div_ceil(*ep) * h.div_ceil(*hp) * (l * (hp + ep) + hp * ep);
    let fits = |(ep, hp): &(usize, usize)| ep * hp + ep + hp <= registers;
    let all = (1..=registers).flat_map(|ep| (1..=registers).map(move |hp| (ep, hp)));
    all.filter(fits).min_by_key(loads).unwrap_or((1, 1))
}

/// Measures for about `seconds`, on copies of `footprint` bytes in total ([`FOOTPRINT`]).
///
/// # Errors
/// The shape is invalid for the type, or memory or threads are not available.
pub fn measure(case: &BenchCase, footprint: usize, seconds: f64) -> Result<Timing, MeasureError> {
    let row_bytes = case.ty.row_bytes(case.cols as u64).unwrap_or(0) as usize;
    let source = made_up(case.ty, row_bytes.saturating_mul(case.rows));
    let make = || Matrix::new(case.ty, case.rows, case.cols, MatrixPlacement::Packed(&source), case.isa);
    let first = make()?;
    let (bytes, fewer) = (first.bytes().max(1), case.tokens.div_ceil(MANY));
    let mut matrices = vec![first];
    for _ in 1..footprint / fewer / bytes {
        matrices.push(make()?);
    }
    let refs: Vec<&Matrix> = matrices.iter().collect();
    let file_bytes = (row_bytes * case.rows) as f64;
    let reading = match case.tokens {
        1 => reading::choose(case, &refs, Duration::from_secs_f64(seconds), true)?,
        _ => None,
    };
    let chosen = reading.as_ref().and_then(|r| r.speed_of(r.chosen));
    let seconds = match chosen {
        Some(gb_s) => file_bytes / gb_s / 1e9,
        None => median_seconds(case, &refs, (SLICE / fewer / bytes).max(1), seconds)?,
    };
    let ops = 2.0 * case.rows as f64 * case.cols as f64 * case.tokens as f64;
    Ok(Timing {
        us: seconds * 1e6,
        weights_gb_s: file_bytes / seconds / 1e9,
        gop_s: ops / seconds / 1e9,
        tile: matrices[0].tile(),
        reading,
    })
}

/// The median time of one matrix in seconds, measured over `slice` matrices at a time.
fn median_seconds(
    case: &BenchCase,
    matrices: &[&Matrix],
    slice: usize,
    limit: f64,
) -> Result<f64, MeasureError> {
    let acts = PreparedRows::new(matrices[0], case);
    let mut results = vec![0.0f32; case.tokens * case.rows];
    let mut times = Vec::new();
    let begin = Instant::now();
    while times.len() < 3 || begin.elapsed().as_secs_f64() < limit {
        for part in matrices.chunks(slice) {
            times.push(round(case, part, &acts, &mut results)? / part.len() as f64);
        }
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// Bytes that form finite weights in every type.
fn made_up(ty: TensorType, len: usize) -> Vec<u8> {
    let block = ty.block_bytes();
    // 0x2c as the upper byte of any f16, f32 or bfloat16 gives a small positive number.
    (0..len).map(|i| if i % block < 4 || i % block >= 208 { 0x2c } else { ((i * 37) >> 2) as u8 }).collect()
}

/// Prepared rows, all identical.
pub(super) struct PreparedRows {
    words: Vec<u64>,
    row_bytes: usize,
}

impl PreparedRows {
    pub(super) fn new(matrix: &Matrix, case: &BenchCase) -> Self {
        let row_bytes = prepared_row_bytes(matrix.format(), case.cols).next_multiple_of(64);
        let mut words = vec![0u64; row_bytes / 8 * case.tokens];
        let row: Vec<f32> = (0..case.cols).map(|i| (i as f32).sin()).collect();
        // SAFETY: any bytes are a valid u64.
        let (_, bytes, _) = unsafe { words.align_to_mut::<u8>() };
        for to in bytes.chunks_mut(row_bytes.max(1)) {
            prepare_row(case.isa, matrix.format(), &row, to);
        }
        Self { words, row_bytes }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: a u64 is valid as bytes.
        unsafe { self.words.align_to::<u8>() }.1
    }
}

/// Seconds for one pass over all matrices, on all threads.
pub(super) fn round(
    case: &BenchCase,
    matrices: &[&Matrix],
    acts: &PreparedRows,
    results: &mut [f32],
) -> Result<f64, MeasureError> {
    let index = RowIndex::First(case.tokens);
    let input = Acts::new(acts.bytes(), acts.row_bytes, index);
    // SAFETY: one row of `rows` values per token; the threads write disjoint rows of the matrix.
    let out = unsafe { ResultRows::new(results.as_mut_ptr(), case.rows, index) };
    each_part(case, matrices, |m, rows, scratch| matmul(m, &input, rows, &out, scratch))
}

/// Seconds until all threads have called `work` for their rows of all matrices.
pub(super) fn each_part(
    case: &BenchCase,
    matrices: &[&Matrix],
    work: impl Fn(&Matrix, Range<usize>, &mut [u8]) + Sync,
) -> Result<f64, MeasureError> {
    let Some(group) = matrices.first().map(|m| m.group()) else { return Ok(0.0) };
    let (ready, next) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let all = |thread: usize| {
        let scratch = matrices.iter().map(|m| m.scratch_bytes(case.tokens)).max().unwrap_or(0);
        let mut scratch = vec![0; scratch];
        ready.fetch_add(1, Ordering::SeqCst);
        while ready.load(Ordering::SeqCst) < case.threads {
            std::hint::spin_loop();
        }
        let begin = Instant::now();
        if case.tokens < MANY {
            let groups = case.rows.div_ceil(group);
            let edge = |thread: usize| (groups * thread / case.threads * group).min(case.rows);
            for m in matrices {
                work(m, edge(thread)..edge(thread + 1), &mut scratch);
            }
        } else {
            let step = CHUNK_ROWS.next_multiple_of(group);
            let chunks = case.rows.div_ceil(step);
            loop {
                let chunk = next.fetch_add(1, Ordering::Relaxed);
                let Some(m) = matrices.get(chunk / chunks) else { break };
                let start = chunk % chunks * step;
                work(m, start..case.rows.min(start + step), &mut scratch);
            }
        }
        begin.elapsed().as_secs_f64()
    };
    std::thread::scope(|scope| {
        let all = &all;
        let start = |t| std::thread::Builder::new().spawn_scoped(scope, move || all(t));
        let others = (1..case.threads).map(start).collect::<Result<Vec<_>, _>>().map_err(|source| {
            // The threads already started are waiting for the others.
            ready.store(case.threads, Ordering::SeqCst);
            MeasureError::Threads { n: case.threads, source }
        })?;
        let own = all(0);
        Ok(others.into_iter().map(|t| t.join().unwrap_or(f64::NAN)).fold(own, f64::max))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rule_by_hand() {
        // (4 + 5) / 20 is the minimum among tiles that fit 32 registers: 20 + 9.
        let (ep, hp) = tile_by_rule(32, 1000, 1000, 4096);
        assert_eq!((ep.min(hp), ep.max(hp)), (4, 5));
        // A single token needs a tile of only one.
        assert_eq!(tile_by_rule(32, 1, 15, 4096), (1, 15));
        assert_eq!(tile_by_rule(3, 8, 8, 8), (1, 1));
    }

    #[test]
    fn every_type_is_measured() {
        for ty in TensorType::ALL {
            for (tokens, threads) in [(1, 1), (17, 2)] {
                let case = BenchCase { ty, rows: 100, cols: 256, tokens, isa: Isa::best(), threads };
                let timing = measure(&case, 0, 0.0).expect("a shape of every type");
                assert!(timing.us > 0.0 && timing.gop_s > 0.0, "{ty:?}: {timing:?}");
            }
        }
        let none =
            BenchCase { ty: TensorType::Q4_0, rows: 1, cols: 5, tokens: 1, isa: Isa::Scalar, threads: 1 };
        assert!(measure(&none, 0, 0.0).is_err());
    }
}
