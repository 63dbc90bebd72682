//! A library that CUDA's driver loads (CUDA_INJECTION64_PATH): asks CUPTI for the times of kernels, and hands them to a
//! recorder. The engine is unchanged. CUPTI is found at run time; without it, or with a version whose records are not
//! known, nothing is recorded, and a line on the standard error says why.
#![cfg_attr(not(test), no_std)]
#![cfg_attr(
    test,
    allow(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, reason = "a test program")
)]

mod api;
mod collect;
mod find;
mod launches;
mod records;
mod say;

use core::ffi::c_void;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, Ordering};

use api::*;
use handover::{Lock, monotonic, tid};
use say::Problem;

#[cfg(not(test))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    unsafe extern "C" {
        fn abort() -> !;
    }
    // SAFETY: it has no argument.
    unsafe { abort() }
}

/// Interval in which CUPTI looks for full buffers, ms.
const FLUSH_MS: u32 = 100;

/// What the driver returns from `InitializeInjection`: the library stays loaded, whatever it has found.
const LOADED: i32 = 1;

static FLUSH: Lock<Option<unsafe extern "C" fn(u32) -> i32>> = Lock::new(None);

/// Called by the driver while CUDA is initialised.
#[unsafe(no_mangle)]
pub extern "C" fn InitializeInjection() -> i32 {
    static CALLED: AtomicBool = AtomicBool::new(false);
    if !CALLED.swap(true, Ordering::AcqRel)
        && let Err(problem) = set_up()
    {
        say::problem(problem);
    }
    LOADED
}

/// Makes CUPTI report kernels and the calls that launch them.
fn set_up() -> Result<(), Problem> {
    let library = find::library().ok_or(Problem::NoLibrary)?;
    let cupti = find::functions(library).ok_or(Problem::NoFunction)?;
    let call = |name, status| if status == SUCCESS { Ok(()) } else { Err(Problem::Refused(name, status)) };
    let (mut version, mut subscriber) = (0, null_mut());
    // SAFETY: all calls of CUPTI here have the types of its headers, and what they get stays valid.
    unsafe {
        call("cuptiGetVersion", (cupti.version)(&raw mut version))?;
        let size = records::size(version).ok_or(Problem::Unknown(version))?;
        call("cuptiSubscribe", (cupti.subscribe)(&raw mut subscriber, launching, null_mut()))?;
        collect::start(cupti, size);
        if let Err(problem) = enable(&cupti, subscriber, call) {
            (cupti.unsubscribe)(subscriber);
            return Err(problem);
        }
    }
    *FLUSH.lock() = Some(cupti.flush);
    at_exit();
    Ok(())
}

/// # Safety
/// The subscriber is CUPTI's.
unsafe fn enable(
    cupti: &Cupti,
    subscriber: *mut c_void,
    call: impl Fn(&'static str, i32) -> Result<(), Problem>,
) -> Result<(), Problem> {
    // SAFETY: see `set_up`.
    unsafe {
        call("cuptiActivityRegisterCallbacks", (cupti.register)(collect::requested, collect::completed))?;
        // Before any kernel, or they have none of the two times.
        call("cuptiActivityEnableLatencyTimestamps", (cupti.latency)(1))?;
        call("cuptiActivityEnable", (cupti.enable)(CONCURRENT_KERNEL))?;
        for (domain, id) in LAUNCHES {
            // An older CUPTI does not know the newest.
            (cupti.enable_callback)(1, subscriber, domain, id);
        }
        if let Some(set) = cupti.flush_period {
            set(FLUSH_MS);
        }
    }
    Ok(())
}

/// A call that launches a kernel begins or ends.
unsafe extern "C" fn launching(_: *mut c_void, domain: u32, id: u32, data: *const CallbackData) {
    if data.is_null() {
        return;
    }
    // SAFETY: CUPTI's, of the type that these domains have.
    let (site, correlation) = unsafe { ((*data).site, (*data).correlation) };
    if site == ENTER {
        let of_graph = GRAPHS.contains(&(domain, id));
        collect::LAUNCHES.lock().begin(correlation, monotonic(), tid(), of_graph);
    }
}

/// What CUPTI still has when the program ends is asked for then; not by a child that was forked, in which CUDA does not work.
fn at_exit() {
    unsafe extern "C" {
        fn __cxa_atexit(
            function: unsafe extern "C" fn(*mut c_void),
            argument: *mut c_void,
            library: *mut c_void,
        ) -> i32;
    }
    unsafe extern "C" fn flush(_: *mut c_void) {
        if handover::is_child() {
            return;
        }
        let flush = *FLUSH.lock();
        if let Some(flush) = flush {
            // SAFETY: CUPTI's own function.
            unsafe { flush(FLUSH_FORCED) };
        }
    }
    // SAFETY: the driver never unloads this library.
    unsafe { __cxa_atexit(flush, null_mut(), null_mut()) };
}
