//! MUL_MAT: prepares the activations and multiplies this thread's rows of the weights with them.
//!
//! If there are few activations, each thread prepares them for itself, which is cheaper than waiting for the
//! others; if there are many, the work is divided, followed by a barrier. For few tokens, where all threads wait
//! for the same memory, rows are split evenly; for many, where one thread may be faster than another, they are
//! taken in small parts.

use super::super::abi::GgmlTensor;
use super::super::kernels::{
    ActivationFormat, Acts, Matrix, ResultRows, RowIndex, matmul, prepare_row_scaled, prepared_row_bytes,
};
use super::state::{ALIGN, NodeState, WorkSizes};
use super::tensor::{extent, position, row, row_count};
use super::thread::ComputeThread;
use super::weight::Weight;
use std::ops::Range;

/// Up to this many activations, each thread prepares its own copy.
const FEW: usize = 16 << 10;
/// Parts of the rows per thread, if they are taken in parts.
const PARTS: usize = 8;
/// Minimum rows per part, so that the work done once per part stays negligible.
const MIN_PART: usize = 32;

/// Bytes from one prepared row to the next.
fn stride(format: ActivationFormat, cols: usize) -> usize {
    prepared_row_bytes(format, cols).next_multiple_of(ALIGN)
}

fn is_few(rows: usize, cols: usize) -> bool {
    rows.saturating_mul(cols) <= FEW
}

/// Work memory for up to `rows` activations, of which up to `tokens` are multiplied at a time.
pub fn work(weight: &Weight, rows: usize, tokens: usize) -> WorkSizes {
    let row = stride(weight.format(), weight.cols());
    // A node planned for many activations may be run with few.
    let few = rows.min(FEW / weight.cols().max(1));
    WorkSizes {
        shared: if few == rows { 0 } else { rows.saturating_mul(row) },
        own: few * row,
        scratch: weight.scratch_bytes(tokens),
    }
    .max(WorkSizes::default())
}

/// The parts of the work memory that a thread uses.
pub(super) struct WorkMemory {
    shared: *mut u8,
    own: *mut u8,
    scratch: *mut u8,
    sizes: WorkSizes,
}

impl WorkMemory {
    /// # Safety
    /// The thread's work memory must have [`WorkSizes::bytes`] of `sizes` for the number of threads.
    pub(super) unsafe fn of(thread: ComputeThread<'_>, sizes: WorkSizes) -> Self {
        let base = thread.params.wdata.cast::<u8>();
        let skip = base.align_offset(ALIGN).min(ALIGN);
        // SAFETY: `Work::bytes` has room for the alignment, the shared part, and the parts of all threads.
        unsafe {
            let shared = base.add(skip);
            let own = shared.add(sizes.shared + thread.index * (sizes.own + sizes.scratch));
            Self { shared, own, scratch: own.add(sizes.own), sizes }
        }
    }

    /// Scratch memory for the kernels.
    ///
    /// # Safety
    /// Nothing else may use it at the same time.
    pub(super) unsafe fn scratch<'a>(&self) -> &'a mut [u8] {
        // SAFETY: see `of`; this part is private to the thread.
        unsafe { std::slice::from_raw_parts_mut(self.scratch, self.sizes.scratch) }
    }

    /// The part shared by all threads.
    pub(super) fn shared(&self) -> *mut u8 {
        self.shared
    }
}

/// Prepared activations.
pub(super) struct Prepared<'a> {
    bytes: &'a [u8],
    stride: usize,
    /// Each thread has its own copy.
    pub(super) few: bool,
}

impl<'a> Prepared<'a> {
    /// Prepares all rows of `source` for `weight`, or uses what an earlier node has prepared.
    ///
    /// # Safety
    /// See [`super::forward`].
    pub(super) unsafe fn new(
        thread: ComputeThread<'_>,
        state: &NodeState,
        memory: &WorkMemory,
        (format, cols): (ActivationFormat, usize),
        source: &GgmlTensor,
    ) -> Self {
        let (rows, few) = (row_count(source), is_few(row_count(source), cols));
        let plain = cols * size_of::<f32>();
        // Plain activations are used in place, unless the kernels need rows further apart.
        if format == ActivationFormat::F32
            && source.is_contiguous()
            && prepared_row_bytes(format, cols) == plain
        {
            // SAFETY: the source's own rows, which nobody writes during this node.
            let bytes = unsafe { std::slice::from_raw_parts(source.data.cast::<u8>(), rows * plain) };
            return Self { bytes, stride: plain, few };
        }
        let stride = stride(format, cols);
        let base = if few { memory.own } else { memory.shared };
        if state.prepares {
            let part = if few { 0..rows } else { thread.share(rows, 1) };
            // SAFETY: the part has the size given in the graph's plan, and each of its rows is written by one
            // thread.
            unsafe { prepare(state, format, source, part, (base, stride)) };
            if !few {
                thread.barrier();
            }
        }
        // SAFETY: all of it has been written, by this thread or before the barrier.
        Self { bytes: unsafe { std::slice::from_raw_parts(base, rows * stride) }, stride, few }
    }

    /// The activations selected by `index`.
    pub(super) fn acts(&self, index: RowIndex<'a>) -> Acts<'a> {
        Acts::new(self.bytes, self.stride, index)
    }
}

/// # Safety
/// The rows must exist, and `to` must have room for them.
unsafe fn prepare(
    state: &NodeState,
    format: ActivationFormat,
    source: &GgmlTensor,
    rows: Range<usize>,
    to: (*mut u8, usize),
) {
    let (base, stride) = to;
    for i in rows {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let dst = std::slice::from_raw_parts_mut(base.add(i * stride), stride);
            prepare_row_scaled(state.isa, format, state.scale, row(source, position(source, i)), dst);
        }
    }
}

/// Rows that a thread takes at a time if they are taken in parts.
pub(super) fn part(rows: usize, threads: usize, group: usize) -> usize {
    if threads == 1 {
        return rows.next_multiple_of(group);
    }
    rows.div_ceil(threads * PARTS).max(MIN_PART).next_multiple_of(group)
}

/// y = weights · x for each row of x.
///
/// # Safety
/// See [`super::forward`].
pub(super) unsafe fn forward(thread: ComputeThread<'_>, node: &GgmlTensor) {
    // SAFETY: sources of one of our nodes.
    let (Some(weights), Some(source), state) =
        (unsafe { (node.source(0), node.source(1), NodeState::of(node)) })
    else {
        return;
    };
    // SAFETY: as above; the work memory is the graph's.
    let (Some(weight), memory) = (unsafe { (Weight::of(weights), WorkMemory::of(thread, state.work)) })
    else {
        return;
    };
    let Some((matrix, _)) = weight.expert(0) else { return };
    let shape = (weight.format(), weight.cols());
    // SAFETY: guaranteed by the caller.
    let acts = unsafe { Prepared::new(thread, state, &memory, shape, source) };
    let index = RowIndex::First(row_count(source));
    // SAFETY: the node's rows have a value for each row of the matrix; the threads' ranges are disjoint.
    let (out, scratch) =
        unsafe { (ResultRows::new(node.data.cast(), extent(node, 0), index), memory.scratch()) };
    let run = |rows: Range<usize>, scratch: &mut [u8]| matmul(matrix, &acts.acts(index), rows, &out, scratch);
    if acts.few {
        let rows = thread.share(matrix.rows(), matrix.group());
        run(rows, scratch);
    } else {
        in_parts(thread, matrix, |rows| run(rows, scratch));
    }
}

/// One contiguous piece per thread for half of the rows, so that kernels can prefetch; the rest in parts.
fn in_parts(thread: ComputeThread<'_>, matrix: &Matrix, mut run: impl FnMut(Range<usize>)) {
    let (rows, part) = (matrix.rows(), part(matrix.rows(), thread.count, matrix.group()));
    let own = rows / 2 / thread.count / part * part;
    if own > 0 {
        run(own * thread.index..own * (thread.index + 1));
    }
    let behind = own * thread.count;
    loop {
        let start = behind + thread.take().saturating_mul(part);
        if start >= rows {
            return;
        }
        run(start..(start + part).min(rows));
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::kernels::Isa;
    use super::*;
    use crate::parts::KernelParts;
    use ggml::quant::TensorType;
    use std::sync::Arc;

    #[test]
    fn work_memory_for_many_tokens_is_enough_for_fewer() {
        for ty in [TensorType::Q4_0, TensorType::F16, TensorType::Q4K] {
            let (cols, rows) = (768, 16);
            let bytes = ty.row_bytes(cols * rows).expect("whole blocks") as usize;
            let file: Arc<dyn AsRef<[u8]> + Send + Sync> = Arc::new(vec![0u8; bytes]);
            let shape = [cols as usize, rows as usize, 1];
            let weight = Weight::new(ty, shape, (&file, 0..bytes), KernelParts::default(), Isa::best())
                .expect("a weight");
            let planned = work(&weight, 600, 600);
            for tokens in 1..600 {
                let need = stride(weight.format(), cols as usize) * tokens;
                let there = if is_few(tokens, cols as usize) { planned.own } else { planned.shared };
                assert!(need <= there, "{ty:?}: {tokens} tokens need {need} bytes of {there}");
                assert!(weight.scratch_bytes(tokens) <= planned.scratch);
            }
        }
    }
}
