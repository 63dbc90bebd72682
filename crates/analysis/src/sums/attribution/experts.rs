//! The experts each layer chose: how often, how soon again, and the hit rate of a cache of a few experts per
//! layer.
//!
//! Reuse covers decode only, token by token in recording order. The cache of a layer starts empty, serves prompts and
//! decode in recording order, and evicts the least recently used expert; its hit rate is that of decode.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use super::expert_ops::{
    LayerKey, MOST, RecentCounts, cache_sizes, expert_ops, layer_key, limit, name, phase, phases, place,
    recent_use,
};
use super::pass::Misses;
use crate::recorded::calls::{Phase, Timeline};
use crate::recorded::load::Loaded;
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
    /// Share of the experts that decode needed, each once a graph, that were in the cache when the layer's op began.
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

/// Counts of one layer, or of all layers.
#[derive(Default)]
struct ExpertCounts {
    tokens: u64,
    first_uses: u64,
    /// Choices by the number of tokens since the last use.
    distance: BTreeMap<u64, u64>,
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
    /// The token each expert was last used for.
    last: BTreeMap<u64, u64>,
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
    let mut layers: BTreeMap<LayerKey, LayerExperts> = BTreeMap::new();
    let mut unread: BTreeMap<(Option<u32>, &str), u64> = BTreeMap::new();
    let mut out_of_range = 0;
    for r in &loaded.causes.experts {
        let (_, layer) = place(loaded, r);
        if !r.why.is_empty() {
            *unread.entry((layer, r.why)).or_default() += 1;
            continue;
        }
        let of = layers.entry(layer_key(loaded, r)).or_default();
        out_of_range += of.take(loaded, r, phase(&phases, r));
    }
    let used = layers.values().map(|l| l.used).max().unwrap_or(0);
    let most = layers.values().map(|l| l.experts.unwrap_or(l.decode.len() as u64)).max().unwrap_or(0);
    let sizes = cache_sizes(caches, used, most);
    let recent: Vec<RecentCounts> = expert_ops(loaded, line).iter().map(|l| recent_use(l).decode).collect();
    let mut together = RecentCounts::default();
    recent.iter().for_each(|l| together.merge(l));
    let mut sum = ExpertCounts::default();
    layers.values().for_each(|l| sum.merge(&l.counts));
    let rows: Vec<ExpertLayer> = layers
        .into_iter()
        .zip(&recent)
        .map(|(((pid, layer, _), l), recent)| ExpertLayer {
            pid,
            layer,
            usage: l.counts.usage(rows_of(&sizes, recent), effective(&l.decode)),
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
        all: sum.usage(rows_of(&sizes, &together), mean),
        out_of_range,
        unread,
        miss: misses(None),
    })
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

fn rows_of(sizes: &[u32], recent: &RecentCounts) -> Vec<CacheRow> {
    sizes.iter().map(|n| CacheRow { experts: *n, hit_rate: recent.hit_rate(*n as usize) }).collect()
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
    }
}

impl ExpertCounts {
    fn merge(&mut self, o: &ExpertCounts) {
        self.tokens = self.tokens.max(o.tokens);
        self.first_uses += o.first_uses;
        o.distance.iter().for_each(|(d, n)| *self.distance.entry(*d).or_default() += n);
    }

    fn usage(&self, caches: Vec<CacheRow>, effective_experts: Option<f64>) -> ExpertUsage {
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
        ExpertUsage {
            tokens: self.tokens,
            choices,
            effective_experts,
            first_uses: self.first_uses,
            reuse_mean: (again > 0).then(|| sum / again as f64),
            reuse_p50: rank(50),
            reuse_p90: rank(90),
            reuse: reuse.collect(),
            caches,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    fn layer(tokens: &[&[u64]]) -> LayerExperts {
        let mut l = LayerExperts::default();
        for token in tokens {
            l.counts.tokens += 1;
            token.iter().for_each(|id| l.choice(*id, Phase::Decode));
        }
        l
    }

    #[test]
    fn distances_count_tokens() {
        // Expert 0 again after 1 token; expert 2 after 2 tokens, with 0 and 3 in between.
        let l = layer(&[&[0, 2], &[0, 3], &[2, 1]]);
        let usage = l.counts.usage(Vec::new(), effective(&l.decode));
        assert_eq!((usage.tokens, usage.choices, usage.first_uses), (3, 6, 4));
        assert_eq!((usage.reuse_mean, usage.reuse_p50, usage.reuse_p90), (Some(1.5), Some(1), Some(2)));
        let of: Vec<_> = usage.reuse.iter().map(|r| r.choices).collect();
        assert_eq!(of, [1, 1, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn equal_use_of_four_is_as_many_as_four() {
        assert!((effective(&[5, 5, 0, 5, 5]).unwrap() - 4.0).abs() < 1e-9);
        assert_eq!(effective(&[7]), Some(1.0));
        assert_eq!(effective(&[0, 0]), None);
    }
}
