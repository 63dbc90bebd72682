//! Allocator of the test programs: counts the allocations of each thread, and fails when memory in use far exceeds
//! what any test needs.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A view or reader that needs this much memory is unbounded.
const MOST_MEMORY: usize = 2 << 30;

/// The allocator: counts per thread and enforces the limit.
pub struct Counting;

static IN_USE: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

/// Allocations of the calling thread so far.
pub fn allocations() -> u64 {
    COUNT.with(Cell::get)
}

/// Accounts for `more` bytes; returns whether they may be allocated.
fn take(more: usize) -> bool {
    COUNT.with(|c| c.set(c.get() + 1));
    IN_USE.fetch_add(more, Ordering::Relaxed) + more <= MOST_MEMORY
}

// SAFETY: every call goes to the system allocator unchanged; one that would exceed the limit fails, which ends the
// program.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !take(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's guarantees are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's guarantees are passed on.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !take(size) {
            return std::ptr::null_mut();
        }
        IN_USE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's guarantees are passed on.
        unsafe { System.realloc(ptr, layout, size) }
    }
}
