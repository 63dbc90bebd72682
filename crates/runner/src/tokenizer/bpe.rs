//! Byte-level BPE: a text is split into words, the bytes of a word are spelled as printable characters, and those
//! are joined in the order of a list of merges.

use super::merge::merge;
use super::split::Splitter;
use super::vocabulary::{self, Defaults, Vocabulary};
use super::{TokenId, TokenizerError};
use ggml::gguf::reader::Gguf;
use std::collections::HashMap;

const MERGES: &str = "tokenizer.ggml.merges";
const PRE: &str = "tokenizer.ggml.pre";

/// The merges and the splitter.
#[derive(Debug)]
pub struct Bpe<'a> {
    /// Maps left and right part to the position in the list.
    merges: HashMap<(&'a [u8], &'a [u8]), u32>,
    splitter: Splitter,
    /// Whether a word that is a token is used directly, whatever the merges say.
    whole_words: bool,
}

impl<'a> Bpe<'a> {
    /// Reads the merges, and the defaults for vocabulary flags that are missing in the file.
    ///
    /// # Errors
    /// Missing or invalid merges, an unknown pre-tokenizer.
    pub fn read(gguf: &Gguf<'a>) -> Result<(Self, Defaults), TokenizerError> {
        let pre = vocabulary::text(gguf, PRE)?.unwrap_or("default");
        let splitter = Splitter::find(pre).ok_or_else(|| TokenizerError::Pre(pre.to_owned()))?;
        let list = vocabulary::strings(gguf, MERGES)?.ok_or(TokenizerError::Missing(MERGES))?;
        let mut merges = HashMap::with_capacity(list.len());
        for (rank, merge) in (0..).zip(list) {
            // The first part may begin with the same character, a space, that separates the two.
            let blank = merge.iter().skip(1).position(|b| *b == b' ').map(|at| at + 1);
            let (left, right) =
                blank.map_or((&merge[..0], &merge[..0]), |at| (&merge[..at], &merge[at + 1..]));
            merges.entry((left, right)).or_insert(rank);
        }
        let whole_words = splitter.is_llama3_family(pre);
        let defaults = Defaults { add_begin: whole_words, ..Defaults::BPE };
        Ok((Self { merges, splitter, whole_words }, defaults))
    }

    /// Appends the tokens of a text.
    pub fn encode(&self, v: &Vocabulary<'_>, text: &[u8], out: &mut Vec<TokenId>) {
        let characters = characters(text);
        for range in self.splitter.split(&characters) {
            let word: String = characters[range].iter().collect();
            self.word(v, &spell(word.as_bytes()), out);
        }
    }

    fn word(&self, v: &Vocabulary<'_>, word: &str, out: &mut Vec<TokenId>) {
        if let Some(token) = v.id(word.as_bytes()).filter(|_| self.whole_words) {
            out.push(token);
            return;
        }
        let bytes = word.as_bytes();
        let cost = |start: usize, middle: usize, end: usize| {
            self.merges.get(&(&bytes[start..middle], &bytes[middle..end])).copied()
        };
        for range in merge(word.char_indices().map(|(at, c)| at + c.len_utf8()), &cost) {
            let piece = &bytes[range];
            match v.id(piece) {
                Some(token) => out.push(token),
                // Bytes that are in no token are left out, as in llama.cpp.
                None => out.extend(piece.chunks(1).filter_map(|byte| v.id(byte))),
            }
        }
    }
}

/// The text's characters; invalid bytes become U+FFFD.
fn characters(text: &[u8]) -> Vec<char> {
    let mut all = Vec::with_capacity(text.len());
    for chunk in text.utf8_chunks() {
        all.extend(chunk.valid().chars());
        all.extend(chunk.invalid().iter().map(|_| char::REPLACEMENT_CHARACTER));
    }
    all
}

/// Whether a byte is spelled as the character with the same number.
const fn is_plain(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff)
}

/// The other bytes, in order; the n-th is spelled as character 256 + n.
const HIDDEN: [u8; 68] = {
    let mut bytes = [0; 68];
    let (mut byte, mut n) = (0u8, 0);
    loop {
        if !is_plain(byte) {
            bytes[n] = byte;
            n += 1;
        }
        if byte == u8::MAX {
            break bytes;
        }
        byte += 1;
    }
};

/// Spells bytes as the printable characters that represent them in byte-level BPE tokens.
pub fn spell(bytes: &[u8]) -> String {
    let character = |byte: &u8| match HIDDEN.binary_search(byte) {
        Ok(n) => char::from_u32(256 + n as u32).unwrap_or_default(),
        Err(_) => char::from(*byte),
    };
    bytes.iter().map(character).collect()
}

/// Appends the bytes that a token of printable characters spells; other characters stand for themselves.
pub fn append(token: &[u8], out: &mut Vec<u8>) {
    for c in String::from_utf8_lossy(token).chars() {
        let hidden = (c as usize).checked_sub(256).and_then(|n| HIDDEN.get(n));
        match (hidden, u8::try_from(c)) {
            (Some(byte), _) => out.push(*byte),
            (None, Ok(byte)) if is_plain(byte) => out.push(byte),
            _ => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_spelled_and_read_back() {
        let all: Vec<u8> = (0..=255).collect();
        let spelled = spell(&all);
        assert!(spelled.chars().all(|c| !c.is_whitespace() && !c.is_control()));
        assert_eq!(spell(b" \n!"), "\u{120}\u{10a}!");
        let mut back = Vec::new();
        append(spelled.as_bytes(), &mut back);
        assert_eq!(back, all);
    }
}
