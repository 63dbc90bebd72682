//! What a test that cannot run here does: it says why and passes, or fails if no test may be skipped.
//!
//! libtest shows nothing of a test that passes, so each reason is also a line `TEST<tab>WHY` of the file that
//! PROFINFER_SKIPS names.

#![allow(dead_code, reason = "each program of tests uses its own part")]

use std::fs::File;
use std::io::Write;
use std::panic::Location;

/// CI, or a person with PROFINFER_REQUIRE=1, wants every test to run.
pub fn all_required() -> bool {
    let set = |name: &str, value: &str| std::env::var(name).is_ok_and(|v| v == value);
    set("CI", "true") || set("PROFINFER_REQUIRE", "1")
}

/// Says why a test does not run; a failure if all have to.
#[track_caller]
pub fn skipped(why: &str) {
    assert!(!all_required(), "not to be skipped here: {}", why.trim());
    lacking(why);
}

/// Says why a test or a part of it does not run, where `make setup` cannot change that: a failure nowhere.
#[track_caller]
pub fn lacking(why: &str) {
    note(&Location::caller().to_string(), why);
}

/// The same as `skipped`, of a test whose function's path is known.
pub fn skipped_in(function: &str, why: &str) {
    assert!(!all_required(), "not to be skipped here: {}", why.trim());
    note(function, why);
}

/// `place` names the test where its thread does not: libtest runs one test at a time on its main thread.
fn note(place: &str, why: &str) {
    let why = why.split_whitespace().collect::<Vec<_>>().join(" ");
    println!("skipped: {why}");
    let Some(file) = std::env::var_os("PROFINFER_SKIPS") else { return };
    let thread = std::thread::current();
    let test = thread.name().filter(|name| *name != "main").unwrap_or(place);
    // One write: other programs append to the same file.
    let line = format!("{test}\t{why}\n");
    let file = File::options().create(true).append(true).open(file);
    file.and_then(|mut file| file.write_all(line.as_bytes())).expect("the file that PROFINFER_SKIPS names");
}
