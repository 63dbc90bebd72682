//! Recorded experts compared with the engine's own choices: every layer, every token, prefill and decode.

use crate::common;

use std::fs::{self, File};
use std::io::BufReader;
use std::path::Path;
use std::process::Command;

use analysis::{questions::agreement, questions::ground_truth};
use common::cage::{Cage, forget};
use common::run::{Recorder, Target, profinfer, record};
use common::seen::Seen;
use common::{driver, engine, fixture, fixture_dir, live, model, runner, skip};
use pfi::expert_ids;
use pfi::record::{Availability, Experts};
use serde_json::Value;

/// Shape of the preset `moe`.
const LAYERS: usize = 4;
const USED: u32 = 4;
/// Tokens of the prompt, and the calls of one token after it.
const PREFILL: usize = 64;
const DECODES: usize = 8;

/// Name of a tensor of ids, and one row per token.
pub type Chosen = (String, Vec<Vec<i64>>);

fn ids(e: &Experts<'_>) -> Vec<Vec<i64>> {
    let all: Vec<i64> = expert_ids(e).collect();
    all.chunks(e.used.max(1) as usize).map(<[i64]>::to_vec).collect()
}

/// From a trace, in the order of its graphs; each tensor of ids is complete, once per graph.
pub fn traced(seen: &Seen) -> Vec<Chosen> {
    let mut all: Vec<&Experts<'_>> = seen.all.causes.experts.iter().collect();
    // A stable sort: those of one graph stay in order of arrival.
    all.sort_by_key(|e| e.graph);
    let told = |e: &&Experts<'_>| {
        assert_eq!((e.why, e.first, e.rows), ("", 0, e.tokens), "{e:?}");
        assert!(seen.all.cpu_graphs.iter().any(|g| g.seq == e.graph), "CPU graph {}", e.graph);
        let (of, weights) = (seen.tensor(e.ids), seen.tensor(e.weights));
        assert_eq!((of.ne[0], of.ne[1]), (e.used.into(), e.tokens.into()), "dims of {}", of.name);
        assert!(weights.name.contains("_exps.weight"), "weights {}", weights.name);
        (of.name.to_string(), ids(e))
    };
    all.iter().map(told).collect()
}

/// From the engine itself.
fn said(path: &Path) -> Vec<Chosen> {
    let line = |line: &str| {
        let v: Value = serde_json::from_str(line).expect("JSON");
        let row = |r: &Value| r.as_array().expect("a row").iter().filter_map(Value::as_i64).collect();
        let rows = v["rows"].as_array().expect("rows").iter().map(row).collect();
        (v["name"].as_str().expect("a name").to_owned(), rows)
    };
    fs::read_to_string(path).expect("the driver wrote it").lines().map(line).collect()
}

fn whole(seen: &Seen) {
    seen.complete();
    assert_eq!(seen.footer().read_errors, 0, "failed reads of the target's memory");
    let f = seen.all.causes.features.iter().find(|f| f.name == "experts").expect("told");
    assert_eq!(f.state, Availability::Whole, "{}", f.why);
}

/// Records a prefill and decodes on an engine; with `truth`, the engine writes its choices, and splits its graphs
/// for that.
fn one(lib: &Path, model: &Path, threads: u32, truth: Option<&Path>) -> Vec<Chosen> {
    let mut command = Command::new(driver());
    command.arg("--engine").arg(lib).arg("--model").arg(model);
    command.args(["--control", "--ctx", "256", "-t", &threads.to_string()]);
    if let Some(truth) = truth {
        command.arg("--experts").arg(truth);
    }
    let mut target = Target::controlled(&mut command);
    let pid = target.pid();
    target.tell("", 1);
    let recorder = Recorder::start(&["--experts", "-p", &pid.to_string()]);
    recorder.wait_for_probes();
    target.tell(&format!("prefill {PREFILL}\n"), 2);
    target.tell(&format!("run {DECODES}\n"), 3);
    drop(target.0.stdin.take());
    target.said();
    let seen = recorder.finish().seen();
    whole(&seen);
    let chosen = traced(&seen);
    assert_eq!(chosen.len(), LAYERS * (1 + DECODES), "a record a layer and graph");
    let tokens: Vec<usize> = chosen.iter().map(|c| c.1.len()).collect();
    // The last layer is computed only for tokens whose output is wanted: for a prompt only its last token.
    let (prefill, rest) = tokens.split_at(LAYERS - 1);
    assert!(prefill.iter().all(|&n| n == PREFILL) && rest.iter().all(|&n| n == 1), "{tokens:?}");
    assert!(chosen.iter().flat_map(|c| &c.1).all(|row| row.len() == USED as usize));
    chosen
}

fn compare(name: &str, types: &[&str]) {
    let _turn = live!(beside others);
    let lib = match engine(name) {
        Ok(path) => path,
        Err(why) => skip!("{why}"),
    };
    let dir = tempfile::tempdir().expect("a directory");
    for ty in types {
        println!("{name}, {ty}");
        let (model, truth) = (model("moe", ty), dir.path().join("truth"));
        let cut = one(&lib, &model, 1, Some(&truth));
        assert_eq!(cut, said(&truth), "experts beside the engine's own");
        // Without splits, as it runs normally, and with more threads the engine makes the same choices.
        assert_eq!(one(&lib, &model, 2, None), cut, "experts of graphs in one piece");
    }
}

#[test]
fn b4753() {
    // Its repacked kernels abort on experts in Q4_0.
    compare("b4753", &["f16"]);
}

#[test]
fn v0_5_0() {
    compare("v0.5.0", &["f16", "q4_0"]);
}

#[test]
fn b11549() {
    compare("b11549", &["q4_0"]);
}

#[test]
fn the_runners_own_account_says_the_same() {
    let _turn = live!(beside others);
    let dir = tempfile::tempdir().expect("a directory");
    let (truth, program, model) = (dir.path().join("truth"), runner(), model("moe", "q4_0"));
    let [file, program, model] = [&truth, &program, &model].map(|p| p.to_str().expect("a path"));
    for recorder in [&["--experts"][..], &["--experts", "--pbuf"]] {
        for threads in ["1", "2"] {
            let run = ["--", program, "run", "--no-roofline", "-m", model, "--force", "--ground-truth", file];
            let seen = record(&[recorder, &run, &["-p", "64", "-n", "8", "-t", threads]].concat()).seen();
            whole(&seen);
            let truth = ground_truth::read(BufReader::new(File::open(&truth).expect("written")));
            let answer = agreement::experts(&seen.all, &truth.expect("ground truth")).expect("the same");
            // Two prefills and nine decodes, including the warm-up; of the last layer only the output tokens.
            let tokens = 2 * (64 * (LAYERS - 1) + 1) + 9 * LAYERS;
            assert!(
                answer.ends_with(&format!("experts of {tokens} tokens and layers as the engine chose them")),
                "{answer}"
            );
        }
    }
}

/// Bytes that the kernel has read from storage for a process.
fn read_bytes(pid: u32) -> u64 {
    let io = fs::read_to_string(format!("/proc/{pid}/io")).expect("its account");
    let line = io.lines().find_map(|line| line.strip_prefix("read_bytes: ")).expect("bytes read");
    line.parse().expect("a number")
}

/// An unmodified engine whose model is larger than its group's memory: what the kernel reads again and again belongs to experts.
#[test]
fn reads_of_a_model_that_does_not_fit_are_those_of_its_experts() {
    const LEAST: u64 = 60 << 20;
    let _turn = live!();
    let lib = match engine("v0.5.0") {
        Ok(path) => path,
        Err(why) => skip!("{why}"),
    };
    let path = model("moe", "f16");
    let cage = match Cage::new(LEAST) {
        Ok(cage) => cage,
        Err(why) => skip!("{why}"),
    };
    forget(&path, 2 * LEAST);
    let mut command = Command::new(driver());
    command.arg("--engine").arg(&lib).arg("--model").arg(&path);
    command.args(["--control", "--ctx", "256", "-t", "1"]);
    cage.holds(&mut command);
    let mut target = Target::controlled(&mut command);
    let pid = target.pid();
    target.tell("", 1);
    let recorder = Recorder::start(&["--experts", "-p", &pid.to_string()]);
    recorder.wait_for_probes();
    let before = read_bytes(pid);
    target.tell("prefill 8\n", 2);
    target.tell("run 24\n", 3);
    let read = read_bytes(pid) - before;
    drop(target.0.stdin.take());
    target.said();
    let run = recorder.finish();
    drop(cage);
    let seen = run.seen();
    seen.complete();
    let told = seen.all.causes.features.iter().find(|f| f.name == "file reads").expect("told");
    // On a machine with many processors a ring may be too small: then some are lost, and counted.
    assert_ne!(told.state, Availability::None, "{}", told.why);
    let recorded: u64 = seen.all.causes.file_reads.iter().map(|r| r.bytes).sum();
    println!("{read} bytes read by the kernel's account, {recorded} recorded: {}", told.why);
    // The rest is code of the engine, which had to make room as well.
    assert!(read > 2 * LEAST && recorded <= read && (read - recorded) * 25 <= read, "{recorded} of {read}");
    let out = profinfer().args(["experts", "--json"]).arg(&run.trace).output().expect("it runs");
    let found: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let of =
        |name: &str| found["reads"][name].as_u64().unwrap_or_else(|| panic!("{name}: {}", found["reads"]));
    assert_eq!(of("all_bytes"), recorded);
    // What the model has beside its experts is small, and is needed for every token.
    assert!(of("all_expert_bytes") * 10 > recorded * 8, "{}", found["reads"]);
    assert!(of("missed") > 0 && of("missed") <= of("needed"), "{}", found["reads"]);
    assert!(of("needed_bytes") > 0 && of("needed_bytes") + of("ahead_bytes") <= of("all_expert_bytes"));
}

/// Records the fake with invalid ids; everything else is as usual.
fn spoiled(how: &str) -> Seen {
    let program = fixture_dir("modern").expect("asked for before").join("fakellama");
    let program = program.to_str().expect("a path");
    let seen = record(&["--experts", "--", program, "--moe", "--ids", how, "-p", "4", "-n", "2"]).seen();
    seen.complete();
    let (graphs, layers) = (3, 2);
    assert_eq!(seen.all.cpu_graphs.len(), graphs);
    assert!(seen.all.cpu_graphs.iter().all(|g| g.expected == Some(g.seen) && !g.cut), "{how}");
    assert!(seen.all.causes.experts.len() >= graphs * layers, "{how}: a record for each layer and graph");
    seen
}

fn state(seen: &Seen) -> Availability {
    let f = seen.all.causes.features.iter().find(|f| f.name == "experts").expect("told");
    f.state
}

#[test]
fn ids_that_cannot_be_are_told_as_such() {
    let _turn = live!(beside others);
    let _program = fixture!("modern");
    for (how, why) in [
        ("null", "no data"),
        ("nowhere", "cannot be read"),
        ("huge", "not a tensor"),
        ("wide", "not a tensor"),
        ("zero", "not a tensor"),
        ("negative", "not a tensor"),
        ("type", "not a tensor"),
    ] {
        let seen = spoiled(how);
        let all = &seen.all.causes.experts;
        assert!(all.iter().all(|e| e.rows == 0 && e.why.contains(why)), "{how}: {all:?}");
        assert_eq!(state(&seen), Availability::Partly, "{how}");
    }
}

#[test]
fn ids_are_told_as_far_as_they_go() {
    let _turn = live!(beside others);
    let _program = fixture!("modern");
    // The first of four rows, and why there is no second.
    let seen = spoiled("far");
    let prefill: Vec<_> = seen.all.causes.experts.iter().filter(|e| e.tokens == 4).collect();
    let told: Vec<_> = prefill.iter().map(|e| (e.first, e.rows, e.why.is_empty())).collect();
    assert_eq!(told, [(0, 1, true), (1, 0, false), (0, 1, true), (1, 0, false)]);
    assert_eq!(state(&seen), Availability::Partly);
    // At most 8192 ids; the tensor's dims say how many there are.
    let seen = spoiled("many");
    assert!(seen.all.causes.experts.iter().all(|e| (e.tokens, e.rows, e.why) == (5000, 4096, "")));
    assert_eq!(state(&seen), Availability::Partly);
    // Ids that the model does not have are left for the analysis to report.
    let seen = spoiled("range");
    assert!(seen.all.causes.experts.iter().all(|e| ids(e)[0] == [-7, i32::MAX.into()]));
    assert_eq!(state(&seen), Availability::Whole);
}

#[test]
fn what_there_is_not_is_said() {
    let _turn = live!(beside others, by perf events);
    let program = fixture!("modern");
    let program = program.to_str().expect("a path");
    let feature = |args: &[&str]| {
        let seen = record(&[&["--experts"], args].concat()).seen();
        let f = seen.all.causes.features.iter().find(|f| f.name == "experts").expect("told");
        (f.state, f.why.to_owned(), seen.all.causes.experts.len())
    };
    let (state, why, n) = feature(&["--", program]);
    assert_eq!((state, n), (Availability::Whole, 0), "a model without experts: {why}");
    // The second of two layers runs on another backend.
    let (state, why, n) = feature(&["--", program, "--moe", "--split", "-p", "4", "-n", "2"]);
    assert_eq!((state, n), (Availability::Partly, 3), "{why}");
    assert!(why.contains("CUDA") && why.contains("device memory"), "{why}");
    let (state, why, n) = feature(&["--source", "perf", "--", program, "--moe"]);
    assert_eq!((state, n), (Availability::None, 0), "{why}");
    for flags in [&["--experts", "--no-str"][..], &["--experts", "--level", "graph"]] {
        let run = record(&[flags, &["--", program]].concat());
        assert!(!run.status.success() && run.stderr.contains("--experts requires"), "{}", run.stderr);
    }
}
