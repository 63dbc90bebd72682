//! Compares a trace's times with the engine's own.
//!
//! Records are matched by time (a traced call begins inside its true one) and, for ops, by graph, thread and
//! tensor address. The accuracy of a measurement is 1 - |measured - true| / true, where both are durations.

use std::collections::HashMap;

use serde::Serialize;

use crate::questions::ground_truth::{self, GroundTruth, TruthCall};
use crate::recorded::load::{LoadProgress, Loaded, load};
use common::order;
use pfi::record::{CpuGraph, Slices};
use pfi::{SliceTime, Trace, slice_iter};

/// Accuracy of a set of measurements of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Accuracy {
    pub count: u64,
    pub mean: f64,
    pub median: f64,
    pub worst: f64,
    /// Median of measured - true.
    pub bias_ns: i64,
}

/// One level of the trace, or one duration class of its ops.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AccuracyRow {
    pub level: &'static str,
    /// Null if nothing could be compared.
    pub accuracy: Option<Accuracy>,
    /// In the trace, but not in the ground truth.
    pub only_traced: u64,
    /// In the ground truth, but not in the trace.
    pub only_true: u64,
}

/// An accuracy goal, and the value reached.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AccuracyGoal {
    pub what: &'static str,
    /// Minimum mean accuracy.
    pub least: f64,
    pub reached: Option<f64>,
    pub met: bool,
}

/// The result of the comparison.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AccuracyComparison {
    pub pid: u32,
    /// Phases, calls, warm-up calls, graphs, CPU graphs, ops.
    pub levels: Vec<AccuracyRow>,
    /// Ops by true duration. Ops that only one side has are counted in `levels`.
    pub classes: Vec<AccuracyRow>,
    /// Op slices whose end was not recorded.
    pub without_end: u64,
    /// Ops compared by the time until the thread's next op begins, because the trace has no other end.
    pub wall: u64,
    pub targets: Vec<AccuracyGoal>,
    /// Cost of one read of the engine's clock. Each op has two.
    pub reading_ns: u64,
    /// Records the engine dropped for lack of space.
    pub dropped: u64,
}

/// Why a comparison is impossible.
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    #[error(
        "the ground truth is for process {0}, which is not in the trace; pass both files of the same run"
    )]
    OtherProcess(u32),
    #[error(
        "no call or graph of the trace lies within one of the ground truth; pass both files of the same run"
    )]
    OtherRun,
}

/// One measurement from both sides: durations in ns.
#[derive(Debug, Clone, Copy)]
struct DurationPair {
    measured: u64,
    truth: u64,
}

impl DurationPair {
    fn alpha(self) -> f64 {
        1.0 - self.measured.abs_diff(self.truth) as f64 / self.truth.max(1) as f64
    }

    fn bias(self) -> i64 {
        i64::try_from(i128::from(self.measured) - i128::from(self.truth)).unwrap_or(i64::MAX)
    }
}

/// Pairs of one level, and how many records were on one side only.
#[derive(Default)]
struct Matched {
    pairs: Vec<DurationPair>,
    only_traced: u64,
    only_true: u64,
}

impl Matched {
    fn line(&self, level: &'static str) -> AccuracyRow {
        let accuracy = accuracy(&self.pairs);
        AccuracyRow { level, accuracy, only_traced: self.only_traced, only_true: self.only_true }
    }
}

fn accuracy(pairs: &[DurationPair]) -> Option<Accuracy> {
    let mut alphas: Vec<f64> = pairs.iter().map(|p| p.alpha()).collect();
    let mut biases: Vec<i64> = pairs.iter().map(|p| p.bias()).collect();
    order::by_key(&mut alphas, |a| (order::fraction(*a), 0));
    order::by_key(&mut biases, |b| (order::time(*b), 0));
    let n = alphas.len();
    Some(Accuracy {
        count: n as u64,
        mean: alphas.iter().sum::<f64>() / n as f64,
        median: (alphas.get(n / 2)? + alphas.get((n - 1) / 2)?) / 2.0,
        worst: *alphas.first()?,
        bias_ns: *biases.get(n / 2)?,
    })
}

/// Bounds of the op classes, by true duration in ns.
const CLASSES: [(&str, u64, u64); 5] = [
    ("op < 10 us", 0, 10_000),
    ("op 10-100 us", 10_000, 100_000),
    ("op 0.1-1 ms", 100_000, 1_000_000),
    ("op > 1 ms", 1_000_000, u64::MAX),
    (OVER_50, 50_000, u64::MAX),
];
const OVER_50: &str = "op > 50 us";
/// The best published figures for profilers on such devices: 99.99 % for phases and 96.82 % for ops.
const TARGETS: [(&str, f64); 3] = [("phase", 0.9999), ("token", 0.9999), (OVER_50, 0.97)];

/// Compares a trace with the ground truth of the same run.
pub fn compare(trace: &Trace, truth: &GroundTruth) -> Result<AccuracyComparison, CompareError> {
    let loaded = load(trace, &LoadProgress::default());
    let pid = process(&loaded, truth)?;
    let calls: Vec<Traced> =
        loaded.tokens.iter().filter(|t| t.pid == pid && !t.cut).map(Traced::of).collect();
    let graphs: Vec<Traced> =
        loaded.graphs.iter().filter(|g| g.pid == pid && !g.cut).map(Traced::of).collect();
    let whole: Vec<&CpuGraph> = loaded.cpu_graphs.iter().filter(|g| g.pid == pid && !g.cut).collect();
    let parts: Vec<Traced> = whole.iter().map(|g| Traced::of(*g)).collect();
    let true_parts: Vec<ground_truth::TruthSpan> = truth.cpu_graphs.iter().map(|g| g.span).collect();

    let true_calls: Vec<ground_truth::TruthSpan> = truth.calls.iter().map(|c| c.span).collect();
    let (all_calls, call_of) = match_spans(&calls, &true_calls);
    let (tokens, warm_up) = warm_up_apart(&all_calls, &truth.calls, &call_of);
    let (graph_level, _) = match_spans(&graphs, &truth.graphs);
    let (cpu_level, part_of) = match_spans(&parts, &true_parts);
    if all_calls.pairs.is_empty() && cpu_level.pairs.is_empty() {
        return Err(CompareError::OtherRun);
    }
    let phases = Matched { pairs: phases(&calls, &truth.calls, &call_of), ..Matched::default() };
    let ops = Ops::of(&loaded, truth, &whole, &part_of);
    let levels = vec![
        phases.line("phase"),
        tokens.line("token"),
        warm_up.line("warm-up call"),
        graph_level.line("graph"),
        cpu_level.line("cpu graph"),
        ops.matched.line("op"),
    ];
    let class = |&(level, from, to): &(&'static str, u64, u64)| {
        let pairs = ops.matched.pairs.iter().filter(|p| (from..to).contains(&p.truth)).copied().collect();
        Matched { pairs, ..Matched::default() }.line(level)
    };
    let classes: Vec<AccuracyRow> = CLASSES.iter().map(class).collect();
    Ok(AccuracyComparison {
        pid,
        targets: TARGETS.iter().map(|t| target(t, levels.iter().chain(&classes))).collect(),
        levels,
        classes,
        without_end: ops.without_end,
        wall: ops.wall,
        reading_ns: truth.reading_ns,
        dropped: truth.dropped,
    })
}

fn target<'a>(
    &(what, least): &(&'static str, f64),
    lines: impl Iterator<Item = &'a AccuracyRow>,
) -> AccuracyGoal {
    let line = lines.into_iter().find(|l| l.level == what);
    let reached = line.and_then(|l| l.accuracy).map(|a| a.mean);
    AccuracyGoal { what, least, reached, met: reached.is_some_and(|r| r >= least) }
}

/// The traced process that the ground truth describes. A process has a different pid inside a container than
/// outside, so a lone process in the trace is taken to be the right one.
fn process(loaded: &Loaded<'_>, truth: &GroundTruth) -> Result<u32, CompareError> {
    let mut pids: Vec<u32> = loaded.tokens.iter().map(|t| t.pid).collect();
    pids.extend(loaded.cpu_graphs.iter().map(|g| g.pid));
    order::by_key(&mut pids, |pid| ((*pid).into(), 0));
    pids.dedup();
    match pids.as_slice() {
        [only] => Ok(*only),
        many if many.contains(&truth.pid) => Ok(truth.pid),
        _ => Err(CompareError::OtherProcess(truth.pid)),
    }
}

/// A call or graph of the trace.
#[derive(Debug, Clone, Copy)]
struct Traced {
    t: i64,
    dur: u64,
}

impl Traced {
    fn of<T: TimedSpan>(record: &T) -> Traced {
        let (t, dur) = record.time();
        Traced { t, dur }
    }

    fn end(self) -> i64 {
        self.t.saturating_add_unsigned(self.dur)
    }
}

trait TimedSpan {
    fn time(&self) -> (i64, u64);
}

macro_rules! timed {
    ($($record:ty),+) => {$(
        impl TimedSpan for $record {
            fn time(&self) -> (i64, u64) {
                (self.t, self.dur)
            }
        }
    )+};
}
timed!(pfi::record::Token, pfi::record::Graph, CpuGraph);

/// Pairs each traced span with the true span it begins in; both lists are of one level. `truth` is sorted by
/// start. Also returns, parallel to `traced`, the index of each span's partner.
fn match_spans(traced: &[Traced], truth: &[ground_truth::TruthSpan]) -> (Matched, Vec<Option<usize>>) {
    let mut matched = Matched::default();
    let mut taken = vec![false; truth.len()];
    let mut partners = Vec::with_capacity(traced.len());
    for span in traced {
        let t = u64::try_from(span.t).unwrap_or(0);
        let at = truth.partition_point(|s| s.start <= t).checked_sub(1);
        let partner = at.filter(|&i| truth.get(i).is_some_and(|s| t <= s.end));
        let free = partner.filter(|&i| taken.get_mut(i).is_some_and(|b| !std::mem::replace(b, true)));
        match free.and_then(|i| truth.get(i)) {
            Some(s) => matched.pairs.push(DurationPair { measured: span.dur, truth: s.end - s.start }),
            None => matched.only_traced += 1,
        }
        partners.push(free);
    }
    matched.only_true = taken.iter().filter(|t| !**t).count() as u64;
    (matched, partners)
}

/// Separates the calls made before the measurement from the others. Calls only in the trace count with the
/// others.
fn warm_up_apart(all: &Matched, truth: &[TruthCall], partner: &[Option<usize>]) -> (Matched, Matched) {
    let mut parts = [Matched::default(), Matched::default()];
    let mut pairs = all.pairs.iter();
    let mut left: Vec<bool> = vec![true; truth.len()];
    for place in partner.iter().flatten() {
        let (Some(call), Some(pair)) = (truth.get(*place), pairs.next()) else { continue };
        parts[usize::from(call.warm_up)].pairs.push(*pair);
        if let Some(left) = left.get_mut(*place) {
            *left = false;
        }
    }
    for (call, _) in truth.iter().zip(left).filter(|(_, left)| *left) {
        parts[usize::from(call.warm_up)].only_true += 1;
    }
    let [mut tokens, warm_up] = parts;
    tokens.only_traced = all.only_traced;
    (tokens, warm_up)
}

/// Phases: from the start of the first to the end of the last of consecutive calls of many tokens, or of one. The
/// warm-up is not a phase.
fn phases(traced: &[Traced], truth: &[TruthCall], partner: &[Option<usize>]) -> Vec<DurationPair> {
    let mut of_truth: Vec<Option<Traced>> = vec![None; truth.len()];
    for (span, at) in traced.iter().zip(partner) {
        if let Some(slot) = at.and_then(|i| of_truth.get_mut(i)) {
            *slot = Some(*span);
        }
    }
    let both: Vec<_> = truth.iter().zip(of_truth).collect();
    let kind = |c: &TruthCall| (c.warm_up, c.span.size > 1);
    let runs = both.chunk_by(|a, b| kind(a.0) == kind(b.0)).filter(|r| r.iter().all(|(c, _)| !c.warm_up));
    runs.filter_map(|run| {
        // A phase with a missing call was not measured.
        run.iter().all(|(_, t)| t.is_some()).then_some(())?;
        let ((first_true, first), (last_true, last)) = (*run.first()?, *run.last()?);
        let measured = last?.end().checked_sub(first?.t).and_then(|d| u64::try_from(d).ok())?;
        Some(DurationPair { measured, truth: last_true.span.end.saturating_sub(first_true.span.start) })
    })
    .collect()
}

/// The ops of both sides.
#[derive(Default)]
struct Ops {
    matched: Matched,
    without_end: u64,
    wall: u64,
}

/// A true op: its duration, and the time until its thread's next op or its graph's end.
struct TrueOp {
    busy: u64,
    wall: u64,
    taken: bool,
}

impl Ops {
    fn of(loaded: &Loaded<'_>, truth: &GroundTruth, graphs: &[&CpuGraph], partner: &[Option<usize>]) -> Ops {
        let mut out = Ops::default();
        let mut runs: HashMap<u64, Vec<&Slices<'_>>> = HashMap::new();
        for run in &loaded.runs {
            runs.entry(run.graph).or_default().push(run);
        }
        let mut compared = 0;
        for (graph, at) in graphs.iter().zip(partner) {
            let of_graph = runs.get(&graph.seq).map_or(&[][..], |r| r);
            let Some(true_graph) = at.and_then(|i| truth.cpu_graphs.get(i)) else {
                out.matched.only_traced += of_graph.iter().map(|r| u64::from(r.n)).sum::<u64>();
                continue;
            };
            let mut ops = true_ops(truth, true_graph);
            compared += ops.len() as u64;
            for run in of_graph {
                out.run(loaded, run, &mut ops);
            }
            out.matched.only_true += ops.values().filter(|o| !o.taken).count() as u64;
        }
        out.matched.only_true += (truth.ops.len() as u64).saturating_sub(compared);
        out
    }

    fn run(&mut self, loaded: &Loaded<'_>, run: &Slices<'_>, ops: &mut HashMap<(u32, u64), TrueOp>) {
        let hits = loaded.plans.get(&run.plan).map_or(&[][..], |p| &p.hits);
        let hits = hits.get(run.first as usize..).unwrap_or_default();
        let addresses =
            hits.iter().map(|h| loaded.tensors.get(&h.0).map(|t| t.addr)).chain(std::iter::repeat(None));
        for (slice, address) in slice_iter(run).zip(addresses) {
            let op = address.and_then(|a| ops.get_mut(&(u32::from(run.ith), a))).filter(|o| !o.taken);
            let Some(op) = op else {
                self.matched.only_traced += 1;
                continue;
            };
            op.taken = true;
            match measured(run, slice) {
                Some(measured) => {
                    // Compare the same interval on both sides.
                    let truth = if run.barrier { op.busy } else { op.wall };
                    self.wall += u64::from(!run.barrier);
                    self.matched.pairs.push(DurationPair { measured, truth });
                }
                None => self.without_end += 1,
            }
        }
    }
}

fn measured(run: &Slices<'_>, slice: SliceTime) -> Option<u64> {
    match run.barrier {
        true => slice.busy,
        false => slice.next.and_then(|next| u64::try_from(next.checked_sub(slice.start)?).ok()),
    }
}

/// The ops of a graph, by thread and address.
fn true_ops(truth: &GroundTruth, graph: &ground_truth::TruthCpuGraph) -> HashMap<(u32, u64), TrueOp> {
    let ops = truth.ops_of(graph);
    let next =
        |i: usize, ith: u32| ops.get(i + 1).filter(|o| o.ith == ith).map_or(graph.span.end, |o| o.start);
    let of = |(i, o): (usize, &ground_truth::TruthOp)| {
        let address = truth.node_of(graph, o.node)?.address;
        let wall = next(i, o.ith).saturating_sub(o.start);
        Some(((o.ith, address), TrueOp { busy: o.end - o.start, wall, taken: false }))
    };
    ops.iter().enumerate().filter_map(of).collect()
}
