//! A model's tensors: which ones must exist, their shapes, and where they are placed.
//!
//! Vectors (norms, biases) are used in place in the mapped file, and so is the token embedding if it is used only
//! for lookups. Tensors that activations are multiplied with become a [`Weight`].

use super::error::ModelError;
use super::memory;
use super::params::{Arch, Params};
use crate::abi::{GgmlTensor, GgmlType};
use crate::compute::{BytesOwner, Weight};
use crate::kernels::{Isa, Matrix, Reading};
use crate::parts::KernelParts;
use crate::slots::{ExpertPart, ExpertStore, PartShape, SlotError, SlotSettings};
use ggml::gguf::reader::{Gguf, GgufTensor};
use ggml::quant::TensorType;
use memmap2::Mmap;
use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;

const SUPPORTED: &str = "f32, f16, bf16, q8_0, q4_0, q4_1, q4_K, q5_K, q6_K, iq4_nl, iq4_xs, mxfp4";

/// A text is not the name of a [`Placement`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be auto, packed or mapped")]
pub struct UnknownPlacement;

/// Where matrices are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Placement {
    /// Packed if they fit into memory.
    #[default]
    Auto,
    /// Repacked for this processor, in memory.
    Packed,
    /// In the file: for models that do not fit into memory.
    Mapped,
}

impl FromStr for Placement {
    type Err = UnknownPlacement;

    fn from_str(text: &str) -> Result<Self, UnknownPlacement> {
        match text {
            "auto" => Ok(Self::Auto),
            "packed" => Ok(Self::Packed),
            "mapped" => Ok(Self::Mapped),
            _ => Err(UnknownPlacement),
        }
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Packed => "packed",
            Self::Mapped => "mapped",
        })
    }
}

/// A tensor of the model, by its index in `Weights::tensors`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Id(usize);

/// The feed-forward of a layer.
#[derive(Debug, Clone, Copy)]
pub struct FeedForward {
    pub gate: Id,
    pub up: Id,
    pub down: Id,
}

/// The experts of a layer.
#[derive(Debug, Clone, Copy)]
pub struct ExpertTensors {
    pub router: Id,
    pub gate: Id,
    pub up: Id,
    pub down: Id,
    /// How much of the shared expert's result is added.
    pub shared_gate: Id,
    pub shared: FeedForward,
}

/// What follows attention in a layer.
#[derive(Debug, Clone, Copy)]
pub enum Second {
    Dense(FeedForward),
    Experts(ExpertTensors),
}

/// The tensors of a layer.
#[derive(Debug, Clone, Copy)]
pub struct LayerWeights {
    pub attn_norm: Id,
    pub q: Id,
    pub k: Id,
    pub v: Id,
    pub q_bias: Option<Id>,
    pub k_bias: Option<Id>,
    pub v_bias: Option<Id>,
    pub attn_output: Id,
    pub attn_post_norm: Option<Id>,
    pub ffn_norm: Id,
    pub second: Second,
    pub ffn_post_norm: Option<Id>,
}

/// All tensors of a model.
pub struct Weights {
    /// Never changed after loading, so that their addresses are stable.
    tensors: Box<[GgmlTensor]>,
    /// The number 1, a constant that exported graphs compute others from.
    pub one: Id,
    pub token_embd: Id,
    pub output_norm: Id,
    pub output: Id,
    /// Divisors of the rotary angles, one per pair.
    pub rope_freqs: Option<Id>,
    pub layers: Vec<LayerWeights>,
    /// Targets of the tensors' `extra` pointers.
    matrices: Box<[Weight]>,
    /// Target of the tensors' data pointers.
    _file: Arc<Mmap>,
    /// Bytes of the matrices, in memory or in the file.
    pub bytes: u64,
    pub placement: Placement,
    /// The experts, if only some of them are in memory at a time.
    pub slots: Option<Arc<ExpertStore>>,
}

// SAFETY: the tensors point into the mapped file and to the matrices, which are owned here, shared read-only and
// never changed.
unsafe impl Send for Weights {}
// SAFETY: as above.
unsafe impl Sync for Weights {}

impl Weights {
    /// All matrices, those of experts included unless they are in slots.
    pub fn matrices(&self) -> impl Iterator<Item = &Matrix> {
        self.matrices.iter().flat_map(Weight::matrices)
    }

    /// Reads weights for one token in this way from now on; those of all types if none is given.
    pub fn set_reading(&self, ty: Option<TensorType>, reading: Reading) {
        let meant = |m: &&Matrix| ty.is_none_or(|ty| m.ty() == ty);
        self.matrices().filter(meant).for_each(|m| m.set_reading(reading));
        if let Some(slots) = &self.slots {
            slots.set_reading(ty, reading);
        }
    }

    /// A pointer to the tensor, for use in a graph. Nothing may write through it.
    pub fn get(&self, id: Id) -> *mut GgmlTensor {
        let tensor: *const GgmlTensor = &raw const self.tensors[id.0];
        tensor.cast_mut()
    }

    /// Tokens in the vocabulary.
    pub fn vocab(&self) -> usize {
        usize::try_from(self.tensors[self.token_embd.0].ne[1]).unwrap_or(0)
    }
}

/// A tensor of the file that the model uses.
struct WantedTensor<'f> {
    info: GgufTensor<'f>,
    ty: TensorType,
    /// Whether activations are multiplied with it.
    multiplied: bool,
}

/// The tensors of a file, from which the model's tensors are taken one by one.
pub(super) struct FileTensors<'f> {
    arch: Arch,
    all: HashMap<&'f str, GgufTensor<'f>>,
    wanted: Vec<WantedTensor<'f>>,
}

impl<'f> FileTensors<'f> {
    fn new(arch: Arch, file: &Gguf<'f>) -> Self {
        Self { arch, all: file.tensors.iter().map(|t| (t.name, *t)).collect(), wanted: Vec::new() }
    }

    fn find(&mut self, name: &str, dims: &[usize], multiplied: bool) -> Result<Option<Id>, ModelError> {
        let Some(info) = self.all.remove(name) else { return Ok(None) };
        let mut expected = [1u64; 4];
        for (e, d) in expected.iter_mut().zip(dims) {
            *e = *d as u64;
        }
        if info.dims != expected {
            return Err(ModelError::Shape {
                name: name.to_owned(),
                found: info.dims.get(..info.dim_count).unwrap_or(&info.dims).to_vec(),
                expected: expected.get(..dims.len()).unwrap_or(&expected).to_vec(),
            });
        }
        let wrong = |found: String, supported| ModelError::Type { name: name.to_owned(), found, supported };
        let Some(ty) = TensorType::from_id(info.type_id) else {
            let known = GgmlType::from_number(info.type_id).map(|t| t.traits().type_name.as_str().to_owned());
            return Err(wrong(known.unwrap_or_else(|| format!("number {}", info.type_id)), SUPPORTED));
        };
        if !multiplied && dims.len() == 1 && ty != TensorType::F32 {
            return Err(wrong(ty.name().to_owned(), "f32"));
        }
        // Kernels read these as words without copying.
        if !info.offset.is_multiple_of(4) {
            return Err(ModelError::Alignment { name: name.to_owned(), offset: info.offset });
        }
        self.wanted.push(WantedTensor { info, ty, multiplied });
        Ok(Some(Id(self.wanted.len() - 1)))
    }

    fn need(&mut self, name: &str, dims: &[usize], multiplied: bool) -> Result<Id, ModelError> {
        self.find(name, dims, multiplied)?.ok_or_else(|| ModelError::MissingTensor(name.to_owned()))
    }

    fn matrix(&mut self, name: &str, dims: &[usize]) -> Result<Id, ModelError> {
        self.need(name, dims, true)
    }

    fn vector(&mut self, name: &str, width: usize) -> Result<Id, ModelError> {
        self.need(name, &[width], false)
    }

    fn feed_forward(
        &mut self,
        layer: usize,
        suffix: &str,
        embd: usize,
        ff: usize,
    ) -> Result<FeedForward, ModelError> {
        let name = |part: &str| format!("blk.{layer}.ffn_{part}{suffix}.weight");
        Ok(FeedForward {
            gate: self.matrix(&name("gate"), &[embd, ff])?,
            up: self.matrix(&name("up"), &[embd, ff])?,
            down: self.matrix(&name("down"), &[ff, embd])?,
        })
    }

    fn second(&mut self, layer: usize, p: &Params) -> Result<Second, ModelError> {
        let Some(e) = p.experts else {
            return Ok(Second::Dense(self.feed_forward(layer, "", p.embd, p.ff)?));
        };
        let name = |part: &str| format!("blk.{layer}.ffn_{part}.weight");
        Ok(Second::Experts(ExpertTensors {
            router: self.matrix(&name("gate_inp"), &[p.embd, e.count])?,
            gate: self.matrix(&name("gate_exps"), &[p.embd, e.ff, e.count])?,
            up: self.matrix(&name("up_exps"), &[p.embd, e.ff, e.count])?,
            down: self.matrix(&name("down_exps"), &[e.ff, p.embd, e.count])?,
            shared_gate: self.matrix(&name("gate_inp_shexp"), &[p.embd])?,
            shared: self.feed_forward(layer, "_shexp", p.embd, e.shared_ff)?,
        }))
    }

    fn layer(&mut self, layer: usize, p: &Params) -> Result<LayerWeights, ModelError> {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let (embd, q, kv) = (p.embd, p.q_width(), p.kv_width());
        let post = p.arch == Arch::Gemma2;
        Ok(LayerWeights {
            attn_norm: self.vector(&name("attn_norm.weight"), embd)?,
            q: self.matrix(&name("attn_q.weight"), &[embd, q])?,
            k: self.matrix(&name("attn_k.weight"), &[embd, kv])?,
            v: self.matrix(&name("attn_v.weight"), &[embd, kv])?,
            q_bias: self.find(&name("attn_q.bias"), &[q], false)?,
            k_bias: self.find(&name("attn_k.bias"), &[kv], false)?,
            v_bias: self.find(&name("attn_v.bias"), &[kv], false)?,
            attn_output: self.matrix(&name("attn_output.weight"), &[q, embd])?,
            attn_post_norm: post
                .then(|| self.vector(&name("post_attention_norm.weight"), embd))
                .transpose()?,
            ffn_norm: self.vector(&name("ffn_norm.weight"), embd)?,
            second: self.second(layer, p)?,
            ffn_post_norm: post.then(|| self.vector(&name("post_ffw_norm.weight"), embd)).transpose()?,
        })
    }
}

/// How [`load`] places matrices.
pub(super) struct LoadOptions<'a> {
    pub isa: Isa,
    pub placement: Placement,
    pub parts: KernelParts,
    /// How experts are kept if not all are in memory, and the file that they are read from.
    pub slots: Option<(&'a SlotSettings, File)>,
    /// Receives the bytes of the file processed since the last call.
    pub progress: &'a mut dyn FnMut(u64),
}

/// Finds, checks and places all tensors.
pub(super) fn load(
    file: &Gguf<'_>,
    map: &Arc<Mmap>,
    p: &Params,
    order: LoadOptions<'_>,
) -> Result<Weights, ModelError> {
    let mut plan = FileTensors::new(p.arch, file);
    let vocab = vocabulary(file, p)?;
    let tied = !plan.all.contains_key("output.weight");
    let token_embd = plan.need("token_embd.weight", &[p.embd, vocab], tied)?;
    let output = if tied { token_embd } else { plan.matrix("output.weight", &[p.embd, vocab])? };
    let output_norm = plan.vector("output_norm.weight", p.embd)?;
    let rope_freqs = plan.find("rope_freqs.weight", &[p.head_dim / 2], false)?;
    let layers = (0..p.layers).map(|i| plan.layer(i, p)).collect::<Result<Vec<_>, _>>()?;
    if let Some(name) = plan.all.keys().min() {
        return Err(ModelError::UnknownTensor { name: (*name).to_owned(), arch: plan.arch.name() });
    }
    let count = order.slots.as_ref().map(|(settings, _)| settings.slots);
    let (placement, bytes) = place(&plan.wanted, order.placement, count)?;
    let parts = KernelParts { layout: placement == Placement::Packed, ..order.parts };
    let in_slots = order
        .slots
        .map(|(settings, file)| {
            InSlots::new(&plan.wanted, &layers, settings, (file, map), (p, parts, order.isa))
        })
        .transpose()?;
    let mut matrices = Vec::new();
    let mut tensors = Vec::with_capacity(plan.wanted.len() + 1);
    for (i, w) in plan.wanted.iter().enumerate() {
        let tensor = describe(w, map)?;
        if let Some(weight) = in_slots.as_ref().and_then(|s| s.weight(i, w).transpose()) {
            matrices.push(weight?);
        } else if w.multiplied {
            matrices.push(matrix(w, map, parts, order.isa)?);
        }
        (order.progress)(w.info.bytes.unwrap_or(0));
        tensors.push(tensor);
    }
    let one = Id(tensors.len());
    tensors.push(number_one());
    let matrices: Box<[Weight]> = matrices.into();
    let multiplied = tensors.iter_mut().zip(&plan.wanted).filter(|(_, w)| w.multiplied);
    for ((tensor, _), weight) in multiplied.zip(&matrices) {
        tensor.extra = (&raw const *weight).cast_mut().cast();
    }
    Ok(Weights {
        tensors: tensors.into(),
        one,
        token_embd,
        output_norm,
        output,
        rope_freqs,
        layers,
        matrices,
        _file: Arc::clone(map),
        bytes,
        placement,
        slots: in_slots.map(|s| s.store),
    })
}

/// Experts of which some are in slots.
struct InSlots {
    store: Arc<ExpertStore>,
    /// By tensor: layer, part of its experts, shape.
    parts: HashMap<usize, (usize, usize, PartShape)>,
}

impl InSlots {
    fn new(
        wanted: &[WantedTensor<'_>],
        layers: &[LayerWeights],
        settings: &SlotSettings,
        (file, map): (File, &Arc<Mmap>),
        (p, kernel_parts, isa): (&Params, KernelParts, Isa),
    ) -> Result<Self, ModelError> {
        let Some(experts) = p.experts else { return Err(SlotError::NoExperts(p.arch.name()).into()) };
        let (mut parts, mut stored) = (HashMap::new(), Vec::with_capacity(layers.len()));
        for (layer, weights) in layers.iter().enumerate() {
            let Second::Experts(e) = weights.second else { continue };
            let mut of_layer = Vec::new();
            // In the order of the graph.
            for (part, id) in [e.gate, e.up, e.down].into_iter().enumerate() {
                let Some(w) = wanted.get(id.0) else { continue };
                let [cols, rows, ..] = w.info.dims.map(|d| usize::try_from(d).unwrap_or(usize::MAX));
                let bytes = w.info.bytes.unwrap_or(0) / experts.count as u64;
                let shape = PartShape::new(w.ty, [cols, rows], bytes, kernel_parts, isa);
                of_layer.push(ExpertPart { offset: w.info.offset, bytes, shape });
                parts.insert(id.0, (layer, part, shape));
            }
            stored.push(of_layer);
        }
        let store = ExpertStore::new(settings, (file, map), experts.count, &stored)?;
        Ok(Self { store: Arc::new(store), parts })
    }

    /// The weights of a tensor, if its experts are in slots. Their scales are not checked, as those of a mapped file are not:
    /// that would read them all.
    fn weight(&self, tensor: usize, w: &WantedTensor<'_>) -> Result<Option<Weight>, ModelError> {
        let Some(&(layer, part, shape)) = self.parts.get(&tensor) else { return Ok(None) };
        let [_, rows, experts, _] = w.info.dims.map(|d| usize::try_from(d).unwrap_or(usize::MAX));
        let weight = Weight::in_slots(self.store.part(layer, part), shape, [rows, experts]);
        weight.map(Some).map_err(|e| ModelError::Kernel { name: w.info.name.to_owned(), why: e.to_string() })
    }
}

/// Tokens in the vocabulary: the rows of the embedding, which must agree with the metadata.
fn vocabulary(file: &Gguf<'_>, p: &Params) -> Result<usize, ModelError> {
    use ggml::gguf::reader::GgufValue;
    let name = "token_embd.weight";
    let Some(info) = file.tensors.iter().find(|t| t.name == name) else {
        return Err(ModelError::MissingTensor(name.to_owned()));
    };
    let [_, rows, ..] = info.dims;
    let disagree = |key: &str, n: u64| {
        Err(ModelError::Key { key: key.to_owned(), why: format!("{n} tokens, but '{name}' has {rows}") })
    };
    if let Some(GgufValue::Array(tokens)) = file.get("tokenizer.ggml.tokens")
        && tokens.len() != rows
    {
        return disagree("tokenizer.ggml.tokens", tokens.len());
    }
    let key = format!("{}.vocab_size", p.arch.name());
    match file.get(&key).and_then(GgufValue::as_u64) {
        Some(n) if n != rows => disagree(&key, n),
        // Token ids are i32.
        _ if rows == 0 || rows > i32::MAX as u64 => disagree(name, 0),
        _ => Ok(usize::try_from(rows).unwrap_or(0)),
    }
}

/// Decides where the matrices go, with this number of expert slots in each layer, and returns their size in bytes.
fn place(
    wanted: &[WantedTensor<'_>],
    asked: Placement,
    slots: Option<usize>,
) -> Result<(Placement, u64), ModelError> {
    let matrices = || wanted.iter().filter(|w| w.multiplied);
    let sum = |bytes: &mut dyn Iterator<Item = u64>| bytes.fold(0, u64::saturating_add);
    let all = sum(&mut matrices().filter_map(|w| w.info.bytes));
    let in_memory = |w: &WantedTensor<'_>| -> Option<u64> {
        let (bytes, [.., experts, _]) = (w.info.bytes?, w.info.dims);
        let slots = slots.filter(|_| w.info.dim_count == 3 && experts > 0)?;
        Some((bytes / experts).saturating_mul(experts.min(slots as u64)))
    };
    let need = sum(&mut matrices().filter_map(|w| in_memory(w).or(w.info.bytes)));
    let fits = memory::available().is_none_or(|free| need <= memory::usable(free));
    match asked {
        Placement::Mapped => Ok((Placement::Mapped, all)),
        Placement::Auto if !fits => Ok((Placement::Mapped, all)),
        Placement::Packed if !fits => {
            let available = memory::usable(memory::available().unwrap_or(0)) / 1_000_000;
            Err(ModelError::Memory { need: need / 1_000_000, available })
        }
        _ => Ok((Placement::Packed, all)),
    }
}

/// The range of a tensor's data in the file. The reader has checked that it exists.
fn range(w: &WantedTensor<'_>) -> Range<usize> {
    let at = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
    let start = at(w.info.offset);
    start..start.saturating_add(at(w.info.bytes.unwrap_or(0)))
}

/// The tensor in the form that graphs use. Vectors must be finite.
fn describe(w: &WantedTensor<'_>, map: &Mmap) -> Result<GgmlTensor, ModelError> {
    let dims = w.info.dims.map(|d| i64::try_from(d).unwrap_or(i64::MAX));
    let mut tensor = GgmlTensor::contiguous(w.ty.into(), dims);
    tensor.set_name(w.info.name);
    let bytes = map.get(range(w)).unwrap_or_default();
    tensor.data = bytes.as_ptr().cast_mut().cast();
    let wrong = (!w.multiplied && w.info.dim_count == 1)
        .then(|| bytes.as_chunks().0.iter().position(|v| !f32::from_le_bytes(*v).is_finite()));
    match wrong.flatten() {
        Some(index) => Err(ModelError::NotFinite { name: w.info.name.to_owned(), index }),
        None => Ok(tensor),
    }
}

/// A tensor with the number 1, which is in no file.
fn number_one() -> GgmlTensor {
    static ONE: f32 = 1.0;
    let mut tensor = GgmlTensor::contiguous(GgmlType::F32, [1; 4]);
    tensor.set_name("one");
    tensor.data = (&raw const ONE).cast_mut().cast();
    tensor
}

fn matrix(w: &WantedTensor<'_>, map: &Arc<Mmap>, parts: KernelParts, isa: Isa) -> Result<Weight, ModelError> {
    if parts.layout {
        check_scales(w, map.get(range(w)).unwrap_or_default())?;
    }
    let [cols, rows, experts, _] = w.info.dims.map(|d| usize::try_from(d).unwrap_or(usize::MAX));
    let file: BytesOwner = Arc::clone(map) as _;
    Weight::new(w.ty, [cols, rows, experts], (&file, range(w)), parts, isa)
        .map_err(|e| ModelError::Kernel { name: w.info.name.to_owned(), why: e.to_string() })
}

/// Block scales and unquantised values must be finite. They are read anyway during packing.
fn check_scales(w: &WantedTensor<'_>, bytes: &[u8]) -> Result<(), ModelError> {
    // An exponent of all ones: infinity or NaN.
    let half = |b: &[u8], at: usize| matches!(b.get(at + 1), Some(high) if high & 0x7c == 0x7c);
    let wrong = |b: &[u8]| match w.ty {
        TensorType::F32 => b.first_chunk().is_some_and(|v| !f32::from_le_bytes(*v).is_finite()),
        TensorType::BF16 => b.first_chunk().is_some_and(|v| u16::from_le_bytes(*v) & 0x7f80 == 0x7f80),
        TensorType::F16 | TensorType::Q4_0 | TensorType::Q8_0 | TensorType::Iq4Nl | TensorType::Iq4Xs => {
            half(b, 0)
        }
        // E8M0 encodes NaN as 255.
        TensorType::Mxfp4 => b.first() == Some(&255),
        TensorType::Q4_1 | TensorType::Q4K | TensorType::Q5K => half(b, 0) || half(b, 2),
        TensorType::Q6K => half(b, b.len().saturating_sub(2)),
    };
    match bytes.chunks_exact(w.ty.block_bytes()).position(wrong) {
        Some(block) => {
            Err(ModelError::NotFinite { name: w.info.name.to_owned(), index: block * w.ty.block() })
        }
        None => Ok(()),
    }
}
