//! Fused attention over a cache of half-precision keys and values: scores, mask, softmax and weighted sum in one pass
//! with f32 arithmetic, without ever holding a row of scores. May use `kernels::simd`.
//!
//! The work is cut into items that any thread may take in any order ([`Attention::plan`], [`run_item`]): a head of the
//! cache with all query heads that share it, times a range of tokens (prefill) or of positions (decode). Where
//! positions are cut, each item leaves a partial result, and after a barrier [`run_merge`] joins them.

mod lanes;
pub mod scalar;

use super::Isa;
use super::simd::per_isa;

/// Rows in memory that someone else lays out: row (i, head) starts `i * row + head * head_stride` bytes after `base`.
/// The elements of a row are adjacent.
#[derive(Debug, Clone, Copy)]
pub struct Rows<P> {
    pub base: P,
    /// Bytes from one token or position to the next.
    pub row: usize,
    /// Bytes from one head to the next.
    pub head: usize,
}

/// One attention: `out[token][head] = softmax(cap(q·kᵀ·scale) + mask)·v`.
#[derive(Debug, Clone, Copy)]
pub struct Attention {
    /// Queries, f32, `tokens` × `heads` rows of `dk`.
    pub q: Rows<*const f32>,
    /// Keys, f16, `positions` × `kv_heads` rows of `dk`.
    pub k: Rows<*const u16>,
    /// Values, f16, `positions` × `kv_heads` rows of `dv`.
    pub v: Rows<*const u16>,
    /// Result, f32, `tokens` × `heads` rows of `dv`.
    pub out: Rows<*mut f32>,
    /// f16 added to the scores, one row of `positions` a token (`head` is not used): 0, or -inf where closed.
    /// Without it all positions are open.
    pub mask: Option<Rows<*const u16>>,
    pub tokens: usize,
    pub positions: usize,
    /// Query heads; a multiple of `kv_heads`.
    pub heads: usize,
    pub kv_heads: usize,
    /// Elements of a key.
    pub dk: usize,
    /// Elements of a value.
    pub dv: usize,
    /// Factor on the scores, before the cap.
    pub scale: f32,
    /// Scores s become cap·tanh(s / cap); 0 for none.
    pub softcap: f32,
    /// Whether queries are rounded to f16 first, as llama.cpp does below 64 tokens.
    pub round_q: bool,
}

/// How an attention is cut into pieces, and the memory that these need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Calls of [`run_item`], independent of each other; the most expensive first.
    pub items: usize,
    /// Calls of [`run_merge`] after all items are done; 0 when nothing is to be joined.
    pub merges: usize,
    /// Bytes of scratch that a thread needs, aligned to 64.
    pub scratch_bytes: usize,
    /// Elements of the partial results that all threads share.
    pub partials: usize,
    /// Tokens of an item.
    tile: usize,
    /// Positions of an item.
    chunk: usize,
}

/// Rows of queries that a prefill item works on, at most, and at least where threads are many.
const TILE_ROWS: usize = 128;
const MIN_TILE_ROWS: usize = 32;
/// Positions that an item has at least when positions are cut.
const MIN_CHUNK: usize = 256;
/// With fewer query rows than this on a head of the cache, an item works along the head instead of across queries.
const FEW_ROWS: usize = 24;
/// Positions whose scores are held at a time.
const BLOCK: usize = 64;
/// Numbers that a partial result has beside its values: maximum and sum.
const PARTIAL_HEAD: usize = 2;

impl Attention {
    /// Query heads on one head of the cache.
    fn group(&self) -> usize {
        self.heads / self.kv_heads.max(1)
    }

    /// Whether an item works along the head.
    fn few_rows(&self) -> bool {
        self.tokens * self.group() < FEW_ROWS
    }

    /// Cuts the work for `threads` threads. A plan depends on the numbers alone, not on the pointers.
    pub fn plan(&self, threads: usize) -> Plan {
        let (group, threads) = (self.group().max(1), threads.max(1));
        let (mut tile, mut chunk, mut most) = (self.tokens, self.positions, 1);
        if self.few_rows() {
            (chunk, most) = self.decode_chunk(threads);
        } else {
            tile = TILE_ROWS.div_ceil(group);
            let balanced = |tile: usize| self.kv_heads * self.tokens.div_ceil(tile) >= 4 * threads;
            while tile * group > MIN_TILE_ROWS && tile > 1 && !balanced(tile) {
                tile = tile.div_ceil(2);
            }
        }
        let (tile, chunk) = (tile.max(1), chunk.max(1));
        let chunks = self.positions.div_ceil(chunk).max(1);
        let rows = self.tokens * self.heads;
        let cut = chunks > 1;
        Plan {
            items: self.kv_heads * self.tokens.div_ceil(tile) * chunks,
            merges: if cut { rows } else { 0 },
            scratch_bytes: scratch_bytes(tile * group, self.dk, self.dv),
            // For the chunks asked for, of which rounding leaves fewer: that grows with the positions, so that a plan for
            // the most positions has room for all.
            partials: if most > 1 { rows * most * (PARTIAL_HEAD + self.dv) } else { 0 },
            tile,
            chunk,
        }
    }

    /// Positions of a decode item, as long as possible such that the items spread evenly, and the most items of a row.
    fn decode_chunk(&self, threads: usize) -> (usize, usize) {
        let most = (self.positions / MIN_CHUNK).max(1);
        let even = |chunks: &usize| {
            let items = self.kv_heads * chunks;
            items.is_multiple_of(threads) || items >= 4 * threads
        };
        let chunks = (1..=most).find(even).unwrap_or(most);
        (self.positions.div_ceil(chunks).next_multiple_of(BLOCK).min(self.positions), chunks)
    }
}

/// Scratch of a thread that works on `rows` rows of queries at a time.
fn scratch_bytes(rows: usize, dk: usize, dv: usize) -> usize {
    let (rows, dk, dv) = (rows.next_multiple_of(32), dk.next_multiple_of(16), dv.next_multiple_of(16));
    let floats = rows * (dk + dv + 2 * BLOCK + 4) + BLOCK * (dk + dv);
    (floats * size_of::<f32>()).next_multiple_of(64)
}

/// Works on item `item` of `plan`.
///
/// # Safety
/// The pointers of `a` must be valid for the rows that its numbers name, `plan` must be made from these numbers,
/// `item` be below `plan.items` and run by one thread only; `scratch` must have `plan.scratch_bytes` bytes of the
/// calling thread's own, aligned to 64; `partials` must have `plan.partials` elements shared by all threads (it is not
/// used when that is 0). `isa` must be available.
pub unsafe fn run_item(
    isa: Isa,
    a: &Attention,
    plan: &Plan,
    item: usize,
    scratch: *mut u8,
    partials: *mut f32,
) {
    item_on(isa, lanes::Work { a, plan, item, scratch: scratch.cast(), partials });
}

per_isa! {
    fn item_on(work: lanes::Work<'_>) = lanes::run, lanes::run_scalar;
}

/// Joins the partial results of row `row` (below `plan.merges`).
///
/// # Safety
/// As for [`run_item`], after all items are done and visible to this thread.
pub unsafe fn run_merge(a: &Attention, plan: &Plan, row: usize, partials: *const f32) {
    let (token, head) = (row / a.heads, row % a.heads);
    let chunks = a.positions.div_ceil(plan.chunk);
    let stride = PARTIAL_HEAD + a.dv;
    // SAFETY: `partials` has `chunks` entries of `stride` elements for each row, `out` a row for each.
    let (parts, out) = unsafe {
        let parts = std::slice::from_raw_parts(partials.add(row * chunks * stride), chunks * stride);
        (parts, std::slice::from_raw_parts_mut(a.out.at_mut(token, head), a.dv))
    };
    let max = parts.chunks_exact(stride).fold(f32::NEG_INFINITY, |m, p| m.max(p[0]));
    out.fill(0.0);
    if max == f32::NEG_INFINITY {
        return;
    }
    let mut sum = 0.0;
    for part in parts.chunks_exact(stride) {
        let weight = (part[0] - max).exp();
        sum += weight * part[1];
        for (o, v) in out.iter_mut().zip(&part[PARTIAL_HEAD..]) {
            *o += weight * v;
        }
    }
    out.iter_mut().for_each(|o| *o /= sum);
}

impl<T> Rows<*const T> {
    /// # Safety
    /// The row must exist.
    unsafe fn at(&self, i: usize, head: usize) -> *const T {
        // SAFETY: the caller's contract.
        unsafe { self.base.byte_add(i * self.row + head * self.head) }
    }
}

impl<T> Rows<*mut T> {
    /// # Safety
    /// The row must exist.
    unsafe fn at_mut(&self, i: usize, head: usize) -> *mut T {
        // SAFETY: the caller's contract.
        unsafe { self.base.byte_add(i * self.row + head * self.head) }
    }
}

/// What an item is about.
#[derive(Debug, Clone, Copy)]
struct Item {
    kv_head: usize,
    tokens: (usize, usize),
    positions: (usize, usize),
    chunk: usize,
    chunks: usize,
}

impl Item {
    /// The last tokens come first: with a causal mask they see the most positions.
    fn of(a: &Attention, plan: &Plan, item: usize) -> Self {
        let chunks = a.positions.div_ceil(plan.chunk).max(1);
        let (tile, rest) = (item / (a.kv_heads * chunks), item % (a.kv_heads * chunks));
        let (kv_head, chunk) = (rest / chunks, rest % chunks);
        let last = a.tokens.div_ceil(plan.tile) - 1;
        let (from, at) = ((last - tile) * plan.tile, chunk * plan.chunk);
        let tokens = (from, (from + plan.tile).min(a.tokens));
        Self { kv_head, tokens, positions: (at, (at + plan.chunk).min(a.positions)), chunk, chunks }
    }
}

#[cfg(test)]
mod tests;
