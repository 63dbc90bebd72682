//! Speed and memory of `profinfer export`, measured on a synthetic trace of 10 million op slices: as a timeline
//! (--perfetto), as a table (--csv) and as a data set (--parquet).
//!
//!     cargo bench --no-default-features --features dataset --bench export [-- SLICES]
//!
//! Prints the median wall time, the processor time of all threads (the time on one core is no more), the peak resident
//! memory (which includes the trace pages it reads) and the bytes per slice. In barrier mode an op and the wait after it
//! are two slices.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a benchmark"
)]

#[path = "../tests/synth_trace/mod.rs"]
mod synth_trace;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use synth_trace::generate;

const RUNS: usize = 3;

/// What is exported: the flag, and whether its result is a directory.
const KINDS: &[(&str, bool)] = &[
    ("perfetto", false),
    ("csv", false),
    #[cfg(feature = "dataset")]
    ("parquet", true),
];

fn main() {
    // `cargo bench` adds its own flags.
    let args: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let slices: u64 = args.first().and_then(|a| a.parse().ok()).unwrap_or(10_000_000);
    let trace = std::env::temp_dir().join("profinfer-bench.pfi");
    for barrier in [false, true] {
        generate(&trace, slices, barrier);
        for kind in KINDS {
            measure(&trace, kind, slices, barrier);
        }
    }
    let _ = std::fs::remove_file(trace);
}

/// Cost of one export.
struct Cost {
    seconds: f64,
    cpu_seconds: f64,
    /// Peak resident memory, kB.
    memory: i64,
}

#[allow(clippy::zombie_processes, reason = "wait4 waits, and tells what it has used")]
fn export(trace: &Path, kind: &str, out: &Path) -> Cost {
    let mut command = Command::new(env!("CARGO_BIN_EXE_profinfer"));
    command.arg("export").stdout(Stdio::null());
    match kind {
        "csv" => command.args(["--force", "--csv", "ops", "-o"]).arg(out),
        "parquet" => command.arg("--parquet").arg(out),
        kind => command.arg("--force").arg(format!("--{kind}")).arg(out),
    };
    let start = Instant::now();
    let child = command.arg(trace).spawn().expect("profinfer runs");
    // SAFETY: a rusage is plain numbers, and all zeros is valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    let mut status = 0;
    // SAFETY: both pointed-to values outlive the call, and nobody else waits for this child.
    let ended = unsafe { libc::wait4(child.id() as i32, &raw mut status, 0, &raw mut usage) };
    assert!(ended == child.id() as i32 && status == 0, "profinfer export --{kind} failed");
    let time = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
    Cost {
        seconds: start.elapsed().as_secs_f64(),
        cpu_seconds: time(usage.ru_utime) + time(usage.ru_stime),
        memory: usage.ru_maxrss,
    }
}

/// Bytes of a file, or of all files in a directory.
fn bytes(path: &Path) -> u64 {
    let Ok(there) = std::fs::read_dir(path) else { return std::fs::metadata(path).map_or(0, |m| m.len()) };
    there.map(|e| bytes(&e.expect("an entry").path())).sum()
}

fn measure(trace: &Path, (kind, is_dir): &(&str, bool), ops: u64, barrier: bool) {
    let out: PathBuf = std::env::temp_dir().join(format!("profinfer-bench-{kind}"));
    let mut runs: Vec<Cost> = (0..RUNS).map(|_| export(trace, kind, &out)).collect();
    runs.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    let bytes = bytes(&out);
    let slices = if barrier { 2 * ops } else { ops };
    let median = &runs[RUNS / 2];
    println!(
        "export --{kind}, {} mode: {ops} ops, median {:.2} s, {:.2} s of a core, {} MB at most, {:.2} bytes a slice, {} MB",
        if barrier { "barrier" } else { "interval" },
        median.seconds,
        median.cpu_seconds,
        runs.iter().map(|r| r.memory).max().unwrap_or(0) / 1000,
        bytes as f64 / slices as f64,
        bytes / 1_000_000
    );
    let _ = if *is_dir { std::fs::remove_dir_all(&out) } else { std::fs::remove_file(&out) };
}
