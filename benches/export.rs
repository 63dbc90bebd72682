//! Speed and memory of `profinfer export --perfetto`, measured on a synthetic trace of 10 million op slices.
//!
//!     cargo bench --no-default-features --bench export [-- SLICES]
//!
//! Prints the median wall time, the peak resident memory (which includes the trace pages it reads) and the bytes per
//! slice. In barrier mode an op and the wait after it are two slices.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a benchmark"
)]

#[path = "../tests/synth_trace/mod.rs"]
mod synth_trace;

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use synth_trace::generate;

const RUNS: usize = 3;

fn main() {
    // `cargo bench` adds its own flags.
    let args: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let slices: u64 = args.first().and_then(|a| a.parse().ok()).unwrap_or(10_000_000);
    let trace = std::env::temp_dir().join("profinfer-bench.pfi");
    let out = std::env::temp_dir().join("profinfer-bench.pftrace");
    for barrier in [false, true] {
        generate(&trace, slices, barrier);
        measure(&trace, &out, slices, barrier);
    }
    for path in [trace, out] {
        let _ = std::fs::remove_file(path);
    }
}

/// Seconds of one export.
fn export(trace: &Path, out: &Path) -> f64 {
    let start = Instant::now();
    let mut command = Command::new(env!("CARGO_BIN_EXE_profinfer"));
    let done = command
        .args(["export", "--force", "--perfetto"])
        .arg(out)
        .arg(trace)
        .status()
        .expect("profinfer runs");
    assert!(done.success(), "profinfer export failed");
    start.elapsed().as_secs_f64()
}

/// Peak resident memory of the exports so far, kB. They are the only children.
fn memory() -> i64 {
    // SAFETY: a rusage is plain numbers, and all zeros is valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointed-to struct outlives the call.
    let failed = unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage) };
    assert!(failed == 0, "the kernel tells no usage");
    usage.ru_maxrss
}

fn measure(trace: &Path, out: &Path, ops: u64, barrier: bool) {
    let mut runs: Vec<f64> = (0..RUNS).map(|_| export(trace, out)).collect();
    runs.sort_by(f64::total_cmp);
    let bytes = std::fs::metadata(out).map_or(0, |m| m.len());
    let slices = if barrier { 2 * ops } else { ops };
    println!(
        "export, {} mode: {ops} ops, median {:.2} s, {} MB at most, {:.2} bytes a slice, {} MB",
        if barrier { "barrier" } else { "interval" },
        runs[RUNS / 2],
        memory() / 1000,
        bytes as f64 / slices as f64,
        bytes / 1_000_000
    );
}
