//! `profinfer stat` on traces with known results.

use crate::synth_trace;

use std::process::{Command, Output, Stdio};

use pfi::record::{Entry, Token};
use pfi::{ExpertRows, TensorDesc};
use serde_json::Value;
use synth_trace::*;

/// RoPE of the query in the first layer.
const ROTATION: usize = 3;
const PROMPT: u64 = 8;
/// Ops of a layer with experts.
const EXPERT_HITS: usize = 14;

/// A prompt and `n` tokens; RoPE takes 50 ns more for each token of context, other ops take a fixed time.
fn growing(spec: Spec, n: u64) -> Synth<Vec<u8>> {
    let mut s = Synth::new(Vec::new(), spec);
    s.call(PROMPT as u32, |_, _| 1000);
    for i in 0..n {
        s.call(1, |p, t| {
            let grown = if p == ROTATION { 50 * (PROMPT + 1 + i) } else { 0 };
            let chance = (i * 31 + p as u64 * 7) % 13;
            2000 + 100 * p as u64 + 500 * u64::from(t) + grown + chance
        });
    }
    s
}

fn finish(s: Synth<Vec<u8>>) -> Vec<u8> {
    s.enc.finish(&footer("target exited")).unwrap()
}

fn stat(bytes: &[u8], args: &[&str]) -> Output {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("run"), bytes).unwrap();
    let mut c = Command::new(env!("CARGO_BIN_EXE_profinfer"));
    c.current_dir(dir.path()).args(["stat", "run"]).args(args).stdin(Stdio::null());
    c.output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn json(bytes: &[u8], args: &[&str]) -> Value {
    let out = stat(bytes, &[&["--json"], args].concat());
    assert!(out.status.success(), "{}", text(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

#[test]
fn the_op_that_grows_with_the_context_is_named() {
    let bytes = finish(growing(Spec::default(), 200));
    let d = json(&bytes, &["tokens"]);
    let t = &d["tokens"];
    assert_eq!((t["from"].as_u64(), t["to"].as_u64(), t["calls"].as_u64()), (Some(9), Some(208), Some(200)));
    let first = &t["ops"][0];
    assert_eq!((first["name"].as_str(), first["grows"].as_bool()), (Some("ROPE  Qcur-{L}"), Some(true)));
    assert!((first["ns_per_token"].as_f64().unwrap() - 50.0).abs() < 0.5, "{first:#}");
    assert!(t["ops"].as_array().unwrap().iter().skip(1).all(|o| o["grows"] == false), "{t:#}");
    assert!((t["call"]["ns_per_token"].as_f64().unwrap() - 50.0).abs() < 0.5);
    let shown = text(&stat(&bytes, &["tokens"]).stdout);
    assert!(shown.contains("slower as the context grows: ROPE  Qcur-{L} (100 %)"), "{shown}");

    let short = text(&stat(&finish(growing(Spec::default(), 8)), &["tokens"]).stdout);
    assert!(short.contains("the context length is unknown or barely changes"), "{short}");
}

#[test]
fn a_second_request_begins_its_context_anew() {
    let mut s = growing(Spec::default(), 40);
    s.call(4, |_, _| 1000);
    for _ in 0..40 {
        s.call(1, |p, _| 2000 + p as u64);
    }
    let d = json(&finish(s), &["tokens"]);
    assert_eq!((d["tokens"]["from"].as_u64(), d["tokens"]["to"].as_u64()), (Some(5), Some(48)));
}

#[test]
fn multiplications_have_lines_against_bytes_and_flops() {
    let d = json(&finish(growing(Spec::default(), 20)), &["ops"]);
    let ops = &d["ops"];
    assert!(ops["bytes"]["points"].as_u64().unwrap() >= 3 && ops["flops"]["r2"].is_f64(), "{ops:#}");
    let out = ops["rows"].as_array().unwrap().iter().find(|r| r["name"] == "MUL_MAT  result_output").unwrap();
    let bytes = EMBD * VOCAB / 32 * 18 + 4 * EMBD + 4 * VOCAB;
    assert_eq!(
        (out["bytes"].as_f64(), out["flops"].as_f64()),
        (Some(bytes as f64), Some((2 * EMBD * VOCAB) as f64))
    );
    assert_eq!(out["form"], "f32 256 of q4_0 64x256, f32 64");
    // Thread 0 finishes first; its wait after the last op is not seen.
    assert!((out["ns"].as_f64().unwrap() - 5206.0).abs() < 7.0, "{out:#}");
}

#[test]
fn roofs_are_given_or_missed() {
    let bytes = finish(growing(Spec::default(), 20));
    let d = json(&bytes, &["roofline", "--peak", "100,10"]);
    let rows = d["roofline"]["rows"].as_array().unwrap();
    let p = rows.iter().find(|r| r["name"] == "MUL_MAT  result_output").unwrap();
    let gb = p["gb_per_s"].as_f64().unwrap();
    assert!((p["share"].as_f64().unwrap() - gb / 10.0).abs() < 1e-9 && p["roof"] == "memory", "{p:#}");
    assert!(json(&bytes, &["roofline"])["roofline"].is_null());
    assert!(text(&stat(&bytes, &["roofline"]).stdout).contains("no known peak (--peak)"));
}

#[test]
fn threads_are_told_by_their_busy_time() {
    let d = json(&finish(growing(Spec::default(), 20)), &["threads"]);
    let rows = d["thread_balance"].as_array().unwrap();
    let out = rows.iter().find(|r| r["name"] == "MUL_MAT  result_output").unwrap();
    let busy: Vec<f64> = out["busy_ns"].as_array().unwrap().iter().map(|n| n.as_f64().unwrap()).collect();
    assert!((busy[1] - busy[0] - 500.0).abs() < 1e-6, "{busy:?}");
    assert!((out["lost_ns"].as_f64().unwrap() - 250.0).abs() < 1e-6, "{out:#}");
    let one = Spec { threads: 1, ..Spec::default() };
    assert!(text(&stat(&finish(growing(one, 20)), &["threads"]).stdout).contains("only one"));
    let interval = Spec { barrier: false, ..Spec::default() };
    let shown = text(&stat(&finish(growing(interval, 20)), &["threads"]).stdout);
    assert!(shown.contains("the barrier was not probed"), "{shown}");
}

#[test]
fn experts_have_a_map_and_a_table() {
    let mut s = growing(Spec { experts: true, ..Spec::default() }, 20);
    let mut tensor = |addr, name: &[u8], ne| {
        let (op, ty, flags, nb, view_src) = (0, 3, 0, None, None);
        let src = &[];
        let d = TensorDesc { pid: PID, addr, known: true, op, ty, flags, name, ne, nb, src, view_src };
        s.enc.tensor(&d).unwrap()
    };
    let ids = tensor(0x9000_0000, b"ffn_moe_topk-0", [2, 1, 1, 1]);
    let weights = tensor(0x9000_0200, b"blk.0.ffn_up_exps.weight", [EMBD, FF, 8, 1]);
    for graph in 1..5 {
        let rows = ExpertRows { graph, ids, weights, used: 2, tokens: 1, first: 0, why: "" };
        s.enc.experts(&rows, &[4, if graph == 1 { 5 } else { 6 }]).unwrap();
    }
    let bytes = finish(s);
    let shown = text(&stat(&bytes, &["experts"]).stdout);
    // Never, never, never, never, always, once, three times, never.
    assert!(shown.contains("      0 |    @-# |"), "{shown}");
    let csv = text(&stat(&bytes, &["experts", "--csv"]).stdout);
    assert!(csv.starts_with("layer,expert,decode,prefill\r\n0,0,0,0\r\n"), "{csv}");
    assert!(csv.contains("\r\n0,4,4,0\r\n0,5,1,0\r\n0,6,3,0\r\n"), "{csv}");
}

/// Two layers, each with an expert that is reused and one that is always active. Each MUL_MAT_ID takes 10 ns more
/// for each token since the last use, summed over the two experts; with two such ops, that is 40 ns per token of the
/// mean.
fn reused(tokens: u64) -> Vec<u8> {
    let spec = Spec { experts: true, layers: 2, threads: 1, ..Spec::default() };
    let mut s = Synth::new(Vec::new(), spec);
    let mut tensor = |addr, name: &str, ne| {
        let (op, ty, flags, nb, view_src) = (0, 3, 0, None, None);
        let (src, name) = (&[][..], name.as_bytes());
        let d = TensorDesc { pid: PID, addr, known: true, op, ty, flags, name, ne, nb, src, view_src };
        s.enc.tensor(&d).unwrap()
    };
    let layers = [0, 1].map(|l| {
        let ids = tensor(0x9000_0000 + 0x1000 * l, &format!("ffn_moe_topk-{l}"), [2, 1, 1, 1]);
        (ids, tensor(0x9100_0000 + 0x1000 * l, &format!("blk.{l}.ffn_up_exps.weight"), [EMBD, FF, 8, 1]))
    });
    // Positions of the expert multiplications: about 1 + 16 per layer.
    let ops = [12, 13].map(|p| [p, p + EXPERT_HITS]);
    let mut last: [[Option<u64>; 8]; 2] = [[None; 8]; 2];
    for i in 0..tokens {
        let chosen = [0usize, 1].map(|l| [(i as usize * i as usize + l) % 5, 7]);
        let distance = [0, 1].map(|l: usize| {
            let since = chosen[l].map(|e| last[l][e].replace(i).map_or(0, |before| i - before));
            since.iter().sum::<u64>()
        });
        s.call(1, |p, _| {
            let l = (0..2).find(|l| ops.iter().any(|o| o[*l] == p));
            1000 + l.map_or(0, |l| 10 * distance[l] + 500 * l as u64) + (i * 31 + p as u64 * 7) % 3
        });
        let graph = s.graphs - 1;
        for ((ids, weights), chosen) in layers.iter().zip(chosen) {
            let rows =
                ExpertRows { graph, ids: *ids, weights: *weights, used: 2, tokens: 1, first: 0, why: "" };
            s.enc.experts(&rows, &chosen.map(|e| e as i32)).unwrap();
        }
    }
    s.enc.finish(&footer("target exited")).unwrap()
}

#[test]
fn an_expert_that_was_away_for_long_costs_time() {
    let bytes = reused(300);
    let d = json(&bytes, &["reuse"]);
    let r = &d["reuse"];
    assert_eq!((r["n"].as_u64(), r["layers"].as_u64()), (Some(600), Some(2)), "{r:#}");
    // Two ops, each 10 ns per token of the sum over two experts.
    let line = &r["line"];
    assert!((line["ns_per_token"].as_f64().unwrap() - 40.0).abs() < 0.5 && line["rises"] == true, "{r:#}");
    assert!(line["r2"].as_f64().unwrap() > 0.99, "{r:#}");
    let first = r["rows"].as_array().unwrap().last().unwrap();
    assert!(first["first_use"] == true && first["distance"].is_null() && first["n"].as_u64() >= Some(2));
    let shown = text(&stat(&bytes, &["reuse"]).stdout);
    assert!(shown.contains("a miss costs time") && shown.contains("  up to 4 "), "{shown}");
    let csv = text(&stat(&bytes, &["reuse", "--csv"]).stdout);
    assert!(csv.starts_with("tokens since last use,mean,n,us,"), "{csv}");
    let none = text(&stat(&finish(growing(Spec::default(), 20)), &["reuse"]).stdout);
    assert!(none.contains("record --experts"), "{none}");
}

#[test]
fn choices_of_experts_are_told_token_by_token() {
    let bytes = reused(30);
    let d = json(&bytes, &["activation"]);
    let a = &d["activation"];
    assert_eq!((a["tokens"].as_u64(), a["tokens_a_bin"].as_u64()), (Some(30), Some(1)), "{a:#}");
    let layer = &a["layers"][1];
    assert_eq!((layer["layer"].as_u64(), layer["experts"].as_u64()), (Some(1), Some(8)));
    // Token 3: (9 + 1) % 5.
    assert_eq!(layer["bins"][3], serde_json::json!([[0, 1], [7, 1]]));
    let csv = text(&stat(&bytes, &["activation", "--csv"]).stdout);
    assert!(csv.starts_with("layer,token,to token,expert,choices\r\n0,0,0,0,1\r\n0,0,0,7,1\r\n"), "{csv}");
    assert_eq!(csv.lines().count(), 1 + 2 * 2 * 30);
    // Longer runs are binned; nothing is lost.
    let long = &json(&reused(1001), &["activation"])["activation"];
    assert_eq!(
        (long["tokens_a_bin"].as_u64(), long["layers"][0]["bins"].as_array().unwrap().len()),
        (Some(4), 251)
    );
    let bins = long["layers"][0]["bins"].as_array().unwrap().iter();
    let all: u64 = bins.flat_map(|b| b.as_array().unwrap()).map(|c| c[1].as_u64().unwrap()).sum();
    assert_eq!(all, 2 * 1001);
}

#[test]
fn the_same_shapes_stand_side_by_side() {
    let mut s = Synth::new(Vec::new(), Spec::default());
    for i in 0..20 {
        s.backend = if i % 2 == 0 { ([7; 16], "CPU") } else { ([9; 16], "AMX") };
        s.call(1, |p, _| 1000 * (1 + i % 2) + p as u64);
    }
    let bytes = finish(s);
    let d = json(&bytes, &["shapes"]);
    let found = &d["shapes"];
    let places: Vec<_> =
        found["places"].as_array().unwrap().iter().map(|p| p["backend"].as_str().unwrap()).collect();
    assert_eq!(places, ["CPU", "AMX"]);
    let out = |d: &Value| {
        let rows = d["shapes"]["rows"].as_array().unwrap().clone();
        rows.into_iter().find(|r| r["form"] == "f32 256 of q4_0 64x256, f32 64").unwrap()
    };
    let cells = &out(&d)["cells"];
    // The last op of a graph: no wait after it.
    assert_eq!(
        (cells[0]["executions"].as_u64(), cells[0]["ratio"].as_f64()),
        (Some(10), Some(1.0)),
        "{cells:#}"
    );
    assert_eq!(
        (cells[0]["median_ns"].as_f64(), cells[1]["median_ns"].as_f64()),
        (Some(1032.0), Some(2032.0))
    );
    let shown = text(&stat(&bytes, &["shapes"]).stdout);
    assert!(shown.contains("Same shapes on CPU, AMX") && shown.contains("1.969"), "{shown}");

    // Only one backend: another trace is needed.
    let alone = finish(growing(Spec::default(), 20));
    let shown = text(&stat(&alone, &["shapes"]).stdout);
    assert!(shown.contains("--beside adds another trace"), "{shown}");
    let dir = tempfile::tempdir().unwrap();
    let other = dir.path().join("other");
    std::fs::write(&other, &bytes).unwrap();
    let other = other.to_str().unwrap();
    let d = json(&alone, &["shapes", "--beside", other]);
    let places: Vec<_> =
        d["shapes"]["places"].as_array().unwrap().iter().map(|p| p["trace"].as_u64()).collect();
    assert_eq!(places, [Some(0), Some(1), Some(1)]);
    assert_eq!(out(&d)["cells"].as_array().unwrap().len(), 3);
    let csv = text(&stat(&alone, &["shapes", "--csv", "--beside", other]).stdout);
    assert!(
        csv.starts_with("A CPU us,n,ratio,B CPU us,n,ratio,B AMX us,n,ratio,op,result of sources"),
        "{csv}"
    );
    assert_eq!(stat(&alone, &["tokens", "--beside", other]).status.code(), Some(2));
}

#[test]
fn a_forecast_goes_along_the_line_of_growth() {
    let bytes = finish(growing(Spec::default(), 200));
    let f = &json(&bytes, &["tokens", "--context", "1000"])["forecast"];
    let ns: Vec<f64> = f["ns"].as_array().unwrap().iter().map(|n| n.as_f64().unwrap()).collect();
    // Relative to the mean context: the middle of 9 to 208.
    assert!((ns[1] - ns[0] - 50.0 * (1000.0 - 108.5)).abs() < 500.0, "{f:#}");
    let out = stat(&bytes, &["tokens", "--bandwidth", "100"]);
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stderr).contains("no op reads its weights from memory"), "{}", text(&out.stderr));
}

#[test]
fn everything_is_there_as_text_and_each_table_as_csv() {
    let bytes = finish(growing(Spec::default(), 40));
    let out = stat(&bytes, &[]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let shown = text(&out.stdout);
    for part in
        ["Time by context length", "Matrix multiplications", "Roofline", "Threads", "Experts", "Backends"]
    {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    for what in ["tokens", "ops", "threads", "backends"] {
        let out = stat(&bytes, &[what, "--csv"]);
        let csv = text(&out.stdout);
        let mut lines = csv.lines().map(|l| l.matches(',').count());
        assert!(
            out.status.success() && lines.next().unwrap() >= 4 && lines.next().is_some(),
            "{what}: {csv}"
        );
    }
    let out = stat(&bytes, &["experts", "--csv"]);
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stderr).contains("no data for this view"), "{}", text(&out.stderr));
}

#[test]
fn what_can_not_be_told_is_said_in_a_line() {
    let mut s = growing(Spec::default(), 20);
    // Only the calls of this process are known.
    let (t, dur) = (s.now as i64, 500);
    let token = Token {
        seq: 99,
        pid: 9,
        tid: 9,
        entry: Entry::Decode,
        n_tokens: Some(1),
        t,
        dur,
        cut: false,
        device: pfi::record::Device::Idle,
    };
    s.enc.token(&token).unwrap();
    let bytes = finish(s);
    for (args, want) in [
        (
            &["--pid", "7"][..],
            "process 7 was not recorded; recorded processes: 9, 4242 (/opt/llama/llama-cli)",
        ),
        (
            &["--pid", "9"],
            "no decode call of process 9 has all of its ops: every call has ops that were lost",
        ),
        (&["--phase", "prefill", "--pid", "9"], "no prefill call of process 9"),
    ] {
        let out = stat(&bytes, args);
        let err = text(&out.stderr);
        assert_eq!((out.status.code(), err.lines().count()), (Some(1), 1), "{err}");
        assert!(err.contains(want), "{err}");
    }
    for args in [&["colours"][..], &["--csv"], &["--bandwidth", "0"], &["--context", "0"], &["--peak", "x"]] {
        assert_eq!(stat(&bytes, args).status.code(), Some(2), "{args:?}");
    }
}
