//! What the library uses of CUPTI: types and constants of cupti_activity.h, cupti_callbacks.h, cupti_runtime_cbid.h and
//! cupti_driver_cbid.h, equal in CUDA 11.7 to 13.5. tests/gpu/cupti_layout.c holds them against the headers.

use core::ffi::c_void;

pub const SUCCESS: i32 = 0;
/// CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL.
pub const CONCURRENT_KERNEL: u32 = 10;
/// CUPTI_ACTIVITY_FLAG_FLUSH_FORCED.
pub const FLUSH_FORCED: u32 = 1;
/// CUPTI_API_ENTER.
pub const ENTER: u32 = 0;
/// CUPTI_CB_DOMAIN_DRIVER_API.
pub const DRIVER: u32 = 1;
/// CUPTI_CB_DOMAIN_RUNTIME_API.
pub const RUNTIME: u32 = 2;

/// The calls that launch kernels: domain and id (CUPTI_RUNTIME_TRACE_CBID_..., CUPTI_DRIVER_TRACE_CBID_...).
pub const LAUNCHES: [(u32, u32); 25] = [
    (RUNTIME, 13),  // cudaLaunch_v3020
    (RUNTIME, 211), // cudaLaunchKernel_v7000
    (RUNTIME, 213), // cudaLaunch_ptsz_v7000
    (RUNTIME, 214), // cudaLaunchKernel_ptsz_v7000
    (RUNTIME, 269), // cudaLaunchCooperativeKernel_v9000
    (RUNTIME, 270), // cudaLaunchCooperativeKernel_ptsz_v9000
    (RUNTIME, 272), // cudaLaunchCooperativeKernelMultiDevice_v9000
    (RUNTIME, 311), // cudaGraphLaunch_v10000
    (RUNTIME, 312), // cudaGraphLaunch_ptsz_v10000
    (RUNTIME, 430), // cudaLaunchKernelExC_v11060
    (RUNTIME, 431), // cudaLaunchKernelExC_ptsz_v11060
    (RUNTIME, 505), // __cudaLaunchKernel_v13000
    (RUNTIME, 506), // __cudaLaunchKernel_ptsz_v13000
    (DRIVER, 115),  // cuLaunch
    (DRIVER, 116),  // cuLaunchGrid
    (DRIVER, 117),  // cuLaunchGridAsync
    (DRIVER, 307),  // cuLaunchKernel
    (DRIVER, 442),  // cuLaunchKernel_ptsz
    (DRIVER, 477),  // cuLaunchCooperativeKernel
    (DRIVER, 478),  // cuLaunchCooperativeKernel_ptsz
    (DRIVER, 480),  // cuLaunchCooperativeKernelMultiDevice
    (DRIVER, 514),  // cuGraphLaunch
    (DRIVER, 515),  // cuGraphLaunch_ptsz
    (DRIVER, 652),  // cuLaunchKernelEx
    (DRIVER, 653),  // cuLaunchKernelEx_ptsz
];

/// Those of them that launch a CUDA graph.
pub const GRAPHS: [(u32, u32); 4] = [(RUNTIME, 311), (RUNTIME, 312), (DRIVER, 514), (DRIVER, 515)];

/// CUpti_CallbackData.
#[repr(C)]
pub struct CallbackData {
    pub site: u32,
    pub function: *const u8,
    pub params: *const c_void,
    pub returned: *mut c_void,
    pub symbol: *const u8,
    pub context: *mut c_void,
    pub context_uid: u32,
    pub correlation_data: *mut u64,
    pub correlation: u32,
}

const _: () = {
    assert!(core::mem::offset_of!(CallbackData, correlation) == 64);
};

/// CUpti_BuffersCallbackRequestFunc.
pub type Requested = unsafe extern "C" fn(*mut *mut u8, *mut usize, *mut usize);
/// CUpti_BuffersCallbackCompleteFunc: context, stream, buffer, its size, and the bytes of it that hold records.
pub type Completed = unsafe extern "C" fn(*mut c_void, u32, *mut u8, usize, usize);
/// CUpti_CallbackFunc: our data, domain, id, data of the call.
pub type Callback = unsafe extern "C" fn(*mut c_void, u32, u32, *const CallbackData);

/// CUPTI's functions. All return a CUptiResult.
#[derive(Clone, Copy)]
pub struct Cupti {
    pub version: unsafe extern "C" fn(*mut u32) -> i32,
    pub timestamp: unsafe extern "C" fn(*mut u64) -> i32,
    pub subscribe: unsafe extern "C" fn(*mut *mut c_void, Callback, *mut c_void) -> i32,
    pub unsubscribe: unsafe extern "C" fn(*mut c_void) -> i32,
    /// Enable, subscriber, domain, id.
    pub enable_callback: unsafe extern "C" fn(u32, *mut c_void, u32, u32) -> i32,
    pub register: unsafe extern "C" fn(Requested, Completed) -> i32,
    pub enable: unsafe extern "C" fn(u32) -> i32,
    pub flush: unsafe extern "C" fn(u32) -> i32,
    /// Buffer, bytes of it that hold records, record.
    pub next_record: unsafe extern "C" fn(*mut u8, usize, *mut *mut u8) -> i32,
    /// Context, stream, records that found no room.
    pub dropped: unsafe extern "C" fn(*mut c_void, u32, *mut usize) -> i32,
    pub latency: unsafe extern "C" fn(u8) -> i32,
    /// Milliseconds. Since CUDA 11.1.
    pub flush_period: Option<unsafe extern "C" fn(u32) -> i32>,
}
