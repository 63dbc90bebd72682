//! Trace size: bytes by kind of record for 200 decode tokens of a model with 73 ops, two threads.

use crate::trace_support;

use pfi::record::KIND_NAMES;
use pfi::*;
use trace_support::*;

fn bytes_per_slice(times: Times) -> f64 {
    let mut e = Encoder::new(Vec::new(), EncoderConfig::default(), &header()).unwrap();
    setup(&mut e);
    let plan = model(&mut e, 4);
    decode(&mut e, plan, 73, 0..200, times);
    let stats = e.stats();
    let file = e.finish(&footer()).unwrap();
    println!("{} slices, {} blocks, {} bytes", stats.slices, stats.blocks, file.len());
    for (i, name) in KIND_NAMES.iter().enumerate().filter(|(i, _)| stats.records[*i] > 0) {
        println!("{name:>9} {:>6} records {:>8} bytes", stats.records[i], stats.bytes[i]);
    }
    let each = file.len() as f64 / stats.slices as f64;
    println!("{each:.3} bytes a slice");
    each
}

#[test]
fn a_slice_costs_at_most_six_bytes_with_everything() {
    assert!(bytes_per_slice(Times::Log) <= 6.0);
}

/// Noise without any structure, most times near the upper ends: no coding of the times alone gets below 4.6 bytes.
#[test]
fn a_slice_costs_little_more_when_nearly_all_times_are_long() {
    assert!(bytes_per_slice(Times::Even) <= 6.5);
}

/// Prints the decoding speed of slices; run with `--release --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn decode_rate() {
    let mut e = Encoder::new(Vec::new(), EncoderConfig::default(), &header()).unwrap();
    setup(&mut e);
    let plan = model(&mut e, 4);
    decode(&mut e, plan, 73, 0..20_000, Times::Log);
    let trace = Trace::from_bytes(e.finish(&footer()).unwrap()).unwrap();
    let clock = std::time::Instant::now();
    let (mut slices, mut sum) = (0u64, 0u64);
    for block in (0..trace.blocks().len()).map(|i| trace.block(i).unwrap()) {
        for record in block.records() {
            if let record::Record::Slices(s) = record.unwrap() {
                for slice in slice_iter(&s) {
                    slices += 1;
                    sum = sum.wrapping_add(slice.busy.unwrap_or(0));
                }
            }
        }
    }
    let took = clock.elapsed();
    let (rate, mib) = (slices as f64 / took.as_secs_f64() / 1e6, trace.size() >> 20);
    println!("{slices} slices in {took:?} ({rate:.1} M/s, {mib} MiB, busy {sum} ns), checksums included");
}
