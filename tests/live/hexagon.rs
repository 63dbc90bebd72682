//! Recordings of batches for a Hexagon NPU, which is not there: a fake engine writes them to a fake libcdsprpc
//! (tests/gpu/fake_cdsprpc.c) that answers in the layouts of ggml-hexagon's versions and logs what it answered.

use crate::common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::reported::{on_backend, report};
use common::run::{Recorder, Run, profinfer};
use common::{fixture, live};
use serde_json::Value;

/// What the library logged: messages, responses, ns from the write to the response, the NPU's microseconds.
struct Logged([u64; 4]);

fn library(dir: &Path) -> PathBuf {
    let library = dir.join("libcdsprpc.so");
    let mut cc = Command::new("cc");
    cc.args(["-O2", "-shared", "-fPIC", "-o"]).arg(&library).arg(common::source("gpu/fake_cdsprpc.c"));
    assert!(cc.status().expect("a compiler").success());
    library
}

/// A recording with responses of this many bytes.
fn run(program: &Path, bytes: &str, profile: &str) -> (Run, Logged) {
    let dir = tempfile::tempdir().expect("a directory");
    let (library, log) = (library(dir.path()).display().to_string(), dir.path().join("log"));
    let settings = [
        format!("FAKE_CDSPRPC_LOG={}", log.display()),
        format!("FAKE_HTP_RESPONSE={bytes}"),
        format!("GGML_HEXAGON_PROFILE={profile}"),
    ];
    let (program, go) = (program.display().to_string(), dir.path().join("go"));
    let mut args = vec!["--", "env"];
    args.extend(settings.iter().map(String::as_str));
    let hold = go.to_str().expect("a path");
    args.extend([&*program, "--split", "--htp", &library, "-n", "12", "--hold-for", hold]);
    let recorder = Recorder::start(&args);
    // The library is opened before the first token, and the engine must be found with it.
    recorder.wait_for_probe_in("libcdsprpc.so");
    std::fs::write(&go, "").expect("go");
    let run = recorder.finish();
    let log = std::fs::read_to_string(log).expect("the library's log");
    let numbers: Vec<u64> = log.split_whitespace().map(|n| n.parse().expect("a number")).collect();
    (run, Logged(numbers.try_into().expect("four numbers")))
}

fn of(report: &Value, key: &str) -> u64 {
    let sum = |phase| {
        let batches = &on_backend(report, phase, "Hexagon")["batches"];
        assert!(batches.is_object(), "{report:#}");
        batches[key].as_u64().unwrap_or_default()
    };
    sum("prefill") + sum("decode")
}

fn text(run: &Run) -> String {
    let out = profinfer().args(["report", "--verbose"]).arg(&run.trace).output().expect("it starts");
    String::from_utf8(out.stdout).expect("text")
}

/// The figures of a recording are those of the library's log.
fn as_logged(run: &Run, logged: &Logged) -> Value {
    run.seen().books_close();
    let report = report(run);
    let &Logged([written, answered, rpc_ns, usecs]) = logged;
    assert!(written > 20 && answered == written);
    assert_eq!((of(&report, "written"), of(&report, "answered")), (written, answered));
    assert_eq!(of(&report, "npu_ns"), usecs * 1000);
    // Seen from inside, a call begins later and ends earlier.
    assert!(of(&report, "rpc_ns") >= rpc_ns, "{} and {rpc_ns}", of(&report, "rpc_ns"));
    let seen = run.seen();
    let splits: std::collections::HashMap<u64, u64> =
        seen.all.splits.iter().map(|s| (s.seq, s.dur)).collect();
    for b in &seen.all.batches {
        assert!(b.busy_ns <= b.rpc_ns && b.busy_ns < splits[&b.split], "{b:?}");
        // Up to three are on their way at the same time.
        assert!(b.rpc_ns < 3 * splits[&b.split], "{b:?}");
    }
    for phase in ["prefill", "decode"] {
        let device = on_backend(&report, phase, "Hexagon");
        assert_eq!(device["batches"]["splits"], device["splits"], "{device:#}");
    }
    report
}

#[test]
fn batches_and_times_are_those_of_the_library() {
    let _turn = live!(beside others);
    let program = fixture!("modern");
    for bytes in ["88", "64"] {
        let (run, logged) = run(&program, bytes, "1");
        let report = as_logged(&run, &logged);
        assert!(logged.0[3] > 0);
        assert_eq!(of(&report, "timed"), logged.0[1]);
        let text = text(&run);
        assert!(text.contains("Batches for an NPU, decode"), "{text}");
        assert!(!text.contains("NPU time unknown"), "{text}");
    }
}

#[test]
fn a_time_that_the_response_does_not_say_is_unknown() {
    let _turn = live!(beside others);
    let program = fixture!("modern");
    let why = [
        ("88", "unprofiled", "the engine did not profile (GGML_HEXAGON_PROFILE=1)"),
        ("24", "timeless", "this version's response does not say it"),
        ("72", "timeless", "this version's response does not say it"),
        ("40", "unknown_layout", "a response of unknown size"),
    ];
    for (bytes, key, why) in why {
        let (run, logged) = run(&program, bytes, "0");
        let report = as_logged(&run, &logged);
        assert_eq!(of(&report, key), logged.0[1], "{bytes}");
        let decode = on_backend(&report, "decode", "Hexagon");
        assert_eq!(decode["batches"].get("npu_ns"), None, "{decode:#}");
        let text = text(&run);
        assert!(text.contains(why), "{text}");
    }
}
