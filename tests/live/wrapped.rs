//! Commands that are not engines but start one, or map one while they run: none of its work is missed, and a
//! recorder killed at any time leaves them running.

use crate::common;

use std::path::Path;

use common::run::{Recorder, record, wait_until};
use common::{fixture, live};

/// Programs that run another, by an exec, in a child, or in a grandchild.
const WRAPPERS: [&[&str]; 11] = [
    &["taskset", "-c", "0"],
    &["env", "A=1"],
    &["nice", "-n", "1"],
    &["setsid", "--wait"],
    &["stdbuf", "-oL"],
    &["timeout", "60"],
    &["chroot", "/"],
    &["sh", "-c", "\"$0\" \"$@\"; true"],
    &["sh", "-c", "sh -c 'exec \"$0\" \"$@\"' \"$0\" \"$@\" | cat"],
    &["python3", "-c", "import os, sys; os.execv(sys.argv[1], sys.argv[1:])"],
    &["python3", "-c", "import subprocess, sys; subprocess.run(sys.argv[1:], check=True)"],
];

/// Every call and op that the engine counted is in the recording.
fn all_of_it(wrapper: &[&str], program: &Path) {
    let engine = [program.to_str().expect("UTF-8"), "-p", "4", "-n", "6", "-t", "2"];
    let run = record(&[&["--"], wrapper, &engine].concat());
    assert_eq!(run.status.code(), Some(0), "{wrapper:?}: {}", run.stderr);
    let (said, seen) = (run.said(), run.seen());
    let calls = |name: &str| said["calls"][name].as_u64().expect("a count");
    assert!(calls("llama_decode") > 6, "{said}");
    assert_eq!(seen.all.tokens.len() as u64, calls("llama_decode"), "{wrapper:?}: {}", run.stderr);
    assert_eq!(seen.all.cpu_graphs.len() as u64, calls("graph_compute"), "{wrapper:?}");
    assert_eq!(seen.slices(), calls("extra") + calls("fused"), "{wrapper:?}");
    seen.complete();
}

#[test]
fn a_wrapped_engine_is_recorded_from_its_first_call() {
    let _turn = live!();
    let engine = fixture!("modern");
    WRAPPERS.iter().for_each(|wrapper| all_of_it(wrapper, &engine));
}

#[test]
fn so_is_one_that_opens_its_parts_by_itself() {
    let _turn = live!();
    let engine = fixture!("late");
    for wrapper in [WRAPPERS[0], WRAPPERS[7], WRAPPERS[10]] {
        all_of_it(wrapper, &engine);
    }
}

/// Whether a process is being traced.
fn is_traced(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|l| l.strip_prefix("TracerPid:").is_some_and(|tracer| tracer.trim() != "0"))
}

#[test]
fn a_recorder_that_is_killed_leaves_a_command_that_runs() {
    let _turn = live!();
    let dir = tempfile::tempdir().expect("a directory");
    let log = dir.path().join("log");
    let script = "echo $$ > \"$0.pid\"; while :; do /bin/true; echo x >> \"$0\"; done";
    for ms in [5, 20, 60, 120, 250] {
        let _ = std::fs::remove_file(&log);
        let recorder = Recorder::start(&["--", "sh", "-c", script, log.to_str().expect("UTF-8")]);
        let pid_file = log.with_extension("pid");
        wait_until("it runs", || log.exists());
        std::thread::sleep(std::time::Duration::from_millis(ms));
        recorder.signal(libc::SIGKILL);
        let _ = recorder.finish();
        let pid: u32 = std::fs::read_to_string(&pid_file).expect("written").trim().parse().expect("a number");
        let lines = || std::fs::metadata(&log).map_or(0, |m| m.len());
        wait_until("nobody traces it", || !is_traced(pid));
        let before = lines();
        wait_until("it goes on", || lines() > before + 20);
        common::run::signal_to(pid, libc::SIGKILL);
    }
}

#[test]
fn a_command_without_an_engine_fails_and_its_status_is_reported() {
    let _turn = live!();
    let run = record(&["--", "sh", "-c", "sleep 0.2; exit 3"]);
    assert_eq!(run.status.code(), Some(1), "{}", run.stderr);
    assert!(run.stderr.contains("nothing recorded") && run.stderr.contains("status 3"), "{}", run.stderr);
}
