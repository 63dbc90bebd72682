//! Nodes that the CPU computes in graphs with work on a device: on which types, why, and what they cost.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use serde::Serialize;

use super::{PlanWork, Runs, is_cpu};
use crate::recorded::calls::Phase;
use crate::recorded::describe::{copied_name, form, is_leaf, op_desc, op_name};
use crate::recorded::idents::Idents;
use crate::recorded::load::{HitTensors, Loaded};
use crate::sums::ops::OpTimes;
use crate::sums::tables::backend_name;
use common::order;
use ggml::names::fold;
use pfi::record::Tensor;

/// Most views of views that are followed; a recorder has the same limit.
const MAX_DEPTH: usize = 64;

/// Nodes of one op, types and reason that the CPU computed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CpuNodes {
    pub op: String,
    /// Type of the first source, which for a product or a row lookup is the weights'; empty if not known.
    #[serde(rename = "type")]
    pub ty: String,
    /// Types of the result and of all sources: `f32 of q4_0, f32`.
    pub types: String,
    /// Name pattern of one of them, and its types with dimensions.
    pub name: String,
    pub form: String,
    /// How many different types with dimensions there are.
    pub forms: u64,
    pub nodes: u64,
    /// Backends that compute the same op on the same types elsewhere in the recording. Empty: none did.
    pub also_on: Vec<String>,
    pub reason: FallbackReason,
    /// The same in words, with what it was taken from.
    pub why: String,
    /// Time of thread 0 in them; null if not recorded.
    pub cpu_ns: Option<u64>,
    /// Bytes that the scheduler copied to the CPU's memory for them, and from their results to a device; null if a type
    /// is not described.
    pub to_cpu_bytes: Option<u64>,
    pub from_cpu_bytes: Option<u64>,
}

/// Why the CPU computes a node, as far as a recording shows it. The answers of `supports_op` are not observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FallbackReason {
    /// A lookup in the input layer's weights: llama.cpp keeps them in host memory whatever is offloaded.
    InputLayer,
    /// It uses weights in host memory, and the scheduler runs an op where its weights are.
    HostWeights,
    /// It uses a KV cache in host memory.
    HostCache,
    /// A device computes the op in this recording, but only on other types.
    Types,
    /// A device computes the same op on the same types elsewhere, and here its neighbours are on the CPU.
    Neighbours,
    /// No node of the op ran on a device.
    NeverOnDevice,
    Unknown,
}

impl FallbackReason {
    /// As in results.
    pub const fn name(self) -> &'static str {
        match self {
            FallbackReason::InputLayer => "input-layer",
            FallbackReason::HostWeights => "host-weights",
            FallbackReason::HostCache => "host-cache",
            FallbackReason::Types => "types",
            FallbackReason::Neighbours => "neighbours",
            FallbackReason::NeverOnDevice => "never-on-device",
            FallbackReason::Unknown => "unknown",
        }
    }
}

/// Types of the result and the sources.
type Types<'l> = Vec<&'l str>;

/// What devices compute in the complete recording: by op, on which types, and which of them.
pub(super) type OnDevice<'l> = BTreeMap<String, BTreeMap<Types<'l>, Vec<String>>>;

/// What a row of [`CpuNodes`] has in common.
type RowKey<'l> = (String, Types<'l>, FallbackReason, String);

#[derive(Default)]
struct RowSum {
    name: String,
    form: String,
    forms: BTreeSet<String>,
    nodes: u64,
    also_on: Vec<String>,
    cpu_ns: Option<u64>,
    to_cpu: Option<u64>,
    from_cpu: Option<u64>,
}

/// The tensors of a hit that are described.
fn tensors<'l>(loaded: &'l Loaded<'_>, hit: Option<HitTensors>) -> impl Iterator<Item = &'l Tensor> + Clone {
    let ids = hit.into_iter().flat_map(|(first, second)| [Some(first), second]).flatten();
    ids.filter_map(|id| loaded.tensors.get(&id)).filter(|t| t.known)
}

fn types<'l>(loaded: &'l Loaded<'_>, t: &Tensor) -> Types<'l> {
    let name = |t: &Tensor| loaded.types.get(&t.ty).map_or("?", |ty| ty.name);
    let source = |id: &Option<u32>| match id {
        None => "none",
        Some(id) => loaded.tensors.get(id).filter(|t| t.known).map_or("?", name),
    };
    [name(t)].into_iter().chain(t.src.iter().map(source)).collect()
}

/// The tensor that a source is a view of, and its id.
fn root<'l>(loaded: &'l Loaded<'_>, mut id: u32) -> Option<(u32, &'l Tensor)> {
    for _ in 0..MAX_DEPTH {
        let t = loaded.tensors.get(&id).filter(|t| t.known)?;
        let view = matches!(op_name(loaded, t.op), "VIEW" | "RESHAPE" | "PERMUTE" | "TRANSPOSE");
        match t.src.first().copied().flatten().or(t.view_src) {
            Some(next) if view => id = next,
            _ => return Some((id, t)),
        }
    }
    None
}

/// A name without what ggml adds for views of it: `kqv-0 (reshaped)`.
pub(super) fn without_view(name: &str) -> &str {
    name.split_once(" (").map_or(name, |(name, _)| name)
}

/// What devices compute in the complete recording.
pub(super) fn on_device<'l>(loaded: &'l Loaded<'_>, idents: &Idents) -> OnDevice<'l> {
    let mut plans: Vec<(u32, u32)> =
        loaded.splits.iter().filter_map(|s| Some((s.plan?, s.backend))).collect();
    plans.sort_unstable();
    plans.dedup();
    let mut out = OnDevice::new();
    for (plan, backend) in plans {
        let name = backend_name(loaded, backend);
        for ident in idents.of_plan(plan).iter().filter_map(|i| idents.list().get(*i)) {
            for t in tensors(loaded, ident.hit) {
                let backends =
                    out.entry(op_desc(loaded, t.op)).or_default().entry(types(loaded, t)).or_default();
                if !backends.contains(&name) {
                    backends.push(name.clone());
                }
            }
        }
    }
    out
}

/// What one plan of the CPU's shows of its nodes' reasons.
struct SplitNodes<'l, 'a> {
    loaded: &'l Loaded<'a>,
    /// Ids of the tensors that it computes.
    computed: HashSet<u32>,
    /// The roots of their sources.
    used: HashSet<u32>,
    /// Some of its nodes use weights or a cache in host memory.
    anchored: bool,
}

impl<'l, 'a> SplitNodes<'l, 'a> {
    fn new(loaded: &'l Loaded<'a>, idents: &Idents, plan: u32) -> SplitNodes<'l, 'a> {
        let hits = || idents.of_plan(plan).iter().filter_map(|i| idents.list().get(*i)?.hit);
        let computed = hits().flat_map(|(a, b)| [Some(a), b]).flatten().collect();
        let sources = hits().flat_map(|hit| tensors(loaded, Some(hit))).flat_map(|t| t.src.iter().flatten());
        let used = sources.filter_map(|id| Some(root(loaded, *id)?.0)).collect();
        let mut out = SplitNodes { loaded, computed, used, anchored: false };
        let held =
            |hit| matches!(out.held(hit), Some((FallbackReason::HostWeights | FallbackReason::HostCache, _)));
        out.anchored = hits().any(held);
        out
    }

    /// Weights or a cache in host memory that a node uses: the CPU reads them where they are, so there is no copy of
    /// them.
    fn held(&self, hit: HitTensors) -> Option<(FallbackReason, String)> {
        let mut found = None;
        for t in tensors(self.loaded, Some(hit)) {
            for id in t.src.iter().flatten().chain(&t.view_src) {
                let Some((_, leaf)) = root(self.loaded, *id).filter(|(_, t)| is_leaf(self.loaded, t)) else {
                    continue;
                };
                if copied_name(&leaf.name).is_some() {
                    continue;
                }
                let pattern = fold(&leaf.name).pattern.into_owned();
                let weight = pattern.contains(".weight") || pattern.contains(".bias");
                let reason = match op_name(self.loaded, t.op) {
                    // llama.cpp, load_tensors: "very little benefit to offloading the input layer".
                    "GET_ROWS" if weight && is_input_layer(&pattern) => FallbackReason::InputLayer,
                    _ if weight => FallbackReason::HostWeights,
                    _ if pattern.starts_with("cache_") => FallbackReason::HostCache,
                    _ => continue,
                };
                if weight {
                    return Some((reason, pattern));
                }
                found = Some((reason, pattern));
            }
        }
        found
    }

    /// Whether it computes a source of the node, or uses its result.
    fn joined(&self, (first, second): HitTensors) -> bool {
        let own = [Some(first), second];
        let sources = tensors(self.loaded, Some((first, second))).flat_map(|t| t.src.iter().flatten());
        let mut roots = sources.filter_map(|id| Some(root(self.loaded, *id)?.0));
        roots.any(|id| self.computed.contains(&id) && !own.contains(&Some(id)))
            || own.iter().flatten().any(|id| self.used.contains(id) && Some(*id) != second.and(Some(first)))
    }

    /// The reason of a node, in words, and the backends that compute the same on the same types.
    fn reason(&self, hit: HitTensors, devices: &OnDevice<'_>) -> (FallbackReason, String, Vec<String>) {
        let Some(t) = tensors(self.loaded, Some(hit)).next() else {
            return (FallbackReason::Unknown, "not known: it is not described".into(), Vec::new());
        };
        let own = types(self.loaded, t);
        let op = devices.get(&op_desc(self.loaded, t.op));
        let also_on = op.and_then(|of| of.get(&own)).cloned().unwrap_or_default();
        let elsewhere = || format!("{} computes the same op on the same types elsewhere", also_on.join(", "));
        let (reason, why) = match (self.held(hit), op) {
            (Some((FallbackReason::InputLayer, name)), _) => {
                (FallbackReason::InputLayer, format!("the input layer ({name}): always in host memory"))
            }
            (Some((reason, _)), _) => {
                let what = if reason == FallbackReason::HostCache { "KV cache is" } else { "weights are" };
                let may = || "left there, or no device computes this".to_owned();
                let then = if also_on.is_empty() { may() } else { elsewhere() };
                (reason, format!("its {what} in host memory: {then}"))
            }
            (None, Some(_)) if !also_on.is_empty() && self.joined(hit) => {
                (FallbackReason::Neighbours, format!("beside nodes of the CPU; {}", elsewhere()))
            }
            (None, Some(_)) if !also_on.is_empty() => {
                (FallbackReason::Unknown, format!("not its types: {}", elsewhere()))
            }
            (None, _) if self.anchored && self.joined(hit) => {
                (FallbackReason::Neighbours, "beside nodes whose data is in host memory".into())
            }
            (None, Some(of)) => (FallbackReason::Types, other_types(&own, of)),
            (None, None) => {
                (FallbackReason::NeverOnDevice, "no node of this op ran on a device in this recording".into())
            }
        };
        (reason, why, also_on)
    }
}

/// Names of the weights in which llama.cpp's input layer looks up rows (llama-arch.cpp).
fn is_input_layer(name: &str) -> bool {
    ["token_embd", "position_embd", "token_types"].iter().any(|part| name.contains(part))
}

/// How the types differ from the nearest ones that a device computes.
fn other_types(own: &Types<'_>, of: &BTreeMap<Types<'_>, Vec<String>>) -> String {
    let at =
        |types: &Types<'_>, i: usize| types.get(i).map_or_else(|| "none".to_owned(), |t| (*t).to_owned());
    let differ = |types: &Types<'_>| {
        (0..own.len().max(types.len())).filter(|i| at(own, *i) != at(types, *i)).collect::<Vec<_>>()
    };
    let Some((types, backends)) = of.iter().min_by_key(|(types, _)| differ(types).len()) else {
        return "not known".into();
    };
    let slot = |i: &usize| match i.checked_sub(1) {
        None => format!("result {}, not {}", at(own, *i), at(types, *i)),
        Some(source) => format!("source {source} {}, not {}", at(own, *i), at(types, *i)),
    };
    let all: Vec<String> = differ(types).iter().map(slot).collect();
    format!("likely its types: {} as on {}", all.join(", "), backends.join(", "))
}

/// `f32 of q4_0, f32`.
fn types_text(types: &Types<'_>) -> String {
    match types.split_first() {
        None => String::new(),
        Some((result, [])) => (*result).to_owned(),
        Some((result, sources)) => format!("{result} of {}", sources.join(", ")),
    }
}

/// What the rows are made from.
pub(super) struct CpuInput<'i, 'l, 'a> {
    pub loaded: &'l Loaded<'a>,
    pub idents: &'i Idents,
    pub times: &'i OpTimes,
    pub phase: Phase,
    pub runs: &'i Runs,
    pub cache: &'i HashMap<u32, PlanWork>,
}

impl CpuInput<'_, '_, '_> {
    /// Bytes that device splits copied from each result, by the result's name.
    pub fn copied_results(&self) -> HashMap<&str, Option<u64>> {
        let mut out: HashMap<&str, Option<u64>> = HashMap::new();
        for ((_, plan), times) in self.runs.iter().filter(|((b, _), _)| !is_cpu(self.loaded, *b)) {
            for (name, bytes) in plan.and_then(|p| self.cache.get(&p)).iter().flat_map(|w| &w.copied) {
                let sum = out.entry(without_view(name)).or_insert(Some(0));
                *sum = sum.zip(*bytes).map(|(a, b)| a.saturating_add(b.saturating_mul(*times)));
            }
        }
        out
    }

    /// Mean time of a position of a plan, ns.
    fn mean(&self, plan: u32, position: usize) -> Option<f64> {
        let stat = self.times.plans.get(&(plan, self.phase))?.positions.get(position)?;
        (stat.timed > 0).then(|| stat.total as f64 / stat.timed as f64)
    }
}

/// The nodes left to the CPU in these runs, most nodes first.
pub(super) fn on_cpu<'l>(input: &CpuInput<'_, 'l, '_>, devices: &OnDevice<'l>) -> Vec<CpuNodes> {
    let (loaded, idents) = (input.loaded, input.idents);
    let mut results = input.copied_results();
    let mut sums: BTreeMap<RowKey<'l>, RowSum> = BTreeMap::new();
    for ((_, plan), times) in input.runs.iter().filter(|((backend, _), _)| is_cpu(loaded, *backend)) {
        let Some(plan) = *plan else { continue };
        let split = SplitNodes::new(loaded, idents, plan);
        let mut copied = HashSet::new();
        for (position, i) in idents.of_plan(plan).iter().enumerate() {
            let Some(ident) = idents.list().get(*i) else { continue };
            let Some((hit, first)) = ident.hit.zip(tensors(loaded, ident.hit).next()) else { continue };
            let (reason, why, also_on) = split.reason(hit, devices);
            let new = || RowSum { to_cpu: Some(0), from_cpu: Some(0), also_on, ..RowSum::default() };
            let key = (ident.op.clone(), types(loaded, first), reason, why);
            let sum = sums.entry(key).or_insert_with(new);
            let form = form(loaded, ident.hit);
            if sum.name.is_empty() {
                (sum.name, sum.form) = (ident.name.clone(), form.clone());
            }
            sum.forms.insert(form);
            sum.nodes = sum.nodes.saturating_add(*times);
            if let Some(ns) = input.mean(plan, position) {
                let ns = (ns * *times as f64) as u64;
                sum.cpu_ns = Some(sum.cpu_ns.unwrap_or_default().saturating_add(ns));
            }
            for t in tensors(loaded, ident.hit) {
                for (_, bytes) in super::copies_of(loaded, t, &mut copied) {
                    let all = bytes.map(|b| b.saturating_mul(*times));
                    sum.to_cpu = sum.to_cpu.zip(all).map(|(a, b)| a.saturating_add(b));
                }
                if let Some(bytes) = results.remove(without_view(&t.name)) {
                    sum.from_cpu = sum.from_cpu.zip(bytes).map(|(a, b)| a.saturating_add(b));
                }
            }
        }
    }
    let row = |((op, types, reason, why), sum): (RowKey<'_>, RowSum)| CpuNodes {
        op,
        ty: types
            .get(1)
            .filter(|ty| !matches!(**ty, "?" | "none"))
            .map_or_else(String::new, |ty| (*ty).to_owned()),
        types: types_text(&types),
        name: sum.name,
        form: sum.form,
        forms: sum.forms.len() as u64,
        nodes: sum.nodes,
        also_on: sum.also_on,
        reason,
        why,
        cpu_ns: sum.cpu_ns,
        to_cpu_bytes: sum.to_cpu,
        from_cpu_bytes: sum.from_cpu,
    };
    let mut rows: Vec<CpuNodes> = sums.into_iter().map(row).collect();
    order::by(&mut rows, |a, b| {
        b.nodes.cmp(&a.nodes).then_with(|| (&a.op, &a.types, &a.why).cmp(&(&b.op, &b.types, &b.why)))
    });
    rows
}
