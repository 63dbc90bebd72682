//! Describes an attention as numbers and pointers, and splits it into items for threads. Independent of
//! instruction sets.

/// Rows in memory laid out by someone else: row (i, h) starts `i * row + h * head` bytes after `base`. The
/// elements of a row are adjacent.
#[derive(Debug, Clone, Copy)]
pub struct StridedRows<P> {
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
    pub q: StridedRows<*const f32>,
    /// Keys, f16, `positions` × `kv_heads` rows of `dk`.
    pub k: StridedRows<*const u16>,
    /// Values, f16, `positions` × `kv_heads` rows of `dv`.
    pub v: StridedRows<*const u16>,
    /// Result, f32, `tokens` × `heads` rows of `dv`.
    pub out: StridedRows<*mut f32>,
    /// f16 values added to the scores, one row of `positions` per token (`head` is not used): 0, or -inf if
    /// masked. Without a mask all positions are visible.
    pub mask: Option<StridedRows<*const u16>>,
    pub tokens: usize,
    pub positions: usize,
    /// Query heads; a multiple of `kv_heads`.
    pub heads: usize,
    pub kv_heads: usize,
    /// Elements of a key.
    pub dk: usize,
    /// Elements of a value.
    pub dv: usize,
    /// Factor for the scores, before the cap.
    pub scale: f32,
    /// Scores s become cap·tanh(s / cap); 0 for none.
    pub softcap: f32,
    /// Whether queries are rounded to f16 first, as llama.cpp does below 64 tokens.
    pub round_q: bool,
    /// Whether rounded queries are multiplied with keys as f16 values, where the processor
    /// can ([`multiplies_halves`](super::multiplies_halves)) and an item has few rows. Otherwise they are widened.
    pub halves: bool,
}

/// How an attention is split into pieces, and the memory they need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionPlan {
    /// Number of [`run_item`](super::run_item) calls, independent of each other; the most expensive first.
    pub items: usize,
    /// Number of [`run_merge`](super::run_merge) calls after all items are done; 0 if nothing has to be combined.
    pub merges: usize,
    /// Bytes of scratch memory per thread, aligned to 64.
    pub scratch_bytes: usize,
    /// Elements of the partial results that all threads share.
    pub partials: usize,
    /// Tokens per item.
    pub(super) tile: usize,
    /// Positions per item.
    pub(super) chunk: usize,
}

/// Maximum query rows of a prefill item, and the minimum when there are many threads.
const TILE_ROWS: usize = 128;
const MIN_TILE_ROWS: usize = 32;
/// Minimum positions per item when positions are split.
const MIN_CHUNK: usize = 256;
/// With fewer query rows than this per cache head, an item works along the head instead of across queries.
const FEW_ROWS: usize = 24;
/// Positions whose scores are held at a time.
pub(super) const BLOCK: usize = 64;
/// Numbers stored with the values of a partial result: maximum and sum.
pub(super) const PARTIAL_HEAD: usize = 2;

impl Attention {
    /// Query heads per cache head.
    pub(super) fn group(&self) -> usize {
        self.heads / self.kv_heads.max(1)
    }

    /// Whether an item works along the head.
    pub(super) fn few_rows(&self) -> bool {
        self.tokens * self.group() < FEW_ROWS
    }

    /// Splits the work for `threads` threads. A plan depends on the numbers only, not on the pointers.
    pub fn plan(&self, threads: usize) -> AttentionPlan {
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
        AttentionPlan {
            items: self.kv_heads * self.tokens.div_ceil(tile) * chunks,
            merges: if cut { rows } else { 0 },
            scratch_bytes: scratch_bytes(tile * group, self.dk, self.dv),
            // Sized for the requested chunks, although rounding leaves fewer: the requested number grows with the
            // positions, so a plan for the most positions has room for all others.
            partials: if most > 1 { rows * most * (PARTIAL_HEAD + self.dv) } else { 0 },
            tile,
            chunk,
        }
    }

    /// Positions of a decode item, as many as possible with an even spread of items, and the most items per row.
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

/// Scratch memory of a thread that works on `rows` query rows at a time.
fn scratch_bytes(rows: usize, dk: usize, dv: usize) -> usize {
    let (rows, dk, dv) = (rows.next_multiple_of(32), dk.next_multiple_of(16), dv.next_multiple_of(16));
    let floats = rows * (dk + dv + 2 * BLOCK + 4) + BLOCK * (dk + dv);
    (floats * size_of::<f32>()).next_multiple_of(64)
}

impl<T> StridedRows<*const T> {
    /// # Safety
    /// The row must exist.
    pub(super) unsafe fn at(&self, i: usize, head: usize) -> *const T {
        // SAFETY: guaranteed by the caller.
        unsafe { self.base.byte_add(i * self.row + head * self.head) }
    }
}

impl<T> StridedRows<*mut T> {
    /// # Safety
    /// The row must exist.
    pub(super) unsafe fn at_mut(&self, i: usize, head: usize) -> *mut T {
        // SAFETY: guaranteed by the caller.
        unsafe { self.base.byte_add(i * self.row + head * self.head) }
    }
}

/// The part of the work covered by an item.
#[derive(Debug, Clone, Copy)]
pub(super) struct AttentionItem {
    pub(super) kv_head: usize,
    pub(super) tokens: (usize, usize),
    pub(super) positions: (usize, usize),
    pub(super) chunk: usize,
    pub(super) chunks: usize,
}

impl AttentionItem {
    /// The last tokens come first: with a causal mask they see the most positions.
    pub(super) fn of(a: &Attention, plan: &AttentionPlan, item: usize) -> Self {
        let chunks = a.positions.div_ceil(plan.chunk).max(1);
        let (tile, rest) = (item / (a.kv_heads * chunks), item % (a.kv_heads * chunks));
        let (kv_head, chunk) = (rest / chunks, rest % chunks);
        let last = a.tokens.div_ceil(plan.tile) - 1;
        let (from, at) = ((last - tile) * plan.tile, chunk * plan.chunk);
        let tokens = (from, (from + plan.tile).min(a.tokens));
        Self { kv_head, tokens, positions: (at, (at + plan.chunk).min(a.positions)), chunk, chunks }
    }
}
