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
mod python;
mod synth_trace;

use std::path::Path;
use std::process::Command;

use dag_support::{LLAMA, Made, Model};
use html_support::*;
use pfi::{Encoder, EncoderConfig};
use serde_json::{Value, json};
use synth_trace::*;

/// Charts of each page by name; `None` if no browser is available.
fn used(pages: &[(&str, String)]) -> Option<Value> {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new("python3");
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/html/browser.py")).current_dir(dir.path());
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
    ];
    let Some(charts) = used(&pages) else { return };
    assert_eq!(
        charts["rich.html"],
        json!([
            "tokens-decode",
            "dag",
            "roofline-chart",
            "threads-chart",
            "experts-chart",
            "activation-chart"
        ])
    );
    assert_eq!(charts["hostile.html"], json!(["tokens-decode", "dag", "threads-chart"]));
    assert_eq!(charts["gaps.html"], json!(["tokens-decode", "threads-chart"]));
    assert_eq!(charts["long.html"], json!(["tokens-decode"]));
}
