//! `ggml-runner perplexity` and `kl`: their figures compared with those that follow from llama.cpp's own tokens and
//! logits of the same models and text, and what they refuse.
//!
//! The packages with llama.cpp have no llama-perplexity, so its arithmetic is repeated here: 32-bit exponentials, and the
//! logits of the reference stored as 16-bit numbers over at most 16 nats.

use crate::common::{self, made_text::text};

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

const ENGINE: &str = "b11549";
/// Tokens of a chunk.
const CONTEXT: usize = 128;
const CHUNKS: usize = 3;
/// "Equal" figures.
const CLOSE: f64 = 0.005;

fn runner(args: &[&str]) -> Output {
    Command::new(common::runner()).args(args).stdin(Stdio::null()).output().expect("ggml-runner runs")
}

fn answer(args: &[&str]) -> Value {
    let o = runner(&[args, &["--json"]].concat());
    assert!(o.status.success(), "{args:?}: {}", String::from_utf8_lossy(&o.stderr));
    serde_json::from_slice(&o.stdout).expect("JSON")
}

fn path(p: &Path) -> &str {
    p.to_str().expect("UTF-8")
}

/// llama.cpp with a model.
struct Llama {
    driver: PathBuf,
    engine: PathBuf,
    dir: tempfile::TempDir,
}

impl Llama {
    fn new() -> Result<Llama, String> {
        let engine = common::engine(ENGINE)?;
        Ok(Llama { driver: common::driver(), engine, dir: tempfile::tempdir().expect("a directory") })
    }

    /// The tokens of a text.
    fn tokens(&self, model: &Path, text: &str) -> Vec<i32> {
        let hex: String = text.bytes().map(|b| format!("{b:02x}")).collect();
        let file = self.dir.path().join("hex");
        fs::write(&file, hex + "\n").expect("written");
        let program = self.driver.with_file_name("tokenize");
        let mut command = Command::new(program);
        command.arg("--engine").arg(&self.engine).arg("--model").arg(model);
        let out = command.stdin(fs::File::open(&file).expect("opened")).output().expect("it runs");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let line = String::from_utf8(out.stdout).expect("text");
        let ids = line.split('|').next().expect("a list");
        ids.split_whitespace().map(|id| id.parse().expect("a number")).collect()
    }

    /// Logits of all tokens of a chunk, row by row.
    fn logits(&self, model: &Path, chunk: &[i32]) -> Vec<Vec<f32>> {
        let file = self.dir.path().join("logits");
        let ids: Vec<String> = chunk.iter().map(i32::to_string).collect();
        let mut command = Command::new(&self.driver);
        command.arg("--engine").arg(&self.engine).arg("--model").arg(model).args(["--ids", &ids.join(",")]);
        let out = command.args(["-n", "1", "--every"]).arg(&file).output().expect("the driver runs");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let all: Vec<f32> =
            fs::read(&file).expect("logits").as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        all.chunks(all.len() / chunk.len()).map(<[f32]>::to_vec).collect()
    }
}

/// Positions of a chunk that are scored.
fn scored() -> std::ops::Range<usize> {
    CONTEXT / 2..CONTEXT - 1
}

fn log_sum(logits: &[f32]) -> f32 {
    let most = logits.iter().copied().fold(f32::MIN, f32::max);
    most + logits.iter().map(|v| f64::from((v - most).exp())).sum::<f64>().ln() as f32
}

/// Logarithms of the probabilities as a file of llama-perplexity has them.
fn stored(logits: &[f32]) -> Vec<f32> {
    let most = logits.iter().copied().fold(f32::MIN, f32::max);
    let least = logits.iter().copied().fold(f32::MAX, f32::min).max(most - 16.0);
    let (scale, base) = ((most - least) / 65535.0, least - log_sum(logits));
    logits.iter().map(|v| scale * ((v.max(least) - least) / scale).round() + base).collect()
}

fn argmax(row: &[f32]) -> usize {
    row.iter().enumerate().fold(0, |best, (i, v)| if *v > row[best] { i } else { best })
}

/// Divergences of the positions, sorted, and at how many both say the same.
#[derive(Default)]
struct Theirs {
    losses: Vec<f64>,
    kl: Vec<f64>,
    same_top: usize,
}

impl Theirs {
    fn add(&mut self, row: &[f32], reference: &[f32], next: usize) {
        let sum = log_sum(row);
        self.losses.push(f64::from(sum - row[next]));
        let base = stored(reference);
        let of = |(p, v): (&f32, &f32)| if *p > -16.0 { f64::from(p.exp() * (p - v + sum)) } else { 0.0 };
        self.kl.push(base.iter().zip(row).map(of).sum());
        self.same_top += usize::from(argmax(row) == argmax(&base));
    }

    fn perplexity(&self) -> f64 {
        (self.losses.iter().sum::<f64>() / self.losses.len() as f64).exp()
    }

    fn quantile(&self, share: f64) -> f64 {
        let mut sorted = self.kl.clone();
        sorted.sort_by(f64::total_cmp);
        let place = share * (sorted.len() - 1) as f64;
        let next = sorted[(place as usize + 1).min(sorted.len() - 1)];
        sorted[place as usize] * (1.0 - place.fract()) + next * place.fract()
    }
}

/// Fails unless two figures are within `most` of each other.
fn close(what: &str, ours: &Value, theirs: f64, most: f64) {
    let ours = ours.as_f64().expect("a number");
    println!("{what}: {ours:.6}, llama.cpp {theirs:.6}, {:+.3} %", (ours / theirs - 1.0) * 100.0);
    assert!((ours / theirs - 1.0).abs() <= most, "{what}: {ours} and {theirs}");
}

/// A model like `common::model(preset, "f16")` with other weights.
fn other_weights(preset: &str, dir: &Path) -> PathBuf {
    let path = dir.join("other.gguf");
    let o =
        runner(&["synth", preset, "--force", "--seed", "7", "--type", "f16", path.to_str().expect("UTF-8")]);
    assert!(o.status.success(), "{}", String::from_utf8_lossy(&o.stderr));
    path
}

/// Compares a model and its reference on a text; `begins`: each chunk begins with the text's first token.
fn compare(llama: &Llama, [model, reference]: [&Path; 2], text: &str, begins: bool, quantiles: f64) {
    let written = llama.dir.path().join("text");
    fs::write(&written, format!("{text}\n")).expect("written");
    let tokens = llama.tokens(model, text);
    assert!(tokens.len() >= CONTEXT * CHUNKS, "{} tokens", tokens.len());
    let mut theirs = Theirs::default();
    for chunk in tokens.chunks_exact(CONTEXT).take(CHUNKS) {
        let mut begun = chunk.to_vec();
        if begins {
            begun[0] = tokens[0];
        }
        let (rows, base) = (llama.logits(model, &begun), llama.logits(reference, &begun));
        for at in scored() {
            theirs.add(&rows[at], &base[at], chunk[at + 1] as usize);
        }
    }
    let (c, n) = (CONTEXT.to_string(), CHUNKS.to_string());
    let shared = ["-m", path(model), "-f", path(&written), "-c", &c, "--chunks", &n, "-t", "1"];
    let ours = answer(&[&["perplexity"], &shared[..]].concat());
    assert_eq!(ours["tokens"], tokens.len());
    assert_eq!((&ours["scored"], &ours["chunks"]), (&(scored().len() * CHUNKS).into(), &CHUNKS.into()));
    close("perplexity", &ours["perplexity"], theirs.perplexity(), CLOSE);
    let ours = answer(&[&["kl", "--reference", path(reference)], &shared[..]].concat());
    close("perplexity", &ours["perplexity"]["mean"], theirs.perplexity(), CLOSE);
    close("mean", &ours["kl"]["mean"], theirs.kl.iter().sum::<f64>() / theirs.kl.len() as f64, CLOSE);
    for q in ours["kl_quantiles"].as_array().expect("a list") {
        let percent = q["percent"].as_f64().expect("a number");
        close(&format!("{percent} %"), &q["kl"], theirs.quantile(percent / 100.0), quantiles);
    }
    // A count: one position at which two tokens are as likely is half a percent of all.
    let same = theirs.same_top as f64 / theirs.kl.len() as f64;
    println!("same top: {}, llama.cpp {same}", ours["same_top"]["mean"]);
    assert!((ours["same_top"]["mean"].as_f64().expect("a number") - same).abs() <= 0.011, "{ours}");
}

#[test]
fn figures_are_those_of_llama() {
    let llama = match Llama::new() {
        Ok(llama) => llama,
        Err(why) => common::skip!("{why}"),
    };
    // SentencePiece, which begins each chunk with a token of its own, and byte-level BPE, which does not.
    for (preset, bytes, begins) in [("tiny", 700, true), ("qwen2-tiny", 900, false)] {
        let (text, reference) = (text(5, bytes), common::model(preset, "f16"));
        println!("{preset}, other weights");
        let other = other_weights(preset, llama.dir.path());
        compare(&llama, [&other, &reference], &text, begins, CLOSE);
        // The quantiles of few positions show how each engine rounds activations to 8 bits.
        println!("{preset}, q4_0");
        compare(&llama, [&common::model(preset, "q4_0"), &reference], &text, begins, 4.0 * CLOSE);
    }
}

/// A copy of a file in which every `from` is a `to` of the same length.
fn replaced(file: &Path, from: &[u8], to: &[u8], dir: &Path, name: &str) -> PathBuf {
    let mut bytes = fs::read(file).expect("a model");
    let at: Vec<usize> = (0..bytes.len() - from.len()).filter(|i| bytes[*i..].starts_with(from)).collect();
    assert!(!at.is_empty() && from.len() == to.len());
    at.iter().for_each(|at| bytes[*at..at + to.len()].copy_from_slice(to));
    let path = dir.join(name);
    fs::write(&path, bytes).expect("written");
    path
}

#[test]
fn what_can_not_be_scored_is_one_clear_line() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        fs::write(&path, bytes).expect("written");
        path
    };
    let (tiny, qwen) = (common::model("tiny", "f16"), common::model("qwen2-tiny", "f16"));
    let mute = replaced(&tiny, b"tokenizer.ggml.model", b"tokenizer.ggml.modem", dir.path(), "mute.gguf");
    let other = replaced(&tiny, b"t3776", b"u3776", dir.path(), "other.gguf");
    let good = file("good", text(1, 2000).as_bytes());
    let short = file("short", b"too short\n");
    let latin = file("latin", b"one\ntwo \xe9\n");
    let empty = file("empty", b"");
    let folder = dir.path();
    let case = |args: &[&dyn AsRef<std::ffi::OsStr>], code: i32, parts: &[&str]| {
        let mut command = Command::new(common::runner());
        for arg in args {
            command.arg(arg.as_ref());
        }
        let o = command.stdin(Stdio::null()).output().expect("ggml-runner runs");
        let said = String::from_utf8_lossy(&o.stderr);
        assert_eq!((o.status.code(), said.lines().count()), (Some(code), 1), "{said}");
        parts.iter().for_each(|part| assert!(said.contains(part), "'{part}' in: {said}"));
        assert!(o.stdout.is_empty(), "{said}");
    };
    let p = |model: &Path, text: &Path, code, parts: &[&str]| {
        case(&[&"perplexity", &"-m", &model, &"-f", &text, &"-c", &"64"], code, parts);
    };
    p(&tiny, &latin, 1, &["latin", "line 2, byte 8 of the file is no UTF-8", "iconv"]);
    p(&tiny, &short, 1, &["short", "tokens are too few", "128 are needed", "a longer text or a smaller -c"]);
    p(&tiny, &empty, 1, &["empty", "too few"]);
    p(&tiny, Path::new("/dev/null"), 1, &["/dev/null", "too few"]);
    p(&tiny, Path::new("-"), 1, &["standard input", "too few"]);
    p(&tiny, Path::new("/no/such/text"), 1, &["open /no/such/text", "No such file"]);
    p(&tiny, folder, 1, &["is a directory: give a text file"]);
    p(&mute, &good, 1, &["mute.gguf", "the tokenizer in the model's file", "contains no tokenizer"]);
    p(Path::new("/no/such/model"), &good, 1, &["open /no/such/model"]);
    p(&good, &good, 1, &["good", "not a GGUF file"]);
    case(&[&"perplexity", &"-m", &tiny], 2, &["-f FILE is required"]);
    case(&[&"perplexity", &"-m", &tiny, &"-f", &good, &"-c", &"3"], 2, &["-c", "4"]);
    case(&[&"perplexity", &"-m", &tiny, &"-f", &good, &"--chunks", &"0"], 2, &["--chunks"]);
    let k = |reference: &Path, text: &Path, code, parts: &[&str]| {
        case(&[&"kl", &"-m", &tiny, &"--reference", &reference, &"-f", &text, &"-c", &"64"], code, parts);
    };
    k(&qwen, &good, 1, &["qwen2-tiny", "another vocabulary than", "give a reference of the same family"]);
    k(&other, &good, 1, &["other.gguf", "another vocabulary", "u3776' instead of '"]);
    k(&mute, &good, 1, &["mute.gguf", "contains no tokenizer"]);
    k(&tiny, &short, 1, &["short", "too few"]);
    k(Path::new("/no/such/model"), &good, 1, &["open /no/such/model"]);
    case(&[&"kl", &"-m", &tiny, &"-f", &good], 2, &["--reference MODEL is required"]);
}

#[test]
fn a_model_is_its_own_reference_whatever_the_threads() {
    let dir = tempfile::tempdir().expect("a directory");
    let (file, model) = (dir.path().join("text"), common::model("tiny", "q4_0"));
    // No multiple of the batch, the chunk or the threads.
    fs::write(&file, text(3, 1500)).expect("written");
    let args = ["kl", "-m", path(&model), "--reference", path(&model), "-f", path(&file), "-c", "301", "-t"];
    let of = |threads: &str| answer(&[&args[..], &[threads]].concat());
    let one = of("1");
    let kl = |name: &str| one[name].as_f64().expect("a number");
    assert!(kl("kl_most").abs() < 1e-6 && kl("kl_least").abs() < 1e-6, "{one}");
    assert_eq!((&one["same_top"]["mean"], &one["perplexity_ratio"]["mean"]), (&1.0.into(), &1.0.into()));
    assert_eq!(
        (&one["scored"], one["chunks"].as_u64()),
        (&(150 * one["chunks"].as_u64().expect("a number")).into(), one["chunks"].as_u64())
    );
    if std::thread::available_parallelism().is_ok_and(|n| n.get() > 1) {
        assert_eq!(of("2")["perplexity"], one["perplexity"]);
    }
}
