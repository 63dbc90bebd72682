//! When the system allows no more threads, work is done in place or refused with a message; no program crashes.

use crate::common;
use crate::synth_trace;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use synth_trace::generate;

/// A copy of the program run as nobody, limited to one thread; None if that is not possible here.
fn alone(program: &str, dir: &Path) -> Option<Command> {
    // SAFETY: takes no argument and cannot fail.
    let root = unsafe { libc::geteuid() } == 0;
    let there = |tool| Command::new(tool).arg("--version").output().is_ok_and(|o| o.status.success());
    if !root || !there("setpriv") || !there("prlimit") {
        return None;
    }
    let copy = dir.join("program");
    common::program::copy(program, &copy);
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o777)).expect("opened");
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "prlimit", "--nproc=1:1"]);
    command.arg(copy).current_dir(dir);
    Some(command)
}

/// It did its work, or reports why not.
fn fares(out: &Output, refused: Option<&str>) {
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(!said.contains("panicked"), "{said}");
    match refused {
        None => assert!(out.status.success(), "{:?}: {said}", out.status),
        Some(why) => assert!(out.status.code() == Some(1) && said.contains(why), "{:?}: {said}", out.status),
    }
}

#[test]
fn a_large_trace_is_read_in_place() {
    let dir = tempfile::tempdir().expect("a directory");
    let Some(mut command) = alone(env!("CARGO_BIN_EXE_profinfer"), dir.path()) else {
        common::skip!("needs root, setpriv and prlimit");
    };
    let trace = dir.path().join("large.pfi");
    generate(&trace, 1_500_000, true);
    assert!(std::fs::metadata(&trace).expect("written").len() > 4 << 20, "too small to be read by many");
    std::fs::set_permissions(&trace, std::fs::Permissions::from_mode(0o644)).expect("opened");
    fares(&command.args(["report", "large.pfi"]).output().expect("runs"), None);
}

#[test]
fn a_runner_without_threads_says_so() {
    let dir = tempfile::tempdir().expect("a directory");
    let program = crate::common::runner_name();
    let Some(mut command) = alone(program, dir.path()) else {
        common::skip!("needs root, setpriv and prlimit");
    };
    let synth = ["synth", "tiny", "tiny.gguf"];
    fares(&command.args(synth).output().expect("runs"), None);
    let again = |args: &[&str]| {
        let mut command = alone(program, dir.path()).expect("as before");
        command.args(args).output().expect("runs")
    };
    let why = "Resource temporarily unavailable";
    fares(&again(&["run", "-m", "tiny.gguf", "-t", "2", "-p", "4", "-n", "2", "--no-roofline"]), Some(why));
    fares(&again(&["peak", "-t", "1"]), Some(why));
    fares(&again(&["bench-kernels", "-t", "2"]), Some(why));
}
