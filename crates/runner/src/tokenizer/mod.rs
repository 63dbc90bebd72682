//! The tokenizer stored in a GGUF file: SentencePiece or byte-level BPE.
//!
//! Everything borrows from the file. The result for a text is that of `llama_tokenize` (src/llama-vocab.cpp of
//! llama.cpp), for the pre-tokenizers that `split` knows.

mod bpe;
mod merge;
mod split;
mod spm;
mod stream;
mod unicode;
mod vocabulary;

pub use bpe::spell as spell_bytes;
pub use stream::Utf8Stream;

use bpe::Bpe;
use ggml::gguf::reader::Gguf;
use vocabulary::{TokenKind, Vocabulary};

/// Number of a token.
pub type TokenId = u32;

/// Why a file's tokenizer can't be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum TokenizerError {
    #[error("metadata '{0}' is missing: the file contains no tokenizer")]
    Missing(&'static str),
    #[error(
        "metadata 'tokenizer.ggml.model' is '{0}': only 'llama' (SentencePiece) and 'gpt2' (byte-level \
         BPE) are supported"
    )]
    Model(String),
    #[error("metadata 'tokenizer.ggml.pre' is '{0}': this pre-tokenizer is not supported")]
    Pre(String),
    #[error("metadata '{key}': {why}")]
    Wrong { key: &'static str, why: String },
}

/// Converts texts to tokens and back.
#[derive(Debug)]
pub struct Tokenizer<'a> {
    vocabulary: Vocabulary<'a>,
    /// `None`: SentencePiece.
    bpe: Option<Bpe<'a>>,
}

/// A part of a text during tokenization.
#[derive(Clone, Copy)]
enum TextPart<'t> {
    Text(&'t [u8]),
    Token(TokenId),
}

impl<'a> Tokenizer<'a> {
    /// The tokenizer of this file.
    ///
    /// # Errors
    /// [`TokenizerError`]: which metadata is missing, unsupported or invalid.
    pub fn new(gguf: &Gguf<'a>) -> Result<Self, TokenizerError> {
        let model = vocabulary::text(gguf, "tokenizer.ggml.model")?;
        match model.ok_or(TokenizerError::Missing("tokenizer.ggml.model"))? {
            "llama" => Ok(Self { vocabulary: Vocabulary::read(gguf, vocabulary::Defaults::SPM)?, bpe: None }),
            "gpt2" => {
                let (bpe, defaults) = Bpe::read(gguf)?;
                Ok(Self { vocabulary: Vocabulary::read(gguf, defaults)?, bpe: Some(bpe) })
            }
            other => Err(TokenizerError::Model(other.to_owned())),
        }
    }

    /// A token's bytes as the file has them; empty for a number out of range.
    pub fn stored(&self, token: TokenId) -> &'a [u8] {
        self.vocabulary.text(token)
    }

    /// The token that begins a text, if the file asks for one.
    pub fn begin(&self) -> Option<TokenId> {
        self.vocabulary.begin.filter(|_| self.vocabulary.add_begin)
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.vocabulary.len()
    }

    /// Whether there are no tokens at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a text ends with this token.
    pub fn is_end(&self, token: TokenId) -> bool {
        self.vocabulary.ends.contains(&token)
    }

    /// The tokens of a text, which need not be valid UTF-8. `add_special` adds the begin and end tokens as the
    /// file requests; `parse_special` recognises control tokens that are spelled out, such as `<s>`.
    pub fn encode(&self, text: &[u8], add_special: bool, parse_special: bool) -> Vec<TokenId> {
        let v = &self.vocabulary;
        let mut out = Vec::new();
        out.extend(v.begin.filter(|_| add_special && v.add_begin));
        let mut after_special = true;
        for part in self.parts(text, parse_special) {
            match (part, &self.bpe) {
                (TextPart::Token(token), _) => out.push(token),
                (TextPart::Text(text), Some(bpe)) => bpe.encode(v, text, &mut out),
                (TextPart::Text(text), None) => {
                    spm::encode(v, text, after_special && v.space_prefix, &mut out)
                }
            }
            after_special = matches!(part, TextPart::Token(_));
        }
        out.extend(v.end.filter(|_| add_special && v.add_end));
        out
    }

    /// Cuts the text at tokens that are never made by merging: control tokens (if `control`) and user-defined
    /// ones. The longest are searched first, as they may contain shorter ones.
    fn parts<'t>(&self, text: &'t [u8], control: bool) -> Vec<TextPart<'t>> {
        let mut parts = vec![TextPart::Text(text)];
        parts.retain(|_| !text.is_empty());
        for &token in &self.vocabulary.special {
            let wanted = self.vocabulary.text(token);
            if control || self.vocabulary.kind(token) == TokenKind::User {
                parts = parts.into_iter().flat_map(|part| cut(part, wanted, token)).collect();
            }
        }
        parts
    }

    /// Appends the bytes that a token represents; control tokens represent none. A character may be spread over
    /// several tokens, see [`Utf8Stream`].
    pub fn append(&self, token: TokenId, out: &mut Vec<u8>) {
        let text = self.vocabulary.text(token);
        match self.vocabulary.kind(token) {
            TokenKind::Normal if self.bpe.is_some() => bpe::append(text, out),
            TokenKind::Normal => spm::append(text, out),
            TokenKind::User => out.extend_from_slice(text),
            TokenKind::Byte => out.extend(vocabulary::byte_of(text)),
            TokenKind::Control | TokenKind::Unknown | TokenKind::Other => {}
        }
    }
}

/// Cuts a part of text at each occurrence of `wanted`.
fn cut<'t>(part: TextPart<'t>, wanted: &[u8], token: TokenId) -> Vec<TextPart<'t>> {
    let TextPart::Text(mut rest) = part else { return vec![part] };
    let mut parts = Vec::new();
    let find = |text: &[u8]| text.windows(wanted.len().max(1)).position(|w| w == wanted);
    while let Some(at) = find(rest) {
        let (before, from) = rest.split_at(at);
        if !before.is_empty() {
            parts.push(TextPart::Text(before));
        }
        parts.push(TextPart::Token(token));
        rest = from.get(wanted.len()..).unwrap_or_default();
    }
    if !rest.is_empty() {
        parts.push(TextPart::Text(rest));
    }
    parts
}

#[cfg(test)]
mod tests;
