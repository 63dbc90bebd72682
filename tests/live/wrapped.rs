//! Commands that are not engines but start one, or map one while they run: none of its work is missed, and a
//! recorder killed at any time leaves them running.

use crate::common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use common::run::{record, run, wait_until};
use common::waiting::wait_for_file;
use common::{fixture, kill_at, live};

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
    let _turn = live!(beside others);
    let engine = fixture!("modern");
    WRAPPERS.iter().for_each(|wrapper| all_of_it(wrapper, &engine));
}

#[test]
fn so_is_one_that_opens_its_parts_by_itself() {
    let _turn = live!(beside others);
    let engine = fixture!("late");
    for wrapper in [WRAPPERS[0], WRAPPERS[7], WRAPPERS[10]] {
        all_of_it(wrapper, &engine);
    }
}

#[test]
fn an_engine_beside_a_wrapper_is_not_taken_for_the_one_that_it_runs() {
    let _turn = live!(beside others);
    let dir = tempfile::tempdir().expect("a directory");
    let beside = |name: &str| dir.path().join(name);
    for file in ["libfakeggml.so", "fakellama"] {
        fs::copy(fixture!("old").with_file_name(file), beside(file)).expect("copied");
    }
    fs::write(beside("script"), "#!/bin/sh\n\"$@\"\n").expect("written");
    fs::set_permissions(beside("script"), fs::Permissions::from_mode(0o755)).expect("mode");
    fs::copy("/usr/bin/env", beside("program")).expect("copied");
    for wrapper in [beside("script"), beside("program")] {
        all_of_it(&[wrapper.to_str().expect("UTF-8")], &fixture!("modern"));
    }
}

/// Whether a process is being traced.
fn is_traced(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|l| l.strip_prefix("TracerPid:").is_some_and(|tracer| tracer.trim() != "0"))
}

#[test]
fn a_recorder_that_is_killed_leaves_a_command_that_runs() {
    let _turn = live!(beside others);
    let dir = tempfile::tempdir().expect("a directory");
    let log = dir.path().join("log");
    let script = "echo $$ > \"$0.pid\"; while :; do /bin/true; echo x >> \"$0\"; done";
    let state = dir.path().join("state");
    // At calls of its main loop, while it lets the command go from stop to stop; the first thousand measure what a hit costs.
    for place in [1500, 2001, 3000, 4501, 6000] {
        let place = format!("record:{place}:{}", if place % 2 == 0 { "entry" } else { "exit" });
        for old in [&log, &log.with_extension("pid")] {
            let _ = std::fs::remove_file(old);
        }
        let mut command = Command::new(kill_at());
        command.args(["-k", &place, "-t", "100", "-o"]).arg(&state).arg("--").arg(common::profinfer());
        command.args(["record", "--force", "-o"]).arg(dir.path().join("run.pfi"));
        let killed = run(command.args(["--", "sh", "-c", script]).arg(&log));
        let told = std::fs::read_to_string(&state).expect("written");
        assert!(
            killed.status.success() && told.contains("\"end\":\"killed\""),
            "{place}: {told}: {}",
            killed.stderr
        );
        let pid = wait_for_file(&log.with_extension("pid"), |text| text.ends_with('\n'));
        let pid: u32 = pid.trim().parse().expect("a number");
        let lines = || std::fs::metadata(&log).map_or(0, |m| m.len());
        wait_until("nobody traces it", || !is_traced(pid));
        let before = lines();
        wait_for_file(&log, |text| text.len() as u64 > before + 20);
        common::run::signal_to(pid, libc::SIGKILL);
    }
}

#[test]
fn a_command_without_an_engine_fails_and_its_status_is_reported() {
    let _turn = live!(beside others);
    let run = record(&["--", "sh", "-c", "sleep 0.2; exit 3"]);
    assert_eq!(run.status.code(), Some(1), "{}", run.stderr);
    assert!(run.stderr.contains("nothing recorded") && run.stderr.contains("status 3"), "{}", run.stderr);
}
