//! The model shapes that can be generated.

/// An architecture, named as in llama.cpp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arch {
    Llama,
    Qwen2,
    Qwen2Moe,
    Gemma2,
}

impl Arch {
    /// Value of `general.architecture`.
    pub fn name(self) -> &'static str {
        match self {
            Arch::Llama => "llama",
            Arch::Qwen2 => "qwen2",
            Arch::Qwen2Moe => "qwen2moe",
            Arch::Gemma2 => "gemma2",
        }
    }
}

/// Which experts a token chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ExpertRouting {
    /// Each expert as likely as any other.
    #[default]
    Even,
    /// The first experts of each layer much more often than the last.
    Skewed,
    /// Like even, but tokens of one [`TOPICS`]th of the vocabulary choose similar experts, and tend to follow each other.
    Topics,
}

/// Parts of the vocabulary of a model with [`ExpertRouting::Topics`].
pub const TOPICS: u64 = 4;

/// The mixture-of-experts part of a preset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertPreset {
    /// Experts per layer.
    pub count: u32,
    /// Experts used per token.
    pub used: u32,
    /// Width of one expert's feed-forward.
    pub ff: u32,
    /// Width of the shared expert's feed-forward.
    pub shared_ff: u32,
    pub routing: ExpertRouting,
}

/// A model's shape. Widths are in elements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Preset {
    pub name: &'static str,
    pub about: &'static str,
    pub arch: Arch,
    pub layers: u32,
    pub embd: u32,
    pub ff: u32,
    pub heads: u32,
    pub kv_heads: u32,
    pub head_dim: u32,
    pub vocab: u32,
    pub context: u32,
    /// The output matrix is the token embedding.
    pub tied: bool,
    pub rope_base: f32,
    pub experts: Option<ExpertPreset>,
}

/// LLaMA-3.2-1B: 16 layers, full vocabulary.
const LLAMA_1B: Preset = Preset {
    name: "llama1b",
    about: "LLaMA-3.2-1B shape, complete",
    arch: Arch::Llama,
    layers: 16,
    embd: 2048,
    ff: 8192,
    heads: 32,
    kv_heads: 8,
    head_dim: 64,
    vocab: 128_256,
    context: 8192,
    tied: true,
    rope_base: 500_000.0,
    experts: None,
};

const TINY: Preset = Preset {
    name: "tiny",
    about: "small llama for quick tests",
    arch: Arch::Llama,
    layers: 6,
    embd: 256,
    ff: 768,
    heads: 8,
    kv_heads: 4,
    head_dim: 32,
    vocab: 4096,
    context: 2048,
    tied: false,
    rope_base: 500_000.0,
    experts: None,
};

/// Every preset, smallest first in each family.
pub static PRESETS: [Preset; 7] = [
    TINY,
    Preset {
        name: "qwen2-tiny",
        about: "small qwen2 for quick tests (biases in attention)",
        arch: Arch::Qwen2,
        rope_base: 1_000_000.0,
        tied: true,
        ..TINY
    },
    Preset {
        name: "moe",
        about: "small qwen2moe: 60 experts, 4 used, one shared",
        arch: Arch::Qwen2Moe,
        layers: 4,
        embd: 512,
        ff: 1024,
        heads: 8,
        kv_heads: 8,
        head_dim: 64,
        rope_base: 10_000.0,
        experts: Some(ExpertPreset {
            count: 60,
            used: 4,
            ff: 256,
            shared_ff: 1024,
            routing: ExpertRouting::Even,
        }),
        ..TINY
    },
    Preset {
        name: "gemma2",
        about: "small gemma2: soft-capping, sliding window",
        arch: Arch::Gemma2,
        layers: 4,
        embd: 768,
        ff: 3072,
        heads: 4,
        kv_heads: 2,
        head_dim: 256,
        vocab: 16_000,
        context: 4096,
        tied: true,
        rope_base: 10_000.0,
        experts: None,
    },
    Preset {
        name: "llama1b-L4",
        about: "LLaMA-3.2-1B shape, 4 of 16 layers, vocabulary of 32000",
        layers: 4,
        vocab: 32_000,
        ..LLAMA_1B
    },
    Preset { name: "llama1b-L12", about: "LLaMA-3.2-1B shape, 12 of 16 layers", layers: 12, ..LLAMA_1B },
    LLAMA_1B,
];

/// The preset with this name.
pub fn find(name: &str) -> Option<&'static Preset> {
    PRESETS.iter().find(|p| p.name == name)
}
