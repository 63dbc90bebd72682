//! Once the structure is known, recording allocates nothing.

mod trace_support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use profinfer::trace::*;
use trace_support::*;

struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|c| c.set(c.get() + 1));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        COUNT.with(|c| c.set(c.get() + 1));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn steady_state_allocates_nothing() {
    let cfg = EncoderConfig {
        block_bytes: 16 << 10,
        flush_ns: 100_000_000,
        max_tensors: 512,
        ..EncoderConfig::default()
    };
    let mut e = Encoder::new(std::io::sink(), cfg, &header()).unwrap();
    setup(&mut e);
    let plan = model(&mut e, 4);
    decode(&mut e, plan, 73, 0..10, Times::Log);
    let (blocks, before) = (e.stats().blocks, COUNT.with(Cell::get));
    assert!(before > 0, "the counter counts");
    decode(&mut e, plan, 73, 10..300, Times::Even);
    // New tensors too, past the end of the table.
    for addr in 0..2000 {
        e.tensor(&desc(addr * 368, "changed", 1, [addr, 1, 1, 1], &[Some(0), None, Some(1)])).unwrap();
    }
    assert_eq!(COUNT.with(Cell::get), before);
    assert!(e.stats().blocks > blocks + 10, "blocks were sealed meanwhile");
}
