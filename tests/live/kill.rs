//! Recorders and services that are killed at a system call, or get an error from one: a sample of the thousands of
//! trials of `make kill-points` and `make faults`. The trials are tests/kill/*.py, the tracer tests/kill/kill_at.c.

use crate::common;

use std::process::Command;

use common::{fixture, live, profinfer};

/// Runs a script of trials, which reports its findings.
fn trials(script: &str, number: u32) {
    let _turn = live!();
    let engine = fixture!("modern");
    let script = format!("{}/../../tests/kill/{script}", env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new("python3");
    command.arg(script).arg(number.to_string()).env_remove("RUST_BACKTRACE");
    command.env("PROFINFER", profinfer()).env("FIXTURE", engine.parent().expect("a directory"));
    let out = command.output().expect("python3");
    let said = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    match out.status.code() {
        Some(3) => common::skip!("{said}"),
        code => assert_eq!(code, Some(0), "{said}"),
    }
}

#[test]
fn killed_at_any_call_it_leaves_nothing_and_loses_less_than_a_second() {
    trials("points.py", 30);
}

#[test]
fn refused_any_call_it_says_so_and_leaves_nothing() {
    trials("faults.py", 36);
}
