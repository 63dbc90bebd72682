//! `profinfer accuracy` on a trace with known true times: the figures, unmatched entries, errors.

use crate::synth_trace;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use analysis::recorded::load::{LoadProgress, load};
use pfi::{Trace, slice_iter};
use synth_trace::*;

/// True spans begin this much before the recorded ones.
const EARLY: u64 = 10;

struct Pair {
    _dir: tempfile::TempDir,
    trace: PathBuf,
    truth: PathBuf,
}

/// One prompt and three tokens, each op 20 us (on thread 1: 60 us); `tell` maps each duration to the one in the
/// engine's account.
fn pair(spec: Spec, tell: impl Fn(u64) -> u64) -> Pair {
    let mut s = Synth::new(Vec::new(), spec);
    for width in [4, 1, 1, 1] {
        s.call(width, |_, ith| if ith == 1 { 60_000 } else { 20_000 });
    }
    let bytes = s.enc.finish(&footer("target exited")).expect("a trace");
    let dir = tempfile::tempdir().expect("a directory");
    let (trace, truth) = (dir.path().join("run.pfi"), dir.path().join("truth.tsv"));
    let text = truth_of(&bytes, tell);
    std::fs::write(&trace, bytes).expect("written");
    std::fs::write(&truth, text).expect("written");
    Pair { _dir: dir, trace, truth }
}

/// The account that an engine would have written of the run in the trace.
fn truth_of(bytes: &[u8], tell: impl Fn(u64) -> u64) -> String {
    let trace = Trace::from_bytes(bytes.to_vec()).expect("a trace");
    let l = load(&trace, &LoadProgress::default());
    let mut out = format!("# ggml-runner ground truth 1\nprocess\t{PID}\nreading\t25\ndropped\t0\n");
    let times = |t: i64, dur: u64| (t as u64 - EARLY, t as u64 - EARLY + tell(dur));
    let mut plans: Vec<u32> = l.plans.keys().copied().collect();
    plans.sort_unstable();
    for (table, plan) in plans.iter().enumerate() {
        for (i, hit) in l.plans[plan].hits.iter().enumerate() {
            writeln!(out, "node\t{table}\t{i}\t{:x}\tMUL_MAT\tx", l.tensors[&hit.0].addr).expect("text");
        }
    }
    for t in &l.tokens {
        let (start, end) = times(t.t, t.dur);
        writeln!(out, "call\t{}\t1\t{}\t{start}\t{end}", t.seq, t.n_tokens.unwrap_or(0)).expect("text");
    }
    for g in &l.graphs {
        let (start, end) = times(g.t, g.dur);
        writeln!(out, "graph\t{}\t-\t1\t9\t{start}\t{end}", g.seq).expect("text");
    }
    for g in &l.cpu_graphs {
        let table = plans.iter().position(|p| Some(*p) == g.plan).expect("a plan");
        let (start, end) = times(g.t, g.dur);
        writeln!(out, "cpu-graph\t{}\t-\t1\t{}\t{table}\t{start}\t{end}", g.seq, g.n_threads).expect("text");
    }
    for run in &l.runs {
        for (i, slice) in slice_iter(run).enumerate() {
            let dur = slice.busy.or(slice.next.map(|n| (n - slice.start) as u64)).expect("an end");
            let (start, end) = times(slice.start, dur);
            writeln!(out, "op\t{}\t{}\t1\t{i}\t{start}\t{end}", run.graph, run.ith).expect("text");
        }
    }
    out
}

fn accuracy(trace: &Path, truth: &Path, more: &[&str]) -> Output {
    let mut c = Command::new(env!("CARGO_BIN_EXE_profinfer"));
    c.arg("accuracy").arg(trace).arg(truth).args(more).output().expect("profinfer runs")
}

fn json(p: &Pair) -> serde_json::Value {
    let out = accuracy(&p.trace, &p.truth, &["--json"]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).expect("JSON")
}

fn line<'a>(c: &'a serde_json::Value, list: &str, level: &str) -> &'a serde_json::Value {
    let lines = c[list].as_array().expect("lines");
    lines.iter().find(|l| l["level"] == level).unwrap_or_else(|| panic!("{level} in {c}"))
}

#[test]
fn exact_times_are_exact() {
    let p = pair(Spec::default(), |d| d);
    let c = json(&p);
    let positions = 2 * 16 + 3 - 2 * 2;
    let ops = line(&c, "levels", "op");
    assert_eq!(ops["accuracy"]["count"].as_u64().expect("a count") % (4 * 2), 0);
    assert!(ops["accuracy"]["count"].as_u64().expect("a count") >= 4 * 2 * positions);
    for level in ["phase", "token", "graph", "cpu graph", "op"] {
        let l = line(&c, "levels", level);
        assert_eq!(l["accuracy"]["mean"], 1.0, "{l}");
        assert_eq!((&l["only_traced"], &l["only_true"]), (&0.into(), &0.into()), "{l}");
    }
    assert_eq!(line(&c, "levels", "phase")["accuracy"]["count"], 2);
    assert_eq!(line(&c, "levels", "token")["accuracy"]["count"], 4);
    assert!(c["targets"].as_array().expect("targets").iter().all(|t| t["met"] == true), "{c}");
}

#[test]
fn a_share_too_much_costs_that_share() {
    // The trace says 20 us and 60 us where it was 25 us and 75 us.
    let c = json(&pair(Spec::default(), |d| d / 4 * 5));
    let near = |l: &serde_json::Value, key: &str, want: f64| {
        let got = l["accuracy"][key].as_f64().expect("a number");
        assert!((got - want).abs() < 1e-6, "{key}: {l}");
    };
    for (class, bias) in [("op 10-100 us", None), ("op > 50 us", Some(-15_000))] {
        let l = line(&c, "classes", class);
        for key in ["mean", "median", "worst"] {
            near(l, key, 0.8);
        }
        assert!(bias.is_none_or(|b| l["accuracy"]["bias_ns"] == b), "{l}");
    }
    let (all, over) = (line(&c, "levels", "op"), line(&c, "classes", "op > 50 us"));
    assert_eq!(all["accuracy"]["count"].as_u64(), over["accuracy"]["count"].as_u64().map(|n| 2 * n));
    assert!(line(&c, "classes", "op < 10 us")["accuracy"].is_null());
    assert!(c["targets"].as_array().expect("targets").iter().all(|t| t["met"] == false), "{c}");
}

#[test]
fn without_barriers_ops_are_compared_until_their_threads_next_one() {
    let c = json(&pair(Spec { barrier: false, ..Spec::default() }, |d| d));
    let ops = line(&c, "levels", "op");
    assert_eq!(c["wall"], ops["accuracy"]["count"]);
    let one = json(&pair(Spec { barrier: false, threads: 1, ..Spec::default() }, |d| d));
    // A recorder ends the last op with its graph; this trace has an explicit end.
    assert_eq!(line(&one, "levels", "op")["accuracy"]["median"], 1.0);
    assert_eq!(json(&pair(Spec::default(), |d| d))["wall"], 0);
}

#[test]
fn what_has_no_partner_is_counted() {
    let p = pair(Spec::default(), |d| d);
    let text = std::fs::read_to_string(&p.truth).expect("text");
    let count = |c: &serde_json::Value, level: &str, side: &str| line(c, "levels", level)[side].as_u64();
    // The engine recorded neither the last call nor the ops of thread 1.
    let kept: Vec<&str> = text.lines().filter(|l| !l.starts_with("call\t3\t")).collect();
    let kept = kept.into_iter().filter(|l| l.split('\t').nth(2) != Some("1") || !l.starts_with("op\t"));
    std::fs::write(&p.truth, kept.map(|l| format!("{l}\n")).collect::<String>()).expect("written");
    let c = json(&p);
    assert_eq!(count(&c, "token", "only_traced"), Some(1));
    let ops = line(&c, "levels", "op");
    assert_eq!(ops["only_traced"], ops["accuracy"]["count"]);
    // A call missing from the trace, and a warm-up.
    let more = text.replace("call\t0\t", "warm-up\t0\t") + "call\t9\t1\t1\t7\t9\n";
    std::fs::write(&p.truth, more).expect("written");
    let c = json(&p);
    assert_eq!(count(&c, "token", "only_true"), Some(1));
    assert_eq!(line(&c, "levels", "warm-up call")["accuracy"]["count"], 1);
    assert_eq!(line(&c, "levels", "token")["accuracy"]["count"], 3);
}

#[test]
fn the_text_says_the_same() {
    let p = pair(Spec::default(), |d| d);
    let out = accuracy(&p.trace, &p.truth, &[]);
    let text = String::from_utf8_lossy(&out.stdout);
    let words: Vec<Vec<&str>> = text.lines().map(|l| l.split_whitespace().collect()).collect();
    assert!(
        words.contains(&vec!["phase", "2", "100.0000", "100.0000", "100.0000", "+0", "0", "0"]),
        "{text}"
    );
    for part in ["op > 50 us", "at least 99.9900 %: 100.0000 %, met", "25 ns"] {
        assert!(text.contains(part), "'{part}' in: {text}");
    }
}

#[test]
fn files_that_are_none_are_told_in_one_line() {
    let p = pair(Spec::default(), |d| d);
    let dir = p.truth.parent().expect("a directory");
    let (other, late) = (dir.join("other"), dir.join("late"));
    std::fs::write(&other, "nonsense\n").expect("written");
    let elsewhen = format!("# ggml-runner ground truth 1\nprocess\t{PID}\ncall\t0\t1\t4\t7\t9\n");
    std::fs::write(&late, elsewhen).expect("written");
    let missing = dir.join("missing");
    let cases: [(&Path, &Path, &str); 5] = [
        (&p.trace, &other, "not a ground truth file"),
        (&p.trace, &missing, "missing"),
        (&missing, &p.truth, "missing"),
        (&p.truth, &p.truth, "not a"),
        (&p.trace, &late, "both files of the same run"),
    ];
    for (trace, truth, part) in cases {
        let out = accuracy(trace, truth, &[]);
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{said}");
        assert!(said.contains(part) && said.lines().count() == 1, "'{part}' in: {said}");
    }
}
