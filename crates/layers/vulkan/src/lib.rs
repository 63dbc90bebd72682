//! A Vulkan layer: two timestamps around each dispatch, read when the host has seen that the device is done, and handed to a
//! recorder. Loaded by the Vulkan loader (VK_ADD_LAYER_PATH, VK_INSTANCE_LAYERS=VK_LAYER_PROFINFER_gpu); the engine is
//! unchanged. Apart from the timestamps, the device gets what the engine asks for, in the same order.
#![no_std]

mod buffers;
mod collect;
mod device;
mod entry;
mod instance;
mod loader;
mod shaders;

use core::alloc::{GlobalAlloc, Layout};

use buffers::Layer;
use handover::{Lock, Reason};

/// What this process uses of Vulkan.
static LAYER: Lock<Layer> = Lock::new(Layer::new());

/// Called by the dynamic linker when the program ends or unloads this library.
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

/// What is still on its way has no times. The driver may be gone, and is not called. What a child that was forked knows of is
/// its parent's.
extern "C" fn end() {
    if !handover::is_child()
        && let Some(mut layer) = LAYER.try_lock()
    {
        layer.abandon(None, Reason::Unended);
    }
}

/// `ash` refers to an allocator, although nothing here uses one.
struct Malloc;

// SAFETY: malloc and free are those of the C library; its blocks fit any type of at most 16 bytes of alignment.
unsafe impl GlobalAlloc for Malloc {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        unsafe extern "C" {
            fn malloc(size: usize) -> *mut u8;
        }
        if layout.align() > 16 {
            return core::ptr::null_mut();
        }
        // SAFETY: any size is allowed.
        unsafe { malloc(layout.size()) }
    }

    unsafe fn dealloc(&self, block: *mut u8, _: Layout) {
        unsafe extern "C" {
            fn free(block: *mut u8);
        }
        // SAFETY: a block of `alloc`.
        unsafe { free(block) }
    }
}

#[global_allocator]
static MALLOC: Malloc = Malloc;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    unsafe extern "C" {
        fn abort() -> !;
    }
    // SAFETY: it has no argument.
    unsafe { abort() }
}
