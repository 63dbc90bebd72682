//! Records of what a device computes: when the host enqueued it, and when the device did it.

use serde::{Deserialize, Serialize};

use crate::record::as_bytes;

/// A compute backend.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Backend<'a> {
    pub id: u32,
    pub guid: [u8; 16],
    /// Known name for the guid (`CPU`, `Vulkan`, ...), else empty.
    pub name: &'a str,
}

/// When the host gave the nodes of a split to its device, group by group: host time, during which the device may still be
/// busy with earlier nodes. Since 1.4.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enqueued<'a> {
    /// seq of the Split, which may come later.
    pub split: u64,
    pub pid: u32,
    pub tid: u32,
    /// The split's plan, and the position in it of the first group's first node.
    pub plan: u32,
    pub first: u32,
    /// Start of the first group.
    pub t: i64,
    /// Per group two varints: the number of consecutive nodes that the backend enqueued together, at least 1, and the
    /// time until the next group or the return of the split's call, ns.
    #[serde(serialize_with = "as_bytes")]
    pub data: &'a [u8],
}

/// How many kernels the host gave to a device while a split's call ran, counted at the graphics runtime's own functions.
/// Without this record it is not known. Since 1.5.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dispatches<'a> {
    /// seq of the Split, which may come later.
    pub split: u64,
    pub pid: u32,
    pub tid: u32,
    /// Start of the split.
    pub t: i64,
    pub kernels: u32,
    /// Graphs of kernels, each launched as a whole; how many kernels they have is not known.
    pub graphs: u32,
    /// Per group of the split's Enqueued record, in the same order, one varint: those of `kernels` given while it was
    /// enqueued. Empty if there is no such record.
    #[serde(serialize_with = "as_bytes")]
    pub data: &'a [u8],
}

/// Batches that the host gave to an NPU while a split's call ran, by libcdsprpc's queues. Without this record it is not known
/// how many. `answered` less `timed`, `unprofiled` and `timeless` is the number of responses of an unknown layout. Since
/// 1.5.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batches {
    /// seq of the Split, which may come later.
    pub split: u64,
    pub pid: u32,
    pub tid: u32,
    /// Start of the split.
    pub t: i64,
    pub written: u32,
    /// Those of them whose response was read, during the call or later.
    pub answered: u32,
    /// Sum over these, from the call that wrote the batch to the return of the one that read its response.
    pub rpc_ns: u64,
    /// Time during which at least one of these was on its way.
    pub busy_ns: u64,
    /// Sum over `timed`, as the NPU measured it.
    pub npu_ns: u64,
    /// Responses with the NPU's own time.
    pub timed: u32,
    /// Responses with a place for it, and none: the engine did not profile.
    pub unprofiled: u32,
    /// Responses of a layout that has no place for it.
    pub timeless: u32,
}

/// The name of a kernel in the DeviceKernels records after it. Since 1.4.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelName<'a> {
    pub id: u32,
    /// Empty if it is not known.
    pub name: &'a str,
}

/// Where the times of a kernel come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum KernelSource {
    /// Events of the OpenCL runtime, by profinfer's OpenCL layer.
    OpenClLayer,
    /// Timestamps around each dispatch, by profinfer's Vulkan layer. Queued and submitted are the host's time of the
    /// submission; a kernel that overlaps the one before it on the device starts at that one's end.
    VulkanLayer,
    /// CUPTI's activity records, by profinfer's library for CUDA. Where CUPTI does not know when a kernel was queued or
    /// submitted, that is the time at which the host made the call. Since 1.5.
    Cupti,
    /// The same, of kernels that a CUDA graph has launched: the host's time is that of the graph's launch, and the node is
    /// not known. Since 1.5.
    CuptiGraph,
    /// Timestamps that the engine itself took on a Vulkan device, one after each group of nodes that it enqueued: a kernel
    /// is all that a group enqueued, from the end of the group before it. When it was queued and submitted is not known;
    /// both are the host's time. It has no name. Of 1.6 to 1.10; no longer written.
    VulkanLogger,
}

/// Kernels that one thread enqueued and that have ended, with the device's own times, mapped to CLOCK_MONOTONIC. In
/// the order in which they were enqueued. Since 1.4.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceKernels<'a> {
    pub pid: u32,
    /// The thread that enqueued them.
    pub tid: u32,
    pub source: KernelSource,
    /// Identifies the queue within the process.
    pub queue: u64,
    /// The device's times may be off by this much against the host's, all by the same amount.
    pub error_ns: u64,
    /// When the host began to enqueue the first of them.
    pub t: i64,
    /// Per kernel six varints, all but the first a zigzag: the name's id; the host's time minus that of the kernel before
    /// (first: minus `t`); queued minus the host's time; submitted minus queued; started minus submitted; ended minus
    /// started.
    #[serde(serialize_with = "as_bytes")]
    pub data: &'a [u8],
}

impl DeviceKernels<'_> {
    /// Whether these are times of single kernels. Recordings of earlier versions may have those of groups of nodes, which
    /// begin when the group before them ends: views leave them out.
    pub fn are_single(&self) -> bool {
        self.source != KernelSource::VulkanLogger
    }
}

/// Which tracepoints of the kernel a submission comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum SubmissionSource {
    /// `gpu_scheduler`, of all drivers that use the kernel's scheduler for devices. A submission runs from when it was
    /// handed to the device's ring until its completion was seen: behind others in the ring, and then on the device.
    Scheduler,
    /// `drm_msm_gpu`, of Linux's driver for Adreno: with the device's own start, end and clock.
    Msm,
    /// `kgsl`, of Qualcomm's driver for Adreno: with the device's own start and end.
    Kgsl,
    /// `power:gpu_work_period`, of Android's drivers: no submissions but periods, each with the time during which an
    /// application kept the device busy.
    WorkPeriod,
}

/// A queue of a device, in the Submissions records after it. Since 1.5.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceRing<'a> {
    pub id: u32,
    pub source: SubmissionSource,
    /// The device, as the kernel names it; empty if the tracepoint does not.
    pub device: &'a str,
    pub name: &'a str,
}

/// Submissions to one ring that have ended, of all processes, in the order in which their ends were seen. Since 1.5.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Submissions<'a> {
    /// id of its DeviceRing.
    pub ring: u32,
    /// End of the first of them.
    pub t: i64,
    /// Per submission seven varints: pid, 0 if not known; the zigzag of its end minus the end before (first: minus `t`);
    /// three times, each 0 if not known, else the zigzag of end minus it, plus 1: queued, run, started; busy ns plus 1,
    /// clock in Hz plus 1, 0 if not known.
    #[serde(serialize_with = "as_bytes")]
    pub data: &'a [u8],
}
