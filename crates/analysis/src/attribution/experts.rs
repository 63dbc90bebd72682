//! The experts each layer chose: how often, how soon again, and the hit rate of a cache of a few experts per
//! layer.
//!
//! Reuse and caches cover decode only, token by token in recording order. The cache of a layer starts empty and
//! evicts the least recently used expert.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use super::pass::Misses;
use crate::calls::{Phase, Timeline};
use crate::load::Loaded;
use common::order;
use ggml::names::fold;
use pfi::expert_ids;
use pfi::record::Experts;

/// Expert usage of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ExpertReport {
    /// Per layer.
    pub layers: Vec<ExpertLayer>,
    /// All layers combined.
    pub all: ExpertUsage,
    /// Chosen ids that belong to no expert; excluded from all other figures.
    pub out_of_range: u64,
    /// Tensors of ids that could not be read, by reason.
    pub unread: Vec<Unread>,
    /// What page faults cost in the experts' multiplications; null if major faults were not counted.
    pub miss: Option<Misses>,
}

/// Expert usage of one layer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ExpertLayer {
    pub pid: u32,
    /// Null if neither the ids' nor the weights' name contains it.
    pub layer: Option<u32>,
    /// Name of the tensor of ids.
    pub name: String,
    /// Number of experts; null if the weights are not described.
    pub experts: Option<u64>,
    /// How often each expert was chosen, expert 0 first.
    pub decode: Vec<u64>,
    pub prefill: Vec<u64>,
    pub prefill_tokens: u64,
    pub usage: ExpertUsage,
    /// As in [`ExpertReport::miss`].
    pub miss: Option<Misses>,
}

/// How experts were used in decode.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ExpertUsage {
    pub tokens: u64,
    /// Choices: tokens times experts per token.
    pub choices: u64,
    /// Two to the power of the entropy of the choices: the number of equally likely experts that would be as hard
    /// to predict. Null without choices; the mean over layers for all layers combined.
    pub effective_experts: Option<f64>,
    /// Choices of an expert that the layer had not used before.
    pub first_uses: u64,
    /// For the other choices: tokens since the layer last used the expert (1: the previous token).
    pub reuse_mean: Option<f64>,
    pub reuse_p50: Option<u64>,
    pub reuse_p90: Option<u64>,
    /// Choices by that distance; the last row has all greater distances.
    pub reuse: Vec<Reuse>,
    pub caches: Vec<CacheRow>,
}

/// Choices whose distance is at most this and above the previous row's.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Reuse {
    /// Null: any distance.
    pub up_to: Option<u64>,
    pub choices: u64,
}

/// A cache of this many experts per layer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CacheRow {
    pub experts: u32,
    /// Share of the choices that were in the cache.
    pub hit_rate: Option<f64>,
}

/// Tensors of ids that could not be read.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Unread {
    pub layer: Option<u32>,
    pub tensors: u64,
    pub why: String,
}

/// Upper bounds of the rows of [`ExpertUsage::reuse`].
const REUSE: [u64; 6] = [1, 2, 4, 8, 16, 32];
/// Ids from here on are out of range, whatever the file says about the layer: twice the number in the largest
/// models.
const MOST: u64 = 1024;

/// Counts of one layer, or of all layers.
#[derive(Default)]
struct ExpertCounts {
    tokens: u64,
    first_uses: u64,
    /// Choices by the number of tokens since the last use.
    distance: BTreeMap<u64, u64>,
    /// Choices by the number of other experts used since the last use.
    depth: BTreeMap<usize, u64>,
}

#[derive(Default)]
struct LayerExperts {
    name: String,
    experts: Option<u64>,
    used: u32,
    decode: Vec<u64>,
    prefill: Vec<u64>,
    prefill_tokens: u64,
    counts: ExpertCounts,
    /// The token each expert was last used for, and the experts by age of last use.
    last: BTreeMap<u64, u64>,
    recent: Vec<u64>,
}

/// Expert usage from the records of experts; `None` if there are none. `caches`: cache sizes to report; if empty,
/// suitable sizes are chosen. `misses` gives the faults in the multiplications of a layer (`None`: all layers).
pub fn experts(
    loaded: &Loaded<'_>,
    line: &Timeline,
    caches: &[u32],
    misses: impl Fn(Option<u32>) -> Option<Misses>,
) -> Option<ExpertReport> {
    if loaded.causes.experts.is_empty() {
        return None;
    }
    let phases = phases(loaded, line);
    let mut layers: BTreeMap<(u32, Option<u32>, u32), LayerExperts> = BTreeMap::new();
    let mut unread: BTreeMap<(Option<u32>, &str), u64> = BTreeMap::new();
    let mut out_of_range = 0;
    for r in &loaded.causes.experts {
        let (pid, layer) = place(loaded, r);
        if !r.why.is_empty() {
            *unread.entry((layer, r.why)).or_default() += 1;
            continue;
        }
        // If the layer is not known, treat each tensor of ids as its own layer.
        let of = layers.entry((pid, layer, if layer.is_some() { 0 } else { r.ids })).or_default();
        out_of_range += of.take(loaded, r, phase(&phases, r));
    }
    let used = layers.values().map(|l| l.used).max().unwrap_or(0);
    let most = layers.values().map(|l| l.experts.unwrap_or(l.decode.len() as u64)).max().unwrap_or(0);
    let sizes = sizes(caches, used, most);
    let mut sum = ExpertCounts::default();
    layers.values().for_each(|l| sum.merge(&l.counts));
    let rows: Vec<ExpertLayer> = layers
        .into_iter()
        .map(|((pid, layer, _), l)| ExpertLayer {
            pid,
            layer,
            usage: l.counts.usage(&sizes, effective(&l.decode)),
            miss: layer.and_then(|l| misses(Some(l))),
            name: l.name,
            experts: l.experts,
            decode: l.decode,
            prefill: l.prefill,
            prefill_tokens: l.prefill_tokens,
        })
        .collect();
    let effective: Vec<f64> = rows.iter().filter_map(|r| r.usage.effective_experts).collect();
    let mean = (!effective.is_empty()).then(|| effective.iter().sum::<f64>() / effective.len() as f64);
    let unread = unread
        .into_iter()
        .map(|((layer, why), tensors)| Unread { layer, tensors, why: why.into() })
        .collect();
    Some(ExpertReport {
        layers: rows,
        all: sum.usage(&sizes, mean),
        out_of_range,
        unread,
        miss: misses(None),
    })
}

/// Phase of each CPU graph, by graph number.
fn phases(loaded: &Loaded<'_>, line: &Timeline) -> HashMap<u64, Phase> {
    loaded.cpu_graphs.iter().zip(&line.cpu_phase).map(|(g, p)| (g.seq, *p)).collect()
}

/// Prefill or decode; derived from the tokens if the graph does not say.
fn phase(phases: &HashMap<u64, Phase>, r: &Experts<'_>) -> Phase {
    match phases.get(&r.graph) {
        Some(Phase::Prefill) => Phase::Prefill,
        Some(Phase::Decode) => Phase::Decode,
        _ if r.tokens > 1 => Phase::Prefill,
        _ => Phase::Decode,
    }
}

/// The choices of decode one by one, for use by other modules.
pub struct Choices<'l, 'a> {
    loaded: &'l Loaded<'a>,
    phases: HashMap<u64, Phase>,
}

/// The experts a layer chose for one token.
pub struct ChosenExperts {
    /// As in [`ExpertLayer`]; layers without a number are distinguished by their tensor of ids.
    pub layer: Option<u32>,
    pub ids: u32,
    /// Number of the CPU graph.
    pub graph: u64,
    /// Number of possible experts, and the chosen ones; ids that belong to no expert are left out.
    pub most: u64,
    pub experts: Vec<u64>,
}

impl<'l, 'a> Choices<'l, 'a> {
    pub fn new(loaded: &'l Loaded<'a>, line: &Timeline) -> Self {
        Choices { loaded, phases: phases(loaded, line) }
    }

    /// The choices of a process, in recording order.
    pub fn of(&self, pid: u32) -> impl Iterator<Item = ChosenExperts> {
        let of_pid = move |r: &&Experts<'_>| {
            r.why.is_empty() && phase(&self.phases, r) == Phase::Decode && place(self.loaded, r).0 == pid
        };
        self.loaded.causes.experts.iter().filter(of_pid).flat_map(|r| {
            let (layer, most) = (place(self.loaded, r).1, limit(self.loaded, r).unwrap_or(MOST).min(MOST));
            let ids: Vec<i64> = expert_ids(r).collect();
            let tokens: Vec<Vec<u64>> =
                ids.chunks((r.used as usize).max(1)).map(|token| experts_in(token, most)).collect();
            let of = (layer, r.ids, r.graph, most);
            tokens.into_iter().map(move |experts| ChosenExperts {
                layer: of.0,
                ids: of.1,
                graph: of.2,
                most: of.3,
                experts,
            })
        })
    }

    /// Name of a tensor of ids.
    pub fn name(&self, ids: u32) -> String {
        name(self.loaded, ids)
    }
}

fn experts_in(token: &[i64], most: u64) -> Vec<u64> {
    token.iter().filter_map(|id| u64::try_from(*id).ok().filter(|id| *id < most)).collect()
}

fn name(loaded: &Loaded<'_>, ids: u32) -> String {
    let tensor = loaded.tensors.get(&ids).filter(|t| t.known);
    tensor.map_or_else(|| format!("tensor {ids}"), |t| t.name.to_string())
}

/// Number of experts, if the weights are described.
fn limit(loaded: &Loaded<'_>, r: &Experts<'_>) -> Option<u64> {
    loaded.tensors.get(&r.weights).filter(|t| t.known).map(|t| t.ne[2])
}

/// Process and layer of a record, from the names of its tensors.
fn place(loaded: &Loaded<'_>, r: &Experts<'_>) -> (u32, Option<u32>) {
    let tensor = |id: u32| loaded.tensors.get(&id);
    let layer = |id: u32| fold(&tensor(id)?.name).layer;
    (tensor(r.ids).map_or(0, |t| t.pid), layer(r.ids).or_else(|| layer(r.weights)))
}

/// Cache sizes that are informative for layers with this many experts.
fn sizes(asked: &[u32], used: u32, experts: u64) -> Vec<u32> {
    let experts = u32::try_from(experts).unwrap_or(u32::MAX);
    let fitting = [used, used.saturating_mul(2), experts / 4, experts / 2];
    let mut sizes = if asked.is_empty() { fitting.to_vec() } else { asked.to_vec() };
    sizes.retain(|s| *s > 0 && (!asked.is_empty() || *s < experts));
    order::by_key(&mut sizes, |s| ((*s).into(), 0));
    sizes.dedup();
    sizes
}

fn effective(counts: &[u64]) -> Option<f64> {
    let all: u64 = counts.iter().sum();
    let entropy: f64 =
        counts.iter().filter(|n| **n > 0).map(|n| *n as f64 / all as f64).map(|p| -p * p.log2()).sum();
    (all > 0).then(|| entropy.exp2())
}

impl LayerExperts {
    /// Adds a record's choices; returns how many belong to no expert.
    fn take(&mut self, loaded: &Loaded<'_>, r: &Experts<'_>, phase: Phase) -> u64 {
        if self.name.is_empty() {
            self.name = name(loaded, r.ids);
        }
        self.experts = self.experts.or_else(|| limit(loaded, r));
        self.used = self.used.max(r.used);
        let limit = self.experts.unwrap_or(MOST).min(MOST);
        let mut out_of_range = 0;
        let ids: Vec<i64> = expert_ids(r).collect();
        for token in ids.chunks((r.used as usize).max(1)) {
            match phase {
                Phase::Prefill => self.prefill_tokens += 1,
                _ => self.counts.tokens += 1,
            }
            for id in token {
                match u64::try_from(*id).ok().filter(|id| *id < limit) {
                    Some(id) => self.choice(id, phase),
                    None => out_of_range += 1,
                }
            }
        }
        out_of_range
    }

    fn choice(&mut self, id: u64, phase: Phase) {
        let counts = if phase == Phase::Prefill { &mut self.prefill } else { &mut self.decode };
        let len = counts.len().max(id as usize + 1).max(self.experts.unwrap_or(0).min(MOST) as usize);
        counts.resize(len, 0);
        if let Some(n) = counts.get_mut(id as usize) {
            *n += 1;
        }
        if phase == Phase::Prefill {
            return;
        }
        let now = self.counts.tokens;
        match self.last.insert(id, now) {
            None => self.counts.first_uses += 1,
            Some(before) => *self.counts.distance.entry(now - before).or_default() += 1,
        }
        if let Some(depth) = self.recent.iter().position(|e| *e == id) {
            *self.counts.depth.entry(depth).or_default() += 1;
            self.recent.remove(depth);
        }
        self.recent.insert(0, id);
    }
}

impl ExpertCounts {
    fn merge(&mut self, o: &ExpertCounts) {
        self.tokens = self.tokens.max(o.tokens);
        self.first_uses += o.first_uses;
        o.distance.iter().for_each(|(d, n)| *self.distance.entry(*d).or_default() += n);
        o.depth.iter().for_each(|(d, n)| *self.depth.entry(*d).or_default() += n);
    }

    fn usage(&self, caches: &[u32], effective_experts: Option<f64>) -> ExpertUsage {
        let again: u64 = self.distance.values().sum();
        let choices = again + self.first_uses;
        // Nearest rank.
        let rank = |percent: u64| {
            let wanted = (again * percent).div_ceil(100);
            let mut seen = 0;
            let reached = |(d, n): (&u64, &u64)| {
                seen += n;
                (seen >= wanted).then_some(*d)
            };
            self.distance.iter().find_map(reached)
        };
        let sum: f64 = self.distance.iter().map(|(d, n)| *d as f64 * *n as f64).sum();
        let mut from = 0;
        let bounds = REUSE.into_iter().map(Some).chain([None]);
        let reuse = bounds.map(|up_to| {
            let to = up_to.map_or(u64::MAX, |d| d + 1);
            let row = Reuse { up_to, choices: self.distance.range(from..to).map(|(_, n)| n).sum() };
            from = to;
            row
        });
        let held = |experts: u32| -> u64 { self.depth.range(..experts as usize).map(|(_, n)| n).sum() };
        let cache = |experts: &u32| CacheRow {
            experts: *experts,
            hit_rate: (choices > 0).then(|| held(*experts) as f64 / choices as f64),
        };
        ExpertUsage {
            tokens: self.tokens,
            choices,
            effective_experts,
            first_uses: self.first_uses,
            reuse_mean: (again > 0).then(|| sum / again as f64),
            reuse_p50: rank(50),
            reuse_p90: rank(90),
            reuse: reuse.collect(),
            caches: caches.iter().map(cache).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn layer(tokens: &[&[u64]]) -> LayerExperts {
        let mut l = LayerExperts::default();
        for token in tokens {
            l.counts.tokens += 1;
            token.iter().for_each(|id| l.choice(*id, Phase::Decode));
        }
        l
    }

    #[test]
    fn distances_count_tokens_and_caches_count_experts() {
        // Expert 0 again after 1 token; expert 2 after 2 tokens, with 0 and 3 in between.
        let l = layer(&[&[0, 2], &[0, 3], &[2, 1]]);
        let usage = l.counts.usage(&[1, 2, 3], effective(&l.decode));
        assert_eq!((usage.tokens, usage.choices, usage.first_uses), (3, 6, 4));
        assert_eq!((usage.reuse_mean, usage.reuse_p50, usage.reuse_p90), (Some(1.5), Some(1), Some(2)));
        let hits: Vec<_> = usage.caches.iter().map(|c| c.hit_rate.unwrap() * 6.0).collect();
        // Expert 0 is reused at depth 1 (only 2 in between), expert 2 at depth 2 (3 and 0 in between).
        assert_eq!(hits, [0.0, 1.0, 2.0]);
        let of: Vec<_> = usage.reuse.iter().map(|r| r.choices).collect();
        assert_eq!(of, [1, 1, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn equal_use_of_four_is_as_many_as_four() {
        assert!((effective(&[5, 5, 0, 5, 5]).unwrap() - 4.0).abs() < 1e-9);
        assert_eq!(effective(&[7]), Some(1.0));
        assert_eq!(effective(&[0, 0]), None);
    }

    #[test]
    fn sizes_fit_the_layer_or_are_those_asked_for() {
        assert_eq!(sizes(&[], 4, 60), [4, 8, 15, 30]);
        assert_eq!(sizes(&[], 2, 4), [1, 2]);
        assert_eq!(sizes(&[100, 3], 4, 60), [3, 100]);
    }

    proptest! {
        /// A cache simulated token by token has the hit rates that the depths predict.
        #[test]
        fn hit_rates_are_those_of_a_cache(
            tokens in prop::collection::vec(prop::collection::vec(0u64..12, 3), 1..60),
            size in 1usize..12,
        ) {
            let refs: Vec<&[u64]> = tokens.iter().map(Vec::as_slice).collect();
            let mut cache: Vec<u64> = Vec::new();
            let mut hits = 0;
            for id in tokens.iter().flatten() {
                if let Some(at) = cache.iter().position(|e| e == id) {
                    cache.remove(at);
                    hits += 1;
                }
                cache.push(*id);
                if cache.len() > size {
                    cache.remove(0);
                }
            }
            let usage = layer(&refs).counts.usage(&[size as u32], None);
            let rate = usage.caches[0].hit_rate.unwrap();
            prop_assert!((rate - f64::from(hits) / usage.choices as f64).abs() < 1e-12);
        }
    }
}
