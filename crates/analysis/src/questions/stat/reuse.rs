//! Expert reuse token by token: which experts were chosen, and the cost when a layer has not used them for long.
//!
//! Covers decode only, in recording order. A token is a graph that has choices of experts.

use std::collections::HashMap;

use serde::Serialize;

use crate::recorded::calls::Timeline;
use crate::recorded::idents::Idents;
use crate::recorded::load::Loaded;
use crate::sums::attribution::counters::{ThreadValues, TraceCounters};
use crate::sums::attribution::experts::{Choices, ChosenExperts};
use crate::sums::attribution::pass::{EXPERTS, MAJOR_FAULTS, counts_of};
use crate::sums::ops::Edges;
use crate::sums::time_series::{median, steady_slope};
use common::order;
use pfi::record::CpuGraph;
use pfi::slice_iter;

/// Time of a layer's expert multiplications as a function of how long ago it last used the token's experts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReuseTimes {
    /// Tokens times layers with known experts and time, and the number of these layers.
    pub n: u64,
    pub layers: u64,
    /// Mean time of a layer's MUL_MAT_ID per token, ns.
    pub mean_ns: f64,
    /// Null if the distance hardly changes.
    pub line: Option<ReuseLine>,
    /// By mean distance of the token's experts, nearest first; tokens with an expert that the layer never used
    /// before are last.
    pub rows: Vec<ReuseRow>,
    /// One of every this many tokens is in `points`.
    pub each: u64,
    /// Single tokens of single layers, in recording order.
    pub points: Vec<ReusePoint>,
}

/// The expert multiplications of one layer for one token.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ReusePoint {
    /// From 0.
    pub token: u64,
    pub layer: u32,
    /// Mean over the experts, in tokens; null if one of them was not used before.
    pub distance: Option<f64>,
    pub ns: f64,
    /// Page faults that waited for storage, of all threads; null if not counted.
    pub major_faults: Option<u64>,
}

/// A line fit to the times within each layer, so that differences between layers have no effect; outliers do not tilt it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReuseLine {
    /// Intercept of the line, ns, for the average layer.
    pub at_zero_ns: f64,
    /// Cost of each additional token since the last use, ns, and its 95 % confidence interval.
    pub ns_per_token: f64,
    pub interval: [f64; 2],
    /// Share of the variance within layers that the line explains.
    pub r2: f64,
    /// It rises, and chance does not explain it.
    pub rises: bool,
}

/// Tokens whose mean distance is at most this and above the previous row's.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReuseRow {
    /// Null: any distance.
    pub up_to: Option<u64>,
    /// One of the experts was not used before: there is no distance.
    pub first_use: bool,
    pub n: u64,
    /// Mean distance, tokens.
    pub distance: Option<f64>,
    /// Mean time, and its difference from the mean of the same layers, ns.
    pub mean_ns: f64,
    pub beyond_ns: f64,
}

/// Upper bounds of the rows, and number of rows: two more for any distance and for first uses.
const UP_TO: [u64; 6] = [1, 2, 4, 8, 16, 32];
const ROWS: usize = UP_TO.len() + 2;
const FIRST_USE: usize = ROWS - 1;
/// A line that is this many standard deviations from no trend is so by chance in 1 % of runs.
const DEVIATIONS: f64 = 2.576;
/// Maximum points of a layer that the line is fitted through, and maximum pairs of them in all layers.
const FITTED: usize = 400;
const PAIRS: usize = 8 << 20;

/// Maximum points kept.
const MOST_POINTS: usize = 4096;

/// The points of evenly chosen tokens, with all layers of each: no layer is favoured.
struct ReusePoints {
    each: u64,
    kept: Vec<ReusePoint>,
}

impl ReusePoints {
    fn take(&mut self, point: ReusePoint) {
        // A token with more layers than that is no model's.
        if !point.token.is_multiple_of(self.each) || self.kept.len() > 2 * MOST_POINTS {
            return;
        }
        self.kept.push(point);
        if self.kept.len() > MOST_POINTS {
            let each = self.each.saturating_mul(2);
            self.kept.retain(|p| p.token.is_multiple_of(each));
            self.each = each;
        }
    }
}

#[derive(Default, Clone, Copy)]
struct RegressionSums {
    n: f64,
    x: f64,
    y: f64,
}

/// Sums of a layer. Times are relative to the first one.
#[derive(Default)]
struct LayerReuse {
    used: HashMap<u64, u64>,
    tokens: u64,
    origin: Option<f64>,
    rows: [RegressionSums; ROWS],
    /// Distance and time of one of every `each` tokens with a distance.
    points: Vec<(f64, f64)>,
    each: u64,
    seen: u64,
}

impl LayerReuse {
    /// Records a token's experts; returns their mean distance, `None` if one was never used before.
    fn distance(&mut self, experts: &[u64]) -> Option<f64> {
        self.tokens += 1;
        let (mut sum, mut first) = (0, experts.is_empty());
        for id in experts {
            match self.used.insert(*id, self.tokens) {
                Some(before) => sum += self.tokens - before,
                None => first = true,
            }
        }
        (!first).then(|| sum as f64 / experts.len() as f64)
    }

    fn time(&mut self, distance: Option<f64>, ns: f64) {
        let y = ns - *self.origin.get_or_insert(ns);
        let row = match distance {
            Some(x) => UP_TO.iter().position(|to| x <= *to as f64).unwrap_or(UP_TO.len()),
            None => FIRST_USE,
        };
        let x = distance.unwrap_or(0.0);
        if let Some(row) = self.rows.get_mut(row) {
            *row = RegressionSums { n: row.n + 1.0, x: row.x + x, y: row.y + y };
        }
        if distance.is_some() {
            if self.seen.is_multiple_of(self.each.max(1)) {
                self.points.push((x, ns));
            }
            self.seen += 1;
            if self.points.len() == FITTED {
                let mut nth = 0;
                self.points.retain(|_| {
                    nth += 1;
                    nth % 2 == 1
                });
                self.each = self.each.max(1) * 2;
            }
        }
    }

    /// Totals of these rows: count, and the sums of distances and of absolute times.
    fn sum(&self, rows: std::ops::Range<usize>) -> RegressionSums {
        let rows = self.rows.get(rows).unwrap_or(&[]).iter();
        let sum = rows.fold(RegressionSums::default(), |a, r| RegressionSums {
            n: a.n + r.n,
            x: a.x + r.x,
            y: a.y + r.y,
        });
        RegressionSums { y: sum.y + sum.n * self.origin.unwrap_or(0.0), ..sum }
    }
}

/// The times of one process; `None` if no choice has a time. Requires `loaded.runs` to be sorted, and the counts in the
/// order of `sort_counts`.
pub fn reuse(loaded: &Loaded<'_>, line: &Timeline, idents: &Idents, pid: u32) -> Option<ReuseTimes> {
    let mut clock = ExpertTimes::new(loaded, idents);
    let mut layers: HashMap<u32, LayerReuse> = HashMap::new();
    let mut points = ReusePoints { each: 1, kept: Vec::new() };
    for ChosenExperts { layer, graph, experts, .. } in Choices::new(loaded, line).of(pid) {
        let Some(number) = layer else { continue };
        let of = layers.entry(number).or_default();
        let distance = of.distance(&experts);
        if let Some(found) = clock.of(graph, number) {
            of.time(distance, found.ns);
            let (token, major_faults) = (of.tokens - 1, found.faults);
            points.take(ReusePoint { token, layer: number, distance, ns: found.ns, major_faults });
        }
    }
    let mut layers: Vec<(u32, LayerReuse)> = layers.into_iter().filter(|(_, l)| l.origin.is_some()).collect();
    // In order, so that floating-point sums are reproducible.
    order::by_key(&mut layers, |(number, _)| ((*number).into(), 0));
    let layers: Vec<LayerReuse> = layers.into_iter().map(|(_, l)| l).collect();
    let all = total(&layers, 0..ROWS);
    (all.n > 0.0).then(|| ReuseTimes {
        n: all.n as u64,
        layers: layers.len() as u64,
        mean_ns: all.y / all.n,
        line: through(&layers),
        rows: (0..ROWS).filter_map(|row| told(&layers, row)).collect(),
        each: points.each,
        points: points.kept,
    })
}

fn total(layers: &[LayerReuse], rows: std::ops::Range<usize>) -> RegressionSums {
    let sums = layers.iter().map(|l| l.sum(rows.clone()));
    sums.fold(RegressionSums::default(), |a, r| RegressionSums { n: a.n + r.n, x: a.x + r.x, y: a.y + r.y })
}

fn told(layers: &[LayerReuse], row: usize) -> Option<ReuseRow> {
    let sum = total(layers, row..row + 1);
    let beyond = |l: &LayerReuse| {
        let (own, all) = (l.sum(row..row + 1), l.sum(0..ROWS));
        own.y - own.n * all.y / all.n.max(1.0)
    };
    let first_use = row == FIRST_USE;
    (sum.n > 0.0).then(|| ReuseRow {
        up_to: UP_TO.get(row).copied(),
        first_use,
        n: sum.n as u64,
        distance: (!first_use).then(|| sum.x / sum.n),
        mean_ns: sum.y / sum.n,
        beyond_ns: layers.iter().map(beyond).sum::<f64>() / sum.n,
    })
}

/// A line with a separate intercept for each layer.
fn through(layers: &[LayerReuse]) -> Option<ReuseLine> {
    let most = (2 * PAIRS / layers.len().max(1)).isqrt().max(2);
    let thinned = |l: &LayerReuse| -> Vec<(f64, f64)> {
        l.points.iter().copied().step_by(l.points.len().div_ceil(most).max(1)).collect()
    };
    let layers: Vec<Vec<(f64, f64)>> = layers.iter().map(thinned).collect();
    let slope = steady_slope(layers.iter().map(Vec::as_slice))?;
    let (mut n, mut at_zero, mut left, mut all) = (0.0, 0.0, 0.0, 0.0);
    for points in &layers {
        let off = |(x, y): &(f64, f64)| y - slope.value * x;
        let intercept = median(&points.iter().map(off).collect::<Vec<f64>>());
        let mean = points.iter().map(|(_, y)| y).sum::<f64>() / points.len().max(1) as f64;
        n += points.len() as f64;
        at_zero += intercept * points.len() as f64;
        left += points.iter().map(|p| (off(p) - intercept).powi(2)).sum::<f64>();
        all += points.iter().map(|(_, y)| (y - mean).powi(2)).sum::<f64>();
    }
    Some(ReuseLine {
        at_zero_ns: at_zero / n,
        ns_per_token: slope.value,
        interval: slope.interval,
        r2: if all > 0.0 { (1.0 - left / all).max(0.0) } else { 0.0 },
        rises: slope.value > 0.0 && slope.deviations > DEVIATIONS,
    })
}

/// What the multiplications with a layer's experts took in one graph.
#[derive(Clone, Copy, Default)]
struct LayerCost {
    ns: f64,
    /// Major page faults of all threads; `None` if a slice has no count.
    faults: Option<u64>,
}

/// Times of the experts' multiplications by graph and layer.
struct ExpertTimes<'l, 'a> {
    loaded: &'l Loaded<'a>,
    idents: &'l Idents,
    counters: TraceCounters,
    graphs: HashMap<u64, &'l CpuGraph>,
    /// The current graph, and its layers' times and faults.
    at: Option<u64>,
    times: HashMap<u32, LayerCost>,
}

impl<'l, 'a> ExpertTimes<'l, 'a> {
    fn new(loaded: &'l Loaded<'a>, idents: &'l Idents) -> Self {
        let whole = |g: &&CpuGraph| !g.cut && g.expected.is_none_or(|n| n == g.seen);
        let graphs = loaded.cpu_graphs.iter().filter(whole).map(|g| (g.seq, g)).collect();
        let counters = TraceCounters::new(loaded);
        ExpertTimes { loaded, idents, counters, graphs, at: None, times: HashMap::new() }
    }

    fn of(&mut self, graph: u64, layer: u32) -> Option<LayerCost> {
        if self.at != Some(graph) {
            self.at = Some(graph);
            self.read(graph);
        }
        self.times.get(&layer).copied()
    }

    fn read(&mut self, graph: u64) {
        self.times.clear();
        let Some(of) = self.graphs.get(&graph) else { return };
        let runs = &self.loaded.runs;
        let from = runs.partition_point(|r| r.graph < graph);
        let slot = self.counters.slot(MAJOR_FAULTS);
        for (i, run) in runs.iter().enumerate().skip(from).take_while(|(_, r)| r.graph == graph) {
            if run.ith != 0 {
                continue;
            }
            let next = runs.get(i + 1).filter(|n| (n.graph, n.plan) == (run.graph, run.plan));
            let edges = Edges::new(run, next, Some(of));
            let idents = self.idents.of_plan(run.plan).iter().skip(run.first as usize);
            for (slice, ident) in slice_iter(run).zip(idents) {
                let Some(layer) = expert_layer(self.idents, *ident) else { continue };
                if let (Some(time), wait) = edges.times(&slice) {
                    let cost = self.times.entry(layer).or_default();
                    cost.ns += time.saturating_add(wait.unwrap_or(0)) as f64;
                    cost.faults = slot.map(|_| 0);
                }
            }
        }
        let Some(slot) = slot else { return };
        let mut told = ThreadValues::default();
        let mut before = None;
        for run in runs.iter().skip(from).take_while(|r| r.graph == graph) {
            if before.replace((run.plan, run.ith)) != Some((run.plan, run.ith)) {
                told.of(counts_of(&self.loaded.causes.counts, run));
            }
            let idents = self.idents.of_plan(run.plan).iter().skip(run.first as usize);
            for ((at, _), ident) in (run.first..).zip(slice_iter(run)).zip(idents) {
                let faults = told.at(&self.counters, at).and_then(|v| v.get(slot).copied().flatten());
                let layer = expert_layer(self.idents, *ident);
                if let Some(cost) = layer.and_then(|layer| self.times.get_mut(&layer)) {
                    cost.faults = cost.faults.zip(faults).map(|(sum, n)| sum.saturating_add(n));
                }
            }
        }
    }
}

/// The layer of a multiplication with experts.
fn expert_layer(idents: &Idents, ident: usize) -> Option<u32> {
    (idents.op(ident) == EXPERTS).then(|| idents.layer(ident))?
}

/// The experts that each layer chose, token by token.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Activation {
    pub tokens: u64,
    /// Tokens per bin; the last bin may have fewer.
    pub tokens_a_bin: u64,
    pub layers: Vec<ActiveLayer>,
    /// Number of layers beyond the limit.
    pub layers_left_out: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ActiveLayer {
    /// Null if no name contains it.
    pub layer: Option<u32>,
    /// Name of the tensor of ids.
    pub name: String,
    /// Number of experts; if not known, the highest chosen expert plus one.
    pub experts: u64,
    /// For each bin of tokens, the experts chosen in it, and how often.
    pub bins: Vec<Vec<(u32, u32)>>,
}

/// Maximum bins of tokens, and maximum numbers kept in total.
const MOST_BINS: u64 = 256;
const MOST_CELLS: usize = 8 << 20;

/// The choices of one process; `None` if there are none.
pub fn activation(loaded: &Loaded<'_>, line: &Timeline, pid: u32) -> Option<Activation> {
    let choices = Choices::new(loaded, line);
    let mut graphs: Vec<u64> = choices.of(pid).map(|c| c.graph).collect();
    order::by_key(&mut graphs, |g| (*g, 0));
    graphs.dedup();
    let tokens = graphs.len() as u64;
    let tokens_a_bin = tokens.div_ceil(MOST_BINS).max(1);
    let bins = tokens.div_ceil(tokens_a_bin) as usize;
    let mut places: HashMap<(Option<u32>, u32), Option<usize>> = HashMap::new();
    let mut layers: Vec<(Option<u32>, String, Vec<u32>)> = Vec::new();
    let (mut cells, mut left_out) = (0, 0);
    for ChosenExperts { layer, ids, graph, experts, most, .. } in choices.of(pid) {
        let place = places.entry((layer, if layer.is_some() { 0 } else { ids })).or_insert_with(|| {
            let own = bins * most as usize;
            if cells + own > MOST_CELLS {
                left_out += 1;
                return None;
            }
            cells += own;
            layers.push((layer, choices.name(ids), vec![0; own]));
            Some(layers.len() - 1)
        });
        let Some((_, _, counts)) = place.and_then(|p| layers.get_mut(p)) else { continue };
        let wide = counts.len() / bins;
        let bin = graphs.partition_point(|g| *g < graph) / tokens_a_bin as usize;
        for id in experts.iter().map(|id| *id as usize).filter(|id| *id < wide) {
            if let Some(n) = counts.get_mut(bin * wide + id) {
                *n = n.saturating_add(1);
            }
        }
    }
    let mut layers: Vec<ActiveLayer> = layers.into_iter().map(|l| active(l, bins)).collect();
    order::by_key(&mut layers, |l| (l.layer.map_or(u64::MAX, u64::from), 0));
    (tokens > 0).then_some(Activation { tokens, tokens_a_bin, layers, layers_left_out: left_out })
}

fn active((layer, name, counts): (Option<u32>, String, Vec<u32>), bins: usize) -> ActiveLayer {
    let wide = counts.len() / bins;
    let numbered = |bin: &[u32]| -> Vec<(u32, u32)> {
        bin.iter().zip(0..).filter(|(n, _)| **n > 0).map(|(n, id)| (id, *n)).collect()
    };
    let bins = counts.chunks(wide.max(1)).map(numbered).collect();
    ActiveLayer { layer, name, experts: wide as u64, bins }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two layers, one of them ten times slower; each additional token since the last use costs 30 ns in both.
    fn layers() -> Vec<LayerReuse> {
        let of = |base: f64| {
            let mut l = LayerReuse::default();
            for i in 0..300u64 {
                let experts = [i % 3, 3 + i * i % 5];
                let distance = l.distance(&experts);
                let chance = (i * 31 % 13) as f64 - 6.0;
                l.time(distance, base + 30.0 * distance.unwrap_or(100.0) + chance);
            }
            l
        };
        vec![of(1_000.0), of(10_000.0)]
    }

    #[test]
    fn distance_costs_the_same_in_layers_of_different_size() {
        let all = layers();
        let line = through(&all).unwrap();
        assert!((line.ns_per_token - 30.0).abs() < 1.0 && line.rises, "{line:?}");
        assert!(line.interval[0] <= 30.0 && line.interval[1] >= 30.0 && line.r2 > 0.9, "{line:?}");
        assert!((line.at_zero_ns - 5_500.0).abs() < 10.0, "{line:?}");
        // A few tokens that took very long do not tilt it.
        let mut disturbed = layers();
        for layer in &mut disturbed {
            for i in 0..10 {
                layer.time(Some(3.0 + f64::from(i)), 5e6);
            }
        }
        let far = through(&disturbed).unwrap();
        assert!((far.ns_per_token - line.ns_per_token).abs() < 1.0 && far.rises, "{far:?}");
        let rows: Vec<ReuseRow> = (0..ROWS).filter_map(|r| told(&all, r)).collect();
        assert_eq!(rows.iter().map(|r| r.n).sum::<u64>(), 600);
        // The larger the distance, the slower; a first use is slowest.
        assert!(rows.windows(2).all(|w| w[0].beyond_ns < w[1].beyond_ns), "{rows:#?}");
        assert!(rows.last().unwrap().first_use && rows.last().unwrap().distance.is_none());
    }

    #[test]
    fn points_are_of_all_layers_of_evenly_chosen_tokens() {
        let mut points = ReusePoints { each: 1, kept: Vec::new() };
        for i in 0..40_000u64 {
            let (token, layer) = (i / 8, (i % 8) as u32);
            points.take(ReusePoint { token, layer, distance: None, ns: 1.0, major_faults: None });
        }
        assert_eq!((points.each, points.kept.len()), (16, 5000 / 16 * 8 + 8));
        let layers = points.kept.iter().take(8).map(|p| (p.token, p.layer));
        assert!(layers.eq((0..8).map(|layer| (0, layer))));
        let mut wide = ReusePoints { each: 1, kept: Vec::new() };
        for layer in 0..30_000 {
            wide.take(ReusePoint { token: 0, layer, distance: None, ns: 1.0, major_faults: None });
        }
        assert_eq!(wide.kept.len(), 2 * MOST_POINTS + 1);
    }

    #[test]
    fn the_same_experts_again_and_again_have_no_line() {
        let mut l = LayerReuse::default();
        for i in 0..50 {
            let distance = l.distance(&[1, 2]);
            l.time(distance, 1000.0 + f64::from(i));
        }
        assert_eq!(l.sum(0..ROWS).n, 50.0);
        assert!(through(&[l]).is_none());
        assert!(through(&[]).is_none());
    }
}
