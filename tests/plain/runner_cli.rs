//! `ggml-runner` from the command line: `run` and `generate`, and their errors.

use crate::common::runner_name;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use ggml::gguf::writer::{GgufHeader, NewGgufValue};
use ggml::quant::TensorType;

/// Generated models: llama with SentencePiece, qwen2 with byte-level BPE.
fn models() -> &'static (tempfile::TempDir, PathBuf, PathBuf) {
    static MODELS: OnceLock<(tempfile::TempDir, PathBuf, PathBuf)> = OnceLock::new();
    MODELS.get_or_init(|| {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let [llama, qwen] = ["tiny", "qwen2-tiny"].map(|preset| {
            let path = dir.path().join(format!("{preset}.gguf"));
            let o = Command::new(runner_name()).args(["synth", preset, "--type", "q4_0"]).arg(&path).output();
            assert!(o.expect("ggml-runner runs").status.success());
            path
        });
        (dir, llama, qwen)
    })
}

fn runner(args: &[&str]) -> Output {
    Command::new(runner_name()).args(args).stdin(Stdio::null()).output().expect("ggml-runner runs")
}

/// The model's path among the arguments is written `M`.
fn with_model(args: &str) -> Output {
    let model = models().1.to_str().expect("UTF-8");
    let args: Vec<&str> = args.split_whitespace().map(|a| if a == "M" { model } else { a }).collect();
    runner(&args)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The run fails with this exit code and one line that contains all of `parts`.
fn refused(o: &Output, code: i32, parts: &[&str]) {
    let said = text(&o.stderr);
    assert_eq!(o.status.code(), Some(code), "{said}");
    assert_eq!(said.lines().count(), 1, "one line: {said}");
    for part in parts {
        assert!(said.contains(part), "'{part}' in: {said}");
    }
    assert!(o.stdout.is_empty(), "{}", text(&o.stdout));
}

#[test]
fn what_can_not_be_done_is_one_clear_line() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let empty = dir.path().join("empty.gguf");
    std::fs::write(&empty, "").expect("written");
    let empty = empty.to_str().expect("UTF-8");
    let dir = dir.path().to_str().expect("UTF-8");
    for command in ["run", "generate"] {
        let on = |path: &str| {
            let text: &[&str] = if command == "run" { &[] } else { &["text"] };
            runner(&[&[command, "-m", path], text].concat())
        };
        refused(&on("/no/such/model.gguf"), 1, &["open /no/such/model.gguf", "No such file"]);
        refused(&on(dir), 1, &[dir, "is a directory"]);
        refused(&on("/dev/null"), 1, &["/dev/null", "regular file"]);
        refused(&on("-"), 1, &["standard input", "give a file"]);
        refused(&on(empty), 1, &[empty, "not a GGUF file"]);
        refused(&on(runner_name()), 1, &[runner_name(), "not a GGUF file"]);
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let huge = usize::MAX.to_string();
    let cases = [
        (
            "run -m M -p 600 -n 8 --ctx 512",
            1,
            "600 tokens plus 8 to generate do not fit into a context of 512",
        ),
        ("generate -m M -n 8 --ctx 8 some-text", 1, "do not fit into a context of 8: use a larger --ctx"),
        ("run -m M -t 100000", 2, "CPUs are available to this process"),
        ("run -m M -t 0", 2, "CPUs are available to this process"),
        ("generate -m M -t 100000 x", 2, "CPUs are available to this process"),
        ("run -m M -p 0 -n 0", 2, "nothing to do"),
        ("run -m M -n 1 --slow nosuch:5%", 1, "--slow: no op or computed tensor of this model"),
        ("run -m M -n 1 --slow MUL_MAT", 2, "e.g. ffn_up-{L}:5%"),
        ("run -m M --tokens 1,x", 2, "'x'"),
        ("run -m M --tokens 4096 -n 1", 1, "token 4096 is not in the vocabulary of 4096"),
        ("run -m M --tokens -1 -n 1", 1, "token -1"),
        ("run -m M --isa z80", 2, "--isa"),
        ("run -m M --placement nowhere", 2, "--placement"),
        ("run -m M --expert-slots 4 -n 1", 1, "this model (llama) has no experts"),
        ("run -m M --expert-slots -1", 2, "--expert-slots"),
        ("run -m M --expert-policy lru", 2, "--expert-slots"),
        ("run -m M --experts-from memory", 2, "--expert-slots"),
        ("run -m M --expert-slots 4 --expert-policy fifo", 2, "lru, lfu, next or pin:FILE"),
        ("run -m M --expert-slots 4 --expert-policy pin:", 2, "lru, lfu, next or pin:FILE"),
        ("run -m M --expert-slots 4 --expert-policy pin:/no/such.csv", 1, "read /no/such.csv: No such file"),
        ("run -m M --expert-slots 4 --experts-from tape", 2, "--experts-from"),
        ("run -m M --expert-slots 4 --expert-readers 0", 2, "--expert-readers"),
        ("generate -m M --temp -1 x", 2, "--temp"),
        ("generate -m M --temp nan x", 2, "--temp"),
        ("generate -m M -n 0 x", 2, "-n"),
        ("generate -m M", 2, "TEXT"),
        ("generate -m M one two", 2, "'two'"),
        ("generate x", 2, "-m FILE"),
        ("run -m M --logits /no/such/place -p 2 -n 1", 1, "/no/such/place"),
        ("run -m M --ctx HUGE -p 1 -n 1", 1, "context"),
        ("run -m M -p HUGE -n 1", 1, "context"),
        ("run -m M -p 1 -n HUGE", 1, "context"),
        ("generate -m M -n HUGE x", 1, "context"),
        ("run -m M --ctx 2147483392 -p 1 -n 1", 1, "memory"),
    ];
    for (args, code, part) in cases {
        let o = with_model(&args.replace("HUGE", &huge));
        assert_eq!(o.status.code(), Some(code), "{args}: {}", text(&o.stderr));
        refused(&o, code, &[part]);
    }
}

/// The published ceilings of MNN's analysis: 668.31 and 105.26 tokens a second (its unit G is 2^30).
#[test]
fn a_published_roofline_is_computed_from_the_devices_numbers() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../conf/roofline/mnn-qwen1.8b.json");
    let out = runner(&["roofline", "--device", file, "-p", "560", "-d", "585", "--json"]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let answer: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let phase = |i: usize| &answer["phases"][i];
    for (i, published) in [(0, 668.31), (1, 105.26)] {
        let tok_s = phase(i)["tok_s"].as_f64().unwrap();
        assert!((tok_s / published - 1.0).abs() < 0.01, "{tok_s} for {published}");
        // The parts are all of the time.
        let parts = phase(i)["parts"].as_array().unwrap().iter();
        let ms: f64 = parts.map(|p| p["ms"].as_f64().unwrap()).sum();
        assert!((phase(i)["tokens"].as_f64().unwrap() / ms * 1e3 / tok_s - 1.0).abs() < 1e-3);
    }
    assert_eq!(
        [&phase(0)["parts"][0]["bound_by"], &phase(1)["parts"][0]["bound_by"]],
        ["arithmetic", "bandwidth"]
    );
    let shown = runner(&["roofline", "--device", file, "-p", "560", "-d", "585"]);
    assert!(text(&shown.stdout).contains("decode   a token: at most 10"), "{}", text(&shown.stdout));
    let dir = tempfile::tempdir().unwrap();
    let bad = dir.path().join("bad.json");
    for (content, told) in [
        (std::fs::read_to_string(file).unwrap().replace("106.594", "0"), "gb_per_s is 0"),
        ("{}".to_owned(), "missing field"),
        ("text".to_owned(), "not a device and a model"),
    ] {
        std::fs::write(&bad, content).unwrap();
        refused(&runner(&["roofline", "--device", bad.to_str().unwrap()]), 1, &["bad.json", told]);
    }
    refused(&runner(&["roofline"]), 2, &["--device"]);
}

#[test]
fn options_and_subcommands_that_do_not_exist() {
    // Nothing at all is a question.
    let nothing = runner(&[]);
    assert_eq!((nothing.status.code(), nothing.stdout.len()), (Some(2), 0));
    assert_eq!(nothing.stderr, runner(&["--help"]).stdout);
    refused(&runner(&["fly"]), 2, &["'fly'"]);
    refused(&runner(&["help", "fly"]), 2, &["'fly'"]);
    refused(&with_model("run -m M --fast"), 2, &["'--fast'"]);
    refused(&with_model("run -m M -n"), 2, &["-n/--decode needs a value"]);
}

#[test]
fn every_subcommand_has_a_help_with_an_example() {
    let overview = runner(&["--help"]);
    let overview = text(&overview.stdout);
    let names: Vec<&str> = overview
        .lines()
        .skip_while(|l| *l != "Subcommands:")
        .skip(1)
        .take_while(|l| !l.is_empty())
        .filter_map(|l| l.split_whitespace().next())
        .collect();
    assert!(names.len() >= 4, "{overview}");
    for name in names {
        let help = runner(&[name, "--help"]);
        assert!(help.status.success() && help.stderr.is_empty(), "{name}");
        assert_eq!(help.stdout, runner(&["help", name]).stdout, "{name}");
        let help = text(&help.stdout);
        for part in ["Usage: ggml-runner", "Options:", "-h, --help", "Examples:\n  ggml-runner "] {
            assert!(help.contains(part), "{name}: '{part}' in its help");
        }
        let longest = help.lines().map(|l| l.chars().count()).max();
        assert!(longest.is_some_and(|n| n <= 120), "{name}: {longest:?} columns");
    }
}

#[test]
fn a_part_of_a_model_is_called_one() {
    let mut head = GgufHeader::default();
    head.set("general.architecture", NewGgufValue::Str("llama".into())).expect("a new key");
    for (key, n) in [("split.no", 1), ("split.count", 3)] {
        head.set(key, NewGgufValue::U32(n)).expect("a new key");
    }
    head.tensor("blk.0.attn_q.weight", TensorType::F32, &[32, 4]).expect("fits");
    let file = tempfile::NamedTempFile::new().expect("a file");
    let mut writer = head.begin(File::create(file.path()).expect("created")).expect("written");
    writer.write(&[0; 32 * 4 * 4]).expect("written");
    writer.finish().expect("written");
    let model = file.path().to_str().expect("UTF-8");
    refused(&runner(&["run", "-m", model]), 1, &["part 2 of a model in 3 files", "--merge"]);
}

#[test]
fn a_reader_that_goes_away_is_no_error_and_a_full_disk_is() {
    for args in ["generate -m M -n 400 --ignore-end x", "run -m M -p 4 -n 4 --json", "synth --list", "--help"]
    {
        let model = models().1.display().to_string();
        let line = format!("{} {} ", runner_name(), args.replace('M', &model));
        let shell = |script: &str| Command::new("sh").args(["-c", script]).output().expect("sh runs");
        let o = shell(&format!("{{ {line}; echo $? >&2; }} | true"));
        assert!(text(&o.stderr).ends_with("0\n"), "{args}: {}", text(&o.stderr));
        assert!(!text(&o.stderr).contains("panicked"), "{args}: {}", text(&o.stderr));
        if Path::new("/dev/full").exists() {
            let o = shell(&format!("{line} > /dev/full"));
            assert_eq!(o.status.code(), Some(1), "{args}");
            assert!(text(&o.stderr).contains("No space left"), "{args}: {}", text(&o.stderr));
        }
    }
}

#[test]
fn texts_are_continued_the_same_each_time_and_by_each_instruction_set() {
    let (_, llama, qwen) = models();
    for model in [llama, qwen] {
        let generate = |more: &[&str]| {
            let path = model.to_str().expect("UTF-8");
            let o = runner(&[&["generate", "-m", path, "-n", "12", "--json"], more].concat());
            assert!(o.status.success(), "{}", text(&o.stderr));
            let json: serde_json::Value = serde_json::from_slice(&o.stdout).expect("JSON");
            json
        };
        let one = generate(&["Hello, world", "-t", "1"]);
        assert_eq!(one["tokens"].as_array().map(Vec::len), Some(12));
        assert_eq!(one["decode"]["n"], 11);
        assert!(one["text"].as_str().is_some_and(|t| !t.is_empty()));
        assert_eq!(generate(&["-t", "1", "--", "Hello, world"])["tokens"], one["tokens"]);
        let warm = |seed| generate(&["Hello, world", "--temp", "2", "--seed", seed])["tokens"].clone();
        assert_eq!(warm("1"), warm("1"));
        assert_ne!(warm("1"), warm("2"));
    }
}

#[test]
fn the_text_comes_from_the_argument_or_standard_input_and_is_shown_whole() {
    let model = models().1.to_str().expect("UTF-8");
    let argument = runner(&["generate", "-m", model, "-n", "3", "na\u{ef}ve \u{1f600}"]);
    assert!(argument.status.success(), "{}", text(&argument.stderr));
    let shown = text(&argument.stdout);
    assert!(shown.starts_with("na\u{ef}ve \u{1f600}") && shown.ends_with('\n'), "{shown}");
    assert!(text(&argument.stderr).starts_with("prompt "), "{}", text(&argument.stderr));
    let script = format!("printf 'na\u{ef}ve \u{1f600}' | {} generate -m {model} -n 3 -", runner_name());
    let o = Command::new("sh").args(["-c", &script]).output().expect("sh runs");
    assert_eq!(text(&o.stdout), shown);
    // Invalid UTF-8 is tokenized by its bytes.
    let script = format!("printf 'a\\377b' | {} generate -m {model} -n 3 --json -", runner_name());
    let o = Command::new("sh").args(["-c", &script]).output().expect("sh runs");
    let json: serde_json::Value = serde_json::from_slice(&o.stdout).expect("JSON");
    assert_eq!(json["prompt_tokens"].as_array().map(Vec::len), Some(5));
}

#[test]
fn a_model_without_a_tokenizer_of_its_own_is_told_apart() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("m.gguf");
    let model = std::fs::read(&models().1).expect("the model");
    let name = b"tokenizer.ggml.model";
    let at = model.windows(name.len()).position(|w| w == name).expect("it is there") + name.len();
    let damaged = |at: usize, byte: u8| {
        let mut copy = model.clone();
        copy[at] = byte;
        std::fs::write(&path, copy).expect("written");
        runner(&["generate", "-m", path.to_str().expect("UTF-8"), "x"])
    };
    refused(&damaged(at - 1, b'_'), 1, &["'tokenizer.ggml.model' is missing"]);
    // After kind and length: the first letter of "llama".
    refused(&damaged(at + 12, b'o'), 1, &["'olama'", "SentencePiece"]);
}
