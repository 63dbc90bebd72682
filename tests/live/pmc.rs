//! Counters of ops on real hardware: against loops of known length, against the kernel's own count of the thread,
//! with other load on the same CPU, with more counters than the PMU has slots; page faults against getrusage.

use crate::common;

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::FromRawFd;
use std::process::Command;

use perf_event_open_sys as sys;

use common::cage::{Cage, forget};
use common::counted::{self, OpCount, counter};
use common::run::{Recorder, Run, Target, profinfer, record, run};
use common::seen::Seen;
use common::{driver, engine, fixture, live, model, runner, skip, skips};
use pfi::record::Availability;

/// Maximum instructions of a fake engine's op besides its loop: calls, and barriers inside it that do not wait.
const AROUND: u64 = 400;

/// Whether this machine counts this event; otherwise the reason.
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

/// Whether the kernel has found a processor's PMU: a virtual machine may have none.
fn has_pmu() -> bool {
    let units = std::fs::read_dir("/sys/bus/event_source/devices").into_iter().flatten().flatten();
    let mut names = units.filter_map(|unit| unit.file_name().into_string().ok());
    names.any(|name| name == "cpu" || name.starts_with("cpu_") || name.starts_with("arm"))
}

/// Ends the test if this machine cannot count such an event: without a verdict if it has no PMU, which cannot be
/// installed.
macro_rules! counting {
    ($name:expr) => {
        match counts($name) {
            Err(why) if !has_pmu() => {
                return skips::lacking(&format!("no counting unit: {why}"));
            }
            Err(why) => skip!("{why}"),
            Ok(()) => {}
        }
    };
}

/// Instructions of the fake engine's loop in an op.
fn length(seen: &Seen, op: &OpCount, loops: u64) -> u64 {
    2 * loops * (1 + seen.tensor(op.tensor).ne[0] % 3)
}

/// A barrier inside an op waits for the others, for an arbitrary time.
fn waits(seen: &Seen, op: &OpCount) -> bool {
    let name = seen.all.ops[&seen.tensor(op.tensor).op].name;
    name.starts_with("MUL_MAT")
}

/// Every op has its own instructions and nobody else's. Returns the ops. The kernel skips our programs if a context
/// switch interrupts its own work for them: one op in fifty may have no counts, and is marked so.
fn exact(seen: &Seen, loops: u64, threads: u32) -> Vec<OpCount> {
    let id = counter(seen, "instructions").id as usize;
    let ops = counted::ops(seen);
    assert!(!ops.is_empty());
    let unknown = ops.iter().filter(|o| o.counts[id].is_none()).count();
    assert!(unknown <= 1 + ops.len() / 50, "{unknown} of {} ops have no counts", ops.len());
    // During the first graph the dynamic linker still has work to do.
    for op in ops.iter().filter(|o| o.graph > 0) {
        let loop_alone = length(seen, op, loops);
        let Some(got) = op.counts[id] else { continue };
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
    counting!("instructions");
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
    counting!("instructions");
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
    let recorder = Recorder::start(&["--pmc", "instructions,context-switches,cpu-migrations", "-p", &pid]);
    recorder.wait_for_probes();
    fs::write(&go, "").expect("a file");
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

/// A kernel counter: cycles (0) or instructions (1) of a thread or a CPU (-1: any).
fn perf_event(config: u64, pid: i32, cpu: i32, shape: fn(&mut sys::bindings::perf_event_attr)) -> File {
    let mut attr = sys::bindings::perf_event_attr {
        type_: sys::bindings::PERF_TYPE_HARDWARE,
        config,
        size: size_of::<sys::bindings::perf_event_attr>() as u32,
        ..Default::default()
    };
    shape(&mut attr);
    // SAFETY: the attributes have the size that they state.
    let fd = unsafe { sys::perf_event_open(&raw mut attr, pid, cpu, -1, 8) };
    assert!(fd >= 0, "an event of our own: {}", std::io::Error::last_os_error());
    // SAFETY: the descriptor was just created and is not shared.
    unsafe { File::from_raw_fd(fd) }
}

fn reading(mut event: &File) -> u64 {
    let mut bytes = [0; 8];
    event.read_exact(&mut bytes).expect("a count");
    u64::from_ne_bytes(bytes)
}

/// An exclusive counter on each CPU: the others get the PMU in turn.
fn rivals() -> Vec<File> {
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
    (0..cpus).map(|cpu| perf_event(0, -1, cpu as i32, |a| a.set_exclusive(1))).collect()
}

/// Ops of a real engine: the same from token to token, and together nearly everything that the thread does.
#[test]
fn a_real_engine_beside_the_count_of_its_thread() {
    let _turn = live!();
    counting!("instructions");
    let lib = match engine("v0.5.0") {
        Ok(path) => path,
        Err(why) => skip!("{why}"),
    };
    let mut command = Command::new(driver());
    command.arg("--engine").arg(lib).arg("--model").arg(model("tiny", "q4_0"));
    let mut target = Target::controlled(command.args(["--control", "--ctx", "256", "-t", "1"]));
    let pid = target.pid();
    target.tell("", 1);
    let recorder = Recorder::start(&["--pmc", "instructions", "-p", &pid.to_string()]);
    recorder.wait_for_probes();
    target.tell("prefill 7\n", 2);
    target.tell("run 4\n", 3);
    let own = perf_event(1, pid as i32, -1, |a| {
        a.set_exclude_kernel(1);
        a.set_exclude_hv(1);
    });
    target.tell("run 8\n", 4);
    let whole = reading(&own);
    drop(target.0.stdin.take());
    target.said();
    let seen = recorder.finish().seen();
    seen.complete();
    let graphs: Vec<u64> = seen.graphs(pid).iter().rev().take(8).map(|g| g.seq).collect();
    let ops: Vec<OpCount> = counted::ops(&seen).into_iter().filter(|o| graphs.contains(&o.graph)).collect();
    let sum: u64 = ops.iter().map(|o| o.counts[0].expect("known")).sum();
    let share = sum as f64 / whole as f64;
    let mut spread: Vec<f64> = counted::series(&seen, "instructions")
        .values()
        .map(|s| s.iter().rev().take(8).map(|c| c.expect("known")))
        .filter_map(|s| Some((s.clone().max()?, s.min()?)))
        .map(|(most, least)| (most - least) as f64 / most as f64)
        .collect();
    spread.sort_by(f64::total_cmp);
    let at = |q: usize| spread[(spread.len() - 1) * q / 100] * 100.0;
    println!(
        "{} ops in {} instructions: {:.2} % of the thread's; from token to token an op's differ by {:.3} % \
         (median), {:.3} % (90 of 100), {:.2} % (most)",
        ops.len(),
        sum,
        share * 100.0,
        at(50),
        at(90),
        at(100)
    );
    assert!(share > 0.9 && share < 1.001, "{sum} of {whole}");
    assert!(at(50) < 0.5, "{spread:?}");
}

/// A model larger than the memory: its weights are read from storage again and again, in the ops that need them.
#[test]
#[expect(clippy::zombie_processes, reason = "wait4 waits, and tells what the process used")]
fn major_faults_are_those_of_getrusage() {
    const LEAST: u64 = 60 << 20;
    let _turn = live!();
    let path = model("moe", "f16");
    let cage = match Cage::new(LEAST) {
        Ok(cage) => cage,
        Err(why) => skip!("{why}"),
    };
    forget(&path, 2 * LEAST);
    let program = runner();
    let recorder = Recorder::start(&["--faults", "--exe", program.to_str().expect("a path")]);
    recorder.wait_for_probes();
    let mut command = Command::new(&program);
    command.args(["run", "-p", "8", "-n", "8", "-t", "1", "--no-warmup", "--no-roofline"]);
    command.args(["--placement", "mapped", "-m"]).arg(&path).stdout(std::process::Stdio::null());
    cage.holds(&mut command);
    let child = command.spawn().expect("the runner");
    // SAFETY: all zeros is a valid value of both, which the kernel fills.
    let (status, usage) = unsafe {
        let (mut status, mut usage) = (0, std::mem::zeroed::<libc::rusage>());
        assert_eq!(libc::wait4(child.id() as i32, &raw mut status, 0, &raw mut usage), child.id() as i32);
        (status, usage)
    };
    assert_eq!(status, 0, "the runner ends well");
    recorder.signal(libc::SIGINT);
    let seen = recorder.finish().seen();
    drop(cage);
    // With so little memory the program may be in its first graph before it is probed.
    seen.books_close();
    let (ops, unknown) = counted::sum(&seen, "major-faults");
    let whole = usage.ru_majflt as u64;
    println!(
        "{ops} major faults in ops, {} outside of them, unknown in {unknown} ops",
        whole.saturating_sub(ops)
    );
    assert!(ops > 50, "the model does not fit: {ops}");
    // Outside ops: reading the program and the model's metadata.
    assert!(ops <= whole && whole - ops <= 20 + whole / 10, "{ops} of {whole}");
    // If the kernel skipped our program at a switch, the op's counts are unknown and marked as such.
    assert!(unknown * 50 <= counted::ops(&seen).len(), "unknown in {unknown} ops");
}

#[test]
fn counters_that_share_slots_are_scaled() {
    let _turn = live!();
    counting!("instructions");
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
    // Known values are scaled to the full count, though only part was counted; their accuracy depends on other load
    // on this machine.
    let ops = counted::ops(&seen);
    let ratio = |o: &OpCount| Some(o.counts[c.id as usize]? as f64 / length(&seen, o, 8_000_000) as f64);
    let known: Vec<f64> = ops.iter().filter_map(ratio).collect();
    let near = known.iter().filter(|r| (0.9..1.1).contains(*r)).count();
    println!("known in {} of {} ops, {near} of them near", known.len(), ops.len());
    assert!(known.len() > ops.len() / 8 && known.len() < ops.len());
    assert!(near * 10 >= known.len() * 8, "{known:?}");
}

/// More counters than slots share them; or, where some slots do not count, the excess counters are not counted at
/// all.
#[test]
fn more_counters_than_slots() {
    let _turn = live!();
    counting!("instructions");
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
        run.stderr.contains("counter 'cylces' is not available: no counter has this name; nearest: cycles")
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
