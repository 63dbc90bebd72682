//! Device time by submission, as the kernel's tracepoints tell it: how busy each of a device's rings was while the engine
//! ran, and how long it waited for the next submission of a graph.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use crate::recorded::calls::{Latency, Timeline, latency};
use crate::recorded::load::Loaded;
use common::order;
use pfi::record::{Graph, SubmissionSource};
use pfi::{Submission, submissions};

/// The rings of all devices that ended a submission.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct DeviceSubmissions {
    /// Busy and idle times are of this span: from the first call to the end of the last one, without a call from the first
    /// submission to the end of the last one, ns.
    pub span_ns: u64,
    /// Busiest first.
    pub rings: Vec<RingTimes>,
}

/// One queue of a device, or with source `gpu_work_period` one application's part of it.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct RingTimes {
    /// The tracepoints.
    pub source: &'static str,
    /// As the kernel names them; empty if it does not.
    pub device: String,
    pub ring: String,
    /// Submissions that ended within the span, of all processes.
    pub submissions: u64,
    /// Those of the processes with calls, and those whose process is not known.
    pub own: u64,
    pub of_unknown: u64,
    /// Time during which a submission ran.
    pub busy_ns: u64,
    pub basis: BusyBasis,
    /// Of the span; omitted for periods of an application, beside which others may use the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_ns: Option<u64>,
    /// From the end of a submission to the beginning of the next one of the same scheduler graph; 0 if that was handed
    /// over before. Omitted if no graph had two.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gaps: Option<Latency>,
    /// Lowest and highest clock of a submission, Hz; omitted if the driver does not tell it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_hz: Option<(u64, u64)>,
}

/// What "busy" is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum BusyBasis {
    /// By the device's own counter.
    Device,
    /// From the kernel's hand-over to its notice of the end: not less than the device's own time.
    #[default]
    Kernel,
    /// Some submissions by the one, some by the other.
    Mixed,
}

/// Name of a source: the tracepoints' system, or their only event.
pub fn source_name(source: SubmissionSource) -> &'static str {
    match source {
        SubmissionSource::Scheduler => "gpu_scheduler",
        SubmissionSource::Msm => "drm_msm_gpu",
        SubmissionSource::Kgsl => "kgsl",
        SubmissionSource::WorkPeriod => "gpu_work_period",
    }
}

/// When a submission ran, as far as it is known.
fn ran(s: &Submission) -> Option<(u64, u64)> {
    let from = s.started.or(s.run.filter(|_| s.busy.is_none()))?;
    (from <= s.end).then_some((from, s.end))
}

/// Times of all rings; None if no submission was recorded.
pub fn device_submissions(loaded: &Loaded<'_>, line: &Timeline) -> Option<DeviceSubmissions> {
    let mut rings: BTreeMap<u32, Vec<Submission>> = BTreeMap::new();
    for record in &loaded.submissions {
        rings.entry(record.ring).or_default().extend(submissions(record));
    }
    let all = || rings.values().flatten();
    let first = all().map(|s| s.queued.or(s.run).unwrap_or(s.end)).min()?;
    let last = all().map(|s| s.end).max()?;
    let called = line.calls.iter().map(|c| c.start).min().zip(line.calls.iter().map(|c| c.end()).max());
    let (from, to) = called.map_or((first, last), |(from, to)| (from as u64, to as u64));
    let mut own: Vec<u32> = line.calls.iter().map(|c| c.pid).collect();
    own.sort_unstable();
    own.dedup();
    let mut graphs: HashMap<u32, Vec<&Graph>> = HashMap::new();
    for g in loaded.graphs.iter().filter(|g| own.contains(&g.pid)) {
        graphs.entry(g.pid).or_default().push(g);
    }
    graphs.values_mut().for_each(|of| order::by_key(of, |g| (order::time(g.t), g.seq)));
    let mut out = DeviceSubmissions { span_ns: to.saturating_sub(from), rings: Vec::new() };
    for (id, all) in rings {
        let known = loaded.device_rings.get(&id);
        let mut row = ring(all, (from, to), &own, &graphs, known.map(|k| k.source));
        row.source = known.map_or("unknown", |k| source_name(k.source));
        row.device = known.map_or(String::new(), |k| k.device.to_owned());
        row.ring = known.map_or(String::new(), |k| k.name.to_owned());
        out.rings.push(row);
    }
    out.rings.retain(|r| r.submissions > 0);
    order::by_key(&mut out.rings, |r| (!r.busy_ns, 0));
    Some(out).filter(|o| !o.rings.is_empty())
}

/// The row of one ring, without its names.
fn ring(
    mut all: Vec<Submission>,
    (from, to): (u64, u64),
    own: &[u32],
    graphs: &HashMap<u32, Vec<&Graph>>,
    source: Option<SubmissionSource>,
) -> RingTimes {
    let periods = source == Some(SubmissionSource::WorkPeriod);
    // Of a period that is partly in the span it is not known when in it the device was busy.
    all.retain(|s| from < s.end && s.end <= to && (!periods || s.run.is_some_and(|run| from <= run)));
    order::by_key(&mut all, |s| (ran(s).map_or(s.end, |r| r.0), s.end));
    let mut row = RingTimes { submissions: all.len() as u64, ..RingTimes::default() };
    let (mut by_device, mut busy_until) = (0, from);
    // Of each graph: the end of its submissions so far.
    let (mut ends, mut gaps) = (HashMap::<u64, u64>::new(), Vec::new());
    for s in &all {
        row.own += u64::from(own.contains(&s.pid));
        row.of_unknown += u64::from(s.pid == 0);
        by_device += u64::from(s.busy.is_some() || s.started.is_some());
        let busy = match ran(s) {
            Some((start, end)) => {
                let start = start.max(busy_until);
                busy_until = busy_until.max(end);
                end.saturating_sub(start)
            }
            None => s.busy.unwrap_or_default(),
        };
        row.busy_ns = row.busy_ns.saturating_add(busy);
        if let Some(hz) = s.clock {
            let (low, high) = row.clock_hz.unwrap_or((hz, hz));
            row.clock_hz = Some((low.min(hz), high.max(hz)));
        }
        if let Some(((start, end), graph)) = ran(s).zip(graph_of(s, graphs)) {
            let before = ends.insert(graph, end.max(ends.get(&graph).copied().unwrap_or_default()));
            gaps.extend(before.map(|before| start.saturating_sub(before)));
        }
    }
    row.basis = match by_device {
        0 => BusyBasis::Kernel,
        n if n == row.submissions => BusyBasis::Device,
        _ => BusyBasis::Mixed,
    };
    row.idle_ns = (!periods).then(|| to.saturating_sub(from).saturating_sub(row.busy_ns));
    row.gaps = latency(gaps);
    row
}

/// The graph during which a submission was made: its seq.
fn graph_of(s: &Submission, graphs: &HashMap<u32, Vec<&Graph>>) -> Option<u64> {
    let at = s.queued.or(s.run)?;
    let of = |of: &Vec<&Graph>| {
        let before = of.partition_point(|g| g.t as u64 <= at);
        let graph = *of.get(before.checked_sub(1)?)?;
        (at <= (graph.t as u64).saturating_add(graph.dur)).then_some(graph.seq)
    };
    match s.pid {
        // Whose it is, is not known: the time decides.
        0 => graphs.values().find_map(of),
        pid => of(graphs.get(&pid)?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn submission(pid: u32, queued: u64, run: u64, end: u64) -> Submission {
        Submission { pid, queued: Some(queued), run: Some(run), end, ..Submission::default() }
    }

    fn graph(seq: u64, t: i64, dur: u64) -> Graph {
        let (device, token) = (pfi::record::Device::Idle, None);
        Graph { seq, token, pid: 7, tid: 7, cgraph: 1, n_nodes: 5, ubatch: 1, t, dur, cut: false, device }
    }

    fn times(all: Vec<Submission>, source: SubmissionSource) -> RingTimes {
        let all_graphs = [graph(1, 1000, 1000), graph(2, 3000, 1000)];
        let graphs = HashMap::from([(7, all_graphs.iter().collect())]);
        ring(all, (1000, 5000), &[7], &graphs, Some(source))
    }

    #[test]
    fn submissions_that_overlap_count_once_and_gaps_are_within_a_graph() {
        let all = vec![
            submission(7, 1010, 1020, 1220),
            // Handed over while the first one ran; it ended later.
            submission(7, 1030, 1040, 1320),
            submission(7, 1300, 1400, 1500),
            submission(7, 3010, 3020, 3120),
            // Another process's, and one that began before the span.
            submission(8, 3030, 3200, 3300),
            submission(7, 500, 600, 900),
        ];
        let row = times(all, SubmissionSource::Scheduler);
        assert_eq!((row.submissions, row.own, row.of_unknown), (5, 4, 0));
        assert_eq!((row.busy_ns, row.idle_ns), (300 + 100 + 100 + 100, Some(3400)));
        assert_eq!(row.basis, BusyBasis::Kernel);
        let gaps = row.gaps.expect("a graph with three");
        assert_eq!((gaps.n, gaps.p50_ns, gaps.max_ns), (2, 0, 80));
        assert_eq!(row.clock_hz, None);
    }

    #[test]
    fn the_devices_own_times_come_first() {
        let own = Submission {
            started: Some(1100),
            end: 1150,
            busy: Some(50),
            clock: Some(300_000_000),
            ..submission(7, 1010, 1020, 0)
        };
        let later =
            Submission { started: Some(1200), end: 1300, clock: Some(700_000_000), busy: Some(100), ..own };
        let row = times(vec![own, later], SubmissionSource::Msm);
        assert_eq!((row.busy_ns, row.basis), (150, BusyBasis::Device));
        assert_eq!(row.clock_hz, Some((300_000_000, 700_000_000)));
        assert_eq!(row.gaps.map(|g| g.max_ns), Some(50));
        // Only its duration is known, not its start: no gap can be computed.
        let unplaced = Submission { started: None, ..later };
        let row = times(vec![own, unplaced, submission(7, 1310, 1320, 1330)], SubmissionSource::Msm);
        assert_eq!((row.busy_ns, row.basis), (50 + 100 + 10, BusyBasis::Mixed));
    }

    #[test]
    fn periods_have_no_idle_time_and_must_lie_in_the_span() {
        let period = |run, end| Submission { run: Some(run), end, busy: Some(30), ..Submission::default() };
        let row = times(vec![period(900, 1100), period(1100, 1200)], SubmissionSource::WorkPeriod);
        assert_eq!((row.submissions, row.busy_ns, row.idle_ns), (1, 30, None));
        assert_eq!((row.of_unknown, row.gaps), (1, None));
    }
}
