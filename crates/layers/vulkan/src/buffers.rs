//! Command buffers: what the program has recorded in each, from its allocation until it is freed.

use handover::{Batch, Reason, VULKAN, monotonic, tid};

use ash::vk;
use ash::vk::Handle;

use crate::device::Devices;
use crate::shaders::Shaders;

/// Dispatches of one command buffer; ggml submits after at most 100 nodes. More have no times.
pub const DISPATCHES: usize = 512;
/// Command buffers with dispatches, from the first dispatch until the host knows that the device has executed it; one
/// that may be submitted again, until it is recorded anew.
const RECORDINGS: usize = 128;
/// Command buffers that exist.
const BUFFERS: usize = 1024;

/// A dispatch as the host records it.
#[derive(Clone, Copy)]
pub struct Dispatch {
    pub host: u64,
    pub pipeline: u64,
    pub tid: u32,
}

/// Dispatches with times, and the pool of their queries.
pub struct Recording {
    used: bool,
    device: usize,
    pub pool: vk::QueryPool,
    /// What the first query had when it was last read: until the device resets it, it is still there.
    pub stale: u64,
    pub len: usize,
    pub dispatches: [Dispatch; DISPATCHES],
}

const UNUSED: Recording = Recording {
    used: false,
    device: 0,
    pool: vk::QueryPool::null(),
    stale: 0,
    len: 0,
    dispatches: [Dispatch { host: 0, pipeline: 0, tid: 0 }; DISPATCHES],
};

/// Dispatches without times, each time that they are executed.
#[derive(Clone, Copy)]
struct Untimed {
    /// Too many.
    no_room: usize,
    /// The device has no timestamps, or no more queries.
    no_stamps: usize,
    secondary: usize,
}

/// A command buffer of the program.
#[derive(Clone, Copy)]
pub struct CommandBuffer {
    /// 0: none.
    pub handle: u64,
    pub device: usize,
    command_pool: u64,
    is_secondary: bool,
    /// Cannot be submitted again.
    once: bool,
    /// Was submitted again while it was on its way: its queries are of no use until it is recorded anew.
    mixed: bool,
    pipeline: u64,
    recording: Option<usize>,
    untimed: Untimed,
    /// Of its last submission, on its way: number, queue, and the host's time before it. Number 0: not on its way.
    pub order: u64,
    pub queue: u64,
    pub submitted: u64,
}

const NONE: CommandBuffer = CommandBuffer {
    handle: 0,
    device: 0,
    command_pool: 0,
    is_secondary: false,
    once: false,
    mixed: false,
    pipeline: 0,
    recording: None,
    untimed: Untimed { no_room: 0, no_stamps: 0, secondary: 0 },
    order: 0,
    queue: 0,
    submitted: 0,
};

/// Everything that the layer keeps.
pub struct Layer {
    pub devices: Devices,
    pub shaders: Shaders,
    /// Their handles again, close together: each command looks for one.
    handles: [u64; BUFFERS],
    buffers: [CommandBuffer; BUFFERS],
    /// Places of `buffers` that were ever used.
    used: usize,
    recordings: [Recording; RECORDINGS],
    submissions: u64,
    pub batch: Batch<VULKAN>,
}

/// Where the timestamps of a dispatch go.
pub struct Stamps {
    pub pool: vk::QueryPool,
    pub first: u32,
    /// Queries of the pool, to reset before the first is written.
    pub reset: Option<u32>,
}

/// What becomes of a dispatch.
pub enum Place {
    Timed(Stamps),
    Untimed,
    /// A pool must be made for it first.
    NeedsPool,
}

impl Layer {
    pub const fn new() -> Layer {
        Layer {
            devices: Devices::new(),
            shaders: Shaders::new(),
            handles: [0; BUFFERS],
            buffers: [NONE; BUFFERS],
            used: 0,
            recordings: [UNUSED; RECORDINGS],
            submissions: 0,
            batch: Batch::new(),
        }
    }

    fn at(&self, handle: u64) -> Option<usize> {
        self.handles.iter().take(self.used).position(|h| *h == handle)
    }

    fn find(&mut self, handle: u64) -> Option<&mut CommandBuffer> {
        let at = self.at(handle)?;
        self.buffers.get_mut(at)
    }

    /// Those that exist.
    pub fn all(&self) -> impl Iterator<Item = &CommandBuffer> {
        self.buffers.iter().take(self.used).filter(|b| b.handle != 0)
    }

    pub fn recording_of(&mut self, buffer: &CommandBuffer) -> Option<&mut Recording> {
        self.recordings.get_mut(buffer.recording?)
    }

    /// Its dispatches with times.
    fn timed(&self, buffer: &CommandBuffer) -> usize {
        buffer.recording.and_then(|at| self.recordings.get(at)).map_or(0, |r| r.len)
    }

    /// The program has a new command buffer. Without room for it, its dispatches have no times.
    pub fn allocate(&mut self, device: usize, command_pool: u64, is_secondary: bool, handle: u64) {
        self.forget(handle);
        let at = self.at(0).unwrap_or(self.used);
        if let (Some(place), Some(known)) = (self.buffers.get_mut(at), self.handles.get_mut(at)) {
            *place = CommandBuffer { handle, device, command_pool, is_secondary, ..NONE };
            *known = handle;
            self.used = self.used.max(at + 1);
        }
    }

    /// It exists no more.
    pub fn forget(&mut self, handle: u64) {
        self.clear(handle);
        if let Some(at) = self.at(handle).filter(|_| handle != 0)
            && let (Some(place), Some(known)) = (self.buffers.get_mut(at), self.handles.get_mut(at))
        {
            (*place, *known) = (NONE, 0);
        }
    }

    /// What it has is no longer there. It cannot be on its way; if it seems so, nobody has seen its end.
    pub fn clear(&mut self, handle: u64) {
        let Some(buffer) = self.find(handle) else { return };
        let old = *buffer;
        *buffer = CommandBuffer {
            handle,
            device: old.device,
            command_pool: old.command_pool,
            is_secondary: old.is_secondary,
            ..NONE
        };
        if old.order != 0 {
            self.batch.lose(self.timed(&old), Reason::Unended);
        }
        self.release(&old);
    }

    fn release(&mut self, buffer: &CommandBuffer) {
        if let Some(recording) = self.recording_of(buffer) {
            (recording.used, recording.len) = (false, 0);
        }
    }

    pub fn begin(&mut self, handle: u64, once: bool) {
        self.clear(handle);
        if let Some(buffer) = self.find(handle) {
            buffer.once = once;
        }
    }

    /// All command buffers of a pool are cleared, or forgotten.
    pub fn of_pool(&mut self, device: usize, command_pool: u64, then: fn(&mut Layer, u64)) {
        for at in 0..self.used {
            let of = self.buffers.get(at).filter(|b| b.handle != 0);
            let of = of.filter(|b| (b.device, b.command_pool) == (device, command_pool));
            if let Some(handle) = of.map(|b| b.handle) {
                then(self, handle);
            }
        }
    }

    /// Dispatches from here on use this pipeline.
    pub fn bind(&mut self, handle: u64, pipeline: u64) {
        if let Some(buffer) = self.find(handle) {
            buffer.pipeline = pipeline;
        }
    }

    /// The next dispatch of a command buffer.
    pub fn dispatch(&mut self, handle: u64) -> Place {
        let Some(buffer) = self.find(handle).copied() else {
            self.batch.lose(1, Reason::NoRoom);
            return Place::Untimed;
        };
        let Some(ticks) = self.devices.get(buffer.device).map(|d| d.ticks) else { return Place::Untimed };
        if buffer.is_secondary {
            return self.untimed(handle, |u| &mut u.secondary);
        }
        if !ticks.count() {
            return self.no_stamps(handle);
        }
        let Some(at) = buffer.recording.or_else(|| self.unused(buffer.device)) else {
            return self.untimed(handle, |u| &mut u.no_room);
        };
        let Some(recording) = self.recordings.get_mut(at) else { return Place::Untimed };
        if recording.pool.is_null() {
            return Place::NeedsPool;
        }
        let (pool, len) = (recording.pool, recording.len);
        let Some(place) = recording.dispatches.get_mut(len) else {
            return self.untimed(handle, |u| &mut u.no_room);
        };
        *place = Dispatch { host: monotonic(), pipeline: buffer.pipeline, tid: tid() };
        (recording.used, recording.len) = (true, len + 1);
        if let Some(buffer) = self.find(handle) {
            buffer.recording = Some(at);
        }
        let reset = (len == 0).then_some(2 * DISPATCHES as u32);
        Place::Timed(Stamps { pool, first: 2 * len as u32, reset })
    }

    fn untimed(&mut self, handle: u64, of: fn(&mut Untimed) -> &mut usize) -> Place {
        if let Some(buffer) = self.find(handle) {
            *of(&mut buffer.untimed) += 1;
        }
        Place::Untimed
    }

    /// A dispatch for which there are no queries.
    pub fn no_stamps(&mut self, handle: u64) -> Place {
        self.untimed(handle, |u| &mut u.no_stamps)
    }

    /// A recording that no command buffer uses: if possible, one with a pool of this device.
    fn unused(&self, device: usize) -> Option<usize> {
        let own = |r: &Recording| !r.used && !r.pool.is_null() && r.device == device;
        self.recordings.iter().position(own).or_else(|| self.without_pool())
    }

    fn without_pool(&self) -> Option<usize> {
        self.recordings.iter().position(|r| !r.used && r.pool.is_null())
    }

    /// False: it is of no use.
    pub fn keep_pool(&mut self, device: usize, pool: vk::QueryPool) -> bool {
        let place = self.without_pool().and_then(|at| self.recordings.get_mut(at));
        place.map(|r| (r.device, r.pool, r.stale) = (device, pool, 0)).is_some()
    }

    /// A pool of a device that is about to be destroyed, to destroy it first.
    pub fn take_pool(&mut self, device: usize) -> Option<vk::QueryPool> {
        let recording = self.recordings.iter_mut().find(|r| r.device == device && !r.pool.is_null())?;
        let pool = recording.pool;
        (recording.used, recording.len, recording.pool) = (false, 0, vk::QueryPool::null());
        Some(pool)
    }

    /// A primary command buffer executes a secondary one.
    pub fn execute(&mut self, primary: u64, secondary: u64) {
        let n = self.find(secondary).map_or(0, |s| s.untimed.secondary);
        if let Some(primary) = self.find(primary) {
            primary.untimed.secondary += n;
        }
    }

    /// Whether a submission of it is on its way, as far as the host knows.
    pub fn is_pending(&mut self, handle: u64) -> bool {
        self.find(handle).is_some_and(|b| b.order != 0)
    }

    /// The host has submitted a command buffer, at the time `now` at the earliest.
    pub fn submitted(&mut self, queue: u64, handle: u64, now: u64) {
        let Some(buffer) = self.find(handle).copied() else { return };
        let (len, untimed) = (self.timed(&buffer), buffer.untimed);
        self.batch.lose(untimed.no_room, Reason::NoRoom);
        self.batch.lose(untimed.no_stamps, Reason::Untimed);
        self.batch.lose(untimed.secondary, Reason::Secondary);
        let again = buffer.order != 0;
        if again || buffer.mixed {
            self.batch.lose(if again { 2 * len } else { len }, Reason::Resubmitted);
        }
        self.submissions += 1;
        let order = if again || buffer.mixed || len == 0 { 0 } else { self.submissions };
        if let Some(buffer) = self.find(handle) {
            (buffer.order, buffer.queue, buffer.submitted) = (order, queue, now);
            buffer.mixed |= again;
        }
    }

    /// The host knows that the device has executed a command buffer.
    pub fn executed(&mut self, handle: u64) {
        let Some(buffer) = self.find(handle) else { return };
        buffer.order = 0;
        if buffer.once {
            let old = *buffer;
            buffer.recording = None;
            self.release(&old);
        }
    }

    /// A device is about to be destroyed, and its command buffers with it.
    pub fn remove_device(&mut self, device: usize) {
        for at in 0..self.used {
            let of = self.buffers.get(at).filter(|b| b.handle != 0 && b.device == device);
            if let Some(handle) = of.map(|b| b.handle) {
                self.forget(handle);
            }
        }
        self.devices.remove(device);
    }

    /// The times of everything that is on its way, on one device or on all, cannot be had.
    pub fn abandon(&mut self, device: Option<usize>, why: Reason) {
        for at in 0..self.used {
            let of = self.buffers.get(at).copied();
            let of = of.filter(|b| b.order != 0 && device.is_none_or(|d| d == b.device));
            if let Some(buffer) = of {
                self.batch.lose(self.timed(&buffer), why);
                self.executed(buffer.handle);
            }
        }
        self.batch.hand_over();
    }
}
