//! MNN-AECS's search as it was published (Algorithm 1), to compare with: one measurement a set, the first set that is not
//! faster ends stage 1, and the tree is of the fastest set alone.

use crate::machine::Machine;
use crate::objective;
use crate::search::{Measure, Stage};
use crate::sets::{Set, Sets};
use crate::types::{Candidate, Sample};

/// The choice, and the number of measurements.
pub fn aecs(
    machine: &Machine,
    slack: f64,
    alpha: f64,
    measure: &mut dyn Measure,
) -> (Option<Candidate>, usize) {
    let sets = Sets::new(machine);
    let mut seen: Vec<(Set, Option<Sample>)> = Vec::new();
    let mut get = |set: &Set, seen: &mut Vec<(Set, Option<Sample>)>| {
        if let Some((_, sample)) = seen.iter().find(|(s, _)| s == set) {
            return *sample;
        }
        let sample = measure.measure(&sets.candidate(set), Stage::First).ok();
        seen.push((set.clone(), sample));
        sample
    };
    let mut fastest: Option<(Set, Sample)> = None;
    for set in sets.growing() {
        match get(&set, &mut seen) {
            Some(s) if fastest.as_ref().is_none_or(|(_, f)| s.tokens_per_s > f.tokens_per_s) => {
                fastest = Some((set, s));
            }
            _ => break,
        }
    }
    let Some((root, best)) = fastest else { return (None, seen.len()) };
    let enough = |s: &Sample| s.tokens_per_s >= (1.0 - slack) * best.tokens_per_s;
    for child in sets.around(&root, true) {
        if get(&child, &mut seen).is_some_and(|s| enough(&s)) {
            for grandchild in sets.around(&child, false) {
                get(&grandchild, &mut seen);
            }
        }
    }
    let h = |set: &Set| objective::heuristic(machine, &sets, set);
    let known = || seen.iter().filter_map(|(set, s)| Some((set, (*s)?)));
    let mut ratios: Vec<f64> =
        known().filter_map(|(set, s)| Some(s.joules_per_token? * s.tokens_per_s / h(set))).collect();
    common::order::by(&mut ratios, |a, b| a.total_cmp(b));
    let scale = ratios.get(ratios.len() / 2).copied().unwrap_or(1.0);
    let cost =
        |set: &Set, s: &Sample| objective::energy(s.joules_per_token, s.tokens_per_s, h(set) * scale, alpha);
    let chosen =
        known().filter(|(_, s)| enough(s)).min_by(|a, b| cost(a.0, &a.1).total_cmp(&cost(b.0, &b.1)));
    (chosen.map(|(set, _)| sets.candidate(set)), seen.len())
}
