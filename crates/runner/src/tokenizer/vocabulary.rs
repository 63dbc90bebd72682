//! Tokens with their scores and kinds, as stored in a GGUF file.

use super::{TokenId, TokenizerError};
use ggml::gguf::ValueKind;
use ggml::gguf::reader::{Array, Gguf, GgufValue};
use std::collections::HashMap;

const TOKENS: &str = "tokenizer.ggml.tokens";
const SCORES: &str = "tokenizer.ggml.scores";
const KINDS: &str = "tokenizer.ggml.token_type";

/// Tokens that end a text by their name, whatever the file says about them (files often omit it; the names are
/// those that llama.cpp uses).
const ENDS: [&str; 14] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<|fim_pad|>",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<|file_sep|>",
];

/// The kind of a token (`enum llama_token_type`, llama.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenKind {
    Normal,
    Unknown,
    Control,
    User,
    Byte,
    /// Unused, or an unknown number.
    Other,
}

/// Defaults for values missing in the file.
#[derive(Debug, Clone, Copy)]
pub struct Defaults {
    pub begin: TokenId,
    pub end: TokenId,
    pub unknown: Option<TokenId>,
    pub add_begin: bool,
    pub space_prefix: bool,
}

impl Defaults {
    pub const SPM: Self = Self { begin: 1, end: 2, unknown: Some(0), add_begin: true, space_prefix: true };
    pub const BPE: Self = Self { begin: 11, end: 11, unknown: None, add_begin: false, space_prefix: false };
}

/// The tokens of a file.
#[derive(Debug)]
pub struct Vocabulary<'a> {
    tokens: Vec<&'a [u8]>,
    scores: Vec<f32>,
    kinds: Vec<TokenKind>,
    ids: HashMap<&'a [u8], TokenId>,
    /// Control, unknown and user-defined tokens, longest first.
    pub special: Vec<TokenId>,
    pub begin: Option<TokenId>,
    pub end: Option<TokenId>,
    unknown: Option<TokenId>,
    pub add_begin: bool,
    pub add_end: bool,
    pub space_prefix: bool,
    /// Tokens that end a text.
    pub ends: Vec<TokenId>,
}

impl<'a> Vocabulary<'a> {
    /// Reads the tokens of a file.
    ///
    /// # Errors
    /// Missing tokens, lists of different lengths, a duplicate token, a flag without its token.
    pub fn read(gguf: &Gguf<'a>, defaults: Defaults) -> Result<Self, TokenizerError> {
        let tokens = strings(gguf, TOKENS)?.ok_or(TokenizerError::Missing(TOKENS))?;
        let ids = number(&tokens)?;
        let scores = numbers(gguf, SCORES, tokens.len(), 0.0, |v| match v {
            GgufValue::F32(score) => Some(score),
            GgufValue::I32(score) => Some(score as f32),
            _ => None,
        })?;
        let mut kinds = numbers(gguf, KINDS, tokens.len(), TokenKind::Normal, |v| match v {
            GgufValue::I32(kind) => Some(kind_of(kind)),
            _ => None,
        })?;
        let count = tokens.len();
        let token = |key, default: Option<TokenId>| match gguf.get(key).and_then(GgufValue::as_u64) {
            Some(id) if id < count as u64 => Some(id as TokenId),
            _ => default.filter(|id| (*id as usize) < count),
        };
        let begin = token("tokenizer.ggml.bos_token_id", Some(defaults.begin));
        let end = token("tokenizer.ggml.eos_token_id", Some(defaults.end));
        let named = |name: &str| ids.get(name.as_bytes()).copied();
        let mut ends: Vec<TokenId> = ENDS.iter().filter_map(|name| named(name)).collect();
        for id in &ends {
            kinds[*id as usize] = TokenKind::Control;
        }
        let told = ["tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"].map(|key| token(key, None));
        ends.extend(told.into_iter().flatten().chain(end));
        let special = special(&tokens, &kinds);
        let v = Self {
            scores,
            kinds,
            special,
            begin,
            end,
            ends,
            unknown: token("tokenizer.ggml.unknown_token_id", defaults.unknown),
            add_begin: flag(gguf, "tokenizer.ggml.add_bos_token", begin, defaults.add_begin)?,
            add_end: flag(gguf, "tokenizer.ggml.add_eos_token", end, false)?,
            space_prefix: switch(gguf, "tokenizer.ggml.add_space_prefix")?.unwrap_or(defaults.space_prefix),
            tokens,
            ids,
        };
        Ok(v)
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// The token with exactly these bytes.
    pub fn id(&self, text: &[u8]) -> Option<TokenId> {
        self.ids.get(text).copied()
    }

    /// A token's bytes as in the file; empty for a number out of range.
    pub fn text(&self, token: TokenId) -> &'a [u8] {
        self.tokens.get(token as usize).copied().unwrap_or_default()
    }

    /// A token's score; tokens with higher scores are made earlier.
    pub fn score(&self, token: TokenId) -> f32 {
        self.scores.get(token as usize).copied().unwrap_or(0.0)
    }

    /// A token's kind.
    pub fn kind(&self, token: TokenId) -> TokenKind {
        self.kinds.get(token as usize).copied().unwrap_or(TokenKind::Other)
    }

    /// The token for one byte, or the unknown token.
    pub fn byte_token(&self, byte: u8) -> Option<TokenId> {
        self.id(format!("<0x{byte:02X}>").as_bytes()).or_else(|| self.id(&[byte])).or(self.unknown)
    }
}

/// The byte that `<0xAB>` represents.
pub fn byte_of(token: &[u8]) -> Option<u8> {
    let digits = token.strip_prefix(b"<0x")?.strip_suffix(b">")?;
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

fn kind_of(number: i32) -> TokenKind {
    match number {
        1 => TokenKind::Normal,
        2 => TokenKind::Unknown,
        3 => TokenKind::Control,
        4 => TokenKind::User,
        6 => TokenKind::Byte,
        _ => TokenKind::Other,
    }
}

fn wrong(key: &'static str, why: impl Into<String>) -> TokenizerError {
    TokenizerError::Wrong { key, why: why.into() }
}

/// Maps the bytes of tokens to their numbers. Empty tokens can't be found by their bytes.
fn number<'a>(tokens: &[&'a [u8]]) -> Result<HashMap<&'a [u8], TokenId>, TokenizerError> {
    if TokenId::try_from(tokens.len()).is_err() {
        return Err(wrong(TOKENS, "there are too many"));
    }
    let mut ids = HashMap::with_capacity(tokens.len());
    for (id, token) in (0..).zip(tokens) {
        if !token.is_empty() && ids.insert(*token, id).is_some() {
            return Err(wrong(TOKENS, format!("'{}' occurs twice", String::from_utf8_lossy(token))));
        }
    }
    Ok(ids)
}

/// Tokens that are searched for in the text itself, longest first.
fn special(tokens: &[&[u8]], kinds: &[TokenKind]) -> Vec<TokenId> {
    let sought = |kind: &TokenKind| matches!(kind, TokenKind::Control | TokenKind::Unknown | TokenKind::User);
    let all = (0..).zip(tokens.iter().zip(kinds));
    let mut special: Vec<(TokenId, usize)> =
        all.filter(|(_, (t, k))| sought(k) && !t.is_empty()).map(|(id, (t, _))| (id, t.len())).collect();
    special.sort_by_key(|(_, length)| std::cmp::Reverse(*length));
    special.into_iter().map(|(id, _)| id).collect()
}

/// Metadata that must be text if present.
///
/// # Errors
/// The value is of another kind.
pub fn text<'a>(gguf: &Gguf<'a>, key: &'static str) -> Result<Option<&'a str>, TokenizerError> {
    match gguf.get(key) {
        None => Ok(None),
        Some(GgufValue::Str(text)) => Ok(Some(text)),
        Some(_) => Err(wrong(key, "it must be a string")),
    }
}

fn array<'a>(gguf: &Gguf<'a>, key: &'static str) -> Result<Option<Array<'a>>, TokenizerError> {
    match gguf.get(key) {
        None => Ok(None),
        Some(GgufValue::Array(array)) => Ok(Some(*array)),
        Some(_) => Err(wrong(key, "it must be an array")),
    }
}

/// Metadata that must be an array of strings if present.
///
/// # Errors
/// The value is of another kind.
pub fn strings<'a>(gguf: &Gguf<'a>, key: &'static str) -> Result<Option<Vec<&'a [u8]>>, TokenizerError> {
    match array(gguf, key)? {
        Some(a) if a.kind() != ValueKind::String => Err(wrong(key, "it must be an array of strings")),
        found => Ok(found.map(|a| a.strings().collect())),
    }
}

/// Metadata with a number for each token; `default` for all if it is missing.
fn numbers<'a, T: Clone>(
    gguf: &Gguf<'a>,
    key: &'static str,
    count: usize,
    default: T,
    read: impl Fn(GgufValue<'a>) -> Option<T>,
) -> Result<Vec<T>, TokenizerError> {
    let Some(found) = array(gguf, key)? else { return Ok(vec![default; count]) };
    if found.len() < count as u64 {
        return Err(wrong(key, format!("it has {} entries, but there are {count} tokens", found.len())));
    }
    let all: Option<Vec<T>> = found.values().take(count).map(read).collect();
    all.filter(|all| all.len() == count).ok_or_else(|| wrong(key, "it is an array of the wrong type"))
}

fn switch(gguf: &Gguf<'_>, key: &'static str) -> Result<Option<bool>, TokenizerError> {
    match gguf.get(key) {
        None => Ok(None),
        Some(GgufValue::Bool(on)) => Ok(Some(*on)),
        Some(_) => Err(wrong(key, "it must be true or false")),
    }
}

/// Whether a token is to be added, which must then exist.
fn flag(
    gguf: &Gguf<'_>,
    key: &'static str,
    token: Option<TokenId>,
    default: bool,
) -> Result<bool, TokenizerError> {
    let on = switch(gguf, key)?.unwrap_or(default);
    if on && token.is_none() {
        return Err(wrong(key, "it is true, but there is no such token"));
    }
    Ok(on)
}
