//! The search: its stages, in order, within a number of tests.

use std::collections::HashMap;

use crate::estimate::{View, joules, speeds};
use crate::goal::{Judge, Judged, improvement};
use crate::machine::{Candidate, Machine};
use crate::options::{Goal, Options};
use crate::outcome::{Basis, Ended, Figure, Outcome, Rival, Test, Tried};
use crate::sample::{Measure, Refused, Stage};
use common::order::median;

/// Tests left for the race when sets are proposed.
const RACE_RESERVE: u32 = 3;
/// Tests for the chosen threads not pinned.
const FREE_RESERVE: u32 = 3;
/// A test is worth it if it promises as much (relative).
const WORTH: f64 = 0.002;
/// A difference of as many standard errors needs no more tests.
const CLEAR: f64 = 2.5;
/// A speed as many standard errors from the slowest allowed is clear.
const SURE: f64 = 2.0;

/// The search ends here.
struct Halt;

struct Run<'a> {
    machine: &'a Machine,
    options: &'a Options,
    measure: &'a mut dyn Measure,
    tried: Vec<Tried>,
    known: HashMap<Candidate, usize>,
    tests: Vec<Test>,
    limit: u32,
    /// Tests kept for [`Run::free`].
    held: u32,
    stopped: Option<String>,
}

/// Finds the best candidate of the machine for the goal.
pub fn search(machine: &Machine, options: &Options, measure: &mut dyn Measure) -> Outcome {
    let mut run = Run {
        machine,
        options,
        measure,
        tried: Vec::new(),
        known: HashMap::new(),
        tests: Vec::new(),
        limit: if options.exhaustive { u32::MAX } else { options.max_tests.max(1) },
        held: if options.free && !options.exhaustive { FREE_RESERVE.min(options.max_tests / 4) } else { 0 },
        stopped: None,
    };
    let settled = run.stages().unwrap_or(false);
    run.outcome(settled)
}

impl Run<'_> {
    /// Whether nothing more is worth a test.
    fn stages(&mut self) -> Result<bool, Halt> {
        for candidate in self.options.also.clone() {
            if let Some(valid) = Candidate::new(candidate.cpus, candidate.threads) {
                self.test(&valid, Stage::Given)?;
            }
        }
        if self.options.exhaustive {
            for candidate in self.machine.space() {
                self.test(&candidate, Stage::Exhaustive)?;
            }
            return Ok(true);
        }
        let settled = match self.pinned() {
            Err(Halt) if self.stopped.is_some() => return Err(Halt),
            other => other.unwrap_or(false),
        };
        self.held = 0;
        if self.options.free { self.free() } else { Ok(settled) }
    }

    /// Sets with a thread for each of their CPUs.
    fn pinned(&mut self) -> Result<bool, Halt> {
        self.walk()?;
        self.propose(RACE_RESERVE)?;
        loop {
            let settled = self.race()?;
            let before = self.tests.len();
            if settled {
                self.propose(0)?;
            }
            if self.tests.len() == before {
                return Ok(settled);
            }
        }
    }

    /// The chosen number of threads, placed by the scheduler.
    fn free(&mut self) -> Result<bool, Halt> {
        loop {
            let view = self.view();
            let judged = self.judged(&view);
            let judge = Judge::new(self.options, view.basis);
            let chosen = fastest(&judged).and_then(|f| judge.choose(&judged, &f));
            match chosen.and_then(|c| self.machine.free(c.threads)).filter(|c| !self.known.contains_key(c)) {
                Some(candidate) => self.test(&candidate, Stage::Free)?,
                None => return self.race(),
            }
            // The race may choose another number of threads, which needs a test too.
            self.held = 1;
            let raced = self.race();
            self.held = 0;
            if raced.is_err() && self.stopped.is_some() {
                return raced;
            }
        }
    }

    /// One test. A refusal of the candidate is kept with it.
    fn test(&mut self, candidate: &Candidate, stage: Stage) -> Result<(), Halt> {
        if self.left() == 0 {
            return Err(Halt);
        }
        let at = *self.known.entry(candidate.clone()).or_insert_with(|| {
            self.tried.push(Tried {
                candidate: candidate.clone(),
                stage,
                samples: Vec::new(),
                refused: None,
                speed: None,
                joules: None,
                objective: None,
                alpha: None,
            });
            self.tried.len() - 1
        });
        let answer = self.measure.measure(candidate, stage);
        let answer = answer.and_then(|s| s.fault().map_or(Ok(s), |why| Err(Refused::Candidate(why))));
        self.tests.push(Test { tried: at, stage, usable: answer.is_ok() });
        match answer {
            Ok(sample) => self.tried[at].samples.push(sample),
            Err(Refused::Candidate(why)) => self.tried[at].refused = Some(why),
            Err(Refused::Stop(why)) => {
                self.stopped = Some(why);
                return Err(Halt);
            }
        }
        Ok(())
    }

    /// Tests once what was not tried yet.
    fn once(&mut self, candidate: &Candidate, stage: Stage) -> Result<(), Halt> {
        if self.known.contains_key(candidate) { Ok(()) } else { self.test(candidate, stage) }
    }

    fn left(&self) -> u32 {
        self.limit
            .saturating_sub(self.held)
            .saturating_sub(u32::try_from(self.tests.len()).unwrap_or(u32::MAX))
    }

    fn speed(&self, candidate: &Candidate) -> Option<f64> {
        median(speeds(&self.tried[*self.known.get(candidate)?]))
    }

    /// Cores one by one, largest first, until one brings nothing.
    fn walk(&mut self) -> Result<(), Halt> {
        let mut best: Option<f64> = None;
        let mut counts = vec![0; self.machine.clusters.len()];
        for i in 0..counts.len() {
            for n in self.machine.rungs(i) {
                counts[i] = n;
                let Some(candidate) = self.machine.candidate(&counts) else { continue };
                self.once(&candidate, Stage::Walk)?;
                let speed = self.speed(&candidate);
                // As long as nothing could be judged, there is no sign that more cores bring nothing.
                if best.is_some() && speed <= best {
                    return Ok(());
                }
                best = speed;
            }
        }
        Ok(())
    }

    fn view(&self) -> View {
        let energy = self.options.goal != Goal::Speed;
        let alpha = self.options.alpha.filter(|a| a.is_finite()).map(|a| a.clamp(0.0, 1.0));
        let scatter = Some(self.options.energy_scatter).filter(|s| s.is_finite() && *s > 0.0).unwrap_or(0.05);
        let alpha = if self.options.exhaustive { alpha.or(Some(0.0)) } else { alpha };
        View::new(self.machine, &self.tried, energy, alpha, scatter, !self.options.exhaustive)
    }

    /// All that can be judged.
    fn judged(&self, view: &View) -> Vec<Judged> {
        let all = self.tried.iter().enumerate();
        all.filter_map(|(at, t)| {
            let estimate = view.measured(self.machine, t)?;
            Some(Judged { at, threads: t.candidate.threads, free: t.candidate.is_free(), estimate })
        })
        .collect()
    }

    /// The untried set that promises most: to be better than the chosen, or so fast that the chosen is too slow.
    fn promising(&self, view: &View, space: &[Candidate]) -> Option<(Candidate, f64)> {
        let judged = self.judged(view);
        let mut fresh = space.iter().filter(|c| !self.known.contains_key(*c));
        let Some(fastest) = fastest(&judged) else {
            // Nothing could be judged so far.
            return Some((fresh.next()?.clone(), f64::INFINITY));
        };
        let judge = Judge::new(self.options, view.basis);
        let best = judge.choose(&judged, &fastest)?;
        let promises = fresh.map(|c| {
            let e = view.foretold(self.machine, c);
            let faster = judge.above(&best.estimate, &e).map_or(0.0, |(over, se)| improvement(-over, se));
            let better = judge.promise(&e, &best.estimate, &fastest.estimate);
            (c.clone(), faster.max(better))
        });
        promises.max_by(|a, b| a.1.total_cmp(&b.1))
    }

    fn propose(&mut self, reserve: u32) -> Result<(), Halt> {
        let space = self.machine.space();
        while self.left() > reserve {
            let view = self.view();
            let Some((candidate, promise)) = self.promising(&view, &space) else { break };
            if promise < WORTH {
                break;
            }
            self.once(&candidate, Stage::Tree)?;
        }
        Ok(())
    }

    /// Rounds of those that are close, in turn. True if in the end none is.
    fn race(&mut self) -> Result<bool, Halt> {
        for _ in 0..self.options.race_rounds {
            let view = self.view();
            let runners = self.runners(&view);
            if runners.is_empty() {
                return Ok(true);
            }
            for at in runners {
                let candidate = self.tried[at].candidate.clone();
                self.test(&candidate, Stage::Race)?;
            }
        }
        Ok(self.runners(&self.view()).is_empty())
    }

    fn runners(&self, view: &View) -> Vec<usize> {
        let judged = self.judged(view);
        let Some(fastest) = fastest(&judged) else { return Vec::new() };
        let judge = Judge::new(self.options, view.basis);
        let Some(best) = judge.choose(&judged, &fastest) else { return Vec::new() };
        let promise = |j: &Judged| judge.promise(&j.estimate, &best.estimate, &fastest.estimate);
        let others = judged.iter().filter(|j| j.at != best.at && self.tried[j.at].refused.is_none());
        let rival = others.max_by(|a, b| promise(a).total_cmp(&promise(b))).filter(|j| promise(j) >= WORTH);
        let above = |j: &Judged| judge.above(&j.estimate, &fastest.estimate);
        let unclear = |j: &Judged| {
            let (own, than) = (judge.objective(&j.estimate), judge.objective(&best.estimate));
            own.zip(than).map(|(a, b)| a.over(&b)).is_some_and(|(gap, se)| gap.abs() < CLEAR * se)
        };
        let (mut runners, close) = match rival {
            Some(j) => {
                let with = Some(best.at).filter(|_| unclear(j));
                let close = above(j).is_some_and(|(over, se)| over.abs() < SURE * se);
                (with.into_iter().chain([j.at]).collect(), close)
            }
            // What was chosen although it seems too slow is looked at again.
            None if above(&best).is_some_and(|(over, _)| over < 0.0) => (vec![best.at], true),
            None => (Vec::new(), false),
        };
        if close && !runners.contains(&fastest.at) {
            runners.push(fastest.at);
        }
        runners.retain(|at| self.tried[*at].refused.is_none());
        runners
    }

    fn outcome(mut self, settled: bool) -> Outcome {
        let view = self.view();
        let judged = self.judged(&view);
        let judge = Judge::new(self.options, view.basis);
        for j in &judged {
            let t = &mut self.tried[j.at];
            let figure = |ln: &[f64], noise: f64| {
                median(ln.to_vec())
                    .map(|m| Figure { value: m.exp(), scatter: (noise / ln.len() as f64).sqrt() })
            };
            t.speed = figure(&speeds(t), view.speed_noise);
            t.joules = figure(&joules(t), view.energy_noise);
            t.objective =
                judge.objective(&j.estimate).map(|o| Figure { value: o.mean.exp(), scatter: o.sd() });
            t.alpha = matches!(view.basis, Basis::Meter | Basis::Heuristic).then_some(j.estimate.alpha);
        }
        let fastest = fastest(&judged);
        let chosen = fastest.as_ref().and_then(|f| judge.choose(&judged, f));
        let rival =
            chosen.as_ref().zip(fastest.as_ref()).and_then(|(c, f)| self.rival(&judge, &judged, c, f));
        let ended = match self.stopped.take() {
            Some(why) => Ended::Stopped(why),
            None if chosen.is_none() => Ended::Nothing,
            None if settled => Ended::Settled,
            None => Ended::Budget,
        };
        Outcome {
            pareto: pareto(&self.tried, fastest.as_ref().map(|f| f.at)),
            complete: !matches!(ended, Ended::Stopped(_)),
            speed_share: chosen
                .as_ref()
                .zip(fastest.as_ref())
                .map(|(c, f)| (c.estimate.speed.mean - f.estimate.speed.mean).exp()),
            basis: view.basis,
            fastest: fastest.map(|f| f.at),
            chosen: chosen.map(|c| c.at),
            tried: self.tried,
            tests: self.tests,
            ended,
            rival,
        }
    }

    fn rival(&self, judge: &Judge, judged: &[Judged], chosen: &Judged, fastest: &Judged) -> Option<Rival> {
        let own = judge.objective(&chosen.estimate)?;
        let others = judged.iter().filter(|j| j.at != chosen.at);
        let promise = |j: &Judged| judge.promise(&j.estimate, &chosen.estimate, &fastest.estimate);
        let other = others.max_by(|a, b| promise(a).total_cmp(&promise(b)))?;
        let its = judge.objective(&other.estimate)?;
        let (behind, scatter) = its.over(&own);
        Some(Rival { candidate: self.tried[other.at].candidate.clone(), behind: behind.exp() - 1.0, scatter })
    }
}

fn fastest(judged: &[Judged]) -> Option<Judged> {
    judged.iter().cloned().max_by(|a, b| a.estimate.speed.mean.total_cmp(&b.estimate.speed.mean))
}

/// Those that no other beats in both speed and joules, fastest first.
fn pareto(tried: &[Tried], fastest: Option<usize>) -> Vec<usize> {
    let mut all: Vec<(usize, f64, f64)> =
        tried.iter().enumerate().filter_map(|(i, t)| Some((i, t.speed?.value, t.joules?.value))).collect();
    if all.is_empty() {
        return fastest.into_iter().collect();
    }
    common::order::by(&mut all, |a, b| b.1.total_cmp(&a.1).then(a.2.total_cmp(&b.2)));
    let mut least = f64::INFINITY;
    all.retain(|(_, _, joules)| {
        let better = *joules < least;
        least = least.min(*joules);
        better
    });
    all.into_iter().map(|(i, ..)| i).collect()
}
