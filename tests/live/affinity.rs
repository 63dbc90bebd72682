//! CPUs that rules give to engines, events for those who watch, and programs that a trigger runs: with a real service and
//! real threads.

use crate::common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};

use common::run::{Target, signal_to, wait};
use common::service::{Service, pidfd, wait_for_exit};
use common::{live, skip};
use serde_json::Value;

/// A rule that lets the engine decode on the second CPU only.
const RULE: &str = "\n[[rule]]\nname = \"cpus\"\nexe = \"ENGINE\"\nbudget = \"100%\"\nlevel = \"graph\"\ndecode-cpus = \"1\"\n";

/// The process that sets engines free when the service is gone.
const KEEPER: &str = "profinfer-cpus";

/// Tokens of about 3 ms, for minutes.
const ONE: [&str; 8] = ["-t", "1", "-p", "4", "-n", "100000", "--op-ns", "100000"];
const TWO: [&str; 8] = ["-t", "2", "-p", "4", "-n", "100000", "--op-ns", "100000"];

/// The CPUs of each thread of a process.
fn cpus(pid: u32) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let status = tasks.filter_map(|task| fs::read_to_string(task.path().join("status")).ok());
    let of = |status: String| {
        Some(status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:"))?.trim().to_owned())
    };
    status.filter_map(of).collect()
}

fn all_have(pid: u32, list: &str) -> bool {
    let cpus = cpus(pid);
    !cpus.is_empty() && cpus.iter().all(|of| of == list)
}

/// The CPUs of this test, if they are all of the machine's and there are two.
fn whole() -> Option<String> {
    let mine = cpus(std::process::id()).into_iter().next()?;
    let online = fs::read_to_string("/sys/devices/system/cpu/online").ok()?;
    (online.trim() == mine && mine.starts_with("0-")).then_some(mine)
}

fn engine(service: &Service, args: &[&str]) -> Target {
    Target::start(service.engine(), args)
}

fn state_of(state: &Value, pid: u32) -> Option<Value> {
    state["affinity"].as_array()?.iter().find(|of| of["pid"] == pid).cloned()
}

#[test]
fn an_engine_decodes_on_the_cpus_of_its_rule_and_has_all_at_the_end() {
    let _turn = live!(beside others);
    let Some(all) = whole() else { skip!("two CPUs are needed, all of them allowed") };
    let mut service = Service::start("", RULE);
    let target = engine(&service, &ONE);
    service.wait_for("it decodes on CPU 1", |_| all_have(target.pid(), "1"));
    let state = service.wait_for("the status says so", |s| {
        state_of(s, target.pid()).is_some_and(|of| of["state"] == "set" && of["work"] == "decode")
    });
    let of = state_of(&state, target.pid()).expect("it is there");
    assert_eq!((of["cpus"].as_str(), of["threads"].as_u64()), (Some("1"), Some(1)), "{of}");
    let text = service.ask("status", &[]).stdout;
    assert!(text.contains("CPUs 1 for decode"), "{text}");
    // The same rule with other CPUs: it is set free and set again.
    service.configure("", &RULE.replace("decode-cpus = \"1\"", "decode-cpus = \"0\""));
    service.signal(libc::SIGHUP);
    service.wait_for("it decodes on CPU 0", |_| all_have(target.pid(), "0"));
    assert_eq!(service.stop(), Some(0));
    assert!(all_have(target.pid(), &all), "{:?}", cpus(target.pid()));
    let notices: Vec<String> = service
        .seen()
        .iter()
        .flat_map(|seen| seen.all.notices.iter().map(|n| n.text.to_string()).collect::<Vec<_>>())
        .collect();
    assert!(
        notices.iter().any(|n| n.starts_with("affinity: process") && n.contains("CPUs 1 for decode")),
        "{notices:?}"
    );
    assert!(notices.iter().any(|n| n.contains("all its CPUs again: the service ends")), "{notices:?}");
    let report =
        common::run::run(common::run::profinfer().args(["report", "--verbose"]).arg(&service.traces()[0]));
    assert!(report.stdout.contains("CPUs 1 for decode"), "{}", report.stdout);
    assert!(!service.path("d/.affinity").exists());
}

#[test]
fn two_threads_never_get_one_cpu() {
    let _turn = live!(beside others);
    let Some(all) = whole() else { skip!("two CPUs are needed, all of them allowed") };
    let service = Service::start("", RULE);
    let target = engine(&service, &TWO);
    let state = service.wait_for("it is refused", |s| {
        state_of(s, target.pid()).is_some_and(|of| of["state"] == "refused" && of["work"] == "decode")
    });
    let of = state_of(&state, target.pid()).expect("it is there");
    assert!(of["why"].as_str().is_some_and(|why| why.contains("1 CPU for 2 threads that compute")), "{of}");
    service.wait_for("it decodes on", |s| s["runs"][0]["tokens"].as_u64() > Some(200));
    assert!(all_have(target.pid(), &all), "{:?}", cpus(target.pid()));
    let log = service.log();
    assert_eq!(log.matches("1 CPU for 2 threads").count(), 1, "told once: {log}");
}

/// The waiting processes: a new one has its name only a moment later.
fn keepers(service: &Service) -> Vec<u32> {
    let mut all = Vec::new();
    service.wait_for("a process waits", |_| {
        all = service.processes(KEEPER);
        !all.is_empty()
    });
    all
}

#[test]
fn a_service_that_is_killed_leaves_no_engine_on_fewer_cpus() {
    let _turn = live!(beside others);
    let Some(all) = whole() else { skip!("two CPUs are needed, all of them allowed") };
    let mut service = Service::start("", RULE);
    let target = engine(&service, &ONE);
    service.wait_for("it decodes on CPU 1", |_| all_have(target.pid(), "1"));
    let ends: Vec<_> = keepers(&service).into_iter().filter_map(pidfd).collect();
    service.signal(libc::SIGKILL);
    ends.iter().for_each(wait_for_exit);
    assert!(all_have(target.pid(), &all), "the waiting process sets it free: {:?}", cpus(target.pid()));
    // Now that process is killed too, before the service: the next service does it.
    service.succeed();
    service.wait_for("it decodes on CPU 1 again", |_| all_have(target.pid(), "1"));
    keepers(&service).into_iter().for_each(|keeper| signal_to(keeper, libc::SIGKILL));
    // Another rule: the successor has nothing to give.
    service.configure("", &RULE.replace("decode-cpus = \"1\"\n", ""));
    service.succeed();
    service.wait_for("the next service sets it free", |_| all_have(target.pid(), &all));
    assert!(service.log().contains("an earlier service had given it fewer"), "{}", service.log());
}

#[test]
fn a_recorder_that_dies_or_stands_still_leaves_its_engine_all_cpus() {
    let _turn = live!(beside others);
    let Some(all) = whole() else { skip!("two CPUs are needed, all of them allowed") };
    let service = Service::start("", RULE);
    // A prompt of two threads may come at any time: that is seen only while the recorder follows.
    let target = engine(&service, &ONE);
    service.wait_for("it decodes on CPU 1", |_| all_have(target.pid(), "1"));
    let recorder = service.state()["rules"][0]["recorder"].as_u64().expect("a recorder") as u32;
    signal_to(recorder, libc::SIGKILL);
    service.wait_for("it has all CPUs", |_| all_have(target.pid(), &all));
    service.wait_for("the next recorder's report sets it again", |_| all_have(target.pid(), "1"));
}

/// A command whose lines are read one by one.
struct Watching(Child, BufReader<std::process::ChildStdout>);

impl Watching {
    fn start(service: &Service) -> Watching {
        let mut command = common::run::profinfer();
        command.arg("watch").arg("--socket").arg(service.path("sock/control")).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it runs");
        let out = BufReader::new(child.stdout.take().expect("its output"));
        Watching(child, out)
    }

    /// The next event.
    fn any(&mut self) -> Value {
        let mut line = String::new();
        assert!(self.1.read_line(&mut line).expect("a line") > 0, "it has ended");
        let event: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(event["v"], 1);
        event
    }

    /// The next event with this name.
    fn next(&mut self, name: &str) -> Value {
        loop {
            let event = self.any();
            if event["event"] == name {
                return event;
            }
        }
    }
}

fn script(dir: &Path, text: &str) -> String {
    use std::os::unix::fs::PermissionsExt;
    let path = dir.join("hook.sh");
    fs::write(&path, text).expect("written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("changed");
    path.display().to_string()
}

#[test]
fn who_watches_sees_a_run_and_a_trigger_runs_its_program_once() {
    let _turn = live!(beside others);
    let dir = tempfile::tempdir().expect("a directory");
    let told = dir.path().join("told");
    // The second line is reached by no run: the limit is before it.
    let program = script(
        dir.path(),
        &format!("#!/bin/sh\ncat >> {0}\necho >> {0}\nsleep 600\necho late >> {0}\n", told.display()),
    );
    let rule = format!(
        "\n[[rule]]\nname = \"slow\"\nexe = \"ENGINE\"\nbudget = \"100%\"\nlevel = \"graph\"\ntrigger-below = \"150tok/s\"\n\
         on-trigger = [\"{program}\"]\non-trigger-user = \"root\"\non-trigger-timeout = \"1s\"\n"
    );
    // About 80 tokens a second: too slow, and none so slow that it alone fires the trigger, which would have no process.
    let mut service = Service::start("", &rule);
    let mut watching = Watching::start(&service);
    assert!(watching.next("hello")["version"].is_string());
    let target =
        Target::start(service.engine(), &["-t", "1", "-p", "4", "-n", "100000", "--op-ns", "300000"]);
    let (mut run, mut first, mut trigger, mut second) = (None, None, None, None);
    while run.is_none() || first.is_none() || trigger.is_none() || second.is_none() {
        let event = watching.any();
        let decodes = event["tok_s"].as_f64() > Some(10.0);
        match event["event"].as_str() {
            Some("run") => run = Some(event),
            Some("first_token") => {
                assert!(run.is_some(), "before its run: {event}");
                first = Some(event);
            }
            Some("trigger") => {
                assert!(run.is_some() && first.is_some(), "before its run and its first token: {event}");
                assert!(
                    event["tokens"].as_u64() >= Some(16),
                    "the run's state is not the trigger's: {event}"
                );
                trigger = trigger.or(Some(event));
            }
            Some("second") if decodes => second = Some(event),
            _ => {}
        }
    }
    let (run, trigger, second) = (run.expect("seen"), trigger.expect("seen"), second.expect("seen"));
    assert_eq!((run["pid"].as_u64(), run["rule"].as_str()), (Some(target.pid().into()), Some("slow")));
    assert_eq!(
        (trigger["trigger"].as_str(), trigger["pid"].as_u64()),
        (Some("below"), Some(target.pid().into()))
    );
    assert!(trigger["causes"][0]["cause"].is_string(), "{trigger}");
    assert!(second["cpus"].as_f64() > Some(0.1) && second["threads"]["decode"] == 1, "{second}");
    service.wait_for("the program was killed at its limit", |s| s["on_trigger"]["timed_out"] == 1);
    drop(target);
    assert_eq!(watching.next("end")["pid"], run["pid"]);
    assert_eq!(service.stop(), Some(0));
    watching.next("stop");
    assert!(wait(&mut watching.0).success());
    let said = fs::read_to_string(&told).expect("it ran");
    let lines: Vec<&str> = said.lines().collect();
    let event: Value = serde_json::from_str(lines[0]).expect("the event");
    assert_eq!(
        (lines.len(), &event["trigger"], &event["text"]),
        (1, &trigger["trigger"], &trigger["text"]),
        "{said}"
    );
    assert!(
        service.log().contains("on-trigger failed: it was killed at its time limit"),
        "{}",
        service.log()
    );
}
