//! AECS as the MNN-AECS paper (arXiv 2506.19884) gives it, to compare the search of `tune` with.
//!
//! Stage 1: the largest core, then one more at a time, largest first, until speed no longer rises; efficiency cores are not
//! considered. Stage 2: a tree from that set, each transformation giving at most one node: a) without the smallest core, b)
//! without the two smallest, both on the first level only, c) the smallest core that can be swapped for one of a smaller
//! selected cluster, d) a selected cluster moved to an unselected smaller one that has room. All nodes are measured, and of
//! those within the slack of stage 1's speed the one with the least E_h = (1 - alpha) E + alpha h t is taken.
//!
//! Where the paper's words leave a choice, Figure 6 decides (five candidates on the Mate 40 Pro): its tree has no efficiency
//! core, although the words allow them in stage 2, and nothing below b). The paper does not publish alpha (a quarter in the
//! authors' program), nor h's constants (src/law.rs has the rule); h is scaled to the watts of the fastest set.

use tune::{Candidate, Machine, Measure, Sample, Stage};

/// b and P_s of h.
const IDLE_SHARE: f64 = 0.1;
const BASE: f64 = 0.3;
const ALPHA: f64 = 0.25;

/// What the published search answers.
pub struct Published {
    pub chosen: Option<Candidate>,
    pub tests: u32,
}

struct Run<'a> {
    machine: &'a Machine,
    measure: &'a mut dyn Measure,
    tests: u32,
}

/// Runs it with this slack (published: 0.08).
pub fn aecs(machine: &Machine, slack: f64, measure: &mut dyn Measure) -> Published {
    let mut run = Run { machine, measure, tests: 0 };
    let chosen = run.search(slack);
    Published { chosen, tests: run.tests }
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
        self.tests += 1;
        let sample = self.measure.measure(&candidate, stage).ok()?;
        Some((candidate, sample))
    }

    fn search(&mut self, slack: f64) -> Option<Candidate> {
        let (root, fastest) = self.fastest()?;
        let mut able: Vec<(Candidate, Sample)> =
            tree(self.machine, &root).iter().filter_map(|c| self.sample(c, Stage::Tree)).collect();
        let watts = |s: &Sample| s.joules_per_token.map(|e| e * s.tokens_per_s);
        let scale = able.first().and_then(|(c, s)| Some(watts(s)? / h(self.machine, c)));
        able.retain(|(_, s)| s.tokens_per_s >= (1.0 - slack) * fastest);
        let objective = |(c, s): &(Candidate, Sample)| {
            let foretold = h(self.machine, c) / s.tokens_per_s;
            match (s.joules_per_token, scale) {
                (Some(e), Some(scale)) => (1.0 - ALPHA) * e + ALPHA * foretold * scale,
                _ => foretold,
            }
        };
        let best = able.into_iter().min_by(|a, b| objective(a).total_cmp(&objective(b)));
        best.map(|(c, _)| c).or_else(|| self.machine.candidate(&root))
    }

    /// The fastest set and its speed.
    fn fastest(&mut self) -> Option<(Vec<u32>, f64)> {
        let mut counts = vec![0; self.machine.clusters.len()];
        let mut best: Option<(Vec<u32>, f64)> = None;
        for i in 0..counts.len() {
            if efficient(self.machine, i) {
                break;
            }
            for _ in &self.machine.clusters[i].cpus {
                counts[i] += 1;
                let speed = self.sample(&counts, Stage::Walk)?.1.tokens_per_s;
                if best.as_ref().is_some_and(|(_, most)| speed <= *most) {
                    return best;
                }
                best = Some((counts.clone(), speed));
            }
        }
        best
    }
}

/// A last cluster with at most half of the largest capacity; where capacities are unknown, a third cluster or later.
fn efficient(machine: &Machine, i: usize) -> bool {
    let last = i > 0 && i + 1 == machine.clusters.len();
    last && machine.weights().map_or(i >= 2, |w| w[i] <= 0.5)
}

/// The candidates of stage 2, the root first.
pub fn tree(machine: &Machine, root: &[u32]) -> Vec<Vec<u32>> {
    let without = removed(root);
    let two = without.as_deref().and_then(removed);
    let first: Vec<Vec<u32>> =
        without.into_iter().chain(swapped(machine, root)).chain(moved(machine, root)).collect();
    let second = first.iter().flat_map(|c| swapped(machine, c).into_iter().chain(moved(machine, c)));
    let second: Vec<Vec<u32>> = second.collect();
    let mut all = vec![root.to_vec()];
    for counts in first.into_iter().chain(two).chain(second) {
        if !all.contains(&counts) {
            all.push(counts);
        }
    }
    all
}

/// a), and b) if repeated.
fn removed(counts: &[u32]) -> Option<Vec<u32>> {
    let mut less = counts.to_vec();
    *less.iter_mut().rev().find(|n| **n > 0)? -= 1;
    less.iter().any(|n| *n > 0).then_some(less)
}

/// c)
fn swapped(machine: &Machine, counts: &[u32]) -> Option<Vec<u32>> {
    let (from, to) = pair(machine, counts, |_, to| counts[to] > 0 && counts[to] < size(machine, to))?;
    let mut next = counts.to_vec();
    (next[from], next[to]) = (counts[from] - 1, counts[to] + 1);
    Some(next)
}

/// d)
fn moved(machine: &Machine, counts: &[u32]) -> Option<Vec<u32>> {
    let (from, to) = pair(machine, counts, |from, to| counts[to] == 0 && counts[from] <= size(machine, to))?;
    let mut next = counts.to_vec();
    (next[from], next[to]) = (0, counts[from]);
    Some(next)
}

/// The smallest selected cluster that has a smaller one that serves, and the nearest of those.
fn pair(machine: &Machine, counts: &[u32], serves: impl Fn(usize, usize) -> bool) -> Option<(usize, usize)> {
    let selected = (0..counts.len()).rev().filter(|i| counts[*i] > 0);
    let pairs = selected.flat_map(|from| (from + 1..counts.len()).map(move |to| (from, to)));
    pairs.into_iter().find(|(from, to)| !efficient(machine, *to) && serves(*from, *to))
}

fn size(machine: &Machine, i: usize) -> u32 {
    u32::try_from(machine.clusters[i].cpus.len()).unwrap_or(u32::MAX)
}
