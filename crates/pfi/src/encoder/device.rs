//! The part of the block writer that handles the records of `device`.

use std::io::Write;

use super::{Encoder, WriteError};
use crate::coding::{KernelTimes, Submission, put_kernels, put_submissions, put_varint};
use crate::open::def;
use crate::record::*;

/// Names of kernels remembered at a time; ggml-opencl has some 400 kernels.
const MAX_KERNELS: usize = 8192;

/// Rings remembered; a device has a few, an AMD one some twenty.
const MAX_RINGS: usize = 1024;
/// Submissions of one record.
const MAX_SUBMISSIONS: usize = 256;

/// What an Enqueued record is about; see [`Enqueued`].
#[derive(Debug, Clone, Copy)]
pub struct EnqueueRun {
    pub split: u64,
    pub pid: u32,
    pub tid: u32,
    pub plan: u32,
    pub first: u32,
    pub t: i64,
}

/// What a Dispatches record says, but for its groups; see [`Dispatches`].
#[derive(Debug, Clone, Copy)]
pub struct DispatchRun {
    pub split: u64,
    pub pid: u32,
    pub tid: u32,
    pub t: i64,
    pub kernels: u32,
    pub graphs: u32,
}

/// What a DeviceKernels record is about; see [`DeviceKernels`].
#[derive(Debug, Clone, Copy)]
pub struct KernelRun {
    pub pid: u32,
    pub tid: u32,
    pub source: KernelSource,
    pub queue: u64,
    pub error_ns: u64,
}

impl<W: Write> Encoder<W> {
    /// The groups of nodes of a split, from position `first` of its plan on: nodes and ns of each.
    ///
    /// # Errors
    /// As for `slices`, if the plan has left the table.
    pub fn enqueued(
        &mut self,
        run: &EnqueueRun,
        groups: impl Iterator<Item = (u32, u64)> + Clone,
    ) -> Result<(), WriteError> {
        let &EnqueueRun { split, pid, tid, plan, first, t } = run;
        let dur = groups.clone().fold(0u64, |sum, g| sum.saturating_add(g.1));
        self.begin_at(pid, t, dur)?;
        self.write_plan(plan)?;
        self.data.clear();
        for (nodes, ns) in groups {
            put_varint(&mut self.data, u64::from(nodes));
            put_varint(&mut self.data, ns);
        }
        self.open.put(Record::Enqueued(Enqueued { split, pid, tid, plan, first, t, data: &self.data }))
    }

    /// The kernels that a split gave to its device, and those of each group of its Enqueued record.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub fn dispatches(
        &mut self,
        run: &DispatchRun,
        groups: impl IntoIterator<Item = u32>,
    ) -> Result<(), WriteError> {
        let &DispatchRun { split, pid, tid, t, kernels, graphs } = run;
        self.begin_at(pid, t, 0)?;
        self.data.clear();
        groups.into_iter().for_each(|n| put_varint(&mut self.data, n.into()));
        self.open.put(Record::Dispatches(Dispatches {
            split,
            pid,
            tid,
            t,
            kernels,
            graphs,
            data: &self.data,
        }))
    }

    /// The batches that a split gave to an NPU.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub fn batches(&mut self, batches: &Batches) -> Result<(), WriteError> {
        self.begin_at(batches.pid, batches.t, 0)?;
        self.open.put(Record::Batches(*batches))
    }

    /// The name of a kernel, written where a DeviceKernels record needs it. Without room for another it is not kept, and
    /// the kernel has no name.
    ///
    /// # Errors
    /// The name is too long for a block.
    pub fn kernel_name(&mut self, id: u32, name: &str) -> Result<(), WriteError> {
        if self.kernels.len() < MAX_KERNELS || self.kernels.contains_key(&id) {
            self.kernels.insert(id, def(&Record::KernelName(KernelName { id, name }))?);
        }
        Ok(())
    }

    /// Kernels that have ended, in the order in which they were enqueued.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub fn device_kernels(&mut self, run: &KernelRun, kernels: &[KernelTimes]) -> Result<(), WriteError> {
        let Some(first) = kernels.first() else { return Ok(()) };
        let last = kernels.iter().map(|k| k.ended).max().unwrap_or_default();
        self.begin_at(run.pid, first.host as i64, last.saturating_sub(first.host))?;
        for kernel in kernels {
            if let Some(d) = self.kernels.get_mut(&kernel.name) {
                self.open.put_def(d)?;
            }
        }
        self.data.clear();
        put_kernels(&mut self.data, first.host, kernels);
        let &KernelRun { pid, tid, source, queue, error_ns } = run;
        let (t, data) = (first.host as i64, &self.data);
        self.open.put(Record::DeviceKernels(DeviceKernels { pid, tid, source, queue, error_ns, t, data }))
    }

    /// A ring, written where a Submissions record needs it. Without room for another it is not kept, and its submissions
    /// have no ring.
    ///
    /// # Errors
    /// Its names are too long for a block.
    pub fn device_ring(&mut self, ring: &DeviceRing) -> Result<(), WriteError> {
        if self.rings.len() < MAX_RINGS || self.rings.contains_key(&ring.id) {
            self.rings.insert(ring.id, def(&Record::DeviceRing(*ring))?);
        }
        Ok(())
    }

    /// Submissions to one ring that have ended.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub fn submissions(&mut self, ring: u32, all: &[Submission]) -> Result<(), WriteError> {
        for part in all.chunks(MAX_SUBMISSIONS) {
            let Some(first) = part.first() else { continue };
            let last = part.iter().map(|s| s.end).max().unwrap_or_default();
            self.begin_at(first.pid, first.end as i64, last.saturating_sub(first.end))?;
            if let Some(d) = self.rings.get_mut(&ring) {
                self.open.put_def(d)?;
            }
            self.data.clear();
            put_submissions(&mut self.data, first.end, part);
            let (t, data) = (first.end as i64, &self.data);
            self.open.put(Record::Submissions(Submissions { ring, t, data }))?;
        }
        Ok(())
    }
}
