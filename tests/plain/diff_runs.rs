//! `profinfer diff` on traces with known differences: its findings, exit codes and errors.

use crate::synth_trace;

use std::process::{Command, Output, Stdio};

use synth_trace::*;

/// Position of the feed-forward gate's product in the first of the layers, and positions of a layer.
const GATE: usize = 11;
const OF_LAYER: usize = 15;

fn is_gate(p: usize) -> bool {
    p >= GATE && (p - GATE).is_multiple_of(OF_LAYER) && p < 31
}

/// A prompt and `n` tokens; ops take `factor` times their normal time, with small variations per token and op.
fn run(spec: Spec, n: usize, seed: u64, factor: impl Fn(usize) -> f64) -> Vec<u8> {
    let mut s = Synth::new(Vec::new(), spec);
    tokens(&mut s, n, seed, factor);
    s.enc.finish(&footer("target exited")).unwrap()
}

fn tokens(s: &mut Synth<Vec<u8>>, n: usize, seed: u64, factor: impl Fn(usize) -> f64) {
    s.call(8, |p, _| 100_000 + p as u64);
    for i in 0..n as u64 {
        s.call(1, |p, t| {
            let chance = (i + 1).wrapping_mul(2_654_435_761).wrapping_add(seed + 97 * p as u64) % 401;
            let time = (20_000 + 500 * p as u64) as f64 * factor(p) * (1.0 + (chance as f64 - 200.0) / 1e5);
            time as u64 + u64::from(t)
        });
    }
}

struct Files(tempfile::TempDir);

impl Files {
    fn new(runs: &[&[u8]]) -> Files {
        let dir = tempfile::tempdir().unwrap();
        for (name, bytes) in ["a", "b", "c", "d", "e", "f"].iter().zip(runs) {
            std::fs::write(dir.path().join(name), bytes).unwrap();
        }
        Files(dir)
    }

    fn diff(&self, args: &[&str]) -> Output {
        self.of(["a", "b"], args)
    }

    /// Compares files other than the first two.
    fn of(&self, sides: [&str; 2], args: &[&str]) -> Output {
        let mut c = Command::new(env!("CARGO_BIN_EXE_profinfer"));
        c.current_dir(self.0.path()).arg("diff").args(sides).args(args).stdin(Stdio::null());
        c.output().unwrap()
    }

    fn json(&self, args: &[&str]) -> serde_json::Value {
        json(&self.diff(&[&["--json"], args].concat()))
    }
}

fn json(out: &Output) -> serde_json::Value {
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn plain(_: usize) -> f64 {
    1.0
}

#[test]
fn two_runs_of_one_build_have_no_change_to_tell() {
    let f = Files::new(&[&run(Spec::default(), 64, 1, plain), &run(Spec::default(), 64, 2, plain)]);
    for by in ["name", "op", "layer"] {
        let d = f.json(&["--by", by]);
        assert!(d["ops"].as_array().unwrap().iter().all(|o| o["verdict"].is_null()), "{d:#}");
        assert_eq!((d["pairs"].as_u64(), d["calls_in_a_pair"].as_u64()), (Some(64), Some(1)));
        assert_eq!((&d["only_a"], &d["only_b"]), (&serde_json::json!([]), &serde_json::json!([])));
    }
    let out = f.diff(&["--fail-above", "3%"]);
    assert_eq!((out.status.code(), text(&out.stderr)), (Some(0), String::new()));
    assert!(text(&out.stdout).contains("no change reported"), "{}", text(&out.stdout));
}

#[test]
fn an_op_that_is_slower_is_told_by_name_op_and_layer() {
    let slow = |p: usize| if is_gate(p) { 1.05 } else { 1.0 };
    let f = Files::new(&[&run(Spec::default(), 64, 1, plain), &run(Spec::default(), 64, 2, slow)]);
    let d = f.json(&[]);
    let first = &d["ops"][0];
    assert_eq!(
        (first["name"].as_str(), first["verdict"].as_str()),
        (Some("MUL_MAT  ffn_gate-{L}"), Some("slower"))
    );
    assert!((first["own"].as_f64().unwrap() - 0.05).abs() < 0.002, "{first:#}");
    // Two gates at 11 and 26: 25.5 and 33 us, 5 % of them.
    assert!((first["effect_ns"].as_f64().unwrap() - 2925.0).abs() < 150.0, "{first:#}");
    let told = d["ops"].as_array().unwrap().iter().filter(|o| !o["verdict"].is_null()).count();
    assert_eq!(told, 1, "{d:#}");

    let by_ops = d["added_by_ops"].as_f64().unwrap();
    let out = f.diff(&["--fail-above", &format!("{:.3}%", by_ops * 90.0)]);
    assert_eq!(out.status.code(), Some(3));
    assert!(text(&out.stderr).contains("first MUL_MAT  ffn_gate-{L}"), "{}", text(&out.stderr));
    let passing = format!("{:.3}%", by_ops * 110.0);
    assert_eq!(f.diff(&["--fail-above", &passing]).status.code(), Some(0));
    in_markdown(&f, &format!("{:.3}%", by_ops * 90.0), &passing);
    let layers = f.json(&["--by", "layer"]);
    let layers: Vec<_> =
        layers["ops"].as_array().unwrap().iter().map(|o| o["name"].as_str().unwrap()).collect();
    assert!(layers.contains(&"layer 0") && layers.contains(&"(no layer)"), "{layers:?}");
}

/// The verdict is the first line, the slow op the first row; each name is code.
fn in_markdown(f: &Files, failing: &str, passing: &str) {
    let out = f.diff(&["--markdown", "--fail-above", failing]);
    assert_eq!(out.status.code(), Some(3));
    let told = text(&out.stdout);
    assert!(told.starts_with("**Failed: ops add +"), "{told}");
    assert!(told.lines().next().unwrap().ends_with("first `MUL_MAT  ffn_gate-{L}`**"), "{told}");
    let table: Vec<&str> = told.lines().filter(|l| l.starts_with('|')).collect();
    assert_eq!(table[0], "| us | verdict | own % | change % | A us | B us | name |");
    assert!(
        table[2].contains("| slower |") && table[2].ends_with("| `MUL_MAT  ffn_gate-{L}` |"),
        "{}",
        table[2]
    );
    assert!(table.iter().all(|l| l.matches('|').count() == 8), "{told}");
    let told = text(&f.diff(&["--markdown", "--fail-above", passing]).stdout);
    assert!(told.starts_with("**Passed: a call is not slower by more than "), "{told}");
    let told = text(&f.diff(&["--markdown", "--top", "1"]).stdout);
    assert!(told.starts_with("**Change of a call: ") && told.ends_with(" more\n"), "{told}");
}

#[test]
fn a_slower_machine_is_a_drift_and_a_code_of_its_own() {
    let f = Files::new(&[&run(Spec::default(), 64, 1, plain), &run(Spec::default(), 64, 2, |_| 1.1)]);
    let d = f.json(&[]);
    assert!(d["ops"].as_array().unwrap().iter().all(|o| o["verdict"].is_null()), "{d:#}");
    let drift = d["drift"].as_array().unwrap();
    assert!(drift.iter().all(|k| (k["change"].as_f64().unwrap() - 0.1).abs() < 0.002), "{drift:?}");
    let out = f.diff(&["--fail-above", "3%"]);
    assert_eq!(out.status.code(), Some(4));
    assert!(
        text(&out.stderr).contains("no op stands out: the machine, or the build as a whole"),
        "{}",
        text(&out.stderr)
    );
    assert_eq!(f.diff(&["--fail-above", "20%"]).status.code(), Some(0));
}

/// Calls of B take from as long as A's to many times that: the slowdown cannot be determined.
#[test]
fn what_is_undecided_does_not_pass() {
    let wild = |n: usize, tail: u64| {
        let mut s = Synth::new(Vec::new(), Spec::default());
        s.call(8, |p, _| 100_000 + p as u64);
        for i in 0..n as u64 {
            let factor = [1, 1, 4, tail, 1, 9, 1, 2][(i * 5 % 8) as usize];
            s.call(1, |p, t| (20_000 + 500 * p as u64) * factor + u64::from(t));
        }
        s.enc.finish(&footer("target exited")).unwrap()
    };
    let f = Files::new(&[&run(Spec::default(), 24, 1, plain), &wild(24, 30)]);
    let d = f.json(&[]);
    let (a, b) = (d["call"]["a_ns"].as_f64().unwrap(), d["call"]["b_ns"].as_f64().unwrap());
    assert!(b > 2.0 * a, "{d:#}");
    let out = f.diff(&["--fail-above", "3%"]);
    assert_ne!(out.status.code(), Some(0), "{}", text(&out.stdout));
    for interval in [&d["call"]["interval"]]
        .into_iter()
        .chain(d["ops"].as_array().unwrap().iter().map(|o| &o["own_interval"]))
    {
        let ends = interval.as_array().into_iter().flatten();
        assert!(ends.map(|e| e.as_f64().unwrap()).all(|e| e.abs() < 100.0), "{interval}");
    }
    // One call in eight is slow; the typical call is unchanged.
    let f = Files::new(&[&run(Spec::default(), 64, 1, plain), &stalls()]);
    let out = f.diff(&["--fail-above", "3%"]);
    assert_eq!(out.status.code(), Some(5), "{}{}", text(&out.stdout), text(&out.stderr));
    let said = text(&out.stderr);
    assert!(said.contains("undecided whether a call is slower by more than 3 %"), "{said}");
    assert_eq!(f.diff(&["--fail-above", "3%", "--allow-undecided"]).status.code(), Some(0));
}

/// Like a plain run, but one call in eight takes twenty times as long.
fn stalls() -> Vec<u8> {
    let mut s = Synth::new(Vec::new(), Spec::default());
    s.call(8, |p, _| 100_000 + p as u64);
    for i in 0..64u64 {
        let factor = if i % 8 == 5 { 20 } else { 1 };
        s.call(1, |p, t| {
            let chance = (i + 1).wrapping_mul(2_654_435_761).wrapping_add(2 + 97 * p as u64) % 401;
            ((20_000 + 500 * p as u64) * (100_000 + chance - 200) / 100_000) * factor + u64::from(t)
        });
    }
    s.enc.finish(&footer("target exited")).unwrap()
}

#[test]
fn other_layers_and_other_ops_are_structure_and_no_speed() {
    let more = Spec { layers: 3, ..Spec::default() };
    let f = Files::new(&[&run(Spec::default(), 32, 1, plain), &run(more, 32, 2, plain)]);
    let d = f.json(&[]);
    let gate = d["ops"].as_array().unwrap().iter().find(|o| o["name"] == "MUL_MAT  ffn_gate-{L}").unwrap();
    assert_eq!((gate["verdict"].as_str(), &gate["q"]), (Some("recounted"), &serde_json::Value::Null));
    assert_eq!(gate["times_a_call"], serde_json::json!([2.0, 3.0]));
    let shown = text(&f.diff(&[]).stdout);
    assert!(shown.contains("2 -> 3 times"), "{shown}");

    let experts = Spec { experts: true, ..Spec::default() };
    let f = Files::new(&[&run(Spec::default(), 32, 1, plain), &run(experts, 32, 2, plain)]);
    let d = f.json(&[]);
    let names = |list: &serde_json::Value| -> Vec<String> {
        list.as_array().unwrap().iter().map(|o| o["name"].as_str().unwrap().to_string()).collect()
    };
    assert!(names(&d["only_a"]).contains(&"MUL_MAT  ffn_gate-{L}".to_string()), "{d:#}");
    assert!(names(&d["only_b"]).contains(&"MUL_MAT_ID  ffn_moe_up-{L}".to_string()), "{d:#}");
    let shown = text(&f.diff(&[]).stdout);
    assert!(shown.contains("Only in A, decode") && shown.contains("f32 128x2 of q4_0 64x128x8"), "{shown}");
}

#[test]
fn runs_of_unlike_length_are_compared_as_far_as_both_go() {
    let f = Files::new(&[&run(Spec::default(), 40, 1, plain), &run(Spec::default(), 64, 2, plain)]);
    let shown = text(&f.diff(&[]).stdout);
    assert!(shown.contains("the first 40 calls of each"), "{shown}");
    // Too few tokens for any conclusion; with --fail-above it says so.
    let f = Files::new(&[&run(Spec::default(), 10, 1, plain), &run(Spec::default(), 64, 2, |_| 2.0)]);
    let out = f.diff(&["--fail-above", "3%"]);
    assert_eq!(out.status.code(), Some(5));
    assert!(text(&out.stderr).contains("10 decode calls are too few"), "{}", text(&out.stderr));
    assert_eq!(f.diff(&["--fail-above", "3%", "--allow-undecided"]).status.code(), Some(0));
    assert!(text(&out.stdout).contains("too few calls to separate a change from noise"));
}

#[test]
fn barriers_probed_in_one_run_only_change_nothing() {
    let interval = Spec { barrier: false, ..Spec::default() };
    let f = Files::new(&[&run(Spec::default(), 32, 1, plain), &run(interval, 32, 1, plain)]);
    let d = f.json(&[]);
    assert_eq!(d["differences"], serde_json::json!([["barrier", "probed", "not probed"]]));
    for o in d["ops"].as_array().unwrap() {
        let change = o["total"]["change"].as_f64().unwrap();
        // The wait after the last op is not seen when the barrier is probed.
        assert!(change.abs() < 1e-6 || o["name"] == "MUL_MAT  result_output", "{o:#}");
    }
}

#[test]
fn as_csv_every_op_is_a_line() {
    let experts = Spec { experts: true, ..Spec::default() };
    let f = Files::new(&[&run(Spec::default(), 32, 1, plain), &run(experts, 32, 2, plain)]);
    let csv = text(&f.diff(&["--csv"]).stdout);
    let lines: Vec<&str> = csv.lines().collect();
    assert!(lines[0].starts_with("us,verdict,own %,"), "{csv}");
    let cells = |line: &str| line.replace("\", \"", "").split(',').count();
    assert!(lines.iter().any(|l| l.contains(",only in B,")), "{csv}");
    assert!(lines.len() > 15 && cells(lines[0]) == 13, "{csv}");
}

/// The norms of this start are much faster or slower; all other ops are unchanged.
fn swings(by: f64) -> impl Fn(usize) -> f64 {
    move |p| if p > 0 && p < 31 && (p - 1).is_multiple_of(OF_LAYER) { by } else { 1.0 }
}

#[test]
fn several_starts_a_side_measure_how_much_ops_swing() {
    let slow = |by: f64| move |p: usize| if is_gate(p) { 1.05 } else { swings(by)(p) };
    let spec = Spec::default();
    let [a, c, e] = [(1, 1.0), (2, 1.4), (3, 0.8)].map(|(seed, by)| run(spec, 40, seed, swings(by)));
    let [b, d, f] = [(4, 1.5), (5, 0.7), (6, 1.2)].map(|(seed, by)| run(spec, 40, seed, slow(by)));
    let files = Files::new(&[&a, &b, &c, &d, &e, &f]);
    // With one start per side, nothing shows that the norms vary.
    let one = files.json(&[]);
    let norm = |d: &serde_json::Value| {
        let all = d["ops"].as_array().unwrap();
        all.iter().find(|o| o["name"] == "RMS_NORM+MUL  attn_norm-{L}").unwrap().clone()
    };
    assert_eq!(norm(&one)["verdict"], "slower", "{one:#}");
    let three = json(&files.of(["a,c,e", "b,d,f"], &["--json"]));
    assert!(norm(&three)["verdict"].is_null() && norm(&three)["found"].as_f64().unwrap() > 0.5, "{three:#}");
    let first = &three["ops"][0];
    assert_eq!((&first["name"], &first["verdict"]), (&"MUL_MAT  ffn_gate-{L}".into(), &"slower".into()));
    assert!((first["own"].as_f64().unwrap() - 0.05).abs() < 0.002, "{first:#}");
    assert!(first["found"].as_f64().unwrap() < 0.05, "{first:#}");
    assert_eq!((&three["starts"], three["a"].as_array().map(Vec::len)), (&3.into(), Some(3)));
    let shown = text(&files.of(["a,c,e", "b,d,f"], &[]).stdout);
    for part in [
        "  A3           e: 40 decode calls",
        "  B1           b: 40 decode calls",
        "3 starts per side",
        "finds %",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(!shown.contains("record more runs alternately"), "{shown}");
    // All start-to-start scatter is reported, even if it is no more than what the calls themselves let expect.
    let told: Vec<&str> =
        shown.split(" % from start to start").filter_map(|s| s.rsplit(' ').next()).collect();
    for (kind, said) in three["scatter"].as_array().unwrap().iter().zip(told) {
        let (seen, beyond) = (kind["seen"].as_f64().unwrap(), kind["between_starts"].as_f64().unwrap());
        assert!(seen > 0.0 && seen >= beyond && said == format!("{:.2}", seen * 100.0), "{kind:#} {said}");
    }
    assert!(text(&files.diff(&[]).stdout).contains("record more runs alternately"));
}

#[test]
fn what_the_starts_of_a_side_differ_in_is_told() {
    let interval = Spec { barrier: false, ..Spec::default() };
    let f = Files::new(&[
        &run(Spec::default(), 20, 1, plain),
        &run(Spec::default(), 20, 2, plain),
        &run(interval, 20, 3, plain),
        &run(Spec::default(), 20, 4, plain),
    ]);
    let d = json(&f.of(["a,c", "b,d"], &["--json"]));
    assert_eq!(d["differences"], serde_json::json!([["barrier", "probed; not probed", "probed"]]));
}

#[test]
fn sides_are_as_many_traces_each_and_a_comma_may_be_in_a_name() {
    let one = run(Spec::default(), 20, 1, plain);
    let f = Files::new(&[&one, &one]);
    std::fs::copy(f.0.path().join("a"), f.0.path().join("a,b")).unwrap();
    assert_eq!(json(&f.of(["a,b", "b"], &["--json"]))["starts"], 1);
    for (sides, want) in [
        (["a,b,a", "b"], "A has 3 traces and B 1: give the same number of each"),
        (["a,", "b,b"], "empty file name in the list"),
        (["-", "-"], "standard input can be used for one trace only"),
    ] {
        let out = f.of(sides, &[]);
        assert_eq!(out.status.code(), Some(2), "{sides:?}");
        assert!(text(&out.stderr).contains(want), "{}", text(&out.stderr));
    }
    let out = f.of(["a,b,x", "a,b,b"], &[]);
    assert_eq!(out.status.code(), Some(1), "{}", text(&out.stderr));
}

#[test]
fn processes_are_chosen_by_pid() {
    let slow = |p: usize| if is_gate(p) { 1.3 } else { 1.0 };
    let mut s = Synth::new(Vec::new(), Spec::default());
    tokens(&mut s, 40, 1, plain);
    s.process(7);
    tokens(&mut s, 50, 2, slow);
    let both = s.enc.finish(&footer("target exited")).unwrap();
    let f = Files::new(&[&both, &run(Spec::default(), 40, 3, plain)]);
    let told = |d: serde_json::Value| {
        let ops = d["ops"].as_array().unwrap().clone();
        let told = ops.iter().filter(|o| !o["verdict"].is_null()).map(|o| o["verdict"].clone()).collect();
        (d["a"][0]["pid"].clone(), d["b"][0]["pid"].clone(), told)
    };
    let want = |a: u32, b: u32, told: &[&str]| {
        (a.into(), b.into(), told.iter().map(|t| (*t).into()).collect::<Vec<serde_json::Value>>())
    };
    // Without --pid, the process with the most calls is used.
    assert_eq!(told(f.json(&[])), want(7, PID, &["faster"]));
    assert_eq!(told(f.json(&["--pid", "4242"])), want(PID, PID, &[]));
    assert_eq!(told(f.json(&["--pid", "7"])), want(7, PID, &["faster"]));
    let within = f.of(["a", "a"], &["--json", "--pid", "4242,7"]);
    assert_eq!(told(json(&within)), want(PID, 7, &["slower"]));
    for (pids, code, want) in [
        (
            "9",
            1,
            "no recording has process 9; recorded processes: 7 (/opt/llama/llama-cli), 4242 (/opt/llama/llama-cli)",
        ),
        ("7,9", 1, "run B does not have process 9; recorded processes: 4242 (/opt/llama/llama-cli)"),
        ("7,8,9", 2, "give one process, or one for each of the 2 traces"),
    ] {
        let out = f.diff(&["--pid", pids]);
        assert_eq!(out.status.code(), Some(code), "{pids}: {}", text(&out.stderr));
        assert!(text(&out.stderr).contains(want), "{}", text(&out.stderr));
    }
}

#[test]
fn what_can_not_be_compared_is_said_in_a_line() {
    let mut s = Synth::new(Vec::new(), Spec::default());
    s.call(8, |_, _| 1000);
    let prompt = s.enc.finish(&footer("target exited")).unwrap();
    let f = Files::new(&[&run(Spec::default(), 20, 1, plain), &prompt]);
    let out = f.diff(&[]);
    assert_eq!(out.status.code(), Some(1));
    let want = "profinfer: run B has no decode call with all of its ops: it only has calls of another phase (--phase)\n";
    assert_eq!(text(&out.stderr), want);
    let f = Files::new(&[b"", b""]);
    assert!(text(&f.diff(&[]).stderr).contains("cannot compare a: the trace is empty"));
    let wrong = ["--fdr=0%", "--by=colour", "--least=1", "--json --csv", "--csv --markdown"];
    for args in wrong {
        let out = f.diff(&args.split(' ').collect::<Vec<_>>());
        assert_eq!(out.status.code(), Some(2), "{args}: {}", text(&out.stderr));
    }
}
