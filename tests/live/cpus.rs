//! The CPU of every op: the ones that the target may run on, and a move seen while it works.

use crate::common;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use common::run::{Recorder, Target, record, wait_until};
use common::seen::Seen;
use common::{driver, engine, fixture, live, model, skip};

/// The CPUs of each thread's ops in order of time, repetitions left out; every slice has one.
fn cpus(seen: &Seen) -> BTreeMap<u32, Vec<u16>> {
    let mut changes = BTreeMap::<u32, Vec<(i64, Option<u16>)>>::new();
    for r in &seen.all.causes.cpus {
        changes.entry(r.tid).or_default().extend(pfi::cpu_changes(r));
    }
    let mut starts = BTreeMap::<u32, Vec<i64>>::new();
    for run in &seen.all.runs {
        starts.entry(run.tid).or_default().extend(pfi::slice_iter(run).map(|s| s.start));
    }
    let of = |(tid, mut starts): (u32, Vec<i64>)| {
        starts.sort_unstable();
        let changes = changes.get(&tid).expect("changes of a thread with ops");
        let mut seen: Vec<u16> = starts
            .into_iter()
            .map(|t| changes.iter().rfind(|c| c.0 <= t).and_then(|c| c.1).expect("a known CPU"))
            .collect();
        seen.dedup();
        (tid, seen)
    };
    starts.into_iter().map(of).collect()
}

/// Few and long enough ops that the recorder keeps up on the other CPU.
const WORK: [&str; 8] = ["--layers", "4", "--op-ns", "20000", "-t", "2", "-n", "1000000"];

/// A target that may run on one CPU has all its ops there; moved to another CPU, each thread migrates once.
fn moves(source: &str) {
    let _turn = live!();
    let program = fixture!("modern");
    let target = Target::spawn(Command::new("taskset").args(["-c", "1"]).arg(&program).args(WORK));
    let pid = target.pid().to_string();
    let recorder = Recorder::start(&["-p", &pid, "--source", source]);
    recorder.wait_for_probes();
    more(&recorder.trace);
    let moved = Command::new("taskset").args(["-a", "-p", "-c", "0", &pid]).output().expect("taskset");
    assert!(moved.status.success(), "{}", String::from_utf8_lossy(&moved.stderr));
    more(&recorder.trace);
    recorder.signal(libc::SIGINT);
    let seen = recorder.finish().seen();
    let found = cpus(&seen);
    assert!(found.len() >= 2 && found.values().all(|cpus| *cpus == [1, 0]), "{source}: {found:?}");
}

fn more(trace: &Path) {
    let size = || std::fs::metadata(trace).map_or(0, |m| m.len());
    let enough = size() + 60_000;
    wait_until("more graphs", || size() > enough);
}

#[test]
fn a_move_is_seen() {
    moves("bpf");
}

#[test]
fn a_move_is_seen_by_perf_events() {
    moves("perf");
}

#[test]
fn all_ops_are_where_the_target_may_run() {
    let _turn = live!(beside others);
    let lib = match engine("v0.5.0") {
        Ok(path) => path,
        Err(why) => skip!("{why}"),
    };
    let path = |p: &Path| p.to_str().expect("UTF-8").to_owned();
    let (driver, lib, model) = (path(&driver()), path(&lib), path(&model("tiny", "q4_0")));
    let own = ["--engine", &lib, "--model", &model, "-p", "7", "-n", "4", "-t", "2"];
    let run = record(&[&["--cpus", "1", "--", &driver][..], &own].concat());
    // The engine starts new threads for every graph.
    let found = cpus(&run.seen());
    assert!(found.len() >= 2 && found.values().all(|cpus| *cpus == [1]), "{found:?}");
}
