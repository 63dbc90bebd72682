//! The ops of a graph, one method each, creating nodes as GGML does.

use super::cache::Cache;
use super::space::{NodePtr, Space};
use super::weights::{Id, Weights};
use super::{Arch, GraphForm, Params};
use crate::abi::{FLAG_COMPUTE, FLAG_INPUT, FLAG_OUTPUT, GgmlTensor, GgmlType, GluOp, MAX_NAME, Op, UnaryOp};
use std::fmt::{self, Arguments, Write};

/// `GGML_ROPE_TYPE_NEOX`; 0 is the other type.
const ROPE_NEOX: i32 = 2;
/// `GGML_PREC_F32`.
const PRECISE: i32 = 10;
/// `GGML_SORT_ORDER_DESC`.
const DESCENDING: i32 = 1;
/// Nodes of llama.cpp for other kinds of input than tokens.
const OTHER_INPUT: usize = 3;

/// Sizes of a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GraphSize {
    pub tokens: usize,
    /// Positions of the cache that attention covers.
    pub positions: usize,
    /// Tokens whose logits are computed.
    pub outputs: usize,
}

/// Tensors that the user of a graph fills before it runs.
#[derive(Debug, Clone, Copy)]
pub struct Inputs {
    pub tokens: NodePtr,
    pub positions: NodePtr,
    pub key_rows: NodePtr,
    pub value_rows: NodePtr,
    pub mask: NodePtr,
    /// For layers that see only a window.
    pub window_mask: Option<NodePtr>,
    pub outputs: NodePtr,
}

impl Inputs {
    /// All of them.
    pub(super) fn all(&self) -> [NodePtr; 7] {
        let window = self.window_mask.unwrap_or(null());
        [self.tokens, self.positions, self.key_rows, self.value_rows, self.mask, window, self.outputs]
    }
}

/// Builds one graph into a space.
pub(super) struct GraphBuilder<'a> {
    pub space: &'a mut Space,
    pub p: &'a Params,
    pub weights: &'a Weights,
    pub cache: &'a Cache,
    pub shape: GraphSize,
}

/// A tensor name, written without allocating.
struct NameBuffer {
    bytes: [u8; MAX_NAME],
    len: usize,
}

impl Write for NameBuffer {
    /// Truncates what does not fit, as GGML does.
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for b in text.bytes().take(MAX_NAME - 1 - self.len) {
            self.bytes[self.len] = b;
            self.len += 1;
        }
        Ok(())
    }
}

fn named(mut tensor: GgmlTensor, name: Arguments<'_>) -> GgmlTensor {
    let mut out = NameBuffer { bytes: [0; MAX_NAME], len: 0 };
    // Writing to it can't fail.
    let _ = out.write_fmt(name);
    tensor.name = out.bytes;
    tensor
}

/// The tensor that a node points to.
pub(super) fn get<'t>(node: NodePtr) -> &'t GgmlTensor {
    // SAFETY: nodes come from the builder's space, weights or cache, all of which stay alive and change only
    // through the space, one tensor at a time.
    unsafe { &*node }
}

pub(super) fn size(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

impl GraphBuilder<'_> {
    fn leaf(&mut self, ty: GgmlType, ne: [usize; 2], name: &str) -> NodePtr {
        let mut t = GgmlTensor::contiguous(ty, [size(ne[0]), size(ne[1]), 1, 1]);
        t.flags = FLAG_INPUT;
        self.space.put(named(t, format_args!("{name}")))
    }

    pub(super) fn node(&mut self, op: Op, ne: [i64; 4], sources: &[NodePtr], name: Arguments<'_>) -> NodePtr {
        self.typed(GgmlType::F32, op, ne, sources, &[], name)
    }

    fn typed(
        &mut self,
        ty: GgmlType,
        op: Op,
        ne: [i64; 4],
        sources: &[NodePtr],
        params: &[i32],
        name: Arguments<'_>,
    ) -> NodePtr {
        let mut t = GgmlTensor { op, flags: FLAG_COMPUTE, ..GgmlTensor::contiguous(ty, ne) };
        for (slot, source) in t.src.iter_mut().zip(sources) {
            *slot = *source;
        }
        for (slot, value) in t.op_params.iter_mut().zip(params) {
            *slot = *value;
        }
        self.space.put(named(t, name))
    }

    /// A node that is a view of `of`. An exported graph has it as a view of a view.
    fn shown(&mut self, op: Op, of: NodePtr, like: GgmlTensor, name: Arguments<'_>) -> NodePtr {
        let of = if self.p.form == GraphForm::Exported { self.view_before(op, of) } else { of };
        self.view_of(op, of, like, name)
    }

    /// One node that is a view of `of`.
    pub(super) fn view_of(&mut self, op: Op, of: NodePtr, like: GgmlTensor, name: Arguments<'_>) -> NodePtr {
        let source = get(of);
        let root = if source.view_src.is_null() { of } else { source.view_src };
        let view_offs = source.view_offs + like.view_offs;
        let mut t = GgmlTensor { op, flags: FLAG_COMPUTE, view_src: root, view_offs, ..like };
        t.src[0] = of;
        self.space.put(named(t, name))
    }

    /// The same elements with other dimensions.
    pub fn reshape(&mut self, of: NodePtr, ne: [usize; 3], name: Arguments<'_>) -> NodePtr {
        let like = GgmlTensor::contiguous(get(of).ty, [size(ne[0]), size(ne[1]), size(ne[2]), 1]);
        self.shown(Op::RESHAPE, of, like, name)
    }

    /// A contiguous tensor as a matrix whose rows span two of its dimensions.
    fn view_rows(&mut self, of: NodePtr, name: Arguments<'_>) -> NodePtr {
        let s = get(of);
        let like = GgmlTensor::contiguous(s.ty, [s.ne[0] * s.ne[1], s.ne[2], 1, 1]);
        self.shown(Op::VIEW, of, like, name)
    }

    /// Column `n` of the middle dimension.
    fn view_middle(&mut self, of: NodePtr, n: usize, name: Arguments<'_>) -> NodePtr {
        let s = get(of);
        let mut like = GgmlTensor::contiguous(s.ty, [s.ne[0], s.ne[2], 1, 1]);
        let planes = usize::try_from(s.ne[2]).unwrap_or(0);
        like.nb = [s.nb[0], s.nb[2], s.nb[2] * planes, s.nb[2] * planes];
        like.view_offs = n * s.nb[1];
        self.shown(Op::VIEW, of, like, name)
    }

    fn permute_1_2(&mut self, of: NodePtr, name: Arguments<'_>) -> NodePtr {
        let s = get(of);
        let mut like = GgmlTensor::contiguous(s.ty, s.ne);
        (like.ne, like.nb) = (s.ne, s.nb);
        like.ne.swap(1, 2);
        like.nb.swap(1, 2);
        like.op_params[..4].copy_from_slice(&[0, 2, 1, 3]);
        self.shown(Op::PERMUTE, of, like, name)
    }

    /// The inputs of a graph.
    pub fn inputs(&mut self) -> Inputs {
        let GraphSize { tokens, positions, outputs } = self.shape;
        let windowed = self.p.window.is_some();
        Inputs {
            tokens: self.leaf(GgmlType::I32, [tokens, 1], "inp_tokens"),
            positions: self.leaf(GgmlType::I32, [tokens, 1], "inp_pos"),
            key_rows: self.leaf(GgmlType::I64, [tokens, 1], "attn_inp_k_idxs"),
            value_rows: self.leaf(GgmlType::I64, [tokens, 1], "attn_inp_v_idxs"),
            mask: self.leaf(GgmlType::F16, [positions, tokens], "attn_inp_kq_mask"),
            window_mask: windowed.then(|| self.leaf(GgmlType::F16, [positions, tokens], "attn_inp_kq_mask")),
            outputs: self.leaf(GgmlType::I32, [outputs, 1], "out_ids"),
        }
    }

    /// The embeddings of the tokens.
    pub fn embed(&mut self, inputs: &Inputs) -> NodePtr {
        let ne = [size(self.p.embd), size(self.shape.tokens), 1, 1];
        let table = self.weights.get(self.weights.token_embd);
        self.node(Op::GET_ROWS, ne, &[table, inputs.tokens], format_args!("embd"))
    }

    /// The number in the name that GGML gives the next unnamed node. It counts the nodes for other kinds of input, which
    /// llama.cpp has behind the embeddings and never computes for tokens.
    pub fn number(&self) -> usize {
        self.space.len() + OTHER_INPUT
    }

    /// Rows of `x` whose logits are computed.
    pub fn outputs(&mut self, x: NodePtr, inputs: &Inputs) -> NodePtr {
        let ne = [get(x).ne[0], size(self.shape.outputs), 1, 1];
        let number = self.number();
        self.node(Op::GET_ROWS, ne, &[x, inputs.outputs], format_args!("node_{number}"))
    }

    /// RMS_NORM and the multiplication by its weight, which may run fused; in an exported graph, the parts of both.
    pub fn norm(&mut self, x: NodePtr, weight: Id, layer: Option<usize>, name: Arguments<'_>) -> NodePtr {
        if self.p.form == GraphForm::Exported {
            return self.norm_parts(x, weight, layer, name);
        }
        let eps = [self.p.norm_eps.to_bits().cast_signed()];
        let ne = get(x).ne;
        let norm = match layer {
            Some(l) => self.typed(GgmlType::F32, Op::RMS_NORM, ne, &[x], &eps, format_args!("norm-{l}")),
            None => self.typed(GgmlType::F32, Op::RMS_NORM, ne, &[x], &eps, format_args!("norm")),
        };
        self.node(Op::MUL, ne, &[norm, self.weights.get(weight)], name)
    }

    /// y = W·x.
    pub fn mul_mat(&mut self, weight: Id, x: NodePtr, name: Arguments<'_>) -> NodePtr {
        let w = self.weights.get(weight);
        let (rows, [_, b, c, d]) = (get(w).ne[1], get(x).ne);
        self.node(Op::MUL_MAT, [rows, b, c, d], &[w, x], name)
    }

    /// y = W\[id]·x for each of a token's chosen experts.
    pub fn mul_mat_id(&mut self, weight: Id, x: NodePtr, ids: NodePtr, name: Arguments<'_>) -> NodePtr {
        let w = self.weights.get(weight);
        let ne = [get(w).ne[1], get(ids).ne[0], get(x).ne[2], 1];
        self.node(Op::MUL_MAT_ID, ne, &[w, x, ids], name)
    }

    /// An op on pairs of elements; `b` is repeated.
    pub fn binary(&mut self, op: Op, a: NodePtr, b: NodePtr, name: Arguments<'_>) -> NodePtr {
        self.node(op, get(a).ne, &[a, b], name)
    }

    /// y = x + bias.
    pub fn bias(&mut self, x: NodePtr, bias: Option<Id>, name: Arguments<'_>) -> NodePtr {
        match bias {
            Some(bias) => self.binary(Op::ADD, x, self.weights.get(bias), name),
            None => x,
        }
    }

    /// y = x·factor.
    pub fn scale(&mut self, x: NodePtr, factor: f32, name: Arguments<'_>) -> NodePtr {
        let params = [factor.to_bits().cast_signed(), 0];
        self.typed(GgmlType::F32, Op::SCALE, get(x).ne, &[x], &params, name)
    }

    /// A function of each element.
    pub fn unary(&mut self, op: UnaryOp, x: NodePtr, name: Arguments<'_>) -> NodePtr {
        self.typed(GgmlType::F32, Op::UNARY, get(x).ne, &[x], &[op as i32], name)
    }

    /// activation(gate)·up.
    pub fn glu(&mut self, op: GluOp, gate: NodePtr, up: NodePtr, name: Arguments<'_>) -> NodePtr {
        self.typed(GgmlType::F32, Op::GLU, get(gate).ne, &[gate, up], &[op as i32, 0], name)
    }

    /// Softmax of each row.
    pub fn soft_max(&mut self, x: NodePtr, name: Arguments<'_>) -> NodePtr {
        let params = [1.0f32.to_bits().cast_signed(), 0];
        self.typed(GgmlType::F32, Op::SOFT_MAX, get(x).ne, &[x], &params, name)
    }

    /// The first `k` of each row's indices, largest element first.
    pub fn top_k(&mut self, x: NodePtr, k: usize, layer: usize) -> NodePtr {
        let name = format_args!("ffn_moe_argsort-{layer}");
        let sorted = self.typed(GgmlType::I32, Op::ARGSORT, get(x).ne, &[x], &[DESCENDING], name);
        let s = get(sorted);
        let mut like = GgmlTensor::contiguous(GgmlType::I32, [size(k), s.ne[1], 1, 1]);
        like.nb = s.nb;
        self.shown(Op::VIEW, sorted, like, format_args!("ffn_moe_topk-{layer}"))
    }

    /// The elements of each row selected by the indices, as columns of one element.
    pub fn pick(&mut self, rows: NodePtr, ids: NodePtr, name: Arguments<'_>) -> NodePtr {
        let ne = [1, get(ids).ne[0], get(ids).ne[1], 1];
        self.node(Op::GET_ROWS, ne, &[rows, ids], name)
    }

    /// The sum of the columns of the middle dimension.
    pub fn sum_middle(
        &mut self,
        x: NodePtr,
        count: usize,
        view: Arguments<'_>,
        result: Arguments<'_>,
    ) -> NodePtr {
        let first = self.view_middle(x, 0, view);
        let mut views = [first; MAX_SUM];
        let count = count.clamp(1, MAX_SUM);
        for (n, slot) in views.iter_mut().enumerate().take(count).skip(1) {
            *slot = self.view_middle(x, n, view);
        }
        let mut sum = first;
        for (n, part) in views.iter().enumerate().take(count).skip(1) {
            let number = self.number();
            sum = if n + 1 == count {
                self.binary(Op::ADD, sum, *part, result)
            } else {
                self.binary(Op::ADD, sum, *part, format_args!("node_{number}"))
            };
        }
        sum
    }

    /// Heads rotated by their positions.
    pub fn rope(&mut self, x: NodePtr, inputs: &Inputs, name: Arguments<'_>) -> NodePtr {
        let bits = |v: f32| v.to_bits().cast_signed();
        let context = i32::try_from(self.p.context).unwrap_or(i32::MAX);
        let mode = if self.p.rope_is_neox() { ROPE_NEOX } else { 0 };
        let dims = i32::try_from(self.p.head_dim).unwrap_or(0);
        let (base, scale) = (bits(self.p.rope_base), bits(self.p.rope_scale));
        // Of the last four parameters, which are for YaRN, only the factor for the result matters here.
        let yarn = [0.0, 1.0, 32.0, 1.0].map(bits);
        let params = [0, dims, mode, 0, context, base, scale, yarn[0], yarn[1], yarn[2], yarn[3]];
        let mut sources = [x, inputs.positions, null()];
        if let Some(freqs) = self.weights.rope_freqs.filter(|_| self.p.arch == Arch::Llama) {
            sources[2] = self.weights.get(freqs);
        }
        self.typed(GgmlType::F32, Op::ROPE, get(x).ne, &sources, &params, name)
    }

    /// Writes a layer's keys or values for this batch to the cache.
    pub fn store(&mut self, x: NodePtr, name: Arguments<'_>, cache: NodePtr, rows: NodePtr) {
        let flat = self.view_rows(x, name);
        let like = GgmlTensor { src: [null(); 10], ..get(cache).clone() };
        let mut t =
            GgmlTensor { op: Op::SET_ROWS, flags: FLAG_COMPUTE, view_src: cache, view_offs: 0, ..like };
        t.src[..3].copy_from_slice(&[flat, rows, cache]);
        self.space.put(named(t, format_args!("{} (view)", get(cache).name())));
    }

    /// The keys or values of all positions, by head.
    fn stored(&mut self, cache: NodePtr) -> NodePtr {
        let (head, heads) = (self.p.head_dim, self.p.kv_heads);
        let ne = [size(head), size(heads), size(self.shape.positions), 1];
        let mut like = GgmlTensor::contiguous(GgmlType::F16, ne);
        like.nb[2] = get(cache).nb[1];
        like.nb[3] = like.nb[2] * self.shape.positions;
        let name = get(cache).name();
        let view = self.shown(Op::VIEW, cache, like, format_args!("{name} (view)"));
        self.permute_1_2(view, format_args!("{name} (view) (permuted)"))
    }

    /// Attention of the queries to a layer's cache: rows of all heads together.
    pub fn attention(&mut self, q: NodePtr, layer: usize, scale: f32, mask: NodePtr) -> NodePtr {
        let q_name = get(q).name();
        let s = get(q);
        let like = GgmlTensor { ne: s.ne, nb: s.nb, ..GgmlTensor::contiguous(s.ty, s.ne) };
        let view = self.shown(Op::VIEW, q, like, format_args!("{q_name} (view)"));
        let q = self.permute_1_2(view, format_args!("{q_name} (view) (permuted)"));
        let (k, v) = (self.stored(self.cache.keys(layer)), self.stored(self.cache.values(layer)));
        let bits = |v: f32| v.to_bits().cast_signed();
        let cap = self.p.attention_cap;
        let params = [bits(scale), 0, bits(cap), PRECISE];
        let (heads, tokens) = (self.p.heads, self.shape.tokens);
        let ne = [size(self.p.head_dim), size(heads), size(tokens), 1];
        let number = self.number();
        let name = format_args!("node_{number}");
        let out = self.typed(GgmlType::F32, Op::FLASH_ATTN_EXT, ne, &[q, k, v, mask], &params, name);
        self.reshape(out, [self.p.q_width(), tokens, 1], format_args!("kqv_out-{layer}"))
    }

    /// Marks a tensor that is read after the graph has run.
    pub fn output(&mut self, node: NodePtr) {
        // SAFETY: a tensor of our space with no other reference at the moment.
        unsafe { (*node).flags |= FLAG_OUTPUT };
    }
}

/// Most experts per token.
pub(super) const MAX_SUM: usize = super::params::MAX_USED;

fn null() -> NodePtr {
    std::ptr::null_mut()
}
