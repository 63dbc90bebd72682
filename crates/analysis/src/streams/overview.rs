//! The complete analysis of a run in one call: report, statistics and graph, reading the trace once.

use crate::questions::dag::fold::fold;
use crate::questions::dag::{self, Dag, DagError};
use crate::questions::report::{self, By, Report};
use crate::questions::stat::{self, NoStatistics, Stat, View};
use crate::recorded::calls::{Phase, timeline};
use crate::recorded::idents::Idents;
use crate::recorded::load::{LoadProgress, load};
use crate::recorded::runs::{RunId, Runs};
use crate::recorded::selection::{Cut, NoPart, SelectedPart};
use crate::streams::lanes::Select;
use crate::streams::stacks::{Stacks, stacks};
use crate::streams::token_lanes::{TokenLanes, token_lanes};
use crate::sums::attribution::verdict::Peak;
use pfi::Trace;

/// Slices of all timelines of calls together, unless another number is requested: about 340 kB of a page.
pub const SLICES: usize = 40_000;

/// The results, or why they are missing.
pub struct Overview {
    pub part: SelectedPart,
    /// The report of the part, with all rows; its recording quality is that of the complete recording.
    pub report: Report,
    /// Phase of the statistics and the graph: decode if there is any.
    pub phase: Phase,
    pub stat: Result<Stat, NoStatistics>,
    /// Identical layers are folded.
    pub dag: Result<Dag, DagError>,
    /// Every slice of some of the calls.
    pub lanes: TokenLanes,
    /// Thread 0's time by phase, layer and op.
    pub stacks: Stacks,
}

/// Reads `trace`; `peaks` are the machine's peak rates, empty if not known.
///
/// # Errors
/// The requested part does not exist.
pub fn overview(
    trace: &Trace,
    cut: &Cut,
    peaks: &[Peak],
    progress: &LoadProgress,
) -> Result<Overview, NoPart> {
    overview_with(trace, cut, peaks, SLICES, progress)
}

/// The same with up to `slices` slices in the timelines of calls.
///
/// # Errors
/// The requested part does not exist.
pub fn overview_with(
    trace: &Trace,
    cut: &Cut,
    peaks: &[Peak],
    slices: usize,
    progress: &LoadProgress,
) -> Result<Overview, NoPart> {
    progress.total.store(trace.size().saturating_mul(3), std::sync::atomic::Ordering::Relaxed);
    let mut loaded = load(trace, progress);
    let part = cut.part(&loaded)?;
    // Hits and events are counted for all processes and calls.
    let quality = part.is_cut().then(|| {
        progress.total.fetch_add(trace.size(), std::sync::atomic::Ordering::Relaxed);
        report::of(&mut loaded, &report::ReportOptions::default(), progress).quality
    });
    cut.apply(&part, &mut loaded);
    let tables = By::ALL.to_vec();
    let options = report::ReportOptions {
        tables,
        peaks: peaks.to_vec(),
        verdict: true,
        ..report::ReportOptions::default()
    };
    let mut report = report::of(&mut loaded, &options, progress);
    report.quality = quality.unwrap_or(report.quality);
    report.runs = part.runs.clone();
    let phase = phase(&report);
    let options = stat::StatOptions {
        phase,
        views: View::ALL.into_iter().chain([View::Activation]).collect(),
        pid: part.pid.map(RunId::from),
        peaks: peaks.to_vec(),
        bandwidth: None,
        context: None,
        beside: None,
    };
    let stat = stat::of(&mut loaded, &options);
    let (line, idents) = (timeline(&loaded), Idents::new(&loaded));
    let lanes = token_lanes(&loaded, &line, &idents, &part, slices);
    let runs = Runs::of(&loaded, &line);
    let stacks =
        stacks(&loaded, &line, &runs, &idents, &Select { pid: part.pid, ..Select::default() }, false);
    let options = dag::DagOptions { pid: part.pid.map(RunId::from), token: None, phase: None };
    // Last, because it removes the data it does not draw.
    let dag = dag::of(trace, loaded, &options, progress).map(|graph| fold(&graph));
    Ok(Overview { part, report, phase, stat, dag, lanes, stacks })
}

/// The phase of most interest: decode, else prefill, else unknown.
fn phase(report: &Report) -> Phase {
    let has = |phase: Phase| report.phases.iter().any(|p| p.phase == phase);
    [Phase::Decode, Phase::Prefill, Phase::Unknown].into_iter().find(|p| has(*p)).unwrap_or(Phase::Decode)
}
