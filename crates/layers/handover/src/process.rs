//! Which process this is: the one that loaded the library, or a child that was forked from it. Costs one load, because the
//! kernel itself forgets the number of the process in a child (madvise(2), MADV_WIPEONFORK).

use core::ffi::c_void;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

// Values of Linux on x86-64 and AArch64 (include/uapi/asm-generic/mman-common.h).
const PROT_READ_WRITE: i32 = 1 | 2;
const MAP_PRIVATE_ANONYMOUS: i32 = 2 | 32;
const MADV_WIPEONFORK: i32 = 18;
const PAGE: usize = 4096;

/// The number of the process that loaded the library.
const FIRST: u32 = 1;

/// Where the number is that becomes 0 in a child; null: not yet made.
static PLACE: AtomicPtr<AtomicU32> = AtomicPtr::new(null_mut());
/// The last number given; a copy of it is in the child, whose number thus differs from its parent's.
static LAST: AtomicU32 = AtomicU32::new(FIRST);
/// Without such memory (before Linux 4.14) every process counts as the first.
static NEVER_WIPED: AtomicU32 = AtomicU32::new(FIRST);

/// Number of this process: not 0, and another one in a child than in its parent.
pub fn number() -> u32 {
    let place = place();
    match place.load(Ordering::Relaxed) {
        0 => {
            let new = LAST.fetch_add(1, Ordering::Relaxed).wrapping_add(1).max(FIRST + 1);
            place.compare_exchange(0, new, Ordering::Relaxed, Ordering::Relaxed).map_or_else(|n| n, |_| new)
        }
        number => number,
    }
}

/// This process was forked from the one that loaded the library.
pub fn is_child() -> bool {
    number() != FIRST
}

fn place() -> &'static AtomicU32 {
    let known = PLACE.load(Ordering::Acquire);
    let place = if known.is_null() { make() } else { known };
    // SAFETY: memory that is never unmapped, or a static.
    unsafe { &*place }
}

/// Makes it; of two threads that come at once, the second leaves its own page unused.
#[cold]
fn make() -> *mut AtomicU32 {
    unsafe extern "C" {
        fn mmap(at: *mut c_void, len: usize, prot: i32, flags: i32, file: i32, offset: i64) -> *mut c_void;
        fn madvise(at: *mut c_void, len: usize, advice: i32) -> i32;
    }
    let new = (&raw const NEVER_WIPED).cast_mut();
    // SAFETY: a new page, which nothing else uses, and advice on it.
    let new = unsafe {
        let page = mmap(null_mut(), PAGE, PROT_READ_WRITE, MAP_PRIVATE_ANONYMOUS, -1, 0);
        if page as isize == -1 || madvise(page, PAGE, MADV_WIPEONFORK) != 0 {
            new
        } else {
            let page = page.cast::<AtomicU32>();
            (*page).store(FIRST, Ordering::Relaxed);
            page
        }
    };
    match PLACE.compare_exchange(null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => new,
        Err(other) => other,
    }
}
