//! Reads the timestamps of what a device has executed. The driver is called without a lock that other threads wait for.

use core::sync::atomic::{AtomicBool, Ordering};

use handover::{KernelTimes, Lock, Reason, monotonic};

use ash::vk;
use ash::vk::Handle;

use crate::LAYER;
use crate::buffers::{CommandBuffer, DISPATCHES, Layer};
use crate::device::{DEVICES, Device};

/// One thread at a time reads what a device has done: within a call on that device, so that it is not destroyed meanwhile.
struct Collector {
    /// Something may have ended since the reading began.
    more: AtomicBool,
    ticks: Lock<[u64; 2 * DISPATCHES]>,
}

static COLLECTORS: [Collector; DEVICES] =
    [const { Collector { more: AtomicBool::new(false), ticks: Lock::new([0; 2 * DISPATCHES]) } }; DEVICES];

/// Queues that wait at a time.
const QUEUES: usize = 16;

/// Hands over what a device has executed.
pub fn collect(key: usize) {
    let Some(collector) = LAYER.lock().devices.place(key).and_then(|at| COLLECTORS.get(at)) else { return };
    collector.more.store(true, Ordering::SeqCst);
    while collector.more.load(Ordering::SeqCst) {
        let Some(mut ticks) = collector.ticks.try_lock() else { return };
        if collector.more.swap(false, Ordering::SeqCst) {
            read_all(key, &mut ticks);
        }
    }
}

fn read_all(key: usize, ticks: &mut [u64; 2 * DISPATCHES]) {
    // Later submissions to a queue have not ended before earlier ones.
    let mut waiting = [0; QUEUES];
    loop {
        let mut layer = LAYER.lock();
        let next = layer.all().filter(|b| b.order != 0 && b.device == key && !waiting.contains(&b.queue));
        let Some(next) = next.min_by_key(|b| b.order).copied() else { break };
        let Some(of) = layer.devices.get(key).copied() else { break };
        let Some((pool, len, stale)) = layer.recording_of(&next).map(|r| (r.pool, r.len, r.stale)) else {
            break;
        };
        drop(layer);
        let Some(ticks) = ticks.get_mut(..2 * len) else { break };
        match read(&of, pool, ticks) {
            vk::Result::SUCCESS if ticks.first().is_some_and(|first| *first != stale) => {
                LAYER.lock().hand_over(&next, ticks);
            }
            vk::Result::SUCCESS | vk::Result::NOT_READY => {
                let Some(place) = waiting.iter_mut().find(|q| **q == 0) else { break };
                *place = next.queue;
            }
            _ => LAYER.lock().failed(&next, len),
        }
    }
    LAYER.lock().batch.hand_over();
}

fn read(of: &Device, pool: vk::QueryPool, ticks: &mut [u64]) -> vk::Result {
    let size = size_of_val(ticks);
    // SAFETY: a pool of this device, and room for as many 64-bit numbers as it is asked for.
    unsafe {
        (of.functions.results)(
            of.handle,
            pool,
            0,
            ticks.len() as u32,
            size,
            ticks.as_mut_ptr().cast(),
            size_of::<u64>() as u64,
            vk::QueryResultFlags::TYPE_64,
        )
    }
}

impl Layer {
    /// Whether it is still the same submission.
    fn still(&self, of: &CommandBuffer) -> bool {
        self.all().any(|b| (b.handle, b.order) == (of.handle, of.order))
    }

    fn failed(&mut self, of: &CommandBuffer, len: usize) {
        if self.still(of) {
            self.batch.lose(len, Reason::Failed);
            self.executed(of.handle);
        }
    }

    /// The times of one command buffer. A dispatch starts no earlier than the one before it ends: its first timestamp
    /// may be taken while it still waits for that.
    fn hand_over(&mut self, done: &CommandBuffer, ticks: &[u64]) {
        let seen = monotonic();
        let (Some(first), Some(last), true) = (ticks.first(), ticks.last(), self.still(done)) else { return };
        let Some(of) = self.devices.get(done.device) else { return };
        let begin = of.ticks.ns(*first);
        let time = |of: &Device, tick| Some(begin.wrapping_add(of.ticks.between(*first, tick)?));
        if let Some(end) = time(of, *last) {
            of.clock.enclose((begin, end), done.submitted, seen);
        }
        let of = *of;
        let mut before = 0;
        let (mut at, pairs) = (0, ticks.chunks_exact(2));
        for pair in pairs {
            let (Some(started), Some(ended)) = (pair.first(), pair.get(1)) else { break };
            let dispatch = self.recording_of(done).and_then(|r| r.dispatches.get(at).copied());
            let Some(dispatch) = dispatch else { break };
            at += 1;
            let (Some(started), Some(ended), Some(_)) =
                (time(&of, *started), time(&of, *ended), of.ticks.between(*started, *ended))
            else {
                self.batch.lose(1, Reason::Failed);
                continue;
            };
            let started = of.clock.to_host(started).max(before);
            let ended = of.clock.to_host(ended).max(started);
            before = ended;
            self.batch.push(KernelTimes {
                host: dispatch.host,
                queued: done.submitted,
                submitted: done.submitted,
                started,
                ended,
                name: self.shaders.name_of(dispatch.pipeline),
                queue: done.queue,
                tid: dispatch.tid,
                error_ns: of.clock.error_ns(),
            });
        }
        if let Some(recording) = self.recording_of(done) {
            recording.stale = *first;
        }
        self.executed(done.handle);
    }
}

pub fn create_pool(of: &Device) -> Option<vk::QueryPool> {
    let info = vk::QueryPoolCreateInfo {
        query_type: vk::QueryType::TIMESTAMP,
        query_count: 2 * DISPATCHES as u32,
        ..Default::default()
    };
    let mut pool = vk::QueryPool::null();
    // SAFETY: a device that exists, and room for the pool.
    let made =
        unsafe { (of.functions.create_pool)(of.handle, &raw const info, core::ptr::null(), &raw mut pool) };
    (made == vk::Result::SUCCESS && !pool.is_null()).then_some(pool)
}

pub fn destroy_pool(of: &Device, pool: vk::QueryPool) {
    // SAFETY: a pool of this device that no command buffer uses.
    unsafe { (of.functions.destroy_pool)(of.handle, pool, core::ptr::null()) };
}
