//! `profinfer predict` on made-up heads of models and on a recording with known times: figures, ranges, what is said of
//! doubtful ones, and errors.

use crate::synth_trace;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use ggml::gguf::writer::{GgufHeader, NewGgufValue};
use ggml::quant::TensorType;
use pfi::record::{Footer, KindCount};
use serde_json::Value;
use synth_trace::*;

/// An op of the recording, without the two hits of the recorder in it.
const OP_NS: f64 = 100_000.0 + SYNC as f64 - 2.0 * 500.0;

/// The rest of a call, without the hits at entries and returns.
const OUTSIDE_NS: f64 = 6.0 * LEAD as f64 - 8.0 * 500.0;

/// The head of the recording's model, with other layers and another type.
fn header(layers: u32, ty: TensorType) -> GgufHeader {
    let mut h = GgufHeader::default();
    let mut set = |key: &str, value| h.set(key, value).expect("a new key");
    set("general.architecture", NewGgufValue::Str("llama".into()));
    set("general.name", NewGgufValue::Str("made \u{1b}[31mup".into()));
    for (key, n) in [
        ("block_count", layers),
        ("embedding_length", EMBD as u32),
        ("feed_forward_length", FF as u32),
        ("attention.head_count", HEADS as u32),
        ("attention.head_count_kv", KV_HEADS as u32),
        ("context_length", 4096),
    ] {
        set(&format!("llama.{key}"), NewGgufValue::U32(n));
    }
    tensors(&mut h, 0..layers, ty, true);
    h
}

fn tensors(h: &mut GgufHeader, layers: std::ops::Range<u32>, ty: TensorType, others: bool) {
    let kv = EMBD / HEADS * KV_HEADS;
    let mut add = |name: &str, ty, dims: &[u64]| h.tensor(name, ty, dims).expect("it fits");
    if others {
        add("token_embd.weight", TensorType::F16, &[EMBD, VOCAB]);
        add("output_norm.weight", TensorType::F32, &[EMBD]);
        add("output.weight", ty, &[EMBD, VOCAB]);
    }
    for l in layers {
        let mut add = |name: &str, ty, dims: &[u64]| add(&format!("blk.{l}.{name}.weight"), ty, dims);
        add("attn_norm", TensorType::F32, &[EMBD]);
        add("ffn_norm", TensorType::F32, &[EMBD]);
        for (name, k, m) in [
            ("attn_q", EMBD, EMBD),
            ("attn_k", EMBD, kv),
            ("attn_v", EMBD, kv),
            ("attn_output", EMBD, EMBD),
            ("ffn_gate", EMBD, FF),
            ("ffn_up", EMBD, FF),
            ("ffn_down", FF, EMBD),
        ] {
            add(name, ty, &[k, m]);
        }
    }
}

/// The head alone: no tensor data follows.
fn head(h: GgufHeader) -> Vec<u8> {
    let mut bytes = Vec::new();
    h.begin(&mut bytes).expect("memory takes all");
    bytes
}

struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        Place { dir: tempfile::tempdir().expect("a directory") }
    }

    fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.dir.path().join(name);
        fs::write(&path, bytes).expect("written");
        path
    }

    fn model(&self, layers: u32, ty: TensorType) -> PathBuf {
        self.file(&format!("{layers}-{}.gguf", ty.name()), &head(header(layers, ty)))
    }

    /// A prompt of 64 tokens, each op 1 ms, and 20 tokens of decoding, each op 100 us.
    fn recording(&self, spec: Spec) -> PathBuf {
        let mut s = Synth::new(Vec::new(), spec);
        s.call(64, |_, _| 1_000_000);
        (0..20).for_each(|_| s.call(1, |_, _| 100_000));
        // A hit at the barrier after each op.
        let (kind, seen) = ("barrier", s.slices);
        let kinds = vec![KindCount { kind, seen, recorded: seen, lost: 0 }];
        let footer = Footer { kinds, ..footer("target exited") };
        self.file("run.pfi", &s.enc.finish(&footer).expect("a trace"))
    }

    fn predict(&self, model: &Path, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_profinfer"));
        // No peaks of this machine.
        command.current_dir(self.dir.path()).env("XDG_CACHE_HOME", self.dir.path());
        command.arg("predict").arg(model).args(args).output().expect("it runs")
    }

    fn json(&self, model: &Path, args: &[&str]) -> Value {
        let done = self.predict(model, &[args, &["--json"]].concat());
        assert!(done.status.success(), "{args:?}: {}", text(&done.stderr));
        serde_json::from_slice(&done.stdout).expect("JSON")
    }

    /// The message of a failure with this exit code.
    fn refused(&self, model: &Path, args: &[&str], code: i32) -> String {
        let done = self.predict(model, args);
        assert_eq!(done.status.code(), Some(code), "{args:?}: {}", text(&done.stderr));
        text(&done.stderr)
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn near(value: &Value, wanted: f64) {
    let value = value.as_f64().expect("a number");
    assert!((value / wanted - 1.0).abs() < 0.005, "{value} instead of {wanted}");
}

fn notes(v: &Value) -> String {
    v["notes"].as_array().expect("notes").iter().map(|n| format!("{}\n", n.as_str().expect("text"))).collect()
}

#[test]
fn twice_the_layers_take_twice_the_time_of_layers() {
    let place = Place::new();
    place.recording(Spec::default());
    let ns = |layers: f64| (15.0 * layers + 3.0) * OP_NS + OUTSIDE_NS;
    for layers in [2, 4, 24] {
        let v = place.json(&place.model(layers, TensorType::Q4_0), &["--from", "run.pfi"]);
        let speed = &v["decode"][0];
        near(&speed["tokens_per_s"]["value"], 1e9 / ns(layers.into()));
        // More than half of the ops are small ones, whose times are less certain.
        assert_eq!((speed["confidence"].as_str(), speed["context"].as_u64()), (Some("medium"), Some(512)));
        let bound = |name: &str| speed["tokens_per_s"][name].as_f64().expect("a bound");
        assert!(bound("least") < bound("value") && bound("value") < bound("most"));
        assert_eq!((v["threads"].as_u64(), v["decode"].as_array().map(Vec::len)), (Some(2), Some(2)));
        let layer = (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128) / 32 * 18 + 2 * 64 * 4;
        let all = u64::from(layers) * layer + 64 * 256 * 2 + 64 * 256 / 32 * 18 + 64 * 4;
        assert_eq!(v["memory"]["weights"].as_u64(), Some(all));
    }
}

#[test]
fn a_prompt_takes_the_time_of_its_tokens() {
    let place = Place::new();
    place.recording(Spec::default());
    let model = place.model(2, TensorType::Q4_0);
    let seconds = |tokens: &str| {
        let v = place.json(&model, &["--from", "run.pfi", "--prompt", tokens]);
        v["first_token"]["seconds"]["value"].as_f64().expect("a time")
    };
    let (one, two) = (seconds("64"), seconds("128"));
    // 33 ops of 1 ms, but the last feed-forward and the head for one token.
    assert!((one / 29.4e-3 - 1.0).abs() < 0.01, "{one}");
    assert!((two / one - 2.0).abs() < 0.1, "{one} {two}");
    assert!(seconds("600") > seconds("512"));
}

#[test]
fn a_type_that_was_not_recorded_is_a_guess_and_says_so() {
    let place = Place::new();
    place.recording(Spec::default());
    let (same, other) = (place.model(2, TensorType::Q4_0), place.model(2, TensorType::Q8_0));
    let range = |v: &Value| {
        let of = |name: &str| v["decode"][0]["tokens_per_s"][name].as_f64().expect("a number");
        (of("least"), of("value"), of("most"))
    };
    let v = place.json(&same, &["--from", "run.pfi"]);
    assert!(!notes(&v).contains("derived"));
    let same = range(&v);
    let v = place.json(&other, &["--from", "run.pfi"]);
    assert!(notes(&v).contains("no q8_0 product: its times are derived from q4_0"), "{}", notes(&v));
    assert_eq!(v["decode"][0]["confidence"], "low");
    let other = range(&v);
    assert!(other.1 < same.1 && other.2 / other.0 > 1.2 * same.2 / same.0, "{same:?} {other:?}");
    let done = place.predict(&place.model(2, TensorType::Q8_0), &["--from", "run.pfi"]);
    assert!(text(&done.stdout).contains(", a guess)"), "{}", text(&done.stdout));
}

#[test]
fn other_threads_have_a_wide_range_and_too_many_are_refused() {
    let place = Place::new();
    place.recording(Spec { threads: 1, ..Spec::default() });
    let model = place.model(2, TensorType::Q4_0);
    let one = place.json(&model, &["--from", "run.pfi"]);
    let two = place.json(&model, &["--from", "run.pfi", "-t", "2"]);
    let of = |v: &Value, name: &str| v["decode"][0]["tokens_per_s"][name].as_f64().expect("a number");
    assert!(of(&two, "least") <= of(&one, "value") && of(&two, "most") >= 2.0 * of(&one, "value"));
    assert!(notes(&two).contains("from no gain to a perfect one"));
    let why = place.refused(&model, &["--from", "run.pfi", "-t", "3"], 1);
    assert!(why.contains("2 CPUs") && why.contains("40 to 50 times"), "{why}");
}

#[test]
fn peaks_give_a_ceiling_and_no_more() {
    let place = Place::new();
    let model = place.model(4, TensorType::Q4_0);
    let v = place.json(&model, &["--peaks", "100,10", "--memory", "1GiB", "--prompt", "64"]);
    let bytes = v["work"]["weight_bytes"].as_f64().expect("bytes") + 64.0 * 4.0 * 2.0 * 2.0 * 16.0 * 2.0;
    near(&v["decode"][0]["ceiling_tokens_per_s"], 10e9 / bytes);
    assert!(v["decode"][0]["tokens_per_s"].is_null() && v["first_token"]["seconds"].is_null());
    assert!(v["first_token"]["floor_s"].as_f64().expect("a floor") > 0.0);
    assert_eq!(v["basis"]["peak_source"], "given");
    assert!(notes(&v).contains("may stay in a cache"));
    let shown = text(&place.predict(&model, &["--peaks", "100,10"]).stdout);
    assert!(shown.contains("ceiling") && !shown.contains("\u{1b}"), "{shown}");
    // Peaks that were measured for all users of this machine would be used.
    if !Path::new("/var/cache/profinfer/peaks.json").exists() {
        assert!(place.refused(&model, &[], 1).contains("profinfer doctor --peaks"));
    }
    assert!(place.refused(&model, &["--peaks", "no-such-file"], 2).contains("--peaks"));
}

#[test]
fn a_model_that_does_not_fit_has_no_speed() {
    let place = Place::new();
    let model = place.model(24, TensorType::Q4_0);
    let args = ["--peaks", "100,10", "--memory", "1MiB", "--json"];
    let done = place.predict(&model, &args);
    assert_eq!(done.status.code(), Some(3), "{}", text(&done.stderr));
    let v: Value = serde_json::from_slice(&done.stdout).expect("JSON");
    assert_eq!((&v["memory"]["fits"], v["decode"].as_array().map(Vec::len)), (&Value::Bool(false), Some(0)));
    let shown = text(&place.predict(&model, &args[..4]).stdout);
    assert!(shown.contains("DOES NOT FIT in 1.0 MiB") && shown.contains("not predicted"), "{shown}");
    // Half of the cache, with half of the bytes.
    let cache = |args: &[&str]| {
        let v = place.json(&model, &[&["--peaks", "100,10", "--memory", "1GiB"], args].concat());
        v["memory"]["cache"].as_u64().expect("bytes")
    };
    assert_eq!(cache(&["--cache-type", "q8_0"]) * 32, cache(&[]) * 17);
    assert_eq!(cache(&["--context", "4096"]), 2 * cache(&[]));
}

#[test]
fn heads_need_their_descriptions_and_nothing_else() {
    let place = Place::new();
    let whole = head(header(4, TensorType::Q4_0));
    let args = ["--peaks", "100,10"];
    for end in [0, 3, 8, 30, 200, whole.len() / 2, whole.len() - 64] {
        let why = place.refused(&place.file("cut.gguf", &whole[..end]), &args, 1);
        let expected = if end < 4 { "not a GGUF file" } else { "get more of the beginning of the file" };
        assert!(why.contains(expected), "{end}: {why}");
    }
    let v = place.json(&place.file("whole.gguf", &whole), &args);
    assert!(notes(&v).contains("bytes were needed"));
    let mut h = header(4, TensorType::Q4_0);
    h.set("x", NewGgufValue::Strings(vec!["y".repeat(4 << 20)])).expect("a new key");
    let v = place.json(&place.file("long.gguf", &head(h)), &args);
    assert_eq!(v["model"]["layers"], 4);
}

#[test]
fn models_in_parts_need_all_heads() {
    let place = Place::new();
    let args = ["--peaks", "100,10"];
    let split = |h: &mut GgufHeader, no: u32| {
        h.set("split.no", NewGgufValue::U32(no)).expect("a new key");
        h.set("split.count", NewGgufValue::U32(2)).expect("a new key");
    };
    let mut first = header(1, TensorType::Q4_0);
    split(&mut first, 0);
    first.set("split.tensors.count", NewGgufValue::I32(12 + 9)).expect("a new key");
    let first = head(first);
    let first = text_replaced(&first);
    let a = place.file("m-00001-of-00002.gguf", &first);
    let why = place.refused(&a, &args, 1);
    assert!(why.contains("m-00002-of-00002.gguf cannot be read"), "{why}");
    let mut second = GgufHeader::default();
    split(&mut second, 1);
    tensors(&mut second, 1..2, TensorType::Q4_0, false);
    let b = place.file("m-00002-of-00002.gguf", &head(second));
    for part in [&a, &b] {
        assert_eq!(place.json(part, &args)["model"]["layers"], 2);
    }
    let why = place.refused(&place.file("renamed.gguf", &first), &args, 1);
    assert!(why.contains("NAME-00001-of-00002.gguf"), "{why}");
}

/// With two layers in the metadata instead of one.
fn text_replaced(head: &[u8]) -> Vec<u8> {
    let key = b"llama.block_count";
    let at = head.windows(key.len()).position(|w| w == key).expect("it is there") + key.len() + 4;
    let mut out = head.to_vec();
    out[at] = 2;
    out
}

#[test]
fn what_is_not_known_is_refused_by_name() {
    let place = Place::new();
    let args = ["--peaks", "100,10"];
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = head(header(2, TensorType::Q4_0));
        change(&mut bytes);
        place.refused(&place.file("changed.gguf", &bytes), &args, 1)
    };
    let put = |bytes: &mut Vec<u8>, from: &[u8], to: &[u8]| {
        let at = bytes.windows(from.len()).position(|w| w == from).expect("it is there");
        bytes[at..at + to.len()].copy_from_slice(to);
    };
    assert!(with(&|b| put(b, b"llama", b"mamba")).contains("architecture 'mamba' is not known"));
    assert!(
        with(&|b| put(b, b"llama.block_count", b"llama.block_cxxxx"))
            .contains("'llama.block_count' is missing")
    );
    // The first layer alone: as one of three.
    let three = with(&|b| put(b, b"llama.block_count\x04\0\0\0\x02", b"llama.block_count\x04\0\0\0\x03"));
    assert!(three.contains("no matrix of layer 2"), "{three}");
    let why = place.refused(&place.model(2, TensorType::Q4_0), &["--peaks", "1,1", "--context", "10"], 1);
    assert!(why.contains("shorter than the prompt"), "{why}");
    assert!(place.refused(&place.model(2, TensorType::Q4_0), &["--cache-type", "q2_K"], 2).contains("q8_0"));
    let gone = place.refused(Path::new("no-such.gguf"), &args, 1);
    assert!(gone.contains("no-such.gguf"), "{gone}");
}

#[test]
fn recordings_without_what_is_needed_say_what_is_missing() {
    let place = Place::new();
    let model = place.model(2, TensorType::Q4_0);
    place.recording(Spec { structure: false, ..Spec::default() });
    assert!(place.refused(&model, &["--from", "run.pfi"], 1).contains("without --no-str"));
    let mut s = Synth::new(Vec::new(), Spec::default());
    (0..3).for_each(|_| s.call(1, |_, _| 20_000));
    place.file("short.pfi", &s.enc.finish(&footer("target exited")).expect("a trace"));
    assert!(place.refused(&model, &["--from", "short.pfi"], 1).contains("fewer than 8"));
    let mut s = Synth::new(Vec::new(), Spec::default());
    (0..9).for_each(|_| s.call(1, |_, _| 20_000));
    place.file("no-prompt.pfi", &s.enc.finish(&footer("target exited")).expect("a trace"));
    let v = place.json(&model, &["--from", "no-prompt.pfi"]);
    assert!(v["first_token"]["seconds"].is_null() && notes(&v).contains("no prompt was recorded"));
    let mut s = Synth::new(Vec::new(), Spec::default());
    s.backend = ([9; 16], "Vulkan");
    (0..9).for_each(|_| s.call(1, |_, _| 20_000));
    place.file("gpu.pfi", &s.enc.finish(&footer("target exited")).expect("a trace"));
    assert!(place.refused(&model, &["--from", "gpu.pfi"], 1).contains("ran on Vulkan"));
}
