//! Selects a part of a recorded run: one process, and some of its calls. Everything else is removed from the
//! loaded data, so that all analyses see only that part.

use std::collections::HashSet;

use crate::recorded::calls::{CallSource, Timeline, timeline};
use crate::recorded::load::Loaded;
use crate::recorded::processes::{NoProcess, Processes};
use crate::recorded::runs::{RunId, RunRow, Runs};
use common::order;

/// The requested part.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cut {
    /// None: the process with the most calls. If a process has several contexts and none is given, the one with
    /// the most time in calls.
    pub pid: Option<RunId>,
    /// Numbers of the first and last call, as in `report --by token`; a missing end means that of the recording.
    pub calls: (Option<u64>, Option<u64>),
}

/// Why there is no such part.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoPart {
    #[error(transparent)]
    Process(#[from] NoProcess),
    #[error("process {pid} has no context {context}: {there}")]
    Context { pid: u32, context: u32, there: String },
    #[error("no such engine call: the trace has calls {first} to {last}")]
    Calls { first: u64, last: u64 },
    #[error("it has no engine calls to select from")]
    NoCalls,
}

/// The selected part.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SelectedPart {
    /// None: the recording has no process.
    pub pid: Option<u32>,
    /// The context, if the process has several.
    pub context: Option<u32>,
    /// The other recorded processes, ascending.
    pub others: Vec<u32>,
    /// All runs of the recording; the part is of the one that is shown.
    pub runs: Vec<RunRow>,
    /// First and last call, unless all were requested.
    pub calls: Option<(u64, u64)>,
}

impl SelectedPart {
    /// True if something was left out.
    pub fn is_cut(&self) -> bool {
        !self.others.is_empty() || self.context.is_some() || self.calls.is_some()
    }
}

impl Cut {
    /// The requested part of `loaded`.
    ///
    /// # Errors
    /// There is no such process or call.
    pub fn part(&self, loaded: &Loaded<'_>) -> Result<SelectedPart, NoPart> {
        let line = timeline(loaded);
        self.part_of(loaded, &line, Runs::of(loaded, &line))
    }

    /// The same, for a recording already split into runs.
    ///
    /// # Errors
    /// Those of [`Self::part`].
    pub fn part_of(&self, loaded: &Loaded<'_>, line: &Timeline, runs: Runs) -> Result<SelectedPart, NoPart> {
        let processes = Processes::of(loaded);
        let wanted = self.pid.map(|id| processes.wanted(id.pid)).transpose()?;
        let chosen = runs.choose(wanted, self.pid.and_then(|id| id.context));
        let mut part = SelectedPart { runs: runs.list, others: processes.active, ..SelectedPart::default() };
        if let (Some(RunId { pid, context: Some(context) }), None) = (self.pid, chosen) {
            let of = |r: &&RunRow| r.pid == pid && r.context.is_some();
            let there = match part.runs.iter().filter(of).count() {
                0 => "its calls are of one context, or cannot be separated by context".into(),
                n => format!("valid numbers are 1 to {n}"),
            };
            return Err(NoPart::Context { pid, context, there });
        }
        let shown = chosen.and_then(|at| part.runs.get_mut(at));
        // A process without calls is in no row, but can still be requested.
        part.pid = shown.as_ref().map(|r| r.pid).or(wanted).or(part.others.first().copied());
        if let Some(row) = shown {
            row.shown = true;
            part.context = row.context;
        }
        part.others.retain(|other| Some(*other) != part.pid);
        if self.calls != (None, None) {
            part.calls = Some(self.ends(line, part.pid)?);
        }
        Ok(part)
    }

    /// Reduces `loaded` to this part.
    pub fn apply(&self, part: &SelectedPart, loaded: &mut Loaded<'_>) {
        if let (Some(pid), true) = (part.pid, part.is_cut()) {
            let line = timeline(loaded);
            let id = RunId { pid, context: part.context };
            self.keep(loaded, &line, id, self.calls == (None, None));
        }
    }

    fn wants(&self, seq: u64) -> bool {
        let (from, to) = self.calls;
        from.is_none_or(|from| from <= seq) && to.is_none_or(|to| seq <= to)
    }

    /// First and last of the requested calls.
    fn ends(&self, line: &Timeline, pid: Option<u32>) -> Result<(u64, u64), NoPart> {
        let all = || line.calls.iter().filter(|c| Some(c.pid) == pid).map(|c| c.seq);
        let wanted = || all().filter(|seq| self.wants(*seq));
        match (wanted().min(), wanted().max(), all().min(), all().max()) {
            (Some(first), Some(last), ..) => Ok((first, last)),
            (_, _, Some(first), Some(last)) => Err(NoPart::Calls { first, last }),
            _ => Err(NoPart::NoCalls),
        }
    }

    fn keep(&self, loaded: &mut Loaded<'_>, line: &Timeline, RunId { pid, context }: RunId, whole: bool) {
        if let Some(context) = context {
            keep_context(loaded, line, pid, context);
            loaded.one_context = true;
            let line = timeline(loaded);
            return self.keep(loaded, &line, pid.into(), whole);
        }
        let chosen: Vec<bool> = line.calls.iter().map(|c| c.pid == pid && self.wants(c.seq)).collect();
        let is_chosen = |call: Option<usize>| call.and_then(|c| chosen.get(c)) == Some(&true);
        let calls = || line.calls.iter().zip(&chosen).filter(|(_, chosen)| **chosen).map(|(call, _)| call);
        let from = calls().map(|c| c.start).min().unwrap_or(i64::MIN);
        let to = calls().map(|c| c.end()).max().unwrap_or(i64::MAX);
        // Records that belong to no call are selected by time.
        let has = |of: u32, t: i64| of == pid && (whole || (from <= t && t < to));
        let mut of = line.cpu_call.iter().copied();
        loaded.cpu_graphs.retain(|g| match of.next().flatten() {
            Some(call) if !whole => is_chosen(Some(call)),
            _ => has(g.pid, g.t),
        });
        let mut seqs: Vec<u64> = loaded.cpu_graphs.iter().map(|g| g.seq).collect();
        seqs.sort_unstable();
        let graph = |seq: u64| seqs.binary_search(&seq).is_ok();
        loaded.runs.retain(|r| graph(r.graph));
        loaded.causes.counts.retain(|r| graph(r.graph));
        loaded.causes.experts.retain(|r| graph(r.graph));
        loaded.tokens.retain(|t| t.pid == pid && (whole || self.wants(t.seq)));
        let scheduled = line.source == CallSource::SchedulerGraph;
        loaded.graphs.retain(|g| match (whole, scheduled, g.token) {
            (false, true, _) => g.pid == pid && self.wants(g.seq),
            (false, false, Some(token)) => g.pid == pid && self.wants(token),
            _ => has(g.pid, g.t),
        });
        loaded.splits.retain(|s| has(s.pid, s.t));
        loaded.causes.phases.retain(|p| has(p.pid, p.t));
        loaded.causes.samplers.retain(|s| has(s.pid, s.t));
        loaded.causes.usage.retain(|u| has(u.pid, u.t));
        loaded.tensors.retain(|_, t| t.pid == pid);
        order::by_key(&mut loaded.processes, |p| ((p.pid != pid).into(), p.pid.into()));
    }
}

/// Reduces `loaded` to one of its runs.
pub(crate) fn leave_only(loaded: &mut Loaded<'_>, run: RunId) {
    let line = timeline(loaded);
    Cut::default().keep(loaded, &line, run, true);
}

/// Reduces a process to one of its contexts.
fn keep_context(loaded: &mut Loaded<'_>, line: &Timeline, pid: u32, context: u32) {
    let runs = Runs::of(loaded, line);
    let Some(run) = runs.choose(Some(pid), Some(context)) else { return };
    let calls = line.calls.iter().zip(&runs.of_call);
    let own: HashSet<u64> = calls.clone().filter(|(_, of)| **of == run).map(|(c, _)| c.seq).collect();
    let foreign: HashSet<u64> = calls.filter(|(_, of)| **of != run).map(|(c, _)| c.seq).collect();
    let mut of = runs.of_cpu.iter();
    loaded.cpu_graphs.retain(|_| of.next() == Some(&run));
    let cpu: HashSet<u64> = loaded.cpu_graphs.iter().map(|g| g.seq).collect();
    loaded.runs.retain(|r| cpu.contains(&r.graph));
    loaded.causes.counts.retain(|r| cpu.contains(&r.graph));
    loaded.causes.experts.retain(|r| cpu.contains(&r.graph));
    let all = std::mem::take(&mut loaded.tokens);
    (loaded.tokens, loaded.aside) = all.into_iter().partition(|t| own.contains(&t.seq));
    loaded.aside.retain(|t| t.pid == pid);
    let scheduled = line.source == CallSource::SchedulerGraph;
    // Graphs that belong to no call are kept along with their CPU graphs.
    let of_cpu: HashSet<u64> = loaded.cpu_graphs.iter().filter_map(|g| g.graph).collect();
    loaded.graphs.retain(|g| match if scheduled { Some(g.seq) } else { g.token } {
        Some(call) => own.contains(&call),
        None => of_cpu.contains(&g.seq),
    });
    let graphs: HashSet<u64> = loaded.graphs.iter().map(|g| g.seq).collect();
    loaded.splits.retain(|s| match s.graph {
        Some(graph) => graphs.contains(&graph),
        None => foreign.is_empty(),
    });
    let plans: HashSet<u32> = loaded.cpu_graphs.iter().filter_map(|g| g.plan).collect();
    loaded.plans.retain(|id, _| plans.contains(id));
    keep_tensors(loaded);
}

/// Keeps only the tensors that the plans compute, and their sources.
fn keep_tensors(loaded: &mut Loaded<'_>) {
    let mut left: Vec<u32> = loaded
        .plans
        .values()
        .flat_map(|p| &p.hits)
        .flat_map(|(first, second)| [Some(*first), *second])
        .flatten()
        .collect();
    let mut keep: HashSet<u32> = HashSet::new();
    while let Some(id) = left.pop() {
        if keep.insert(id) {
            let sources = loaded.tensors.get(&id);
            left.extend(sources.iter().flat_map(|t| t.src.iter().copied().chain([t.view_src])).flatten());
        }
    }
    loaded.tensors.retain(|id, _| keep.contains(id));
}
