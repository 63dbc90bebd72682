//! Command buffers with dispatches, each between two timestamps, until the device has executed them.

use ash::vk;
use ash::vk::Handle;
use handover::{Batch, KernelTimes, VULKAN, monotonic, tid};

use crate::device::{Device, Devices};
use crate::shaders::Shaders;

/// Dispatches of one recording of a command buffer; ggml submits after at most 100 nodes. More have no times.
const DISPATCHES: usize = 512;
/// Command buffers between their recording and the end of their execution.
const BUFFERS: usize = 128;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    Free,
    Recording,
    Submitted,
}

/// A dispatch as the host records it.
#[derive(Clone, Copy)]
struct Dispatch {
    host: u64,
    pipeline: u64,
    tid: u32,
}

/// One recording of a command buffer.
#[derive(Clone, Copy)]
struct Recorded {
    progress: Progress,
    buffer: u64,
    /// The device's key, and a pool of its queries; it is kept for the next recording.
    device: usize,
    pool: vk::QueryPool,
    queue: u64,
    submitted: u64,
    pipeline: u64,
    len: usize,
    dispatches: [Dispatch; DISPATCHES],
}

const FREE: Recorded = Recorded {
    progress: Progress::Free,
    buffer: 0,
    device: 0,
    pool: vk::QueryPool::null(),
    queue: 0,
    submitted: 0,
    pipeline: 0,
    len: 0,
    dispatches: [Dispatch { host: 0, pipeline: 0, tid: 0 }; DISPATCHES],
};

/// Everything that the layer keeps.
pub struct Layer {
    pub devices: Devices,
    pub shaders: Shaders,
    buffers: [Recorded; BUFFERS],
    batch: Batch<VULKAN>,
    /// Timestamps of one command buffer.
    ticks: [u64; 2 * DISPATCHES],
}

/// Where the timestamps of a dispatch go.
pub struct Stamps {
    pub pool: vk::QueryPool,
    pub first: u32,
    /// Queries of the pool, to reset before the first is written.
    pub reset: Option<u32>,
}

impl Layer {
    pub const fn new() -> Layer {
        Layer {
            devices: Devices::new(),
            shaders: Shaders::new(),
            buffers: [FREE; BUFFERS],
            batch: Batch::new(),
            ticks: [0; 2 * DISPATCHES],
        }
    }

    fn recording(&mut self, buffer: u64) -> Option<&mut Recorded> {
        self.buffers.iter_mut().find(|b| b.progress == Progress::Recording && b.buffer == buffer)
    }

    /// What a command buffer had is recorded anew.
    pub fn begin(&mut self, buffer: u64) {
        if let Some(old) = self.recording(buffer) {
            old.progress = Progress::Free;
        }
    }

    /// Dispatches from here on use this pipeline.
    pub fn bind(&mut self, device: usize, buffer: u64, pipeline: u64) {
        if let Some(known) = self.recording(buffer) {
            known.pipeline = pipeline;
            return;
        }
        let Some(of) = self.devices.get(device).copied().filter(|d| d.mask != 0) else { return };
        // Those with a pool of this device first.
        let free = |b: &&mut Recorded| b.progress == Progress::Free;
        let own = self.buffers.iter().position(|b| b.progress == Progress::Free && b.device == device);
        let place = match own {
            Some(at) => self.buffers.get_mut(at),
            None => self.buffers.iter_mut().filter(free).find(|b| b.pool.is_null()),
        };
        let Some(place) = place else { return };
        if place.pool.is_null() {
            let Some(pool) = create_pool(&of) else { return };
            place.pool = pool;
        }
        (place.progress, place.buffer, place.device, place.pipeline) =
            (Progress::Recording, buffer, device, pipeline);
        (place.len, place.queue) = (0, 0);
    }

    /// The next dispatch of a command buffer; None: without times.
    pub fn dispatch(&mut self, buffer: u64) -> Option<Stamps> {
        let known = self.recording(buffer)?;
        let at = known.len;
        let (pipeline, pool) = (known.pipeline, known.pool);
        match known.dispatches.get_mut(at) {
            Some(place) => *place = Dispatch { host: monotonic(), pipeline, tid: tid() },
            None => {
                self.batch.lose(1);
                return None;
            }
        }
        known.len += 1;
        let reset = (at == 0).then_some(2 * DISPATCHES as u32);
        Some(Stamps { pool, first: 2 * at as u32, reset })
    }

    /// The host submits a command buffer.
    pub fn submit(&mut self, queue: u64, buffer: u64, now: u64) {
        if let Some(known) = self.recording(buffer) {
            (known.queue, known.submitted) = (queue, now);
            known.progress = if known.len == 0 { Progress::Free } else { Progress::Submitted };
        }
    }

    /// Hands over what the device has executed.
    pub fn collect(&mut self, device: usize) {
        let Some(of) = self.devices.get(device) else { return };
        // In the order of submission.
        loop {
            let next =
                self.buffers.iter_mut().filter(|b| b.progress == Progress::Submitted && b.device == device);
            let Some(oldest) = next.min_by_key(|b| b.submitted) else { break };
            let Some(ticks) = self.ticks.get_mut(..2 * oldest.len) else { break };
            let size = size_of_val(ticks);
            // SAFETY: a pool of this device, and room for as many 64-bit numbers as it is asked for.
            let answer = unsafe {
                (of.functions.results)(
                    of.handle,
                    oldest.pool,
                    0,
                    ticks.len() as u32,
                    size,
                    ticks.as_mut_ptr().cast(),
                    size_of::<u64>() as u64,
                    vk::QueryResultFlags::TYPE_64,
                )
            };
            match answer {
                vk::Result::SUCCESS => hand_over(oldest, of, ticks, &self.shaders, &mut self.batch),
                // Later ones have not been executed either, on the same queue.
                vk::Result::NOT_READY => break,
                _ => self.batch.lose(oldest.len as u64),
            }
            oldest.progress = Progress::Free;
        }
        self.batch.hand_over();
    }

    /// The device is about to be destroyed: its pools are no longer of use.
    pub fn forget(&mut self, device: usize) {
        let Some(of) = self.devices.get(device).copied() else { return };
        for b in self.buffers.iter_mut().filter(|b| b.device == device && !b.pool.is_null()) {
            // SAFETY: a pool of this device; the application destroys a device only when nothing of it is in use.
            unsafe { (of.functions.destroy_pool)(of.handle, b.pool, core::ptr::null()) };
            *b = FREE;
        }
        self.devices.remove(device);
    }
}

fn create_pool(of: &Device) -> Option<vk::QueryPool> {
    let info = vk::QueryPoolCreateInfo {
        query_type: vk::QueryType::TIMESTAMP,
        query_count: 2 * DISPATCHES as u32,
        ..Default::default()
    };
    let mut pool = vk::QueryPool::null();
    // SAFETY: a device that exists, and room for the pool.
    let made =
        unsafe { (of.functions.create_pool)(of.handle, &raw const info, core::ptr::null(), &raw mut pool) };
    (made == vk::Result::SUCCESS).then_some(pool)
}

/// The times of one command buffer. A dispatch starts no earlier than the one before it ends: its first timestamp may be
/// taken while it still waits for that.
fn hand_over(done: &Recorded, of: &mut Device, ticks: &[u64], shaders: &Shaders, batch: &mut Batch<VULKAN>) {
    let seen = monotonic();
    let scale = *of;
    let times = |pair: &[u64]| Some((scale.ns(*pair.first()?), scale.ns(*pair.get(1)?)));
    let (Some((first, _)), Some((_, last))) =
        (ticks.chunks_exact(2).next().and_then(times), ticks.chunks_exact(2).last().and_then(times))
    else {
        return;
    };
    of.clock.enclose((first, last), done.submitted, seen);
    let mut before = 0;
    for (dispatch, pair) in done.dispatches.iter().take(done.len).zip(ticks.chunks_exact(2)) {
        let Some((started, ended)) = times(pair) else { break };
        let started = of.clock.to_host(started).max(before);
        let ended = of.clock.to_host(ended).max(started);
        before = ended;
        batch.push(KernelTimes {
            host: dispatch.host,
            queued: done.submitted,
            submitted: done.submitted,
            started,
            ended,
            name: shaders.name_of(dispatch.pipeline),
            queue: done.queue,
            tid: dispatch.tid,
            error_ns: of.clock.error_ns(),
        });
    }
}
