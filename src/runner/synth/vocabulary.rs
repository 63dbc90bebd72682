//! A vocabulary that any llama.cpp can load: SentencePiece style, with byte tokens so that every text tokenises.
//! Uses `ggml::gguf`.

use crate::ggml::gguf::writer::{Header, Value, WriteError};

/// Kinds of token (`enum llama_token_type`, llama.h).
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const BYTE: i32 = 6;

/// The mark that SentencePiece puts for a blank.
const BLANK: char = '\u{2581}';

/// Adds the `tokenizer.ggml.*` entries: three special tokens, 256 bytes, the blank and printable ASCII, then filler
/// up to `size` tokens.
///
/// # Errors
/// A key that is already set.
pub fn metadata(h: &mut Header, size: u32) -> Result<(), WriteError> {
    let size = size as usize;
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

    h.set("tokenizer.ggml.model", Value::Str("llama".to_owned()))?;
    h.set("tokenizer.ggml.pre", Value::Str("default".to_owned()))?;
    h.set("tokenizer.ggml.tokens", Value::Strings(tokens))?;
    h.set("tokenizer.ggml.scores", Value::F32s(scores))?;
    h.set("tokenizer.ggml.token_type", Value::I32s(kinds))?;
    h.set("tokenizer.ggml.bos_token_id", Value::U32(1))?;
    h.set("tokenizer.ggml.eos_token_id", Value::U32(2))?;
    h.set("tokenizer.ggml.unknown_token_id", Value::U32(0))?;
    h.set("tokenizer.ggml.add_bos_token", Value::Bool(true))?;
    h.set("tokenizer.ggml.add_eos_token", Value::Bool(false))?;
    h.set("tokenizer.ggml.add_space_prefix", Value::Bool(true))
}
