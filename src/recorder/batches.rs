//! Batches that a thread writes to an NPU's queue while a split's call runs, and their responses: pairs them, and sums
//! them up by split. Allocates only when created.

use std::collections::VecDeque;
use std::io::Write;

use crate::capture::event::{self, BatchLayout};
use pfi::record::Batches;
use pfi::{Encoder, WriteError};

/// Splits with batches on their way.
const SPLITS: usize = 16;
/// Batches without a response, of all queues. ggml-hexagon has at most 16 on their way, and versions with one op each
/// 128 KiB of them.
const PENDING: usize = 1024;

/// A batch that was written.
struct PendingBatch {
    tgid: u32,
    queue: u64,
    /// First word of the message.
    id: u32,
    start: u64,
    /// seq of its split; `None` if there is none, or not all of its batches are seen.
    split: Option<u64>,
}

/// The sums of a split.
struct SplitBatches {
    sums: Batches,
    /// Its call has returned.
    returned: bool,
    /// When the last response was read, ns.
    last: u64,
}

/// Batches on their way, and the splits that wait for them.
pub struct OpenBatches {
    pending: VecDeque<PendingBatch>,
    splits: heapless::Vec<SplitBatches, SPLITS>,
}

impl Default for OpenBatches {
    fn default() -> Self {
        OpenBatches { pending: VecDeque::with_capacity(PENDING), splits: heapless::Vec::new() }
    }
}

impl OpenBatches {
    /// A batch was written during the call of `split` (seq and start), or outside any whose batches are all seen.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub fn written<W: Write>(
        &mut self,
        e: &event::Batch,
        split: Option<(u64, u64)>,
        enc: &mut Encoder<W>,
    ) -> Result<(), WriteError> {
        if self.pending.len() == PENDING {
            self.pending.pop_front();
        }
        let (tgid, queue, id, start) = (e.h.tgid, e.queue, e.id, e.start);
        self.pending.push_back(PendingBatch { tgid, queue, id, start, split: split.map(|s| s.0) });
        let Some((seq, t)) = split else { return Ok(()) };
        if let Some(open) = self.splits.iter_mut().find(|s| s.sums.split == seq) {
            open.sums.written = open.sums.written.saturating_add(1);
            return Ok(());
        }
        // Splits whose responses never come make room, the oldest first.
        if self.splits.is_full() {
            enc.batches(&self.splits.remove(0).sums)?;
        }
        let (pid, tid) = (e.h.tgid, e.h.tid);
        let sums = Batches { split: seq, pid, tid, t: t as i64, written: 1, ..Batches::default() };
        drop(self.splits.push(SplitBatches { sums, returned: false, last: 0 }));
        Ok(())
    }

    /// A response was read, by whatever thread. A queue answers in the order in which it was written to; where the
    /// response has its batch's id, that id decides.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub fn answered<W: Write>(&mut self, e: &event::Batch, enc: &mut Encoder<W>) -> Result<(), WriteError> {
        let layout = BatchLayout(e.length);
        let has_id =
            matches!(layout, BatchLayout::BATCH_PLAIN | BatchLayout::BATCH_TRACED | BatchLayout::BATCH_TIMED);
        let own = |p: &PendingBatch| p.tgid == e.h.tgid && p.queue == e.queue;
        let Some(at) = self.pending.iter().position(|p| own(p) && (!has_id || p.id == e.id)) else {
            return Ok(());
        };
        let Some(batch) = self.pending.remove(at) else { return Ok(()) };
        // Those before it were answered, too, and that was not seen.
        let mut before = 0;
        self.pending.retain(|p| {
            before += 1;
            before > at || !own(p)
        });
        let Some(open) = self.splits.iter_mut().find(|s| Some(s.sums.split) == batch.split) else {
            return Ok(());
        };
        let (sums, end) = (&mut open.sums, e.h.ts);
        sums.answered = sums.answered.saturating_add(1);
        sums.rpc_ns = sums.rpc_ns.saturating_add(end.saturating_sub(batch.start));
        sums.busy_ns = sums.busy_ns.saturating_add(end.saturating_sub(batch.start.max(open.last)));
        open.last = open.last.max(end);
        match layout {
            BatchLayout::BATCH_ONE_OP | BatchLayout::BATCH_TIMED if e.usecs > 0 => {
                sums.timed = sums.timed.saturating_add(1);
                sums.npu_ns = sums.npu_ns.saturating_add(u64::from(e.usecs).saturating_mul(1000));
            }
            BatchLayout::BATCH_ONE_OP | BatchLayout::BATCH_TIMED => {
                sums.unprofiled = sums.unprofiled.saturating_add(1);
            }
            BatchLayout::BATCH_PLAIN | BatchLayout::BATCH_TRACED => {
                sums.timeless = sums.timeless.saturating_add(1);
            }
            _ => {}
        }
        self.write_ended(enc)
    }

    /// The call of a split has returned. If not all of it was seen, its batches are in no figure.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub fn returned<W: Write>(
        &mut self,
        seq: u64,
        whole: bool,
        enc: &mut Encoder<W>,
    ) -> Result<(), WriteError> {
        if !whole {
            self.splits.retain(|s| s.sums.split != seq);
        }
        if let Some(open) = self.splits.iter_mut().find(|s| s.sums.split == seq) {
            open.returned = true;
        }
        self.write_ended(enc)
    }

    /// A process (any, with `None`) is not recorded any longer: writes what is known of its splits.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub fn close<W: Write>(&mut self, tgid: Option<u32>, enc: &mut Encoder<W>) -> Result<(), WriteError> {
        let of = |pid: u32| tgid.is_none_or(|tgid| tgid == pid);
        self.pending.retain(|p| !of(p.tgid));
        self.write(|s| of(s.sums.pid), enc)
    }

    /// Writes the splits that have returned and of which no response is awaited.
    fn write_ended<W: Write>(&mut self, enc: &mut Encoder<W>) -> Result<(), WriteError> {
        self.write(|s| s.returned && s.sums.answered >= s.sums.written, enc)
    }

    fn write<W: Write>(
        &mut self,
        done: impl Fn(&SplitBatches) -> bool,
        enc: &mut Encoder<W>,
    ) -> Result<(), WriteError> {
        while let Some(at) = self.splits.iter().position(&done) {
            enc.batches(&self.splits.remove(at).sums)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::event::Head;
    use crate::recorder::sample;
    use pfi::Trace;
    use pfi::record::Record;

    const QUEUE: u64 = 0x1000;

    /// A write that took 10 ns, or a response.
    fn event(ts: u64, id: u32, answer: Option<(u32, u32)>) -> event::Batch {
        let h = Head { ts, tgid: 7, tid: 8, kind: 0, engine: 0, ith: 0, flags: 0 };
        let (length, usecs) = answer.unwrap_or_default();
        event::Batch { h, queue: QUEUE, start: ts - 10, id, answer: answer.is_some().into(), length, usecs }
    }

    fn recorded(with: impl FnOnce(&mut OpenBatches, &mut Encoder<Vec<u8>>)) -> Vec<Batches> {
        let mut enc = Encoder::new(Vec::new(), Default::default(), &sample::HEADER).expect("written");
        with(&mut OpenBatches::default(), &mut enc);
        let trace = Trace::from_bytes(enc.finish(&sample::footer()).expect("written")).expect("a trace");
        let blocks = (0..trace.blocks().len()).map(|i| trace.block(i).expect("whole"));
        let of = |b: pfi::Block| -> Vec<Batches> {
            b.records().filter_map(|r| if let Ok(Record::Batches(b)) = r { Some(b) } else { None }).collect()
        };
        blocks.flat_map(of).collect()
    }

    #[test]
    fn responses_after_the_return_belong_to_the_split_that_wrote_the_batch() {
        let all = recorded(|b, enc| {
            for (ts, id) in [(110, 1), (130, 2)] {
                b.written(&event(ts, id, None), Some((5, 90)), enc).expect("written");
            }
            b.answered(&event(200, 1, Some((88, 40))), enc).expect("written");
            b.returned(5, true, enc).expect("written");
            b.written(&event(210, 3, None), Some((6, 205)), enc).expect("written");
            b.answered(&event(300, 2, Some((88, 0))), enc).expect("written");
            b.answered(&event(400, 3, Some((72, 0))), enc).expect("written");
            b.returned(6, true, enc).expect("written");
        });
        let first = Batches {
            split: 5,
            pid: 7,
            tid: 8,
            t: 90,
            written: 2,
            answered: 2,
            // From 100 to 200, and from 120 to 300: the second was on its way during the first.
            rpc_ns: 280,
            busy_ns: 200,
            npu_ns: 40_000,
            timed: 1,
            unprofiled: 1,
            timeless: 0,
        };
        let second = Batches {
            split: 6,
            t: 205,
            written: 1,
            answered: 1,
            rpc_ns: 200,
            busy_ns: 200,
            npu_ns: 0,
            timed: 0,
            unprofiled: 0,
            timeless: 1,
            ..first
        };
        assert_eq!(all, [first, second]);
    }

    #[test]
    fn what_was_not_seen_is_in_no_figure() {
        let all = recorded(|b, enc| {
            // The batch of this response was written before the probes were attached.
            b.answered(&event(50, 9, Some((88, 7))), enc).expect("written");
            b.written(&event(110, 1, None), None, enc).expect("written");
            b.written(&event(120, 2, None), Some((5, 115)), enc).expect("written");
            b.written(&event(130, 3, None), Some((5, 115)), enc).expect("written");
            // The response of batch 2 was lost; that of another version has no id, and is the next in order.
            b.answered(&event(150, 3, Some((88, 1))), enc).expect("written");
            b.answered(&event(160, 3, Some((40, 0))), enc).expect("written");
            b.written(&event(170, 4, None), Some((6, 165)), enc).expect("written");
            b.returned(6, false, enc).expect("written");
            b.written(&event(190, 77, None), Some((7, 180)), enc).expect("written");
            b.answered(&event(195, 5, Some((40, 0))), enc).expect("written");
            b.returned(7, true, enc).expect("written");
            b.close(None, enc).expect("written");
        });
        let sums: Vec<_> = all.iter().map(|b| (b.split, b.written, b.answered, b.timed)).collect();
        assert_eq!(sums, [(5, 2, 1, 1), (7, 1, 0, 0)]);
    }

    #[test]
    fn a_response_without_an_id_or_a_known_length_has_an_rpc_time_only() {
        let all = recorded(|b, enc| {
            b.written(&event(110, 1, None), Some((5, 90)), enc).expect("written");
            b.answered(&event(150, 8, Some((40, 0))), enc).expect("written");
            b.written(&event(160, 3, None), Some((5, 90)), enc).expect("written");
            b.answered(&event(170, 8, Some((64, 12))), enc).expect("written");
            b.returned(5, true, enc).expect("written");
        });
        let sums: Vec<_> = all.iter().map(|b| (b.answered, b.rpc_ns, b.npu_ns, b.timed)).collect();
        assert_eq!(sums, [(2, 70, 12_000, 1)]);
    }
}
