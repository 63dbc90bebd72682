//! What of the differences between two commands makes one of them slower: the good command is run with some of them, and with
//! none, in turn; each run is recorded, and compared by the test of `profinfer diff`.

mod differences;

pub use differences::{Both, Difference, Kind, NoDifference};

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::PathBuf;

use serde::Serialize;

use super::scratch::Scratch;
use super::session::Watcher;
use super::trial::{Detail, Recorder, Trial, TrialError};
use analysis::questions::diff::{Diff, DiffOptions, Incomparable, Judgement, diff};
use analysis::recorded::calls::Phase;
use analysis::recorded::load::LoadProgress;
use pfi::Trace;

/// A part of the differences that brings at least this share of the slowdown is looked into; another one is left.
const MOST_OF: f64 = 0.5;
/// Ops that are named.
const OPS: usize = 5;

/// What to compare, and how.
pub struct BisectOptions {
    pub both: Both,
    pub diff: DiffOptions,
    /// Runs of each side of a comparison.
    pub runs: u32,
    /// Slower by less than this share of a call is not slower.
    pub least: f64,
    /// For the recorder of each run.
    pub record: Vec<OsString>,
    /// Where recordings stay; None: nowhere.
    pub keep: Option<PathBuf>,
}

/// What was found.
#[derive(Debug, Serialize)]
pub struct Bisected {
    pub phase: Phase,
    pub differences: Vec<Difference>,
    /// The first is of all differences.
    pub comparisons: Vec<Comparison>,
    /// Indices of the differences that make it slower; no smaller part of them does. Empty: see `ended`.
    pub culprits: Vec<usize>,
    /// The good command with these.
    pub slow_command: Option<String>,
    /// Share of the whole slowdown that they bring.
    pub explained: Option<f64>,
    pub ended: Ended,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    Found,
    /// The bad command is not slower.
    NotSlower,
    /// Too few calls, or too much variation.
    Undecided,
    Interrupted,
}

/// Runs of the good command with some differences, against runs without.
#[derive(Debug, Serialize)]
pub struct Comparison {
    /// Indices of the differences.
    pub with: Vec<usize>,
    #[serde(flatten)]
    pub result: Measured,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Measured {
    /// How many times as long a call takes, and its 95 % confidence interval.
    pub times: Option<f64>,
    pub interval: Option<[f64; 2]>,
    /// Null: not decided.
    pub slower: Option<bool>,
    /// Ops that make a call longer, and those that only it has, most first: name and share of a call.
    pub ops: Vec<(String, f64)>,
    /// Why there is no comparison: such a command does not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum BisectError {
    #[error("cannot make a directory for recordings: {0}")]
    Scratch(io::Error),
    #[error("cannot find this program's own file: {0}")]
    Own(io::Error),
    #[error("the good command: {0}")]
    Good(String),
    /// It does not run, or another model than the good one.
    #[error("the bad command: {0}")]
    Bad(String),
    #[error(transparent)]
    Incomparable(Incomparable),
}

/// Searches. What was found is returned also if the search is interrupted.
///
/// # Errors
/// A command given does not run, or its recordings cannot be compared.
pub fn bisect(options: &BisectOptions, watch: &mut dyn Watcher) -> Result<Bisected, BisectError> {
    let scratch = Scratch::new().map_err(BisectError::Scratch)?;
    let recorder = Recorder {
        program: std::env::current_exe().map_err(BisectError::Own)?,
        dir: scratch.0.clone(),
        sensors: None,
        flags: options.record.clone(),
    };
    let mut runs = Runs { options, recorder, watch, compared: 0 };
    let differences = options.both.differences();
    let mut comparisons: Vec<Comparison> = Vec::new();
    let search = search(differences.len(), &mut |with| {
        let result = runs.compare(with)?;
        comparisons.push(Comparison { with: with.to_vec(), result: result.clone() });
        Ok(result)
    })?;
    if let Some(why) = comparisons.first().and_then(|first| first.result.failed.clone()) {
        return Err(BisectError::Bad(why));
    }
    let found = |with: &[usize]| comparisons.iter().find(|c| c.with == with).and_then(|c| c.result.times);
    let share = found(&search.culprits).zip(comparisons.first().and_then(|c| c.result.times));
    let command = options.both.command(&search.culprits);
    let words: Vec<OsString> = command.into_iter().map(Into::into).collect();
    Ok(Bisected {
        phase: options.diff.phase,
        slow_command: (!search.culprits.is_empty()).then(|| super::lines::typed(&words)),
        explained: share.map(|(part, all)| (part - 1.0) / (all - 1.0)).filter(|share| share.is_finite()),
        differences,
        comparisons,
        culprits: search.culprits,
        ended: search.ended,
    })
}

struct Search {
    culprits: Vec<usize>,
    ended: Ended,
}

/// Halves the differences while one half alone brings most of the slowdown. `measure` compares with these and with none; None:
/// interrupted.
fn search(
    differences: usize,
    measure: &mut dyn FnMut(&[usize]) -> Result<Measured, Stop>,
) -> Result<Search, BisectError> {
    let mut suspects: Vec<usize> = (0..differences).collect();
    let none = |ended| Ok(Search { culprits: Vec::new(), ended });
    let mut all = match measure(&suspects) {
        Ok(all) => all,
        Err(Stop::Interrupted) => return none(Ended::Interrupted),
        Err(Stop::Failed(why)) => return Err(why),
    };
    match all.slower {
        _ if all.failed.is_some() => return none(Ended::Undecided),
        Some(true) => {}
        Some(false) => return none(Ended::NotSlower),
        None => return none(Ended::Undecided),
    }
    while suspects.len() > 1 {
        let (first, second) = suspects.split_at(suspects.len() / 2);
        let mut smaller = None;
        for half in [first, second] {
            let part = match measure(half) {
                Ok(part) => part,
                Err(Stop::Interrupted) => {
                    return Ok(Search { culprits: suspects.clone(), ended: Ended::Interrupted });
                }
                Err(Stop::Failed(why)) => return Err(why),
            };
            let share = |of: &Measured| of.times.map(|times| times - 1.0);
            let most = share(&part).zip(share(&all)).is_some_and(|(part, all)| part >= all * MOST_OF);
            if part.slower == Some(true) && most {
                smaller = Some((half.to_vec(), part));
                break;
            }
        }
        let Some((half, part)) = smaller else { break };
        (suspects, all) = (half, part);
    }
    Ok(Search { culprits: suspects, ended: Ended::Found })
}

/// Why a comparison has no result.
enum Stop {
    Interrupted,
    Failed(BisectError),
}

struct Runs<'a> {
    options: &'a BisectOptions,
    recorder: Recorder,
    watch: &'a mut dyn Watcher,
    compared: u32,
}

impl Runs<'_> {
    /// Runs both sides in turn, and compares their recordings.
    fn compare(&mut self, with: &[usize]) -> Result<Measured, Stop> {
        self.compared += 1;
        let (mut sides, none): ([Vec<Trace>; 2], [usize; 0]) = (Default::default(), []);
        for n in 1..=self.options.runs {
            for (side, (name, chosen)) in sides.iter_mut().zip([("good", &none[..]), ("changed", with)]) {
                let of = self.options.runs;
                self.watch.progress(&format!("comparison {}, run {n} of {of}, {name}", self.compared));
                match self.run(chosen, &format!("{}-{name}-{n}.pfi", self.compared)) {
                    Ok(trace) => side.push(trace),
                    Err(TrialError::Interrupted) => return Err(Stop::Interrupted),
                    Err(TrialError::Failed(why)) if !chosen.is_empty() => {
                        return Ok(Measured { failed: Some(why), ..Measured::default() });
                    }
                    Err(why) => return Err(Stop::Failed(BisectError::Good(why.to_string()))),
                }
            }
        }
        let [good, changed] = sides.each_ref().map(|side| side.iter().collect::<Vec<&Trace>>());
        match diff(&good, &changed, &self.options.diff, &LoadProgress::default()) {
            Ok(found) => Ok(measured(&found, self.options.least)),
            Err(why @ Incomparable::Models { .. }) => {
                Ok(Measured { failed: Some(why.to_string()), ..Measured::default() })
            }
            Err(why) => Err(Stop::Failed(BisectError::Incomparable(why))),
        }
    }

    /// A run with these differences; its recording is called `name` if it is kept.
    fn run(&mut self, chosen: &[usize], name: &str) -> Result<Trace, TrialError> {
        let trial = Trial {
            detail: Detail::Ops,
            argv: self.options.both.command(chosen).into_iter().map(Into::into).collect(),
            cpus: None,
            limit: None,
            request: None,
        };
        let watch = &*self.watch;
        let ran = self.recorder.run(&trial, &|| watch.stop())?;
        let failed = |why: &dyn std::fmt::Display| TrialError::Failed(why.to_string());
        let trace = Trace::open(&ran.trace).map_err(|why| failed(&why))?;
        if let Some(dir) = &self.options.keep {
            fs::copy(&ran.trace, dir.join(name)).map_err(|why| failed(&why))?;
        }
        // It stays readable while it is open.
        fs::remove_file(&ran.trace).map_err(|why| failed(&why))?;
        Ok(trace)
    }
}

fn measured(found: &Diff, least: f64) -> Measured {
    let slower = match found.judged(least) {
        Judgement::Ops | Judgement::Call => Some(true),
        Judgement::NotSlower => Some(false),
        Judgement::Undecided(_) => None,
    };
    let call = found.call.a_ns.max(1.0);
    let mut longer: BTreeMap<&str, f64> = BTreeMap::new();
    let changed = found.ops.iter().filter(|op| op.verdict.is_some()).map(|op| (&op.name, op.effect_ns));
    // An op with other types or dimensions is on both sides.
    let (new, gone) =
        (found.only_b.iter().map(|op| (&op.name, op.ns)), found.only_a.iter().map(|op| (&op.name, -op.ns)));
    for (name, ns) in changed.chain(new).chain(gone) {
        *longer.entry(name.as_str()).or_default() += ns / call;
    }
    let longer = longer.into_iter().filter(|(_, share)| *share > 0.0);
    let mut ops: Vec<(String, f64)> = longer.map(|(name, share)| (name.to_owned(), share)).collect();
    common::order::by_key(&mut ops, |(_, share)| (!common::order::fraction(*share), 0));
    ops.truncate(OPS);
    Measured {
        times: found.call.change.map(|change| 1.0 + change),
        interval: found.call.interval.map(|ends| ends.map(|end| 1.0 + end)),
        slower,
        ops,
        failed: None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    /// Searches among differences that cost so much each; together they cost `both`, if all of them are there.
    fn among(costs: &[f64], together: &[usize], both: f64) -> (Vec<usize>, Ended, usize) {
        let mut asked = 0;
        let found = search(costs.len(), &mut |with| {
            asked += 1;
            let own: f64 = with.iter().map(|i| costs[*i]).sum();
            let joint =
                if !together.is_empty() && together.iter().all(|i| with.contains(i)) { both } else { 0.0 };
            let times = 1.0 + own + joint;
            Ok(Measured { times: Some(times), slower: Some(times > 1.01), ..Measured::default() })
        })
        .ok()
        .unwrap();
        (found.culprits, found.ended, asked)
    }

    #[test]
    fn one_of_many_is_found_by_halves() {
        let (culprits, ended, asked) = among(&[0.0, 0.0, 0.0, 0.0, 0.0, 0.8, 0.0, 0.002], &[], 0.0);
        assert_eq!((culprits, ended), (vec![5], Ended::Found));
        assert!(asked <= 7, "{asked}");
        assert_eq!(among(&[0.3], &[], 0.0), (vec![0], Ended::Found, 1));
    }

    #[test]
    fn what_costs_only_together_stays_together() {
        assert_eq!(among(&[0.0, 0.0, 0.0, 0.0], &[0, 3], 0.5).0, [0, 1, 2, 3]);
        assert_eq!(among(&[0.0, 0.0, 0.0, 0.0], &[2, 3], 0.5).0, [2, 3]);
    }

    #[test]
    fn a_command_that_is_not_slower_has_no_culprit() {
        assert_eq!(among(&[0.0, 0.0], &[], 0.0), (vec![], Ended::NotSlower, 1));
    }

    #[test]
    fn an_interrupted_search_has_what_is_left() {
        let mut asked = 0;
        let found = search(4, &mut |_| {
            asked += 1;
            match asked {
                3 => Err(Stop::Interrupted),
                _ => Ok(Measured { times: Some(2.0), slower: Some(true), ..Measured::default() }),
            }
        });
        let found = found.ok().unwrap();
        assert_eq!((found.culprits, found.ended), (vec![0, 1], Ended::Interrupted));
    }
}
