//! What reports of a recording say about work on devices.

use std::collections::BTreeMap;

use serde_json::Value;

use super::run::{Run, profinfer};

fn output(run: &Run, flags: &[&str]) -> Vec<u8> {
    let out = profinfer().arg("report").args(flags).arg(&run.trace).output().expect("it runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    out.stdout
}

pub fn text(run: &Run) -> String {
    String::from_utf8(output(run, &["--verbose"])).expect("text")
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

/// The kernels given to the device were counted in every split, and a layer's times are of as many, op by op.
pub fn counted_as_executed(on_backend: &Value) {
    assert_eq!(on_backend["dispatched"]["splits"], on_backend["splits"], "{on_backend:#}");
    let of = |rows: &Value| -> BTreeMap<String, u64> {
        let rows = rows.as_array().expect("rows").iter();
        let of = |r: &Value| Some((r["ops"].as_str()?.to_owned(), r["kernels"].as_u64().filter(|n| *n > 0)?));
        rows.filter_map(of).collect()
    };
    let (given, executed) = (of(&on_backend["enqueued"]), of(&on_backend["device"]["ops"]));
    assert_eq!(given, executed, "{on_backend:#}");
    assert_eq!(on_backend["dispatched"]["kernels"], given.values().sum::<u64>(), "{on_backend:#}");
}
