//! Errors in a model file.

use crate::slots::SlotError;
use ggml::gguf::reader::GgufReadError;
use std::path::PathBuf;

/// Why a model can't be loaded. Each error names the key or tensor at fault.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    #[error("open {path}: {source}")]
    Open { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Read(#[from] GgufReadError),
    #[error("metadata '{key}' is missing: the model file is incomplete")]
    MissingKey { key: String },
    #[error("metadata '{key}': {why}")]
    Key { key: String, why: String },
    #[error("this is part {part} of a model in {parts} files: join them with llama-gguf-split --merge")]
    Part { part: u64, parts: u64 },
    #[error("architecture '{0}' is not supported; supported: llama, qwen2, qwen2moe and gemma2")]
    Architecture(String),
    #[error("tensor '{0}' is missing: the file is incomplete, or its architecture is declared wrongly")]
    MissingTensor(String),
    #[error("tensor '{name}' is {found:?}, but the metadata requires {expected:?}")]
    Shape { name: String, found: Vec<u64>, expected: Vec<u64> },
    #[error(
        "tensor '{name}' has type {found}; supported here: {supported} (requantise the model with llama-quantize)"
    )]
    Type { name: String, found: String, supported: &'static str },
    #[error(
        "tensor '{name}' is at offset {offset}, which is not a multiple of 4: write the file again with \
         aligned tensors"
    )]
    Alignment { name: String, offset: u64 },
    #[error("tensor '{name}': value {index} is not a finite number; the file is damaged")]
    NotFinite { name: String, index: usize },
    #[error("tensor '{name}' is unknown for architecture '{arch}': ignoring it would give wrong results")]
    UnknownTensor { name: String, arch: &'static str },
    #[error("tensor '{name}': {why}")]
    Kernel { name: String, why: String },
    #[error(
        "the weights need {need} MB packed and {available} MB are available: use --placement mapped, or a smaller type"
    )]
    Memory { need: u64, available: u64 },
    #[error(transparent)]
    Slots(#[from] SlotError),
}
