//! A recorded run, loaded and analysed once for all tables.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use analysis::questions::report::{self, By, PhaseReport, Report, ReportOptions};
use analysis::recorded::calls::{Phase, Timeline, timeline};
use analysis::recorded::idents::Idents;
use analysis::recorded::load::{LoadProgress, Loaded, load};
use analysis::recorded::runs::{RunRow, Runs};
use analysis::sums::ops::sort_runs;
use pfi::Trace;
use pfi::record::CpuGraph;

/// How often a trace is gone through: as records, as slices for the report, as slices for the tables.
pub const PASSES: u64 = 3;

/// A trace and what was found in it.
pub struct Run<'p, 'a> {
    pub loaded: Loaded<'a>,
    pub line: Timeline,
    pub idents: Idents,
    pub runs: Runs,
    pub report: Report,
    /// File name of the trace; none for standard input.
    pub file: Option<String>,
    /// Start of the recording, CLOCK_MONOTONIC, ns: times in tables count from here.
    pub origin: i64,
    pub progress: &'p LoadProgress,
    id: String,
    /// By the seq of a CPU graph, its index.
    graphs: HashMap<u64, usize>,
}

/// Where something belongs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Owner {
    pub pid: Option<u32>,
    /// Number of the process's context, from 1.
    pub context: Option<u32>,
    /// Number of the call.
    pub call: Option<u64>,
    pub phase: Option<Phase>,
}

impl<'p, 'a> Run<'p, 'a> {
    /// Loads and analyses a trace. Adds [`PASSES`] times its size to `progress`, as far as it is read here; the rest
    /// follows when the tables are filled.
    pub fn read(trace: &'a Trace, file: Option<String>, progress: &'p LoadProgress) -> Run<'p, 'a> {
        let mut loaded = load(trace, progress);
        let line = timeline(&loaded);
        let runs = Runs::of(&loaded, &line);
        let report = report_of(trace, &mut loaded, runs.list.len() > 1, progress);
        sort_runs(&mut loaded);
        let idents = Idents::new(&loaded);
        let graphs = loaded.cpu_graphs.iter().zip(0..).map(|(g, i)| (g.seq, i)).collect();
        let first = || line.calls.first().map_or(0, |c| c.start);
        let origin = loaded.header.as_ref().map_or_else(first, |h| h.mono_ns.cast_signed());
        let id = format!("{:016x}", trace.fingerprint());
        Run { loaded, line, idents, runs, report, file, origin, progress, id, graphs }
    }

    /// Identifies the run in all tables: 16 hexadecimal digits, the same for equal traces.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Time since the recording's start, ns.
    pub fn since(&self, t: i64) -> i64 {
        t.saturating_sub(self.origin)
    }

    /// Start of the recording, µs since 1970, UTC.
    pub fn started(&self) -> Option<i64> {
        let ns = self.loaded.header.as_ref()?.real_ns;
        i64::try_from(ns / 1000).ok()
    }

    /// A CPU graph, by its seq.
    pub fn cpu_graph(&self, seq: u64) -> Option<(&CpuGraph, Owner)> {
        let at = *self.graphs.get(&seq)?;
        let graph = self.loaded.cpu_graphs.get(at)?;
        let call = self.line.cpu_call.get(at).copied().flatten().and_then(|c| self.line.calls.get(c));
        let owner = Owner {
            pid: Some(graph.pid),
            context: self.runs.of_cpu.get(at).and_then(|r| self.runs.list.get(*r)).map(context),
            call: call.map(|c| c.seq),
            phase: self.line.cpu_phase.get(at).copied(),
        };
        Some((graph, owner))
    }

    /// A scheduler graph, by its seq.
    pub fn graph(&self, seq: Option<u64>) -> Owner {
        let Some(seq) = seq else { return Owner::default() };
        let at = self.line.graph_call.get(&seq).copied();
        let call = at.and_then(|at| self.line.calls.get(at));
        Owner {
            pid: call.map(|c| c.pid),
            context: at.and_then(|at| self.of_call(at)).map(context),
            call: call.map(|c| c.seq),
            phase: self.line.graph_phase.get(&seq).copied(),
        }
    }

    /// The process and context of a call, by its index.
    pub fn of_call(&self, at: usize) -> Option<&RunRow> {
        self.runs.list.get(*self.runs.of_call.get(at)?)
    }

    /// The process and context that the figures of a single run are of: the one that `report` shows.
    pub fn shown(&self) -> Option<&RunRow> {
        self.runs.choose(None, None).and_then(|at| self.runs.list.get(at))
    }

    /// The phases of all processes and contexts that were analysed.
    pub fn phases(&self) -> impl Iterator<Item = (u32, u32, &PhaseReport)> {
        let shown = self.shown().map(|r| (r.pid, context(r)));
        let own = shown.into_iter().flat_map(|(pid, n)| self.report.phases.iter().map(move |p| (pid, n, p)));
        let others = self.report.others.iter();
        own.chain(others.flat_map(|o| o.phases.iter().map(|p| (o.pid, o.context.unwrap_or(1), p))))
    }

    /// Counts bytes of the trace that went into a table.
    pub fn done(&self, bytes: usize) {
        self.progress.done.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// Number of a context: 1 where the process has only one.
pub fn context(row: &RunRow) -> u32 {
    row.context.unwrap_or(1)
}

/// A known phase by its name.
pub fn phase(phase: Option<Phase>) -> Option<&'static str> {
    phase.filter(|p| *p != Phase::Unknown).map(Phase::name)
}

fn report_of(trace: &Trace, loaded: &mut Loaded<'_>, several: bool, progress: &LoadProgress) -> Report {
    let tables = vec![By::Thread, By::Energy];
    let options = ReportOptions { tables, others: several, ..ReportOptions::default() };
    if !several {
        return report::of(loaded, &options, progress);
    }
    // One pass for each; its progress would be beyond the whole.
    let unseen = LoadProgress::default();
    report::try_report(trace, &options, &unseen).unwrap_or_else(|_| report::of(loaded, &options, &unseen))
}
