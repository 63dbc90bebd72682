//! Views of real recordings of ggml-runner: experts token by token, the same ops on two backends, and the readable
//! rest of a damaged file.

use crate::all_views;
use crate::common;
use crate::trace_support;

use std::path::Path;

use common::run::{Run, profinfer, record};
use common::{live, model, runner};
use pfi::{BLOCK_HEADER, FILE_HEADER};
use serde_json::Value;
use trace_support::{seal, spans};

/// Shape of the preset `moe`, and decoded tokens: the requested ones plus the warm-up's.
const LAYERS: u64 = 4;
const USED: u64 = 4;
const TOKENS: u64 = 25;

fn recorded(recorder: &[&str], model: &Path, more: &[&str]) -> Run {
    let program = runner();
    let (program, model) = (program.to_str().expect("a path"), model.to_str().expect("a path"));
    let run =
        record(&[recorder, &["--", program, "run", "--no-roofline", "-m", model, "-p", "8"], more].concat());
    assert!(run.status.success(), "{}", run.stderr);
    run
}

fn stat(run: &Run, what: &str) -> Value {
    let out = profinfer().args(["stat", "--json"]).arg(&run.trace).arg(what).output().expect("it runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).expect("JSON")
}

#[test]
fn experts_are_told_token_by_token() {
    let _turn = live!(beside others);
    let run = recorded(&["--experts"], &model("moe", "q4_0"), &["-t", "2", "-n", "24"]);
    let reuse = &stat(&run, "reuse")["reuse"];
    assert_eq!(
        (reuse["layers"].as_u64(), reuse["n"].as_u64()),
        (Some(LAYERS), Some(LAYERS * TOKENS)),
        "{reuse:#}"
    );
    let rows = reuse["rows"].as_array().expect("rows");
    assert_eq!(rows.iter().filter_map(|r| r["n"].as_u64()).sum::<u64>(), LAYERS * TOKENS);
    assert!(rows.iter().any(|r| r["first_use"] == true && r["n"].as_u64() >= Some(LAYERS)), "{reuse:#}");
    assert!(reuse["line"]["r2"].as_f64().is_some_and(|r2| (0.0..=1.0).contains(&r2)), "{reuse:#}");
    let active = &stat(&run, "activation")["activation"];
    assert_eq!((active["tokens"].as_u64(), active["tokens_a_bin"].as_u64()), (Some(TOKENS), Some(1)));
    let layers = active["layers"].as_array().expect("layers");
    assert_eq!(layers.len() as u64, LAYERS);
    for bin in layers.iter().flat_map(|l| l["bins"].as_array().expect("bins")) {
        let chosen = bin.as_array().expect("experts").iter().filter_map(|c| c[1].as_u64());
        assert_eq!(chosen.sum::<u64>(), USED, "{bin}");
    }
}

#[test]
fn ops_of_two_backends_stand_side_by_side() {
    let _turn = live!(beside others);
    let run = recorded(&[], &model("tiny", "q4_0"), &["--two-backends", "-t", "1", "-n", "24"]);
    let shapes = &stat(&run, "shapes")["shapes"];
    assert_eq!(shapes["places"].as_array().map(Vec::len), Some(2), "{shapes:#}");
    let rows = shapes["rows"].as_array().expect("rows");
    let product = rows.iter().find(|r| r["op"] == "MUL_MAT").expect("each backend multiplies");
    for cell in product["cells"].as_array().expect("cells") {
        assert!(
            cell["executions"].as_u64() >= Some(TOKENS) && cell["median_ns"].as_f64() > Some(0.0),
            "{product}"
        );
    }
    assert_eq!(product["cells"][0]["ratio"], 1.0);
}

/// The same numbers every time (Marsaglia's xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}

#[test]
fn damaged_recordings_pass_all_views() {
    let _turn = live!(beside others);
    let whole = ["--experts", "--sched", "--phases"];
    let run = recorded(&whole, &model("moe", "q4_0"), &["-t", "2", "-n", "2"]);
    let file = std::fs::read(&run.trace).expect("a trace");
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    assert!(all_views::all(file.clone()) > 10_000);
    for _ in 0..20 {
        let mut bad = file.clone();
        let spans = spans(&file);
        for _ in 0..1 + random.below(12) {
            let (start, end) = spans[random.below(spans.len())];
            bad[start + BLOCK_HEADER + random.below(end - start - BLOCK_HEADER)] = random.below(256) as u8;
        }
        spans.iter().for_each(|s| seal(&mut bad, s.0));
        all_views::all(bad.clone());
        bad.truncate(FILE_HEADER + random.below(file.len() - FILE_HEADER));
        all_views::all(bad);
    }
}
