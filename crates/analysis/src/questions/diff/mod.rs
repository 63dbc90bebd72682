//! Compares two runs, or several runs of one build with as many of another. The field names of these structs are
//! those of the JSON output.
//!
//! Ops are matched by name without the layer number and by the types and dimensions of their tensors. An op that
//! only one side has is a structural change, not a change of speed. The k-th call of one run is compared with the
//! k-th of the other, so that growth with the context cancels out. `judge` decides which changes are an op's own,
//! `scatter` which are variation between program starts.

mod judge;
mod scatter;
mod sides;

use std::collections::HashMap;

use serde::Serialize;

use self::judge::{Judge, TimesColumn};
use self::sides::{Fine, RunStart};
use crate::questions::report::RunFacts;
use crate::recorded::calls::Phase;
use crate::recorded::idents::OpKey;
use crate::recorded::load::LoadProgress;
use crate::recorded::runs::{RunId, RunRow};
use crate::recorded::selection::NoPart;
use crate::sums::series::Series;
use crate::sums::time_series;
use common::order;
use pfi::Trace;

pub use self::sides::MOST_KINDS;

/// Comparison options.
#[derive(Debug, Clone)]
pub struct DiffOptions {
    pub phase: Phase,
    pub by: OpKey,
    /// Maximum expected share of false positives among the reported changes, 0 to 1.
    pub false_discovery: f64,
    /// Changes of an op up to this share of its time are not reported.
    pub least: f64,
    /// One process, for all recordings that have it, or one per recording, those of A first. If empty, the
    /// process with the most calls of each recording.
    pub pids: Vec<RunId>,
}

/// Why two runs cannot be compared.
#[derive(Debug, thiserror::Error)]
pub enum Incomparable {
    #[error("run {run} has no {phase} call with all of its ops: {why}")]
    NoCall { run: String, phase: &'static str, why: &'static str },
    #[error("{run} process {pid}; recorded processes: {there}")]
    NoProcess { run: String, pid: u32, there: String },
    #[error("run {run}: {why}")]
    NoPart { run: String, why: NoPart },
    #[error(
        "A is a {a}, B a {b}: different models, nothing to compare (profinfer dag A --against B compares their graphs)"
    )]
    Models { a: String, b: String },
}

/// The result. `schema` is increased when the meaning of a field changes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Diff {
    pub schema: u32,
    pub phase: Phase,
    /// Recordings of each side; the first of A is compared with the first of B, and so on.
    pub a: Vec<DiffSide>,
    pub b: Vec<DiffSide>,
    /// Differences in recorded facts: what, in A, in B.
    pub differences: Vec<[String; 3]>,
    /// Pairs of recordings.
    pub starts: u64,
    /// Pairs of calls in each, or of means over that many consecutive calls.
    pub pairs: u64,
    pub calls_in_a_pair: u64,
    /// Of each group of this many consecutive pairs the fastest is compared; 1 if few calls were disturbed by
    /// other work.
    pub fastest_of: u64,
    /// Duration of a call.
    pub call: TimeChange,
    /// Changes common to many ops: effects of the machine, or of the build as a whole.
    pub drift: Vec<Drift>,
    /// How far ops deviate from that, because no two program starts are alike.
    pub scatter: Vec<Scatter>,
    /// Operators on both sides, reported changes first, then by effect.
    pub ops: Vec<OpChange>,
    /// Operators and shapes on one side only.
    pub only_a: Vec<Only>,
    pub only_b: Vec<Only>,
    pub tested: u64,
    pub false_discovery: f64,
    pub least_change: f64,
    /// Share of the mean call of A added by the reported changes, and by ops that only one run has.
    pub added_by_ops: f64,
    pub added_by_structure: f64,
}

/// One of the recordings.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DiffSide {
    pub run: RunFacts,
    pub pid: u32,
    /// The context, if the process has several; the others are not compared.
    pub context: Option<u32>,
    /// Processes with calls, and contexts of a process that has several. Only the one shown is compared.
    pub runs: Vec<RunRow>,
    /// Other processes with calls; these are not compared.
    pub other_processes: u64,
    pub threads: Option<u32>,
    /// Complete calls of the phase, and those left out because they are cut off or miss ops.
    pub calls: u64,
    pub left_out: u64,
}

/// A change of a time, as a share of that time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct TimeChange {
    /// Mean over everything compared, ns per call.
    pub a_ns: f64,
    pub b_ns: f64,
    /// Change of the typical call: the trimmed mean over pairs; null with too few pairs.
    pub change: Option<f64>,
    /// 95 % confidence interval; null also if it would reach beyond a factor of ten either way.
    pub interval: Option<[f64; 2]>,
}

/// Whether B is slower than A by more than allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judgement {
    /// Not slower, with 95 % confidence.
    NotSlower,
    /// Slower through reported op changes, or through ops that only B has.
    Ops,
    /// All of the call is slower alike.
    Call,
    /// Possibly slower.
    Undecided(Doubt),
}

/// Why the comparison is undecided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doubt {
    TooFewCalls,
    /// The change may be above or below the limit.
    Scatter,
    /// The typical call is within the limit, but the mean of all calls is not.
    FewCalls,
}

/// Ops that run at memory speed, and ops that run at the speed of the core and its caches.
pub const KINDS: [&str; 2] = ["ops that stream weights", "other ops"];

/// Variation of a kind of ops that comes from program starts alone.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Scatter {
    pub ops: &'static str,
    /// Standard deviation of an op's change from one start to another beyond what call-to-call variation
    /// explains, as a share. With one start per side it is estimated from how differently ops of the kind
    /// changed, with several from how much the starts differ.
    pub between_starts: f64,
    /// The same including call-to-call variation: all observed variation.
    pub seen: f64,
    /// The smallest change of a typical op's own (by time) that is found four times out of five, as a share of
    /// its time.
    pub found: f64,
}

/// A change common to many ops.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Drift {
    pub ops: &'static str,
    pub count: u64,
    /// Median of their changes, weighted by time.
    pub change: f64,
}

/// A reported change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DiffVerdict {
    Slower,
    Faster,
    /// It runs more or less often per call, so its time says nothing about its speed.
    Recounted,
}

/// One row of the result.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OpChange {
    pub name: String,
    /// Types and dimensions; omitted if the row has several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub form: Option<String>,
    /// Other rows have the same name but other forms.
    #[serde(skip)]
    pub several: bool,
    /// One of [`KINDS`].
    pub kind: &'static str,
    /// Compared calls in which it ran, over all starts.
    pub pairs: u64,
    /// How often it runs per call in which it runs at all, in A and in B.
    pub times_a_call: [f64; 2],
    /// The measured change.
    pub total: TimeChange,
    /// The change without the drift of its kind, and its 95 % confidence interval; null if not known.
    pub own: Option<f64>,
    pub own_interval: Option<[f64; 2]>,
    /// What its own change (else the measured one) adds to a call, ns.
    pub effect_ns: f64,
    /// The lowest false discovery rate at which it would be reported; null if it was not tested.
    pub q: Option<f64>,
    /// The smallest change of this op alone that would be found in four out of five cases, as a share of its time.
    pub found: Option<f64>,
    pub verdict: Option<DiffVerdict>,
    /// Its own change, as a logarithm.
    #[serde(skip)]
    estimate: Option<time_series::Estimate>,
}

/// An op or shape that only one run has.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Only {
    pub name: String,
    pub form: String,
    /// Mean over the compared calls, ns per call.
    pub ns: f64,
    /// The other run has the op with other types or dimensions.
    pub reshaped: bool,
}

/// Compares recordings of two sides, the k-th of one with the k-th of the other. Surplus recordings are ignored.
///
/// # Errors
/// One of them has nothing to compare, or there is none.
pub fn diff(
    a: &[&Trace],
    b: &[&Trace],
    options: &DiffOptions,
    progress: &LoadProgress,
) -> Result<Diff, Incomparable> {
    let starts = a.len().min(b.len());
    let sides = [a, b].map(|side| side.get(..starts).unwrap_or(side));
    let (starts, fine) = sides::read(sides, options, progress)?;
    sides::same_model(&starts)?;
    Ok(compare(&starts, &fine, options))
}

fn compare(starts: &[Vec<RunStart<'_>>; 2], fine: &[Fine], options: &DiffOptions) -> Diff {
    let [a, b] = starts.each_ref().map(|side| side.iter().map(|s| &s.series).collect::<Vec<&Series>>());
    let first = a.iter().chain(&b).min_by_key(|s| s.calls.len());
    let (pairs, calls_in_a_pair) = first.map_or((0, 0), |s| (s.calls.len(), s.merged));
    let ran = |side: &[&Series], group: usize| {
        side.iter().any(|s| s.group(group).iter().take(pairs).any(|t| *t > 0.0))
    };
    let names = [&a, &b].map(|side| {
        let there = fine.iter().enumerate().filter(|(i, _)| ran(side, *i));
        there.map(|(i, f)| (f.name.clone(), i)).collect::<HashMap<String, usize>>()
    });
    let (mut only_a, mut only_b, mut both) = (Vec::new(), Vec::new(), Vec::new());
    for (i, f) in fine.iter().enumerate() {
        match (ran(&a, i), ran(&b, i)) {
            (true, true) => both.push(i),
            (true, false) => only_a.push(only(f, i, &a, pairs, names[1].contains_key(&f.name))),
            (false, true) => only_b.push(only(f, i, &b, pairs, names[0].contains_key(&f.name))),
            (false, false) => {}
        }
    }
    for list in [&mut only_a, &mut only_b] {
        order::by_key(list, |o| (!order::fraction(o.ns), 0));
    }
    let in_rows = |row: usize| -> Vec<Vec<TimesColumn>> {
        let of = |a: &Series, b: &Series| {
            both.iter().map(|i| TimesColumn::new(*i, fine[*i].streams, [a, b], pairs, row)).collect()
        };
        a.iter().zip(&b).map(|(a, b)| of(a, b)).collect()
    };
    let mut columns = in_rows(1);
    let row = columns.iter().map(|pair| judge::in_a_row(pair)).max().unwrap_or(1);
    if row > 1 {
        columns = in_rows(row);
    }
    let judge = Judge::new(&columns);
    let mut ops = rows(&columns, &both, fine, options.by, &judge);
    judge::tell(&mut ops, options);
    let calls: Vec<TimesColumn> = a.iter().zip(&b).map(|(a, b)| judge::call([a, b], pairs, row)).collect();
    let call = judge::change(&calls);
    let effect = |told: &dyn Fn(&OpChange) -> bool| {
        ops.iter().filter(|o| told(o)).map(|o| o.effect_ns).sum::<f64>() / call.a_ns.max(1.0)
    };
    let total = |list: &[Only]| list.iter().map(|o| o.ns).sum::<f64>();
    let [side_a, side_b] = starts.each_ref().map(|side| side.iter().map(RunStart::side).collect());
    Diff {
        schema: 2,
        phase: options.phase,
        added_by_ops: effect(&|o| matches!(o.verdict, Some(DiffVerdict::Slower | DiffVerdict::Faster))),
        added_by_structure: effect(&|o| o.verdict == Some(DiffVerdict::Recounted))
            + (total(&only_b) - total(&only_a)) / call.a_ns.max(1.0),
        a: side_a,
        b: side_b,
        differences: sides::differences(starts),
        starts: columns.len() as u64,
        pairs: pairs as u64,
        calls_in_a_pair: calls_in_a_pair as u64,
        fastest_of: row as u64,
        call,
        drift: judge.drift(),
        scatter: judge.scatter(&ops),
        tested: ops.iter().filter(|o| o.q.is_some()).count() as u64,
        ops,
        only_a,
        only_b,
        false_discovery: options.false_discovery,
        least_change: options.least,
    }
}

fn only(f: &Fine, group: usize, side: &[&Series], pairs: usize, reshaped: bool) -> Only {
    let times = side.iter().flat_map(|s| s.group(group).iter().take(pairs));
    let sum: f64 = times.map(|t| f64::from(*t)).sum();
    let ns = sum / (pairs * side.len()).max(1) as f64;
    Only { name: f.name.clone(), form: f.form.clone(), ns, reshaped }
}

/// The requested rows, combined from their columns.
fn rows(
    columns: &[Vec<TimesColumn>],
    both: &[usize],
    fine: &[Fine],
    by: OpKey,
    judge: &Judge<'_>,
) -> Vec<OpChange> {
    let mut names: Vec<(&str, &str)> = Vec::new();
    let mut members: Vec<Vec<usize>> = Vec::new();
    let mut index: HashMap<String, usize> = HashMap::new();
    for (at, group) in both.iter().enumerate() {
        let Some(f) = fine.get(*group) else { continue };
        let form = if by == OpKey::Name { f.form.as_str() } else { "" };
        let row = *index.entry(format!("{}\n{form}", f.row)).or_insert(names.len());
        if row == names.len() {
            names.push((&f.row, form));
            members.push(Vec::new());
        }
        members[row].push(at);
    }
    let mut of_name: HashMap<String, usize> = HashMap::new();
    for (name, _) in &names {
        *of_name.entry(name.to_string()).or_insert(0) += 1;
    }
    let row = |((name, form), members): (&(&str, &str), &Vec<usize>)| {
        let sums: Vec<TimesColumn> = columns.iter().map(|pair| TimesColumn::sum(pair, members)).collect();
        let mut row = judge.row(&sums, members);
        row.several = of_name.get(*name).is_some_and(|n| *n > 1);
        row.name = name.to_string();
        row.form = (!form.is_empty()).then(|| form.to_string());
        row
    };
    names.iter().zip(&members).map(row).collect()
}

impl Diff {
    /// How much slower B is, as a share of a call: through reported changes, and as measured beyond chance.
    pub fn slower(&self) -> (f64, f64) {
        let measured = match (self.call.change, self.call.interval) {
            (Some(change), Some([low, _])) if low > 0.0 => change,
            _ => 0.0,
        };
        (self.added_by_ops + self.added_by_structure, measured)
    }

    /// Whether B is slower by more than the share `most` of a call.
    pub fn judged(&self, most: f64) -> Judgement {
        let (by_ops, measured) = self.slower();
        let mean = self.call.b_ns / self.call.a_ns.max(1.0) - 1.0;
        match self.call.interval {
            _ if !self.enough() => Judgement::Undecided(Doubt::TooFewCalls),
            _ if by_ops > most => Judgement::Ops,
            _ if measured > most => Judgement::Call,
            None => Judgement::Undecided(Doubt::Scatter),
            Some([_, high]) if high > most => Judgement::Undecided(Doubt::Scatter),
            Some(_) if mean > most => Judgement::Undecided(Doubt::FewCalls),
            Some(_) => Judgement::NotSlower,
        }
    }

    /// Whether there are enough data points for the statistics.
    pub fn enough(&self) -> bool {
        self.pairs as usize >= time_series::LEAST
    }
}
