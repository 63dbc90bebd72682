//! `profinfer score` on traces with known speeds: the scores, what is refused, and the picture.

use crate::common;
use crate::synth_trace::{Spec, Synth, footer};

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// A prompt of `prompt` tokens and 16 tokens after it, whose ops take these times, ns; 0: none.
fn trace(path: &Path, prompt: u32, prefill: u64, decode: u64) {
    let mut s = Synth::new(Vec::new(), Spec::default());
    if prefill > 0 {
        s.call(prompt, |_, _| prefill);
    }
    if decode > 0 {
        (0..16).for_each(|_| s.call(1, |_, _| decode));
    }
    fs::write(path, s.enc.finish(&footer("target exited")).expect("ended")).expect("written");
}

struct Place(tempfile::TempDir);

impl Place {
    /// `f16.pfi`, and `q4.pfi` with a prefill 4 times and a decode 2 times as fast, nearly.
    fn new() -> Place {
        let dir = tempfile::tempdir().expect("a directory");
        trace(&dir.path().join("f16.pfi"), 8, 40_000_000, 20_000_000);
        trace(&dir.path().join("q4.pfi"), 8, 10_000_000, 10_000_000);
        Place(dir)
    }

    fn file(&self, name: &str, text: &str) {
        fs::write(self.0.path().join(name), text).expect("written");
    }

    fn score(&self, args: &str) -> Output {
        let mut command = Command::new(common::profinfer());
        command.current_dir(self.0.path()).arg("score").args(args.split_whitespace());
        command.stdin(Stdio::null()).output().expect("profinfer runs")
    }

    fn refused(&self, args: &str, code: i32, parts: &[&str]) {
        let o = self.score(args);
        let said = String::from_utf8_lossy(&o.stderr);
        assert_eq!((o.status.code(), o.stdout.len()), (Some(code), 0), "{args}: {said}");
        parts.iter().for_each(|part| assert!(said.contains(part), "'{part}' in: {said}"));
    }
}

fn near(value: &Value, wanted: f64) {
    let value = value.as_f64().expect("a number");
    assert!((value / wanted - 1.0).abs() < 1e-3, "{value} and {wanted}");
}

fn json(o: &Output) -> Value {
    serde_json::from_slice(&o.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&o.stderr)))
}

#[test]
fn scores_are_harmonic_means_of_ratios_to_the_first_run() {
    let at = Place::new();
    at.file("accuracy", "f16.pfi 60%\nq4.pfi 0.54 # a ratio of 0.9\n");
    let o = at.score("f16.pfi q4.pfi --quality accuracy --json");
    assert_eq!(o.status.code(), Some(0), "{}", String::from_utf8_lossy(&o.stderr));
    let found = json(&o);
    let [first, second] = [&found["runs"][0], &found["runs"][1]];
    assert_eq!((&first["h_q"], &first["accuracy_ratio"]), (&1.0.into(), &1.0.into()));
    near(&second["accuracy_ratio"], 0.9);
    near(&second["prefill_ratio"], 4.0);
    near(&second["decode_ratio"], 2.0);
    // By hand: 3 / (10/9 + 1/4 + 1/2).
    near(&second["h_q"], 108.0 / 67.0);
    assert_eq!((&second["refused"], &found["quality"]), (&Value::Null, &"accuracy".into()));
    assert!(second["differences"].as_array().expect("a list").is_empty(), "{second}");
    let table = at.score("f16.pfi q4.pfi --quality accuracy");
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    assert!(table.contains("H_Q") && table.contains("2 q4.pfi") && table.contains("1.612"), "{table}");
    // In a file's name, the directory does not count.
    let here = at.0.path().join("q4.pfi");
    let o = at.score(&format!("f16.pfi {} --quality accuracy --json", here.display()));
    near(&json(&o)["runs"][1]["h_q"], 108.0 / 67.0);
}

#[test]
fn a_perplexity_counts_the_other_way_round() {
    let at = Place::new();
    let model = common::model("tiny", "q4_0");
    let text = at.0.path().join("text");
    fs::write(&text, common::made_text::text(1, 600)).expect("written");
    let o = Command::new(common::runner())
        .args(["perplexity", "-c", "64", "--json", "-m"])
        .arg(&model)
        .arg("-f")
        .arg(&text)
        .output()
        .expect("ggml-runner runs");
    let one: Value = json(&o);
    let with = |key: &str, value: Value| {
        let mut other = one.clone();
        other[key] = value;
        other.to_string()
    };
    at.file("f16.json", &one.to_string());
    at.file("q4.json", &with("perplexity", (one["perplexity"].as_f64().expect("a number") / 0.9).into()));
    let o = at.score("f16.pfi q4.pfi --perplexity f16.json,q4.json --json");
    assert_eq!(o.status.code(), Some(0), "{}", String::from_utf8_lossy(&o.stderr));
    near(&json(&o)["runs"][1]["h_q"], 108.0 / 67.0);
    let shown = at.score("f16.pfi q4.pfi --perplexity f16.json --perplexity q4.json");
    assert!(String::from_utf8_lossy(&shown.stdout).contains("not the paper's task accuracy"));
    for (key, value, why) in [
        ("text_id", "0".into(), "different texts"),
        ("vocabulary_id", "0".into(), "different vocabularies"),
        ("context", 128.into(), "chunks of 64 and of 128 tokens"),
        ("scored", 1.into(), "tokens were scored"),
    ] {
        at.file("q4.json", &with(key, value));
        at.refused(
            "f16.pfi q4.pfi --perplexity f16.json,q4.json",
            1,
            &["cannot be compared", why, "same -f"],
        );
    }
    at.refused("f16.pfi q4.pfi --perplexity f16.json", 2, &["1 files for 2 traces"]);
    at.refused(
        "f16.pfi q4.pfi --perplexity text,f16.json",
        1,
        &["text is no answer of 'ggml-runner perplexity"],
    );
}

#[test]
fn a_run_without_a_factor_has_no_score_and_the_reason() {
    let at = Place::new();
    trace(&at.0.path().join("mute.pfi"), 8, 10_000_000, 0);
    trace(&at.0.path().join("long.pfi"), 16, 10_000_000, 10_000_000);
    trace(&at.0.path().join("slow.pfi"), 8, 100_000_000, 10_000_000);
    at.file("accuracy", "f16.pfi 0.6\nmute.pfi 0.6\nlong.pfi 0.25\nslow.pfi 0.6\n");
    let all = "f16.pfi q4.pfi mute.pfi long.pfi slow.pfi --quality accuracy";
    let o = at.score(&format!("{all} --json"));
    assert_eq!(o.status.code(), Some(3));
    let found = json(&o);
    for (i, why) in [
        (1, "has no accuracy"),
        (2, "has no decode"),
        (3, "accuracy has collapsed to 41.7 %"),
        (4, "prefill speed has collapsed to 40.0 %"),
    ] {
        let row = &found["runs"][i];
        assert!(row["h_q"].is_null() && row["refused"].as_str().expect("why").contains(why), "{row}");
    }
    assert_eq!(found["runs"][3]["differences"][0], "prompt tokens: 8 and 16");
    let table = at.score(all);
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    assert!(table.contains("run 3 has no score: has no decode"), "{table}");
    assert!(table.contains("run 1 and run 4 differ: prompt tokens: 8 and 16"), "{table}");
    assert_eq!(at.score("f16.pfi slow.pfi --least 30% --quality accuracy").status.code(), Some(0));
    at.refused("mute.pfi f16.pfi --quality accuracy", 1, &["mute.pfi, the first run, has no decode"]);
    at.refused("q4.pfi f16.pfi --quality accuracy", 1, &["q4.pfi, the first run, has no accuracy"]);
}

#[test]
fn what_can_not_be_scored_is_told() {
    let at = Place::new();
    at.file("accuracy", "f16.pfi 0.6\nq4.pfi 65.2\n");
    at.file("others", "a 1\nb 1\n");
    fs::write(at.0.path().join("latin"), b"f16.pfi 1\n\xe9 1\n").expect("written");
    at.refused("", 2, &["TRACE... is required"]);
    at.refused("f16.pfi --quality accuracy", 2, &["at least one other"]);
    at.refused("f16.pfi q4.pfi", 2, &["--quality or --perplexity is required"]);
    at.refused("- - --quality others", 2, &["standard input"]);
    at.refused("f16.pfi q4.pfi --quality accuracy", 1, &["accuracy: line 2: '65.2': expected an accuracy"]);
    at.refused("f16.pfi q4.pfi --quality others", 1, &["others names none of the traces"]);
    at.refused("f16.pfi q4.pfi --quality latin", 1, &["latin is no UTF-8 text"]);
    at.refused("f16.pfi q4.pfi --quality nothing", 1, &["cannot read nothing", "No such file"]);
    at.file("accuracy", "f16.pfi 0.6\nothers 0.5\n");
    at.refused("f16.pfi others --quality accuracy", 1, &["cannot score others"]);
    at.refused("f16.pfi q4.pfi --quality accuracy --perplexity x", 2, &["--quality", "--perplexity"]);
    at.refused("f16.pfi q4.pfi --quality accuracy --svg q4.pfi", 2, &["q4.pfi is the input"]);
}

#[test]
fn the_picture_has_each_run_and_its_reason() {
    let at = Place::new();
    at.file("accuracy", "f16.pfi 0.6\nq4.pfi 0.2\n");
    let o = at.score("f16.pfi q4.pfi --quality accuracy --svg -");
    let svg = String::from_utf8_lossy(&o.stdout).into_owned();
    assert_eq!(o.status.code(), Some(3));
    assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"), "{svg}");
    for part in ["1: f16.pfi, 2: q4.pfi", "accuracy has collapsed", "prefill speed: 4.000", "H_Q: 1.000"] {
        assert!(svg.contains(part), "{part} in {svg}");
    }
    assert_eq!(at.score("f16.pfi q4.pfi --quality accuracy --svg s.svg").status.code(), Some(3));
    let o = at.score("f16.pfi q4.pfi --quality accuracy --svg s.svg");
    assert!(o.status.code() == Some(1) && String::from_utf8_lossy(&o.stderr).contains("--svg"));
}
