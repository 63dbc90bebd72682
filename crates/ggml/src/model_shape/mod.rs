//! What a model computes and reads for a token, from the head of its GGUF file: the matrices that each token is
//! multiplied with, the width of attention, and the KV cache.
//!
//! This holds for decoder-only transformers whose layers use each of their matrices once per token, and the chosen
//! experts of a mixture ([`ARCHITECTURES`]). The figures come from the tensors, not from formulas per architecture.

mod keys;

use std::collections::{BTreeMap, BTreeSet};

use crate::gguf::reader::{Gguf, GgufTensor};
use crate::gguf::types::StoredType;
use crate::names::fold;
use keys::Keys;

/// Values of `general.architecture` whose layers are of the kind described above.
pub const ARCHITECTURES: [&str; 21] = [
    "baichuan",
    "command-r",
    "gemma",
    "gemma2",
    "gemma3",
    "granite",
    "granitemoe",
    "internlm2",
    "llama",
    "mistral3",
    "olmo",
    "olmo2",
    "olmoe",
    "phi3",
    "qwen2",
    "qwen2moe",
    "qwen3",
    "qwen3moe",
    "smollm3",
    "stablelm",
    "starcoder2",
];

/// Most layers (LLAMA_MAX_LAYERS).
const MAX_LAYERS: u64 = 512;
/// Larger than any dimension of a real model.
const MAX_WIDTH: u64 = 1 << 24;
/// Most bytes of a model; keeps sums within 64 bits.
const MAX_BYTES: u64 = 1 << 50;

/// Why the head of a file is not enough.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    #[error("metadata '{0}' is missing: the file is not a model that can be predicted")]
    Missing(String),
    #[error("metadata '{key}': {why}")]
    Key { key: String, why: String },
    #[error("architecture '{0}' is not known here, so what it computes per token is not known; known: {list}", list = ARCHITECTURES.join(", "))]
    Architecture(String),
    #[error("tensor '{name}' of {elements} elements has type number {id}, whose size is not known")]
    Type { name: String, id: u32, elements: u64 },
    #[error("tensor '{name}': {why}")]
    Tensor { name: String, why: &'static str },
    #[error("no matrix of layer {0} is described: is a part of the model missing?")]
    Layer(u64),
    #[error("tensor '{0}' is missing")]
    NoTensor(&'static str),
    #[error("the model would have more than {MAX_BYTES} bytes")]
    Size,
}

/// Experts of a matrix: all, and those that a token uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ExpertCount {
    pub all: u64,
    pub used: u64,
}

/// Equal matrices that a token is multiplied with: one per layer, or the output head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightProduct {
    /// `blk.{L}.attn_q.weight`.
    pub name: String,
    pub ty: StoredType,
    /// Elements of an input and of a result.
    pub k: u64,
    pub m: u64,
    pub experts: Option<ExpertCount>,
    /// Matrices of this kind.
    pub count: u64,
    /// Only tokens whose logits are wanted are multiplied with it.
    pub head: bool,
}

impl WeightProduct {
    /// Experts that `tokens` tokens use; 1 for a matrix without experts. Experts are assumed distinct until all
    /// are in use.
    pub fn used(&self, tokens: u64) -> f64 {
        self.experts.map_or(1.0, |e| e.used as f64 * tokens.max(1) as f64).min(self.stacked())
    }

    fn stacked(&self) -> f64 {
        self.experts.map_or(1.0, |e| e.all as f64)
    }

    /// Bytes of weights that one such product reads for `tokens` tokens.
    pub fn bytes(&self, tokens: u64) -> f64 {
        self.k as f64 * self.m as f64 * self.ty.bytes_each() * self.used(tokens)
    }

    /// Operations of one such product for a token; a multiply-add is two.
    pub fn flops(&self) -> f64 {
        2.0 * self.k as f64 * self.m as f64 * self.experts.map_or(1.0, |e| e.used as f64)
    }
}

/// Layers that see only the last tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionWindow {
    pub tokens: u64,
    pub layers: u64,
}

/// Attention, and what it keeps of each token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttentionShape {
    pub heads: u64,
    /// Heads of keys and values, all layers together.
    pub kv_heads: u64,
    /// Elements of a key and of a value.
    pub key: u64,
    pub value: u64,
    pub window: Option<AttentionWindow>,
}

/// The shape of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelShape {
    pub arch: String,
    /// `general.name`; empty if there is none.
    pub name: String,
    pub layers: u64,
    pub embd: u64,
    pub vocab: u64,
    /// Tokens that it was trained for; `None` if the file does not say.
    pub context: Option<u64>,
    pub attention: AttentionShape,
    pub experts: Option<ExpertCount>,
    pub products: Vec<WeightProduct>,
    /// Names of all tensors in use, with `{L}` for the layer.
    pub tensors: BTreeSet<String>,
    /// Bytes of all tensors.
    pub stored: u64,
    /// Bytes of matrices that a token of text does not read, by the first word of their names: of a vision or audio
    /// encoder (`v`, `a`, `mm`), of a head for several tokens ahead (`mtp`), of embeddings (`dense_2`).
    pub aside: BTreeMap<String, u64>,
    /// Bytes of a row of the token table.
    pub row: u64,
}

impl ModelShape {
    /// Reads the shape from the heads of all parts of a model; the first has the metadata.
    ///
    /// # Errors
    /// The first thing that is missing, contradictory or not known.
    pub fn read(parts: &[Gguf<'_>]) -> Result<ModelShape, ShapeError> {
        let first = parts.first().ok_or_else(|| ShapeError::Missing("general.architecture".into()))?;
        let keys = Keys::new(first)?;
        let blocks = keys.number("block_count", 1, MAX_LAYERS)?;
        let extra = keys.number_or("nextn_predict_layers", 0, 0, MAX_LAYERS)?;
        let layers = blocks.checked_sub(extra).filter(|n| *n > 0);
        let layers = layers.ok_or_else(|| keys.bad("nextn_predict_layers", "leaves no layer"))?;
        let embd = keys.number("embedding_length", 1, MAX_WIDTH)?;
        let experts = keys.experts()?;
        let mut out = Tensors { layers, experts, ..Tensors::default() };
        for tensor in parts.iter().flat_map(|p| &p.tensors) {
            out.take(tensor)?;
        }
        let (vocab, row) = out.finish()?;
        Ok(ModelShape {
            arch: keys.arch.to_owned(),
            name: keys.title(),
            layers,
            embd,
            vocab,
            context: keys.find("context_length", 1, 1 << 40)?,
            attention: keys.attention(embd, layers)?,
            experts,
            products: out.products.into_values().collect(),
            tensors: out.names,
            stored: out.stored,
            aside: out.aside,
            row,
        })
    }

    /// Bytes of weights read for a token of decoding.
    pub fn bytes_a_token(&self) -> f64 {
        self.products.iter().map(|p| p.bytes(1) * p.count as f64).sum::<f64>() + self.row as f64
    }

    /// Operations of a token's products: on quantised weights (in 8-bit integers), and on others.
    pub fn flops_a_token(&self) -> (f64, f64) {
        // A sum of no numbers would be -0.
        let of = |int8: bool| {
            let some = self.products.iter().filter(|p| (p.ty.block > 1) == int8);
            some.fold(0.0, |sum, p| sum + p.flops() * p.count as f64)
        };
        (of(true), of(false))
    }

    /// Elements kept in the KV cache for a token.
    pub fn cache_elements(&self) -> u64 {
        self.attention.kv_heads.saturating_mul(self.attention.key.saturating_add(self.attention.value))
    }

    /// Positions that a layer attends to on average, if the context has `tokens`.
    pub fn attended(&self, tokens: f64) -> f64 {
        let Some(w) = self.attention.window else { return tokens };
        let layers = self.layers as f64;
        let windowed = (w.layers as f64).min(layers);
        (windowed * tokens.min(w.tokens as f64) + (layers - windowed) * tokens) / layers
    }

    /// The type that has most of the bytes read per token.
    pub fn main_type(&self) -> &'static str {
        let mut sums: BTreeMap<&'static str, f64> = BTreeMap::new();
        for p in &self.products {
            *sums.entry(p.ty.name).or_default() += p.bytes(1) * p.count as f64;
        }
        sums.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).map_or("", |(name, _)| name)
    }

    /// The widest result of a product, elements per token; the output head is left out.
    pub fn widest(&self) -> u64 {
        let wide = |p: &WeightProduct| p.m.saturating_mul(p.experts.map_or(1, |e| e.used));
        self.products.iter().filter(|p| !p.head).map(wide).max().unwrap_or(0).max(self.embd)
    }
}

type ProductKey = (String, u32, u64, u64);

#[derive(Default)]
struct Tensors {
    layers: u64,
    experts: Option<ExpertCount>,
    products: BTreeMap<ProductKey, WeightProduct>,
    names: BTreeSet<String>,
    stored: u64,
    aside: BTreeMap<String, u64>,
    seen_layers: BTreeSet<u64>,
    /// The token table, and the output matrix.
    table: Option<(StoredType, [u64; 2])>,
    head: bool,
}

/// Only rows of these are read.
const TABLES: [&str; 3] = ["token_embd.weight", "position_embd.weight", "token_types.weight"];
const HEAD: &str = "output.weight";

impl Tensors {
    fn take(&mut self, t: &GgufTensor<'_>) -> Result<(), ShapeError> {
        let wrong = |why| ShapeError::Tensor { name: t.name.to_owned(), why };
        let elements = t.dims.into_iter().try_fold(1u64, u64::checked_mul).unwrap_or(u64::MAX);
        if elements == 0 {
            return Ok(());
        }
        let ty = StoredType::from_id(t.type_id).ok_or_else(|| ShapeError::Type {
            name: t.name.to_owned(),
            id: t.type_id,
            elements,
        })?;
        let [k, m, stacked, last] = t.dims;
        let rows = [m, stacked, last].into_iter().try_fold(1u64, u64::checked_mul);
        let row = ty.row_bytes(k).ok_or_else(|| wrong("its rows are not whole blocks"))?;
        let bytes = rows.and_then(|n| n.checked_mul(row)).filter(|n| *n < MAX_BYTES);
        let bytes = bytes.ok_or_else(|| wrong("its size is absurd"))?;
        self.stored = self.stored.checked_add(bytes).filter(|n| *n < MAX_BYTES).ok_or(ShapeError::Size)?;
        let folded = fold(t.name);
        let layer = folded.layer.map(u64::from).filter(|_| t.name.starts_with("blk."));
        // Layers that predict several tokens ahead are not computed.
        if layer.is_some_and(|l| l >= self.layers) {
            return Ok(());
        }
        if layer.is_none() && t.dim_count > 1 && t.name != HEAD && !TABLES.contains(&t.name) {
            let word = t.name.split('.').next().unwrap_or(t.name).to_owned();
            let sum = self.aside.entry(word).or_default();
            *sum = sum.saturating_add(bytes);
            return Ok(());
        }
        let name = folded.pattern.into_owned();
        self.names.insert(name.clone());
        if t.name == TABLES[0] {
            self.table = Some((ty, [k, m]));
        }
        // A product with a vector is as cheap as other small ops.
        if TABLES.contains(&t.name) || !t.name.ends_with(".weight") || m < 2 {
            return Ok(());
        }
        self.seen_layers.extend(layer);
        let experts = match (stacked.checked_mul(last), self.experts) {
            (Some(1), _) => None,
            (Some(n), Some(e)) if n == e.all && t.name.ends_with("_exps.weight") => Some(e),
            _ => return Err(wrong("it is neither a matrix nor the experts that the metadata announces")),
        };
        let head = t.name == HEAD;
        self.head |= head;
        self.add(WeightProduct { name, ty, k, m, experts, count: 1, head });
        Ok(())
    }

    fn add(&mut self, p: WeightProduct) {
        let key = (p.name.clone(), p.ty.id, p.k, p.m);
        self.products.entry(key).and_modify(|old| old.count += 1).or_insert(p);
    }

    /// Rows of the token table, and the bytes of one.
    fn finish(&mut self) -> Result<(u64, u64), ShapeError> {
        let (ty, [k, m]) = self.table.ok_or(ShapeError::NoTensor(TABLES[0]))?;
        if let Some(missing) = (0..self.layers).find(|l| !self.seen_layers.contains(l)) {
            return Err(ShapeError::Layer(missing));
        }
        if !self.head {
            // The token table serves as the output matrix, too.
            let name = TABLES[0].to_owned();
            self.add(WeightProduct { name, ty, k, m, experts: None, count: 1, head: true });
        }
        Ok((m, ty.row_bytes(k).unwrap_or(0)))
    }
}

#[cfg(test)]
mod tests;
