//! What a process holds and has used, while it computes and while it waits.

use crate::common;

use std::process::Command;

use common::run::{Recorder, Target, profinfer};
use common::{driver, engine, live, model, skip};
use serde_json::Value;

/// Samples of a waiting engine to wait for.
const SAMPLES: usize = 4;

#[test]
fn an_engine_that_waits_is_idle_and_its_memory_is_told() {
    let _turn = live!(beside others);
    let lib = match engine("b11549") {
        Ok(lib) => lib,
        Err(why) => skip!("{why}"),
    };
    let mut command = Command::new(driver());
    command.arg("--engine").arg(lib).arg("--model").arg(model("tiny", "q4_0"));
    let mut target = Target::controlled(command.args(["--control", "--ctx", "256", "-t", "2"]));
    target.tell("", 1);
    let recorder = Recorder::start(&["-p", &target.pid().to_string()]);
    recorder.wait_for_engine();
    target.tell("prefill 7\n", 2);
    target.tell("run 20\n", 3);
    recorder.wait_for_trace("samples come while nothing is computed", |all| {
        let last = all.tokens.iter().map(|t| t.t).max().unwrap_or(i64::MAX);
        all.causes.usage.iter().filter(|r| r.t > last).count() >= SAMPLES
    });
    target.tell("run 20\n", 4);
    drop(target.0.stdin.take());
    target.said();
    let run = recorder.finish();

    let samples = run.seen().all.causes.usage;
    assert!(samples.windows(2).all(|w| w[0].t < w[1].t && w[0].cpu_us <= w[1].cpu_us), "{samples:?}");
    let with_team = samples.iter().rfind(|r| r.team_us.is_some());
    let waiting = with_team.unwrap_or_else(|| panic!("the second thread is known: {samples:?}"));
    for known in [waiting.cpu_us, waiting.yields, waiting.anonymous, waiting.files] {
        assert!(known.is_some(), "{waiting:?}");
    }
    assert!(waiting.team_us < waiting.cpu_us && waiting.anonymous > Some(1 << 20), "{waiting:?}");

    let out = common::run::run(profinfer().args(["report", "--json"]).arg(&run.trace));
    let report: Value = serde_json::from_str(&out.stdout).expect("JSON");
    let idle = &report["usage"][0]["idle"];
    let of = |name: &str| idle[name].as_f64().unwrap_or_else(|| panic!("{name}: {}", report["usage"]));
    // The kernel counts in ticks of 10 ms, and the engine's threads spin for a moment after a graph.
    assert!(of("ns") > 1e9 && of("cpus") < 0.2 && of("team_cpus") < 0.2, "{idle}");
    let rules = report["verdict"]["advice"].as_array().expect("a list").iter().map(|a| &a["rule"]);
    assert!(rules.clone().all(|rule| rule != "idle-spin"), "{:?}", rules.collect::<Vec<_>>());
    let text = common::run::run(profinfer().args(["report", "--all"]).arg(&run.trace)).stdout;
    assert!(text.contains(" without a call: 0.0") && text.contains(" resident at most: "), "{text}");
}
