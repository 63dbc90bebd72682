//! Generates models with random weights in the shapes of real ones, for profiling without a download.
//!
//! The same preset, type, form of the graph and seed give the same bytes on every machine and with any number of threads.

mod form;
pub mod presets;
mod prng;
pub mod tensors;
mod vocabulary;
mod weights;

pub use form::GraphForm;

use ggml::gguf::writer::{GgufHeader, GgufWriteError, NewGgufValue};
use ggml::quant::{QuantError, TensorType};
use presets::{Arch, Preset};
use std::io::Write;

/// Default seed.
pub const DEFAULT_SEED: u64 = 42;

/// Why a model can't be generated.
#[derive(Debug, thiserror::Error)]
pub enum SynthError {
    #[error(transparent)]
    Write(#[from] GgufWriteError),
    #[error("tensor '{name}': {source}")]
    Quant { name: String, source: QuantError },
}

/// The model to generate.
#[derive(Debug, Clone, Copy)]
pub struct ModelSpec {
    pub preset: &'static Preset,
    /// Type of the matrices; see [`tensors::stored_type`] for exceptions.
    pub ty: TensorType,
    /// How the graph is to be written.
    pub graph: GraphForm,
    pub seed: u64,
    /// Threads that generate weights; at least 1 is used.
    pub threads: usize,
}

impl ModelSpec {
    /// Bytes of the file that [`write()`] produces.
    ///
    /// # Errors
    /// The preset can't be stored in this type.
    pub fn file_bytes(&self) -> Result<u64, SynthError> {
        Ok(self.header()?.file_bytes())
    }

    /// Names and types of the matrices that can't be stored in [`ModelSpec::ty`] and use another type.
    pub fn exceptions(&self) -> Vec<(String, TensorType)> {
        let stored = |t: &tensors::SynthTensor| tensors::stored_type(t, self.ty);
        let all = tensors::of(self.preset).into_iter();
        all.filter(|t| self.ty.row_bytes(t.row()).is_none() && stored(t) != TensorType::F32)
            .map(|t| (stored(&t), t.name))
            .map(|(ty, name)| (name, ty))
            .collect()
    }

    fn header(&self) -> Result<GgufHeader, SynthError> {
        let mut h = GgufHeader::default();
        metadata(&mut h, self.preset, self.ty)?;
        if self.graph != GraphForm::default() {
            h.set(GraphForm::KEY, NewGgufValue::Str(self.graph.name().to_owned()))?;
        }
        for t in tensors::of(self.preset) {
            h.tensor(&t.name, tensors::stored_type(&t, self.ty), &t.dims)?;
        }
        Ok(h)
    }
}

/// Writes the model to `out`. `progress` receives the bytes of tensor data written since the last call.
///
/// # Errors
/// Those of `out`, and a preset that can't be stored in the type.
pub fn write<W: Write>(order: &ModelSpec, out: W, mut progress: impl FnMut(u64)) -> Result<W, SynthError> {
    let mut body = order.header()?.begin(out)?;
    for t in tensors::of(order.preset) {
        let ty = tensors::stored_type(&t, order.ty);
        weights::write(&t, ty, order, |part| {
            body.write(part)?;
            progress(part.len() as u64);
            Ok(())
        })?;
    }
    Ok(body.finish()?)
}

/// The metadata keys that llama.cpp reads (listed in gguf-py's constants.py).
fn metadata(h: &mut GgufHeader, p: &Preset, ty: TensorType) -> Result<(), GgufWriteError> {
    let arch = p.arch.name();
    let key = |suffix: &str| format!("{arch}.{suffix}");
    h.set("general.architecture", NewGgufValue::Str(arch.to_owned()))?;
    h.set("general.name", NewGgufValue::Str(format!("random-{}", p.name)))?;
    h.set(key("context_length"), NewGgufValue::U32(p.context))?;
    h.set(key("embedding_length"), NewGgufValue::U32(p.embd))?;
    h.set(key("block_count"), NewGgufValue::U32(p.layers))?;
    h.set(key("feed_forward_length"), NewGgufValue::U32(p.ff))?;
    h.set(key("attention.head_count"), NewGgufValue::U32(p.heads))?;
    h.set(key("attention.head_count_kv"), NewGgufValue::U32(p.kv_heads))?;
    h.set(key("attention.layer_norm_rms_epsilon"), NewGgufValue::F32(1e-5))?;
    h.set(key("rope.freq_base"), NewGgufValue::F32(p.rope_base))?;
    h.set("general.file_type", NewGgufValue::U32(file_type(ty)))?;
    if ty.block() > 1 {
        // GGML_QNT_VERSION: the layout of quantised blocks.
        h.set("general.quantization_version", NewGgufValue::U32(2))?;
    }
    h.set(key("vocab_size"), NewGgufValue::U32(p.vocab))?;
    match p.arch {
        Arch::Llama => h.set(key("rope.dimension_count"), NewGgufValue::U32(p.head_dim))?,
        Arch::Gemma2 => {
            h.set(key("attention.key_length"), NewGgufValue::U32(p.head_dim))?;
            h.set(key("attention.value_length"), NewGgufValue::U32(p.head_dim))?;
            h.set(key("attention.sliding_window"), NewGgufValue::U32(1024))?;
            h.set(key("attn_logit_softcapping"), NewGgufValue::F32(50.0))?;
            h.set(key("final_logit_softcapping"), NewGgufValue::F32(30.0))?;
        }
        Arch::Qwen2 | Arch::Qwen2Moe => {}
    }
    if let Some(m) = p.experts {
        h.set(key("expert_count"), NewGgufValue::U32(m.count))?;
        h.set(key("expert_used_count"), NewGgufValue::U32(m.used))?;
        h.set(key("expert_feed_forward_length"), NewGgufValue::U32(m.ff))?;
        h.set(key("expert_shared_feed_forward_length"), NewGgufValue::U32(m.shared_ff))?;
    }
    vocabulary::metadata(h, p.arch, p.vocab)
}

/// `enum llama_ftype` (llama.h): the type of most matrices in the file.
fn file_type(ty: TensorType) -> u32 {
    match ty {
        TensorType::F32 => 0,
        TensorType::Q4_0 => 2,
        TensorType::Q4_1 => 3,
        TensorType::Q8_0 => 7,
        TensorType::Q4K => 15,
        TensorType::Q5K => 17,
        TensorType::Q6K => 18,
        TensorType::Iq4Nl => 25,
        TensorType::Iq4Xs => 30,
        TensorType::Mxfp4 => 38,
        TensorType::BF16 => 32,
        TensorType::F16 => 1,
    }
}
