//! Few query rows: lanes run along the head.
//!
//! Keys and values are loaded into registers once for up to four query rows that share them, and widened there
//! ([`Widened`]), unless the processor multiplies f16 values as they are (`halves`).

use super::super::plan::{BLOCK, PARTIAL_HEAD};
use super::{MaskBlock, QueryTile, Simd, finite_max};

/// Heads are padded to the longest vector, elements.
pub(super) const PAD: usize = 16;
/// Positions in a tile of scores.
pub(super) const POSITIONS: usize = 4;
/// Vectors of a value in a tile of results.
const VECTORS: usize = 4;
/// Prefetch distance in positions: rows of one head are too far apart for the hardware prefetcher.
const AHEAD: usize = 24;
const CACHE_LINE: usize = 64;

/// Layout of the scratch memory, all in f32 or less.
pub(super) struct AlongScratch {
    /// Queries, `[rows][dk16]`.
    pub q: *mut f32,
    /// Results, `[rows][dv16]`.
    pub acc: *mut f32,
    /// Scores, then weights, `[rows][BLOCK]`.
    pub s: *mut f32,
    /// Maximum and sum of each row.
    max: *mut f32,
    sum: *mut f32,
}

/// Some positions of some query rows: rows from `row`, and `n` positions from `p`.
#[derive(Clone, Copy)]
pub(super) struct HeadBlock {
    pub row: usize,
    pub p: usize,
    pub n: usize,
}

/// How queries are multiplied with keys, and weights with values.
///
/// All methods require what [`run`] does, and that the rows and positions exist.
pub(super) trait HeadProducts<S: Simd> {
    /// Writes a query row to its place.
    unsafe fn query(tile: &QueryTile<'_>, at: &AlongScratch, row: usize);
    /// Scores of `R` rows for positions `p + i` and the next three; positions from `n` on repeat the last one.
    unsafe fn scores<const R: usize>(tile: &QueryTile<'_>, at: &AlongScratch, block: HeadBlock, i: usize);
    /// Writes the weights of positions from `i` to their row, whose scores from `i` on have been read; returns them
    /// as written.
    unsafe fn put_weights(row: *mut f32, i: usize, weights: S::V) -> S::V;
    /// Adds the weighted values to the results of `R` rows.
    unsafe fn values<const R: usize>(tile: &QueryTile<'_>, at: &AlongScratch, block: HeadBlock);
}

/// f16 values are widened after loading.
pub(super) struct Widened;

impl AlongScratch {
    /// # Safety
    /// `base` must have the plan's scratch memory.
    #[inline(always)]
    unsafe fn new(base: *mut f32, tile: &QueryTile<'_>) -> Self {
        let (dk, dv) = (tile.a.dk.next_multiple_of(PAD), tile.a.dv.next_multiple_of(PAD));
        // SAFETY: `super::super::scratch_bytes` counts these parts.
        unsafe {
            let s = base.add(tile.rows * dk);
            let acc = s.add(tile.rows * BLOCK);
            let max = acc.add(tile.rows * dv);
            Self { q: base, acc, s, max, sum: max.add(tile.rows) }
        }
    }
}

/// # Safety
/// The tile's tensors must be valid; `scratch` and `partials` must have the plan's sizes.
#[inline(always)]
pub(super) unsafe fn run<S: Simd, P: HeadProducts<S>>(
    tile: &QueryTile<'_>,
    scratch: *mut f32,
    partials: *mut f32,
) {
    let (dk, dv) = (tile.a.dk.next_multiple_of(PAD), tile.a.dv.next_multiple_of(PAD));
    // SAFETY: all offsets are within the parts of the scratch memory.
    unsafe {
        let at = AlongScratch::new(scratch, tile);
        std::ptr::write_bytes(at.q, 0, tile.rows * dk);
        std::ptr::write_bytes(at.acc, 0, tile.rows * dv);
        std::ptr::write_bytes(at.sum, 0, tile.rows);
        for row in 0..tile.rows {
            P::query(tile, &at, row);
            *at.max.add(row) = f32::NEG_INFINITY;
        }
        let (first, end) = tile.item.positions;
        for p in (first..end).step_by(BLOCK) {
            let n = BLOCK.min(end - p);
            let state = tile.block((0, tile.rows), p, n);
            if state == MaskBlock::Closed {
                continue;
            }
            let mut row = 0;
            while row < tile.rows {
                // Sixteen registers cannot hold the sums of four rows.
                let most = if S::REGISTERS < 32 { 2 } else { 4 };
                let part = HeadBlock { row, p, n };
                row += match (tile.rows - row).min(most) {
                    1 => block::<S, P, 1>(tile, &at, part, state),
                    2 | 3 => block::<S, P, 2>(tile, &at, part, state),
                    _ => block::<S, P, 4>(tile, &at, part, state),
                };
            }
        }
        finish(tile, &at, partials);
    }
}

/// A block of positions for `R` rows. Returns `R`.
#[inline(always)]
unsafe fn block<S: Simd, P: HeadProducts<S>, const R: usize>(
    tile: &QueryTile<'_>,
    at: &AlongScratch,
    block: HeadBlock,
    state: MaskBlock,
) -> usize {
    // SAFETY: as in `run`.
    unsafe {
        for i in (0..block.n).step_by(POSITIONS) {
            P::scores::<R>(tile, at, block, i);
        }
        for row in block.row..block.row + R {
            weigh::<S, P>(tile, at, HeadBlock { row, ..block }, state);
        }
        P::values::<R>(tile, at, block);
    }
    R
}

/// Where the keys of positions `p + i` and the next three are; asks for later ones.
#[inline(always)]
pub(super) unsafe fn keys<S: Simd>(
    tile: &QueryTile<'_>,
    HeadBlock { p, n, .. }: HeadBlock,
    i: usize,
) -> [*const u16; POSITIONS] {
    let mut k = [tile.a.k.base; POSITIONS];
    for (j, k) in k.iter_mut().enumerate() {
        // SAFETY: as in `run`.
        unsafe {
            *k = tile.a.k.at(p + (i + j).min(n - 1), tile.item.kv_head);
            ask::<S>(k.wrapping_byte_add(AHEAD * tile.a.k.row), tile.a.dk);
        }
    }
    k
}

impl<S: Simd> HeadProducts<S> for Widened {
    #[inline(always)]
    unsafe fn query(tile: &QueryTile<'_>, at: &AlongScratch, row: usize) {
        let stride = tile.a.dk.next_multiple_of(PAD);
        // SAFETY: as in `run`.
        unsafe { tile.copy_query::<S>(row, at.q.add(row * stride), 1) }
    }

    #[inline(always)]
    unsafe fn scores<const R: usize>(tile: &QueryTile<'_>, at: &AlongScratch, block: HeadBlock, i: usize) {
        let (dk, stride) = (tile.a.dk, tile.a.dk.next_multiple_of(PAD));
        // SAFETY: as in `run`.
        unsafe {
            let k = keys::<S>(tile, block, i);
            let q = at.q.add(block.row * stride);
            let mut acc = [[S::splat(0.0); POSITIONS]; R];
            let whole = dk - dk % S::N;
            for d in (0..whole).step_by(S::N) {
                let mut keys = [S::splat(0.0); POSITIONS];
                for (key, k) in keys.iter_mut().zip(k) {
                    *key = S::load_f16(k.add(d));
                }
                for (r, acc) in acc.iter_mut().enumerate() {
                    let q = S::load(q.add(r * stride + d));
                    for (a, key) in acc.iter_mut().zip(keys) {
                        *a = S::fma(q, key, *a);
                    }
                }
            }
            if whole < dk {
                for (j, k) in k.iter().enumerate() {
                    let key = S::load_f16_part(k.add(whole), dk - whole);
                    for (r, acc) in acc.iter_mut().enumerate() {
                        acc[j] = S::fma(S::load(q.add(r * stride + whole)), key, acc[j]);
                    }
                }
            }
            for (r, acc) in acc.iter().enumerate() {
                S::sum4(at.s.add((block.row + r) * BLOCK + i), *acc);
            }
        }
    }

    #[inline(always)]
    unsafe fn put_weights(row: *mut f32, i: usize, weights: S::V) -> S::V {
        // SAFETY: as in `run`.
        unsafe { S::store(row.add(i), weights) };
        weights
    }

    #[inline(always)]
    unsafe fn values<const R: usize>(tile: &QueryTile<'_>, at: &AlongScratch, block: HeadBlock) {
        let step = VECTORS * S::N;
        // SAFETY: as in `run`.
        unsafe {
            for d in (0..tile.a.dv).step_by(step) {
                if d + step <= tile.a.dv {
                    values::<S, R, VECTORS>(tile, at, block, d);
                } else {
                    for d in (d..tile.a.dv).step_by(S::N) {
                        values::<S, R, 1>(tile, at, block, d);
                    }
                }
            }
        }
    }
}

/// Prefetches the cache lines of `n` f16 values.
#[inline(always)]
unsafe fn ask<S: Simd>(p: *const u16, n: usize) {
    for line in (0..2 * n).step_by(CACHE_LINE) {
        // SAFETY: a prefetch hint may point anywhere.
        unsafe { S::prefetch(p.wrapping_byte_add(line).cast()) };
    }
}

/// Turns the scores of one row into weights and rescales its sum and result so far to the new maximum.
#[inline(always)]
unsafe fn weigh<S: Simd, P: HeadProducts<S>>(
    tile: &QueryTile<'_>,
    at: &AlongScratch,
    HeadBlock { row, p, n }: HeadBlock,
    state: MaskBlock,
) {
    let dv = tile.a.dv.next_multiple_of(PAD);
    let cap = tile.a.softcap;
    // SAFETY: as in `run`; the row has BLOCK scores.
    unsafe {
        let s = at.s.add(row * BLOCK);
        for i in n..BLOCK.min(n.next_multiple_of(PAD)) {
            *s.add(i) = f32::NEG_INFINITY;
        }
        let mask = tile.a.mask.filter(|_| state == MaskBlock::Mixed);
        let mask = mask.map(|m| m.at(tile.row(row).0, 0).add(p));
        let mut high = S::splat(f32::NEG_INFINITY);
        for i in (0..n).step_by(S::N) {
            let mut v = S::load(s.add(i));
            if cap != 0.0 {
                // Tanh has no infinity: -inf is restored below.
                v = S::mul(S::tanh(v), S::splat(cap));
            }
            if let Some(mask) = mask {
                v = S::add(v, S::load_f16_part(mask.add(i), S::N.min(n - i)));
            }
            S::store(s.add(i), v);
            if i + S::N > n {
                for j in n..i + S::N {
                    *s.add(j) = f32::NEG_INFINITY;
                }
                v = S::load(s.add(i));
            }
            high = S::max(high, v);
        }
        let old = *at.max.add(row);
        let new = old.max(S::maximum(high));
        *at.max.add(row) = new;
        let base = finite_max::<S>(S::splat(new));
        let mut total = S::splat(0.0);
        for i in (0..n).step_by(S::N) {
            let weight = S::exp(S::sub(S::load(s.add(i)), base));
            total = S::add(total, P::put_weights(s, i, weight));
        }
        let sum = at.sum.add(row);
        let factor = if new > old { (old - new).exp() } else { 1.0 };
        *sum = *sum * factor + S::sum(total);
        if factor != 1.0 {
            for d in (0..dv).step_by(S::N) {
                let v = at.acc.add(row * dv + d);
                S::store(v, S::mul(S::load(v), S::splat(factor)));
            }
        }
    }
}

/// Adds the weighted values' elements `d..d + V * S::N` (as far as they exist) to the results of `R` rows.
#[inline(always)]
unsafe fn values<S: Simd, const R: usize, const V: usize>(
    tile: &QueryTile<'_>,
    at: &AlongScratch,
    HeadBlock { row, p, n }: HeadBlock,
    d: usize,
) {
    let (dv, stride) = (tile.a.dv, tile.a.dv.next_multiple_of(PAD));
    // SAFETY: as in `run`.
    unsafe {
        let to = at.acc.add(row * stride + d);
        let mut acc = [[S::splat(0.0); V]; R];
        for (r, acc) in acc.iter_mut().enumerate() {
            for (j, a) in acc.iter_mut().enumerate() {
                *a = S::load(to.add(r * stride + j * S::N));
            }
        }
        let weights = at.s.add(row * BLOCK);
        for i in 0..n {
            let v = tile.a.v.at(p + i, tile.item.kv_head).add(d);
            ask::<S>(v.wrapping_byte_add(AHEAD * tile.a.v.row), V * S::N);
            let mut vs = [S::splat(0.0); V];
            for (j, x) in vs.iter_mut().enumerate() {
                // With several vectors, all of them are full.
                let whole = V > 1 || dv - d >= S::N;
                *x = if whole { S::load_f16(v.add(j * S::N)) } else { S::load_f16_part(v, dv - d) };
            }
            for (r, acc) in acc.iter_mut().enumerate() {
                let weight = S::splat(*weights.add(r * BLOCK + i));
                for (a, x) in acc.iter_mut().zip(vs) {
                    *a = S::fma(weight, x, *a);
                }
            }
        }
        for (r, acc) in acc.iter().enumerate() {
            for (j, a) in acc.iter().enumerate() {
                S::store(to.add(r * stride + j * S::N), *a);
            }
        }
    }
}

/// Writes the rows, divided by their sums, or as partial results.
#[inline(always)]
unsafe fn finish(tile: &QueryTile<'_>, at: &AlongScratch, partials: *mut f32) {
    let (dv, stride, item) = (tile.a.dv, tile.a.dv.next_multiple_of(PAD), &tile.item);
    // SAFETY: as in `run`; rows of the result have dv elements, partial results PARTIAL_HEAD more.
    unsafe {
        for row in 0..tile.rows {
            let (token, head) = tile.row(row);
            let from = std::slice::from_raw_parts(at.acc.add(row * stride), dv);
            let (max, sum) = (*at.max.add(row), *at.sum.add(row));
            if item.chunks > 1 {
                let index = (token * tile.a.heads + head) * item.chunks + item.chunk;
                let part = std::slice::from_raw_parts_mut(
                    partials.add(index * (PARTIAL_HEAD + dv)),
                    PARTIAL_HEAD + dv,
                );
                (part[0], part[1]) = (max, sum);
                part[PARTIAL_HEAD..].copy_from_slice(from);
                continue;
            }
            let factor = if sum == 0.0 { 0.0 } else { 1.0 / sum };
            let out = std::slice::from_raw_parts_mut(tile.a.out.at_mut(token, head), dv);
            for (o, v) in out.iter_mut().zip(from) {
                *o = v * factor;
            }
        }
    }
}
