//! Figures of several processes, models and contexts in one trace: one at a time, and a summary table.

use crate::synth_trace;

use std::process::{Command, Output};

use synth_trace::*;

/// One decode call. The two processes below decode at 168 and 45 tok/s, which follows from the time of their ops.
fn decode(s: &mut Synth<Vec<u8>>, busy: u64) {
    s.call(1, |_, _| busy);
}

fn two_processes() -> Vec<u8> {
    let mut s = Synth::new(Vec::new(), Spec::default());
    for _ in 0..12 {
        decode(&mut s, 100_000);
    }
    s.process(7);
    s.context(1, 3);
    for _ in 0..20 {
        decode(&mut s, 400_000);
    }
    s.enc.finish(&footer("target exited")).unwrap()
}

/// A draft of one layer that runs four times before each call of its target of four.
fn draft_and_target() -> Vec<u8> {
    let mut s = Synth::new(Vec::new(), Spec { layers: 4, ..Spec::default() });
    s.call(8, |_, _| 5_000);
    s.context(1, 1);
    s.call(8, |_, _| 1_000);
    for _ in 0..10 {
        for _ in 0..4 {
            decode(&mut s, 1_000);
        }
        s.context(0, 4);
        s.call(5, |_, _| 5_000);
        decode(&mut s, 5_000);
        s.context(1, 1);
    }
    s.enc.finish(&footer("target exited")).unwrap()
}

fn profinfer(trace: &[u8], args: &[&str]) -> Output {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("run.pfi"), trace).unwrap();
    let mut c = Command::new(env!("CARGO_BIN_EXE_profinfer"));
    c.current_dir(dir.path()).arg(args[0]).arg("run.pfi").args(&args[1..]).output().unwrap()
}

fn text(out: &Output) -> String {
    assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout.clone()).unwrap()
}

fn json(trace: &[u8], args: &[&str]) -> serde_json::Value {
    serde_json::from_str(&text(&profinfer(trace, args))).unwrap()
}

fn phase<'j>(of: &'j serde_json::Value, name: &str) -> &'j serde_json::Value {
    of["phases"].as_array().unwrap().iter().find(|p| p["phase"] == name).unwrap()
}

fn rate(of: &serde_json::Value) -> f64 {
    of.as_f64().unwrap()
}

#[test]
fn two_processes_are_no_mean_of_both() {
    let trace = two_processes();
    let [fast, slow] = ["4242", "7"].map(|pid| json(&trace, &["report", "--json", "--pid", pid]));
    let [fast, slow] = [&fast, &slow].map(|r| rate(&phase(r, "decode")["tokens_per_s"]));
    assert!(fast > 3.0 * slow, "{fast} {slow}");
    let both = json(&trace, &["report", "--json"]);
    assert_eq!(rate(&phase(&both, "decode")["tokens_per_s"]), slow, "the one with the most calls");
    assert_eq!(phase(&both, "decode")["calls"], 20);
    assert_eq!(both["model"]["layers"], 3);
    let runs = both["runs"].as_array().unwrap();
    let told: Vec<_> = runs.iter().map(|r| (r["pid"].as_u64().unwrap(), r["shown"] == true)).collect();
    assert_eq!(told, [(7, true), (4242, false)]);
    assert_eq!(rate(&runs[1]["decode_tokens_per_s"]), fast);
    assert_eq!(runs[1]["model"]["layers"], 2);
    // JSON output contains all of them.
    assert_eq!(both["others"][0]["pid"], 4242);
    assert_eq!(rate(&phase(&both["others"][0], "decode")["tokens_per_s"]), fast);
    assert_eq!(phase(&both["others"][0], "decode")["by_op"][0]["name"], "MUL_MAT");
    // Hits and losses are for the complete recording.
    assert_eq!(both["quality"]["hits"]["graphs"], 32);

    let shown = text(&profinfer(&trace, &["report", "--all"]));
    for part in [
        "Processes and contexts",
        "all figures below are for 7; --pid 4242 selects another",
        &format!("{fast:.2}"),
        "3 layers, embedding 64",
        "2 layers, embedding 64",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let out = profinfer(&trace, &["report", "--pid", "9"]);
    assert_eq!(out.status.code(), Some(1));
    let said = String::from_utf8(out.stderr).unwrap();
    assert!(
        said.contains("process 9 was not recorded; recorded processes: 7") && said.lines().count() == 1,
        "{said}"
    );
}

#[test]
fn a_draft_is_told_apart_from_its_target() {
    let trace = draft_and_target();
    let r = json(&trace, &["report", "--json"]);
    let runs = r["runs"].as_array().unwrap();
    let told: Vec<_> = runs
        .iter()
        .map(|r| {
            (r["context"].as_u64(), r["calls"].as_u64(), r["tokens"].as_u64(), r["model"]["layers"].as_u64())
        })
        .collect();
    assert_eq!(told, [(Some(1), Some(21), Some(8 + 60), Some(4)), (Some(2), Some(41), Some(48), Some(1))]);
    // The target takes the most time, the draft has the most calls.
    assert_eq!((&runs[0]["shown"], &r["model"]["layers"]), (&true.into(), &4.into()));
    assert_eq!(phase(&r, "decode")["calls"], 10);
    assert_eq!(phase(&r["others"][0], "decode")["calls"], 40);
    let op = |of: &serde_json::Value| {
        phase(of, "decode")["by_name"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|o| o["name"].as_str().is_some_and(|n| n.ends_with("ffn_swiglu-{L}")))
            .map(|o| o["calls"].as_u64().unwrap())
            .sum::<u64>()
    };
    assert_eq!((op(&r), op(&r["others"][0])), (40, 40));

    // The target verifies the draft's proposals, several tokens at a time: those calls are not prompts.
    assert_eq!((&phase(&r, "prefill")["batched"], &r["ttft"]), (&true.into(), &serde_json::Value::Null));
    assert!(phase(&r["others"][0], "prefill")["batched"].is_null() && r["others"][0]["ttft"].is_object());

    let draft = json(&trace, &["report", "--json", "--pid", "4242:2"]);
    assert_eq!((&draft["model"]["layers"], &draft["others"]), (&1.into(), &serde_json::Value::Null));
    let shown = text(&profinfer(&trace, &["report", "--all"]));
    assert!(shown.contains("all figures below are for 4242:1; --pid 4242:2 selects another"), "{shown}");
    let out = profinfer(&trace, &["report", "--pid", "4242:3"]);
    let said = String::from_utf8(out.stderr).unwrap();
    assert!(said.contains("process 4242 has no context 3: valid numbers are 1 to 2"), "{said}");
}

#[test]
fn statistics_graph_and_comparison_are_of_one_context() {
    let trace = draft_and_target();
    let s = json(&trace, &["stat", "--json"]);
    assert_eq!((&s["context"], &s["calls"], s["runs"].as_array().unwrap().len()), (&1.into(), &10.into(), 2));
    let s = json(&trace, &["stat", "--json", "--pid", "4242:2"]);
    assert_eq!((&s["context"], &s["calls"]), (&2.into(), &40.into()));
    let shown = text(&profinfer(&trace, &["stat"]));
    assert!(shown.contains("Process 4242:1: 10 decode calls") && shown.contains("4242:2"), "{shown}");

    let out = profinfer(&trace, &["dag"]);
    assert_eq!(out.status.code(), Some(1));
    let said = String::from_utf8(out.stderr).unwrap();
    assert!(said.contains("select one with --pid: 4242:1 to 4242:2"), "{said}");
    let one = json(&trace, &["dag", "--format", "json", "--pid", "4242:2"]);
    let layers: Vec<_> =
        one["nodes"].as_array().unwrap().iter().filter_map(|n| n["layer"].as_u64()).collect();
    assert!(!layers.is_empty() && layers.iter().all(|l| *l == 0), "{layers:?}");

    let d = json(&trace, &["diff", "run.pfi", "--json", "--pid", "4242:1,4242:2"]);
    assert_eq!((&d["a"][0]["context"], &d["b"][0]["context"]), (&1.into(), &2.into()));
    assert_eq!((&d["a"][0]["calls"], &d["b"][0]["calls"]), (&10.into(), &40.into()));

    let page = text(&profinfer(&trace, &["html", "-o", "-"]));
    assert!(page.contains("Process 4242 has 2 contexts; this page shows context 1."), "{page}");
}

/// Below op level only the graphs distinguish runs; below graph level nothing does, and the report says so.
#[test]
fn what_cannot_be_told_apart_is_said() {
    use pfi::record::*;
    let calls = |graphs: bool| {
        let mut s = Synth::new(Vec::new(), Spec::default());
        for i in 0..10u64 {
            let (context, width) = (i % 2, 1);
            let t = (ORIGIN + i * 100_000) as i64;
            let (pid, tid, dur, cut) = (PID, TID, 50_000 + context * 10_000, false);
            if graphs {
                let cgraph = 0x1000 + context * 0x1000;
                let n_nodes = 100 + context as u32;
                let ubatch = width;
                s.enc
                    .graph(&Graph {
                        seq: i,
                        token: Some(i),
                        pid,
                        tid,
                        cgraph,
                        n_nodes,
                        ubatch,
                        t,
                        dur,
                        cut,
                        device: pfi::record::Device::Idle,
                    })
                    .unwrap();
            }
            let entry = Entry::Decode;
            s.enc
                .token(&Token {
                    seq: i,
                    pid,
                    tid,
                    entry,
                    n_tokens: Some(width),
                    t,
                    dur,
                    cut,
                    device: pfi::record::Device::Idle,
                })
                .unwrap();
        }
        s.enc.finish(&footer("target exited")).unwrap()
    };
    let r = json(&calls(true), &["report", "--json"]);
    let told: Vec<_> = r["runs"].as_array().unwrap().iter().map(|r| r["calls"].as_u64().unwrap()).collect();
    assert_eq!(told, [5, 5]);
    assert_eq!(rate(&r["runs"][0]["decode_tokens_per_s"]), 20_000.0);
    let trace = calls(false);
    let r = json(&trace, &["report", "--json"]);
    assert_eq!(r["runs"].as_array().unwrap().len(), 1);
    let shown = text(&profinfer(&trace, &["report", "--all"]));
    assert!(shown.contains("the process's contexts and models cannot be distinguished"), "{shown}");
}

/// A context that moves its graph, and one program with several models in sequence.
#[test]
fn a_graph_that_moves_is_no_other_context() {
    let mut s = Synth::new(Vec::new(), Spec::default());
    for _ in 0..4 {
        decode(&mut s, 1000);
    }
    let one =
        |s: Synth<Vec<u8>>| json(&s.enc.finish(&footer("target exited")).unwrap(), &["report", "--json"]);
    s.moved(9);
    for _ in 0..4 {
        decode(&mut s, 1000);
    }
    let r = one(s);
    assert_eq!(r["runs"].as_array().unwrap().len(), 1, "{:#}", r["runs"]);
    assert_eq!(
        (&r["runs"][0]["context"], &r["runs"][0]["mixed"]),
        (&serde_json::Value::Null, &serde_json::Value::Null)
    );

    let mut s = Synth::new(Vec::new(), Spec::default());
    for n in 0..2 {
        s.context(n, 2 + n as u32);
        for _ in 0..4 {
            decode(&mut s, 1000);
        }
    }
    let r = one(s);
    let layers: Vec<_> =
        r["runs"].as_array().unwrap().iter().map(|r| r["model"]["layers"].as_u64()).collect();
    assert_eq!(layers, [Some(2), Some(3)]);
}
