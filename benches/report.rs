//! Speed of `profinfer report`, measured on a synthetic trace of 10 million op slices.
//!
//!     cargo bench --no-default-features --bench report [-- SLICES [FILE]]
//!
//! Prints the median wall time of the command, run as a child process, and slices per second. With FILE, the trace
//! is kept there.
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
use std::process::{Command, Stdio};
use std::time::Instant;

use synth_trace::generate;

const RUNS: usize = 9;

fn main() {
    // `cargo bench` adds its own flags.
    let args: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let slices: u64 = args.first().and_then(|a| a.parse().ok()).unwrap_or(10_000_000);
    let kept = args.get(1).map(std::path::PathBuf::from);
    let path = kept.clone().unwrap_or_else(|| std::env::temp_dir().join("profinfer-bench.pfi"));
    for barrier in [false, true] {
        generate(&path, slices, barrier);
        measure(&path, barrier);
    }
    if kept.is_none() {
        let _ = std::fs::remove_file(&path);
    }
}

/// Slices in the trace, as counted by a complete report.
fn slices(path: &Path) -> u64 {
    let done = Command::new(env!("CARGO_BIN_EXE_profinfer"))
        .args(["report", "--json", "--by", "op"])
        .arg(path)
        .output()
        .expect("profinfer runs");
    let json: serde_json::Value = serde_json::from_slice(&done.stdout).expect("the report is JSON");
    assert_eq!(json["quality"]["verdict"], "complete");
    json["quality"]["hits"]["slices"].as_u64().expect("a number of slices")
}

fn measure(path: &Path, barrier: bool) {
    let bytes = std::fs::metadata(path).map_or(0, |m| m.len());
    let mut times: Vec<f64> = (0..RUNS)
        .map(|_| {
            let start = Instant::now();
            let done = Command::new(env!("CARGO_BIN_EXE_profinfer"))
                .arg("report")
                .arg(path)
                .stdout(Stdio::null())
                .status()
                .expect("profinfer runs");
            let time = start.elapsed().as_secs_f64();
            assert!(done.success(), "profinfer report failed");
            time
        })
        .collect();
    times.sort_by(f64::total_cmp);
    let slices = slices(path);
    let rate = |time: f64| slices as f64 / time / 1e6;
    let (median, best) = (times[RUNS / 2], times[0]);
    let (slow, fast) = (rate(times[RUNS * 3 / 4]), rate(times[RUNS / 4]));
    let mode = if barrier { "barrier" } else { "interval" };
    println!(
        "report, {mode} mode: {slices} slices, {:.2} bytes each: median {:.3} s, {:.1} M slices/s [{slow:.1}, {fast:.1}] \
         (best {:.3} s)",
        bytes as f64 / slices as f64,
        median,
        rate(median),
        best
    );
}
