//! Kernels whose times are not known yet: each with an event of its own, until it has ended. No lock that another thread
//! waits for is held while the runtime is called: it may call back into the program, and from there into this layer.

use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, Ordering};

use handover::{Batch, ClockMap, Handles, KernelTimes, Lock, Names, OPENCL, Reason};

use crate::api::*;
use crate::next;

/// A kernel that the host has enqueued.
#[derive(Clone, Copy)]
pub struct Enqueued {
    /// With a reference of ours; null: its times are on their way.
    pub event: Handle,
    pub queue: Handle,
    /// Address of its name; 0: not known.
    pub name: u64,
    /// Host times before and after the call, ns.
    pub host: u64,
    pub returned: u64,
    pub tid: u32,
}

/// Kernels that may be waiting; the times of more are lost. An engine waits for its device at least once a token.
const WAITING: usize = 8192;
/// Interval, in enqueued kernels, between two checks for ended ones while the host does not wait.
const EVERY: usize = 256;
/// Number of running kernels of a queue after which its check stops. Later ones can have ended only in an out-of-order
/// queue.
const UNENDED: u32 = 16;
/// Queues with a clock and a check of their own.
const QUEUES: usize = 16;
/// Kernels that are checked at a time.
const CHUNK: usize = 32;

/// What threads that enqueue share.
struct Waiting {
    kernels: [Enqueued; WAITING],
    len: usize,
    /// Kernels that found no place.
    no_room: usize,
    handles: Handles,
    names: Names,
}

// SAFETY: handles are used with OpenCL's functions only, which take them from any thread.
unsafe impl Send for Waiting {}

/// What the one thread has that looks for ended kernels.
struct Collector {
    clocks: [(usize, ClockMap); QUEUES],
    /// Running kernels, by queue, in the check under way.
    unended: [(usize, u32); QUEUES],
    batch: Batch<OPENCL>,
}

const NOTHING: Enqueued =
    Enqueued { event: null_mut(), queue: null_mut(), name: 0, host: 0, returned: 0, tid: 0 };

static WAITING_KERNELS: Lock<Waiting> = Lock::new(Waiting {
    kernels: [NOTHING; WAITING],
    len: 0,
    no_room: 0,
    handles: Handles::new(),
    names: Names::new(),
});

static COLLECTOR: Lock<Collector> = Lock::new(Collector {
    clocks: [(0, ClockMap::new()); QUEUES],
    unended: [(0, 0); QUEUES],
    batch: Batch::new(),
});

/// Kernels may have ended since the collector began.
static MORE: AtomicBool = AtomicBool::new(false);

/// A kernel has this name.
pub fn name(kernel: Handle, name: &[u8]) -> u64 {
    let mut state = WAITING_KERNELS.lock();
    let address = state.names.address(name);
    state.handles.set(kernel as u64, address);
    address
}

/// Asks the runtime for the name of a kernel that exists.
pub fn ask_name(kernel: Handle) -> u64 {
    let mut text = [0u8; 64];
    // SAFETY: room for a text of that size; the caller has the kernel.
    let asked = unsafe {
        let to = text.as_mut_ptr().cast();
        next::<GetInfo>(KERNEL_INFO)(kernel, KERNEL_FUNCTION_NAME, text.len(), to, null_mut())
    };
    if asked == SUCCESS {
        return name(kernel, &text);
    }
    // A longer name than there is room for.
    WAITING_KERNELS.lock().handles.set(kernel as u64, 0);
    0
}

/// Address of the name of a kernel that exists; 0: it has none.
pub fn name_of(kernel: Handle) -> u64 {
    let known = WAITING_KERNELS.lock().handles.get(kernel as u64);
    known.unwrap_or_else(|| ask_name(kernel))
}

/// Keeps a kernel until its times are known.
pub fn push(kernel: Enqueued) {
    let mut state = WAITING_KERNELS.lock();
    let len = state.len;
    let room = state.kernels.get_mut(len).map(|place| *place = kernel).is_some();
    if room {
        state.len += 1;
    } else {
        state.no_room = state.no_room.saturating_add(1);
    }
    let many = state.len.is_multiple_of(EVERY);
    drop(state);
    if !room {
        release(kernel.event);
    }
    if many {
        hand_over();
    }
}

fn release(event: Handle) {
    // SAFETY: a reference that `nd_range` took, and that is not used any more.
    unsafe { next::<WithObject>(RELEASE_EVENT)(event) };
}

/// Hands over the kernels that have ended. If another thread is doing that, it looks once more.
pub fn hand_over() {
    MORE.store(true, Ordering::SeqCst);
    while MORE.load(Ordering::SeqCst) {
        let Some(mut collector) = COLLECTOR.try_lock() else { return };
        if MORE.swap(false, Ordering::SeqCst) {
            collector.collect();
        }
    }
}

/// The program ends: what is still on its way has no times. The runtime may be gone, and is not called. A child that was
/// forked has nothing on its way: what it knows of is its parent's.
pub fn end() {
    if handover::is_child() {
        return;
    }
    if let (Some(mut collector), Some(mut state)) = (COLLECTOR.try_lock(), WAITING_KERNELS.try_lock()) {
        let left = state.kernels.iter().take(state.len).filter(|k| !k.event.is_null()).count();
        collector.batch.lose(left, Reason::Unended);
        collector.batch.lose(state.no_room, Reason::NoRoom);
        (state.len, state.no_room) = (0, 0);
        collector.batch.hand_over();
    }
}

impl Waiting {
    /// Forgets those of the first `n` that are on their way; the others keep their order.
    fn compact(&mut self, n: usize) {
        let (len, mut kept) = (self.len, 0);
        for at in 0..len {
            let Some(kernel) = self.kernels.get(at).copied() else { break };
            if at < n && kernel.event.is_null() {
                continue;
            }
            if let Some(place) = self.kernels.get_mut(kept) {
                *place = kernel;
                kept += 1;
            }
        }
        self.len = kept;
    }
}

impl Collector {
    /// Hands over the kernels that have ended. Meanwhile others only add to those that are waiting.
    fn collect(&mut self) {
        self.unended = [(0, 0); QUEUES];
        let n = WAITING_KERNELS.lock().len;
        for first in (0..n).step_by(CHUNK) {
            let mut chunk = [NOTHING; CHUNK];
            let state = WAITING_KERNELS.lock();
            state.kernels.iter().skip(first).zip(&mut chunk).take(n - first).for_each(|(k, to)| *to = *k);
            drop(state);
            for kernel in &mut chunk {
                if !kernel.event.is_null() && self.take(kernel) {
                    kernel.event = null_mut();
                }
            }
            let mut state = WAITING_KERNELS.lock();
            let places = state.kernels.iter_mut().skip(first).zip(&chunk).take(n - first);
            places.for_each(|(to, k)| to.event = k.event);
        }
        let mut state = WAITING_KERNELS.lock();
        state.compact(n);
        self.batch.lose(core::mem::take(&mut state.no_room), Reason::NoRoom);
        drop(state);
        self.batch.hand_over();
    }

    /// Whether the kernel has ended, well or not; then its times are on their way.
    fn take(&mut self, kernel: &Enqueued) -> bool {
        let queue = kernel.queue as usize;
        let running = self.unended.iter().position(|u| u.0 == queue || u.0 == 0);
        let running = running.and_then(|at| self.unended.get_mut(at));
        if running.as_ref().is_some_and(|r| r.1 >= UNENDED) {
            return false;
        }
        let mut status = COMPLETE + 1;
        // SAFETY: an event with a reference of ours, and room for its status.
        let asked = unsafe {
            let to = (&raw mut status).cast();
            next::<GetInfo>(EVENT_INFO)(
                kernel.event,
                EVENT_EXECUTION_STATUS,
                size_of::<i32>(),
                to,
                null_mut(),
            )
        };
        if asked == SUCCESS && status > COMPLETE {
            if let Some(running) = running {
                *running = (queue, running.1 + 1);
            }
            return false;
        }
        match if status == COMPLETE { times(kernel.event) } else { Err(Reason::Failed) } {
            Ok(stamps) => self.ended(kernel, stamps),
            Err(why) => self.batch.lose(1, why),
        }
        release(kernel.event);
        true
    }

    fn ended(&mut self, kernel: &Enqueued, [queued, submitted, started, ended]: [u64; 4]) {
        let clock = self.clock(kernel.queue);
        clock.observe(queued, kernel.host, kernel.returned);
        let clock = *clock;
        self.batch.push(KernelTimes {
            host: kernel.host,
            queued: clock.to_host(queued),
            submitted: clock.to_host(submitted),
            started: clock.to_host(started),
            ended: clock.to_host(ended),
            name: kernel.name,
            queue: kernel.queue as u64,
            tid: kernel.tid,
            error_ns: clock.error_ns(),
        });
    }

    /// The clock of a queue; the oldest makes room.
    fn clock(&mut self, queue: Handle) -> &mut ClockMap {
        let queue = queue as usize;
        let found = self.clocks.iter().position(|c| c.0 == queue).unwrap_or_else(|| {
            self.clocks.rotate_right(1);
            0
        });
        let [first, rest @ ..] = &mut self.clocks;
        let clock = if found == 0 { first } else { rest.get_mut(found - 1).unwrap_or(first) };
        if clock.0 != queue {
            *clock = (queue, ClockMap::new());
        }
        &mut clock.1
    }
}

/// Queued, submitted, started, ended on the device's clock.
fn times(event: Handle) -> Result<[u64; 4], Reason> {
    let mut times = [0u64; 4];
    for (what, time) in PROFILING.iter().zip(&mut times) {
        // SAFETY: an event with a reference of ours, and room for one time.
        let asked = unsafe {
            let to = core::ptr::from_mut(time).cast();
            next::<GetInfo>(PROFILING_INFO)(event, *what, size_of::<u64>(), to, null_mut())
        };
        match asked {
            SUCCESS => {}
            PROFILING_INFO_NOT_AVAILABLE => return Err(Reason::Untimed),
            _ => return Err(Reason::Failed),
        }
    }
    let [_, _, started, ended] = times;
    // Intel's runtime says of a kernel that it did not start, because an event before it failed, that it has ended.
    if started == 0 || ended < started { Err(Reason::Failed) } else { Ok(times) }
}
