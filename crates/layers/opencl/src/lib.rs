//! An OpenCL layer: turns profiling of queues on, keeps an event for each kernel, and hands the device's times of those
//! that have ended to a recorder. Loaded by the OpenCL loader (OPENCL_LAYERS=libprofinfer-cl.so); the engine is
//! unchanged. What the engine asks for, and in which order, is what the device gets.
#![no_std]

mod api;
mod enqueued;

use core::cell::UnsafeCell;
use core::ffi::{c_char, c_void};
use core::ptr::{null, null_mut};
use core::sync::atomic::{AtomicBool, Ordering};

use api::*;
use handover::{monotonic, tid};

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    unsafe extern "C" {
        fn abort() -> !;
    }
    // SAFETY: it has no argument.
    unsafe { abort() }
}

/// A table of functions that is written while the loader starts and only read afterwards.
struct Table(UnsafeCell<[Function; TABLE]>);

// SAFETY: the loader initialises layers once, before any call reaches them.
unsafe impl Sync for Table {}

/// The functions below this layer, and those of this layer.
static NEXT: Table = Table(UnsafeCell::new([null(); TABLE]));
static OWN: Table = Table(UnsafeCell::new([null(); TABLE]));

static INITIALISED: AtomicBool = AtomicBool::new(false);

/// Called by the dynamic linker when the program ends or unloads this library.
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

extern "C" fn end() {
    enqueued::end();
}

/// The function below this layer at a place of the table.
///
/// # Safety
/// `F` is the type of that function.
unsafe fn next<F: Copy>(at: usize) -> F {
    const { assert!(size_of::<F>() == size_of::<Function>()) };
    // SAFETY: the table is no longer written; the caller vouches for the type. All places used are in the table
    // (`clInitLayer`).
    unsafe {
        let function = (*NEXT.0.get()).get(at).copied().unwrap_or(null());
        core::mem::transmute_copy(&function)
    }
}

// SAFETY, for all functions of the table: the loader calls them with the arguments of the application, which are
// passed on unchanged except where said. `next` has the type that the table's documentation gives.

unsafe extern "C" fn create_queue(
    context: Handle,
    device: Handle,
    properties: u64,
    error: *mut i32,
) -> Handle {
    // SAFETY: see above.
    unsafe {
        let create = next::<CreateQueue>(CREATE_QUEUE);
        let queue = create(context, device, properties | QUEUE_PROFILING_ENABLE, error);
        // The program gets its queue, or its own error.
        if queue.is_null() { create(context, device, properties, error) } else { queue }
    }
}

/// Pairs of a key and a value in a list of properties, at most; OpenCL 3.0 has two keys, vendors add a few.
const PAIRS: usize = 15;

unsafe extern "C" fn create_queue_with(
    context: Handle,
    device: Handle,
    list: *const u64,
    error: *mut i32,
) -> Handle {
    let mut own = [0; 2 * PAIRS + 3];
    let (mut len, mut had) = (0, false);
    // SAFETY: the application's list ends with a zero in place of a key.
    unsafe {
        while !list.is_null() && *list.add(len) != 0 {
            let (key, value) = (*list.add(len), *list.add(len + 1));
            let is_properties = key == QUEUE_PROPERTIES;
            had |= is_properties;
            let value = if is_properties { value | QUEUE_PROFILING_ENABLE } else { value };
            match own.get_mut(len..len + 2) {
                Some([to_key, to_value]) if len < 2 * PAIRS => (*to_key, *to_value) = (key, value),
                // Longer than any known: better no times than another queue.
                _ => return next::<CreateQueueWith>(CREATE_QUEUE_WITH)(context, device, list, error),
            }
            len += 2;
        }
    }
    if !had && let Some([key, value]) = own.get_mut(len..len + 2) {
        (*key, *value) = (QUEUE_PROPERTIES, QUEUE_PROFILING_ENABLE);
    }
    // SAFETY: see above; `own` ends with a zero.
    unsafe {
        let create = next::<CreateQueueWith>(CREATE_QUEUE_WITH);
        let queue = create(context, device, own.as_ptr(), error);
        if queue.is_null() { create(context, device, list, error) } else { queue }
    }
}

unsafe extern "C" fn release_queue(queue: Handle) -> i32 {
    enqueued::hand_over();
    // SAFETY: see above.
    unsafe { next::<WithObject>(RELEASE_QUEUE)(queue) }
}

unsafe extern "C" fn create_kernel(program: Handle, name: *const c_char, error: *mut i32) -> Handle {
    // SAFETY: see above; a name that the runtime has accepted is a text.
    unsafe {
        let kernel = next::<CreateKernel>(CREATE_KERNEL)(program, name, error);
        if !kernel.is_null() && !name.is_null() {
            enqueued::name(kernel, core::ffi::CStr::from_ptr(name).to_bytes());
        }
        kernel
    }
}

/// The other ways to make kernels: a handle may be that of an earlier kernel with another name.
unsafe extern "C" fn create_kernels(program: Handle, n: u32, kernels: *mut Handle, made: *mut u32) -> i32 {
    let mut own = 0;
    let made = if made.is_null() { &raw mut own } else { made };
    // SAFETY: see above; without room for kernels, only their number is asked for. No more than `n` were stored.
    unsafe {
        let status = next::<CreateKernels>(CREATE_KERNELS)(program, n, kernels, made);
        if status == SUCCESS && !kernels.is_null() {
            for at in 0..(*made).min(n) as usize {
                enqueued::ask_name(*kernels.add(at));
            }
        }
        status
    }
}

unsafe extern "C" fn clone_kernel(of: Handle, error: *mut i32) -> Handle {
    // SAFETY: see above.
    let kernel = unsafe { next::<CloneKernel>(CLONE_KERNEL)(of, error) };
    if !kernel.is_null() {
        enqueued::ask_name(kernel);
    }
    kernel
}

unsafe extern "C" fn nd_range(
    queue: Handle,
    kernel: Handle,
    dims: u32,
    offset: *const usize,
    global: *const usize,
    local: *const usize,
    n_events: u32,
    events: *const Handle,
    event: *mut Handle,
) -> i32 {
    let mut own = null_mut();
    let wanted = if event.is_null() { &raw mut own } else { event };
    // Afterwards another thread may have released it.
    let name = if kernel.is_null() { 0 } else { enqueued::name_of(kernel) };
    let host = monotonic();
    // SAFETY: see above; where the application wants no event, `own` takes it.
    let status = unsafe {
        next::<NdRange>(ND_RANGE)(queue, kernel, dims, offset, global, local, n_events, events, wanted)
    };
    let returned = monotonic();
    if status == SUCCESS {
        if !event.is_null() {
            // SAFETY: the call has stored an event; the application's reference remains its own.
            unsafe {
                own = *event;
                next::<WithObject>(RETAIN_EVENT)(own);
            }
        }
        if !own.is_null() {
            enqueued::push(enqueued::Enqueued { event: own, queue, name, host, returned, tid: tid() });
        }
    }
    status
}

unsafe extern "C" fn finish(queue: Handle) -> i32 {
    // SAFETY: see above.
    let status = unsafe { next::<WithObject>(FINISH)(queue) };
    enqueued::hand_over();
    status
}

unsafe extern "C" fn wait_for_events(n: u32, events: *const Handle) -> i32 {
    // SAFETY: see above.
    let status = unsafe { next::<WaitForEvents>(WAIT_FOR_EVENTS)(n, events) };
    enqueued::hand_over();
    status
}

unsafe extern "C" fn read_buffer(
    queue: Handle,
    buffer: Handle,
    blocking: u32,
    offset: usize,
    size: usize,
    to: Handle,
    n_events: u32,
    events: *const Handle,
    event: *mut Handle,
) -> i32 {
    // SAFETY: see above.
    let status = unsafe {
        next::<ReadBuffer>(READ_BUFFER)(queue, buffer, blocking, offset, size, to, n_events, events, event)
    };
    if blocking != 0 {
        enqueued::hand_over();
    }
    status
}

/// What the loader asks first: the version of the interface, and a name.
///
/// # Safety
/// `value` has room for `size` bytes, `size_ret` for one number; both may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clGetLayerInfo(
    what: u32,
    size: usize,
    value: *mut c_void,
    size_ret: *mut usize,
) -> i32 {
    let name = b"profinfer\0";
    let (from, len): (*const u8, usize) = match what {
        LAYER_API_VERSION => ((&raw const VERSION_100).cast(), size_of_val(&VERSION_100)),
        LAYER_NAME => (name.as_ptr(), name.len()),
        _ => return INVALID_VALUE,
    };
    if !value.is_null() && size < len {
        return INVALID_VALUE;
    }
    // SAFETY: the lengths were compared; the caller vouches for the rest.
    unsafe {
        if !value.is_null() {
            core::ptr::copy_nonoverlapping(from, value.cast(), len);
        }
        if !size_ret.is_null() {
            *size_ret = len;
        }
    }
    SUCCESS
}

/// Takes the functions below this layer, and gives this layer's.
///
/// # Safety
/// Called once by the loader, before any other call: `below` are `n` functions, the other two have room for a result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clInitLayer(
    n: u32,
    below: *const Function,
    n_ret: *mut u32,
    own: *mut *const Function,
) -> i32 {
    if INITIALISED.swap(true, Ordering::Relaxed) && !n_ret.is_null() && !own.is_null() {
        // Named twice in the program's list of layers. Once is enough: its functions would call themselves.
        // SAFETY: the caller vouches for the pointers.
        unsafe { (*n_ret, *own) = (n, below) };
        return SUCCESS;
    }
    let n = (n as usize).min(TABLE);
    if below.is_null() || n_ret.is_null() || own.is_null() || n <= CREATE_QUEUE_WITH {
        return INVALID_VALUE;
    }
    let functions: [(usize, Function); 10] = [
        (CREATE_QUEUE, create_queue as *const c_void),
        (CREATE_QUEUE_WITH, create_queue_with as *const c_void),
        (RELEASE_QUEUE, release_queue as *const c_void),
        (CREATE_KERNEL, create_kernel as *const c_void),
        (CREATE_KERNELS, create_kernels as *const c_void),
        (CLONE_KERNEL, clone_kernel as *const c_void),
        (ND_RANGE, nd_range as *const c_void),
        (FINISH, finish as *const c_void),
        (WAIT_FOR_EVENTS, wait_for_events as *const c_void),
        (READ_BUFFER, read_buffer as *const c_void),
    ];
    // SAFETY: no other call has been made yet, so nobody else uses the tables; the caller vouches for the pointers.
    unsafe {
        let (next, mine) = (&mut *NEXT.0.get(), &mut *OWN.0.get());
        for (at, (next, mine)) in next.iter_mut().zip(mine.iter_mut()).enumerate().take(n) {
            *next = *below.add(at);
            *mine = *next;
        }
        for (at, function) in functions {
            // An older loader has a shorter table.
            if let Some(place) = mine.get_mut(at).filter(|_| at < n) {
                *place = function;
            }
        }
        *own = mine.as_ptr();
        *n_ret = n as u32;
    }
    SUCCESS
}

/// The name of [`clInitLayer`] for loaders of OpenCL 3.1.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clInitLayerWithProperties(
    n: u32,
    below: *const Function,
    n_ret: *mut u32,
    own: *mut *const Function,
    _properties: *const isize,
) -> i32 {
    // SAFETY: the caller vouches for the same.
    unsafe { clInitLayer(n, below, n_ret, own) }
}
