//! `profinfer serve` with hostile users: handling of a recorder that hangs or is killed, and no user's engines keep
//! another user's from being recorded.

use crate::common;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use common::run::{Target, signal_to};
use common::seen::Seen;
use common::service::Service;
use common::{fixture_dir, live};
use serde_json::Value;

const NOBODY: u32 = 65534;
const LONG: [&str; 9] = ["-t", "1", "-p", "4", "-n", "100000", "--op-ns", "300000", "--sleep"];

/// A service for all engines below its directory, which anybody may run.
fn serve(own: &str) -> Service {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).expect("permissions");
    let engines = dir.path().join("**");
    let rule = format!("\n[[rule]]\nname = \"all\"\nexe = \"{}\"\nbudget = \"100%\"\n", engines.display());
    Service::start_in(dir, &format!("idle-timeout = \"1h\"\n{own}"), &rule)
}

/// The same program at another place: another engine's file.
fn copy(service: &Service, name: &str) -> PathBuf {
    let program = fixture_dir("modern").expect("the fixture").join("fakellama");
    common::copied(program, service.path(name))
}

/// A program run as nobody.
fn as_nobody(program: &Path, args: &[&str]) -> Child {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(program).args(args);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("setpriv")
}

/// Ended with the test.
struct Nobodys(Vec<Child>);

impl Nobodys {
    fn run(n: usize, program: &Path, args: &[&str]) -> Nobodys {
        Nobodys((0..n).map(|_| as_nobody(program, args)).collect())
    }

    fn pids(&self) -> Vec<u32> {
        self.0.iter().map(Child::id).collect()
    }

    fn end(&mut self, i: usize) {
        let mut child = self.0.remove(i);
        let _ = child.kill();
        let _ = child.wait();
    }
}

impl Drop for Nobodys {
    fn drop(&mut self) {
        while !self.0.is_empty() {
            self.end(0);
        }
    }
}

fn run(state: &Value, pid: u32) -> Value {
    let mut runs = state["runs"].as_array().into_iter().flatten();
    runs.rfind(|r| r["pid"] == pid).cloned().unwrap_or_default()
}

fn tokens(state: &Value, pid: u32) -> u64 {
    run(state, pid)["tokens"].as_u64().unwrap_or(0)
}

/// Name of the file that it is currently recorded to.
fn file(state: &Value, pid: u32) -> Option<String> {
    run(state, pid)["file"].as_str().map(str::to_owned)
}

#[test]
fn a_recorder_that_stands_still_is_killed_and_its_other_runs_go_on() {
    let _turn = live!();
    let service = serve("recorder-timeout = \"5s\"");
    let (first, last) = (copy(&service, "first"), copy(&service, "last"));
    let first = Target::start(&first, &LONG);
    // Longer than data may wait before it is written.
    service.wait_for("it is recorded", |s| tokens(s, first.pid()) > 200);
    let state = service.state();
    let stuck = state["rules"][0]["recorder"].as_u64().expect("a recorder") as u32;
    let before = file(&state, first.pid());
    signal_to(stuck, libc::SIGSTOP);
    let last = Target::start(&last, &LONG);
    service.wait_for_log("it has shown no sign of life for 5 s", 1);
    let state = service.wait_for("another goes on", |s| {
        let now = file(s, first.pid());
        tokens(s, first.pid()) > 20 && now.is_some() && now != before
    });
    let missed = run(&state, last.pid());
    assert!(missed["ended"].as_str().is_some_and(|why| why.contains("its recorder was killed")), "{state}");
    assert_eq!(
        (&state["counts"]["missed"], &state["quarantined"][0]["uid"]),
        (&1.into(), &0.into()),
        "{state}"
    );
    let traces = service.traces();
    assert!(traces.len() >= 2, "what the first wrote stays: {traces:?}");
    assert!(!pfi::Trace::open(&traces[0]).expect("a trace").blocks().is_empty());
    // The quarantined file is quarantined for new runs too.
    let again = Target::start(service.path("last/fakellama"), &LONG);
    service.wait_for("it is told", |s| {
        run(s, again.pid())["ended"].as_str().is_some_and(|why| why.contains("is quarantined"))
    });
}

#[test]
fn sixteen_sleepers_of_nobody_keep_nobody_else_out() {
    let _turn = live!(beside others);
    let service = serve("");
    let engine = service.engine();
    let mut sleepers = Nobodys::run(17, &engine, &["--wait-for", "/nowhere/at/all"]);
    let state = service.wait_for("sixteen have a place, and one waits", |s| {
        let runs = s["runs"].as_array().map_or(0, Vec::len);
        (runs, s["counts"]["waiting"].as_u64()) == (16, Some(1))
    });
    let waits: Vec<u32> = sleepers.pids().into_iter().filter(|&pid| run(&state, pid).is_null()).collect();
    let root = Target::start(&engine, &LONG);
    service.wait_for("root's is recorded at once", |s| tokens(s, root.pid()) > 5);
    // When one ends, the waiting one gets its slot.
    let ends = sleepers.pids().iter().position(|pid| !waits.contains(pid)).expect("one");
    sleepers.end(ends);
    let state = service.wait_for("it is taken in", |s| {
        run(s, waits[0])["level"].as_str().is_some_and(|level| !level.is_empty())
    });
    assert_eq!(
        (&state["counts"]["waiting"], &state["counts"]["max_concurrent"]),
        (&0.into(), &0.into()),
        "{state}"
    );
}

#[test]
fn a_recorder_of_nobodys_that_dies_again_and_again_costs_root_nothing() {
    let _turn = live!(beside others);
    let mut service = serve("");
    let (engine, other) = (service.engine(), copy(&service, "other"));
    let root = Target::start(&engine, &LONG);
    service.wait_for("root's is recorded", |s| tokens(s, root.pid()) > 20);
    let roots = service.recorders();
    assert_eq!(roots.len(), 1, "{}", service.log());
    let nobodys = Nobodys::run(1, &other, &LONG);
    let mut last = None;
    for deaths in 1..=3 {
        let state = service.wait_for("nobody's is recorded", |s| {
            let now = file(s, nobodys.pids()[0]);
            now.is_some() && now != last && tokens(s, nobodys.pids()[0]) > 5
        });
        last = file(&state, nobodys.pids()[0]);
        let its: Vec<u32> = service.recorders().into_iter().filter(|pid| !roots.contains(pid)).collect();
        assert_eq!(its.len(), 1, "one recorder for each user: {}", service.log());
        signal_to(its[0], libc::SIGKILL);
        service.wait_for_log("has died", deaths);
    }
    assert_eq!(service.recorders().iter().filter(|pid| roots.contains(pid)).count(), 1, "it is the same one");
    let state = service.state();
    assert!(run(&state, nobodys.pids()[0])["uid"].as_u64().is_none_or(|uid| uid == u64::from(NOBODY)));
    let before = tokens(&state, root.pid());
    service.wait_for("root's goes on", |s| tokens(s, root.pid()) > before);
    let pid = root.pid();
    drop(root);
    service.wait_for("it has ended", |s| run(s, pid)["ended"] == "the process has ended");
    drop(nobodys);
    assert_eq!(service.stop(), Some(0));
    let all: Vec<Seen> = service
        .traces()
        .iter()
        .filter_map(|t| {
            let trace = pfi::Trace::open(t).ok()?;
            trace.has_footer().then(|| Seen::read(t))
        })
        .collect();
    let of_root = |seen: &&Seen| seen.all.tokens.iter().any(|t| t.pid == pid);
    let its: Vec<&Seen> = all.iter().filter(of_root).collect();
    assert_eq!(its.len(), 1, "one file has all of it");
    its[0].books_close();
    let mut next = None;
    for t in its[0].all.tokens.iter().filter(|t| t.pid == pid) {
        assert!(next.is_none_or(|n| n == t.seq), "token {} where {next:?} was to come", t.seq);
        next = Some(t.seq + 1);
    }
}
