//! Once the structure is known, recording allocates nothing.

use crate::common::allocator::allocations;
use crate::trace_support;

use pfi::*;
use trace_support::*;

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
    let (blocks, before) = (e.stats().blocks, allocations());
    assert!(before > 0, "the counter counts");
    decode(&mut e, plan, 73, 10..300, Times::Even);
    // New tensors too, past the end of the table.
    for addr in 0..2000 {
        e.tensor(&desc(addr * 368, "changed", 1, [addr, 1, 1, 1], &[Some(0), None, Some(1)])).unwrap();
    }
    assert_eq!(allocations(), before);
    assert!(e.stats().blocks > blocks + 10, "blocks were sealed meanwhile");
}
