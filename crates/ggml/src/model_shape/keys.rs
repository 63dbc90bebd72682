//! Numbers from a model's metadata, checked. Keys and defaults are those of llama.cpp (src/llama-model.cpp).

use super::{ARCHITECTURES, AttentionShape, AttentionWindow, ExpertCount, MAX_WIDTH, ShapeError};
use crate::gguf::reader::{Gguf, GgufValue};

/// Most experts of a layer.
const MAX_EXPERTS: u64 = 4096;

/// The keys of one architecture.
pub(super) struct Keys<'a, 'f> {
    file: &'a Gguf<'f>,
    pub arch: &'f str,
}

impl<'a, 'f> Keys<'a, 'f> {
    pub fn new(file: &'a Gguf<'f>) -> Result<Self, ShapeError> {
        let key = "general.architecture";
        let arch = match file.get(key) {
            None => return Err(ShapeError::Missing(key.into())),
            Some(GgufValue::Str(arch)) => *arch,
            Some(_) => return Err(ShapeError::Key { key: key.into(), why: "must be a string".into() }),
        };
        if !ARCHITECTURES.contains(&arch) {
            return Err(ShapeError::Architecture(arch.chars().take(64).collect()));
        }
        Ok(Self { file, arch })
    }

    /// The model's name.
    pub fn title(&self) -> String {
        match self.file.get("general.name") {
            Some(GgufValue::Str(name)) => name.chars().take(128).collect(),
            _ => String::new(),
        }
    }

    fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.arch)
    }

    pub fn bad(&self, key: &str, why: impl Into<String>) -> ShapeError {
        ShapeError::Key { key: self.name(key), why: why.into() }
    }

    fn in_range(&self, key: &str, value: Option<u64>, least: u64, most: u64) -> Result<u64, ShapeError> {
        match value {
            Some(n) if (least..=most).contains(&n) => Ok(n),
            Some(n) => Err(self.bad(key, format!("{n} is not in the range from {least} to {most}"))),
            None => Err(self.bad(key, "must be an integer")),
        }
    }

    /// A number, if it is given.
    pub fn find(&self, key: &str, least: u64, most: u64) -> Result<Option<u64>, ShapeError> {
        let value = self.file.get(&self.name(key));
        value.map(|v| self.in_range(key, v.as_u64(), least, most)).transpose()
    }

    pub fn number(&self, key: &str, least: u64, most: u64) -> Result<u64, ShapeError> {
        self.find(key, least, most)?.ok_or_else(|| ShapeError::Missing(self.name(key)))
    }

    pub fn number_or(&self, key: &str, default: u64, least: u64, most: u64) -> Result<u64, ShapeError> {
        Ok(self.find(key, least, most)?.unwrap_or(default))
    }

    /// A number for each layer; a single one is that of all.
    fn each(&self, key: &str, layers: u64) -> Result<Option<Vec<u64>>, ShapeError> {
        match self.file.get(&self.name(key)) {
            None => Ok(None),
            Some(GgufValue::Array(list)) => {
                let of = |v: GgufValue<'_>| self.in_range(key, v.as_u64(), 1, MAX_WIDTH);
                let all: Vec<u64> = list.values().take(layers as usize).map(of).collect::<Result<_, _>>()?;
                if all.len() as u64 != layers {
                    return Err(self.bad(key, format!("has {} numbers for {layers} layers", all.len())));
                }
                Ok(Some(all))
            }
            Some(one) => {
                let one = self.in_range(key, one.as_u64(), 1, MAX_WIDTH)?;
                Ok(Some(vec![one; layers as usize]))
            }
        }
    }

    pub fn experts(&self) -> Result<Option<ExpertCount>, ShapeError> {
        let all = self.number_or("expert_count", 0, 0, MAX_EXPERTS)?;
        if all == 0 {
            return Ok(None);
        }
        Ok(Some(ExpertCount { all, used: self.number("expert_used_count", 1, all)? }))
    }

    pub fn attention(&self, embd: u64, layers: u64) -> Result<AttentionShape, ShapeError> {
        let key = "attention.head_count";
        let heads = self.each(key, layers)?.ok_or_else(|| ShapeError::Missing(self.name(key)))?;
        let kv = self.each("attention.head_count_kv", layers)?.unwrap_or_else(|| heads.clone());
        let heads = heads.into_iter().max().unwrap_or(1);
        let width = match self.find("attention.key_length", 1, MAX_WIDTH)? {
            Some(width) => width,
            None if embd.is_multiple_of(heads) => embd / heads,
            None => return Err(self.bad(key, format!("{heads} heads do not divide the width {embd}"))),
        };
        let value = self.number_or("attention.value_length", width, 1, MAX_WIDTH)?;
        let kv_heads = kv.into_iter().fold(0u64, u64::saturating_add);
        Ok(AttentionShape { heads, kv_heads, key: width, value, window: self.window(layers)? })
    }

    /// Of each `pattern` layers, all but one are windowed.
    fn window(&self, layers: u64) -> Result<Option<AttentionWindow>, ShapeError> {
        let default = match self.arch {
            "gemma2" => Some((4096, 2)),
            "gemma3" => Some((1024, 6)),
            _ => None,
        };
        let Some((tokens, pattern)) = default else { return Ok(None) };
        let tokens = self.number_or("attention.sliding_window", tokens, 1, 1 << 40)?;
        Ok(Some(AttentionWindow { tokens, layers: layers - layers / pattern }))
    }
}
