//! Single lines of the report: speed per token rather than per call, server batches, and reasons for missing data.

use crate::synth_trace;

use std::process::Command;

use pfi::record::*;
use synth_trace::*;

fn shown(trace: &[u8], args: &[&str]) -> String {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("run.pfi"), trace).unwrap();
    let mut c = Command::new(env!("CARGO_BIN_EXE_profinfer"));
    let out = c.current_dir(dir.path()).args(["report", "run.pfi", "--verbose"]).args(args).output().unwrap();
    assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

fn json(trace: &[u8]) -> serde_json::Value {
    serde_json::from_str(&shown(trace, &["--json"])).unwrap()
}

fn decode(r: &serde_json::Value) -> &serde_json::Value {
    r["phases"].as_array().unwrap().iter().find(|p| p["phase"] == "decode").unwrap()
}

#[test]
fn wall_speed_and_tpot_are_of_tokens() {
    let mut s = Synth::new(Vec::new(), Spec::default());
    s.call(8, |_, _| 1000);
    for _ in 0..10 {
        // Two tokens, one after the other, in one call.
        s.ubatches(&[1, 1], |_, _| 1000);
    }
    let trace = s.enc.finish(&footer("target exited")).unwrap();
    let r = json(&trace);
    let d = decode(&r);
    let number = |of: &serde_json::Value| of.as_f64().unwrap();
    assert_eq!((&d["calls"], &d["tokens"], &d["tpot"]["n"]), (&10.into(), &20.into(), &20.into()));
    assert_eq!(number(&d["tpot"]["mean_ns"]) * 2.0, number(&d["latency"]["mean_ns"]));
    let per_call = number(&d["start_to_start"]["mean_ns"]);
    assert!((number(&d["tokens_per_s_wall"]) - 2e9 / per_call).abs() < 1e-3, "{d:#}");
    let text = shown(&trace, &[]);
    assert!(text.contains("token (TPOT)") && !text.contains("call (TPOT)"), "{text}");
}

#[test]
fn batches_of_a_server_are_not_called_prefill() {
    let mut s = Synth::new(Vec::new(), Spec::default());
    let (exe, cmdline) = ("/opt/llama/llama-server", "llama-server -m x");
    s.enc.process(&Process { pid: PID, engine: 0, exe, cmdline }).unwrap();
    s.call(8, |_, _| 1000);
    s.call(4, |_, _| 1000);
    s.call(1, |_, _| 1000);
    let trace = s.enc.finish(&footer("target exited")).unwrap();
    let text = shown(&trace, &[]);
    for part in
        ["  batched ", "batched: calls of several", "TTFT         unknown (prompts cannot be identified"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    let r = json(&trace);
    assert!(r["ttft"].is_null() && r["requests"][0]["ttft_ns"].is_null(), "{:#}", r["requests"]);
    assert_eq!(r["phases"][0]["batched"], true);
}

#[test]
fn what_was_not_checked_has_its_reason() {
    let mut s = Synth::new(Vec::new(), Spec::default());
    let (name, role, why) = ("ggml_compute_forward", "op", "no hit");
    for engine in 1..4 {
        s.enc.rung(&RungRecord { engine, role, name, used: false, expected: None, seen: 0, why }).unwrap();
    }
    for _ in 0..5 {
        s.call(1, |_, _| 1000);
    }
    s.cut = true;
    s.call(1, |_, _| 1000);
    let trace = s.enc.finish(&Footer { orphans: 297, ..footer("target exited") }).unwrap();
    let text = shown(&trace, &[]);
    for part in [
        "5 of 6 graphs checked, 0 differ; not checked: 1 still running when recording stopped)",
        "orphan hits  297 (op hits outside the graphs in the file",
        "3 more engines never computed: no hits on 3 rungs",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(text.matches(name).count(), 0, "{text}");
    assert_eq!(json(&trace)["quality"]["rungs"].as_array().unwrap().len(), 4);
}

#[test]
fn one_table_ends_where_it_is_told_to() {
    let mut s = Synth::new(Vec::new(), Spec::default());
    for _ in 0..40 {
        s.call(1, |_, _| 1000);
    }
    let trace = s.enc.finish(&footer("target exited")).unwrap();
    let text = shown(&trace, &["--by", "token"]);
    assert!(text.contains("and 20 more calls (--top)"), "{text}");
    let text = shown(&trace, &["--by", "thread", "--top", "1"]);
    assert!(text.contains("and 1 more thread (--top)"), "{text}");
    // The table only.
    assert!(!text.contains("complete"), "{text}");
    assert!(!text.contains("Model") && !text.contains("backend") && !text.contains("trust"), "{text}");
    assert!(text.lines().count() < 8, "{text}");
}
