//! Model facts derived from its tensors. Facts that no tensor shows are left out.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::Serialize;

use crate::recorded::describe::{op_name, source, tensor_bytes, weight};
use crate::recorded::load::Loaded;
use common::order;
use ggml::names::fold;
use pfi::record::Tensor;

/// The model. Every field is null (or empty) if the recorded tensors do not show it.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ModelFacts {
    pub layers: Option<u32>,
    /// Width of the residual stream.
    pub embedding: Option<u64>,
    /// Width of a feed-forward layer (of one expert if there are experts).
    pub feed_forward: Option<u64>,
    pub vocabulary: Option<u64>,
    pub heads: Option<u64>,
    pub kv_heads: Option<u64>,
    pub head_width: Option<u64>,
    pub experts: Option<u64>,
    pub experts_used: Option<u64>,
    /// Bytes of the weights that matrix multiplications and row lookups read, by type, largest first.
    pub weights: Vec<WeightType>,
    pub weight_bytes: u64,
    pub weight_tensors: u64,
}

/// Weights of one tensor type.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WeightType {
    #[serde(rename = "type")]
    pub name: String,
    pub tensors: u64,
    /// Null if the trace does not describe the type.
    pub bytes: Option<u64>,
    pub share: Option<f64>,
}

/// Derives the facts from the tensors. Ids are visited in order, so the result does not depend on hashing.
pub fn model(loaded: &Loaded<'_>) -> ModelFacts {
    let mut ids: Vec<u32> = loaded.tensors.keys().copied().collect();
    order::by_key(&mut ids, |id| ((*id).into(), 0));
    model_of(loaded, ids)
}

/// The same for the given tensors, in this order.
pub fn model_of(loaded: &Loaded<'_>, ids: Vec<u32>) -> ModelFacts {
    let mut m = ModelFacts::default();
    let mut seen: HashSet<(u32, u64, bool)> = HashSet::new();
    // Numbers of tensors that are looked up, and that are multiplied.
    let mut tied: HashMap<(u32, &str, [u64; 4], u16), [u64; 2]> = HashMap::new();
    let mut types: BTreeMap<u16, (u64, Option<u64>)> = BTreeMap::new();
    for t in ids.iter().filter_map(|id| loaded.tensors.get(id)).filter(|t| t.known) {
        let op = op_name(loaded, t.op);
        attention(loaded, t, op, &mut m);
        let Some(w) = weight(loaded, t) else { continue };
        shape_of(loaded, t, w, op, &mut m);
        if !seen.insert((w.pid, w.addr, op == "GET_ROWS")) {
            continue;
        }
        // Tied embeddings have the same bytes in two tensors of the same name (TENSOR_DUPLICATED in llama-model.cpp), or
        // are one tensor: looked up and multiplied.
        let tied = tied.entry((w.pid, &*w.name, w.ne, w.ty)).or_default();
        let before = tied[0].max(tied[1]);
        tied[usize::from(op != "GET_ROWS")] += 1;
        if tied[0].max(tied[1]) > before {
            let bytes = tensor_bytes(loaded, w);
            let sum = types.entry(w.ty).or_insert((0, Some(0)));
            sum.0 += 1;
            sum.1 = sum.1.zip(bytes).and_then(|(a, b)| a.checked_add(b));
        }
    }
    weights(loaded, types, &mut m);
    m
}

fn weights(loaded: &Loaded<'_>, types: BTreeMap<u16, (u64, Option<u64>)>, m: &mut ModelFacts) {
    m.weight_bytes = types.values().filter_map(|(_, bytes)| *bytes).fold(0, u64::saturating_add);
    m.weight_tensors = types.values().map(|(n, _)| n).sum();
    m.weights = types
        .into_iter()
        .map(|(ty, (tensors, bytes))| WeightType {
            name: loaded.types.get(&ty).map_or_else(|| format!("type#{ty}"), |d| d.name.to_string()),
            tensors,
            bytes,
            share: bytes.filter(|_| m.weight_bytes > 0).map(|b| b as f64 / m.weight_bytes as f64),
        })
        .collect();
    order::by_key(&mut m.weights, |w| (!w.bytes.map_or(0, |b| b.saturating_add(1)), 0));
}

fn shape_of(loaded: &Loaded<'_>, t: &Tensor, w: &Tensor, op: &str, m: &mut ModelFacts) {
    let folded = fold(&w.name);
    if let Some(layer) = folded.layer {
        m.layers = m.layers.max(layer.checked_add(1));
    }
    match (op, folded.pattern.as_ref()) {
        ("GET_ROWS", "token_embd.weight") => {
            m.embedding = Some(w.ne[0]);
            m.vocabulary = Some(w.ne[1]);
        }
        ("MUL_MAT", "output.weight") => m.vocabulary = m.vocabulary.or(Some(w.ne[1])),
        ("MUL_MAT", "blk.{L}.ffn_up.weight") | ("MUL_MAT_ID", "blk.{L}.ffn_up_exps.weight") => {
            m.feed_forward = m.feed_forward.or(Some(w.ne[1]));
        }
        _ => {}
    }
    if op == "MUL_MAT_ID" {
        m.experts = m.experts.max(Some(w.ne[2]));
        m.experts_used = m.experts_used.max(source(loaded, t, 2).map(|ids| ids.ne[0]));
    }
}

/// The heads are visible where the rotation is applied to queries and keys as `[head width, heads, tokens]`.
fn attention(loaded: &Loaded<'_>, t: &Tensor, op: &str, m: &mut ModelFacts) {
    if op == "ROPE" {
        match fold(&t.name).pattern.as_ref() {
            "Qcur-{L}" => {
                m.head_width = Some(t.ne[0]);
                m.heads = Some(t.ne[1]);
            }
            "Kcur-{L}" => m.kv_heads = Some(t.ne[1]),
            _ => {}
        }
    }
    if op == "FLASH_ATTN_EXT" {
        // Queries are [head width, tokens, heads]; keys the same with their own number of heads.
        if let Some(q) = source(loaded, t, 0) {
            m.head_width = m.head_width.or(Some(q.ne[0]));
            m.heads = m.heads.or(Some(q.ne[2]));
        }
        m.kv_heads = m.kv_heads.or(source(loaded, t, 1).map(|k| k.ne[2]));
    }
}
