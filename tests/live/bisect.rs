//! `bisect`: the difference that makes a real command slower is found among others; what cannot be compared is said.

use crate::common;

use std::process::Output;

use common::run::profinfer;
use common::{fixture, live};
use serde_json::Value;

fn bisect(good: &str, bad: &str, more: &[&str]) -> Output {
    profinfer().args(["bisect", "--good", good, "--bad", bad]).args(more).output().expect("it runs")
}

fn stderr(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

#[test]
fn the_flag_that_costs_the_time_is_found() {
    let _turn = live!();
    let engine = fixture!("modern");
    let engine = engine.to_str().expect("UTF-8");
    let here = tempfile::tempdir().expect("a directory");
    let keep = here.path().join("kept");
    // Each decode call has one such op, of twenty times the time of all others together.
    let good = format!("{engine} -p 2 -n 30 --layers 1 --op-ns 20000");
    let bad =
        format!("A=1 env {engine} -p 2 -n 30 --layers 1 --op-ns 20000 --slow kqv_out-0=5000000 --api decode");
    let out = bisect(&good, &bad, &["--json", "--runs", "3", "--keep", keep.to_str().expect("UTF-8")]);
    let found: Value =
        serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {}", stderr(&out)));
    assert_eq!((out.status.code(), &found["ended"]), (Some(0), &"found".into()), "{found:#}");
    let names: Vec<&str> =
        found["differences"].as_array().expect("a list").iter().filter_map(|d| d["name"].as_str()).collect();
    assert_eq!(names, ["A", "", "--api", "--slow"]);
    assert_eq!(found["culprits"], serde_json::json!([3]));
    assert!(found["explained"].as_f64() > Some(0.5), "{found:#}");
    let command = found["slow_command"].as_str().expect("a command");
    assert_eq!(command, format!("{good} --slow kqv_out-0=5000000"));
    let all = found["comparisons"].as_array().expect("a list");
    let last = all.iter().find(|c| c["with"] == found["culprits"]).expect("compared alone");
    assert_eq!(last["ops"][0][0], "MUL_MAT", "{last:#}");
    let kept = std::fs::read_dir(&keep).expect("kept").count();
    assert_eq!(kept, all.len() * 6, "three of each side");
}

#[test]
fn what_cannot_be_compared_is_said() {
    let _turn = live!(beside others);
    let engine = fixture!("modern");
    let engine = engine.to_str().expect("UTF-8");
    let same = bisect(engine, engine, &[]);
    assert!(same.status.code() == Some(2) && stderr(&same).contains("are the same"), "{}", stderr(&same));
    let fails = bisect(&format!("{engine} -n 4"), &format!("{engine} -n many"), &["--runs", "1"]);
    assert!(
        fails.status.code() == Some(1)
            && stderr(&fails).contains("the bad command: ")
            && stderr(&fails).contains("many: not a usable number"),
        "{}",
        stderr(&fails)
    );
}
