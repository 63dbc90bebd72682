//! Recordings from inside as a user without any capability: what the kernel tells of one's own threads.

use crate::common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use common::busy::Busy;
use common::seen::Seen;
use common::{fixture_dir, live, skip};
use pfi::record::{Availability, OffCpu, Tristate};

const MS: Duration = Duration::from_millis(1);
/// States of a thread that left its CPU.
const PREEMPTED: u8 = 0;
const ASLEEP: u8 = 3;
const NEW: u8 = 255;

/// Profinfer and an engine in a directory that is open to all: the originals may be in one that is not.
pub fn open_to_all(dir: &Path) -> bool {
    let Some(from) = fixture_dir("modern") else { return false };
    let open = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("a mode");
    };
    open(dir, 0o777);
    let copy = |from: &Path, name: &str| {
        fs::copy(from, dir.join(name)).expect("copied");
        open(&dir.join(name), 0o755);
    };
    ["fakellama", "libfakeggml.so"].iter().for_each(|name| copy(&from.join(name), name));
    copy(env!("CARGO_BIN_EXE_profinfer").as_ref(), "profinfer");
    true
}

/// `profinfer record` with these arguments, as nobody.
fn recorded(dir: &Path, args: &[&str], refused: &[libc::c_long]) -> Seen {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--inh-caps=-all"]);
    command.args([
        "--bounding-set=-all",
        "--no-new-privs",
        "./profinfer",
        "record",
        "--force",
        "-o",
        "t.pfi",
    ]);
    command.current_dir(dir).env("HOME", dir).args(args);
    common::refuse::refuse(&mut command, libc::EPERM, refused);
    let done = command.output().expect("setpriv");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{said}");
    assert!(said.contains("recorded from inside the engine's process"), "{said}");
    Seen::read(&dir.join("t.pfi"))
}

/// How the scheduler was recorded.
fn scheduler(seen: &Seen) -> (Availability, &'static str) {
    let feature = seen.all.causes.features.iter().find(|f| f.name == "scheduler").expect("the feature");
    (feature.state, feature.why)
}

/// The kernel's sum of what threads waited for a CPU, seconds.
fn waited(why: &str) -> f64 {
    let text = why.split_once(", waited ").and_then(|(_, rest)| rest.split_once(" s for a CPU"));
    text.and_then(|(n, _)| n.parse().ok()).unwrap_or_else(|| panic!("no sum: {why}"))
}

fn sum(records: &[OffCpu], wanted: impl Fn(&OffCpu) -> bool) -> f64 {
    records.iter().filter(|r| wanted(r)).map(|r| r.dur as f64 / 1e9).sum()
}

/// The times of its own threads, beside one that takes their CPU, against the kernel's sums.
#[test]
fn who_waited_for_a_cpu_is_known_to_an_ordinary_user() {
    let _turn = live!();
    let dir = tempfile::tempdir().expect("a directory");
    if !open_to_all(dir.path()) {
        skip!("the fixture could not be built here");
    }
    let (seen, why) = {
        let _interferer = Busy::start("interferer", 0, 2 * MS, MS);
        let engine =
            ["--", "taskset", "-c", "0", "./fakellama", "-n", "1000000", "--op-ns", "100000", "-t", "1"];
        let seen = recorded(dir.path(), &[&["--duration", "3"], &engine[..]].concat(), &[]);
        let (state, why) = scheduler(&seen);
        if state == Availability::None {
            skip!("{why}");
        }
        assert_eq!(state, Availability::Partly, "{why}");
        (seen, why)
    };
    seen.books_close();
    let records = &seen.all.causes.off_cpu;
    let (preempted, kernel) = (sum(records, |r| r.state == PREEMPTED), waited(why));
    println!(
        "{} times, {preempted:.3} s preempted, {kernel:.2} s by the kernel's sums: {why}",
        records.len()
    );
    // The engine does not sleep, and is preempted most of the time.
    assert!(preempted > 0.5 && (preempted - kernel).abs() < 0.1 * kernel + 0.1);
    assert_eq!(seen.kind("offcpu").lost, 0);
    assert!(records.iter().all(|r| r.by == 0 && r.from == 0), "other programs are not seen");
    let report = |args: &[&str]| {
        let mut report = common::run::profinfer();
        let done = common::run::run(report.arg("report").args(args).arg(dir.path().join("t.pfi")));
        // Lines are wrapped.
        done.stdout.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let all = report(&["--all"]);
    assert!(all.contains("(not known)") && !all.contains("CPU quota"), "{all}");
    let verdict = report(&[]);
    assert!(verdict.contains("what had the CPUs is not known without root"), "{verdict}");
}

/// New threads from their beginning, sleeps without a reason, and none of another process.
#[test]
fn threads_are_followed_from_their_beginning() {
    let _turn = live!(beside others, from inside);
    let dir = tempfile::tempdir().expect("a directory");
    if !open_to_all(dir.path()) {
        skip!("the fixture could not be built here");
    }
    let engine = ["--", "./fakellama", "-n", "20", "--fresh-threads", "--sleep", "-t", "2"];
    let seen = recorded(dir.path(), &engine, &[]);
    let (state, why) = scheduler(&seen);
    if state == Availability::None {
        skip!("{why}");
    }
    seen.books_close();
    // Threads that yield to one another on too few CPUs make more records than a busy machine lets anybody read.
    let lost = seen.kind("offcpu").lost;
    if lost > 0 {
        println!("not compared: {lost} times away were lost");
        return;
    }
    let records = &seen.all.causes.off_cpu;
    let ran: std::collections::BTreeSet<u32> = seen.all.runs.iter().map(|r| r.tid).collect();
    let of = |tid: u32| records.iter().filter(move |r| r.tid == tid);
    let processes: std::collections::BTreeSet<u32> = seen.all.tokens.iter().map(|t| t.pid).collect();
    assert!(records.iter().all(|r| processes.contains(&r.pid)));
    for tid in ran.iter().filter(|tid| !processes.contains(tid)) {
        let born =
            of(*tid).min_by_key(|r| r.t).unwrap_or_else(|| panic!("thread {tid} was never off its CPU"));
        assert_eq!((born.state, born.runnable), (NEW, Some(born.dur)));
        assert!(of(*tid).any(|r| r.state == ASLEEP && r.runnable.is_none() && r.fault == Tristate::Unknown));
    }
    let all: Vec<(i64, i64, u32)> = records.iter().map(|r| (r.t, r.t + r.dur as i64, r.tid)).collect();
    for tid in ran {
        let mut times: Vec<_> = all.iter().filter(|r| r.2 == tid).collect();
        times.sort_unstable();
        assert!(times.windows(2).all(|two| two[0].1 <= two[1].0), "two at once: {times:?}");
    }
}

/// As in a container: only the sums are known, and this is said.
#[test]
fn without_switch_records_the_sums_are_told() {
    let _turn = live!(beside others, from inside);
    let dir = tempfile::tempdir().expect("a directory");
    if !open_to_all(dir.path()) {
        skip!("the fixture could not be built here");
    }
    let engine = ["--duration", "5", "--", "./fakellama", "-n", "1000000", "--op-ns", "100000", "-t", "1"];
    let seen = recorded(dir.path(), &engine, &[libc::SYS_perf_event_open, libc::SYS_bpf]);
    let (state, why) = scheduler(&seen);
    assert_eq!(state, Availability::None, "{why}");
    assert!(seen.all.causes.off_cpu.is_empty() && waited(why) >= 0.0);
}
