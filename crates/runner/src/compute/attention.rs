//! FLASH_ATTN_EXT: one pass over the cache for each head and a few tokens.

use super::super::abi::GgmlTensor;
use super::super::kernels::attention::{Attention, StridedRows, run_item, run_merge};
use super::matmul::WorkMemory;
use super::state::{NodeState, WorkSizes};
use super::tensor::extent;
use super::thread::ComputeThread;

/// llama.cpp rounds queries to f16 below this many tokens.
const ROUNDED_BELOW: usize = 64;

/// Batches up to this size may be split along the positions; larger ones need more of everything else.
const SMALL: usize = 64;

/// Work memory for up to `threads` threads, and for any batch that is not larger.
///
/// # Safety
/// The node's sources must be null or alive.
pub unsafe fn work(node: &GgmlTensor, threads: usize) -> WorkSizes {
    // SAFETY: guaranteed by the caller.
    let Some(most) = (unsafe { describe(node) }) else { return WorkSizes::default() };
    let mut work = WorkSizes::default();
    for tokens in (1..=most.tokens.min(SMALL)).chain([most.tokens]) {
        for count in 1..=threads.max(1) {
            let plan = Attention { tokens, ..most }.plan(count);
            let shared = plan.partials.saturating_mul(size_of::<f32>());
            work = work.max(WorkSizes { shared, own: 0, scratch: plan.scratch_bytes });
        }
    }
    work
}

/// # Safety
/// The node's sources must be null or alive.
unsafe fn describe(node: &GgmlTensor) -> Option<Attention> {
    // SAFETY: guaranteed by the caller.
    let (q, k, v, mask) = unsafe { (node.source(0)?, node.source(1)?, node.source(2)?, node.source(3)) };
    let tokens = extent(q, 1);
    Some(Attention {
        q: rows(q, 1, 2),
        k: rows(k, 1, 2),
        v: rows(v, 1, 2),
        out: StridedRows { base: node.data.cast(), row: node.nb[2], head: node.nb[1] },
        mask: mask.map(|m| rows(m, 1, 2)),
        tokens,
        positions: extent(k, 1),
        heads: extent(q, 2),
        kv_heads: extent(k, 2),
        dk: extent(q, 0),
        dv: extent(v, 0),
        scale: node.param_f32(0),
        softcap: node.param_f32(2),
        round_q: tokens < ROUNDED_BELOW,
        halves: false,
    })
}

fn rows<T>(t: &GgmlTensor, row: usize, head: usize) -> StridedRows<*const T> {
    StridedRows { base: t.data.cast_const().cast(), row: t.nb[row], head: t.nb[head] }
}

/// # Safety
/// See [`super::forward`].
pub(super) unsafe fn forward(thread: ComputeThread<'_>, node: &GgmlTensor) {
    // SAFETY: sources of one of our nodes; the work memory is the graph's.
    let (Some(attention), state) = (unsafe { (describe(node), NodeState::of(node)) }) else { return };
    let attention = Attention { halves: state.halves, ..attention };
    // SAFETY: as above.
    let memory = unsafe { WorkMemory::of(thread, state.work) };
    let plan = attention.plan(thread.count);
    let partials = memory.shared().cast::<f32>();
    loop {
        let item = thread.take();
        if item >= plan.items {
            break;
        }
        // SAFETY: the tensors have these rows; each item is taken once; the memory has the size given by `work`.
        unsafe { run_item(state.isa, &attention, &plan, item, memory.scratch().as_mut_ptr(), partials) };
    }
    if plan.merges > 0 {
        thread.barrier();
        for row in thread.share(plan.merges, 1) {
            // SAFETY: all items are done; each row is combined by one thread.
            unsafe { run_merge(&attention, &plan, row, partials) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::abi::{GgmlType, Op};
    use super::*;

    /// Attention of `tokens` tokens of `heads` heads to `positions` positions of `kv_heads`.
    fn with_node<R>(
        tokens: i64,
        positions: i64,
        [heads, kv_heads]: [i64; 2],
        f: impl Fn(&GgmlTensor) -> R,
    ) -> R {
        let mut q = GgmlTensor::contiguous(GgmlType::F32, [64, tokens, heads, 1]);
        let mut kv = GgmlTensor::contiguous(GgmlType::F16, [64, positions, kv_heads, 1]);
        let mut node = GgmlTensor::contiguous(GgmlType::F32, [64, heads, tokens, 1]);
        node.op = Op::FLASH_ATTN_EXT;
        node.src[0] = &raw mut q;
        (node.src[1], node.src[2]) = (&raw mut kv, &raw mut kv);
        f(&node)
    }

    #[test]
    fn work_memory_for_the_largest_batch_is_enough_for_all() {
        for heads in [[8, 8], [8, 2], [4, 2], [3, 1], [32, 1]] {
            // SAFETY: the sources live as long as the closure runs.
            let planned = with_node(512, 2048, heads, |n| unsafe { work(n, 7) });
            for (tokens, positions) in
                [(1, 256), (1, 512), (1, 2048), (2, 1024), (5, 2048), (23, 2048), (300, 768)]
            {
                for threads in 1..=7 {
                    with_node(tokens, positions, heads, |n| {
                        // SAFETY: as above.
                        let plan = unsafe { describe(n) }.expect("attention").plan(threads);
                        let shared = plan.partials * size_of::<f32>();
                        assert!(shared <= planned.shared, "{heads:?} {tokens} {positions} {threads}");
                        assert!(
                            plan.scratch_bytes <= planned.scratch,
                            "{heads:?} {tokens} {positions} {threads}"
                        );
                    });
                }
            }
        }
        // 16 chunks of 320 positions in the largest context, 19 of 256 in a shorter one.
        // SAFETY: as above.
        let planned = with_node(23, 5120, [8, 8], |n| unsafe { work(n, 37) });
        // SAFETY: as above.
        let plan = |n: &GgmlTensor| unsafe { describe(n) }.expect("attention").plan(37);
        let shared = with_node(23, 4864, [8, 8], |n| plan(n).partials * size_of::<f32>());
        assert!(shared > 0 && shared <= planned.shared);
    }
}
