//! Pages of `profinfer html` in a real browser (tests/html/browser.py): no console messages, no requests, every
//! chart drawn, and everything usable with the keyboard.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test program"
)]

mod dag_support;
mod html_support;
#[path = "common/python.rs"]
#[allow(dead_code, reason = "packages are of other tests")]
mod python;
#[path = "common/skips.rs"]
mod skips;
mod synth_trace;

use std::path::Path;
use std::process::Command;

use dag_support::{LLAMA, Made, Model};
use html_support::*;
use pfi::{Encoder, EncoderConfig};
use serde_json::{Value, json};
use synth_trace::*;

/// A call of 100,000 slices, in many graphs.
fn slices() -> Vec<u8> {
    let mut s = Synth::new(Vec::new(), Spec { layers: 4, threads: 4, ..Spec::default() });
    let busy =
        |i: u64| move |p: usize, t: u16| 1000 + (i * 31 + p as u64 * 977 + u64::from(t) * 101) % 40_000;
    (0..4).for_each(|i| s.call(1, busy(i)));
    let before = s.slices / s.graphs;
    s.ubatches(&vec![1; 100_000_u64.div_ceil(before) as usize], busy(7));
    s.enc.finish(&footer("target exited")).unwrap()
}

/// What the browser found on each page, by name; `None` if no browser is available.
fn used(pages: &[(&str, String)]) -> Option<Value> {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new("python3");
    command
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/html/browser.py"))
        .current_dir(dir.path());
    // Kept for manual inspection.
    if let Some(shots) = std::env::var_os("HTML_SHOTS") {
        command.arg("--shots").arg(shots);
    }
    for (name, page) in pages {
        std::fs::write(dir.path().join(name), page).unwrap();
        command.arg(name);
    }
    python::json(&mut command)
}

#[test]
fn pages_work_in_a_browser() {
    let header = header(true);
    let enc = Encoder::new(Vec::new(), EncoderConfig::default(), &header).unwrap();
    let mut hostile = Made::with(LLAMA, NASTY, enc, 0);
    (0..6).for_each(|i| hostile.batch(1, i));
    let no_structure = dag_support::run(Model { structure: false, ..LLAMA }, 5);
    let pages = [
        ("rich.html", page(&rich(200), &["--peak", "100,10"])),
        ("hostile.html", page(&hostile.finish(), &[])),
        ("gaps.html", page(&no_structure, &[])),
        ("long.html", page(&calls(100_000), &[])),
        ("compare.html", compared(&steady(1), &steady(3))),
        ("slices.html", page(&slices(), &["--timeline", "200000"])),
    ];
    let Some(found) = used(&pages) else { return };
    let frames = &found["slices.html"]["frames"];
    println!("frames of a timeline: {frames}");
    assert!(frames["about"].as_str().unwrap().contains("4 threads, 10"), "{frames}");
    let charts = |page: &str| found[page]["charts"].clone();
    assert_eq!(
        charts("rich.html"),
        json!([
            "time-bar",
            "tokens-decode",
            "dag",
            "flame-chart",
            "roofline-chart",
            "products-chart",
            "growth-chart",
            "threads-chart",
            "experts-chart",
            "activation-chart",
            "reuse-chart"
        ])
    );
    let hostile = ["time-bar", "tokens-decode", "dag", "flame-chart", "products-chart", "threads-chart"];
    assert_eq!(charts("hostile.html"), json!(hostile));
    assert_eq!(charts("gaps.html"), json!(["time-bar", "tokens-decode", "flame-chart", "threads-chart"]));
    assert_eq!(charts("compare.html"), json!(["time-bar-a", "time-bar-b", "dag"]));
    assert_eq!(charts("long.html"), json!(["tokens-decode"]));
}
