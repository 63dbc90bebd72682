//! Builds the graphs of the architectures, node by node as in llama.cpp (src/models/), or as an exporter writes them.

use super::builder::{GraphBuilder, Inputs};
use super::space::NodePtr;
use super::weights::{ExpertTensors, FeedForward, LayerWeights, Second};
use super::{Arch, GraphForm, Params};
use crate::abi::{GluOp, Op, UnaryOp};

/// Most tensors per layer: those of the longest layer below, plus two for each expert of a token.
const LAYER_TENSORS: usize = 64;
/// Most tensors outside of layers.
const OTHER_TENSORS: usize = 32;
/// How many times as many an exported graph has at most: norms are nine nodes instead of two, and may be there twice.
const EXPORTED: usize = 2;

/// Most tensors of a model's graph.
pub(super) fn most_tensors(p: &Params) -> usize {
    let used = p.experts.map_or(0, |e| e.used);
    let most = p.layers * (LAYER_TENSORS + 2 * used) + OTHER_TENSORS;
    if p.form == GraphForm::Exported { EXPORTED * most } else { most }
}

/// Builds the complete graph; returns its inputs and the logits.
pub(super) fn build(b: &mut GraphBuilder<'_>) -> (Inputs, NodePtr) {
    let inputs = b.inputs();
    let mut x = b.embed(&inputs);
    let gemma2 = b.p.arch == Arch::Gemma2;
    if gemma2 {
        x = b.scale(x, (b.p.embd as f32).sqrt(), format_args!("inp_scaled"));
    }
    for (l, layer) in b.weights.layers.iter().enumerate() {
        x = if gemma2 { gemma2_layer(b, &inputs, x, l, layer) } else { plain_layer(b, &inputs, x, l, layer) };
    }
    let x = b.norm(x, b.weights.output_norm, None, format_args!("result_norm"));
    b.output(x);
    let logits = head(b, x);
    b.output(logits);
    (inputs, logits)
}

/// The output matrix; gemma2 caps its result.
fn head(b: &mut GraphBuilder<'_>, x: NodePtr) -> NodePtr {
    let cap = b.p.logit_cap;
    if cap == 0.0 {
        return b.mul_mat(b.weights.output, x, format_args!("result_output"));
    }
    let n = b.number();
    let x = b.mul_mat(b.weights.output, x, format_args!("node_{n}"));
    let x = b.scale(x, 1.0 / cap, format_args!("node_{}", n + 1));
    let x = b.unary(UnaryOp::TANH, x, format_args!("node_{}", n + 2));
    b.scale(x, cap, format_args!("result_output"))
}

/// A product with its bias, split into heads.
fn heads(b: &mut GraphBuilder<'_>, x: NodePtr, count: usize, name: std::fmt::Arguments<'_>) -> NodePtr {
    let (dim, tokens) = (b.p.head_dim, b.shape.tokens);
    b.reshape(x, [dim, count, tokens], name)
}

/// llama, qwen2, qwen2moe.
fn plain_layer(
    b: &mut GraphBuilder<'_>,
    inputs: &Inputs,
    x: NodePtr,
    l: usize,
    layer: &LayerWeights,
) -> NodePtr {
    let (q_heads, kv_heads) = (b.p.heads, b.p.kv_heads);
    let h = b.norm(x, layer.attn_norm, Some(l), format_args!("attn_norm-{l}"));
    let q = b.mul_mat(layer.q, h, format_args!("Qcur-{l}"));
    let h = b.same_norm(h, x, layer.attn_norm, l, format_args!("attn_norm-{l} (copy)"));
    let q = b.bias(q, layer.q_bias, format_args!("Qcur-{l}"));
    let q = heads(b, q, q_heads, format_args!("Qcur-{l}"));
    let q = b.rope(q, inputs, format_args!("Qcur-{l}"));
    let v = b.mul_mat(layer.v, h, format_args!("Vcur-{l}"));
    let v = b.bias(v, layer.v_bias, format_args!("Vcur-{l}"));
    let v = heads(b, v, kv_heads, format_args!("Vcur-{l}"));
    let k = b.mul_mat(layer.k, h, format_args!("Kcur-{l}"));
    let k = b.bias(k, layer.k_bias, format_args!("Kcur-{l}"));
    let k = heads(b, k, kv_heads, format_args!("Kcur-{l}"));
    let k = b.rope(k, inputs, format_args!("Kcur-{l}"));
    let h = attend(b, inputs, [q, k, v], l, b.p.attention_scale);
    let h = if b.p.arch == Arch::Llama {
        b.mul_mat(layer.attn_output, h, format_args!("attn_out-{l}"))
    } else {
        let n = b.number();
        b.mul_mat(layer.attn_output, h, format_args!("node_{n}"))
    };
    let h = only_outputs(b, inputs, h, l);
    let x = only_outputs(b, inputs, x, l);
    let x = b.binary(Op::ADD, h, x, format_args!("ffn_inp-{l}"));
    let h = b.norm(x, layer.ffn_norm, Some(l), format_args!("ffn_norm-{l}"));
    let again = b.same_norm(h, x, layer.ffn_norm, l, format_args!("ffn_norm-{l} (copy)"));
    let h = match &layer.second {
        Second::Dense(ff) => feed_forward(b, ff, [h, again], l, GluOp::SWIGLU, format_args!("ffn_out-{l}")),
        Second::Experts(experts) => experts_block(b, experts, [h, again], l),
    };
    let x = b.binary(Op::ADD, h, x, format_args!("l_out-{l}"));
    b.unread(x, format_args!("l_out-{l} (copy)"));
    x
}

fn gemma2_layer(
    b: &mut GraphBuilder<'_>,
    inputs: &Inputs,
    x: NodePtr,
    l: usize,
    layer: &LayerWeights,
) -> NodePtr {
    let (q_heads, kv_heads) = (b.p.heads, b.p.kv_heads);
    let h = b.norm(x, layer.attn_norm, Some(l), format_args!("attn_norm-{l}"));
    let q = b.mul_mat(layer.q, h, format_args!("Qcur-{l}"));
    let q = heads(b, q, q_heads, format_args!("Qcur-{l}"));
    let q = b.rope(q, inputs, format_args!("Qcur-{l}"));
    let (n, scale) = (b.number(), b.p.attention_scale);
    let q = b.scale(q, scale, format_args!("node_{n}"));
    let h = b.same_norm(h, x, layer.attn_norm, l, format_args!("attn_norm-{l} (copy)"));
    let k = b.mul_mat(layer.k, h, format_args!("Kcur-{l}"));
    let k = heads(b, k, kv_heads, format_args!("Kcur-{l}"));
    let k = b.rope(k, inputs, format_args!("Kcur-{l}"));
    let v = b.mul_mat(layer.v, h, format_args!("Vcur-{l}"));
    let v = heads(b, v, kv_heads, format_args!("Vcur-{l}"));
    let h = attend(b, inputs, [q, k, v], l, 1.0);
    let n = b.number();
    let h = b.mul_mat(layer.attn_output, h, format_args!("node_{n}"));
    let h = only_outputs(b, inputs, h, l);
    let h = match layer.attn_post_norm {
        Some(norm) => b.norm(h, norm, Some(l), format_args!("attn_post_norm-{l}")),
        None => h,
    };
    let x = only_outputs(b, inputs, x, l);
    let x = b.binary(Op::ADD, h, x, format_args!("sa_out-{l}"));
    let h = b.norm(x, layer.ffn_norm, Some(l), format_args!("ffn_norm-{l}"));
    let again = b.same_norm(h, x, layer.ffn_norm, l, format_args!("ffn_norm-{l} (copy)"));
    let h = match &layer.second {
        Second::Dense(ff) => feed_forward(b, ff, [h, again], l, GluOp::GEGLU, format_args!("ffn_out-{l}")),
        Second::Experts(experts) => experts_block(b, experts, [h, again], l),
    };
    let h = match layer.ffn_post_norm {
        Some(norm) => b.norm(h, norm, None, format_args!("ffn_post_norm")),
        None => h,
    };
    let x = b.binary(Op::ADD, h, x, format_args!("l_out-{l}"));
    b.unread(x, format_args!("l_out-{l} (copy)"));
    x
}

/// Stores keys and values, and computes attention.
fn attend(
    b: &mut GraphBuilder<'_>,
    inputs: &Inputs,
    [q, k, v]: [NodePtr; 3],
    l: usize,
    scale: f32,
) -> NodePtr {
    let (keys, values) = (b.cache.keys(l), b.cache.values(l));
    b.store(k, format_args!("Kcur-{l} (view)"), keys, inputs.key_rows);
    b.store(v, format_args!("Vcur-{l} (view)"), values, inputs.value_rows);
    let mask = inputs.window_mask.filter(|_| b.p.is_windowed(l)).unwrap_or(inputs.mask);
    b.attention(q, l, scale, mask)
}

/// After the last attention, only tokens whose logits are requested matter.
fn only_outputs(b: &mut GraphBuilder<'_>, inputs: &Inputs, x: NodePtr, l: usize) -> NodePtr {
    if l + 1 < b.p.layers { x } else { b.outputs(x, inputs) }
}

/// Gate and up have inputs with the same value.
fn feed_forward(
    b: &mut GraphBuilder<'_>,
    ff: &FeedForward,
    [x, again]: [NodePtr; 2],
    l: usize,
    op: GluOp,
    name: std::fmt::Arguments<'_>,
) -> NodePtr {
    let gate = b.mul_mat(ff.gate, x, format_args!("ffn_gate-{l}"));
    let up = b.mul_mat(ff.up, again, format_args!("ffn_up-{l}"));
    let kind = if op == GluOp::GEGLU { "geglu" } else { "swiglu" };
    let h = b.glu(op, gate, up, format_args!("ffn_{kind}-{l}"));
    b.mul_mat(ff.down, h, name)
}

/// The chosen experts, weighted, plus the shared one scaled by its gate. Both have inputs with the same value.
fn experts_block(b: &mut GraphBuilder<'_>, e: &ExpertTensors, [x, again]: [NodePtr; 2], l: usize) -> NodePtr {
    let Some(sizes) = b.p.experts else { return x };
    let routed = routed_experts(b, e, x, l);
    let shared = feed_forward(b, &e.shared, [again; 2], l, GluOp::SWIGLU, format_args!("ffn_shexp-{l}"));
    debug_assert!(sizes.used > 0);
    let gate = b.mul_mat(e.shared_gate, again, format_args!("ffn_shexp_gate_inp-{l}"));
    // The sigmoid, the way llama.cpp computes it for this architecture.
    let n = b.number();
    let silu = b.unary(UnaryOp::SILU, gate, format_args!("node_{n}"));
    let gate = b.binary(Op::DIV, silu, gate, format_args!("ffn_shexp_gate-{l}"));
    let shared = b.binary(Op::MUL, shared, gate, format_args!("ffn_shexp_out-{l}"));
    b.binary(Op::ADD, routed, shared, format_args!("ffn_out-{l}"))
}

fn routed_experts(b: &mut GraphBuilder<'_>, e: &ExpertTensors, x: NodePtr, l: usize) -> NodePtr {
    let Some(sizes) = b.p.experts else { return x };
    // SAFETY: a node of the graph being built.
    let rows = usize::try_from(unsafe { (*x).ne[1] }).unwrap_or(0);
    let logits = b.mul_mat(e.router, x, format_args!("ffn_moe_logits-{l}"));
    let probs = b.soft_max(logits, format_args!("ffn_moe_probs-{l}"));
    let columns = b.reshape(probs, [1, sizes.count, rows], format_args!("ffn_moe_probs-{l} (reshaped)"));
    let ids = b.top_k(probs, sizes.used, l);
    let weights = b.pick(columns, ids, format_args!("ffn_moe_weights-{l}"));
    let each = b.reshape(x, [b.p.embd, 1, rows], format_args!("ffn_norm-{l} (reshaped)"));
    let gate = b.mul_mat_id(e.gate, each, ids, format_args!("ffn_moe_gate-{l}"));
    let up = b.mul_mat_id(e.up, each, ids, format_args!("ffn_moe_up-{l}"));
    let h = b.glu(GluOp::SWIGLU, gate, up, format_args!("ffn_moe_swiglu-{l}"));
    let h = b.mul_mat_id(e.down, h, ids, format_args!("ffn_moe_down-{l}"));
    let h = b.binary(Op::MUL, h, weights, format_args!("ffn_moe_weighted-{l}"));
    b.sum_middle(h, sizes.used, format_args!("ffn_moe_weighted-{l} (view)"), format_args!("ffn_moe_out-{l}"))
}
