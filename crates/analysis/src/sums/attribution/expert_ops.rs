//! The experts that each layer needed, op by op, and the hit rates of a cache that evicts the least recently used one.
//!
//! An op is the expert multiplications of one layer in one graph: it needs each expert that any of its tokens chose, once.

use std::collections::{BTreeMap, HashMap};

use crate::recorded::calls::{Phase, Timeline};
use crate::recorded::describe::{op_name, tensor_bytes};
use crate::recorded::load::Loaded;
use crate::sums::attribution::pass::EXPERTS;
use ggml::names::fold;
use pfi::expert_ids;
use pfi::record::Experts;

/// Ids from here on are out of range, whatever the file says about the layer: twice the number in the largest
/// models.
pub(super) const MOST: u64 = 1024;

/// The ops of one layer, in recording order.
#[derive(Debug, Clone, Default)]
pub struct LayerOps {
    pub pid: u32,
    /// `None` if neither the ids' nor the weights' name contains it.
    pub layer: Option<u32>,
    /// Name of the tensor of ids.
    pub name: String,
    /// Number of experts: of the weights if they are described, else one more than the largest id.
    pub experts: usize,
    /// Experts chosen per token.
    pub used: u32,
    pub ops: Vec<LayerOp>,
    /// The experts of all ops.
    ids: Vec<u16>,
}

/// One op.
#[derive(Debug, Clone, Copy)]
pub struct LayerOp {
    /// seq of the CPU graph.
    pub graph: u64,
    pub phase: Phase,
    /// Whose experts were read; a prompt's may be only part of them.
    pub tokens: u32,
    from: usize,
    to: usize,
}

impl LayerOps {
    /// The experts of an op, each once, in the order in which its tokens chose them.
    pub fn needed(&self, op: &LayerOp) -> &[u16] {
        self.ids.get(op.from..op.to).unwrap_or_default()
    }

    fn take(&mut self, r: &Experts<'_>, phase: Phase, limit: u64) {
        self.used = self.used.max(r.used);
        // A record may have the rest of an op's tokens.
        if self.ops.last().is_none_or(|op| op.graph != r.graph || r.first == 0) {
            let at = self.ids.len();
            self.ops.push(LayerOp { graph: r.graph, phase, tokens: 0, from: at, to: at });
        }
        let Some(op) = self.ops.last_mut() else { return };
        op.tokens = op.tokens.saturating_add(r.rows);
        for id in expert_ids(r).filter_map(|id| u64::try_from(id).ok().filter(|id| *id < limit)) {
            let id = id as u16;
            if !self.ids.iter().skip(op.from).any(|known| *known == id) {
                self.ids.push(id);
                self.experts = self.experts.max(usize::from(id) + 1);
            }
        }
        op.to = self.ids.len();
    }
}

/// The layers of a recording, by process and layer. Ops whose ids were not read are missing.
pub fn expert_ops(loaded: &Loaded<'_>, line: &Timeline) -> Vec<LayerOps> {
    let phases = phases(loaded, line);
    let mut layers: BTreeMap<LayerKey, LayerOps> = BTreeMap::new();
    for r in loaded.causes.experts.iter().filter(|r| r.why.is_empty()) {
        let key = layer_key(loaded, r);
        let known = limit(loaded, r).map(|n| n.min(MOST));
        let of = layers.entry(key).or_insert_with(|| LayerOps {
            pid: key.0,
            layer: key.1,
            name: name(loaded, r.ids),
            experts: known.unwrap_or(0) as usize,
            ..LayerOps::default()
        });
        of.take(r, phase(&phases, r), known.unwrap_or(MOST));
    }
    layers.into_values().collect()
}

/// A matrix of all experts of a layer, one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertWeights {
    /// Where it is in the process.
    pub addr: u64,
    pub layer: u32,
    /// Of one expert.
    pub bytes: u64,
    pub experts: u64,
}

/// The weights of a process's experts by address. Those that are not described are missing.
pub fn expert_weights(loaded: &Loaded<'_>, pid: u32) -> Vec<ExpertWeights> {
    let mut weights: BTreeMap<u64, ExpertWeights> = BTreeMap::new();
    for t in loaded.tensors.values().filter(|t| t.known && t.pid == pid && op_name(loaded, t.op) == EXPERTS) {
        let Some(w) = t.src.first().copied().flatten().and_then(|id| loaded.tensors.get(&id)) else {
            continue;
        };
        let layer = fold(&w.name).layer.or_else(|| fold(&t.name).layer);
        let bytes = tensor_bytes(loaded, w).and_then(|all| all.checked_div(w.ne[2]));
        if let (Some(layer), Some(bytes), true) = (layer, bytes, w.known) {
            weights.insert(w.addr, ExpertWeights { addr: w.addr, layer, bytes, experts: w.ne[2] });
        }
    }
    weights.into_values().collect()
}

/// Bytes of each matrix of one expert, for each layer of a process. Layers whose weights are not described are missing.
pub fn expert_matrices(loaded: &Loaded<'_>, pid: u32) -> BTreeMap<u32, Vec<u64>> {
    let mut layers: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    for weights in expert_weights(loaded, pid) {
        layers.entry(weights.layer).or_default().push(weights.bytes);
    }
    layers
}

/// How many experts of ops in decode, and in prompts, would be in a cache of each size: `held[n]` were among the `n + 1` last
/// needed by the layer when the op began.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RecentUse {
    pub decode: RecentCounts,
    pub prefill: RecentCounts,
}

/// Of one phase.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RecentCounts {
    /// Experts that ops needed, each once an op.
    pub needed: u64,
    held: Vec<u64>,
}

impl RecentCounts {
    /// Share of the needed experts in a cache of `slots`; `None` if none was needed.
    pub fn hit_rate(&self, slots: usize) -> Option<f64> {
        let held: u64 = self.held.iter().take(slots).sum();
        (self.needed > 0).then(|| held as f64 / self.needed as f64)
    }

    pub fn merge(&mut self, o: &RecentCounts) {
        self.needed += o.needed;
        self.held.resize(self.held.len().max(o.held.len()), 0);
        self.held.iter_mut().zip(&o.held).for_each(|(sum, n)| *sum += n);
    }
}

/// A cache that evicts the least recently used expert, for all sizes at once: one of `n` slots holds the `n` experts that were
/// needed last. It starts empty; prompts go through it as well.
pub fn recent_use(layer: &LayerOps) -> RecentUse {
    let mut found = RecentUse::default();
    // The last one first.
    let mut recent: Vec<u16> = Vec::with_capacity(layer.experts);
    for op in &layer.ops {
        let needed = layer.needed(op);
        let counts = if op.phase == Phase::Prefill { &mut found.prefill } else { &mut found.decode };
        counts.needed += needed.len() as u64;
        for depth in needed.iter().filter_map(|id| recent.iter().position(|e| e == id)) {
            counts.held.resize(counts.held.len().max(depth + 1), 0);
            if let Some(n) = counts.held.get_mut(depth) {
                *n += 1;
            }
        }
        for id in needed {
            match recent.iter().position(|e| e == id) {
                Some(depth) => {
                    if let Some(above) = recent.get_mut(..=depth) {
                        above.rotate_right(1);
                    }
                }
                None => recent.insert(0, *id),
            }
        }
    }
    found
}

/// Process, layer, and the tensor of ids where the layer is not known.
pub(super) type LayerKey = (u32, Option<u32>, u32);

/// If the layer is not known, each tensor of ids is its own layer.
pub(super) fn layer_key(loaded: &Loaded<'_>, r: &Experts<'_>) -> LayerKey {
    let (pid, layer) = place(loaded, r);
    (pid, layer, if layer.is_some() { 0 } else { r.ids })
}

/// Phase of each CPU graph, by graph number.
pub(super) fn phases(loaded: &Loaded<'_>, line: &Timeline) -> HashMap<u64, Phase> {
    loaded.cpu_graphs.iter().zip(&line.cpu_phase).map(|(g, p)| (g.seq, *p)).collect()
}

/// Prefill or decode; derived from the tokens if the graph does not say.
pub(super) fn phase(phases: &HashMap<u64, Phase>, r: &Experts<'_>) -> Phase {
    match phases.get(&r.graph) {
        Some(Phase::Prefill) => Phase::Prefill,
        Some(Phase::Decode) => Phase::Decode,
        _ if r.tokens > 1 => Phase::Prefill,
        _ => Phase::Decode,
    }
}

/// Name of a tensor of ids.
pub(super) fn name(loaded: &Loaded<'_>, ids: u32) -> String {
    let tensor = loaded.tensors.get(&ids).filter(|t| t.known);
    tensor.map_or_else(|| format!("tensor {ids}"), |t| t.name.to_string())
}

/// Number of experts, if the weights are described.
pub(super) fn limit(loaded: &Loaded<'_>, r: &Experts<'_>) -> Option<u64> {
    loaded.tensors.get(&r.weights).filter(|t| t.known).map(|t| t.ne[2])
}

/// Process and layer of a record, from the names of its tensors.
pub(super) fn place(loaded: &Loaded<'_>, r: &Experts<'_>) -> (u32, Option<u32>) {
    let tensor = |id: u32| loaded.tensors.get(&id);
    let layer = |id: u32| fold(&tensor(id)?.name).layer;
    (tensor(r.ids).map_or(0, |t| t.pid), layer(r.ids).or_else(|| layer(r.weights)))
}

/// Cache sizes that are informative for layers with this many experts; those asked for, if any.
pub fn cache_sizes(asked: &[u32], used: u32, experts: u64) -> Vec<u32> {
    let experts = u32::try_from(experts).unwrap_or(u32::MAX);
    let fitting = [used, used.saturating_mul(2), experts / 4, experts / 2];
    let mut sizes = if asked.is_empty() { fitting.to_vec() } else { asked.to_vec() };
    sizes.retain(|s| *s > 0 && (!asked.is_empty() || *s < experts));
    common::order::by_key(&mut sizes, |s| ((*s).into(), 0));
    sizes.dedup();
    sizes
}

#[cfg(test)]
pub(crate) mod made {
    use super::*;

    /// A layer whose ops needed these experts: graphs from 0, each of one token of decode.
    pub fn layer(experts: usize, ops: &[Vec<u16>]) -> LayerOps {
        let mut of = LayerOps { experts, layer: Some(0), ..LayerOps::default() };
        for (graph, needed) in (0..).zip(ops) {
            let from = of.ids.len();
            of.ids.extend_from_slice(needed);
            of.used = of.used.max(needed.len() as u32);
            of.ops.push(LayerOp { graph, phase: Phase::Decode, tokens: 1, from, to: of.ids.len() });
        }
        of
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ggml::expert_cache::{ExpertPolicy, ExpertSlots};
    use proptest::prelude::*;

    #[test]
    fn what_an_op_needs_is_held_if_it_was_there_when_the_op_began() {
        // Expert 0 again with one other after it; 2 again with 0 and 3 after it.
        let layer = made::layer(4, &[vec![0, 2], vec![0, 3], vec![2, 1]]);
        let found = recent_use(&layer).decode;
        assert_eq!((found.needed, &*found.held), (6, [0, 1, 1].as_slice()));
        assert_eq!(found.hit_rate(2), Some(1.0 / 6.0));
        assert_eq!(found.hit_rate(4), Some(2.0 / 6.0));
        assert_eq!(RecentCounts::default().hit_rate(1), None);
    }

    #[test]
    fn sizes_fit_the_layer_or_are_those_asked_for() {
        assert_eq!(cache_sizes(&[], 4, 60), [4, 8, 15, 30]);
        assert_eq!(cache_sizes(&[], 2, 4), [1, 2]);
        assert_eq!(cache_sizes(&[100, 3], 4, 60), [3, 100]);
    }

    proptest! {
        /// The hits of all sizes at once are those of slots that are filled op by op.
        #[test]
        fn hit_rates_are_those_of_slots(
            ops in prop::collection::vec(prop::collection::hash_set(0u16..12, 3), 1..60),
            slots in 1usize..12,
        ) {
            let ops: Vec<Vec<u16>> = ops.into_iter().map(|op| op.into_iter().collect()).collect();
            let layer = made::layer(12, &ops);
            let mut cache = ExpertSlots::new(ExpertPolicy::Lru, slots, 12);
            let hits: usize = ops.iter().map(|op| cache.need(op, &mut Vec::new())).sum();
            let found = recent_use(&layer).decode;
            let rate = found.hit_rate(slots).unwrap();
            prop_assert!((rate - hits as f64 / found.needed as f64).abs() < 1e-12);
        }
    }
}
