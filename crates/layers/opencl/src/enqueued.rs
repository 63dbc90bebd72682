//! Kernels whose times are not known yet: each with an event of its own, until it has ended.

use core::ptr::null_mut;

use handover::{Batch, ClockMap, Handles, KernelTimes, Lock, Names, OPENCL};

use crate::api::*;
use crate::next;

/// A kernel that the host has enqueued.
#[derive(Clone, Copy)]
pub struct Enqueued {
    /// With a reference of ours.
    pub event: Handle,
    pub queue: Handle,
    pub kernel: Handle,
    /// Host times before and after the call, ns.
    pub host: u64,
    pub returned: u64,
    pub tid: u32,
}

/// Kernels that may be waiting; the times of more are lost. An engine waits for its device at least once a token.
const WAITING: usize = 8192;
/// Interval, in enqueued kernels, between two checks for ended ones while the host does not wait.
const EVERY: usize = 256;
/// Number of running kernels after which a check stops. Later ones can have ended only in an out-of-order queue.
const UNENDED: usize = 16;
/// Queues with a clock of their own.
const QUEUES: usize = 16;

struct Waiting {
    kernels: [Enqueued; WAITING],
    len: usize,
    clocks: [(usize, ClockMap); QUEUES],
    handles: Handles,
    names: Names,
    batch: Batch<OPENCL>,
}

// SAFETY: handles are used with OpenCL's functions only, which take them from any thread.
unsafe impl Send for Waiting {}

const NOTHING: Enqueued =
    Enqueued { event: null_mut(), queue: null_mut(), kernel: null_mut(), host: 0, returned: 0, tid: 0 };

static STATE: Lock<Waiting> = Lock::new(Waiting {
    kernels: [NOTHING; WAITING],
    len: 0,
    clocks: [(0, ClockMap::new()); QUEUES],
    handles: Handles::new(),
    names: Names::new(),
    batch: Batch::new(),
});

/// A kernel has this name.
pub fn name(kernel: Handle, name: &[u8]) {
    let mut state = STATE.lock();
    let address = state.names.address(name);
    state.handles.set(kernel as u64, address);
}

/// Keeps a kernel until its times are known.
pub fn push(kernel: Enqueued) {
    let mut state = STATE.lock();
    let len = state.len;
    match state.kernels.get_mut(len) {
        Some(place) => {
            *place = kernel;
            state.len += 1;
        }
        None => {
            state.batch.lose(1);
            release(kernel.event);
        }
    }
    let many = state.len.is_multiple_of(EVERY);
    drop(state);
    if many {
        hand_over(false);
    }
}

fn release(event: Handle) {
    // SAFETY: a reference that `nd_range` took, and that is not used any more.
    unsafe { next::<WithObject>(RELEASE_EVENT)(event) };
}

/// Hands over the kernels that have ended. If another thread is doing that, `wait` decides whether to be second.
pub fn hand_over(wait: bool) {
    let state = if wait { Some(STATE.lock()) } else { STATE.try_lock() };
    if let Some(mut state) = state {
        state.collect();
    }
}

impl Waiting {
    /// Hands over the kernels that have ended; the others keep their order.
    fn collect(&mut self) {
        let (mut kept, mut unended) = (0, 0);
        for at in 0..self.len {
            let Some(kernel) = self.kernels.get(at).copied() else { break };
            let ended = unended < UNENDED && self.ended(&kernel);
            if !ended {
                unended += 1;
                if let Some(place) = self.kernels.get_mut(kept) {
                    *place = kernel;
                    kept += 1;
                }
            }
        }
        self.len = kept;
        self.batch.hand_over();
    }

    /// Whether the kernel has ended, well or not; then its times are on their way.
    fn ended(&mut self, kernel: &Enqueued) -> bool {
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
            return false;
        }
        let times = if status == COMPLETE { times(kernel.event) } else { None };
        match times {
            Some([queued, submitted, started, ended]) => {
                let clock = self.clock(kernel.queue);
                clock.observe(queued, kernel.host, kernel.returned);
                let clock = *clock;
                let times = KernelTimes {
                    host: kernel.host,
                    queued: clock.to_host(queued),
                    submitted: clock.to_host(submitted),
                    started: clock.to_host(started),
                    ended: clock.to_host(ended),
                    name: self.name_of(kernel.kernel),
                    queue: kernel.queue as u64,
                    tid: kernel.tid,
                    error_ns: clock.error_ns(),
                };
                self.batch.push(times);
            }
            None => self.batch.lose(1),
        }
        release(kernel.event);
        true
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

    /// Address of the name of a kernel that was created through this layer or elsewhere.
    fn name_of(&mut self, kernel: Handle) -> u64 {
        if let Some(address) = self.handles.get(kernel as u64) {
            return address;
        }
        let mut text = [0u8; 64];
        // SAFETY: room for a text of that size. The kernel may have been released; runtimes check handles, and the
        // event that we hold keeps its kernel.
        let asked = unsafe {
            let to = text.as_mut_ptr().cast();
            next::<GetInfo>(KERNEL_INFO)(kernel, KERNEL_FUNCTION_NAME, text.len(), to, null_mut())
        };
        let address = if asked == SUCCESS { self.names.address(&text) } else { 0 };
        self.handles.set(kernel as u64, address);
        address
    }
}

/// Queued, submitted, started, ended on the device's clock; None: the queue has no times.
fn times(event: Handle) -> Option<[u64; 4]> {
    let mut times = [0u64; 4];
    for (what, time) in PROFILING.iter().zip(&mut times) {
        // SAFETY: an event with a reference of ours, and room for one time.
        let asked = unsafe {
            let to = core::ptr::from_mut(time).cast();
            next::<GetInfo>(PROFILING_INFO)(event, *what, size_of::<u64>(), to, null_mut())
        };
        if asked != SUCCESS {
            return None;
        }
    }
    Some(times)
}
