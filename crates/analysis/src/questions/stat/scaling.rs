//! Memory traffic and waiting of the same work on different numbers of threads: one row for each recording.

use std::collections::HashMap;

use serde::Serialize;

use super::work::Products;
use super::{NoStatistics, StatOptions, View};
use crate::questions::report::{self, By, PhaseReport, Report, ReportOptions};
use crate::recorded::calls::{Phase, Timeline, timeline};
use crate::recorded::describe::describe;
use crate::recorded::load::{LoadProgress, Loaded, load};
use crate::recorded::model::{ModelFacts, model};
use crate::recorded::runs::{RunId, Runs};
use crate::recorded::selection::Cut;
use crate::sums::attribution::counters::traffic;
use crate::sums::series::{CallSeries, why_nothing};
use common::order;
use pfi::Trace;

/// Recordings of the same work.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Scaling {
    /// Fewest threads first.
    pub runs: Vec<ScalingRow>,
    /// Where the bytes and the waiting of the comparison come from.
    pub traffic: TrafficSource,
    pub waiting: WaitSource,
    /// The recordings do not show the same model.
    pub other_models: bool,
}

/// A figure is compared only if it comes from the same source in every recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TrafficSource {
    /// A counter of the memory traffic.
    Counted,
    CostModel,
    None,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitSource {
    /// Cycles in which the back end was stalled.
    StalledCycles,
    /// Time at barriers.
    Barriers,
    None,
}

/// One recording.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ScalingRow {
    pub file: String,
    pub threads: u32,
    pub calls: u64,
    /// Mean duration of a call, ns.
    pub call_ns: f64,
    /// Bytes of a call by the cost model, and their rate in 10^9 bytes/s; null if the model knows none of its ops.
    pub model_bytes: Option<f64>,
    pub model_gb_per_s: Option<f64>,
    /// The same by a counter, and its name; null if none was recorded.
    pub counted_bytes: Option<f64>,
    pub counted_gb_per_s: Option<f64>,
    pub counter: Option<String>,
    /// Mean over the threads; null if not recorded.
    pub stalled_share: Option<f64>,
    pub barrier_share: Option<f64>,
    /// The multiplications; null if there are none.
    pub products: Option<Products>,
    #[serde(skip)]
    pub model: ModelFacts,
}

/// Reads the row of one recording: of the given process, else of the one with the most such calls.
///
/// # Errors
/// It has no calls of this phase.
pub fn row(
    trace: &Trace,
    file: String,
    phase: Phase,
    pid: Option<RunId>,
    progress: &LoadProgress,
) -> Result<ScalingRow, NoStatistics> {
    let mut loaded = load(trace, progress);
    let line = timeline(&loaded);
    let runs = Runs::of(&loaded, &line);
    let calls = CallSeries::new(&loaded, &line, phase, pid.map(|id| id.pid));
    if calls.whole.is_empty() {
        let of = pid.map_or_else(String::new, |id| format!(" of process {}", id.pid));
        let why = why_nothing(&loaded, &line, phase);
        return Err(NoStatistics::Calls { phase: phase.name(), of, why });
    }
    let cut = Cut { pid: pid.or(Some(calls.pid.into())), ..Cut::default() };
    let part = cut.part_of(&loaded, &line, runs)?;
    cut.apply(&part, &mut loaded);
    let options = ReportOptions {
        tables: vec![By::Thread, By::Cause, By::Counter],
        phase: Some(phase),
        ..ReportOptions::default()
    };
    let report = report::of(&mut loaded, &options, progress);
    let ops = StatOptions { pid: part.pid.map(RunId::from), ..StatOptions::new(phase, vec![View::Ops]) };
    let products = super::of(&mut loaded, &ops)?.ops.flatten();
    let line = timeline(&loaded);
    let whole = CallSeries::new(&loaded, &line, phase, part.pid).whole;
    let durations = whole.iter().filter_map(|c| line.calls.get(*c)).map(|c| c.dur as f64);
    let call_ns = durations.sum::<f64>() / whole.len().max(1) as f64;
    let model_bytes = bytes_a_call(&loaded, &line, &whole);
    let threads = loaded.cpu_graphs.iter().map(|g| g.n_threads).max().unwrap_or(1);
    let arch = loaded.header.as_ref().map_or("", |h| h.arch);
    let of_phase = report.phases.iter().find(|p| p.phase == phase);
    let counted = of_phase.and_then(|p| counted(&report, p, arch));
    let rate = |bytes: f64| (call_ns > 0.0).then(|| bytes / call_ns);
    let counted_bytes = counted.as_ref().map(|(bytes, _)| *bytes);
    Ok(ScalingRow {
        file,
        threads,
        calls: whole.len() as u64,
        call_ns,
        model_bytes,
        model_gb_per_s: model_bytes.and_then(rate),
        counted_bytes,
        counted_gb_per_s: counted_bytes.and_then(rate),
        counter: counted.map(|(_, name)| name),
        stalled_share: of_phase.and_then(stalled),
        // One thread waits for no other.
        barrier_share: if threads == 1 { Some(0.0) } else { of_phase.and_then(at_barriers) },
        products,
        model: model(&loaded),
    })
}

/// Compares the rows of recordings.
pub fn scaling(mut runs: Vec<ScalingRow>) -> Scaling {
    order::by_key(&mut runs, |r| (r.threads.into(), 0));
    let all = |has: fn(&ScalingRow) -> bool| !runs.is_empty() && runs.iter().all(has);
    let first = runs.first().and_then(|r| r.counter.clone());
    let counted = all(|r| r.counted_gb_per_s.is_some()) && runs.iter().all(|r| r.counter == first);
    let traffic = match counted {
        true => TrafficSource::Counted,
        false if all(|r| r.model_gb_per_s.is_some()) => TrafficSource::CostModel,
        false => TrafficSource::None,
    };
    let waiting = match all(|r| r.stalled_share.is_some()) {
        true => WaitSource::StalledCycles,
        false if all(|r| r.barrier_share.is_some()) => WaitSource::Barriers,
        false => WaitSource::None,
    };
    let other_models = runs.windows(2).any(|w| matches!(w, [a, b] if a.model != b.model));
    Scaling { runs, traffic, waiting, other_models }
}

/// Bytes that the ops of these calls read and write on the CPU, by the cost model, in an average call.
fn bytes_a_call(loaded: &Loaded<'_>, line: &Timeline, calls: &[usize]) -> Option<f64> {
    let mut of_plan: HashMap<u32, f64> = HashMap::new();
    let mut sum = 0.0;
    for (graph, call) in loaded.cpu_graphs.iter().zip(&line.cpu_call) {
        let Some(plan) = graph.plan.filter(|_| call.is_some_and(|c| calls.binary_search(&c).is_ok())) else {
            continue;
        };
        sum += *of_plan.entry(plan).or_insert_with(|| {
            let hits = loaded.plans.get(&plan).map_or(&[][..], |p| &p.hits);
            let work = hits.iter().enumerate().filter_map(|(at, hit)| describe(loaded, at, Some(*hit)).work);
            work.map(|w| w.read as f64 + w.written as f64).sum()
        });
    }
    (sum > 0.0).then(|| sum / calls.len().max(1) as f64)
}

/// Counted bytes of an average call, and the counter; `None` if a thread has no count.
fn counted(report: &Report, p: &PhaseReport, arch: &str) -> Option<(f64, String)> {
    let counter = traffic(report.counters.as_deref()?, arch)?;
    let threads = p.by_thread.as_deref().filter(|t| !t.is_empty() && p.calls > 0)?;
    let bytes: Option<f64> = threads.iter().map(|t| t.counted.as_ref()?.bytes(&counter)).sum();
    Some((bytes? / p.calls as f64, counter.name))
}

fn stalled(p: &PhaseReport) -> Option<f64> {
    let threads = p.by_thread.as_deref().filter(|t| !t.is_empty())?;
    let sum: Option<f64> = threads.iter().map(|t| t.counted.as_ref()?.stalled_share).sum();
    Some(sum? / threads.len() as f64)
}

fn at_barriers(p: &PhaseReport) -> Option<f64> {
    let threads = p.by_thread.as_deref().filter(|t| !t.is_empty())?;
    let sum: Option<f64> = threads.iter().map(|t| t.wait_share).sum();
    Some(sum? / threads.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(file: u32, threads: u32) -> ScalingRow {
        ScalingRow {
            file: file.to_string(),
            threads,
            calls: 9,
            call_ns: 1e6,
            model_bytes: Some(1e6),
            model_gb_per_s: Some(1.0),
            counted_bytes: Some(2e6),
            counted_gb_per_s: Some(2.0),
            counter: Some("l3d_cache_refill".into()),
            stalled_share: Some(0.5),
            barrier_share: Some(0.1),
            products: None,
            model: ModelFacts::default(),
        }
    }

    #[test]
    fn one_source_for_all_recordings() {
        let s = scaling(vec![run(0, 4), run(1, 1)]);
        assert_eq!(s.runs.iter().map(|r| (r.threads, &*r.file)).collect::<Vec<_>>(), [(1, "1"), (4, "0")]);
        assert_eq!(
            (s.traffic, s.waiting, s.other_models),
            (TrafficSource::Counted, WaitSource::StalledCycles, false)
        );
        let without = ScalingRow { counted_gb_per_s: None, stalled_share: None, ..run(2, 2) };
        let s = scaling(vec![run(0, 4), without]);
        assert_eq!((s.traffic, s.waiting), (TrafficSource::CostModel, WaitSource::Barriers));
        let another = ScalingRow { counter: Some("l1d_cache_refill".into()), ..run(2, 2) };
        assert_eq!(scaling(vec![run(0, 4), another]).traffic, TrafficSource::CostModel);
        let nothing =
            ScalingRow { model_gb_per_s: None, barrier_share: None, stalled_share: None, ..run(2, 2) };
        let s = scaling(vec![run(0, 4), nothing]);
        assert_eq!((s.traffic, s.waiting), (TrafficSource::Counted, WaitSource::None));
        let small =
            ScalingRow { model: ModelFacts { layers: Some(3), ..ModelFacts::default() }, ..run(2, 2) };
        assert!(scaling(vec![run(0, 4), small]).other_models);
    }
}
