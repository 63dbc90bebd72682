//! The privileges of the service and its recorders over time: few in the service, and few in a recorder of a fixed
//! level once it is attached; engines that this recorder can no longer attach to are recorded by another one.

use crate::common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::run::{Target, wait_until};
use common::seen::Seen;
use common::service::Service;
use common::{fixture_dir, live, skip};

/// DAC_READ_SEARCH and SYS_PTRACE (include/uapi/linux/capability.h).
const READ: u64 = 1 << 2 | 1 << 19;
const SYS_ADMIN: u64 = 1 << 21;
/// Those and SYS_RESOURCE, PERFMON, BPF.
const ALL: u64 = READ | SYS_ADMIN | 1 << 24 | 1 << 38 | BPF;
const BPF: u64 = 1 << 39;

/// Effective and permitted capabilities of each thread.
fn caps(pid: u32) -> Vec<(u64, u64)> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("it runs");
    let of = |status: &str, name: &str| {
        let line = status.lines().find_map(|l| l.strip_prefix(name)).expect("a line of it");
        u64::from_str_radix(line.trim(), 16).expect("a number")
    };
    let status = tasks.filter_map(|t| fs::read_to_string(t.ok()?.path().join("status")).ok());
    status.map(|s| (of(&s, "CapEff:"), of(&s, "CapPrm:"))).collect()
}

/// The service's capabilities, as far as this test has them itself.
fn all() -> u64 {
    caps(std::process::id())[0].1 & ALL
}

/// A service with a rule for all engines below its directory.
fn serve(budget: &str) -> Service {
    let dir = tempfile::tempdir().expect("a directory");
    let engines = dir.path().join("*/fakellama");
    let rule =
        format!("\n[[rule]]\nname = \"all\"\nexe = \"{}\"\nbudget = \"{budget}\"\n", engines.display());
    Service::start_in(dir, "idle-timeout = \"1h\"", &rule)
}

/// Another engine's program that the rule matches.
fn copy(fixture: &str, service: &Service, name: &str) -> PathBuf {
    let program = fixture_dir(fixture).expect("the fixture").join("fakellama");
    common::copied(program, service.path(name))
}

const LONG: [&str; 9] = ["-t", "2", "-p", "4", "-n", "100000", "--op-ns", "300000", "--sleep"];

fn run(program: &Path) -> Target {
    Target::start(program, &LONG)
}

/// Waits until the process is recorded by the rule's newest recorder, and the log contains this message that many
/// times; returns the recorder.
fn recorded(service: &Service, target: &Target, news: &str, times: usize) -> u32 {
    let state = service.wait_for("it is recorded", |s| {
        let runs = s["runs"].as_array().into_iter().flatten();
        let mut of_target = runs.filter(|r| r["pid"] == target.pid() && r["ended"].is_null());
        of_target.any(|r| r["tokens"].as_u64() > Some(20)) && service.log().matches(news).count() == times
    });
    state["rules"][0]["recorder"].as_u64().expect("a recorder") as u32
}

const GIVEN_UP: &str = "is attached and has dropped";

#[test]
fn a_recorder_of_a_fixed_level_has_little_once_it_is_attached() {
    let _turn = live!(beside others);
    if fixture_dir("old").is_none() {
        skip!("the fixture could not be built here");
    }
    let (all, mut service) = (all(), serve("100%"));
    assert_eq!(caps(service.child.id()), [(READ, all)]);
    let idle = service.state()["rules"][0]["recorder"].as_u64().expect("one that has learnt") as u32;
    assert!(caps(idle).iter().all(|c| *c == (all, all)), "{:x?}", caps(idle));

    let first = run(&service.engine());
    let recorder = recorded(&service, &first, GIVEN_UP, 1);
    assert_eq!(recorder, idle);
    for (effective, permitted) in caps(recorder) {
        assert_eq!((effective, permitted & !BPF), (permitted, READ), "{permitted:x}");
    }
    assert_eq!(caps(service.child.id()), [(READ, all)]);

    // Another run of the same file is already attached.
    let second = run(&service.engine());
    assert_eq!(recorded(&service, &second, GIVEN_UP, 1), recorder);
    // Another file is not.
    let third = run(&copy("old", &service, "other"));
    let other = recorded(&service, &third, GIVEN_UP, 2);
    assert_ne!(other, recorder);
    // Each goes to the recorder that has its file, whichever recorder is newest.
    drop(first);
    let fourth = run(&service.engine());
    assert_eq!(recorded(&service, &fourth, GIVEN_UP, 2), other);

    let pids = [&second, &third, &fourth].map(Target::pid);
    assert_eq!(service.stop(), Some(0));
    wait_until("nothing of the recorders is left", || {
        [recorder, other].iter().all(|pid| !Path::new(&format!("/proc/{pid}")).exists())
    });
    let seen = service.seen();
    assert_eq!(seen.len(), 2, "a file for each recorder: {}", service.log());
    seen.iter().for_each(Seen::books_close);
    for (pid, by) in pids.into_iter().zip([0, 1, 0]) {
        let tokens = |seen: &Seen| seen.all.tokens.iter().filter(|t| t.pid == pid).count();
        assert!(tokens(&seen[by]) > 20 && tokens(&seen[1 - by]) == 0, "process {pid}");
    }
}

/// The service's file-inspection processes.
fn lookers(service: u32) -> Vec<u32> {
    let children = fs::read_to_string(format!("/proc/{service}/task/{service}/children")).expect("it runs");
    let named = |pid: &u32| {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "profinfer-look")
    };
    children.split_whitespace().filter_map(|pid| pid.parse().ok()).filter(named).collect()
}

#[test]
fn a_process_that_looks_at_files_can_neither_probe_nor_load() {
    let _turn = live!(beside others);
    if fixture_dir("modern").is_none() {
        skip!("the fixture could not be built here");
    }
    let (all, service) = (all(), serve("100%"));
    let (mut n, mut seen) = (0, Vec::new());
    wait_until("a file is looked at", || {
        // Each run is a new program to the service, which has to examine its files.
        let program = copy("modern", &service, &format!("new{}", n));
        n += 1;
        drop(run(&program));
        seen = lookers(service.child.id());
        !seen.is_empty()
    });
    wait_until("it has given up what that does not take", || {
        seen.iter().flat_map(|&pid| caps(pid)).all(|c| c == (READ, all & (READ | SYS_ADMIN)))
    });
}

#[test]
fn a_run_with_another_part_of_a_known_engine_is_handed_over() {
    let _turn = live!(beside others);
    if fixture_dir("late").is_none() {
        skip!("the fixture could not be built here");
    }
    let service = serve("100%");
    let program = copy("late", &service, "late");
    let first = run(&program);
    let recorder = recorded(&service, &first, GIVEN_UP, 1);
    // The same base, and therefore the same engine to the service; the part that it loads later is not probed.
    let part = program.with_file_name("another-cpu.so");
    fs::copy(program.with_file_name("libfakeggml-cpu.so"), &part).expect("copied");
    let mut command = Command::new(&program);
    let second = Target::spawn(command.args(LONG).arg("--cpu").arg(&part));
    let other = recorded(&service, &second, GIVEN_UP, 2);
    assert_ne!(other, recorder);
    // Each later run gets the recorder that has its parts, even if several have the base.
    let third = run(&program);
    recorded(&service, &third, GIVEN_UP, 2);
    let mut command = Command::new(&program);
    let fourth = Target::spawn(command.args(LONG).arg("--cpu").arg(&part));
    assert_eq!(recorded(&service, &fourth, GIVEN_UP, 2), other);
}

#[test]
fn a_recorder_with_a_budget_keeps_what_levels_take_and_has_fifteen_engines() {
    let _turn = live!();
    let (all, service) = (all(), serve("50%"));
    let target = run(&service.engine());
    let recorder = recorded(&service, &target, GIVEN_UP, 0);
    assert!(caps(recorder).iter().all(|c| *c == (all, all)), "{:x?}", caps(recorder));
    let others: Vec<Target> = (1..16).map(|n| run(&copy("modern", &service, &n.to_string()))).collect();
    service.wait_for("all are recorded", |s| {
        let runs = s["runs"].as_array().into_iter().flatten();
        runs.filter(|r| r["tokens"].as_u64() > Some(2)).count() == 1 + others.len()
    });
    assert_ne!(service.state()["rules"][0]["recorder"], recorder, "the sixteenth has another");
    assert!(!service.log().contains("not recorded"), "{}", service.log());
}
