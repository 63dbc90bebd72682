//! Describes a plan position: op, name pattern, layer, and cost according to the model.

use crate::recorded::load::{HitTensors, Loaded};
use ggml::cost::{OpCost, OpShape, TensorShape, cost, fused_cost};
use ggml::names::fold;
use pfi::record::Tensor;

/// Shown for a position whose tensor was not described (`--no-str`, or a definition that was lost).
pub const NO_STRUCTURE: &str = "(structure not recorded)";
/// Shown for ops whose names carry no layer number.
pub const NO_LAYER: &str = "(no layer)";

/// Description of one position of a plan.
#[derive(Debug, Clone, PartialEq)]
pub struct Ident {
    /// `MUL_MAT`, `RMS_NORM+MUL`.
    pub op: String,
    /// `Qcur-{L}`.
    pub name: String,
    pub layer: Option<u32>,
    /// False: the three fields above are placeholders.
    pub known: bool,
    /// From the cost model; `None` if it does not know the op.
    pub work: Option<OpCost>,
    /// It multiplies with quantised weights, in 8-bit integers.
    pub int8: bool,
    /// Its tensors; [`form`] returns their types and dimensions.
    pub hit: Option<HitTensors>,
}

/// Describes a hit; `None` is a position outside what the trace defines.
pub fn describe(loaded: &Loaded<'_>, position: usize, hit: Option<HitTensors>) -> Ident {
    let tensor = |id: u32| loaded.tensors.get(&id).filter(|t| t.known);
    let Some((first, second)) = hit.and_then(|(first, fused)| Some((tensor(first)?, fused))) else {
        let name = match hit {
            Some(_) => format!("{NO_STRUCTURE} position {position}"),
            None => NO_STRUCTURE.to_string(),
        };
        return Ident {
            op: NO_STRUCTURE.into(),
            name,
            layer: None,
            known: false,
            work: None,
            int8: false,
            hit,
        };
    };
    let fused = second.map(tensor);
    let mut op = op_desc(loaded, first.op);
    match fused {
        Some(Some(t)) => {
            op.push('+');
            op.push_str(&op_desc(loaded, t.op));
        }
        Some(None) => op.push_str("+?"),
        None => {}
    }
    // The result of a fused pair is the second tensor, which is the one that programs name.
    let result = fused.flatten().unwrap_or(first);
    let (name, layer) = name_and_layer(loaded, result, first);
    let work = work(loaded, first, fused);
    Ident { op, name, layer, known: true, work, int8: int8(loaded, first), hit }
}

/// Whether an op reads more than the caches near a core hold and does little else, so that it is limited by
/// memory.
pub fn streams(ident: &Ident) -> bool {
    ident.work.is_some_and(|w| {
        let bytes = w.read.saturating_add(w.written);
        bytes >= 1 << 20 && w.flops / 16 <= bytes
    })
}

/// Type and dimensions of an op's result and of its sources: `f32 2048 of q4_0 2048x2048, f32 2048`.
pub fn form(loaded: &Loaded<'_>, hit: Option<HitTensors>) -> String {
    let known = |id: u32| loaded.tensors.get(&id).filter(|t| t.known);
    let Some(first) = hit.and_then(|(first, _)| known(first)) else { return String::new() };
    let result = hit.and_then(|(_, fused)| known(fused?)).unwrap_or(first);
    let mut out = one_form(loaded, result);
    for (i, source) in first.src.iter().flatten().enumerate() {
        out.push_str(if i == 0 { " of " } else { ", " });
        out.push_str(&known(*source).map_or_else(|| "?".into(), |t| one_form(loaded, t)));
    }
    out
}

/// Name of the type of an op's first source; empty if not known.
pub fn first_type(loaded: &Loaded<'_>, hit: Option<HitTensors>) -> String {
    let first = hit.and_then(|(first, _)| loaded.tensors.get(&first)).filter(|t| t.known);
    let ty = first.and_then(|t| source(loaded, t, 0)).and_then(|t| loaded.types.get(&t.ty));
    ty.map_or_else(String::new, |ty| ty.name.to_string())
}

/// Elements of an op's first source, the matrix of a multiplication; `None` if not known.
pub fn first_elements(loaded: &Loaded<'_>, hit: Option<HitTensors>) -> Option<u64> {
    let first = hit.and_then(|(first, _)| loaded.tensors.get(&first)).filter(|t| t.known)?;
    source(loaded, first, 0)?.ne.iter().try_fold(1u64, |all, n| all.checked_mul(*n))
}

fn one_form(loaded: &Loaded<'_>, t: &Tensor) -> String {
    let mut out = loaded.types.get(&t.ty).map_or_else(|| format!("type#{}", t.ty), |ty| ty.name.to_string());
    let used = t.ne.iter().rposition(|n| *n != 1).unwrap_or(0);
    for (i, n) in t.ne.iter().take(used + 1).enumerate() {
        out.push_str(if i == 0 { " " } else { "x" });
        out.push_str(&n.to_string());
    }
    out
}

/// ggml_op_desc of an op; its number if the trace has no name for it.
pub fn op_desc(loaded: &Loaded<'_>, op: u16) -> String {
    match loaded.ops.get(&op) {
        Some(def) if !def.desc.is_empty() => def.desc.to_string(),
        Some(def) => def.name.to_string(),
        None => format!("op#{op}"),
    }
}

/// GGML_OP_NAME of an op, empty if the trace has none.
pub fn op_name<'a>(loaded: &Loaded<'a>, op: u16) -> &'a str {
    loaded.ops.get(&op).map_or("", |def| def.name)
}

/// True for a tensor that no op computes: weights, inputs, caches.
pub fn is_leaf(loaded: &Loaded<'_>, t: &Tensor) -> bool {
    t.known && t.view_src.is_none() && t.src.iter().all(Option::is_none) && op_name(loaded, t.op) == "NONE"
}

/// The weight that a multiplication or a lookup of rows reads; `None` if it reads none.
pub fn weight<'l>(loaded: &'l Loaded<'_>, t: &Tensor) -> Option<&'l Tensor> {
    let op = op_name(loaded, t.op);
    let reads = matches!(op, "MUL_MAT" | "MUL_MAT_ID" | "GET_ROWS");
    source(loaded, t, 0).filter(|w| reads && is_leaf(loaded, w) && !is_cache(loaded, w))
}

/// Whether a tensor is a cache of keys or values, or a view of one.
pub fn is_cache(loaded: &Loaded<'_>, t: &Tensor) -> bool {
    let root = t.view_src.and_then(|id| loaded.tensors.get(&id)).unwrap_or(t);
    copied_name(&root.name).unwrap_or(&root.name).starts_with("cache_")
}

/// Source `slot` of a tensor, if it is described.
pub fn source<'l>(loaded: &'l Loaded<'_>, t: &Tensor, slot: usize) -> Option<&'l Tensor> {
    let id = (*t.src.get(slot)?)?;
    loaded.tensors.get(&id).filter(|t| t.known)
}

/// The tensor's own name is used; an unnamed node gets its name from its weight, and its layer from any source.
fn name_and_layer(loaded: &Loaded<'_>, result: &Tensor, first: &Tensor) -> (String, Option<u32>) {
    let own = fold(&result.name);
    let nameless = own.pattern.starts_with("node_{N}");
    let mut layer = own.layer;
    let mut name = own.pattern.into_owned();
    let mut weight = None;
    for t in [result, first] {
        for leaf in t.src.iter().flatten().filter_map(|id| loaded.tensors.get(id)) {
            if !is_leaf(loaded, leaf) {
                continue;
            }
            let folded = fold(&leaf.name);
            layer = layer.or(folded.layer);
            if nameless && folded.layer.is_some() {
                weight = weight.or_else(|| Some(folded.pattern.into_owned()));
            }
        }
    }
    if let Some(weight) = weight {
        name = format!("{name} [{weight}]");
    }
    if name.is_empty() {
        name = "(no name)".into();
    }
    (name, layer)
}

fn int8(loaded: &Loaded<'_>, t: &Tensor) -> bool {
    let quantised = |w: &Tensor| loaded.types.get(&w.ty).is_some_and(|ty| ty.block > 1);
    matches!(op_name(loaded, t.op), "MUL_MAT" | "MUL_MAT_ID") && source(loaded, t, 0).is_some_and(quantised)
}

/// FLOPs and bytes of a hit; `None` if the cost model does not know the op, or a source is not described.
fn work(loaded: &Loaded<'_>, first: &Tensor, fused: Option<Option<&Tensor>>) -> Option<OpCost> {
    let sources = shapes(loaded, first)?;
    let op = OpShape { op: op_name(loaded, first.op), node: shape(loaded, first)?, src: &sources };
    let Some(second) = fused else { return cost(&op) };
    let second = second?;
    let sources = shapes(loaded, second)?;
    fused_cost(&op, &OpShape { op: op_name(loaded, second.op), node: shape(loaded, second)?, src: &sources })
}

fn shape(loaded: &Loaded<'_>, t: &Tensor) -> Option<TensorShape> {
    let ty = loaded.types.get(&t.ty)?;
    Some(TensorShape { ne: t.ne, block: ty.block, block_bytes: ty.bytes })
}

fn shapes(loaded: &Loaded<'_>, t: &Tensor) -> Option<Vec<Option<TensorShape>>> {
    let one = |id: &u32| shape(loaded, loaded.tensors.get(id).filter(|s| s.known)?);
    t.src.iter().map(|slot| slot.as_ref().map_or(Some(None), |id| one(id).map(Some))).collect()
}

/// The name of the tensor that one with this name is a copy of. The scheduler names a copy for a backend
/// `BACKEND#NAME#NUMBER` (`ggml_backend_sched_split_graph` in ggml-backend.cpp, since 2024-03).
pub fn copied_name(name: &str) -> Option<&str> {
    let (_, rest) = name.split_once('#')?;
    let (name, number) = rest.rsplit_once('#')?;
    let digits = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    (digits && !name.is_empty()).then_some(name)
}

/// Bytes of a tensor's elements; `None` if its type is not described.
pub fn tensor_bytes(loaded: &Loaded<'_>, t: &Tensor) -> Option<u64> {
    shape(loaded, t)?.bytes()
}
