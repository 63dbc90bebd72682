//! A model fitted to what was measured, to propose the next set. It never decides: a choice rests on measurements.
//!
//! Speed: the cores compute, evenly shared (as fast as the slowest allows) or each as fast as it can, up to what memory
//! delivers. Power: a floor, and for each cluster in use its busy cores and a share for its idle ones. How fast and how
//! hungry a core is starts from its capacity and is corrected by the measurements.

use crate::machine::{Cluster, Machine};
use crate::objective::IDLE_SHARE;
use crate::sets::{Set, Sets};

/// A measured set.
#[derive(Debug, Clone, Copy)]
pub struct Known<'a> {
    pub set: &'a Set,
    pub speed: f64,
    /// Standard error of the speed, relative.
    pub error: f64,
    pub joules: Option<f64>,
}

/// A fit.
#[derive(Debug, Clone)]
pub struct Model {
    evenly: bool,
    /// Logarithms: of the speed of a core of capacity 1, of what memory allows, and of each group's correction.
    speed: Vec<f64>,
    /// Watts: the floor, and a busy core of each cluster; empty without a meter.
    watts: Vec<f64>,
}

/// How sharply memory's limit sets in.
const SHARP: f64 = 4.0;
/// Further hardware threads of a core add this share of its speed.
const SIBLING: f64 = 0.3;
/// Errors of a measurement below this are not believed; corrections of a core's capacity are of this size.
const LEAST_ERROR: f64 = 0.01;
const CORRECTION: f64 = 0.15;
/// Weight of the guess that a core's power goes with the square of its capacity, in measurements.
const GUESS: f64 = 0.05;

impl Model {
    /// None: fewer than three sets are known.
    pub fn fit(machine: &Machine, sets: &Sets, known: &[Known<'_>]) -> Option<Model> {
        if known.len() < 3 {
            return None;
        }
        let fits = [true, false].map(|evenly| Model::speed(machine, sets, known, evenly));
        let [even, stealing] = &fits;
        let (evenly, speed) =
            if even.0 <= stealing.0 { (true, even.1.clone()) } else { (false, stealing.1.clone()) };
        Some(Model { evenly, speed, watts: watts(machine, sets, known) })
    }

    /// Tokens/s of a set.
    pub fn tokens_per_s(&self, machine: &Machine, sets: &Sets, set: &Set) -> f64 {
        foretell(machine, sets, set, self.evenly, &self.speed)
    }

    /// Joules a token; None without a meter.
    pub fn joules(&self, machine: &Machine, sets: &Sets, set: &Set) -> Option<f64> {
        let features = features(machine, sets, set);
        let watts: f64 = self.watts.iter().zip(&features).map(|(a, b)| a * b).sum();
        (!self.watts.is_empty() && watts > 0.0).then(|| watts / self.tokens_per_s(machine, sets, set))
    }

    /// The squared error, and the parameters of least error, by a pattern search.
    fn speed(machine: &Machine, sets: &Sets, known: &[Known<'_>], evenly: bool) -> (f64, Vec<f64>) {
        let most = known.iter().map(|k| k.speed).fold(0.0, f64::max).max(f64::MIN_POSITIVE);
        let mut best = vec![0.0; sets.groups() + 2];
        if let [core, memory, ..] = best.as_mut_slice() {
            (*core, *memory) = ((most / 3.0).ln(), (most * 1.5).ln());
        }
        let error = |p: &[f64]| {
            let one = |k: &Known<'_>| {
                let by = foretell(machine, sets, k.set, evenly, p).ln() - k.speed.ln();
                (by / k.error.max(LEAST_ERROR)).powi(2)
            };
            let corrections: f64 = p.iter().skip(2).map(|c| (c / CORRECTION).powi(2)).sum();
            known.iter().map(one).sum::<f64>() + corrections
        };
        let mut least = error(&best);
        let mut step = 0.5;
        while step > 0.004 {
            let mut better = false;
            for at in 0..best.len() {
                for by in [step, -step] {
                    let mut next = best.clone();
                    if let Some(slot) = next.get_mut(at) {
                        *slot += by;
                    }
                    let now = error(&next);
                    if now < least {
                        (least, best, better) = (now, next, true);
                    }
                }
            }
            if !better {
                step /= 2.0;
            }
        }
        (least, best)
    }
}

fn foretell(machine: &Machine, sets: &Sets, set: &Set, evenly: bool, p: &[f64]) -> f64 {
    let [core, memory, corrections @ ..] = p else { return 0.0 };
    let (mut sum, mut slowest, mut cores) = (0.0, f64::MAX, 0.0);
    for (group, correction) in corrections.iter().enumerate() {
        let n = sets.count(set, group) as f64;
        if n > 0.0 {
            let (cluster, sibling) = sets.kind(group);
            let speed = machine.relative(cluster) * correction.exp() * if sibling { SIBLING } else { 1.0 };
            sum += n * speed;
            slowest = f64::min(slowest, speed);
            cores += n;
        }
    }
    let compute = core.exp() * if evenly { cores * slowest } else { sum };
    (compute.powf(-SHARP) + memory.exp().powf(-SHARP)).powf(-1.0 / SHARP)
}

/// What power is linear in: 1, and for each cluster in use its busy cores and a share of the idle ones.
fn features(machine: &Machine, sets: &Sets, set: &Set) -> Vec<f64> {
    let cluster = |(i, c): (usize, &Cluster)| {
        let used = sets.of_cluster(set, i) as f64;
        let idle = (c.cpus.len() as f64 - used).max(0.0);
        if used > 0.0 { used + IDLE_SHARE * idle } else { 0.0 }
    };
    [1.0].into_iter().chain(machine.clusters.iter().enumerate().map(cluster)).collect()
}

/// Non-negative least squares towards a guess, one parameter after another.
fn watts(machine: &Machine, sets: &Sets, known: &[Known<'_>]) -> Vec<f64> {
    let rows: Option<Vec<(Vec<f64>, f64)>> =
        known.iter().map(|k| Some((features(machine, sets, k.set), k.joules? * k.speed))).collect();
    let Some(rows) = rows else { return Vec::new() };
    let shape: Vec<f64> =
        [0.5].into_iter().chain((0..machine.clusters.len()).map(|i| machine.relative(i).powi(2))).collect();
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let scale = rows.iter().map(|(f, w)| w / dot(f, &shape)).sum::<f64>() / rows.len() as f64;
    let guess: Vec<f64> = shape.iter().map(|s| s * scale).collect();
    let mut found = guess.clone();
    // Errors of power are relative.
    for _ in 0..200 {
        for at in 0..found.len() {
            let of = |v: &[f64]| v.get(at).copied().unwrap_or(0.0);
            let before = GUESS / of(&guess).max(1e-9).powi(2);
            let (mut above, mut below) = (before * of(&guess), before);
            for (features, watts) in &rows {
                let rest = watts - dot(features, &found) + of(features) * of(&found);
                above += of(features) * rest / watts.powi(2);
                below += of(features).powi(2) / watts.powi(2);
            }
            if let Some(slot) = found.get_mut(at) {
                *slot = (above / below).max(0.0);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_board_that_obeys_the_law_is_foretold() {
        let cluster = |cpus: std::ops::Range<u32>, capacity| Cluster {
            cpus: cpus.collect(),
            siblings: Vec::new(),
            capacity: Some(capacity),
            max_khz: None,
        };
        let machine = Machine { clusters: vec![cluster(0..2, 1024), cluster(2..6, 512)] };
        let sets = Sets::new(&machine);
        // 10 tok/s a core, at most 18; 0.5 W, 2 W a large core, 0.4 W a small one.
        let law = |set: &Set| {
            let (a, b) = (sets.count(set, 0) as f64, sets.count(set, 1) as f64);
            let compute: f64 = if b > 0.0 { (a + b) * 5.0 } else { a * 10.0 };
            let speed = (compute.powf(-4.0) + 18f64.powf(-4.0)).powf(-0.25);
            let large = if a > 0.0 { 2.0 * (a + 0.15 * (2.0 - a)) } else { 0.0 };
            let small = if b > 0.0 { 0.4 * (b + 0.15 * (4.0 - b)) } else { 0.0 };
            (speed, (0.5 + large + small) / speed)
        };
        let all = sets.all();
        let some: Vec<&Set> = all.iter().step_by(2).collect();
        let measured: Vec<Known<'_>> = some
            .iter()
            .map(|set| {
                let (speed, joules) = law(set);
                Known { set, speed, error: 0.001, joules: Some(joules) }
            })
            .collect();
        let model = Model::fit(&machine, &sets, &measured).expect("a fit");
        assert!(model.evenly);
        for set in &all {
            let (speed, joules) = law(set);
            assert!((model.tokens_per_s(&machine, &sets, set) / speed - 1.0).abs() < 0.03, "{set:?}");
            assert!(
                (model.joules(&machine, &sets, set).expect("a meter") / joules - 1.0).abs() < 0.1,
                "{set:?}"
            );
        }
        assert!(Model::fit(&machine, &sets, &measured[..2]).is_none());
    }
}
