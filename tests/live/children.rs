//! `profinfer serve` on engines whose children decode: a run consists of all processes of its tree.

use crate::common;

use std::collections::BTreeMap;
use std::io::BufRead;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use common::live;
use common::run::signal_to;
use common::seen::Seen;
use common::service::Service;
use serde_json::Value;

const ALL: &str = "\n[[rule]]\nname = \"all\"\nexe = \"ENGINE\"\nbudget = \"100%\"\n";

/// A parent and its children; ended with the test.
struct Tree(Child);

impl Tree {
    /// It starts work once it is recorded, so nothing is missed.
    fn start(service: &Service, args: &[&str]) -> Tree {
        use std::os::unix::process::CommandExt;
        static TREES: AtomicU32 = AtomicU32::new(0);
        let go = service.path(&format!("go{}", TREES.fetch_add(1, Ordering::Relaxed)));
        let mut command = Command::new(service.engine());
        command.args(["-t", "1", "--sleep", "--wait-for"]).arg(&go).args(args).process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut events = service.events();
        let tree = Tree(command.spawn().expect("the engine"));
        events.wait_for(|e| e["event"] == "level" && e["pid"] == tree.0.id());
        std::fs::write(&go, "").expect("written");
        tree
    }

    /// Their own account: calls of llama_decode by process, and the pid of the last child.
    fn calls(mut self) -> (BTreeMap<u32, u64>, u32) {
        let out = std::io::BufReader::new(self.0.stdout.take().expect("its output"));
        let said = out.lines().map(|l| serde_json::from_str::<Value>(&l.expect("a line")).expect("JSON"));
        let mut said: Vec<Value> = said.filter(|s| s["child"] != 0).collect();
        said.sort_by_key(|s| s["child"].as_u64());
        let pid = |s: &Value| s["pid"].as_u64().expect("a number") as u32;
        let last = said.last().map(pid).expect("children");
        (
            said.iter().map(|s| (pid(s), s["calls"]["llama_decode"].as_u64().expect("a number"))).collect(),
            last,
        )
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        // SAFETY: a signal to the group led by the child, whose pid is still valid because it has not been waited
        // for.
        unsafe { libc::kill(-(self.0.id() as i32), libc::SIGKILL) };
        let _ = self.0.wait();
    }
}

fn last(service: &Service) -> Seen {
    Seen::read(service.traces().last().expect("a trace"))
}

/// Calls of each process in the last trace.
fn recorded(service: &Service) -> BTreeMap<u32, u64> {
    let mut calls = BTreeMap::new();
    let seen = last(service);
    seen.books_close();
    seen.all.tokens.iter().filter(|t| !t.cut).for_each(|t| *calls.entry(t.pid).or_default() += 1);
    calls
}

#[test]
fn the_run_is_the_sum_of_its_processes() {
    let _turn = live!(beside others);
    let service = Service::start("", ALL);
    // The first time the parent ends before its children.
    let args = [
        "-p",
        "4",
        "-n",
        "40",
        "--op-ns",
        "300000",
        "--slow-child",
        "600000",
        "--fork",
        "3",
        "--child-hold",
        "2",
        "--leave",
    ];
    for (n, args) in [(1, &args[..]), (2, &args[..args.len() - 1])] {
        let tree = Tree::start(&service, args);
        let pid = tree.0.id();
        let (calls, _) = tree.calls();
        assert_eq!(calls.values().sum::<u64>(), 3 * 41);
        let state = service.wait_for_runs(n);
        assert_eq!(recorded(&service), calls, "{:?}: {}", service.traces(), service.log());
        let run = &state["runs"][n as usize - 1];
        assert_eq!((&run["pid"], &run["tokens"]), (&pid.into(), &123.into()), "{run}");
        assert!(run["ttft_ns"].is_u64() && run["tpot_ns"][2].as_u64() > run["tpot_ns"][0].as_u64(), "{run}");
        assert_eq!((&run["ended"], &run["lost"]), (&"the process has ended".into(), &0.into()));
        assert!(run["rate"].as_f64() > Some(0.0), "{run}");
    }
    // The limit applies to their total; beyond it none of them is recorded.
    service.configure("", &format!("{ALL}tokens = 60\n"));
    service.signal(libc::SIGHUP);
    let tree = Tree::start(&service, &["-p", "0", "-n", "100", "--op-ns", "300000", "--fork", "3"]);
    let (calls, _) = tree.calls();
    assert_eq!(calls.values().sum::<u64>(), 300);
    let state = service.wait_for_runs(3);
    let run = &state["runs"][2];
    assert_eq!(run["ended"], "its first 60 tokens are recorded");
    let tokens = run["tokens"].as_u64().expect("a number");
    assert!((60..240).contains(&tokens), "{tokens}");
    let recorded = recorded(&service);
    assert!(recorded.len() == 3 && recorded.values().sum::<u64>() < 290, "{recorded:?}");
}

#[test]
fn a_parent_that_leaves_keeps_its_children_where_events_come_late() {
    let _turn = live!(beside others);
    let service = Service::start("", &format!("{ALL}level = \"token\"\nsource = \"perf\"\n"));
    let args = ["-p", "0", "-n", "40", "--op-ns", "300000", "--fork", "3", "--leave"];
    let (calls, _) = Tree::start(&service, &args).calls();
    let state = service.wait_for_runs(1);
    assert_eq!(state["runs"][0]["tokens"], 120, "{state}");
    assert_eq!(recorded(&service), calls);
}

#[test]
fn one_slow_child_fires_the_trigger() {
    let _turn = live!(beside others);
    let rule = format!("{ALL}ring = \"1min\"\ntrigger-below = \"20tok/s\"\n");
    let service = Service::start("", &rule);
    // About 100 and 10 tokens per second: together they are fast enough. The rate is that of 16 tokens, so few of the slow
    // child's may be missing because it computed before it was probed.
    let speeds = ["-p", "0", "-n", "24", "--op-ns", "100000", "--slow-child", "3000000"];
    let args = [&speeds[..], &["--fork", "3", "--child-hold", "1"]].concat();
    let (_, slow) = Tree::start(&service, &args).calls();
    service.wait_for_runs(1);
    let log = service.log();
    assert!(log.contains(&format!("process {slow}: ")) && log.contains("below 20"), "{log}");
    assert_eq!(log.matches("(below)").count(), 1, "{log}");
    service.wait_for_log("ring written to ", 1);
    assert!(recorded(&service).contains_key(&slow));
}

#[test]
fn three_hundred_short_children_are_told_right() {
    let _turn = live!(beside others);
    let service = Service::start("", ALL);
    // A short hold, as in any program that does not only compute.
    let held = ["--child-hold", "3", "--fork", "300", "--at-once", "100"];
    let args = [&["-p", "0", "-n", "2", "--op-ns", "0", "--layers", "1"], &held[..]].concat();
    let (calls, _) = Tree::start(&service, &args).calls();
    assert_eq!((calls.len(), calls.values().sum::<u64>()), (300, 600));
    let state = service.wait_for_runs(1);
    let (seen, recorded) = (last(&service), recorded(&service));
    // On a busy machine, one of a hundred at a time may compute before it is probed; the recording then says so.
    let told = seen.all.causes.features.iter().find(|f| f.name == "children");
    let told = told.and_then(|f| f.why.split(' ').next()?.parse().ok()).unwrap_or(0);
    let missing = calls.iter().filter(|(pid, n)| recorded.get(pid) != Some(n)).count();
    assert!(
        missing <= told && recorded.keys().all(|pid| calls.contains_key(pid)),
        "{missing} of {told}: {recorded:?}"
    );
    let run = &state["runs"][0];
    let tokens = recorded.values().sum::<u64>();
    assert_eq!((&run["tokens"], &run["processes"]), (&tokens.into(), &Value::Array(vec![])), "{run}");
    assert_eq!(state["runs"].as_array().map(Vec::len), Some(1));
    assert!(seen.kind("fork").seen >= 300);
}

#[test]
fn children_are_found_again_by_the_next_recorder() {
    let _turn = live!(beside others);
    let service = Service::start("", ALL);
    let args = ["-p", "0", "-n", "100000", "--op-ns", "300000", "--fork", "3"];
    let tree = Tree::start(&service, &args);
    let three = |s: &Value| s["runs"][0]["processes"].as_array().is_some_and(|p| p.len() == 3);
    service.wait_for("the children decode", |s| three(s) && s["runs"][0]["tokens"].as_u64() > Some(30));
    // A different recorder, because the rule changed; then one more, because that one dies.
    service.configure("", &format!("{ALL}level = \"token\"\n"));
    service.signal(libc::SIGHUP);
    service.wait_for("they are found", |s| three(s) && s["runs"][0]["level"] == "token");
    let recorder = service.state()["rules"][0]["recorder"].as_u64().expect("a recorder");
    signal_to(recorder as u32, libc::SIGKILL);
    let state = service.wait_for("they are found again", |s| {
        let third = service.traces().get(2).and_then(|t| Some(t.file_name()?.to_str()?.to_owned()));
        third.is_some_and(|name| s["runs"][0]["file"] == name.as_str())
            && three(s)
            && s["runs"][0]["tokens"].as_u64() > Some(30)
    });
    assert_eq!(state["runs"][0]["pid"], tree.0.id());
    assert!(state["runs"][0]["rate"].as_f64() > Some(0.0), "{state}");
    drop(tree);
    let state = service.wait_for_runs(1);
    let recorded = recorded(&service);
    assert_eq!(recorded.len(), 3, "{recorded:?}");
    assert_eq!(state["runs"].as_array().map(Vec::len), Some(1), "no child is a run of its own");
}
