//! The memory that a model needs: weights, KV cache, and the buffer of a graph's intermediate results.

use serde::Serialize;

use super::PredictOptions;
use ggml::model_shape::ModelShape;

/// Engines round the cache up to this many positions (llama.cpp).
const PADDING: u64 = 256;

/// Bytes needed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MemoryNeed {
    /// All tensors of the file, each held once.
    pub weights: u64,
    /// Keys and values of the whole context; at most this much where layers see a window only.
    pub cache: u64,
    /// An estimate.
    pub compute: u64,
    pub compute_rule: &'static str,
    pub total: u64,
    /// Of the machine, or the limit of the cgroup in which this was asked if that is less; null if not known.
    pub available: Option<u64>,
    /// Whether the total is less than that; null if not known.
    pub fits: Option<bool>,
}

/// How the graph's buffer is estimated; holds for llama.cpp, which reserves it for the largest batch.
const RULE: &str =
    "the larger of logits and feed-forward for a batch of --ubatch tokens, in 4 bytes an element";
const RULE_SCORES: &str =
    "the largest of logits, feed-forward and scores for a batch of --ubatch tokens, in 4 bytes an element";

/// The memory needed.
pub fn need(shape: &ModelShape, options: &PredictOptions) -> MemoryNeed {
    let cells = options.context.checked_next_multiple_of(PADDING).unwrap_or(options.context);
    let elements = shape.cache_elements().saturating_mul(cells);
    let cache = (elements as f64 * options.cache.bytes_each()) as u64;
    let logits = shape.vocab.saturating_add(shape.embd);
    let layer = shape.widest().saturating_mul(2).saturating_add(shape.embd.saturating_mul(2));
    let scores = if options.flash { 0 } else { shape.attention.heads.saturating_mul(cells) };
    let batch = options.ubatch.min(cells);
    let compute = logits.max(layer).max(scores).saturating_mul(batch).saturating_mul(4);
    let total = shape.stored.saturating_add(cache).saturating_add(compute);
    MemoryNeed {
        weights: shape.stored,
        cache,
        compute,
        compute_rule: if options.flash { RULE } else { RULE_SCORES },
        total,
        available: options.memory,
        fits: options.memory.map(|n| total < n),
    }
}
