//! Reads and checks a model's hyper-parameters from a GGUF file's metadata.
//!
//! Keys and defaults are those of llama.cpp (src/llama-model.cpp, `load_hparams`). Whether the numbers match the
//! tensors is checked when those are loaded, which bounds every width by the size of the file.

use super::error::ModelError;
pub use crate::synth::GraphForm;
pub use crate::synth::presets::Arch;
use ggml::gguf::reader::{Gguf, GgufValue};

/// Most layers (LLAMA_MAX_LAYERS).
const MAX_LAYERS: u64 = 512;
/// Most experts (LLAMA_MAX_EXPERTS).
const MAX_EXPERTS: u64 = 512;
/// Most experts per token: their results are added one by one, each with separate nodes.
pub(super) const MAX_USED: usize = 64;
/// Larger than any dimension of a real model; keeps products of two within 64 bits.
const MAX_WIDTH: u64 = 1 << 24;
/// Longest head that the attention kernels support, elements.
const MAX_HEAD: u64 = 1024;
/// Number of layers of the gemma2 model that scales attention by its width (27B).
const GEMMA2_27B_LAYERS: usize = 46;

/// The mixture-of-experts part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertParams {
    pub count: usize,
    /// Experts used per token.
    pub used: usize,
    /// Width of an expert's feed-forward.
    pub ff: usize,
    /// Width of the shared expert's feed-forward.
    pub shared_ff: usize,
}

/// Shape and constants of a model. Widths are in elements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Params {
    pub arch: Arch,
    /// How the nodes of its graph are written.
    pub form: GraphForm,
    pub layers: usize,
    pub embd: usize,
    pub ff: usize,
    pub heads: usize,
    /// Divides `heads`.
    pub kv_heads: usize,
    /// Head size of keys and values; even.
    pub head_dim: usize,
    /// Longest context that the model was trained for, tokens.
    pub context: usize,
    pub norm_eps: f32,
    pub rope_base: f32,
    /// Factor for positions.
    pub rope_scale: f32,
    /// Factor for attention scores.
    pub attention_scale: f32,
    /// Attention scores s become cap·tanh(s / cap); 0 for none.
    pub attention_cap: f32,
    /// The same for the logits.
    pub logit_cap: f32,
    /// Window of every second layer in tokens, including the current one.
    pub window: Option<usize>,
    pub experts: Option<ExpertParams>,
}

impl Params {
    /// Width of all query heads together.
    pub fn q_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Width of all key heads, or value heads, together.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Whether rotary embedding pairs an element with the one half a head away instead of its neighbour.
    pub fn rope_is_neox(&self) -> bool {
        self.arch != Arch::Llama
    }

    /// Whether this layer sees only the window. In gemma2 these are the even layers.
    pub fn is_windowed(&self, layer: usize) -> bool {
        self.window.is_some() && layer.is_multiple_of(2)
    }

    /// Reads and checks the metadata.
    ///
    /// # Errors
    /// The first key that is missing, has the wrong kind, is out of range or contradicts another.
    pub fn read(file: &Gguf<'_>) -> Result<Self, ModelError> {
        let keys = Keys::new(file)?;
        let (arch, layers) = (keys.arch, keys.width("block_count", MAX_LAYERS)?);
        let embd = keys.width("embedding_length", MAX_WIDTH)?;
        let heads = keys.width("attention.head_count", MAX_WIDTH)?;
        let kv_heads = keys.width_or("attention.head_count_kv", heads, MAX_WIDTH)?;
        if !heads.is_multiple_of(kv_heads) {
            return Err(
                keys.bad("attention.head_count_kv", format!("{kv_heads} does not divide {heads} heads"))
            );
        }
        let head_dim = keys.head_dim(embd, heads)?;
        let ff = keys.width("feed_forward_length", MAX_WIDTH)?;
        let experts = keys.experts(ff)?;
        let plain = 1.0 / (head_dim as f32).sqrt();
        let gemma2 = arch == Arch::Gemma2;
        let attention_scale = match arch {
            Arch::Gemma2 if layers == GEMMA2_27B_LAYERS => 1.0 / ((embd / heads) as f32).sqrt(),
            Arch::Llama => keys.positive("attention.scale", plain)?,
            _ => plain,
        };
        Ok(Self {
            arch,
            form: keys.form()?,
            layers,
            embd,
            ff,
            heads,
            kv_heads,
            head_dim,
            context: keys.width("context_length", i32::MAX as u64)?,
            norm_eps: keys.required_positive("attention.layer_norm_rms_epsilon")?,
            rope_base: keys.positive("rope.freq_base", 10_000.0)?,
            rope_scale: keys.rope_scale()?,
            attention_scale,
            attention_cap: if gemma2 { keys.positive("attn_logit_softcapping", 50.0)? } else { 0.0 },
            logit_cap: if gemma2 { keys.positive("final_logit_softcapping", 30.0)? } else { 0.0 },
            window: gemma2.then(|| keys.width_or("attention.sliding_window", 4096, MAX_WIDTH)).transpose()?,
            experts,
        })
    }
}

/// The keys of one architecture.
struct Keys<'a, 'f> {
    file: &'a Gguf<'f>,
    arch: Arch,
}

impl<'a, 'f> Keys<'a, 'f> {
    fn new(file: &'a Gguf<'f>) -> Result<Self, ModelError> {
        let number = |key| file.get(key).and_then(|value| value.as_u64());
        if let Some(parts) = number("split.count").filter(|parts| *parts > 1) {
            let part = number("split.no").unwrap_or(0).saturating_add(1);
            return Err(ModelError::Part { part, parts });
        }
        let key = "general.architecture";
        let name = match file.get(key) {
            None => return Err(ModelError::MissingKey { key: key.to_owned() }),
            Some(GgufValue::Str(name)) => *name,
            Some(_) => {
                return Err(ModelError::Key { key: key.to_owned(), why: "must be a string".to_owned() });
            }
        };
        let all = [Arch::Llama, Arch::Qwen2, Arch::Qwen2Moe, Arch::Gemma2];
        let arch = all.into_iter().find(|a| a.name() == name);
        Ok(Self { file, arch: arch.ok_or_else(|| ModelError::Architecture(name.to_owned()))? })
    }

    fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.arch.name())
    }

    fn bad(&self, key: &str, why: String) -> ModelError {
        ModelError::Key { key: self.name(key), why }
    }

    fn missing(&self, key: &str) -> ModelError {
        ModelError::MissingKey { key: self.name(key) }
    }

    /// How the graph is written.
    fn form(&self) -> Result<GraphForm, ModelError> {
        let bad = |why: String| ModelError::Key { key: GraphForm::KEY.to_owned(), why };
        match self.file.get(GraphForm::KEY) {
            None => Ok(GraphForm::default()),
            Some(GgufValue::Str(name)) => {
                let known = GraphForm::ALL.map(GraphForm::name).join(" and ");
                let form = GraphForm::ALL.into_iter().find(|form| form.name() == *name);
                form.ok_or_else(|| bad(format!("'{name}' is not supported; supported: {known}")))
            }
            Some(_) => Err(bad("must be a string".to_owned())),
        }
    }

    /// A number from 1 to `max`. An array with one number per layer is accepted if all are equal.
    fn find_width(&self, key: &str, max: u64) -> Result<Option<usize>, ModelError> {
        let Some(value) = self.file.get(&self.name(key)) else { return Ok(None) };
        let number = match value {
            GgufValue::Array(list) => {
                let mut values = list.values().map(|v| v.as_u64());
                let first = values.next().flatten();
                if !values.all(|v| v == first) {
                    return Err(self.bad(key, "layers of different widths are not supported".to_owned()));
                }
                first
            }
            one => one.as_u64(),
        };
        match number {
            Some(n @ 1..) if n <= max => Ok(usize::try_from(n).ok()),
            Some(n) => Err(self.bad(key, format!("{n} is not in the range from 1 to {max}"))),
            None => Err(self.bad(key, "must be an integer".to_owned())),
        }
    }

    fn width(&self, key: &str, max: u64) -> Result<usize, ModelError> {
        self.find_width(key, max)?.ok_or_else(|| self.missing(key))
    }

    fn width_or(&self, key: &str, default: usize, max: u64) -> Result<usize, ModelError> {
        Ok(self.find_width(key, max)?.unwrap_or(default))
    }

    fn find_positive(&self, key: &str) -> Result<Option<f32>, ModelError> {
        match self.file.get(&self.name(key)) {
            None => Ok(None),
            Some(GgufValue::F32(v)) if v.is_finite() && *v > 0.0 => Ok(Some(*v)),
            Some(v) => Err(self.bad(key, format!("{v:?} is not a positive f32 number"))),
        }
    }

    fn positive(&self, key: &str, default: f32) -> Result<f32, ModelError> {
        Ok(self.find_positive(key)?.unwrap_or(default))
    }

    fn required_positive(&self, key: &str) -> Result<f32, ModelError> {
        self.find_positive(key)?.ok_or_else(|| self.missing(key))
    }

    fn head_dim(&self, embd: usize, heads: usize) -> Result<usize, ModelError> {
        let key = "attention.key_length";
        let head_dim = match self.find_width(key, MAX_HEAD)? {
            Some(n) => n,
            None if embd.is_multiple_of(heads) => embd / heads,
            None => {
                return Err(
                    self.bad("attention.head_count", format!("{heads} does not divide the width {embd}"))
                );
            }
        };
        for other in ["attention.value_length", "rope.dimension_count"] {
            let n = self.width_or(other, head_dim, MAX_WIDTH)?;
            if n != head_dim {
                return Err(self.bad(other, format!("{n} is not supported for heads of {head_dim}")));
            }
        }
        if !head_dim.is_multiple_of(2) || head_dim as u64 > MAX_HEAD {
            return Err(self.bad(key, format!("heads of {head_dim} are odd or wider than {MAX_HEAD}")));
        }
        Ok(head_dim)
    }

    fn experts(&self, ff: usize) -> Result<Option<ExpertParams>, ModelError> {
        let count = match self.file.get(&self.name("expert_count")).map(GgufValue::as_u64) {
            None | Some(Some(0)) => None,
            Some(_) => self.find_width("expert_count", MAX_EXPERTS)?,
        };
        match (self.arch, count) {
            (Arch::Qwen2Moe, None) => Err(self.missing("expert_count")),
            (Arch::Qwen2Moe, Some(count)) => {
                let used = self.width("expert_used_count", (count as u64).min(MAX_USED as u64))?;
                let key = "expert_feed_forward_length";
                let width = self.width_or(key, ff / used, MAX_WIDTH)?;
                if width == 0 {
                    return Err(
                        self.bad(key, format!("is missing, and {ff} is too small for {used} experts"))
                    );
                }
                Ok(Some(ExpertParams {
                    count,
                    used,
                    ff: width,
                    shared_ff: self.width_or("expert_shared_feed_forward_length", ff, MAX_WIDTH)?,
                }))
            }
            (_, Some(n)) => {
                Err(self.bad("expert_count", format!("{n} experts: experts are supported for qwen2moe only")))
            }
            (_, None) => Ok(None),
        }
    }

    /// 1 / factor of linear scaling; other kinds of scaling change more than a factor.
    fn rope_scale(&self) -> Result<f32, ModelError> {
        let kind = match self.file.get(&self.name("rope.scaling.type")) {
            None => "linear",
            Some(GgufValue::Str(kind)) => kind,
            Some(_) => return Err(self.bad("rope.scaling.type", "must be a string".to_owned())),
        };
        match kind {
            "none" => Ok(1.0),
            "linear" => {
                let factor = match self.find_positive("rope.scaling.factor")? {
                    Some(factor) => factor,
                    None => self.positive("rope.scale_linear", 1.0)?,
                };
                Ok(1.0 / factor)
            }
            other => {
                Err(self.bad("rope.scaling.type", format!("'{other}' is not supported; supported: 'linear'")))
            }
        }
    }
}
