//! Counters of ops on the real thing: beside loops of known length, with others on the same CPU, and with more counters
//! than the PMU has slots.
#![cfg(feature = "agent")]

mod common;

use std::fs::File;
use std::os::fd::FromRawFd;
use std::process::Command;

use perf_event_open_sys as sys;

use common::counted::{self, OpCount, counter};
use common::run::{Run, Target, profinfer, record, run};
use common::seen::Seen;
use common::{fixture, live, skip};
use profinfer::trace::record::Availability;

/// Instructions that an op of the fake engine does besides its loop, at most: calls, and barriers inside where nobody is
/// waited for.
const AROUND: u64 = 400;

/// Whether this machine counts instructions; else why not.
fn counts(name: &str) -> Result<(), String> {
    let out = run(profinfer().args(["record", "--pmc", "list", "--json"]));
    let list: serde_json::Value = serde_json::from_str(&out.stdout).expect("JSON");
    let offers =
        list.as_array().expect("clusters").iter().flat_map(|c| c["offers"].as_array().expect("offers"));
    match offers.into_iter().find(|o| o["name"] == name) {
        Some(o) if o["state"] == "counts" => Ok(()),
        found => Err(format!("this machine does not count {name}: {found:?}")),
    }
}

/// What the fake engine's loop of an op comes to.
fn length(seen: &Seen, op: &OpCount, loops: u64) -> u64 {
    2 * loops * (1 + seen.tensor(op.tensor).ne[0] % 3)
}

/// A barrier inside of an op waits for the others, whatever that takes.
fn waits(seen: &Seen, op: &OpCount) -> bool {
    let name = seen.all.ops[&seen.tensor(op.tensor).op].name;
    name.starts_with("MUL_MAT")
}

/// Every op has its instructions, and none of anybody else's. Gives the ops.
fn exact(seen: &Seen, loops: u64, threads: u32) -> Vec<OpCount> {
    let id = counter(seen, "instructions").id as usize;
    let ops = counted::ops(seen);
    assert!(!ops.is_empty());
    // In the first graph the dynamic linker still has work to do.
    for op in ops.iter().filter(|o| o.graph > 0) {
        let (loop_alone, got) = (length(seen, op, loops), op.counts[id]);
        let got = got.unwrap_or_else(|| panic!("not known: {op:?}"));
        let most = if threads > 1 && waits(seen, op) { loop_alone / 10 } else { AROUND };
        assert!((loop_alone..loop_alone + most).contains(&got), "{got}, the loop alone {loop_alone}: {op:?}");
    }
    ops
}

fn fake(program: &str, recorder: &[&str], options: &[&str]) -> Run {
    let mut args = recorder.to_vec();
    args.extend(["--", program, "-n", "6"]);
    args.extend(options);
    record(&args)
}

#[test]
fn loops_of_known_length() {
    let _turn = live!();
    if let Err(why) = counts("instructions") {
        skip!("{why}");
    }
    let program = fixture!("modern");
    let program = program.to_str().expect("a path");
    for (recorder, threads) in [
        (&["--pmc", "instructions"][..], 1),
        (&["--pmc", "instructions", "--op-end", "interval"], 1),
        (&["--pmc", "cycles,instructions,task-clock", "--pbuf", "--faults"], 2),
    ] {
        let run = fake(program, recorder, &["--op-loops", "20000", "-t", &threads.to_string()]);
        let seen = run.seen();
        seen.complete();
        assert_eq!(exact(&seen, 20_000, threads).len() as u64, seen.slices(), "every op is counted");
        assert_eq!(counter(&seen, "instructions").state, Availability::Whole);
        assert!(counter(&seen, "instructions").events.contains(":u on 0"), "the program's own work");
        let feature = seen.all.causes.features.iter().find(|f| f.name == "counters").expect("told");
        assert_eq!(feature.state, Availability::Whole);
    }
}

#[test]
fn others_on_the_same_cpu_are_not_counted() {
    let _turn = live!();
    if let Err(why) = counts("instructions") {
        skip!("{why}");
    }
    let program = fixture!("modern");
    let program = program.to_str().expect("a path");
    let options = ["--op-loops", "1000000", "-t", "1", "-p", "0"];
    let dir = tempfile::tempdir().expect("a directory");
    let go = dir.path().join("go");
    let mut target = Command::new("taskset");
    target.args(["-c", "0", program, "-n", "4", "--wait-for"]).arg(&go).args(options);
    let target = Target::spawn(&mut target);
    let other = Target::spawn(Command::new("taskset").args(["-c", "0", "sh", "-c", "while :; do :; done"]));
    let pid = target.pid().to_string();
    let recorder =
        common::run::Recorder::start(&["--pmc", "instructions,context-switches,cpu-migrations", "-p", &pid]);
    recorder.wait_for_probes();
    std::fs::write(&go, "").expect("a file");
    let seen = recorder.finish().seen();
    drop(other);
    seen.complete();
    let ops = exact(&seen, 1_000_000, 1);
    assert_eq!(ops.len() as u64, seen.slices());
    let (switches, unknown) = counted::sum(&seen, "context-switches");
    println!("{switches} switches in {} ops", ops.len());
    assert!(switches > 10 && unknown == 0, "{switches} switches, unknown in {unknown} ops");
    assert_eq!(counted::sum(&seen, "cpu-migrations"), (0, 0), "it is kept to one CPU");
}

/// A counter that wants its PMU for itself, for each CPU: the others get it in turn.
fn rivals() -> Vec<File> {
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
    let open = |cpu: usize| {
        let mut attr = sys::bindings::perf_event_attr {
            // PERF_TYPE_HARDWARE, PERF_COUNT_HW_CPU_CYCLES
            type_: 0,
            config: 0,
            size: size_of::<sys::bindings::perf_event_attr>() as u32,
            ..Default::default()
        };
        attr.set_exclusive(1);
        // SAFETY: the attributes are as long as they say.
        let fd = unsafe { sys::perf_event_open(&raw mut attr, -1, cpu as i32, -1, 8) };
        assert!(fd >= 0, "a rival on CPU {cpu}: {}", std::io::Error::last_os_error());
        // SAFETY: the descriptor was just made for us.
        unsafe { File::from_raw_fd(fd) }
    };
    (0..cpus).map(open).collect()
}

#[test]
fn counters_that_share_slots_are_scaled() {
    let _turn = live!();
    if let Err(why) = counts("instructions") {
        skip!("{why}");
    }
    let program = fixture!("modern");
    let program = program.to_str().expect("a path");
    let rivals = rivals();
    let run = fake(program, &["--pmc", "instructions,cycles"], &["--op-loops", "8000000", "-t", "1"]);
    drop(rivals);
    let seen = run.seen();
    seen.complete();
    let c = counter(&seen, "instructions");
    let share = c.running_ns as f64 / c.enabled_ns as f64;
    println!("share {share:.3}: {}", c.why);
    assert!(share > 0.1 && share < 0.9, "{c:?}");
    assert_eq!(c.state, Availability::Partly);
    assert!(c.why.contains("had a slot"), "{}", c.why);
    // What is known is the whole count, though only part of it was counted; how near it comes is a matter of what else
    // this machine does.
    let ops = counted::ops(&seen);
    let ratio = |o: &OpCount| Some(o.counts[c.id as usize]? as f64 / length(&seen, o, 8_000_000) as f64);
    let known: Vec<f64> = ops.iter().filter_map(ratio).collect();
    let near = known.iter().filter(|r| (0.9..1.1).contains(*r)).count();
    println!("known in {} of {} ops, {near} of them near", known.len(), ops.len());
    assert!(known.len() > ops.len() / 8 && known.len() < ops.len());
    assert!(near * 10 >= known.len() * 8, "{known:?}");
}

/// With more counters than slots they share them, or, where some slots do not count, what is left over is not counted at
/// all.
#[test]
fn more_counters_than_slots() {
    let _turn = live!();
    if let Err(why) = counts("instructions") {
        skip!("{why}");
    }
    let all = "instructions,cycles,branches,instructions:uk,cycles:uk,branches:uk,instructions:ku,cycles:ku";
    let program = fixture!("modern");
    let program = program.to_str().expect("a path");
    let options = ["--op-loops", "1000000", "-t", "1"];
    let refused = fake(program, &["--pmc", all, "--pmc-strict"], &options);
    if refused.status.success() {
        skip!("this PMU has slots for 8 counters");
    }
    assert!(refused.stderr.contains("slots for"), "{}", refused.stderr);
    let run = fake(program, &["--pmc", all], &options);
    let seen = run.seen();
    seen.complete();
    let all = &seen.all.causes.counters;
    assert_eq!(all.len(), 8);
    assert!(all.iter().any(|c| c.state != Availability::Whole && c.why.contains("slot")), "{all:?}");
    let c = counter(&seen, "instructions");
    if c.running_ns == c.enabled_ns {
        exact(&seen, 1_000_000, 1);
    }
}

#[test]
fn what_cannot_be_counted_is_told() {
    let _turn = live!();
    let program = fixture!("modern");
    let program = program.to_str().expect("a path");
    let run = fake(program, &["--pmc", "minor-faults,cylces,l3d_cache_refill"], &["-t", "1"]);
    let seen = run.seen();
    seen.complete();
    assert!(
        run.stderr.contains("counter cylces is not to be had: no counter has this name; near are cycles")
    );
    assert_eq!(counter(&seen, "minor-faults").state, Availability::Whole);
    let wrong = counter(&seen, "cylces");
    assert_eq!((wrong.state, wrong.enabled_ns), (Availability::None, 0));
    assert!(seen.all.notices.iter().any(|n| n.text.contains("cylces")), "the trace knows as well");
    assert_eq!(counted::ops(&seen).len() as u64, seen.slices());
    let feature = seen.all.causes.features.iter().find(|f| f.name == "counters").expect("told");
    assert_eq!(feature.state, Availability::Partly);
    let strict = fake(program, &["--pmc", "minor-faults,cylces", "--pmc-strict"], &["-t", "1"]);
    assert!(!strict.status.success() && strict.stderr.contains("cylces"), "{}", strict.stderr);
    let run = fake(program, &["--pmc", "minor-faults", "--source", "perf"], &["-t", "1"]);
    let seen = run.seen();
    assert!(run.stderr.contains("no counters: counters need BPF"), "{}", run.stderr);
    assert_eq!(counter(&seen, "minor-faults").state, Availability::None);
    assert!(counted::ops(&seen).is_empty() && seen.slices() > 0);
}
