//! What changed from one run to another. The field names of these structs are those of the JSON output. May use `trace`.
//!
//! Ops are matched by name without the layer number and by the types and dimensions of their tensors; what only one run
//! has is a change of structure and of no speed. The k-th call of one run is held against the k-th of the other, so that
//! growth with the context falls out; `judge` says which changes are the ops' own.

mod judge;

use std::collections::HashMap;

use serde::Serialize;

use self::judge::Column;
use super::calls::{Phase, Timeline, timeline};
use super::describe::{self, streams};
use super::load::{Loaded, Progress, load};
use super::report::{RunFacts, run};
use super::series::{Calls, Groups, Series, why_nothing};
use super::stats;
use super::tables::{Idents, OTHER_ROW, OpKey};
use crate::order;
use crate::trace::Trace;

/// How to compare.
#[derive(Debug, Clone)]
pub struct Options {
    pub phase: Phase,
    pub by: OpKey,
    /// Of the changes told, at most this share may be none, 0 to 1.
    pub false_discovery: f64,
    /// A change of an op up to this share of its time is not told.
    pub least: f64,
}

/// Why two runs can't be compared.
#[derive(Debug, thiserror::Error)]
#[error("run {run} has no {phase} call with all of its ops: {why}")]
pub struct Incomparable {
    run: char,
    phase: &'static str,
    why: &'static str,
}

/// The answer. `schema` grows when a field changes its meaning.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Diff {
    pub schema: u32,
    pub phase: Phase,
    pub a: Side,
    pub b: Side,
    /// What the recordings say differs: what, in A, in B.
    pub differences: Vec<[String; 3]>,
    /// Pairs of calls, or of means of as many calls in a row.
    pub pairs: u64,
    pub calls_in_a_pair: u64,
    /// Duration of a call.
    pub call: Change,
    /// Common changes of ops: what the machine, or the build as a whole, did.
    pub drift: Vec<Drift>,
    /// How far ops lie from that beyond what their calls let expect (standard deviation): no two starts are alike.
    pub scatter: f64,
    /// Operators in both runs, told changes first, then by effect.
    pub ops: Vec<OpChange>,
    /// Operators and shapes in one run only.
    pub only_a: Vec<Only>,
    pub only_b: Vec<Only>,
    pub tested: u64,
    pub false_discovery: f64,
    pub least_change: f64,
    /// Of the mean call of A: added by the changes told, and by what only one run has.
    pub added_by_ops: f64,
    pub added_by_structure: f64,
}

/// One of the runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Side {
    pub run: RunFacts,
    pub pid: u32,
    /// More processes that have calls; these are not compared.
    pub other_processes: u64,
    pub threads: Option<u32>,
    /// Whole calls of the phase, and those left out because they are cut or miss ops.
    pub calls: u64,
    pub left_out: u64,
}

/// A change of a time, as a share of it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Change {
    /// Mean of all that is compared, ns a call.
    pub a_ns: f64,
    pub b_ns: f64,
    /// Of the typical call: the trimmed mean over pairs; null with too few of them.
    pub change: Option<f64>,
    /// Where it lies with 95 % confidence.
    pub interval: Option<[f64; 2]>,
}

/// What many ops have in common.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Drift {
    pub ops: &'static str,
    pub count: u64,
    /// Median of their changes, by time.
    pub change: f64,
}

/// A told change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Slower,
    Faster,
    /// It runs more or less often in a call, so that its time says nothing of its speed.
    Recounted,
}

/// One row.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OpChange {
    pub name: String,
    /// Types and dimensions; left out where the row has several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub form: Option<String>,
    /// There are more rows of this name, with other forms.
    #[serde(skip)]
    pub several: bool,
    /// Calls compared in which it ran.
    pub pairs: u64,
    /// How often it runs in a call in which it does, in A and in B.
    pub times_a_call: [f64; 2],
    /// The change as it was measured.
    pub total: Change,
    /// The change without the drift of its kind, and where it lies with 95 % confidence; null where it can't be told.
    pub own: Option<f64>,
    pub own_interval: Option<[f64; 2]>,
    /// What its own change (else the measured one) adds to a call, ns.
    pub effect_ns: f64,
    /// The false discovery rate at which it would just be told; null where it was not tested.
    pub q: Option<f64>,
    pub verdict: Option<Verdict>,
    /// The logarithm of its own change.
    #[serde(skip)]
    estimate: Option<stats::Estimate>,
}

/// An op or shape in one run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Only {
    pub name: String,
    pub form: String,
    /// Mean over the compared calls, ns a call.
    pub ns: f64,
    /// The other run has the op with other types or dimensions.
    pub reshaped: bool,
}

/// A run with the idents of its ops.
struct Loading<'a> {
    loaded: Loaded<'a>,
    line: Timeline,
    idents: Idents,
    /// By ident: its group.
    group_of: Vec<usize>,
    calls: Calls,
    series: Series,
}

/// Ops of one name and form, in both runs or in one.
struct Fine {
    name: String,
    form: String,
    row: String,
    /// Its weights come from memory.
    streams: bool,
}

/// Compares two runs.
///
/// # Errors
/// One of them has nothing to compare.
pub fn diff(a: &Trace, b: &Trace, options: &Options, progress: &Progress) -> Result<Diff, Incomparable> {
    progress.total.store(a.size().saturating_add(b.size()), std::sync::atomic::Ordering::Relaxed);
    let mut sides = [a, b].map(|trace| {
        let loaded = load(trace, progress);
        let (line, idents) = (timeline(&loaded), Idents::new(&loaded));
        let calls = Calls::new(&loaded, &line, options.phase, None);
        Loading { loaded, line, idents, group_of: Vec::new(), calls, series: Series::default() }
    });
    let fine = match_ops(&mut sides, options.by);
    let pairs = sides.iter().map(|s| s.calls.whole.len()).min().unwrap_or(0);
    for (side, run) in sides.iter_mut().zip(['A', 'B']) {
        if side.calls.whole.is_empty() {
            return Err(Incomparable {
                run,
                phase: options.phase.name(),
                why: why_nothing(&side.loaded, &side.line, options.phase),
            });
        }
        let groups = Groups { idents: &side.idents, of: &side.group_of, count: fine.len() };
        let calls = side.calls.whole.get(..pairs).unwrap_or(&[]);
        side.series = Series::new(&mut side.loaded, &side.line, calls, &groups);
    }
    Ok(compare(&sides, &fine, options))
}

/// Kinds of ops that are told apart; more than any model has.
pub const MOST_KINDS: usize = 4096;

/// Gives ops that are alike in name and form the same group, in both runs.
fn match_ops(sides: &mut [Loading<'_>; 2], by: OpKey) -> Vec<Fine> {
    let mut known: HashMap<String, usize> = HashMap::new();
    let mut fine: Vec<Fine> = Vec::new();
    let rest = || Fine { name: OTHER_ROW.into(), form: String::new(), row: OTHER_ROW.into(), streams: false };
    for side in sides {
        for (i, ident) in side.idents.list().iter().enumerate() {
            let (name, row) = (side.idents.label(i, OpKey::Name), side.idents.label(i, by));
            let form = describe::form(&side.loaded, ident.hit);
            let key = match by {
                OpKey::Layer => format!("{name}\n{form}\n{row}"),
                _ => format!("{name}\n{form}"),
            };
            let group = *known.entry(key).or_insert(fine.len().min(MOST_KINDS));
            if group == fine.len() {
                let one = Fine { name, form, row, streams: streams(ident) };
                fine.push(if group < MOST_KINDS { one } else { rest() });
            }
            side.group_of.push(group);
        }
    }
    fine
}

fn compare(sides: &[Loading<'_>; 2], fine: &[Fine], options: &Options) -> Diff {
    let [a, b] = [&sides[0].series, &sides[1].series];
    let pairs = a.calls.len().min(b.calls.len());
    let ran = |s: &Series, group: usize| s.group(group).iter().take(pairs).any(|t| *t > 0.0);
    let names = [a, b].map(|run| {
        let there = fine.iter().enumerate().filter(|(i, _)| ran(run, *i));
        there.map(|(i, f)| (f.name.clone(), i)).collect::<HashMap<String, usize>>()
    });
    let (mut only_a, mut only_b, mut both) = (Vec::new(), Vec::new(), Vec::new());
    for (i, f) in fine.iter().enumerate() {
        match (ran(a, i), ran(b, i)) {
            (true, true) => both.push(i),
            (true, false) => only_a.push(only(f, a.group(i), pairs, names[1].contains_key(&f.name))),
            (false, true) => only_b.push(only(f, b.group(i), pairs, names[0].contains_key(&f.name))),
            (false, false) => {}
        }
    }
    for list in [&mut only_a, &mut only_b] {
        order::by_key(list, |o| (!order::fraction(o.ns), 0));
    }
    let columns: Vec<Column> =
        both.iter().map(|i| Column::new(*i, fine[*i].streams, [a, b], pairs)).collect();
    let field = judge::Field::new(&columns);
    let mut ops = rows(&columns, &both, fine, options.by, &field);
    judge::tell(&mut ops, options);
    let call = judge::change(&a.durations, &b.durations, pairs);
    let effect = |told: &dyn Fn(&OpChange) -> bool| {
        ops.iter().filter(|o| told(o)).map(|o| o.effect_ns).sum::<f64>() / call.a_ns.max(1.0)
    };
    let total = |list: &[Only]| list.iter().map(|o| o.ns).sum::<f64>();
    Diff {
        schema: 1,
        phase: options.phase,
        added_by_ops: effect(&|o| matches!(o.verdict, Some(Verdict::Slower | Verdict::Faster))),
        added_by_structure: effect(&|o| o.verdict == Some(Verdict::Recounted))
            + (total(&only_b) - total(&only_a)) / call.a_ns.max(1.0),
        a: side(&sides[0]),
        b: side(&sides[1]),
        differences: differences(sides),
        pairs: pairs as u64,
        calls_in_a_pair: a.merged as u64,
        call,
        drift: field.drift(),
        scatter: field.scatter(),
        tested: ops.iter().filter(|o| o.q.is_some()).count() as u64,
        ops,
        only_a,
        only_b,
        false_discovery: options.false_discovery,
        least_change: options.least,
    }
}

fn only(f: &Fine, times: &[f32], pairs: usize, reshaped: bool) -> Only {
    let sum: f64 = times.iter().take(pairs).map(|t| f64::from(*t)).sum();
    Only { name: f.name.clone(), form: f.form.clone(), ns: sum / pairs as f64, reshaped }
}

/// The rows asked for, of the columns that each is made of.
fn rows(
    columns: &[Column],
    both: &[usize],
    fine: &[Fine],
    by: OpKey,
    field: &judge::Field<'_>,
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
        let sum = Column::sum(columns, members);
        let mut row = field.row(&sum, members);
        row.several = of_name.get(*name).is_some_and(|n| *n > 1);
        row.name = name.to_string();
        row.form = (!form.is_empty()).then(|| form.to_string());
        row
    };
    names.iter().zip(&members).map(row).collect()
}

fn threads(loaded: &Loaded<'_>) -> Option<u32> {
    loaded.cpu_graphs.iter().map(|g| g.n_threads).max()
}

fn side(side: &Loading<'_>) -> Side {
    Side {
        run: run(&side.loaded),
        pid: side.calls.pid,
        other_processes: side.calls.other_processes as u64,
        threads: threads(&side.loaded),
        calls: side.calls.whole.len() as u64,
        left_out: side.calls.left_out as u64,
    }
}

/// What may be the reason of a change.
fn differences(sides: &[Loading<'_>; 2]) -> Vec<[String; 3]> {
    let facts = |side: &Loading<'_>| {
        let run = run(&side.loaded);
        let of_pid = |p: &&super::report::ProcessFacts| p.pid == side.calls.pid;
        let process = run.processes.iter().find(of_pid);
        let engine = process.and_then(|p| run.engines.iter().find(|e| e.id == p.engine));
        let builds = engine.map(|e| {
            let ids: Vec<&str> = e.modules.iter().map(|m| m.build_id.as_str()).collect();
            ids.join(" ")
        });
        let barrier = side.loaded.cpu_graphs.iter().any(|g| g.barrier);
        let or_empty = |text: Option<String>| text.unwrap_or_default();
        [
            ("machine", format!("{} {}", run.host, run.cpu_model)),
            ("kernel", run.kernel.clone()),
            ("engine", or_empty(engine.map(|e| e.version.clone()))),
            ("build id", or_empty(builds)),
            ("command", or_empty(process.map(|p| p.cmdline.clone()))),
            ("threads", or_empty(threads(&side.loaded).map(|n| n.to_string()))),
            ("recorder", run.tool.clone()),
            ("source", or_empty(run.source.clone())),
            ("barrier", if barrier { "probed".into() } else { "not probed".to_string() }),
        ]
    };
    let [a, b] = [facts(&sides[0]), facts(&sides[1])];
    a.into_iter()
        .zip(b)
        .filter(|((_, a), (_, b))| a != b)
        .map(|((what, a), (_, b))| [what.to_string(), a, b])
        .collect()
}

impl Diff {
    /// Share of a call by which B is slower: by changes that were told, and as measured beyond what chance explains.
    pub fn slower(&self) -> (f64, f64) {
        let measured = match (self.call.change, self.call.interval) {
            (Some(change), Some([low, _])) if low > 0.0 => change,
            _ => 0.0,
        };
        (self.added_by_ops + self.added_by_structure, measured)
    }

    /// Points that statistics need at least.
    pub fn enough(&self) -> bool {
        self.pairs as usize >= stats::LEAST
    }
}
