//! The tensors of a preset in file order, and the type that each is stored in.
//!
//! Names and shapes are those that llama.cpp loads (src/llama-arch.cpp, src/models/).

use super::presets::{Arch, ExpertRouting, Preset};
use ggml::quant::TensorType;

/// How a tensor's values are drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Draw {
    /// Deviation 1/sqrt(row length), so that activations neither vanish nor explode.
    Matrix,
    /// The given mean, deviation 0.01: norms (1) and biases (0).
    Vector(f32),
    /// A matrix whose rows become smaller, to [`LAST_ROW`] of the first: a router that chooses its first experts most often.
    FallingRows,
    /// A matrix whose rows have a part in common with the other rows of their topic, as large as their own part.
    Topics,
}

/// Deviation of the last row of [`Draw::FallingRows`], of the first's.
pub const LAST_ROW: f32 = 0.2;

/// A tensor to generate: it has no data yet, hence no type and no place in a file.
#[derive(Debug, Clone, PartialEq)]
pub struct SynthTensor {
    pub name: String,
    /// In GGML order: the first is the row length.
    pub dims: Vec<u64>,
    pub draw: Draw,
}

impl SynthTensor {
    /// Elements of one row.
    pub fn row(&self) -> u64 {
        self.dims.first().copied().unwrap_or(0)
    }

    /// Number of rows over all higher dimensions.
    pub fn rows(&self) -> u64 {
        self.dims.iter().skip(1).product()
    }
}

/// The type of a tensor in a file of type `ty`. Tensors that llama.cpp's quantiser with `--pure` leaves alone
/// (vectors and the expert router) stay F32. Rows that don't fill complete blocks become Q8_0 if they fill its
/// smaller blocks (as in that quantiser for Q6_K), otherwise F16.
pub fn stored_type(t: &SynthTensor, ty: TensorType) -> TensorType {
    if t.dims.len() < 2 || t.name.contains("ffn_gate_inp.weight") {
        return TensorType::F32;
    }
    let fits = |ty: &TensorType| ty.row_bytes(t.row()).is_some();
    [ty, TensorType::Q8_0].into_iter().find(fits).unwrap_or(TensorType::F16)
}

/// All tensors of a preset.
pub fn of(p: &Preset) -> Vec<SynthTensor> {
    let mut list = TensorList::default();
    let (embd, vocab) = (p.embd, p.vocab);
    let routing = p.experts.map(|e| e.routing).unwrap_or_default();
    let words = if routing == ExpertRouting::Topics { Draw::Topics } else { Draw::Matrix };
    list.push("token_embd.weight", &[embd, vocab], words);
    list.vector("output_norm.weight", embd, 1.0);
    if !p.tied {
        list.push("output.weight", &[embd, vocab], words);
    }
    for layer in 0..p.layers {
        list.prefix = format!("blk.{layer}.");
        attention(&mut list, p);
        match p.experts {
            Some(_) => experts(&mut list, p),
            None => feed_forward(&mut list, p),
        }
    }
    list.tensors
}

fn attention(list: &mut TensorList, p: &Preset) {
    let (embd, q, kv) = (p.embd, p.heads * p.head_dim, p.kv_heads * p.head_dim);
    list.vector("attn_norm.weight", embd, 1.0);
    list.matrix("attn_q.weight", &[embd, q]);
    list.matrix("attn_k.weight", &[embd, kv]);
    list.matrix("attn_v.weight", &[embd, kv]);
    list.matrix("attn_output.weight", &[q, embd]);
    list.vector("ffn_norm.weight", embd, 1.0);
    if p.arch == Arch::Gemma2 {
        list.vector("post_attention_norm.weight", embd, 1.0);
        list.vector("post_ffw_norm.weight", embd, 1.0);
    }
    if matches!(p.arch, Arch::Qwen2 | Arch::Qwen2Moe) {
        list.vector("attn_q.bias", q, 0.0);
        list.vector("attn_k.bias", kv, 0.0);
        list.vector("attn_v.bias", kv, 0.0);
    }
}

fn feed_forward(list: &mut TensorList, p: &Preset) {
    list.matrix("ffn_gate.weight", &[p.embd, p.ff]);
    list.matrix("ffn_up.weight", &[p.embd, p.ff]);
    list.matrix("ffn_down.weight", &[p.ff, p.embd]);
}

fn experts(list: &mut TensorList, p: &Preset) {
    let Some(m) = p.experts else { return };
    let embd = p.embd;
    let router = if m.routing == ExpertRouting::Skewed { Draw::FallingRows } else { Draw::Matrix };
    list.push("ffn_gate_inp.weight", &[embd, m.count], router);
    list.matrix("ffn_gate_exps.weight", &[embd, m.ff, m.count]);
    list.matrix("ffn_up_exps.weight", &[embd, m.ff, m.count]);
    list.matrix("ffn_down_exps.weight", &[m.ff, embd, m.count]);
    list.vector("ffn_gate_inp_shexp.weight", embd, 0.0);
    list.matrix("ffn_gate_shexp.weight", &[embd, m.shared_ff]);
    list.matrix("ffn_up_shexp.weight", &[embd, m.shared_ff]);
    list.matrix("ffn_down_shexp.weight", &[m.shared_ff, embd]);
}

#[derive(Default)]
struct TensorList {
    prefix: String,
    tensors: Vec<SynthTensor>,
}

impl TensorList {
    fn matrix(&mut self, name: &str, dims: &[u32]) {
        self.push(name, dims, Draw::Matrix);
    }

    fn vector(&mut self, name: &str, len: u32, mean: f32) {
        self.push(name, &[len], Draw::Vector(mean));
    }

    fn push(&mut self, name: &str, dims: &[u32], draw: Draw) {
        let dims = dims.iter().map(|d| u64::from(*d)).collect();
        self.tensors.push(SynthTensor { name: format!("{}{name}", self.prefix), dims, draw });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(name: &str, dims: &[u64]) -> SynthTensor {
        SynthTensor { name: name.to_owned(), dims: dims.to_vec(), draw: Draw::Matrix }
    }

    #[test]
    fn only_matrices_in_whole_blocks_are_quantised() {
        let q = TensorType::Q4_0;
        assert_eq!(stored_type(&tensor("blk.0.attn_q.weight", &[64, 8]), q), q);
        assert_eq!(stored_type(&tensor("blk.0.attn_norm.weight", &[64]), q), TensorType::F32);
        assert_eq!(stored_type(&tensor("blk.0.ffn_gate_inp.weight", &[64, 8]), q), TensorType::F32);
        assert_eq!(stored_type(&tensor("blk.0.attn_q.weight", &[65, 8]), q), TensorType::F16);
        assert_eq!(stored_type(&tensor("blk.0.attn_q.weight", &[65, 8]), TensorType::F32), TensorType::F32);
        for k in [TensorType::Q4K, TensorType::Q6K] {
            assert_eq!(stored_type(&tensor("blk.0.attn_q.weight", &[512, 8]), k), k);
            assert_eq!(stored_type(&tensor("blk.0.attn_q.weight", &[96, 8]), k), TensorType::Q8_0);
            assert_eq!(stored_type(&tensor("blk.0.attn_q.weight", &[65, 8]), k), TensorType::F16);
        }
    }
}
