//! Vocabularies that any llama.cpp can load, and that can tokenise any text.

use super::presets::Arch;
use crate::tokenizer::spell_bytes;
use ggml::gguf::writer::{GgufHeader, GgufWriteError, NewGgufValue};

/// Kinds of token (`enum llama_token_type`, llama.h).
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const BYTE: i32 = 6;

/// SentencePiece's mark for a space.
const BLANK: char = '\u{2581}';
/// Control tokens of qwen2, at the end of the vocabulary.
const QWEN_CONTROL: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];

/// Adds the `tokenizer.ggml.*` entries for `size` tokens, in the style of models of this architecture.
///
/// # Errors
/// A key that is already set.
pub fn metadata(h: &mut GgufHeader, arch: Arch, size: u32) -> Result<(), GgufWriteError> {
    match arch {
        Arch::Llama | Arch::Gemma2 => sentence_pieces(h, size as usize),
        Arch::Qwen2 | Arch::Qwen2Moe => byte_level(h, size as usize),
    }
}

/// Three special tokens, 256 bytes, the space and printable ASCII, then filler.
fn sentence_pieces(h: &mut GgufHeader, size: usize) -> Result<(), GgufWriteError> {
    let mut tokens = Vec::with_capacity(size);
    let mut scores = Vec::with_capacity(size);
    let mut kinds = Vec::with_capacity(size);
    let mut add = |token: String, base: Option<f32>, kind: i32| {
        tokens.push(token);
        // Later pieces score lower, so that merging prefers the short, known ones.
        scores.push(base.map_or(0.0, |b| b - tokens.len() as f32));
        kinds.push(kind);
    };
    for (token, kind) in [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL)] {
        add(token.to_owned(), None, kind);
    }
    (0..=255u8).for_each(|byte| add(format!("<0x{byte:02X}>"), None, BYTE));
    add(BLANK.to_string(), Some(-100.0), NORMAL);
    ('!'..='~').for_each(|c| add(c.to_string(), Some(-100.0), NORMAL));
    let first_filler = 3 + 256 + 1 + 94;
    (first_filler..size).for_each(|i| add(format!("{BLANK}t{i}"), Some(-1000.0), NORMAL));
    tokens.truncate(size);
    scores.truncate(size);
    kinds.truncate(size);

    h.set("tokenizer.ggml.model", NewGgufValue::Str("llama".to_owned()))?;
    h.set("tokenizer.ggml.pre", NewGgufValue::Str("default".to_owned()))?;
    h.set("tokenizer.ggml.tokens", NewGgufValue::Strings(tokens))?;
    h.set("tokenizer.ggml.scores", NewGgufValue::F32s(scores))?;
    h.set("tokenizer.ggml.token_type", NewGgufValue::I32s(kinds))?;
    h.set("tokenizer.ggml.bos_token_id", NewGgufValue::U32(1))?;
    h.set("tokenizer.ggml.eos_token_id", NewGgufValue::U32(2))?;
    h.set("tokenizer.ggml.unknown_token_id", NewGgufValue::U32(0))?;
    h.set("tokenizer.ggml.add_bos_token", NewGgufValue::Bool(true))?;
    h.set("tokenizer.ggml.add_eos_token", NewGgufValue::Bool(false))?;
    h.set("tokenizer.ggml.add_space_prefix", NewGgufValue::Bool(true))
}

/// The 256 bytes, the merges of lower-case letters, filler, three control tokens.
fn byte_level(h: &mut GgufHeader, size: usize) -> Result<(), GgufWriteError> {
    let mut tokens: Vec<String> = (0..=255u8).map(|byte| spell_bytes(&[byte])).collect();
    let mut merges = Vec::new();
    // First space and letter, then two letters, then all three: every two-letter word is one token.
    let blank = spell_bytes(b" ");
    let letters = || 'a'..='z';
    let two = || letters().flat_map(move |a| letters().map(move |b| (a.to_string(), b.to_string())));
    let blank_and_one = letters().map(|a| (blank.clone(), a.to_string()));
    let blank_and_two = two().map(|(a, b)| (format!("{blank}{a}"), b));
    for (left, right) in blank_and_one.chain(two()).chain(blank_and_two) {
        tokens.push(format!("{left}{right}"));
        merges.push(format!("{left} {right}"));
    }
    let normal = size.saturating_sub(QWEN_CONTROL.len());
    (tokens.len()..normal).for_each(|i| tokens.push(format!("{blank}t{i}")));
    tokens.truncate(normal);
    let mut kinds = vec![NORMAL; tokens.len()];
    tokens.extend(QWEN_CONTROL.map(str::to_owned));
    kinds.resize(tokens.len(), CONTROL);
    let end = NewGgufValue::U32(u32::try_from(normal).unwrap_or(u32::MAX));

    h.set("tokenizer.ggml.model", NewGgufValue::Str("gpt2".to_owned()))?;
    h.set("tokenizer.ggml.pre", NewGgufValue::Str("qwen2".to_owned()))?;
    h.set("tokenizer.ggml.tokens", NewGgufValue::Strings(tokens))?;
    h.set("tokenizer.ggml.token_type", NewGgufValue::I32s(kinds))?;
    h.set("tokenizer.ggml.merges", NewGgufValue::Strings(merges))?;
    h.set("tokenizer.ggml.eos_token_id", end)?;
    h.set("tokenizer.ggml.add_bos_token", NewGgufValue::Bool(false))
}
