//! Attention on vectors: the two ways to compute an item, and the code they share.
//!
//! With many query rows, rows are spread across the lanes ([`across`]): scores, softmax and sums are then all
//! vertical, and keys and values are read as scalars. With few rows the lanes run along the head ([`along`]).
//!
//! `unsafe` functions here require the instruction set of their `Simd`, and what [`super::run_item`] requires.

mod across;
mod along;
#[cfg(target_arch = "aarch64")]
mod halves;

use super::plan::{Attention, AttentionItem, AttentionPlan};
use crate::simd::Simd;

/// An item and its working memory; created only by [`super::run_item`], whose caller guarantees the pointers.
#[derive(Clone, Copy)]
pub(super) struct AttentionWork<'a> {
    pub a: &'a Attention,
    pub plan: &'a AttentionPlan,
    pub item: usize,
    pub scratch: *mut f32,
    pub partials: *mut f32,
}

/// The query rows of an item: all query heads of its tokens.
#[derive(Clone, Copy)]
struct QueryTile<'a> {
    a: &'a Attention,
    item: AttentionItem,
    group: usize,
    rows: usize,
}

/// The mask's content for some tokens and a block of positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MaskBlock {
    Open,
    Closed,
    Mixed,
}

/// Minus infinity in f16.
const CLOSED: u16 = 0xFC00;

#[inline(always)]
pub(super) unsafe fn run<S: Simd>(work: AttentionWork<'_>) {
    let tile = QueryTile::of(&work);
    // SAFETY: `Work` guarantees valid memory of the size given in the plan.
    unsafe {
        if work.a.few_rows() {
            along::run::<S, along::Widened>(&tile, work.scratch, work.partials);
        } else {
            across::run::<S>(&tile, work.scratch);
        }
    }
}

/// Multiplies f16 values as they are: for few rows of rounded queries.
///
/// # Safety
/// The processor must have the instructions.
#[cfg(target_arch = "aarch64")]
pub(super) unsafe fn run_halves(work: AttentionWork<'_>) {
    let tile = QueryTile::of(&work);
    // SAFETY: `Work` guarantees valid memory of the size given in the plan.
    unsafe { along::run::<crate::simd::neon::Neon, halves::Halves>(&tile, work.scratch, work.partials) }
}

pub(super) fn run_scalar(work: AttentionWork<'_>) {
    // SAFETY: `Work` guarantees valid memory.
    unsafe { super::scalar::run_item(work.a, work.plan, work.item, work.partials) }
}

impl<'a> QueryTile<'a> {
    #[inline(always)]
    fn of(work: &AttentionWork<'a>) -> Self {
        let (item, group) = (AttentionItem::of(work.a, work.plan, work.item), work.a.group());
        Self { a: work.a, item, group, rows: (item.tokens.1 - item.tokens.0) * group }
    }

    /// Token and head of a row.
    #[inline(always)]
    fn row(&self, row: usize) -> (usize, usize) {
        (self.item.tokens.0 + row / self.group, self.item.kv_head * self.group + row % self.group)
    }

    /// Factor for the queries, so that the scores come out scaled and, with a cap, divided by it.
    #[inline(always)]
    fn query_factor(&self) -> f32 {
        if self.a.softcap == 0.0 { self.a.scale } else { self.a.scale / self.a.softcap }
    }

    /// Copies a query row to every `step`th element of `to`, scaled, and rounded if requested.
    ///
    /// # Safety
    /// `to` must have `(dk - 1) * step + 1` elements.
    #[inline(always)]
    unsafe fn copy_query<S: Simd>(&self, row: usize, to: *mut f32, step: usize) {
        let (token, head) = self.row(row);
        let factor = self.query_factor();
        // SAFETY: the row exists; `to` is the caller's.
        unsafe {
            let from = self.a.q.at(token, head);
            let mut buffer = [0.0f32; 16];
            for d in (0..self.a.dk).step_by(S::N) {
                let n = S::N.min(self.a.dk - d);
                let q = S::load_part(from.add(d), n);
                let q = if self.a.round_q { S::round_f16(q) } else { q };
                S::store(buffer.as_mut_ptr(), S::mul(q, S::splat(factor)));
                for (i, q) in buffer[..n].iter().enumerate() {
                    *to.add((d + i) * step) = *q;
                }
            }
        }
    }

    /// The mask's content for rows `rows.0..rows.1` and `n` positions from `p`.
    ///
    /// # Safety
    /// The rows and positions must exist.
    #[inline(always)]
    unsafe fn block(&self, rows: (usize, usize), p: usize, n: usize) -> MaskBlock {
        let Some(mask) = self.a.mask else { return MaskBlock::Open };
        let (mut open, mut closed) = (true, true);
        for token in self.row(rows.0).0..=self.row(rows.1 - 1).0 {
            // SAFETY: guaranteed by the caller.
            let row = unsafe { std::slice::from_raw_parts(mask.at(token, 0).add(p), n) };
            // No early exit, so that the compiler vectorizes the loop.
            let (zeros, infinities) =
                row.iter().fold((0, 0), |(z, i), m| (z | (m & 0x7FFF), i | (m ^ CLOSED)));
            open &= zeros == 0;
            closed &= infinities == 0;
        }
        match (open, closed) {
            (true, _) => MaskBlock::Open,
            (_, true) => MaskBlock::Closed,
            _ => MaskBlock::Mixed,
        }
    }
}

/// The maximum to subtract in e^(s - max): 0 for rows that have seen nothing yet (max -inf), to get 0 rather than
/// NaN.
#[inline(always)]
unsafe fn finite_max<S: Simd>(max: S::V) -> S::V {
    // SAFETY: lane arithmetic; the caller guarantees the instruction set.
    unsafe { S::if_less(max, S::splat(f32::MIN), S::splat(0.0), max) }
}
