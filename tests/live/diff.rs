//! `diff` on recordings of ggml-runner: the same build twice, and with one op made slower.

use crate::common;

use std::path::Path;

use common::run::{Run, profinfer, record};
use common::{live, model, runner};

fn recorded(model: &Path, more: &[&str]) -> Run {
    let program = runner();
    let (program, model) = (program.to_str().expect("a path"), model.to_str().expect("a path"));
    let mut args =
        vec!["--", program, "run", "--no-roofline", "-m", model, "-t", "1", "-p", "8", "-n", "150"];
    args.extend(more);
    let run = record(&args);
    assert!(run.status.success(), "{}", run.stderr);
    run
}

/// Several recordings of each side, `A,A,A B,B,B`.
fn diff(a: &[Run], b: &[Run]) -> serde_json::Value {
    let side = |runs: &[Run]| {
        let files: Vec<&str> = runs.iter().map(|r| r.trace.to_str().expect("a path")).collect();
        files.join(",")
    };
    let out = profinfer().arg("diff").args([side(a), side(b)]).arg("--json").output().expect("it runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).expect("JSON")
}

/// Eleven times the op's time: more than noise and a busy machine cause. Unit tests and benchmarks cover how small a
/// change is found. Ops of small models vary between starts, so each side has three starts, alternating.
#[test]
fn an_op_that_was_made_slower_stands_first() {
    let _turn = live!();
    let model = model("tiny", "q4_0");
    let slow = ["--slow", "ffn_up-{L}:1000%"];
    let sched_cost = (0..3).map(|_| (recorded(&model, &[]), recorded(&model, &slow)));
    let (before, after): (Vec<Run>, Vec<Run>) = sched_cost.unzip();
    let d = diff(&before, &after);
    let first = &d["ops"][0];
    assert_eq!(first["name"], "MUL_MAT  ffn_up-{L}", "{d:#}");
    assert_eq!(first["verdict"], "slower", "{d:#}");
    let own = first["own"].as_f64().expect("tested");
    assert!((3.0..15.0).contains(&own), "{first:#}");
    assert_eq!((&d["only_a"], &d["only_b"]), (&serde_json::json!([]), &serde_json::json!([])));
    assert_eq!(d["pairs"], 151, "the warm-up's token and 150");
}
