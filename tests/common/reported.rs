//! What reports of a recording say about work on devices.

use serde_json::Value;

use super::run::{Run, profinfer};

fn output(run: &Run, flags: &[&str]) -> Vec<u8> {
    let out = profinfer().arg("report").args(flags).arg(&run.trace).output().expect("it runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    out.stdout
}

pub fn text(run: &Run) -> String {
    String::from_utf8(output(run, &[])).expect("text")
}

pub fn report(run: &Run) -> Value {
    serde_json::from_slice(&output(run, &["--json"])).expect("JSON")
}

/// What a phase of a report says about this backend.
pub fn on_backend<'r>(report: &'r Value, phase: &str, backend: &str) -> &'r Value {
    let phases = report["phases"].as_array().expect("phases");
    let offload = &phases.iter().find(|p| p["phase"] == phase).expect("the phase")["offload"];
    let backends = offload["backends"].as_array().expect("backends");
    backends.iter().find(|b| b["backend"] == backend).unwrap_or_else(|| panic!("{offload:#}"))
}

pub fn sum(rows: &Value, key: &str) -> u64 {
    rows.as_array().expect("rows").iter().map(|r| r[key].as_u64().expect("a number")).sum()
}

/// Each node of the backend was seen being enqueued, once.
pub fn seen_whole(on_backend: &Value) {
    assert_eq!(on_backend["unseen_splits"].as_u64().unwrap_or(0), 0, "{on_backend:#}");
    let nodes = on_backend["nodes"].as_u64().expect("nodes");
    assert_eq!(sum(&on_backend["enqueued"], "nodes"), nodes, "{on_backend:#}");
}
