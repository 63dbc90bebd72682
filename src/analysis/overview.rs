//! All that is asked of a run at once: the report, the statistics, the graph. The trace is read once. May use `trace`.

use super::calls::Phase;
use super::cut::{Cut, NoPart, Part};
use super::dag::fold::fold;
use super::dag::{self, Dag, DagError};
use super::load::{Progress, load};
use super::report::{self, By, Report};
use super::runs::RunId;
use super::stat::{self, NoStatistics, Stat, View};
use super::why::verdict::Peak;
use crate::trace::Trace;

/// What is known of a run, or why it is not.
pub struct Overview {
    pub part: Part,
    /// Of the part, all of its rows; the books are those of the whole recording.
    pub report: Report,
    /// Statistics and graph are of this one: decode, or what there is.
    pub phase: Phase,
    pub stat: Result<Stat, NoStatistics>,
    /// Equal layers are one.
    pub dag: Result<Dag, DagError>,
}

/// Reads `trace`; `peaks` are what the machine can do, empty where that is not known.
///
/// # Errors
/// The part that is wanted is not there.
pub fn overview(trace: &Trace, cut: &Cut, peaks: &[Peak], progress: &Progress) -> Result<Overview, NoPart> {
    progress.total.store(trace.size().saturating_mul(3), std::sync::atomic::Ordering::Relaxed);
    let mut loaded = load(trace, progress);
    let part = cut.part(&loaded)?;
    // Hits and events are counted for all processes and calls.
    let books = part.is_cut().then(|| {
        progress.total.fetch_add(trace.size(), std::sync::atomic::Ordering::Relaxed);
        report::of(&mut loaded, &report::Options::default(), progress).books
    });
    cut.apply(&part, &mut loaded);
    let tables = By::ALL.to_vec();
    let options = report::Options { tables, peaks: peaks.to_vec(), ..report::Options::default() };
    let mut report = report::of(&mut loaded, &options, progress);
    report.books = books.unwrap_or(report.books);
    report.runs = part.runs.clone();
    let phase = phase(&report);
    let options = stat::Options {
        phase,
        views: View::ALL.into_iter().chain([View::Activation]).collect(),
        pid: part.pid.map(RunId::from),
        peaks: peaks.to_vec(),
        bandwidth: None,
        context: None,
        beside: None,
    };
    let stat = stat::of(&mut loaded, &options);
    let options = dag::Options { pid: part.pid.map(RunId::from), token: None, phase: None };
    // Last, since it takes out what it does not draw.
    let dag = dag::of(trace, loaded, &options, progress).map(|graph| fold(&graph));
    Ok(Overview { part, report, phase, stat, dag })
}

/// The phase that most is asked of: decode, else the one that there is.
fn phase(report: &Report) -> Phase {
    let has = |phase: Phase| report.phases.iter().any(|p| p.phase == phase);
    [Phase::Decode, Phase::Prefill, Phase::Unknown].into_iter().find(|p| has(*p)).unwrap_or(Phase::Decode)
}
