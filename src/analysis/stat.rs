//! Statistics across tokens, ops, threads, experts and backends. The field names of these structs are those of the JSON
//! output. May use `trace`.

pub mod context;
pub mod growth;
pub mod reuse;
pub mod shapes;
pub mod work;

use serde::Serialize;

use self::growth::{Growth, Timed, growth};
use self::reuse::{Activation, ReuseTimes};
use self::shapes::{Shapes, Side};
use self::work::{Balance, Forecast, NoForecast, Op, Products, Roofline};
use super::calls::{Phase, Timeline, timeline};
use super::cut::{Cut, NoPart};
use super::describe::{self, Ident, streams};
use super::diff::MOST_KINDS;
use super::load::{Loaded, Progress, load};
use super::processes::{NoProcess, Processes};
use super::runs::{RunId, RunRow, Runs};
use super::series::{Calls, Groups, Series};
use super::stats::typical;
use super::tables::{Idents, OTHER_ROW, OpKey, SplitRow, split_rows};
use super::why::experts::{ExpertReport, experts};
use super::why::verdict::{Ceiling, Peak};
use crate::trace::Trace;

/// What to tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View {
    Tokens,
    Ops,
    Roofline,
    Threads,
    Experts,
    Reuse,
    Activation,
    Backends,
    Shapes,
}

impl View {
    /// All but the choices one by one, which are many.
    pub const ALL: [View; 8] = [
        View::Tokens,
        View::Ops,
        View::Roofline,
        View::Threads,
        View::Experts,
        View::Reuse,
        View::Backends,
        View::Shapes,
    ];
}

#[derive(Debug, Clone)]
pub struct Options {
    pub phase: Phase,
    pub views: Vec<View>,
    /// The run to tell of; none: the process with the most such calls. Of a process with several contexts where none is
    /// named, the one with the most time in calls.
    pub pid: Option<RunId>,
    /// What the machine can do at most, by number of threads.
    pub peaks: Vec<Peak>,
    /// Foretell the speed with this bandwidth, 10^9 bytes a second, and at this length of the context.
    pub bandwidth: Option<f64>,
    pub context: Option<u64>,
    /// What another trace has, to lay beside.
    pub beside: Option<Side>,
}

/// Why there is nothing to tell.
#[derive(Debug, thiserror::Error)]
pub enum NoStatistics {
    #[error("there is no {phase} call with all of its ops{of}: {why}")]
    Calls { phase: &'static str, of: String, why: &'static str },
    #[error(transparent)]
    Process(#[from] NoProcess),
    #[error(transparent)]
    Part(#[from] NoPart),
    #[error(transparent)]
    Forecast(#[from] NoForecast),
}

/// The answer. `schema` grows when a field changes its meaning; what was not asked for is left out.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Stat {
    pub schema: u32,
    pub phase: Phase,
    pub pid: u32,
    /// Where the process has several.
    pub context: Option<u32>,
    /// Processes that computed and contexts of one that has several: all the figures are of the one shown.
    pub runs: Vec<RunRow>,
    /// More processes that have such calls; these are not in it.
    pub other_processes: u64,
    pub threads: u32,
    pub calls: u64,
    /// Calls cut or with ops missing; these are not in it.
    pub left_out: u64,
    /// Mean duration of a call, ns.
    pub call_ns: f64,
    /// Null where the length of the context is not known or hardly changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<Option<Growth>>,
    /// Null where there is no matrix multiplication.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ops: Option<Option<Products>>,
    /// Null where no peak is given and no op reads enough to stand for one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub roofline: Option<Option<Roofline>>,
    /// Null where the barrier was not probed: an op's time then holds the wait for the other threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread_balance: Option<Option<Vec<Balance>>>,
    /// Null where none were recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub experts: Option<Option<ExpertReport>>,
    /// Null where no choice has a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reuse: Option<Option<ReuseTimes>>,
    /// Null where none were recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub activation: Option<Option<Activation>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backends: Option<Vec<SplitRow>>,
    /// Null where no op ran on two backends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shapes: Option<Option<Shapes>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forecast: Option<Forecast>,
}

/// Reads `trace` and answers `options`.
///
/// # Errors
/// There are no calls to tell of, or nothing to stand a forecast on.
pub fn stat(trace: &Trace, options: &Options, progress: &Progress) -> Result<Stat, NoStatistics> {
    progress.total.store(trace.size(), std::sync::atomic::Ordering::Relaxed);
    let mut loaded = load(trace, progress);
    let line = timeline(&loaded);
    let runs = Runs::of(&loaded, &line);
    let calls = Calls::new(&loaded, &line, options.phase, options.pid.map(|id| id.pid));
    let pid = options.pid.or((!calls.whole.is_empty()).then(|| calls.pid.into()));
    let cut = Cut { pid, ..Cut::default() };
    let part = cut.part_of(&loaded, &line, runs)?;
    // Without calls to tell of, why is told of the whole recording.
    if !calls.whole.is_empty() {
        cut.apply(&part, &mut loaded);
    }
    let mut found = of_process(&mut loaded, options, part.pid)?;
    (found.other_processes, found.context) = (calls.other_processes as u64, part.context);
    found.runs = part.runs;
    Ok(found)
}

/// Answers `options` on what is left of a trace. What is in it stays; its order may change.
///
/// # Errors
/// Those of [`stat`].
pub fn of(loaded: &mut Loaded<'_>, options: &Options) -> Result<Stat, NoStatistics> {
    of_process(loaded, options, options.pid.map(|id| id.pid))
}

fn of_process(loaded: &mut Loaded<'_>, options: &Options, pid: Option<u32>) -> Result<Stat, NoStatistics> {
    let pid = pid.map(|pid| Processes::of(loaded).wanted(pid)).transpose()?;
    let line = timeline(loaded);
    let idents = Idents::new(loaded);
    let calls = Calls::new(loaded, &line, options.phase, pid);
    if calls.whole.is_empty() {
        let of = pid.map_or_else(String::new, |pid| format!(" of process {pid}"));
        let why = super::series::why_nothing(loaded, &line, options.phase);
        return Err(NoStatistics::Calls { phase: options.phase.name(), of, why });
    }
    let kinds = kinds(loaded, &idents);
    let groups = Groups { idents: &idents, of: &kinds.of_ident, count: kinds.list.len() };
    let series = Series::new(loaded, &line, &calls.whole, &groups);
    let loaded = &*loaded;
    let all = All { loaded, line: &line, idents: &idents, kinds: &kinds, series: &series };
    let wanted = |view: View| options.views.contains(&view).then_some(());
    let threads = loaded.cpu_graphs.iter().map(|g| g.n_threads).max().unwrap_or(1);
    let ops = all.ops();
    let grown = all.growth();
    let call_ns = super::stats::mean(&series.durations);
    let forecast = (options.bandwidth.is_some() || options.context.is_some()).then(|| {
        let peak = Ceiling::given(&options.peaks, threads).map(|c| c.peak);
        let to = (options.bandwidth, options.context);
        work::forecast(call_ns, all.streaming(), grown.as_ref(), peak.as_ref(), to)
    });
    Ok(Stat {
        schema: 1,
        phase: options.phase,
        pid: calls.pid,
        context: None,
        runs: Vec::new(),
        other_processes: calls.other_processes as u64,
        threads,
        calls: calls.whole.len() as u64,
        left_out: calls.left_out as u64,
        call_ns,
        tokens: wanted(View::Tokens).map(|()| grown),
        ops: wanted(View::Ops).map(|()| work::products(&ops)),
        roofline: wanted(View::Roofline).map(|()| work::roofline(&ops, &options.peaks, threads)),
        thread_balance: wanted(View::Threads).map(|()| all.balance(&calls.whole)),
        experts: wanted(View::Experts).map(|()| experts(loaded, &line, &[], |_| None)),
        reuse: wanted(View::Reuse).map(|()| reuse::reuse(loaded, &line, &idents, calls.pid)),
        activation: wanted(View::Activation).map(|()| reuse::activation(loaded, &line, calls.pid)),
        backends: wanted(View::Backends).map(|()| split_rows(loaded, &line, options.phase)),
        shapes: wanted(View::Shapes).map(|()| {
            let own = shapes::side(loaded, &line, &idents, &calls.whole);
            shapes::shapes(own, options.beside.as_ref())
        }),
        forecast: forecast.transpose()?,
    })
}

/// Ops of one name and form.
struct Kinds<'l> {
    list: Vec<Kind<'l>>,
    /// By ident: its kind.
    of_ident: Vec<usize>,
}

struct Kind<'l> {
    name: String,
    form: String,
    ident: &'l Ident,
}

fn kinds<'l>(loaded: &Loaded<'_>, idents: &'l Idents) -> Kinds<'l> {
    let mut known = std::collections::HashMap::new();
    let mut out = Kinds { list: Vec::new(), of_ident: Vec::new() };
    for (i, ident) in idents.list().iter().enumerate() {
        let (name, form) = (idents.label(i, OpKey::Name), describe::form(loaded, ident.hit));
        let next = out.list.len();
        // What is beyond any model's kinds counts to the last one.
        let kind = *known.entry(format!("{name}\n{form}")).or_insert(next.min(MOST_KINDS));
        if kind == next {
            let name = if kind < MOST_KINDS { name } else { OTHER_ROW.into() };
            out.list.push(Kind { name, form, ident });
        }
        out.of_ident.push(kind);
    }
    out
}

/// What is known of the calls.
struct All<'l, 'a> {
    loaded: &'l Loaded<'a>,
    line: &'l Timeline,
    idents: &'l Idents,
    kinds: &'l Kinds<'l>,
    series: &'l Series,
}

impl All<'_, '_> {
    /// Kinds that ran, one execution of each in numbers.
    fn ops(&self) -> Vec<Op> {
        let op = |(i, kind): (usize, &Kind<'_>)| {
            let times: Vec<f64> = self.ran(i).collect();
            let ns_a_call = super::stats::mean(&times);
            let ns = typical(&times).map_or(ns_a_call, |e| e.value) / self.series.times_a_call(i).max(1.0);
            let work = kind.ident.work.unwrap_or_default();
            (!times.is_empty()).then(|| Op {
                name: kind.name.clone(),
                form: kind.form.clone(),
                product: matches!(kind.ident.op.as_str(), "MUL_MAT" | "MUL_MAT_ID"),
                ns,
                ns_a_call,
                bytes: work.read as f64 + work.written as f64,
                flops: work.flops as f64,
                int8: kind.ident.int8,
            })
        };
        self.kinds.list.iter().enumerate().filter_map(op).collect()
    }

    fn ran(&self, kind: usize) -> impl Iterator<Item = f64> {
        self.series.group(kind).iter().filter(|t| **t > 0.0).map(|t| f64::from(*t))
    }

    /// Time of the ops that stream their weights, and their bytes, in a mean call.
    fn streaming(&self) -> (f64, f64) {
        let points = self.series.calls.len().max(1) as f64;
        let (mut ns, mut bytes) = (0.0, 0.0);
        for (i, kind) in self.kinds.list.iter().enumerate().filter(|(_, k)| streams(k.ident)) {
            let work = kind.ident.work.unwrap_or_default();
            let ran = self.ran(i).count() as f64 * self.series.times_a_call(i);
            ns += self.ran(i).sum::<f64>() / points;
            bytes += (work.read as f64 + work.written as f64) * ran / points;
        }
        (ns, bytes)
    }

    /// Growth by name: the form of attention changes as the context grows.
    fn growth(&self) -> Option<Growth> {
        let all = context::contexts(self.loaded, self.line);
        let of = |call: &usize| all.get(*call).copied().unwrap_or(0);
        let contexts: Vec<u64> = self.series.calls.iter().map(of).collect();
        let mut ops: Vec<Timed> = Vec::new();
        for (i, kind) in self.kinds.list.iter().enumerate() {
            let at = ops.iter().position(|op| op.name == kind.name).unwrap_or_else(|| {
                ops.push(Timed { name: kind.name.clone(), times: vec![0.0; contexts.len()] });
                ops.len() - 1
            });
            let times = ops.get_mut(at).map_or(&mut [][..], |op| &mut op.times);
            for (sum, time) in times.iter_mut().zip(self.series.group(i)) {
                *sum += f64::from(*time);
            }
        }
        growth(&contexts, &self.series.durations, &ops)
    }

    /// Times by thread of each name, a call; `None` without barriers, or with one thread.
    fn balance(&self, whole: &[usize]) -> Option<Vec<Balance>> {
        let sums =
            super::series::by_thread(self.loaded, self.line, whole, self.idents, &self.kinds.of_ident)?;
        let mut ops: Vec<(String, Vec<f64>)> = Vec::new();
        for (kind, times) in self.kinds.list.iter().zip(sums) {
            if times.iter().all(|t| *t == 0.0) {
                continue;
            }
            match ops.iter_mut().find(|(name, _)| *name == kind.name) {
                Some((_, sum)) => sum.iter_mut().zip(times).for_each(|(sum, t)| *sum += t),
                None => ops.push((kind.name.clone(), times)),
            }
        }
        Some(work::balance(ops))
    }
}
