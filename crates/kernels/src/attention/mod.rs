//! Fused attention over a half-precision KV cache: scores, mask, softmax and weighted sum in one pass with f32
//! sums, without ever storing a full row of scores.
//!
//! The work is split into items that any thread may take in any order ([`Attention::plan`], [`run_item`]): one
//! cache head with all query heads that share it, times a range of tokens (prefill) or of positions (decode). If
//! positions are split, each item leaves a partial result, and [`run_merge`] combines them after a barrier.

mod lanes;
mod plan;
pub mod scalar;

pub use self::plan::{Attention, AttentionPlan, StridedRows};

use self::plan::PARTIAL_HEAD;
use super::isa::Isa;
use super::simd::per_isa;

/// Computes item `item` of `plan`.
///
/// # Safety
/// The pointers of `a` must be valid for the rows implied by its numbers, `plan` must have been made from these
/// numbers, and `item` must be below `plan.items` and run by one thread only. `scratch` must have
/// `plan.scratch_bytes` bytes, private to the calling thread and aligned to 64. `partials` must have
/// `plan.partials` elements shared by all threads (unused if that is 0). `isa` must be available.
pub unsafe fn run_item(
    isa: Isa,
    a: &Attention,
    plan: &AttentionPlan,
    item: usize,
    scratch: *mut u8,
    partials: *mut f32,
) {
    let work = lanes::AttentionWork { a, plan, item, scratch: scratch.cast(), partials };
    #[cfg(target_arch = "aarch64")]
    if a.halves && a.round_q && a.few_rows() && multiplies_halves(isa) {
        // SAFETY: the processor has the instructions.
        return unsafe { lanes::run_halves(work) };
    }
    item_on(isa, work);
}

/// Whether attention can multiply f16 values and add the products to f32 sums (`fmlal`), on this processor and with
/// vectors allowed.
pub fn multiplies_halves(isa: Isa) -> bool {
    #[cfg(target_arch = "aarch64")]
    return isa != Isa::Scalar && std::arch::is_aarch64_feature_detected!("fhm");
    #[cfg(not(target_arch = "aarch64"))]
    {
        let _ = isa;
        false
    }
}

per_isa! {
    fn item_on(work: lanes::AttentionWork<'_>) = lanes::run, lanes::run_scalar;
}

/// Combines the partial results of row `row` (below `plan.merges`).
///
/// # Safety
/// As for [`run_item`], after all items are done and visible to this thread.
pub unsafe fn run_merge(a: &Attention, plan: &AttentionPlan, row: usize, partials: *const f32) {
    let (token, head) = (row / a.heads, row % a.heads);
    let chunks = a.positions.div_ceil(plan.chunk);
    let stride = PARTIAL_HEAD + a.dv;
    // SAFETY: `partials` has `chunks` entries of `stride` elements for each row, and `out` has a row for each.
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

#[cfg(test)]
mod tests;
