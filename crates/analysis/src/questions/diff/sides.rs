//! Reads the recordings of both sides: their calls, the ops common to all of them, and the recorded facts about
//! machine and program.

use std::collections::HashMap;

use super::{DiffOptions, DiffSide, Incomparable};
use crate::recorded::calls::{Timeline, timeline};
use crate::recorded::describe::{self, streams};
use crate::recorded::idents::{Idents, OpKey};
use crate::recorded::load::{LoadProgress, Loaded, load};
use crate::recorded::model::{ModelFacts, model};
use crate::recorded::processes::Processes;
use crate::recorded::run_facts::run;
use crate::recorded::runs::{RunId, Runs};
use crate::recorded::selection::{Cut, SelectedPart};
use crate::sums::series::{CallSeries, Groups, Series, why_nothing};
use crate::sums::tables::OTHER_ROW;
use pfi::Trace;

/// Maximum number of distinct op kinds; more than any model has.
pub const MOST_KINDS: usize = 4096;

/// A recording of one process.
pub struct RunStart<'a> {
    /// `A`, or `A2` if a side has several.
    pub label: String,
    loaded: Loaded<'a>,
    line: Timeline,
    idents: Idents,
    /// Group of each ident.
    group_of: Vec<usize>,
    calls: CallSeries,
    part: SelectedPart,
    /// Other processes with calls.
    other_processes: usize,
    pub series: Series,
}

/// Ops with the same name and form, on both sides or on one.
pub struct Fine {
    pub name: String,
    pub form: String,
    pub row: String,
    /// Its weights come from memory.
    pub streams: bool,
}

/// Reads all recordings of both sides, with the times of each group, for the number of calls that all of them
/// have.
///
/// # Errors
/// One of them has nothing to compare.
pub fn read<'a>(
    sides: [&[&'a Trace]; 2],
    options: &DiffOptions,
    progress: &LoadProgress,
) -> Result<([Vec<RunStart<'a>>; 2], Vec<Fine>), Incomparable> {
    let size = sides.iter().flat_map(|s| s.iter()).map(|t| t.size()).fold(0, u64::saturating_add);
    progress.total.store(size, std::sync::atomic::Ordering::Relaxed);
    let loaded = sides.map(|side| side.iter().map(|trace| load(trace, progress)).collect());
    let mut starts = chosen(loaded, options)?;
    let fine = match_ops(&mut starts, options.by);
    let all = || starts.iter().flatten();
    if let Some(start) = all().find(|s| s.calls.whole.is_empty()) {
        return Err(start.nothing(options));
    }
    let pairs = all().map(|s| s.calls.whole.len()).min().unwrap_or(0);
    for start in starts.iter_mut().flatten() {
        let groups = Groups { idents: &start.idents, of: &start.group_of, count: fine.len() };
        let calls = start.calls.whole.get(..pairs).unwrap_or(&[]);
        start.series = Series::new(&mut start.loaded, &start.line, calls, &groups);
    }
    Ok((starts, fine))
}

/// Chooses a process of each recording: the one requested for all, if the recording has it, or the recording's
/// own; else the one with the most calls.
fn chosen<'a>(
    sides: [Vec<Loaded<'a>>; 2],
    options: &DiffOptions,
) -> Result<[Vec<RunStart<'a>>; 2], Incomparable> {
    let first_of_b = sides[0].len();
    if let [RunId { pid, .. }] = options.pids[..] {
        let all: Vec<Processes> = sides.iter().flatten().map(Processes::of).collect();
        if !all.iter().any(|p| p.has(pid)) {
            let mut there: Vec<String> = all.iter().map(Processes::list).collect();
            there.dedup();
            let (run, there) = ("no recording has".into(), there.join("; "));
            return Err(Incomparable::NoProcess { run, pid, there });
        }
    }
    let mut out = [Vec::new(), Vec::new()];
    for (of_b, (side, starts)) in sides.into_iter().zip(&mut out).enumerate() {
        let several = side.len() > 1;
        for (i, mut loaded) in side.into_iter().enumerate() {
            let name = if of_b == 0 { 'A' } else { 'B' };
            let label = if several { format!("{name}{}", i + 1) } else { name.to_string() };
            let processes = Processes::of(&loaded);
            let pid = match options.pids[..] {
                [one] => Some(one).filter(|id| processes.has(id.pid)),
                _ => options.pids.get(of_b * first_of_b + i).copied(),
            };
            if let Some(RunId { pid, .. }) = pid.filter(|id| !processes.has(id.pid)) {
                let (run, there) = (format!("run {label} does not have"), processes.list());
                return Err(Incomparable::NoProcess { run, pid, there });
            }
            let line = timeline(&loaded);
            let calls = CallSeries::new(&loaded, &line, options.phase, pid.map(|id| id.pid));
            let other_processes = calls.other_processes;
            let cut = Cut {
                pid: pid.or(Some(calls.pid.into())).filter(|id| processes.has(id.pid)),
                ..Cut::default()
            };
            let part = cut
                .part_of(&loaded, &line, Runs::of(&loaded, &line))
                .map_err(|why| Incomparable::NoPart { run: label.clone(), why })?;
            let (line, calls) = if part.context.is_some() {
                cut.apply(&part, &mut loaded);
                let line = timeline(&loaded);
                let calls = CallSeries::new(&loaded, &line, options.phase, part.pid);
                (line, calls)
            } else {
                (line, calls)
            };
            let (idents, group_of, series) = (Idents::new(&loaded), Vec::new(), Series::default());
            starts.push(RunStart {
                label,
                loaded,
                line,
                idents,
                group_of,
                calls,
                part,
                other_processes,
                series,
            });
        }
    }
    Ok(out)
}

/// Puts ops with equal name and form into the same group, across all recordings.
fn match_ops(starts: &mut [Vec<RunStart<'_>>; 2], by: OpKey) -> Vec<Fine> {
    let mut known: HashMap<String, usize> = HashMap::new();
    let mut fine: Vec<Fine> = Vec::new();
    let rest = || Fine { name: OTHER_ROW.into(), form: String::new(), row: OTHER_ROW.into(), streams: false };
    for start in starts.iter_mut().flatten() {
        for (i, ident) in start.idents.list().iter().enumerate() {
            let (name, row) = (start.idents.label(i, OpKey::Name), start.idents.label(i, by));
            let form = describe::form(&start.loaded, ident.hit);
            let key = match by {
                OpKey::Layer => format!("{name}\n{form}\n{row}"),
                _ => format!("{name}\n{form}"),
            };
            let group = *known.entry(key).or_insert(fine.len().min(MOST_KINDS));
            if group == fine.len() {
                let one = Fine { name, form, row, streams: streams(ident) };
                fine.push(if group < MOST_KINDS { one } else { rest() });
            }
            start.group_of.push(group);
        }
    }
    fine
}

/// Fails if the two sides are known to run models of different sizes.
///
/// # Errors
/// They do.
pub(super) fn same_model(starts: &[Vec<RunStart<'_>>; 2]) -> Result<(), Incomparable> {
    let [Some(a), Some(b)] = starts.each_ref().map(|side| side.first().map(|s| model(&s.loaded))) else {
        return Ok(());
    };
    let sizes = |m: &ModelFacts| [m.embedding, m.vocabulary];
    let differs = |(a, b): (Option<u64>, Option<u64>)| a.zip(b).is_some_and(|(a, b)| a != b);
    if !sizes(&a).into_iter().zip(sizes(&b)).any(differs) {
        return Ok(());
    }
    let named = |m: &ModelFacts| {
        let names = ["wide", "words"];
        let known = sizes(m).into_iter().zip(names).filter_map(|(n, name)| Some(format!("{} {name}", n?)));
        format!("model of {}", known.collect::<Vec<_>>().join(", "))
    };
    Err(Incomparable::Models { a: named(&a), b: named(&b) })
}

impl RunStart<'_> {
    fn nothing(&self, options: &DiffOptions) -> Incomparable {
        let why = why_nothing(&self.loaded, &self.line, options.phase);
        Incomparable::NoCall { run: self.label.clone(), phase: options.phase.name(), why }
    }

    fn threads(&self) -> Option<u32> {
        self.loaded.cpu_graphs.iter().map(|g| g.n_threads).max()
    }

    /// The summary of this recording for the result.
    pub fn side(&self) -> DiffSide {
        DiffSide {
            run: run(&self.loaded),
            pid: self.calls.pid,
            context: self.part.context,
            runs: self.part.runs.clone(),
            other_processes: self.other_processes as u64,
            threads: self.threads(),
            calls: self.calls.whole.len() as u64,
            left_out: self.calls.left_out as u64,
        }
    }

    /// Facts that may explain a change: name and value.
    fn facts(&self) -> [(&'static str, String); 9] {
        let run = run(&self.loaded);
        let process = run.processes.iter().find(|p| p.pid == self.calls.pid);
        let engine = process.and_then(|p| run.engines.iter().find(|e| e.id == p.engine));
        let builds = engine.map(|e| {
            let ids: Vec<&str> = e.modules.iter().map(|m| m.build_id.as_str()).collect();
            ids.join(" ")
        });
        let barrier = self.loaded.cpu_graphs.iter().any(|g| g.barrier);
        let or_empty = |text: Option<String>| text.unwrap_or_default();
        [
            ("machine", format!("{} {}", run.host, run.cpu_model)),
            ("kernel", run.kernel.clone()),
            ("engine", or_empty(engine.map(|e| e.version.clone()))),
            ("build id", or_empty(builds)),
            ("command", or_empty(process.map(|p| p.cmdline.clone()))),
            ("threads", or_empty(self.threads().map(|n| n.to_string()))),
            ("recorder", run.tool.clone()),
            ("source", or_empty(run.source.clone())),
            ("barrier", if barrier { "probed".into() } else { "not probed".to_string() }),
        ]
    }
}

/// Differences between the sides, or within one: what, in A, in B. If the starts of a side differ, all their
/// values are listed.
pub fn differences(starts: &[Vec<RunStart<'_>>; 2]) -> Vec<[String; 3]> {
    let facts: Vec<Vec<_>> = starts.iter().map(|side| side.iter().map(RunStart::facts).collect()).collect();
    let names = facts.iter().flatten().next().map(|f| f.each_ref().map(|(what, _)| *what));
    let mut out = Vec::new();
    for (i, what) in names.into_iter().flatten().enumerate() {
        let [a, b] = [0, 1].map(|side| {
            let mut ways: Vec<&str> = Vec::new();
            for (_, value) in facts.get(side).into_iter().flatten().filter_map(|f| f.get(i)) {
                if !ways.contains(&value.as_str()) {
                    ways.push(value);
                }
            }
            ways
        });
        if a != b || a.len() > 1 {
            out.push([what.to_string(), a.join("; "), b.join("; ")]);
        }
    }
    out
}
