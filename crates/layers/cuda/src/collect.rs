//! Buffers that CUPTI fills with records, and what is made of them.

use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, Ordering};

use handover::{
    Batch, CUPTI, CUPTI_GRAPH, ClockMap, Handles, KernelTimes, Lock, NAME, Names, Reason, monotonic,
};

use crate::api::*;
use crate::launches::Launches;
use crate::records::{self, Kernel, Unread};

/// Bytes of a buffer: some 130 kernels. CUPTI gives a buffer back when it is full, so a small one comes early.
const BUFFER: usize = 32 * 1024;
/// Buffers that CUPTI may hold at a time; records that find none are counted as lost.
const BUFFERS: usize = 64;
/// Readings of CUPTI's clock for one buffer: the closest counts.
const READINGS: usize = 4;

/// Records are aligned to 8 bytes (ACTIVITY_RECORD_ALIGNMENT).
#[repr(C, align(4096))]
struct Buffer {
    bytes: UnsafeCell<[u8; BUFFER]>,
    lent: AtomicBool,
}

// SAFETY: who sets `lent` has the bytes, until CUPTI gives them back.
unsafe impl Sync for Buffer {}

static POOL: [Buffer; BUFFERS] =
    [const { Buffer { bytes: UnsafeCell::new([0; BUFFER]), lent: AtomicBool::new(false) } }; BUFFERS];

pub static LAUNCHES: Lock<Launches> = Lock::new(Launches::new());

static STATE: Lock<State> = Lock::new(State {
    cupti: None,
    size: 0,
    clock: ClockMap::new(),
    observed: false,
    names: Names::new(),
    known: Handles::new(),
    kernels: Batch::new(),
    of_graphs: Batch::new(),
});

struct State {
    cupti: Option<Cupti>,
    /// Bytes of a kernel's record.
    size: usize,
    clock: ClockMap,
    /// Whether the clock was ever read.
    observed: bool,
    names: Names,
    /// Our address of each name, by CUPTI's.
    known: Handles,
    kernels: Batch<CUPTI>,
    of_graphs: Batch<CUPTI_GRAPH>,
}

/// From now on, buffers are read: kernels' records have this size.
pub fn start(cupti: Cupti, size: usize) {
    let mut state = STATE.lock();
    (state.cupti, state.size) = (Some(cupti), size);
    state.read_clock();
}

/// CUPTI asks for an empty buffer.
///
/// # Safety
/// The pointers have room for a result.
pub unsafe extern "C" fn requested(buffer: *mut *mut u8, size: *mut usize, max_records: *mut usize) {
    let free = POOL
        .iter()
        .find(|b| b.lent.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok());
    // SAFETY: the caller vouches for the pointers. 0 records at most: as many as there is room for.
    unsafe {
        *buffer = free.map_or(null_mut(), |b| b.bytes.get().cast());
        *size = if free.is_some() { BUFFER } else { 0 };
        *max_records = 0;
    }
}

/// CUPTI gives a buffer back, with `valid` bytes of records.
///
/// # Safety
/// The buffer is one that it got.
pub unsafe extern "C" fn completed(
    context: *mut c_void,
    stream: u32,
    buffer: *mut u8,
    _size: usize,
    valid: usize,
) {
    let Some(own) = POOL.iter().find(|b| b.bytes.get().cast() == buffer) else { return };
    let mut state = STATE.lock();
    state.read_clock();
    // SAFETY: the buffer is ours again, and nobody else has it.
    unsafe { state.read(buffer, valid.min(BUFFER)) };
    state.count_dropped(context, stream);
    state.kernels.hand_over();
    state.of_graphs.hand_over();
    drop(state);
    own.lent.store(false, Ordering::Release);
}

impl State {
    /// Compares CUPTI's clock with the host's.
    fn read_clock(&mut self) {
        let Some(cupti) = self.cupti else { return };
        for _ in 0..READINGS {
            let (from, mut time) = (monotonic(), 0);
            // SAFETY: room for a time.
            let status = unsafe { (cupti.timestamp)(&raw mut time) };
            let until = monotonic();
            if status == SUCCESS && time != 0 {
                self.clock.observe(time, from, until);
                self.observed = true;
            }
        }
    }

    /// Reads all records of a buffer.
    ///
    /// # Safety
    /// The first `valid` bytes of the buffer can be read, and names that its records point to are texts.
    unsafe fn read(&mut self, buffer: *mut u8, valid: usize) {
        let Some(cupti) = self.cupti else { return };
        let (mut record, mut next) = (null_mut(), 0);
        loop {
            // SAFETY: the buffer that CUPTI has filled, and the record that it gave before.
            let status = unsafe { (cupti.next_record)(buffer, valid, &raw mut record) };
            let at = (record as usize).wrapping_sub(buffer as usize);
            // Each lies behind the one before, whatever CUPTI says.
            if status != SUCCESS || record.is_null() || at < next || at >= valid {
                return;
            }
            next = at + 1;
            // SAFETY: from the record to the end of what can be read.
            let bytes = unsafe { core::slice::from_raw_parts(record.cast_const(), valid - at) };
            match records::kernel(bytes, self.size) {
                // SAFETY: the caller vouches for the name.
                Ok(kernel) => unsafe { self.add(&kernel) },
                Err(Unread::OtherKind) => {}
                Err(Unread::Truncated) => self.kernels.lose(1, Reason::Failed),
            }
        }
    }

    /// Puts a kernel on the way to the recorder.
    ///
    /// # Safety
    /// Its name is a text, or null.
    unsafe fn add(&mut self, kernel: &Kernel) {
        let launch = LAUNCHES.lock().get(kernel.correlation);
        if !self.observed || kernel.start == 0 || kernel.end < kernel.start {
            return self.kernels.lose(1, Reason::Failed);
        }
        let Some(launch) = launch else { return self.kernels.lose(1, Reason::NoRoom) };
        // Kernels of a graph have no times of their own for these: the call gave all of them to the device.
        let queued = if kernel.queued == 0 { launch.host } else { self.clock.to_host(kernel.queued) };
        let submitted = if kernel.submitted == 0 { queued } else { self.clock.to_host(kernel.submitted) };
        let times = KernelTimes {
            host: launch.host,
            queued,
            submitted,
            started: self.clock.to_host(kernel.start),
            ended: self.clock.to_host(kernel.end),
            // SAFETY: the caller vouches for it.
            name: unsafe { self.name(kernel.name) },
            queue: u64::from(kernel.context) << 32 | u64::from(kernel.stream),
            tid: launch.tid,
            error_ns: self.clock.error_ns(),
        };
        if kernel.in_graph || launch.of_graph {
            self.of_graphs.push(times);
        } else {
            self.kernels.push(times);
        }
    }

    /// Our address of a name: CUPTI's text is not there for as long as the process is.
    ///
    /// # Safety
    /// The name is a text, or null.
    unsafe fn name(&mut self, theirs: u64) -> u64 {
        if theirs == 0 {
            return 0;
        }
        let text = theirs as *const u8;
        let mut name = [0; NAME];
        for (at, to) in name.iter_mut().enumerate().take(NAME - 1) {
            // SAFETY: it has not ended yet.
            *to = unsafe { *text.add(at) };
            if *to == 0 {
                break;
            }
        }
        if let Some(ours) = self.known.get(theirs)
            && ours != 0
            // SAFETY: an address of `names`, whose texts have this size and never change.
            && unsafe { *(ours as *const [u8; NAME]) } == name
        {
            return ours;
        }
        let ours = self.names.address(&name);
        self.known.set(theirs, ours);
        ours
    }

    /// Counts the records for which there was no buffer.
    fn count_dropped(&mut self, context: *mut c_void, stream: u32) {
        let Some(cupti) = self.cupti else { return };
        let mut dropped = 0;
        // SAFETY: the context and stream are CUPTI's own, and there is room for a number.
        let status = unsafe { (cupti.dropped)(context, stream, &raw mut dropped) };
        if status == SUCCESS && dropped > 0 {
            self.kernels.lose(dropped, Reason::NoRoom);
        }
    }
}
