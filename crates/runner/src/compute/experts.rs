//! MUL_MAT_ID: each token goes through the experts that the router chose for it.
//!
//! A slot is one of a token's chosen experts; slot `token · used + n` has its own row in the result. If there are
//! few slots, all threads compute them one after the other; if there are many, the slots of each expert are
//! grouped and computed together. Weights in slots are computed in rounds: each has experts that are there.

use super::super::abi::GgmlTensor;
use super::super::kernels::{ResultRows, RowIndex, matmul};
use super::matmul::{Prepared, WorkMemory, part, work as matmul_work};
use super::state::{NodeState, WorkSizes};
use super::tensor::{extent, row, row_count};
use super::thread::ComputeThread;
use super::weight::Weight;
use crate::slots::SlotPart;

/// The slots of all experts, grouped by expert.
struct SlotsByExpert<'a> {
    /// Where each expert's slots begin, and the end of the last.
    starts: &'a [u32],
    slots: &'a [u32],
    /// The prepared row of each slot.
    acts: &'a [u32],
}

/// Work memory: activations of `rows` rows; the lists of `slots` slots follow the kernels' scratch memory.
pub fn work(weight: &Weight, rows: usize, slots: usize) -> WorkSizes {
    let mut work = matmul_work(weight, rows, slots);
    work.scratch += list_bytes(weight.experts(), slots);
    work.max(WorkSizes::default())
}

/// Bytes of the lists that [`gather`] builds.
fn list_bytes(experts: usize, slots: usize) -> usize {
    (experts + 1 + 2 * slots).saturating_mul(size_of::<u32>()).next_multiple_of(64)
}

/// One MUL_MAT_ID node.
struct ExpertJob<'a> {
    node: &'a GgmlTensor,
    weight: &'a Weight,
    acts: Prepared<'a>,
    ids: &'a GgmlTensor,
    /// Experts per token.
    used: usize,
    /// All slots of a token share one row of activations.
    shared: bool,
}

/// # Safety
/// See [`super::forward`].
pub(super) unsafe fn forward(thread: ComputeThread<'_>, node: &GgmlTensor) {
    // SAFETY: sources of one of our nodes.
    let (Some(weights), Some(source), Some(ids), state) =
        (unsafe { (node.source(0), node.source(1), node.source(2), NodeState::of(node)) })
    else {
        return;
    };
    // SAFETY: as above; the work memory is the graph's.
    let (Some(weight), memory) = (unsafe { (Weight::of(weights), WorkMemory::of(thread, state.work)) })
    else {
        return;
    };
    let shape = (weight.format(), weight.cols());
    // SAFETY: guaranteed by the caller.
    let acts = unsafe { Prepared::new(thread, state, &memory, shape, source) };
    let job = ExpertJob { node, weight, acts, ids, used: extent(ids, 0), shared: extent(source, 1) == 1 };
    // SAFETY: guaranteed by the caller.
    let scratch = unsafe { memory.scratch() };
    let (scratch, lists) = scratch.split_at_mut(job.lists_at(scratch.len()));
    // SAFETY: guaranteed by the caller.
    let gathered = (!job.acts.few).then(|| unsafe { job.gather(lists) });
    let mut first = true;
    loop {
        if let Some(slots) = weight.slots() {
            if thread.index == 0 {
                // SAFETY: the slots exist.
                slots.next_round(first, (0..job.slots()).map(|slot| unsafe { job.expert_of(slot) }));
            }
            thread.restart();
        }
        // SAFETY: guaranteed by the caller.
        unsafe {
            match &gathered {
                Some(gathered) => job.expert_by_expert(thread, gathered, scratch),
                None => job.slot_by_slot(thread, scratch),
            }
        }
        if weight.slots().is_none_or(SlotPart::is_last_round) {
            return;
        }
        first = false;
        thread.restart();
    }
}

impl ExpertJob<'_> {
    fn slots(&self) -> usize {
        row_count(self.ids) * self.used
    }

    /// # Safety
    /// The slot must exist.
    unsafe fn expert_of(&self, slot: usize) -> usize {
        // SAFETY: ids have a row for each token.
        let ids = unsafe { row::<i32>(self.ids, [slot / self.used, 0, 0]) };
        usize::try_from(ids[slot % self.used]).unwrap_or(0).min(self.weight.experts() - 1)
    }

    /// Prepared row of a slot.
    fn act_of(&self, slot: usize) -> u32 {
        (if self.shared { slot / self.used } else { slot }) as u32
    }

    /// # Safety
    /// This thread must have exclusive write access to the slots' rows in the columns that it computes.
    unsafe fn out<'b>(&self, slots: &'b [u32]) -> ResultRows<'b> {
        // SAFETY: the node has a row for each slot and a value for each row of an expert.
        unsafe { ResultRows::new(self.node.data.cast(), extent(self.node, 0), RowIndex::List(slots)) }
    }

    /// # Safety
    /// See [`super::forward`].
    unsafe fn slot_by_slot(&self, thread: ComputeThread<'_>, scratch: &mut [u8]) {
        let rows = thread.share(self.weight.rows(), self.weight.group());
        for slot in 0..self.slots() {
            // SAFETY: the slot exists; each thread has its own rows.
            let (expert, list) = unsafe { (self.expert_of(slot), [slot as u32]) };
            let act = [self.act_of(slot)];
            self.weight.with_expert(expert, |matrix, first| {
                // SAFETY: as above. An expert's results begin at column 0, its rows at `first`.
                let out = unsafe { self.out(&list).behind(first) };
                let rows = first + rows.start..first + rows.end;
                matmul(matrix, &self.acts.acts(RowIndex::List(&act)), rows, &out, scratch);
            });
        }
    }

    /// Where the lists of [`Self::gather`] begin in scratch memory of this length; at its end if there are none.
    fn lists_at(&self, len: usize) -> usize {
        match self.acts.few {
            true => len,
            false => len.saturating_sub(list_bytes(self.weight.experts(), self.slots())),
        }
    }

    /// # Safety
    /// See [`super::forward`].
    unsafe fn expert_by_expert(
        &self,
        thread: ComputeThread<'_>,
        gathered: &SlotsByExpert<'_>,
        scratch: &mut [u8],
    ) {
        let rows = self.weight.rows();
        let part = part(rows, thread.count, self.weight.group());
        let parts = rows.div_ceil(part);
        loop {
            let taken = thread.take();
            let (nth, start) = (taken / parts, taken % parts * part);
            let Some(expert) = self.weight.expert_now(nth) else { return };
            let Some(&[from, to]) = gathered.starts.get(expert..expert + 2).and_then(|s| s.first_chunk())
            else {
                return;
            };
            if from == to {
                continue;
            }
            let list = from as usize..to as usize;
            let (slots, acts) = (&gathered.slots[list.clone()], &gathered.acts[list]);
            self.weight.with_expert(expert, |matrix, first| {
                // SAFETY: each part of an expert's rows is taken by one thread.
                let out = unsafe { self.out(slots).behind(first) };
                let rows = first + start..first + (start + part).min(rows);
                matmul(matrix, &self.acts.acts(RowIndex::List(acts)), rows, &out, scratch);
            });
        }
    }

    /// Sorts the slots by expert, in stable order.
    ///
    /// # Safety
    /// See [`super::forward`].
    unsafe fn gather<'b>(&self, memory: &'b mut [u8]) -> SlotsByExpert<'b> {
        let (experts, slots) = (self.weight.experts(), self.slots());
        // SAFETY: any bits are a valid u32; the memory is aligned to 64 and large enough.
        let (_, words, _) = unsafe { memory.align_to_mut::<u32>() };
        let (starts, lists) = words.split_at_mut(experts + 1);
        let (by_expert, acts) = lists.split_at_mut(slots);
        starts.fill(0);
        for slot in 0..slots {
            // SAFETY: the slot exists.
            starts[unsafe { self.expert_of(slot) }] += 1;
        }
        // Ends of the experts' lists; filling each list from the back turns them into starts.
        let mut end = 0;
        for s in starts.iter_mut() {
            end += *s;
            *s = end;
        }
        for slot in (0..slots).rev() {
            // SAFETY: the slot exists.
            let place = unsafe { &mut starts[self.expert_of(slot)] };
            *place -= 1;
            by_expert[*place as usize] = slot as u32;
            acts[*place as usize] = self.act_of(slot);
        }
        SlotsByExpert { starts, slots: by_expert, acts }
    }
}
