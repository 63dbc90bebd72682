//! What `profinfer watch` says of a run while it is recorded, and what `report` says of its recording.

use crate::common;

use std::process::Command;

use common::run::{Target, profinfer, run};
use common::service::{Events, Service};
use common::{driver, engine, live, model, skip};
use serde_json::Value;

/// Calls, tokens and time in calls of a phase.
type Sums = [u64; 3];

/// Sums of the events of a run, by phase.
#[derive(Default)]
struct Told {
    prefill: Sums,
    decode: Sums,
    /// Of the run: tokens that users get.
    tokens: u64,
    /// Bars of phases, and why there was none.
    bars: Vec<Value>,
    energy: Value,
}

impl Told {
    fn add(&mut self, second: &Value) {
        self.tokens += second["tokens"].as_u64().expect("tokens");
        self.energy = second["energy"].clone();
        assert!(
            second["causes"].is_array() && second["phases"].is_array() != second["unknown"].is_string(),
            "{second}"
        );
        for phase in second["phases"].as_array().into_iter().flatten() {
            let sums = match phase["phase"].as_str() {
                Some("prefill") => &mut self.prefill,
                Some("decode") => &mut self.decode,
                other => panic!("{other:?}: {second}"),
            };
            for (sum, name) in sums.iter_mut().zip(["calls", "tokens", "in_call_ns"]) {
                *sum += phase[name].as_u64().unwrap_or_else(|| panic!("{name}: {second}"));
            }
            self.bars.push(phase["bar"].clone());
        }
    }

    /// Waits until this many calls have decoded.
    fn read(&mut self, events: &mut Events, pid: u32, calls: u64) {
        while self.decode[0] < calls {
            let second = events.wait_for(|e| e["event"] == "second" && e["pid"] == pid);
            self.add(&second);
        }
    }
}

#[test]
fn each_second_adds_up_to_what_report_says_of_the_recording() {
    let _turn = live!(beside others);
    let lib = match engine("v0.5.0") {
        Ok(path) => path,
        Err(why) => skip!("{why}"),
    };
    let exe = driver();
    let rule = format!(
        "\n[[rule]]\nname = \"real\"\nexe = \"{}\"\nlevel = \"op\"\nbudget = \"100%\"\n",
        exe.display()
    );
    let mut service = Service::start("", &rule);
    let mut events = service.events();
    let mut command = Command::new(exe);
    command.arg("--engine").arg(lib).arg("--model").arg(model("tiny", "q4_0"));
    let mut target = Target::controlled(command.args(["--control", "--ctx", "256", "-t", "2"]));
    let pid = target.pid();
    target.tell("", 1);
    events.wait_for(|e| e["event"] == "level" && e["pid"] == pid);
    target.tell("prefill 7\n", 2);
    target.tell("run 40\n", 3);
    let mut told = Told::default();
    told.read(&mut events, pid, 40);
    // A status has the tokens of the metrics: the prompt's call gave the first one, and the last call's is counted when the
    // request ends.
    drop(target.0.stdin.take());
    target.said();
    let (mut ended, mut complete) = (None, false);
    // In either order.
    while ended.is_none() || !complete {
        let event = events.any();
        complete |= event["event"] == "file";
        ended = Some(event).filter(|e| e["event"] == "end").or(ended);
    }
    assert_eq!(ended.map(|end| end["tokens"].clone()), Some(41.into()));
    let report = run(profinfer().args(["report", "--json"]).arg(&service.traces()[0]));
    let report: Value = serde_json::from_str(&report.stdout).expect("a report");
    for (phase, sums) in [("prefill", told.prefill), ("decode", told.decode)] {
        let of =
            report["phases"].as_array().expect("phases").iter().find(|p| p["phase"] == phase).expect("it");
        let theirs: Vec<Option<u64>> =
            ["calls", "tokens", "in_call_ns"].iter().map(|name| of[name].as_u64()).collect();
        assert_eq!(sums.map(Some).to_vec(), theirs, "{phase}: {of}");
    }
    let shares = |bar: &Value| bar.as_object().map(|bar| bar.values().filter_map(Value::as_f64).sum::<f64>());
    assert!(!told.bars.is_empty());
    for bar in &told.bars {
        assert!(shares(bar).is_some_and(|all| (all - 1.0).abs() < 0.01), "{bar}");
        assert!(bar["barrier"].is_number(), "two threads, and their barrier is probed: {bar}");
    }
    // No rule has sensors: not known, and not zero.
    assert!(told.energy["joules"].is_null() && told.energy["watts"].is_null(), "{}", told.energy);
    assert!(told.energy["unknown"].as_str().is_some_and(|why| why.contains("no sensor")), "{}", told.energy);
    assert_eq!(service.stop(), Some(0));
}

#[test]
fn a_level_without_ops_has_no_shares_and_says_why() {
    let _turn = live!(beside others);
    let service = Service::start(
        "",
        "\n[[rule]]\nname = \"all\"\nexe = \"ENGINE\"\nbudget = \"100%\"\nlevel = \"graph\"\n",
    );
    let mut events = service.events();
    let target =
        Target::start(service.engine(), &["-t", "2", "-p", "4", "-n", "100000", "--op-ns", "100000"]);
    let decodes =
        |e: &Value| e["phases"].as_array().is_some_and(|all| all.iter().any(|p| p["phase"] == "decode"));
    let second = events.wait_for(|e| e["event"] == "second" && e["pid"] == target.pid() && decodes(e));
    let phase =
        second["phases"].as_array().and_then(|all| all.iter().find(|p| p["phase"] == "decode")).expect("it");
    assert!(phase["tokens"].as_u64() > Some(0) && phase["in_call_ns"].as_u64() > Some(0), "{phase}");
    assert!(
        phase["bar"].is_null() && phase["unknown"].as_str().is_some_and(|why| why.contains("below op")),
        "{phase}"
    );
    assert!(second["limit"].is_null(), "{second}");
}
