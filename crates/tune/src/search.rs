//! The search: which sets to measure, in which order, and which is best.

use crate::machine::Machine;
use crate::model::{Known, Model};
use crate::objective::{self, ALPHA};
use crate::sets::{Set, Sets};
use crate::types::{Candidate, Goal, Options, Sample};

/// A growing set is given up after this many steps that were not faster.
const PATIENCE: usize = 2;
/// Sets whose surroundings are tried.
const ROOTS: usize = 1;
/// Sets that are measured again, besides the fastest.
const RACERS: usize = 3;
/// Maximum number of sets that are measured, without repetitions.
const SETS: usize = 24;
/// Rounds of proposals by a model, proposals for the goal in each, and the most sets that it can be asked about.
const PROPOSALS: usize = 6;
const BEST: usize = 3;
const FORETOLD: usize = 2000;
/// Standard errors by which a speed may be below the limit for a set to be measured again, and must be above it for a
/// set to be chosen.
const ENTRY: f64 = 1.0;
const CHOICE: f64 = 1.0;
/// A model is believed if more sets than this were measured, and never more than this.
const LEAST_FIT: usize = 8;
const LEAST_MISFIT: f64 = 0.005;
/// Scatter of a meter (MNN-AECS, section on measuring: about 5 %).
const METER: f64 = 0.05;
/// Two speeds that differ by less than this many standard errors, or by less than this share, are the same.
const ERRORS: f64 = 2.0;
const SAME: f64 = 0.005;

/// Why a measurement has no result, in words for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    /// This choice cannot be judged; others can.
    Candidate(String),
    /// The search has to end.
    Stop(String),
}

/// What a measurement is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// A set that was not measured before.
    First,
    /// One of the best, again.
    Race,
}

impl Stage {
    /// The measurement must be made anew.
    pub fn is_repeat(self) -> bool {
        self == Stage::Race
    }
}

/// Makes measurements.
pub trait Measure {
    /// # Errors
    /// There is no result.
    fn measure(&mut self, candidate: &Candidate, stage: Stage) -> Result<Sample, Refused>;
}

/// A choice that was tried.
#[derive(Debug, Clone, PartialEq)]
pub struct Tried {
    pub candidate: Candidate,
    /// Empty if it was refused.
    pub samples: Vec<Sample>,
    pub refused: Option<String>,
}

/// What was found.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// In the order in which they were first tried.
    pub tried: Vec<Tried>,
    pub fastest: Option<Candidate>,
    /// The choice for the goal.
    pub chosen: Option<Candidate>,
    /// Those that no other beats in both speed and energy; in speed alone without a meter.
    pub pareto: Vec<Candidate>,
    /// Everything that was to be tried was tried.
    pub complete: bool,
    pub ended: String,
    pub sure: String,
    /// Measurements made, repetitions included.
    pub tests: usize,
}

/// Medians over the measurements of a choice.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Combined {
    speed: f64,
    /// Standard error of the speed, relative.
    error: f64,
    joules: Option<f64>,
}

struct Search<'a> {
    machine: &'a Machine,
    sets: Sets,
    options: &'a Options,
    measure: &'a mut dyn Measure,
    tried: Vec<Tried>,
    /// The set of each of `tried`; None for one that is not pinned.
    of: Vec<Option<Set>>,
    stopped: Option<String>,
    tests: usize,
}

/// Searches the machine's sets.
pub fn search(machine: &Machine, options: &Options, measure: &mut dyn Measure) -> Outcome {
    let sets = Sets::new(machine);
    let mut search = Search {
        machine,
        sets,
        options,
        measure,
        tried: Vec::new(),
        of: Vec::new(),
        stopped: None,
        tests: 0,
    };
    if options.exhaustive {
        for set in search.sets.all() {
            search.first(&set);
        }
    } else {
        search.fastest_sets();
        search.proposals();
        search.surroundings();
    }
    search.race();
    search.unpinned();
    search.outcome()
}

impl Search<'_> {
    /// Measures a set, unless it was. Returns its speed.
    fn first(&mut self, set: &Set) -> Option<f64> {
        if let Some(at) = self.of.iter().position(|of| of.as_ref() == Some(set)) {
            return self.combined(at).map(|c| c.speed);
        }
        let full = !self.options.exhaustive && self.tried.len() >= SETS;
        if full || self.stopped.is_some() {
            return None;
        }
        let candidate = self.sets.candidate(set);
        self.of.push(Some(set.clone()));
        self.tried.push(Tried { candidate, samples: Vec::new(), refused: None });
        let at = self.tried.len() - 1;
        self.again(at, Stage::First);
        if self.stopped.is_some() && self.tried.last().is_some_and(|t| t.samples.is_empty()) {
            self.tried.pop();
            self.of.pop();
        }
        self.combined(at).map(|c| c.speed)
    }

    fn again(&mut self, at: usize, stage: Stage) {
        let Some(tried) = self.tried.get_mut(at).filter(|_| self.stopped.is_none()) else { return };
        self.tests += 1;
        match self.measure.measure(&tried.candidate, stage) {
            Ok(sample) if sample.is_usable() => tried.samples.push(sample),
            Ok(_) => tried.refused = Some("the measurement has an impossible value".to_owned()),
            Err(Refused::Candidate(why)) => tried.refused = Some(why),
            Err(Refused::Stop(why)) => self.stopped = Some(why),
        }
    }

    fn combined(&self, at: usize) -> Option<Combined> {
        combined(&self.tried.get(at)?.samples)
    }

    /// Those with a result.
    fn known(&self) -> Vec<(usize, Combined)> {
        (0..self.tried.len()).filter_map(|at| Some((at, self.combined(at)?))).collect()
    }

    /// Stage 1: grows the set while it gets faster, and tries each cluster alone.
    fn fastest_sets(&mut self) {
        let (mut best, mut failures) = (0.0, 0);
        for set in self.sets.growing() {
            let speed = self.first(&set).unwrap_or(0.0);
            failures = if speed > best { 0 } else { failures + 1 };
            best = f64::max(best, speed);
            if failures >= PATIENCE || self.stopped.is_some() {
                break;
            }
        }
        for set in self.sets.alone() {
            self.first(&set);
        }
    }

    /// Stage 2: the sets around the two fastest, and around those of them that are fast enough.
    fn surroundings(&mut self) {
        let mut known = self.known();
        common::order::by(&mut known, |a, b| b.1.speed.total_cmp(&a.1.speed));
        let roots: Vec<Set> =
            known.iter().take(ROOTS).filter_map(|(at, _)| self.of.get(*at).cloned().flatten()).collect();
        for root in roots {
            for child in self.sets.around(&root, true) {
                let Some(speed) = self.first(&child) else { continue };
                let best = self.known().iter().map(|(_, c)| c.speed).fold(0.0, f64::max);
                // What is too slow has no descendants that are fast enough.
                if self.options.goal == Goal::Speed || speed < (1.0 - self.options.slack) * best {
                    continue;
                }
                for grandchild in self.sets.around(&child, false) {
                    self.first(&grandchild);
                }
            }
        }
    }

    /// Between both: the sets that a model of what is known takes for the fastest and for the best, until it proposes
    /// nothing new.
    fn proposals(&mut self) {
        let all = self.sets.all();
        if all.len() > FORETOLD {
            return;
        }
        for _ in 0..PROPOSALS {
            let known = self.known();
            let measured: Vec<Known<'_>> = known
                .iter()
                .filter_map(|(at, c)| {
                    let set = self.of.get(*at)?.as_ref()?;
                    Some(Known { set, speed: c.speed, error: c.error, joules: c.joules })
                })
                .collect();
            let Some(model) = Model::fit(self.machine, &self.sets, &measured) else { return };
            let next = self.proposed(&model, &all);
            let new: Vec<Set> = next.into_iter().filter(|s| !self.of.contains(&Some(s.clone()))).collect();
            if new.is_empty() || self.stopped.is_some() {
                return;
            }
            for set in new {
                self.first(&set);
            }
        }
    }

    /// The fastest set by the model, and the best for the goal.
    fn proposed(&self, model: &Model, all: &[Set]) -> Vec<Set> {
        let speed = |set: &Set| model.tokens_per_s(self.machine, &self.sets, set);
        let Some(fastest) = all.iter().max_by(|a, b| speed(a).total_cmp(&speed(b))) else {
            return Vec::new();
        };
        let most = self.known().iter().map(|(_, c)| c.speed).fold(speed(fastest), f64::max);
        let cost = |set: &Set| {
            let watts = objective::heuristic(self.machine, &self.sets, set);
            let energy = model.joules(self.machine, &self.sets, set).unwrap_or(watts / speed(set));
            if self.options.goal == Goal::Balance { energy / speed(set) } else { energy }
        };
        let slack = if self.options.goal == Goal::Balance { 1.0 } else { self.options.slack };
        let mut enough: Vec<(f64, &Set)> =
            all.iter().filter(|s| speed(s) >= (1.0 - slack) * most).map(|s| (cost(s), s)).collect();
        common::order::by(&mut enough, |a, b| a.0.total_cmp(&b.0));
        let wanted = if self.options.goal == Goal::Speed { 0 } else { BEST };
        let best = enough.into_iter().take(wanted).map(|(_, s)| s.clone());
        [fastest.clone()].into_iter().chain(best).collect()
    }

    /// Stage 3: the best and the fastest again, in turn, so that what changes with time meets all of them.
    fn race(&mut self) {
        let mut racers: Vec<usize> = self.ranked(-ENTRY).into_iter().take(RACERS).collect();
        racers.extend(self.fastest().filter(|at| !racers.contains(at)));
        if racers.len() < 2 {
            return;
        }
        for _ in 0..self.options.race_rounds {
            for at in &racers {
                self.again(*at, Stage::Race);
            }
        }
    }

    /// On like cores a team that is not pinned may be as fast, and gives way to other programs.
    fn unpinned(&mut self) {
        let for_speed = self.options.free && self.options.goal == Goal::Speed;
        let wanted = for_speed && self.stopped.is_none() && !self.machine.has_unlike_clusters();
        let Some(at) = self.chosen().filter(|_| wanted) else { return };
        let mut all: Vec<u32> =
            self.machine.clusters.iter().flat_map(|c| c.cpus.iter().chain(&c.siblings).copied()).collect();
        common::order::by_key(&mut all, |cpu| ((*cpu).into(), 0));
        let Some(tried) = self.tried.get(at).filter(|t| t.candidate.cpus.len() < all.len()) else { return };
        let candidate = Candidate { cpus: all, threads: tried.candidate.threads, free: true };
        self.tried.push(Tried { candidate, samples: Vec::new(), refused: None });
        self.of.push(None);
        let free = self.tried.len() - 1;
        for _ in 0..self.options.race_rounds.max(1) {
            self.again(free, Stage::Race);
            self.again(at, Stage::Race);
        }
    }

    /// What is known, each figure drawn towards what a model of all of them says: by how well the model fits the others,
    /// and how well the figure itself is known.
    fn steadied(&self) -> Vec<(usize, Combined)> {
        let known = self.known();
        let measured: Vec<(usize, Known<'_>)> = known
            .iter()
            .filter_map(|(at, c)| {
                let set = self.of.get(*at)?.as_ref()?;
                Some((*at, Known { set, speed: c.speed, error: c.error, joules: c.joules }))
            })
            .collect();
        let all: Vec<Known<'_>> = measured.iter().map(|(_, k)| *k).collect();
        let Some(model) = Model::fit(self.machine, &self.sets, &all).filter(|_| all.len() > LEAST_FIT) else {
            return known;
        };
        let speed = |set: &Set| model.tokens_per_s(self.machine, &self.sets, set);
        let joules = |set: &Set| model.joules(self.machine, &self.sets, set);
        let misfit = |of: &dyn Fn(&Known<'_>) -> Option<(f64, f64)>| {
            let squares: Vec<f64> =
                all.iter().filter_map(of).map(|(by, error)| by * by - error * error).collect();
            // Parameters make the fit better than the model is.
            let free = (self.sets.groups() + 2) as f64;
            let n = squares.len() as f64;
            (squares.iter().sum::<f64>() / n * (n / (n - free).max(1.0))).max(LEAST_MISFIT.powi(2))
        };
        let runs = |at: usize| self.tried.get(at).map_or(1, |t| t.samples.len()) as f64;
        let by_speed = misfit(&|k| Some(((speed(k.set) / k.speed).ln(), k.error)));
        let n_of =
            |k: &Known<'_>| measured.iter().find(|(_, m)| m.set == k.set).map_or(1.0, |(at, _)| runs(*at));
        let by_joules = misfit(&|k| Some(((joules(k.set)? / k.joules?).ln(), METER / n_of(k).sqrt())));
        let blend = |own: f64, error: f64, model: f64, misfit: f64| {
            let (a, b) = (1.0 / error.max(1e-4).powi(2), 1.0 / misfit);
            (((a * own.ln() + b * model.ln()) / (a + b)).exp(), (1.0 / (a + b)).sqrt())
        };
        known
            .iter()
            .map(|(at, c)| {
                let Some((_, k)) = measured.iter().find(|(m, _)| m == at) else { return (*at, *c) };
                let (s, error) = blend(c.speed, c.error, speed(k.set), by_speed);
                let j = c
                    .joules
                    .zip(joules(k.set))
                    .map(|(own, m)| blend(own, METER / runs(*at).sqrt(), m, by_joules).0);
                (*at, Combined { speed: s, error, joules: j.or(c.joules) })
            })
            .collect()
    }

    fn fastest(&self) -> Option<usize> {
        self.known().into_iter().max_by(|a, b| a.1.speed.total_cmp(&b.1.speed)).map(|(at, _)| at)
    }

    fn alpha(&self) -> f64 {
        self.options.alpha.unwrap_or(ALPHA).clamp(0.0, 1.0)
    }

    /// Watts of one unit of the heuristic, from all that was measured; 1 without a meter.
    fn scale(&self) -> f64 {
        let ratio = |(at, c): (usize, Combined)| {
            let set = self.of.get(at)?.as_ref()?;
            Some(c.joules? * c.speed / objective::heuristic(self.machine, &self.sets, set))
        };
        median(self.known().into_iter().filter_map(ratio).collect()).unwrap_or(1.0)
    }

    /// The lower the better; None: it cannot be judged.
    fn cost(&self, at: usize, c: &Combined, scale: f64) -> Option<f64> {
        if self.options.goal == Goal::Speed {
            return Some(1.0 / c.speed);
        }
        let set = self.of.get(at)?.as_ref()?;
        let watts = objective::heuristic(self.machine, &self.sets, set) * scale;
        let energy = objective::energy(c.joules, c.speed, watts, self.alpha());
        Some(if self.options.goal == Goal::Balance { energy / c.speed } else { energy })
    }

    /// Those that are fast enough, best first. Energy is known of all of them, or it is not used. `errors`: by how many
    /// standard errors a speed must be above the limit, to be chosen, or may be below it, to be measured again.
    fn ranked(&self, errors: f64) -> Vec<usize> {
        let known = if self.options.goal == Goal::Speed { self.known() } else { self.steadied() };
        let metered = known.iter().all(|(_, c)| c.joules.is_some());
        if self.options.goal != Goal::Speed && !metered && !self.machine.has_unlike_clusters() {
            // Nothing tells the choices' energy apart.
            return self.by_speed();
        }
        let Some(fastest) = known.iter().map(|(_, c)| *c).max_by(|a, b| a.speed.total_cmp(&b.speed)) else {
            return Vec::new();
        };
        let scale = if metered { self.scale() } else { 1.0 };
        let enough = |c: &Combined| {
            // Being too slow by chance must not pass as fast enough.
            let margin = errors * c.error.hypot(fastest.error);
            self.options.goal != Goal::Energy
                || c.speed >= (1.0 - self.options.slack + margin) * fastest.speed
        };
        let unmetered = |c: &Combined| if metered { *c } else { Combined { joules: None, ..*c } };
        let mut costs: Vec<(usize, f64)> = known
            .iter()
            .filter(|(_, c)| enough(c) || c.speed == fastest.speed)
            .filter_map(|(at, c)| Some((*at, self.cost(*at, &unmetered(c), scale)?)))
            .collect();
        common::order::by(&mut costs, |a, b| a.1.total_cmp(&b.1));
        costs.into_iter().map(|(at, _)| at).collect()
    }

    fn by_speed(&self) -> Vec<usize> {
        let mut known = self.known();
        common::order::by(&mut known, |a, b| b.1.speed.total_cmp(&a.1.speed));
        known.into_iter().map(|(at, _)| at).collect()
    }

    /// The best. Of those that are as fast as the fastest within the scatter, the one with the fewest threads; of two with
    /// as many, the one that is not pinned.
    fn chosen(&self) -> Option<usize> {
        let best = *self.ranked(CHOICE).first()?;
        if self.options.goal != Goal::Speed {
            return Some(best);
        }
        let top = self.combined(best)?;
        let known = self.known().into_iter().filter(|(_, c)| same(c, &top));
        let threads = |at: usize| self.tried.get(at).map(|t| (t.candidate.threads, !t.candidate.free));
        known.min_by_key(|(at, _)| threads(*at)).map(|(at, _)| at)
    }

    fn pareto(&self) -> Vec<Candidate> {
        let known = self.known();
        let beaten = |c: &Combined| {
            known.iter().any(|(_, other)| match (c.joules, other.joules) {
                (Some(own), Some(joules)) => {
                    other.speed >= c.speed && joules <= own && (other.speed > c.speed || joules < own)
                }
                _ => other.speed > c.speed,
            })
        };
        let front = known.iter().filter(|(_, c)| !beaten(c));
        front.filter_map(|(at, _)| Some(self.tried.get(*at)?.candidate.clone())).collect()
    }

    fn outcome(self) -> Outcome {
        let candidate = |at: usize| self.tried.get(at).map(|t| t.candidate.clone());
        let (fastest, chosen) = (self.fastest().and_then(candidate), self.chosen().and_then(candidate));
        let ended = self.stopped.clone().unwrap_or_else(|| {
            let how = if self.options.exhaustive {
                "all sets of CPUs"
            } else {
                "the sets that the search leads to"
            };
            format!("{how} were tried: {} choices, {} runs", self.tried.len(), self.tests)
        });
        Outcome {
            fastest,
            chosen,
            pareto: self.pareto(),
            complete: self.stopped.is_none(),
            ended,
            sure: self.sure(),
            tests: self.tests,
            tried: self.tried,
        }
    }

    /// How far the choice is from the next one.
    fn sure(&self) -> String {
        let Some(chosen) = self.chosen() else { return "nothing was measured".to_owned() };
        let Some(own) = self.combined(chosen) else { return "nothing was measured".to_owned() };
        let what = match self.options.goal {
            Goal::Speed => "",
            _ if self.known().iter().all(|(_, c)| c.joules.is_some()) => "",
            _ if self.machine.has_unlike_clusters() => {
                "no meter: judged by the cores' capacity and clock alone; "
            }
            _ => "no meter, and all cores are alike: chosen for speed; ",
        };
        let next = self.by_speed().into_iter().filter(|at| *at != chosen).find_map(|at| self.combined(at));
        let Some(next) = next else { return format!("{what}nothing else could be measured") };
        let by = own.speed / next.speed - 1.0;
        let verdict = match (by.abs() < SAME || same(&own, &next), by > 0.0) {
            (true, _) => "as fast as the best of the others within the scatter",
            (false, true) => "clearly faster than all others",
            (false, false) => "not the fastest",
        };
        format!("{what}{verdict}: {:+.1} %, scatter {:.1} %", by * 100.0, own.error.hypot(next.error) * 100.0)
    }
}

/// As fast as each other within their scatter.
fn same(a: &Combined, b: &Combined) -> bool {
    let by = (a.speed / b.speed - 1.0).abs();
    by < SAME || by < ERRORS * a.error.hypot(b.error)
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    common::order::by(&mut values, |a, b| a.total_cmp(b));
    let n = values.len();
    let upper = *values.get(n / 2)?;
    if n % 2 == 1 { Some(upper) } else { Some((upper + values.get(n / 2 - 1)?) / 2.0) }
}

fn combined(samples: &[Sample]) -> Option<Combined> {
    let n = samples.len() as f64;
    let speed = median(samples.iter().map(|s| s.tokens_per_s).collect())?;
    let within = median(samples.iter().map(|s| s.scatter).collect()).unwrap_or(0.0);
    let between = match samples.len() {
        0 | 1 => 0.0,
        _ => (samples.iter().map(|s| (s.tokens_per_s / speed - 1.0).powi(2)).sum::<f64>() / (n - 1.0)).sqrt(),
    };
    let joules = samples.iter().map(|s| s.joules_per_token).collect::<Option<Vec<f64>>>().and_then(median);
    Some(Combined { speed, error: within.max(between) / n.sqrt(), joules })
}

#[cfg(test)]
mod tests;
