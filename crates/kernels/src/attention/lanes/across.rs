//! Many query rows: each lane is a query row.
//!
//! Queries are transposed to `[dk][lanes]`; a block of keys and values is widened to f32 once for all rows of the
//! tile. Scores are `[position][lanes]`, so that maximum and sum over positions need no cross-lane step, and the
//! result is `[dv][lanes]`. Both products use the same kernel: scalars of one matrix times vectors of the other.

use super::super::plan::BLOCK;
use super::{MaskBlock, QueryTile, Simd, finite_max};

/// Most lanes processed together on any instruction set.
const MAX_LANES: usize = 32;

/// Layout of the scratch memory, all in f32.
struct AcrossScratch {
    /// Queries, `[lane block][dk][lanes]`.
    q: *mut f32,
    /// Results, `[lane block][dv4][lanes]`.
    acc: *mut f32,
    /// Maximum and sum of each row.
    max: *mut f32,
    sum: *mut f32,
    /// The block's keys, `[BLOCK][dk]`, and values, `[BLOCK][dv4]`.
    k: *mut f32,
    v: *mut f32,
    /// Scores and mask of one lane block, `[BLOCK][lanes]`.
    s: *mut f32,
    mask: *mut f32,
}

/// Scalars at `base[m * row + k * col]`.
#[derive(Clone, Copy)]
struct Scalars {
    base: *const f32,
    row: usize,
    col: usize,
}

impl AcrossScratch {
    /// # Safety
    /// `base` must have the plan's scratch memory.
    #[inline(always)]
    unsafe fn new(base: *mut f32, tile: &QueryTile<'_>) -> Self {
        let rows = tile.rows.next_multiple_of(MAX_LANES);
        let (dk, dv) = (tile.a.dk, padded(tile.a.dv));
        // SAFETY: `super::super::scratch_bytes` counts these parts.
        unsafe {
            let acc = base.add(rows * dk);
            let max = acc.add(rows * dv);
            let sum = max.add(rows);
            let s = sum.add(rows);
            let mask = s.add(BLOCK * MAX_LANES);
            let k = mask.add(BLOCK * MAX_LANES);
            Self { q: base, acc, max, sum, k, v: k.add(BLOCK * dk), s, mask }
        }
    }
}

/// Elements of a value, rounded up to the smallest tile.
#[inline(always)]
fn padded(dv: usize) -> usize {
    dv.next_multiple_of(4)
}

/// # Safety
/// The tile's tensors must be valid and `scratch` must have the plan's size.
#[inline(always)]
pub(super) unsafe fn run<S: Simd>(tile: &QueryTile<'_>, scratch: *mut f32) {
    let lanes = S::TILE.0 * S::N;
    let (dk, dv) = (tile.a.dk, padded(tile.a.dv));
    let blocks = tile.rows.div_ceil(lanes);
    // SAFETY: all offsets are within the parts of the scratch memory.
    unsafe {
        let at = AcrossScratch::new(scratch, tile);
        start::<S>(tile, &at, lanes);
        let (first, end) = tile.item.positions;
        for p in (first..end).step_by(BLOCK) {
            let n = BLOCK.min(end - p);
            let mut widened = false;
            for b in 0..blocks {
                let rows = (b * lanes, ((b + 1) * lanes).min(tile.rows));
                let state = tile.block(rows, p, n);
                if state == MaskBlock::Closed {
                    continue;
                }
                if !std::mem::replace(&mut widened, true) {
                    widen::<S>(tile, &at, p, n);
                }
                if state == MaskBlock::Mixed {
                    spread_mask::<S>(tile, &at, rows, p, n, lanes);
                }
                let n4 = n.next_multiple_of(4);
                let keys = Scalars { base: at.k, row: dk, col: 1 };
                multiply::<S, false>(at.s, n4, keys, at.q.add(b * lanes * dk), dk);
                let acc = at.acc.add(b * lanes * dv);
                weigh::<S>(tile, &at, b * lanes, state, n, acc);
                let values = Scalars { base: at.v, row: 1, col: dv };
                multiply::<S, true>(acc, dv, values, at.s, n);
            }
        }
        finish(tile, &at, lanes);
    }
}

/// Transposes the queries; clears the sums.
#[inline(always)]
unsafe fn start<S: Simd>(tile: &QueryTile<'_>, at: &AcrossScratch, lanes: usize) {
    let (dk, dv) = (tile.a.dk, padded(tile.a.dv));
    let rows = tile.rows.next_multiple_of(lanes);
    // SAFETY: as in `run`.
    unsafe {
        // Lanes without a row work on zeros.
        std::ptr::write_bytes(at.q.add((rows / lanes - 1) * lanes * dk), 0, lanes * dk);
        for row in 0..tile.rows {
            tile.copy_query::<S>(row, at.q.add(row / lanes * lanes * dk + row % lanes), lanes);
        }
        std::ptr::write_bytes(at.acc, 0, rows * dv);
        std::ptr::write_bytes(at.sum, 0, rows);
        std::slice::from_raw_parts_mut(at.max, rows).fill(f32::NEG_INFINITY);
    }
}

/// Widens keys and values of `n` positions to f32; keys are zero-padded to a multiple of 4 positions, values to a
/// multiple of 4 elements.
#[inline(always)]
unsafe fn widen<S: Simd>(tile: &QueryTile<'_>, at: &AcrossScratch, p: usize, n: usize) {
    let (a, head) = (tile.a, tile.item.kv_head);
    let (dk, dv) = (a.dk, padded(a.dv));
    // SAFETY: as in `run`; rows of the cache have dk and dv elements.
    unsafe {
        for i in 0..n {
            widen_row::<S>(a.k.at(p + i, head), at.k.add(i * dk), dk);
            widen_row::<S>(a.v.at(p + i, head), at.v.add(i * dv), a.dv);
            std::ptr::write_bytes(at.v.add(i * dv + a.dv), 0, dv - a.dv);
        }
        std::ptr::write_bytes(at.k.add(n * dk), 0, (n.next_multiple_of(4) - n) * dk);
    }
}

#[inline(always)]
unsafe fn widen_row<S: Simd>(from: *const u16, to: *mut f32, n: usize) {
    let whole = n - n % S::N;
    // SAFETY: both have `n` elements.
    unsafe {
        for i in (0..whole).step_by(S::N) {
            S::store(to.add(i), S::load_f16(from.add(i)));
        }
        if whole < n {
            S::store_part(to.add(whole), S::load_f16_part(from.add(whole), n - whole), n - whole);
        }
    }
}

/// Spreads the mask of `rows` to `[position][lanes]`.
#[inline(always)]
unsafe fn spread_mask<S: Simd>(
    tile: &QueryTile<'_>,
    at: &AcrossScratch,
    rows: (usize, usize),
    p: usize,
    n: usize,
    lanes: usize,
) {
    let Some(mask) = tile.a.mask else { return };
    let mut wide = [0.0f32; BLOCK];
    let mut token_of_wide = usize::MAX;
    // SAFETY: as in `run`.
    unsafe {
        for lane in 0..lanes {
            // Lanes without a row take the last one's.
            let (token, _) = tile.row((rows.0 + lane).min(rows.1 - 1));
            if token != token_of_wide {
                widen_row::<S>(mask.at(token, 0).add(p), wide.as_mut_ptr(), n);
                token_of_wide = token;
            }
            for (i, m) in wide[..n].iter().enumerate() {
                *at.mask.add(i * lanes + lane) = *m;
            }
        }
    }
}

/// Turns scores into weights: cap, mask, running maximum, exponentials. Rescales the sums and results so far to the
/// new maximum.
#[inline(always)]
unsafe fn weigh<S: Simd>(
    tile: &QueryTile<'_>,
    at: &AcrossScratch,
    row: usize,
    state: MaskBlock,
    n: usize,
    acc: *mut f32,
) {
    let lanes = S::TILE.0 * S::N;
    let (cap, masked) = (tile.a.softcap, state == MaskBlock::Mixed);
    // SAFETY: as in `run`.
    unsafe {
        for lane in (0..lanes).step_by(S::N) {
            let (max, sum) = (at.max.add(row + lane), at.sum.add(row + lane));
            let old = S::load(max);
            let mut new = old;
            for i in 0..n {
                let p = at.s.add(i * lanes + lane);
                let mut s = S::load(p);
                if cap != 0.0 {
                    s = S::mul(S::tanh(s), S::splat(cap));
                }
                if masked {
                    s = S::add(s, S::load(at.mask.add(i * lanes + lane)));
                }
                S::store(p, s);
                new = S::max(new, s);
            }
            S::store(max, new);
            let base = finite_max::<S>(new);
            let mut total = S::splat(0.0);
            for i in 0..n {
                let p = at.s.add(i * lanes + lane);
                let weight = S::exp(S::sub(S::load(p), base));
                S::store(p, weight);
                total = S::add(total, weight);
            }
            let factor = S::exp(S::sub(old, base));
            S::store(sum, S::fma(S::load(sum), factor, total));
            for d in 0..padded(tile.a.dv) {
                let p = acc.add(d * lanes + lane);
                S::store(p, S::mul(S::load(p), factor));
            }
        }
    }
}

/// Divides by the sums and writes the rows.
#[inline(always)]
unsafe fn finish(tile: &QueryTile<'_>, at: &AcrossScratch, lanes: usize) {
    let dv = padded(tile.a.dv);
    // SAFETY: as in `run`; rows of the result have dv elements.
    unsafe {
        for row in 0..tile.rows {
            let (token, head) = tile.row(row);
            let out = std::slice::from_raw_parts_mut(tile.a.out.at_mut(token, head), tile.a.dv);
            let from = at.acc.add(row / lanes * lanes * dv + row % lanes);
            let sum = *at.sum.add(row);
            let factor = if sum == 0.0 { 0.0 } else { 1.0 / sum };
            for (d, o) in out.iter_mut().enumerate() {
                *o = *from.add(d * lanes) * factor;
            }
        }
    }
}

/// `c[m][lanes] = Σ_k scalars[m][k]·b[k][lanes]` for m below `rows`, a multiple of 4; added to `c` if `ADD`.
///
/// # Safety
/// The three matrices must have the sizes implied by the formula.
#[inline(always)]
unsafe fn multiply<S: Simd, const ADD: bool>(
    c: *mut f32,
    rows: usize,
    scalars: Scalars,
    b: *const f32,
    depth: usize,
) {
    let lanes = S::TILE.0 * S::N;
    let mut m = 0;
    // SAFETY: guaranteed by the caller.
    unsafe {
        while m < rows {
            let from = Scalars { base: scalars.base.add(m * scalars.row), ..scalars };
            let to = c.add(m * lanes);
            // The rest is a multiple of 4 as long as tiles of 6 come in pairs or before a tile of 4.
            m += match (S::TILE, rows - m) {
                ((2, 12), 12..) => tile_of::<S, 2, 12, ADD>(to, from, b, depth),
                ((2, 6), left) if left >= 6 && left != 8 => tile_of::<S, 2, 6, ADD>(to, from, b, depth),
                ((4, 6), left) if left >= 6 && left != 8 => tile_of::<S, 4, 6, ADD>(to, from, b, depth),
                ((2, _), _) => tile_of::<S, 2, 4, ADD>(to, from, b, depth),
                _ => tile_of::<S, 4, 4, ADD>(to, from, b, depth),
            };
        }
    }
}

/// One register tile of [`multiply`]: `M` rows of `NV` vectors. Returns `M`.
#[inline(always)]
unsafe fn tile_of<S: Simd, const NV: usize, const M: usize, const ADD: bool>(
    c: *mut f32,
    scalars: Scalars,
    b: *const f32,
    depth: usize,
) -> usize {
    let lanes = NV * S::N;
    // SAFETY: guaranteed by the caller.
    unsafe {
        let mut acc = [[S::splat(0.0); NV]; M];
        if ADD {
            for (m, row) in acc.iter_mut().enumerate() {
                for (j, v) in row.iter_mut().enumerate() {
                    *v = S::load(c.add(m * lanes + j * S::N));
                }
            }
        }
        for k in 0..depth {
            let mut x = [S::splat(0.0); NV];
            for (j, x) in x.iter_mut().enumerate() {
                *x = S::load(b.add(k * lanes + j * S::N));
            }
            for (m, row) in acc.iter_mut().enumerate() {
                let scalar = S::splat(*scalars.base.add(m * scalars.row + k * scalars.col));
                for (v, x) in row.iter_mut().zip(x) {
                    *v = S::fma(scalar, x, *v);
                }
            }
        }
        for (m, row) in acc.iter().enumerate() {
            for (j, v) in row.iter().enumerate() {
                S::store(c.add(m * lanes + j * S::N), *v);
            }
        }
    }
    M
}
