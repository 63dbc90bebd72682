//! What the layer uses of OpenCL: types and constants of CL/cl.h, and the places of functions in the loader's table
//! (CL/cl_icd.h of OpenCL 3.0; later versions only append to it).

use core::ffi::{c_char, c_void};

/// Any object.
pub type Handle = *mut c_void;
/// A function of any type.
pub type Function = *const c_void;

pub type CreateQueue = unsafe extern "C" fn(Handle, Handle, u64, *mut i32) -> Handle;
pub type CreateQueueWith = unsafe extern "C" fn(Handle, Handle, *const u64, *mut i32) -> Handle;
pub type CreateKernel = unsafe extern "C" fn(Handle, *const c_char, *mut i32) -> Handle;
pub type CreateKernels = unsafe extern "C" fn(Handle, u32, *mut Handle, *mut u32) -> i32;
pub type CloneKernel = unsafe extern "C" fn(Handle, *mut i32) -> Handle;
pub type GetInfo = unsafe extern "C" fn(Handle, u32, usize, *mut c_void, *mut usize) -> i32;
pub type WithObject = unsafe extern "C" fn(Handle) -> i32;
pub type WaitForEvents = unsafe extern "C" fn(u32, *const Handle) -> i32;
pub type ReadBuffer =
    unsafe extern "C" fn(Handle, Handle, u32, usize, usize, Handle, u32, *const Handle, *mut Handle) -> i32;
pub type NdRange = unsafe extern "C" fn(
    Handle,
    Handle,
    u32,
    *const usize,
    *const usize,
    *const usize,
    u32,
    *const Handle,
    *mut Handle,
) -> i32;

pub const CREATE_QUEUE: usize = 9;
pub const RELEASE_QUEUE: usize = 11;
pub const CREATE_KERNEL: usize = 34;
pub const CREATE_KERNELS: usize = 35;
pub const KERNEL_INFO: usize = 39;
pub const WAIT_FOR_EVENTS: usize = 41;
pub const EVENT_INFO: usize = 42;
pub const RETAIN_EVENT: usize = 43;
pub const RELEASE_EVENT: usize = 44;
pub const PROFILING_INFO: usize = 45;
pub const FINISH: usize = 47;
pub const READ_BUFFER: usize = 48;
pub const ND_RANGE: usize = 59;
pub const CREATE_QUEUE_WITH: usize = 123;
pub const CLONE_KERNEL: usize = 137;
/// Entries of the table in OpenCL 3.0.
pub const TABLE: usize = 149;

pub const SUCCESS: i32 = 0;
pub const PROFILING_INFO_NOT_AVAILABLE: i32 = -7;
pub const INVALID_VALUE: i32 = -30;
pub const COMPLETE: i32 = 0;
pub const QUEUE_PROPERTIES: u64 = 0x1093;
pub const QUEUE_PROFILING_ENABLE: u64 = 1 << 1;
pub const KERNEL_FUNCTION_NAME: u32 = 0x1190;
pub const EVENT_EXECUTION_STATUS: u32 = 0x11D3;
/// Queued, submitted, started, ended.
pub const PROFILING: [u32; 4] = [0x1280, 0x1281, 0x1282, 0x1283];
pub const LAYER_API_VERSION: u32 = 0x4240;
pub const LAYER_NAME: u32 = 0x4241;
/// The only version of the interface (CL_LAYER_API_VERSION_100).
pub static VERSION_100: u32 = 100;
