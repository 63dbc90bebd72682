//! Recordings of every level, each ended in two ways, and in every way: regardless of what the recorder was doing, nothing extends beyond
//! its parent, and nothing complete is missing. See docs/TRUST.md.

use crate::common;

use std::path::Path;

use common::run::{Recorder, Run, Target, profinfer, signal_to, wait_until};
use common::seen::Seen;
use common::{fixture, live, model, runner};
use serde_json::Value;

const LEVELS: [&[&str]; 5] = [
    &["--level", "token"],
    &["--level", "graph"],
    &["--level", "op"],
    &["--op-end", "interval"],
    &["--sched", "--faults"],
];

/// How a recording ends.
#[derive(Debug, Clone, Copy)]
enum End {
    Duration,
    Tokens,
    Interrupt,
    Terminate,
    TargetKilled,
}

const ENDS: [End; 5] = [End::Duration, End::Tokens, End::Interrupt, End::Terminate, End::TargetKilled];

/// Records an engine that keeps running, until the given end.
fn ended(level: &[&str], end: End, engine: &[&str]) -> Run {
    let target = Target::start(engine[0], &engine[1..]);
    // So that the recording begins in the middle of its work.
    wait_until("it computes", || cpu_ticks(target.pid()) > 20);
    let pid = target.pid().to_string();
    let limit: &[&str] = match end {
        End::Duration => &["--duration", "500ms"],
        End::Tokens => &["--tokens", "5"],
        _ => &[],
    };
    let recorder = Recorder::start(&[level, limit, &["-p", &pid]].concat());
    match end {
        End::Duration | End::Tokens => {}
        End::Interrupt | End::Terminate => {
            recorder.wait_for_tokens(0);
            recorder.signal(if matches!(end, End::Interrupt) { libc::SIGINT } else { libc::SIGTERM });
        }
        End::TargetKilled => {
            recorder.wait_for_tokens(0);
            signal_to(target.pid(), libc::SIGKILL);
        }
    }
    recorder.finish()
}

/// CPU time of a process, user, in clock ticks (proc(5), field 14 of stat).
fn cpu_ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().and_then(|rest| rest.split_ascii_whitespace().nth(11)?.parse().ok()).unwrap_or(0)
}

fn report(trace: &Path) -> Value {
    let out = profinfer().args(["report", "--json", "--by", "name"]).arg(trace).output().expect("it runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).expect("JSON")
}

/// No op of a phase lasts longer than the phase's longest call. A cut call has ops but no time itself.
fn no_op_outlasts_its_call(phase: &Value) {
    if phase["cut_calls"] != 0 {
        return;
    }
    let Some(longest) = phase["latency"]["max_ns"].as_u64() else { return };
    let ops = phase["by_name"].as_array().into_iter().flatten();
    for op in ops.filter(|op| phase["phase"] != "unknown" && op["max_ns"].is_u64()) {
        assert!(op["max_ns"].as_u64().expect("a time") <= longest, "{op:#} in calls of {longest} ns");
    }
}

/// Every level with two of the ends, each of which two levels have.
fn every_end(engine: &[&str]) {
    for (i, level) in LEVELS.into_iter().enumerate() {
        let ends = [ENDS[i], ENDS[(i + 1) % ENDS.len()]];
        ends.into_iter().for_each(|end| ends_well(level, end, engine));
    }
}

fn ends_well(level: &[&str], end: End, engine: &[&str]) {
    let run = ended(level, end, engine);
    assert!(run.status.success(), "{level:?}, {end:?}: {}", run.stderr);
    let report = report(&run.trace);
    let quality = &report["quality"];
    // A recorder that cannot keep up with two CPUs loses events and reports the loss; the rest must still be
    // consistent.
    let verdict = quality["verdict"].as_str().expect("a verdict");
    let lost = verdict.contains("of the events lost");
    assert!(lost || verdict == "complete", "{level:?}, {end:?}: {quality:#}");
    assert!(!verdict.contains("are inconsistent"), "{level:?}, {end:?}: {quality:#}");
    let i = &quality["invariants"];
    assert!(i["unchecked"].is_null() == (level != LEVELS[0]), "{i}");
    assert!(i["unchecked"].is_string() || i["calls"].as_u64() > Some(0), "{level:?}, {end:?}: {i}");
    report["phases"].as_array().expect("phases").iter().for_each(no_op_outlasts_its_call);
}

#[test]
fn of_the_runner() {
    let _turn = live!(beside others);
    let (program, model) = (runner(), model("tiny", "q4_0"));
    let engine = [
        program.to_str().expect("UTF-8"),
        "run",
        "--no-roofline",
        "-m",
        model.to_str().expect("UTF-8"),
        "-t",
        "2",
        "-p",
        "4",
        "-n",
        "100000",
    ];
    every_end(&engine);
}

#[test]
fn of_a_stripped_engine() {
    let _turn = live!(beside others);
    let program = fixture!("stripped");
    let engine = [program.to_str().expect("UTF-8"), "-n", "1000000", "-t", "2", "--op-ns", "1000"];
    every_end(&engine);
}

#[test]
fn of_two_recordings_of_one_engine() {
    let _turn = live!(beside others);
    let target = Target::start(fixture!("modern"), &["-n", "1000000", "-t", "2", "--op-ns", "1000"]);
    let pid = target.pid().to_string();
    let first = Recorder::start(&["-p", &pid]);
    let second = Recorder::start(&["-p", &pid, "--duration", "500ms"]);
    first.wait_for_tokens(0);
    let second = second.finish();
    // It goes on.
    let now = Seen::damaged(&first.trace).all.tokens.len();
    first.wait_for_tokens(now);
    first.signal(libc::SIGINT);
    for run in [second, first.finish()] {
        assert!(run.status.success(), "{}", run.stderr);
        let report = report(&run.trace);
        assert!(
            !report["quality"]["verdict"].as_str().expect("a verdict").contains("are inconsistent"),
            "{report:#}"
        );
    }
}
