//! AECS as the MNN-AECS paper gives it, to compare the search of `tune` with.
//!
//! Stage 1: the largest core, then one more at a time, largest first, until speed no longer rises; efficiency cores are not
//! considered. Stage 2: a tree of depth two from the fastest set: a) without its smallest core, b) without its two smallest
//! (first level only), c) a larger core swapped for one of a smaller selected cluster, d) a selected cluster moved to an
//! unselected smaller one. Of those within the slack, by one sample each, the least E_h = (1 - alpha) E + alpha h t.
//! The paper does not publish alpha, nor h's constants (src/law.rs has the rule); h is scaled to the watts of the fastest
//! set.

use std::collections::HashMap;

use tune::{Candidate, Machine, Measure, Sample, Stage};

/// b and P_s of h.
const IDLE_SHARE: f64 = 0.1;
const BASE: f64 = 0.3;

/// What the published search answers.
pub struct Published {
    pub chosen: Option<Candidate>,
    pub tests: u32,
}

struct Run<'a> {
    machine: &'a Machine,
    measure: &'a mut dyn Measure,
    seen: HashMap<Candidate, Option<Sample>>,
}

/// Runs it with this slack (published: 0.08) and alpha.
pub fn aecs(machine: &Machine, slack: f64, alpha: f64, measure: &mut dyn Measure) -> Published {
    let mut run = Run { machine, measure, seen: HashMap::new() };
    let chosen = run.search(slack, alpha);
    Published { chosen, tests: u32::try_from(run.seen.len()).unwrap_or(u32::MAX) }
}

/// h by the rule alone, in multiples of the largest core's power, of a set without siblings.
pub fn h(machine: &Machine, candidate: &Candidate) -> f64 {
    let weights = machine.weights().unwrap_or_else(|| vec![1.0; machine.clusters.len()]);
    let taken: Vec<f64> = machine.counts(candidate).into_iter().map(f64::from).collect();
    let used = weights.iter().zip(&taken).filter(|(_, n)| **n > 0.0).map(|(w, _)| *w);
    let clock = used.fold(0.0, f64::max).powi(2);
    let each = machine.clusters.iter().zip(weights).zip(taken);
    let power = |((c, w), n): ((&tune::Cluster, f64), f64)| {
        w * w * clock * (n + (c.cpus.len() as f64 - n) * IDLE_SHARE)
    };
    BASE + each.map(power).sum::<f64>()
}

impl Run<'_> {
    fn sample(&mut self, counts: &[u32], stage: Stage) -> Option<(Candidate, Sample)> {
        let candidate = self.machine.candidate(counts)?;
        if !self.seen.contains_key(&candidate) {
            let sample = self.measure.measure(&candidate, stage).ok();
            self.seen.insert(candidate.clone(), sample);
        }
        let sample = (*self.seen.get(&candidate)?)?;
        Some((candidate, sample))
    }

    fn search(&mut self, slack: f64, alpha: f64) -> Option<Candidate> {
        let (fastest, top) = self.fastest()?;
        let mut level: Vec<Vec<u32>> = self.children(&fastest, true);
        let deeper: Vec<Vec<u32>> = level.iter().flat_map(|c| self.children(c, false)).collect();
        level.insert(0, fastest.clone());
        level.extend(deeper);
        let mut done: Vec<Vec<u32>> = Vec::new();
        let machine = self.machine;
        let scale = top.1.joules_per_token.map(|e| e * top.1.tokens_per_s / h(machine, &top.0));
        let mut best: Option<(f64, Candidate)> = None;
        for counts in level {
            if done.contains(&counts) {
                continue;
            }
            done.push(counts.clone());
            let Some((candidate, sample)) = self.sample(&counts, Stage::Tree) else { continue };
            if sample.tokens_per_s < (1.0 - slack) * top.1.tokens_per_s {
                continue;
            }
            let watts = h(machine, &candidate);
            let objective = match (sample.joules_per_token, scale) {
                (Some(e), Some(scale)) => (1.0 - alpha) * e + alpha * watts * scale / sample.tokens_per_s,
                _ => watts / sample.tokens_per_s,
            };
            if best.as_ref().is_none_or(|(least, _)| objective < *least) {
                best = Some((objective, candidate));
            }
        }
        best.map(|(_, c)| c)
    }

    fn fastest(&mut self) -> Option<(Vec<u32>, (Candidate, Sample))> {
        let mut counts = vec![0; self.machine.clusters.len()];
        let mut best: Option<(Vec<u32>, (Candidate, Sample))> = None;
        for i in 0..counts.len() {
            if self.efficient(i) {
                break;
            }
            for n in 1..=self.machine.clusters[i].cpus.len() {
                counts[i] = u32::try_from(n).unwrap_or(u32::MAX);
                let found = self.sample(&counts, Stage::Walk)?;
                if best.as_ref().is_some_and(|(_, (_, b))| found.1.tokens_per_s <= b.tokens_per_s) {
                    return best;
                }
                best = Some((counts.clone(), found));
            }
        }
        best
    }

    /// A last cluster with at most half of the largest capacity; where capacities are unknown, a third cluster or later.
    fn efficient(&self, i: usize) -> bool {
        let last = i > 0 && i + 1 == self.machine.clusters.len();
        last && self.machine.weights().map_or(i >= 2, |w| w[i] <= 0.5)
    }

    fn children(&self, counts: &[u32], first: bool) -> Vec<Vec<u32>> {
        let size = |i: usize| u32::try_from(self.machine.clusters[i].cpus.len()).unwrap_or(u32::MAX);
        let selected: Vec<usize> = (0..counts.len()).filter(|i| counts[*i] > 0).collect();
        let without = |counts: &[u32]| {
            let mut less = counts.to_vec();
            if let Some(n) = less.iter_mut().rev().find(|n| **n > 0) {
                *n -= 1;
            }
            less
        };
        let mut out = vec![without(counts)];
        if first {
            out.push(without(&without(counts)));
        }
        for (k, &from) in selected.iter().enumerate() {
            for &to in selected.get(k + 1..).unwrap_or_default() {
                if counts[to] < size(to) {
                    let mut swapped = counts.to_vec();
                    swapped[from] -= 1;
                    swapped[to] += 1;
                    out.push(swapped);
                }
            }
            for to in (from + 1..counts.len()).filter(|to| counts[*to] == 0) {
                let mut moved = counts.to_vec();
                moved[from] = 0;
                moved[to] = counts[from].min(size(to));
                out.push(moved);
            }
        }
        out.retain(|c| c.iter().any(|n| *n > 0));
        out
    }
}
