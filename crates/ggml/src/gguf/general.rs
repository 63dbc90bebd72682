//! What a model's file says of itself: name and quantization. Reads an untrusted file from its beginning, without keeping
//! it: the vocabulary between the keys can be megabytes.

use std::io::Read;

use super::{MAGIC, ValueKind};

/// Bytes read at most: metadata with a vocabulary of a million tokens.
const MOST: u64 = 64 << 20;
/// Longest key, and most of a name, bytes.
const LONGEST: u64 = 255;

/// Keys of the metadata. Unknown ones are None.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct General {
    /// `general.name`.
    pub name: Option<String>,
    /// `general.file_type`, an `enum llama_ftype`.
    pub file_type: Option<u32>,
}

/// Names of `enum llama_ftype` (llama.h) without their prefix; the numbers between them are no longer in use.
const FILE_TYPES: [(u32, &str); 36] = [
    (0, "F32"),
    (1, "F16"),
    (2, "Q4_0"),
    (3, "Q4_1"),
    (7, "Q8_0"),
    (8, "Q5_0"),
    (9, "Q5_1"),
    (10, "Q2_K"),
    (11, "Q3_K_S"),
    (12, "Q3_K_M"),
    (13, "Q3_K_L"),
    (14, "Q4_K_S"),
    (15, "Q4_K_M"),
    (16, "Q5_K_S"),
    (17, "Q5_K_M"),
    (18, "Q6_K"),
    (19, "IQ2_XXS"),
    (20, "IQ2_XS"),
    (21, "Q2_K_S"),
    (22, "IQ3_XS"),
    (23, "IQ3_XXS"),
    (24, "IQ1_S"),
    (25, "IQ4_NL"),
    (26, "IQ3_S"),
    (27, "IQ3_M"),
    (28, "IQ2_S"),
    (29, "IQ2_M"),
    (30, "IQ4_XS"),
    (31, "IQ1_M"),
    (32, "BF16"),
    (36, "TQ1_0"),
    (37, "TQ2_0"),
    (38, "MXFP4_MOE"),
    (39, "NVFP4"),
    (40, "Q1_0"),
    (41, "Q2_0"),
];
/// The type was guessed when the file was written.
const GUESSED: u32 = 1024;

/// The name of an `enum llama_ftype`; None: it is not known here.
pub fn file_type_name(file_type: u32) -> Option<&'static str> {
    FILE_TYPES.iter().find(|(id, _)| *id == file_type & !GUESSED).map(|(_, name)| *name)
}

/// The longest of those names that a file's name contains as a word: `model-Q4_K_M.gguf`.
pub fn named_type(file: &str) -> Option<&'static str> {
    let upper = file.to_ascii_uppercase();
    let is_part = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_');
    let has = |name: &str| {
        upper.match_indices(name).any(|(at, _)| {
            let (before, after) = (upper.get(..at), upper.get(at + name.len()..));
            !is_part(before.and_then(|s| s.chars().next_back()))
                && !is_part(after.and_then(|s| s.chars().next()))
        })
    };
    FILE_TYPES.iter().map(|(_, name)| *name).filter(|name| has(name)).max_by_key(|name| name.len())
}

/// A file, from the front.
struct Front<'a> {
    source: &'a mut dyn Read,
    /// Bytes that may still be read.
    left: u64,
}

impl Front<'_> {
    fn fill(&mut self, bytes: &mut [u8]) -> Option<()> {
        self.left = self.left.checked_sub(bytes.len() as u64)?;
        self.source.read_exact(bytes).ok()
    }

    fn u32(&mut self) -> Option<u32> {
        let mut bytes = [0; 4];
        self.fill(&mut bytes)?;
        Some(u32::from_le_bytes(bytes))
    }

    fn u64(&mut self) -> Option<u64> {
        let mut bytes = [0; 8];
        self.fill(&mut bytes)?;
        Some(u64::from_le_bytes(bytes))
    }

    fn skip(&mut self, mut n: u64) -> Option<()> {
        let mut bytes = [0; 512];
        while n > 0 {
            let part = n.min(bytes.len() as u64) as usize;
            self.fill(bytes.get_mut(..part)?)?;
            n -= part as u64;
        }
        Some(())
    }

    /// The first bytes of a string, and its length.
    fn text(&mut self) -> Option<(Vec<u8>, u64)> {
        let len = self.u64()?;
        let mut bytes = vec![0; len.min(LONGEST) as usize];
        self.fill(&mut bytes)?;
        self.skip(len - bytes.len() as u64)?;
        Some((bytes, len))
    }

    fn skip_text(&mut self) -> Option<()> {
        let len = self.u64()?;
        self.skip(len)
    }
}

/// Reads the metadata of a file, as far as it can be read. None: it is no GGUF file of version 2 or later. `source` should
/// be buffered.
pub fn general(source: &mut dyn Read) -> Option<General> {
    let mut front = Front { source, left: MOST };
    let mut magic = [0; 4];
    front.fill(&mut magic)?;
    if magic != MAGIC || front.u32()? < 2 {
        return None;
    }
    let (_tensors, keys) = (front.u64()?, front.u64()?);
    let mut found = General::default();
    for _ in 0..keys {
        if (found.name.is_some() && found.file_type.is_some()) || entry(&mut front, &mut found).is_none() {
            break;
        }
    }
    Some(found)
}

/// Takes an entry. None: it cannot be read to its end.
fn entry(front: &mut Front<'_>, found: &mut General) -> Option<()> {
    let (key, len) = front.text()?;
    let kind = ValueKind::from_id(front.u32()?).filter(|_| len <= LONGEST)?;
    match (key.as_slice(), kind) {
        (_, ValueKind::Array) => skip_array(front),
        (b"general.name", ValueKind::String) => {
            let name = String::from_utf8_lossy(&front.text()?.0).trim().to_owned();
            found.name = Some(name).filter(|name| !name.is_empty());
            Some(())
        }
        (b"general.file_type", ValueKind::U32) => {
            found.file_type = Some(front.u32()?);
            Some(())
        }
        (_, ValueKind::String) => front.skip_text(),
        (_, kind) => front.skip(kind.size()? as u64),
    }
}

fn skip_array(front: &mut Front<'_>) -> Option<()> {
    let kind = ValueKind::from_id(front.u32()?)?;
    let len = front.u64()?;
    match (kind.size(), kind) {
        (Some(size), _) => front.skip(len.checked_mul(size as u64)?),
        // Each takes at least its length, so the bytes bound the loop.
        (None, ValueKind::String) => (0..len).try_for_each(|_| front.skip_text()),
        (None, _) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(out: &mut Vec<u8>, text: &str) {
        out.extend((text.len() as u64).to_le_bytes());
        out.extend(text.as_bytes());
    }

    fn head() -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend(9u64.to_le_bytes());
        out.extend(5u64.to_le_bytes());
        let mut string = |key: &str, value: &str| {
            text(&mut out, key);
            out.extend(8u32.to_le_bytes());
            text(&mut out, value);
        };
        string("general.architecture", "llama");
        string("general.name", " Llama 3.2 1B Instruct ");
        text(&mut out, "general.tags");
        out.extend(9u32.to_le_bytes());
        out.extend(8u32.to_le_bytes());
        out.extend(2u64.to_le_bytes());
        text(&mut out, "a");
        text(&mut out, "b");
        text(&mut out, "llama.block_count");
        out.extend(4u32.to_le_bytes());
        out.extend(16u32.to_le_bytes());
        text(&mut out, "general.file_type");
        out.extend(4u32.to_le_bytes());
        out.extend(15u32.to_le_bytes());
        out
    }

    #[test]
    fn a_head_tells_name_and_type() {
        let head = head();
        let found = general(&mut head.as_slice()).expect("a model");
        assert_eq!((found.name.as_deref(), found.file_type), (Some("Llama 3.2 1B Instruct"), Some(15)));
        // Whatever its end, the bytes before it are read.
        for end in 0..head.len() {
            let found = general(&mut &head[..end]);
            assert_eq!(found.is_some(), end >= 24, "{end}");
            assert!(found.is_none_or(|f| f.file_type.is_none()));
        }
        for at in 0..head.len() {
            let mut damaged = head.clone();
            damaged[at] = 255;
            general(&mut damaged.as_slice());
        }
        assert_eq!(general(&mut &b"GGUF\x01\0\0\0aaaaaaaabbbbbbbb"[..]), None);
    }

    #[test]
    fn types_have_names() {
        assert_eq!((file_type_name(15), file_type_name(GUESSED | 1)), (Some("Q4_K_M"), Some("F16")));
        assert_eq!((file_type_name(4), file_type_name(u32::MAX)), (None, None));
        for (file, name) in [
            ("llama-3.2-1b-instruct-q4_k_m.gguf", Some("Q4_K_M")),
            ("x.Q4_K_S.gguf", Some("Q4_K_S")),
            ("model-bf16-00001-of-00002.gguf", Some("BF16")),
            ("IQ2_XXS", Some("IQ2_XXS")),
            ("xf16.gguf", None),
            ("model.gguf", None),
            ("q4_0é", Some("Q4_0")),
        ] {
            assert_eq!(named_type(file), name, "{file}");
        }
    }
}
