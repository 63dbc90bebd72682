//! The privileges that recording needs: the capabilities of the service's unit are enough, and without any one of
//! them recording fails as docs/INSTALL.md describes.

use crate::common;

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use common::run::{Recorder, Run, Target};
use common::{live, skip};

const UNIT: &str = include_str!("../../conf/systemd/profinfer.service");
/// No machine that runs tests has a user with this id.
const STRANGER: u32 = 42_424;

/// The unit's capabilities, as setpriv names them.
fn of_unit() -> Vec<String> {
    let line = UNIT.lines().find_map(|l| l.strip_prefix("CapabilityBoundingSet=")).expect("a line of them");
    line.split(' ').map(|c| c.trim_start_matches("CAP_").to_lowercase()).collect()
}

/// profinfer as root with only these capabilities.
fn with(caps: &[String]) -> Command {
    let set: String = caps.iter().map(|c| format!(",+{c}")).collect();
    let mut command = Command::new("setpriv");
    command.arg(format!("--bounding-set=-all{set}")).arg("--inh-caps=-all").arg(common::profinfer());
    command
}

fn without(caps: &[&str]) -> Vec<String> {
    of_unit().into_iter().filter(|c| !caps.contains(&c.as_str())).collect()
}

/// An engine of another user, in a directory that only that user can access.
fn stranger(fixture: &Path, home: &Path) -> Target {
    let dir = home.join("private");
    fs::create_dir(&dir).expect("a directory");
    for file in fs::read_dir(fixture).expect("the fixture's files") {
        let file = file.expect("a file").path();
        if file.is_file() {
            fs::copy(&file, dir.join(file.file_name().expect("a name"))).expect("copied");
        }
    }
    fs::set_permissions(home, fs::Permissions::from_mode(0o711)).expect("mode");
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).expect("mode");
    chown(&dir, Some(STRANGER), Some(STRANGER)).expect("owner");
    let mut command = Command::new(dir.join("fakellama"));
    Target::spawn(command.args(["-n", "1000000", "--op-ns", "1000"]).uid(STRANGER).gid(STRANGER))
}

fn record(caps: &[String], target: &Target, more: &[&str]) -> Run {
    recorded(with(caps), target, more)
}

fn recorded(profinfer: Command, target: &Target, more: &[&str]) -> Run {
    let pid = target.pid().to_string();
    let args: Vec<&str> = ["--tokens", "5", "-p", &pid].iter().chain(more).copied().collect();
    Recorder::start_as(profinfer, &args).finish()
}

/// It must fail with this message.
fn refused(run: &Run, why: &str) {
    assert!(!run.status.success(), "recorded all the same: {}", run.stderr);
    assert!(run.stderr.contains(why), "{why:?} in {}", run.stderr);
}

/// The kernel counts what perf events lock for all processes of a user: with two other recordings there may be nothing
/// left for buffers as large as asked for.
#[test]
fn buffers_are_as_large_as_may_be_locked() {
    let _turn = live!();
    if Command::new("prlimit").arg("--version").output().is_err() {
        skip!("no prlimit: scripts/setup.sh installs it (util-linux)");
    }
    let Some(fixture) = common::fixture_dir("modern") else { skip!("the fixture could not be built here") };
    let home = tempfile::tempdir().expect("a directory");
    let target = stranger(&fixture, home.path());
    let (unlimited, mut limited) = (with(&of_unit()), Command::new("prlimit"));
    limited.arg("--memlock=1048576").arg(unlimited.get_program()).args(unlimited.get_args());
    let run = recorded(limited, &target, &["--source", "perf"]);
    assert!(
        run.stderr.contains("KiB per CPU instead of") && run.stderr.contains("RLIMIT_MEMLOCK"),
        "{}",
        run.stderr
    );
    run.seen().books_close();
}

#[test]
fn the_units_capabilities_are_enough_and_each_is_needed() {
    let _turn = live!(beside others, by perf events);
    let Some(fixture) = common::fixture_dir("modern") else { skip!("the fixture could not be built here") };
    if Command::new("setpriv").arg("--version").output().is_err() {
        skip!("no setpriv: scripts/setup.sh installs it (util-linux)");
    }
    let home = tempfile::tempdir().expect("a directory");
    let target = stranger(&fixture, home.path());

    record(&of_unit(), &target, &[]).seen().books_close();

    let run = record(&without(&["bpf", "sys_admin"]), &target, &[]);
    assert!(
        run.stderr.contains("recorded by perf events, without BPF (CAP_BPF is missing"),
        "{}",
        run.stderr
    );
    run.seen().books_close();

    refused(&record(&without(&["perfmon", "sys_admin"]), &target, &[]), "CAP_PERFMON is missing");
    refused(&record(&without(&["sys_ptrace"]), &target, &[]), "cannot be inspected");
    refused(&record(&without(&["dac_read_search"]), &target, &[]), "cannot be inspected");

    // Kernels require CAP_PERFMON or CAP_SYS_ADMIN for a uprobe; only a trial shows which.
    let run = record(&without(&["sys_admin"]), &target, &[]);
    if run.status.success() {
        println!("this kernel asks for CAP_PERFMON only");
        run.seen().books_close();
    } else {
        refused(&run, "requires CAP_SYS_ADMIN");
        record(&without(&["sys_admin"]), &target, &["--source", "perf"]).seen().books_close();
    }
    // It includes both of the others.
    record(&without(&["bpf", "perfmon"]), &target, &[]).seen().books_close();
}
