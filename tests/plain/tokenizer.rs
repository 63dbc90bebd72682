//! The tokenizer compared with llama.cpp's: the same vocabularies, the same unusual texts, identical ids.

use crate::common::skips;
use ggml::gguf::reader::{self, Gguf};
use ggml::gguf::writer::{GgufHeader, NewGgufValue};
use ggml::quant::TensorType;
use runner::synth::{self, DEFAULT_SEED, GraphForm, ModelSpec, presets};
use runner::tokenizer::{Tokenizer, spell_bytes};
use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const ENGINES: [&str; 2] = ["v0.5.0", "b11549"];
const VOCABULARY: usize = 4096;
/// Merges in a vocabulary trained here.
const MERGES: usize = 1200;
const CONTROL: [&str; 4] = ["<|begin|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"];

/// BPE training: merges in order, each the most frequent adjacent pair.
fn learn(words: &[Vec<String>]) -> Vec<(String, String)> {
    let mut words = words.to_vec();
    let mut merges = Vec::new();
    while merges.len() < MERGES {
        let mut counts: HashMap<(&str, &str), usize> = HashMap::new();
        for pair in words.iter().flat_map(|w| w.windows(2)) {
            *counts.entry((&pair[0], &pair[1])).or_default() += 1;
        }
        let best = counts.into_iter().map(|(pair, n)| (n, pair)).max();
        let Some((_, (a, b))) = best else { break };
        let (a, b) = (a.to_owned(), b.to_owned());
        for word in &mut words {
            while let Some(at) = word.windows(2).position(|w| w[0] == a && w[1] == b) {
                word.remove(at + 1);
                word[at].push_str(&b);
            }
        }
        merges.push((a, b));
    }
    merges
}

/// Training text for vocabularies: text of this repository and of other scripts.
fn corpus() -> String {
    let readme = include_str!("../../README.md");
    let other = "na\u{ef}ve \u{4e2d}\u{6587}\u{4e2d}\u{6587} \u{1f600}\u{1f600} e\u{301}e\u{301} 123 123 1999 12 12 \n\n \n\n  \t ";
    readme.split_inclusive(' ').take(1500).collect::<String>() + &other.repeat(4)
}

fn strings(list: impl IntoIterator<Item = String>) -> NewGgufValue {
    NewGgufValue::Strings(list.into_iter().collect())
}

/// Fills the vocabulary up to its size, without duplicate tokens.
fn filled(tokens: Vec<String>, last: &[&str]) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    let mut seen = std::collections::HashSet::new();
    all.extend(tokens.into_iter().filter(|t| seen.insert(t.clone())));
    let filler = all.len()..VOCABULARY - last.len();
    all.extend(filler.map(|i| format!("filler{i}")));
    all.extend(last.iter().map(|t| (*t).to_owned()));
    all
}

fn byte_level(pre: &str) -> Vec<(&'static str, NewGgufValue)> {
    let words: Vec<Vec<String>> =
        corpus().split_inclusive(' ').map(|w| w.bytes().map(|b| spell_bytes(&[b])).collect()).collect();
    let merges = learn(&words);
    let mut tokens: Vec<String> = (0..=255u8).map(|b| spell_bytes(&[b])).collect();
    tokens.extend(merges.iter().map(|(a, b)| format!("{a}{b}")));
    // A complete word that no merge produces, and a user-defined token.
    tokens.push(spell_bytes(b" zyzzyva"));
    let user = tokens.len();
    tokens.push("[user]".to_owned());
    let tokens = filled(tokens, &CONTROL);
    let user = tokens.iter().position(|t| t == "[user]").unwrap_or(user);
    let mut kinds = vec![1; VOCABULARY];
    kinds[user] = 4;
    kinds[VOCABULARY - CONTROL.len()..].fill(3);
    vec![
        ("tokenizer.ggml.model", NewGgufValue::Str("gpt2".to_owned())),
        ("tokenizer.ggml.pre", NewGgufValue::Str(pre.to_owned())),
        ("tokenizer.ggml.tokens", strings(tokens)),
        ("tokenizer.ggml.token_type", NewGgufValue::I32s(kinds)),
        ("tokenizer.ggml.merges", strings(merges.iter().map(|(a, b)| format!("{a} {b}")))),
        ("tokenizer.ggml.bos_token_id", NewGgufValue::U32((VOCABULARY - CONTROL.len()) as u32)),
        ("tokenizer.ggml.eos_token_id", NewGgufValue::U32((VOCABULARY - 1) as u32)),
    ]
}

fn sentence_piece_vocabulary(space_prefix: bool) -> Vec<(&'static str, NewGgufValue)> {
    let words: Vec<Vec<String>> = corpus()
        .replace(' ', "\u{2581}")
        .split_inclusive('\u{2581}')
        .map(|w| w.chars().map(String::from).collect())
        .collect();
    let merges = learn(&words);
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_owned).into();
    tokens.extend((0..=255u8).map(|b| format!("<0x{b:02X}>")));
    let normal = tokens.len();
    tokens.extend(merges.iter().map(|(a, b)| format!("{a}{b}")));
    tokens.extend(words.concat());
    tokens.push("[user]".to_owned());
    let tokens = filled(tokens, &[]);
    let mut kinds = vec![1; VOCABULARY];
    kinds[..3].copy_from_slice(&[2, 3, 3]);
    kinds[3..normal].fill(6);
    kinds[tokens.iter().position(|t| t == "[user]").expect("it is there")] = 4;
    // Pairs of tokens have equal scores, so that the leftmost one must be chosen.
    let scores = (0..VOCABULARY).map(|i| -((i / 2) as f32)).collect();
    vec![
        ("tokenizer.ggml.model", NewGgufValue::Str("llama".to_owned())),
        ("tokenizer.ggml.tokens", strings(tokens)),
        ("tokenizer.ggml.scores", NewGgufValue::F32s(scores)),
        ("tokenizer.ggml.token_type", NewGgufValue::I32s(kinds)),
        ("tokenizer.ggml.add_space_prefix", NewGgufValue::Bool(space_prefix)),
        ("tokenizer.ggml.add_eos_token", NewGgufValue::Bool(!space_prefix)),
    ]
}

/// The smallest preset with this vocabulary instead of its own.
fn model(vocabulary: Vec<(&'static str, NewGgufValue)>) -> Vec<u8> {
    let preset = presets::find("tiny").expect("a preset");
    let order =
        ModelSpec { preset, ty: TensorType::Q4_0, graph: GraphForm::Llama, seed: DEFAULT_SEED, threads: 2 };
    let file = synth::write(&order, Vec::new(), |_| ()).expect("memory takes all");
    let from = Gguf::parse(&file).expect("valid");
    let mut head = GgufHeader::default();
    for (key, value) in from.metadata.iter().filter(|(k, _)| !k.starts_with("tokenizer")) {
        let value = match value {
            reader::GgufValue::U32(v) => NewGgufValue::U32(*v),
            reader::GgufValue::F32(v) => NewGgufValue::F32(*v),
            reader::GgufValue::Str(v) => NewGgufValue::Str((*v).to_owned()),
            other => panic!("{key}: {other:?}"),
        };
        head.set(*key, value).expect("a new key");
    }
    for (key, value) in vocabulary {
        head.set(key, value).expect("a new key");
    }
    for t in &from.tensors {
        let ty = TensorType::from_id(t.type_id).expect("a known type");
        head.tensor(t.name, ty, &t.dims[..t.dim_count]).expect("storable");
    }
    let mut body = head.begin(Vec::new()).expect("memory takes all");
    for t in &from.tensors {
        let (start, bytes) = (t.offset as usize, t.bytes.expect("a known type") as usize);
        body.write(&file[start..start + bytes]).expect("memory takes all");
    }
    body.finish().expect("all tensors are there")
}

/// Unusual texts, and random combinations of unusual parts.
fn texts() -> Vec<Vec<u8>> {
    let parts: [&[u8]; 48] = [
        b"",
        b" ",
        b"  ",
        b"   ",
        b"\n",
        b"\n\n",
        b"\r\n",
        b"\t",
        b" \n ",
        b"a",
        b"Hello",
        b" world",
        b"profile",
        b"the",
        b" tokens",
        b"'s",
        b"'S",
        b"'ll",
        b" 'RE",
        b"I'm",
        b"'",
        b"1",
        b"12",
        b"123",
        b"1234567",
        b" 42",
        b"!",
        b"?!",
        b" ...",
        b"==",
        b"$5",
        b"(x)",
        b"\xc3\xa9",
        b"e\xcc\x81",
        b"\xe4\xb8\xad\xe6\x96\x87",
        b"\xf0\x9f\x98\x80",
        b"\xc2\xa0",
        b"\xe2\x80\xa8",
        b"\xd9\xa1",
        b"\xe0\xa4\x95\xe0\xa4\xbe",
        b"\xe2\x91\xa0",
        b"\xff",
        b"\xe2\x82",
        b"\x80",
        b"[user]",
        b"<s>",
        b"<|im_start|>",
        b" zyzzyva",
    ];
    let mut all: Vec<Vec<u8>> = parts.map(<[u8]>::to_vec).into();
    let mut state = 7u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 16) as usize
    };
    for _ in 0..400 {
        let count = 2 + next() % 10;
        all.push((0..count).flat_map(|_| parts[next() % parts.len()]).copied().collect());
    }
    all.push(corpus().into_bytes()[..4000].to_vec());
    all
}

/// The engine's output for each text: ids with specials, ids without, bytes of the first list.
fn engine_says(program: &Path, engine: &str, model: &Path, texts: &[Vec<u8>]) -> Vec<String> {
    let mut lines = String::new();
    for text in texts {
        text.iter().for_each(|b| write!(lines, "{b:02x}").expect("memory takes all"));
        lines.push('\n');
    }
    let mut child = Command::new(program)
        .args(["--engine", engine, "--model"])
        .arg(model)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    let writer = std::thread::spawn(move || stdin.write_all(lines.as_bytes()));
    let out = child.wait_with_output().expect("the program ends");
    assert!(out.status.success(), "{engine}: {}", out.status);
    writer.join().expect("no panic").expect("all was read");
    String::from_utf8(out.stdout).expect("text").lines().map(str::to_owned).collect()
}

fn we_say(t: &Tokenizer<'_>, text: &[u8]) -> String {
    let join = |ids: &[u32]| ids.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
    let (with, without) = (t.encode(text, true, true), t.encode(text, false, false));
    let mut bytes = Vec::new();
    with.iter().for_each(|id| t.append(*id, &mut bytes));
    let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    format!("{}|{}|{hex}", join(&with), join(&without))
}

fn compare(name: &str, vocabulary: Vec<(&'static str, NewGgufValue)>) {
    let Some((program, engines)) = engines() else { return };
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join(format!("{name}.gguf"));
    let file = model(vocabulary);
    std::fs::write(&path, &file).expect("written");
    let gguf = Gguf::parse(&file).expect("valid");
    let t = Tokenizer::new(&gguf).expect("a tokenizer");
    let texts = texts();
    for engine in engines {
        let theirs = engine_says(&program, &engine, &path, &texts);
        assert_eq!(theirs.len(), texts.len());
        for (text, theirs) in texts.iter().zip(theirs) {
            assert_eq!(we_say(&t, text), theirs, "{name}: {:?}", String::from_utf8_lossy(text));
        }
    }
}

/// The program and the engines, or the reason why they are missing.
fn engines() -> Option<(PathBuf, Vec<String>)> {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/engines");
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent()?.join("tests/engines");
    let made = Command::new("make").arg("-C").arg(&tests).arg(format!("OUT={}", target.display())).output();
    let program = target.join("tokenize");
    let found = Command::new(tests.join("fetch.sh")).args(["", ENGINES[0], ENGINES[1]]).output();
    let said = found.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default();
    let paths: Vec<String> = said.lines().filter_map(|l| Some(l.split_once(' ')?.1.to_owned())).collect();
    if paths.len() == ENGINES.len() && made.is_ok() && program.exists() {
        return Some((program, paths));
    }
    skips::skipped("no engines: make engines fetches them");
    None
}

#[test]
fn sentence_pieces() {
    compare("spm", sentence_piece_vocabulary(true));
    compare("spm-no-prefix", sentence_piece_vocabulary(false));
}

#[test]
fn llama3() {
    compare("llama-bpe", byte_level("llama-bpe"));
}

#[test]
fn qwen2() {
    compare("qwen2", byte_level("qwen2"));
}

#[test]
fn gpt2_and_its_kin() {
    for pre in ["gpt-2", "smollm", "default"] {
        compare(pre, byte_level(pre));
    }
}
