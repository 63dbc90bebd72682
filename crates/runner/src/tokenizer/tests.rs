//! Tests complete tokenizers on generated file heads. Comparison with a real engine: tests/plain/tokenizer.rs.

use super::*;
use crate::synth::{DEFAULT_SEED, GraphForm, ModelSpec, presets};
use ggml::gguf::writer::{GgufHeader, NewGgufValue};

/// A file with metadata only.
fn head(entries: Vec<(&str, NewGgufValue)>) -> Vec<u8> {
    let mut h = GgufHeader::default();
    for (key, value) in entries {
        h.set(key, value).expect("a new key");
    }
    h.begin(Vec::new()).and_then(|body| body.finish()).expect("memory takes all")
}

fn strings(all: &[&str]) -> NewGgufValue {
    NewGgufValue::Strings(all.iter().map(|s| (*s).to_owned()).collect())
}

fn text(s: &str) -> NewGgufValue {
    NewGgufValue::Str(s.to_owned())
}

/// SentencePiece with the tokens of `pieces` after three special ones; scores decrease.
fn spm(pieces: &[&str]) -> Vec<u8> {
    let all = [&["<unk>", "<s>", "</s>"], pieces].concat();
    let scores = (0..all.len()).map(|i| -(i as f32)).collect();
    let kinds = (0..all.len()).map(|i| [2, 3, 3].get(i).copied().unwrap_or(1)).collect();
    head(vec![
        ("tokenizer.ggml.model", text("llama")),
        ("tokenizer.ggml.tokens", strings(&all)),
        ("tokenizer.ggml.scores", NewGgufValue::F32s(scores)),
        ("tokenizer.ggml.token_type", NewGgufValue::I32s(kinds)),
    ])
}

fn error(file: &[u8]) -> String {
    let gguf = Gguf::parse(file).expect("a valid head");
    Tokenizer::new(&gguf).err().map(|e| e.to_string()).unwrap_or_default()
}

#[test]
fn sentence_pieces_by_hand() {
    let file = spm(&["\u{2581}a", "ab", "\u{2581}", "a", "b", "\u{2581}ab"]);
    let gguf = Gguf::parse(&file).expect("valid");
    let t = Tokenizer::new(&gguf).expect("a tokenizer");
    // "_ab": "_a" (score -3) is made before "ab" (-4); then "_ab" (-8).
    assert_eq!(t.encode(b"ab", true, false), [1, 8]);
    assert_eq!(t.encode(b"ab", false, false), [8]);
    // No token has a "c" or its byte: unknown.
    assert_eq!(t.encode(b"bc", true, false), [1, 5, 7, 0]);
    assert_eq!(t.encode(b"", true, true), [1]);
    // Control tokens are recognised only on request; after one, a space is added again.
    assert_eq!(t.encode(b"</s>ab", false, true), [2, 8]);
    assert!(!t.encode(b"</s>", false, false).contains(&2));
    assert!(t.is_end(2) && !t.is_end(8));
    let mut bytes = Vec::new();
    [1, 8, 7, 99].into_iter().for_each(|id| t.append(id, &mut bytes));
    assert_eq!(bytes, b" abb");
}

#[test]
fn generated_models_of_both_kinds_come_back() {
    let texts = [
        "",
        "Hello, world!",
        " two  blanks \n\ttab",
        "na\u{ef}ve \u{4e2d}\u{6587} \u{1f600} e\u{301}",
        "1234567",
    ];
    for (preset, begin) in [("tiny", 1), ("qwen2-tiny", 0)] {
        let order = ModelSpec {
            preset: presets::find(preset).expect("a preset"),
            ty: ggml::quant::TensorType::Q4_0,
            graph: GraphForm::Llama,
            seed: DEFAULT_SEED,
            threads: 1,
        };
        let file = crate::synth::write(&order, Vec::new(), |_| ()).expect("memory takes all");
        let gguf = Gguf::parse(&file).expect("valid");
        let t = Tokenizer::new(&gguf).expect("a tokenizer");
        assert_eq!(t.len(), 4096);
        for text in texts {
            let ids = t.encode(text.as_bytes(), true, false);
            assert_eq!(ids.iter().filter(|id| **id == 1).count(), begin, "{preset}: {ids:?}");
            let mut bytes = Vec::new();
            ids.iter().for_each(|id| t.append(*id, &mut bytes));
            let back = String::from_utf8(bytes).expect("whole characters");
            let prefix = if begin == 1 && !text.is_empty() { " " } else { "" };
            assert_eq!(back, format!("{prefix}{text}"), "{preset}");
        }
    }
}

#[test]
fn what_is_wrong_is_named() {
    let model = |name: &str| ("tokenizer.ggml.model", text(name));
    let tokens = || ("tokenizer.ggml.tokens", strings(&["a", "b", "c"]));
    let merges = || ("tokenizer.ggml.merges", strings(&["a b"]));
    let cases = [
        (vec![], "'tokenizer.ggml.model' is missing"),
        (vec![model("bert")], "'bert'"),
        (vec![("tokenizer.ggml.model", NewGgufValue::U32(1))], "'tokenizer.ggml.model': it must be a string"),
        (vec![model("llama")], "'tokenizer.ggml.tokens' is missing"),
        (
            vec![model("llama"), ("tokenizer.ggml.tokens", NewGgufValue::U32(1))],
            "'tokenizer.ggml.tokens': it must be an array",
        ),
        (vec![model("llama"), ("tokenizer.ggml.tokens", strings(&["a", "a"]))], "'a' occurs twice"),
        (
            vec![model("llama"), tokens(), ("tokenizer.ggml.scores", NewGgufValue::F32s(vec![0.0; 2]))],
            "2 entries, but there are 3 tokens",
        ),
        (
            vec![model("llama"), tokens(), ("tokenizer.ggml.token_type", NewGgufValue::F32s(vec![0.0; 3]))],
            "'tokenizer.ggml.token_type': it is an array of the wrong type",
        ),
        (
            vec![model("llama"), tokens(), ("tokenizer.ggml.add_eos_token", NewGgufValue::U32(1))],
            "'tokenizer.ggml.add_eos_token': it must be true or false",
        ),
        (vec![model("llama"), ("tokenizer.ggml.tokens", strings(&["a"]))], "'tokenizer.ggml.add_bos_token'"),
        (vec![model("gpt2"), tokens()], "'tokenizer.ggml.merges' is missing"),
        (vec![model("gpt2"), tokens(), merges(), ("tokenizer.ggml.pre", text("odd"))], "'odd'"),
    ];
    for (entries, part) in cases {
        let said = error(&head(entries));
        assert!(said.contains(part), "'{part}' in: {said}");
    }
}

#[test]
fn odd_vocabularies_do_no_harm() {
    // Empty tokens, merges of nothing, special tokens within special tokens, scores that are not numbers.
    let file = head(vec![
        ("tokenizer.ggml.model", text("llama")),
        ("tokenizer.ggml.tokens", strings(&["", "<<a>>", "<a>", "x", "xx", "<0xZZ>"])),
        ("tokenizer.ggml.scores", NewGgufValue::F32s(vec![f32::NAN; 6])),
        ("tokenizer.ggml.token_type", NewGgufValue::I32s(vec![3, 3, 4, 1, 1, 6])),
    ]);
    let gguf = Gguf::parse(&file).expect("valid");
    let t = Tokenizer::new(&gguf).expect("a tokenizer");
    // The space before the x is three bytes that are in no token.
    assert_eq!(t.encode(b"<<a>><a>xxx", false, true), [1, 2, 0, 0, 0, 4, 3]);
    assert_eq!(t.encode(b"<a>", false, false), [2]);
    let mut bytes = Vec::new();
    (0..7).for_each(|id| t.append(id, &mut bytes));
    assert_eq!(bytes, b"<a>xxx");
    let file = head(vec![
        ("tokenizer.ggml.model", text("gpt2")),
        ("tokenizer.ggml.pre", text("llama-bpe")),
        ("tokenizer.ggml.tokens", strings(&["a", "b", "", "ab", "\u{120}", "c c"])),
        ("tokenizer.ggml.merges", strings(&["", " ", "a", "a b", "ab ab", "a  b"])),
        ("tokenizer.ggml.bos_token_id", NewGgufValue::U32(0)),
    ]);
    let gguf = Gguf::parse(&file).expect("valid");
    let t = Tokenizer::new(&gguf).expect("a tokenizer");
    assert_eq!(t.encode(b"ab \xff", true, true), [0, 3, 4]);
    // Merged text that is not a token is split into bytes again.
    assert_eq!(t.encode(b"abab", false, true), [0, 1, 0, 1]);
}
