//! Memory bandwidth: reads in several patterns, and STREAM's triad.

use super::super::isa::Isa;
use super::super::simd::{Simd, per_isa};
use super::{Effort, windows::best_rate};
use memmap2::MmapMut;
use std::hint::black_box;
use std::{fs, io};

/// A machine with less available memory than this is not measured.
const LEAST: usize = 32 << 20;
/// Bytes read from one stream before moving to the next: a few cache lines, as a kernel reads a row's block.
const STEP: usize = 256;
const CACHE_LINE: usize = 64;

/// Not enough memory to measure.
#[derive(Debug, thiserror::Error)]
#[error("not enough memory: {0} MB are needed to measure bandwidth")]
pub struct MemoryError(usize);

/// Page size of the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PageSize {
    Huge,
    Small,
}

/// Memory to read, with all pages present.
pub(super) struct ReadBuffer(MmapMut);

/// How a thread reads its part of the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadPattern {
    /// Number of places read in parallel.
    streams: usize,
    /// Prefetch distance in bytes; 0: hardware prefetching only.
    ahead: usize,
}

/// The patterns of which the fastest counts.
pub const READ_PATTERNS: [ReadPattern; 9] = [
    ReadPattern { streams: 1, ahead: 0 },
    ReadPattern { streams: 2, ahead: 0 },
    ReadPattern { streams: 4, ahead: 0 },
    ReadPattern { streams: 8, ahead: 0 },
    ReadPattern { streams: 1, ahead: 1024 },
    ReadPattern { streams: 1, ahead: 4096 },
    ReadPattern { streams: 2, ahead: 2048 },
    ReadPattern { streams: 4, ahead: 1024 },
    ReadPattern { streams: 8, ahead: 512 },
];

impl ReadBuffer {
    /// This many bytes, or a quarter of the available memory if that is less.
    pub(super) fn new(pages: PageSize, bytes: usize) -> Result<Self, MemoryError> {
        let bytes = available().map_or(bytes, |all| bytes.min(all / 4));
        let no_memory = MemoryError(bytes.max(LEAST) >> 20);
        if bytes < LEAST {
            return Err(no_memory);
        }
        let Ok(mut map) = MmapMut::map_anon(bytes) else { return Err(no_memory) };
        // A kernel without huge pages provides small ones, and the figures are then the same.
        #[cfg(target_os = "linux")]
        let _ = map.advise(match pages {
            PageSize::Huge => memmap2::Advice::HugePage,
            PageSize::Small => memmap2::Advice::NoHugePage,
        });
        #[cfg(not(target_os = "linux"))]
        let _ = pages;
        map.fill(0);
        Ok(Self(map))
    }

    /// A thread's part, in complete cache lines.
    fn part(&self, thread: usize, threads: usize) -> &[f32] {
        let bytes = (self.0.len() / threads) & !(CACHE_LINE - 1);
        // SAFETY: pages are aligned for any number, and all bytes are valid numbers.
        unsafe { self.0[thread * bytes..(thread + 1) * bytes].align_to().1 }
    }
}

/// The `step`th piece of a part, cyclically: short enough to read the clock between pieces, long enough for the
/// boundaries to cost nothing.
fn piece(part: &[f32], step: usize) -> &[f32] {
    const PIECE: usize = 1 << 20;
    let pieces = (part.len() / PIECE).max(1);
    let at = step % pieces * PIECE;
    &part[at..part.len().min(at + PIECE)]
}

/// The kernel's `MemAvailable`, in bytes.
fn available() -> Option<usize> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    line.trim().trim_end_matches(" kB").parse::<usize>().ok()?.checked_mul(1024)
}

/// Read bandwidth in GB/s, with the best pattern.
pub(super) fn read(buffer: &ReadBuffer, cpus: &[usize], effort: Effort) -> io::Result<f64> {
    let isa = Isa::best();
    let with = |pattern: ReadPattern, effort| {
        best_rate(cpus, effort, |thread, step| {
            let part = buffer.part(thread, cpus.len());
            read_piece(isa, piece(part, step), pattern)
        })
        .map(|rate| rate / 1e9)
    };
    let look = Effort { windows: effort.windows.div_ceil(4), ..effort };
    let (mut rate, mut best) = (0.0, READ_PATTERNS[0]);
    for pattern in READ_PATTERNS {
        let found = with(pattern, look)?;
        if found >= rate {
            (rate, best) = (found, pattern);
        }
    }
    Ok(with(best, effort)?.max(rate))
}

/// Reads these bytes, up to less than a few cache lines at the end of each stream.
pub(crate) fn read_bytes(bytes: &[u8], pattern: ReadPattern) {
    // SAFETY: all bytes are valid numbers.
    let (_, values, _) = unsafe { bytes.align_to::<f32>() };
    read_piece(Isa::best(), values, pattern);
}

per_isa! {
    /// Reads all of `piece` and returns its bytes.
    fn read_piece(piece: &[f32], pattern: ReadPattern) -> f64 = read_lanes, read_scalar;
    /// `a[i] = b[i] + x·c[i]` for three equal parts of the slice, bypassing the caches if `stream`.
    fn triad_of(a: &mut [f32], b: &[f32], c: &[f32], stream: bool) = triad_lanes, triad_scalar;
}

fn read_scalar(piece: &[f32], _: ReadPattern) -> f64 {
    black_box(piece.iter().fold(0, |or, v| or | v.to_bits()));
    size_of_val(piece) as f64
}

#[inline(always)]
unsafe fn read_lanes<S: Simd>(piece: &[f32], pattern: ReadPattern) -> f64 {
    // SAFETY: the caller guarantees the instruction set.
    unsafe {
        match (pattern.streams, pattern.ahead > 0) {
            (1, false) => read_streams::<S, 1, false>(piece, pattern.ahead),
            (2, false) => read_streams::<S, 2, false>(piece, pattern.ahead),
            (4, false) => read_streams::<S, 4, false>(piece, pattern.ahead),
            (8, false) => read_streams::<S, 8, false>(piece, pattern.ahead),
            (1, true) => read_streams::<S, 1, true>(piece, pattern.ahead),
            (2, true) => read_streams::<S, 2, true>(piece, pattern.ahead),
            (4, true) => read_streams::<S, 4, true>(piece, pattern.ahead),
            _ => read_streams::<S, 8, true>(piece, pattern.ahead),
        }
    }
}

#[inline(always)]
unsafe fn read_streams<S: Simd, const STREAMS: usize, const AHEAD: bool>(piece: &[f32], ahead: usize) -> f64 {
    let stream = size_of_val(piece) / STREAMS / STEP * STEP;
    let base = piece.as_ptr();
    // SAFETY: reads stay below `STREAMS * stream` bytes; prefetch hints may point anywhere.
    unsafe {
        let mut sums = [S::splat(0.0); 4];
        for at in (0..stream).step_by(STEP) {
            for s in 0..STREAMS {
                let p = base.byte_add(s * stream + at);
                if AHEAD {
                    for line in (0..STEP).step_by(CACHE_LINE) {
                        S::prefetch(p.wrapping_byte_add(ahead + line).cast());
                    }
                }
                for i in 0..STEP / (4 * S::N) {
                    sums[i % 4] = S::add(sums[i % 4], S::load(p.add(i * S::N)));
                }
            }
        }
        let [a, b, c, d] = sums;
        black_box(S::sum(S::add(S::add(a, b), S::add(c, d))));
    }
    (STREAMS * stream) as f64
}

/// Triad bandwidth in GB/s, with the better kind of stores.
pub(super) fn triad(buffer: &ReadBuffer, cpus: &[usize], effort: Effort) -> io::Result<f64> {
    let isa = Isa::best();
    let with = |stream: bool| {
        best_rate(cpus, effort, |thread, step| {
            let part = buffer.part(thread, cpus.len());
            let third = (part.len() / 3) & !(CACHE_LINE - 1);
            let (b, c) = (piece(&part[third..2 * third], step), piece(&part[2 * third..3 * third], step));
            let a = piece(&part[..third], step);
            // SAFETY: the part belongs to this thread alone, nobody reads its first third, and the memory is
            // writable.
            let a = unsafe { std::slice::from_raw_parts_mut(a.as_ptr().cast_mut(), a.len()) };
            triad_of(isa, a, b, c, stream);
            (3 * size_of_val(a)) as f64
        })
        .map(|rate| rate / 1e9)
    };
    Ok(with(false)?.max(with(true)?))
}

fn triad_scalar(a: &mut [f32], b: &[f32], c: &[f32], _: bool) {
    for ((a, b), c) in a.iter_mut().zip(b).zip(c) {
        *a = b + 3.0 * c;
    }
}

#[inline(always)]
unsafe fn triad_lanes<S: Simd>(a: &mut [f32], b: &[f32], c: &[f32], stream: bool) {
    let n = a.len().min(b.len()).min(c.len());
    // SAFETY: complete vectors below `n`; parts begin and end at cache lines.
    unsafe {
        let factor = S::splat(3.0);
        for i in (0..n - n % S::N).step_by(S::N) {
            let v = S::fma(S::load(c.as_ptr().add(i)), factor, S::load(b.as_ptr().add(i)));
            let p = a.as_mut_ptr().add(i);
            if stream { S::store_past_caches(p, v) } else { S::store(p, v) }
        }
    }
}
