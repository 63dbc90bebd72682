//! Splits on backends other than the CPU's: whose they are, what they compute, when it was enqueued, and the waits for
//! devices.

use std::io::Write;

use super::Drain;
use crate::capture::event;
use crate::capture::structure::Reading;
use crate::recorder::calls::{CallKind, ComputedBy, OpenCall};
use crate::recorder::device::Overs;
use crate::recorder::enqueue::{NodeHit, SplitFit};
use engine::backends::CPU_GUID;
use engine::enqueue;
use ggml::backend_guid;
use machine::memory;
use pfi::record::Split;
use pfi::{DispatchRun, EnqueueRun, WriteError};

impl<W: Write> Drain<W> {
    /// A part of a graph is given to a backend: whose it is, and what it computes.
    pub(super) fn split_enter(&mut self, e: &event::Call, call: &mut OpenCall) -> Result<(), WriteError> {
        let h = &e.h;
        let guid = self.guid(e, e.a);
        call.work = if backend_guid::is_device(&guid) { ComputedBy::Device } else { ComputedBy::Host };
        for outer in [CallKind::Sched, CallKind::Token] {
            if let Some(outer) = self.calls.current(outer, h.tid).filter(|c| c.work != ComputedBy::Device) {
                outer.work = call.work;
            }
        }
        let counted = self.shown(h.engine).and_then(|s| s.dispatches_since).is_some_and(|t| t <= h.ts);
        call.dispatched = (counted && call.work == ComputedBy::Device).then_some((e.kernels, e.launches));
        let seen = self.shown(h.engine).and_then(|s| s.batches_since).is_some_and(|t| t <= h.ts);
        call.batched = seen && call.work == ComputedBy::Device;
        let name = backend_guid::name(&guid);
        call.detail = self.enc.backend(guid, name.unwrap_or(""));
        self.experts.split(name);
        let nameless = name.filter(|name| enqueue::needs_no_name(name));
        if let (Some(name), Some(shown)) = (nameless, self.shown(h.engine)) {
            shown.backend = Some((h.tgid, e.a, name));
        }
        if guid != [0; backend_guid::GUID_BYTES] && !guid.starts_with(&CPU_GUID) {
            call.plan = self.split_plan(e)?;
        }
        Ok(())
    }

    /// The plan of the nodes that a split gives to its backend.
    pub(super) fn split_plan(&mut self, e: &event::Call) -> Result<Option<u32>, WriteError> {
        let ops = self.readings.get(e.h.engine as usize).map(Reading::idle_ops).unwrap_or_default();
        let graph = (e.h.tgid, e.b, e.n.max(0) as u32);
        self.split_plans.plan(graph, &self.graphs.nodes, ops, &mut self.tensors, &mut self.enc)
    }

    /// A device backend enqueues a node of the thread's split.
    pub(super) fn node(&mut self, e: &event::Call) {
        self.last_ts = e.h.ts;
        let split = self.calls.current(CallKind::Split, e.h.tid);
        // Without, its nodes were not read: the device's library came after the engine was found.
        let described = split.as_ref().is_some_and(|s| s.plan.is_some());
        let split = split.map(|s| (s.seq, s.cgraph, s.start, s.dispatched));
        let index = u32::try_from(e.n).ok();
        let fits = |cgraph| index.is_some_and(|i| self.graphs.nodes.has(e.h.tgid, cgraph, e.a, i));
        let misfit = e.b == event::NODE_AT && split.is_some_and(|(_, cgraph, ..)| !fits(cgraph));
        if let Some(shown) = self.shown(e.h.engine) {
            match misfit {
                true => shown.misfit = e.h.ts,
                false => shown.enqueued += u64::from(e.b != event::NODE_DONE),
            }
        }
        // Without a split, it began before the probes were attached.
        let Some((seq, cgraph, start, dispatched)) = split.filter(|_| !misfit) else { return };
        let last = self.enqueued.last_index(e.h.tid, seq);
        let index = match e.b {
            event::NODE_DONE => last.map(|i| i + 1),
            event::NODE_TENSOR => self.graphs.nodes.index_of(e.h.tgid, cgraph, e.a, last.unwrap_or_default()),
            _ => index,
        };
        let before = dispatched.map_or(0, |(kernels, _)| kernels);
        // Fused nodes before the first one of a function that returns.
        if last.is_none() && e.b == event::NODE_TENSOR && index.is_some_and(|i| i > 0) {
            self.enqueued.hit(e.h.tid, seq, NodeHit { index: 0, t: start, kernels: before });
        }
        match index {
            Some(index) => {
                self.enqueued.hit(e.h.tid, seq, NodeHit { index, t: e.h.ts, kernels: e.kernels });
            }
            // A node that is not in the split's list.
            None if e.b == event::NODE_TENSOR && described => self.enqueued.unplaced += 1,
            None => {}
        }
    }

    /// A split's call has returned: what was given to its device is written.
    pub(super) fn split_exit(&mut self, e: &event::Call, call: &OpenCall) -> Result<(), WriteError> {
        if let Some(plan) = call.plan {
            self.write_enqueued(e, call, plan)?;
        }
        let whole = !self.is_reconfiguring(call.start, e.h.ts);
        if whole {
            self.write_dispatches(e, call)?;
        }
        self.batches.returned(call.seq, whole, &mut self.enc)
    }

    /// A split's call has returned: all its nodes are enqueued.
    fn write_enqueued(&mut self, e: &event::Call, call: &OpenCall, plan: u32) -> Result<(), WriteError> {
        let ops = self.readings.get(e.h.engine as usize).map(Reading::idle_ops).unwrap_or_default();
        let Some(work) = self.graphs.nodes.offloaded(call.tgid, call.cgraph, ops) else { return Ok(()) };
        let run = EnqueueRun { split: call.seq, pid: call.tgid, tid: call.tid, plan, first: 0, t: 0 };
        let end = NodeHit { index: u32::MAX, t: e.h.ts, kernels: e.kernels };
        match self.enqueued.write(run, end, work.map(|(index, _)| index), &mut self.enc) {
            Err(WriteError::UnknownPlan(_)) => self.enqueued.unplaced += 1,
            Err(why) => return Err(why),
            Ok(fit) => {
                let Some(shown) = self.shown(e.h.engine) else { return Ok(()) };
                match fit {
                    SplitFit::Fits => shown.fitted = call.start,
                    SplitFit::Misfit => shown.misfit = e.h.ts,
                    SplitFit::Unhit if shown.backend.is_some_and(|(_, at, _)| at == call.object) => {
                        shown.unhit = call.start;
                    }
                    SplitFit::Unhit => {}
                }
            }
        }
        Ok(())
    }

    /// A split's call has returned: how many kernels it gave to its device, if all of them were counted. A thread that has
    /// never given any to a function that is probed may use another: it is not known then.
    fn write_dispatches(&mut self, e: &event::Call, call: &OpenCall) -> Result<(), WriteError> {
        let groups = self.enqueued.take_kernels();
        let Some((kernels, graphs)) = call.dispatched.filter(|_| (e.kernels, e.launches) != (0, 0)) else {
            return Ok(());
        };
        // Lower than before: they have wrapped, or BPF has dropped and begun the thread's counts.
        let counts = e.kernels.checked_sub(kernels).zip(e.launches.checked_sub(graphs));
        let Some((kernels, graphs)) = counts else { return Ok(()) };
        let (split, pid, tid, t) = (call.seq, call.tgid, call.tid, call.start as i64);
        self.enc.dispatches(&DispatchRun { split, pid, tid, t, kernels, graphs }, groups)?;
        if let Some(shown) = self.shown(e.h.engine) {
            shown.dispatches += u64::from(kernels) + u64::from(graphs);
        }
        Ok(())
    }

    /// A batch was written for an NPU, or its response was read.
    pub(super) fn batch(&mut self, e: &event::Batch) -> Result<(), WriteError> {
        self.last_ts = e.h.ts;
        if let Some(shown) = self.shown(e.h.engine) {
            shown.batches += 1;
        }
        if e.answer != 0 {
            return self.batches.answered(e, &mut self.enc);
        }
        let split = self.calls.current(CallKind::Split, e.h.tid).filter(|s| s.batched);
        self.batches.written(e, split.map(|s| (s.seq, s.start)), &mut self.enc)
    }

    /// A layer hands over times of kernels.
    pub(super) fn kernels(&mut self, e: &event::Kernels) -> Result<(), WriteError> {
        self.last_ts = e.h.ts;
        if self.kernels.named(e, &mut self.enc)? {
            return Ok(());
        }
        if let Some(shown) = self.shown(e.h.engine) {
            shown.kernels += u64::from(e.n);
        }
        self.kernels.write(e, &mut self.enc)
    }

    /// The program has waited for a device to finish.
    pub(super) fn wait(&mut self, e: &event::Call) -> Result<(), WriteError> {
        self.last_ts = e.h.ts;
        if let Some(shown) = self.shown(e.h.engine) {
            shown.waits += 1;
        }
        let e = event::Call { guid: if e.n == 0 { self.guid(e, e.b) } else { e.guid }, ..*e };
        let overs = self.waiting.wait(&e);
        self.finish_all(&overs)
    }

    pub(super) fn finish_all(&mut self, overs: &Overs) -> Result<(), WriteError> {
        overs.iter().try_for_each(|over| self.finish(over))
    }

    /// Writes a split. Its plan is from its start: if so many others followed that the writer has dropped it, the split is
    /// written without, and counts as not described.
    pub(super) fn write_split(&mut self, split: Split) -> Result<(), WriteError> {
        match self.enc.split(&split) {
            Err(WriteError::UnknownPlan(_)) => self.enc.split(&Split { plan: None, ..split }),
            done => done,
        }
    }

    /// A backend's guid. BPF cannot read a page that the target has not touched yet; reading it from here pages it
    /// in.
    pub(super) fn guid(&self, e: &event::Call, backend: u64) -> [u8; 16] {
        let mut guid = e.guid;
        let at = self.readings.get(e.h.engine as usize).and_then(|r| r.layout.guid_off);
        if let Some(at) = at.filter(|_| guid == [0; 16])
            && let Ok(pointer) = memory::read_u64(e.h.tgid, backend.saturating_add(at.into()))
            && memory::read(e.h.tgid, pointer, &mut guid).is_err()
        {
            guid = [0; 16];
        }
        guid
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder::sample;
    use pfi::record::{Device, Record};
    use pfi::{Encoder, Trace};

    #[test]
    fn a_split_whose_plan_is_gone_is_written_without_it() {
        let enc = Encoder::new(Vec::new(), Default::default(), &sample::HEADER).expect("written");
        let mut drain = Drain::new(enc);
        let (plan, device) = (Some(77), Device::Busy(3));
        let split = Split {
            seq: 5,
            graph: None,
            backend: 0,
            pid: 1,
            tid: 1,
            n_nodes: 2,
            t: 10,
            dur: 20,
            cut: false,
            device,
            plan,
        };
        drain.write_split(split.clone()).expect("written");
        let trace =
            Trace::from_bytes(drain.enc.finish(&sample::footer()).expect("written")).expect("a trace");
        let blocks = (0..trace.blocks().len()).map(|i| trace.block(i).expect("whole"));
        let splits = blocks.flat_map(|b| b.records().collect::<Vec<_>>()).filter_map(|r| match r {
            Ok(Record::Split(s)) => Some(s),
            _ => None,
        });
        assert_eq!(splits.collect::<Vec<_>>(), [Split { plan: None, ..split }]);
    }
}
