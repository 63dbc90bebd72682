//! Kernels of a device as Perfetto's GpuRenderStageEvent: Perfetto lists the queues under "GPU", and its table
//! `gpu_slice` has the kernels. Unlike slices of a track they may overlap, so each keeps its true start and end.

use std::collections::HashMap;
use std::io;

use super::{Perfetto, names, packet};
use crate::proto::{bytes, number};
use crate::timeline::{ArgValue, DeviceQueue, SliceArgs};
use pfi::record::KernelSource;

/// Field of TracePacket.
const RENDER_STAGE: u32 = 53;

/// Fields of GpuRenderStageEvent.
mod stage {
    pub const EVENT: u32 = 1;
    pub const DURATION: u32 = 2;
    pub const CONTEXT: u32 = 5;
    pub const EXTRA: u32 = 6;
    pub const QUEUE_IID: u32 = 13;
    pub const STAGE_IID: u32 = 14;
}

/// Fields of InternedGpuRenderStageSpecification, and its category for computing.
mod specification {
    pub const IID: u32 = 1;
    pub const NAME: u32 = 2;
    pub const DESCRIPTION: u32 = 3;
    pub const CATEGORY: u32 = 4;
    pub const COMPUTE: u64 = 2;
}

/// Fields of InternedGraphicsContext, and its values of `api`.
mod context {
    pub const IID: u32 = 1;
    pub const PID: u32 = 2;
    pub const API: u32 = 3;
    pub const VULKAN: u64 = 2;
    pub const OPENCL: u64 = 3;
    pub const CUDA: u64 = 4;
}

/// Names that the sequence of a queue has interned, and what is still to be written with the next event.
#[derive(Default)]
pub(super) struct QueueNames {
    /// Number of the queue, and of its context.
    queue: u64,
    /// Numbers of kernels' names: all that follow that of the queue.
    stages: HashMap<String, u64>,
    new: Vec<u8>,
    /// Number of the last event, which counts on over all queues.
    event: u64,
}

fn api(source: KernelSource) -> u64 {
    match source {
        KernelSource::OpenClLayer => context::OPENCL,
        KernelSource::VulkanLayer | KernelSource::VulkanLogger => context::VULKAN,
        KernelSource::Cupti | KernelSource::CuptiGraph => context::CUDA,
    }
}

/// The name of a queue or of a kernel.
fn specification(iid: u64, name: &str, description: &str) -> Vec<u8> {
    let mut out = Vec::new();
    number(&mut out, specification::IID, iid);
    bytes(&mut out, specification::NAME, name.as_bytes());
    if !description.is_empty() {
        bytes(&mut out, specification::DESCRIPTION, description.as_bytes());
    }
    number(&mut out, specification::CATEGORY, specification::COMPUTE);
    out
}

impl Perfetto<'_> {
    /// Begins a sequence for the kernels of a queue. Perfetto tells queues apart by number and name, over all sequences.
    pub(super) fn begin_queue(&mut self, queue: &DeviceQueue<'_>) -> io::Result<()> {
        self.next_lane();
        self.start(None)?;
        let names = &mut self.queue;
        names.queue = u64::from(queue.index) + 1;
        names.stages.clear();
        names.new.clear();
        let times = format!("times: {}", queue.times);
        bytes(&mut names.new, names::GPU_SPECIFICATIONS, &specification(names.queue, queue.name, &times));
        let mut context = Vec::new();
        number(&mut context, context::IID, names.queue);
        number(&mut context, context::PID, queue.pid.into());
        number(&mut context, context::API, api(queue.source));
        bytes(&mut names.new, names::GRAPHICS_CONTEXTS, &context);
        Ok(())
    }

    /// Writes a kernel of the current queue.
    pub(super) fn render_stage(
        &mut self,
        (from, to): (i64, i64),
        name: &str,
        values: &SliceArgs,
    ) -> io::Result<()> {
        let names = &mut self.queue;
        names.event += 1;
        let stage = names.stage(name);
        let mut event = Vec::new();
        number(&mut event, stage::EVENT, names.event);
        number(&mut event, stage::DURATION, to.saturating_sub(from).max(0).cast_unsigned());
        number(&mut event, stage::CONTEXT, names.queue);
        number(&mut event, stage::QUEUE_IID, names.queue);
        number(&mut event, stage::STAGE_IID, stage);
        for (name, value) in values {
            let mut extra = Vec::new();
            bytes(&mut extra, 1, name.as_bytes());
            bytes(&mut extra, 2, text(value).as_bytes());
            bytes(&mut event, stage::EXTRA, &extra);
        }
        let new = std::mem::take(&mut names.new);
        let since = self.since(from);
        self.body.clear();
        number(&mut self.body, packet::TIMESTAMP, since);
        if !new.is_empty() {
            bytes(&mut self.body, packet::INTERNED, &new);
        }
        bytes(&mut self.body, RENDER_STAGE, &event);
        self.packet()
    }
}

impl QueueNames {
    /// Number of a kernel's name; a new one is interned.
    fn stage(&mut self, name: &str) -> u64 {
        if let Some(iid) = self.stages.get(name) {
            return *iid;
        }
        let iid = self.queue.saturating_add(self.stages.len() as u64).saturating_add(1);
        self.stages.insert(name.to_owned(), iid);
        bytes(&mut self.new, names::GPU_SPECIFICATIONS, &specification(iid, name, ""));
        iid
    }
}

/// A value of ExtraData, which knows only texts.
fn text(value: &ArgValue) -> String {
    match value {
        ArgValue::Text(text) => text.clone(),
        ArgValue::Count(n) => n.to_string(),
        ArgValue::Real(x) => x.to_string(),
        ArgValue::Yes => "true".into(),
    }
}
