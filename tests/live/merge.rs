//! `export --merge` with a simultaneous recording by Perfetto's own programs (tests/perfetto/system.sh): one file,
//! one clock.

use crate::common;
use crate::common::timeline;

use std::path::Path;
use std::process::Command;

use common::run::{Target, profinfer, run};
use common::{live, model, runner, skip};

/// Keeps a CPU busy, so that an engine thread is preempted now and then.
fn hog(cpu: &str) -> Target {
    Target::start("taskset", &["-c", cpu, "sh", "-c", "while :; do :; done"])
}

#[test]
fn ops_begin_while_the_kernel_says_that_their_thread_runs() {
    let _turn = live!();
    let dir = tempfile::tempdir().expect("a directory");
    let at = |name: &str| dir.path().join(name);
    let (ours, system, both) = (at("run.pfi"), at("system.pftrace"), at("both.pftrace"));
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/perfetto");
    let _hogs = [hog("0"), hog("1")];
    let mut recording = Command::new(tests.join("system.sh"));
    recording.arg(&system).args(["taskset", "-c", "0,1"]).arg(common::profinfer());
    recording.arg("record").arg("-o").arg(&ours).arg("--").arg(runner()).args(["run", "--no-roofline", "-m"]);
    let out = run(recording.arg(model("tiny", "q4_0")).args(["-t", "2", "-p", "8", "-n", "30"]));
    if out.status.code() == Some(3) {
        skip!("{}", out.stderr.trim());
    }
    assert!(out.status.success(), "{}", out.stderr);
    let out =
        run(profinfer().args(["export", "--perfetto"]).arg(&both).arg("--merge").arg(&system).arg(&ours));
    assert!(out.status.success() && out.stderr.is_empty(), "{}", out.stderr);
    let Some(told) = timeline::script("merged.py", &[&both, &system]) else { return };

    let of = |part: &str, field: &str| told[part][field].as_u64().expect("a number");
    assert_eq!(of("merged", "packets"), of("ours", "packets") + of("theirs", "packets"));
    assert_eq!(of("ours", "unknown"), 0);
    let sequences = |part: &str| told[part]["sequences"].as_array().expect("numbers").clone();
    let (mine, theirs) = (sequences("ours"), sequences("theirs"));
    assert!(!mine.is_empty() && !theirs.is_empty());
    assert!(mine.iter().all(|n| !theirs.contains(n)), "{mine:?} {theirs:?}");
    assert_eq!(told["threads"], 2);
    assert!(told["slices"].as_u64().is_some_and(|n| n > 1000), "{told}");
    let inside = |shift: &str| told["inside"][shift].as_f64().expect("a share");
    println!("{}", told["inside"]);
    assert!(inside("0") >= 0.99, "{told}");
    // A wrong clock would give a different result: the threads did leave their CPUs.
    for shift in ["-20", "-5", "-1", "1", "5", "20"] {
        assert!(inside(shift) < inside("0"), "{told}");
    }
}
