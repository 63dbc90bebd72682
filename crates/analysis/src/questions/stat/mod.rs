//! Statistics over tokens, ops, threads, experts and backends. The field names of these structs are those of the
//! JSON output.

pub mod context;
pub mod growth;
pub mod reuse;
pub mod scaling;
pub mod shapes;
pub mod work;

use serde::Serialize;

use self::growth::{CallContexts, Growth, TimedOp, growth};
use self::reuse::{Activation, ReuseTimes};
use self::scaling::Scaling;
use self::shapes::{Shapes, TraceOps};
use self::work::{Balance, Forecast, ModelProducts, NoForecast, OpWork, Products, Roofline, SharedOp};
use crate::questions::diff::MOST_KINDS;
use crate::recorded::calls::{Phase, Timeline, timeline};
use crate::recorded::describe::{self, Ident, streams};
use crate::recorded::idents::{Idents, OpKey};
use crate::recorded::load::{LoadProgress, Loaded, load};
use crate::recorded::processes::{NoProcess, Processes};
use crate::recorded::runs::{RunId, RunRow, Runs};
use crate::recorded::selection::{Cut, NoPart};
use crate::sums::attribution::experts::{ExpertReport, experts};
use crate::sums::attribution::pass::sort_counts;
use crate::sums::attribution::verdict::Peak;
use crate::sums::ops::op_times;
use crate::sums::peaks;
use crate::sums::series::{CallSeries, Groups, Series};
use crate::sums::tables::{OTHER_ROW, SplitRow, split_rows};
use crate::sums::time_series::typical;
use common::order;
use pfi::Trace;

/// A section of the statistics.
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
    /// All but the individual choices, of which there are many.
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
pub struct StatOptions {
    pub phase: Phase,
    pub views: Vec<View>,
    /// The run to analyse; none: the process with the most such calls. If a process has several contexts and none
    /// is given, the one with the most time in calls.
    pub pid: Option<RunId>,
    /// Peak rates of the machine, by number of threads.
    pub peaks: Vec<Peak>,
    /// Predict the speed at this bandwidth, 10^9 bytes/s, and at this context length.
    pub bandwidth: Option<f64>,
    pub context: Option<u64>,
    /// The shapes of another trace, to compare with.
    pub beside: Option<TraceOps>,
}

impl StatOptions {
    /// These views of the process with the most such calls, without peaks, forecasts or another trace.
    pub fn new(phase: Phase, views: Vec<View>) -> StatOptions {
        StatOptions {
            phase,
            views,
            pid: None,
            peaks: Vec::new(),
            bandwidth: None,
            context: None,
            beside: None,
        }
    }
}

/// Why there are no statistics.
#[derive(Debug, thiserror::Error)]
pub enum NoStatistics {
    #[error("no {phase} call{of} has all of its ops: {why}")]
    Calls { phase: &'static str, of: String, why: &'static str },
    #[error(transparent)]
    Process(#[from] NoProcess),
    #[error(transparent)]
    Part(#[from] NoPart),
    #[error(transparent)]
    Forecast(#[from] NoForecast),
}

/// The statistics. `schema` is increased when a field changes its meaning; sections not requested are omitted.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Stat {
    pub schema: u32,
    pub phase: Phase,
    pub pid: u32,
    /// The context, if the process has several.
    pub context: Option<u32>,
    /// Processes with calls, and contexts of a process that has several; all figures are of the one shown.
    pub runs: Vec<RunRow>,
    /// Other processes with such calls; these are not included.
    pub other_processes: u64,
    pub threads: u32,
    pub calls: u64,
    /// Calls that were cut off or miss ops; these are not included.
    pub left_out: u64,
    /// Mean duration of a call, ns.
    pub call_ns: f64,
    /// Null if the context length is not known or hardly changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<Option<Growth>>,
    /// Null if there is no matrix multiplication.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ops: Option<Option<Products>>,
    /// The multiplications of this and of other recordings, if others were given to compare the ops.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub models: Option<Vec<ModelProducts>>,
    /// Null if no peak is given and no op reads enough to serve as one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub roofline: Option<Option<Roofline>>,
    /// Null if the barrier was not probed: an op's time then includes the wait for the other threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread_balance: Option<Option<Vec<Balance>>>,
    /// This and other recordings, if others were given to compare the numbers of threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scaling: Option<Scaling>,
    /// Null if none were recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub experts: Option<Option<ExpertReport>>,
    /// Null if no choice has a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reuse: Option<Option<ReuseTimes>>,
    /// Null if none were recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub activation: Option<Option<Activation>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backends: Option<Vec<SplitRow>>,
    /// Null if no op ran on two backends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shapes: Option<Option<Shapes>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forecast: Option<Forecast>,
}

/// Reads `trace` and computes the statistics that `options` ask for.
///
/// # Errors
/// There are no suitable calls, or no basis for a forecast.
pub fn stat(trace: &Trace, options: &StatOptions, progress: &LoadProgress) -> Result<Stat, NoStatistics> {
    progress.total.store(trace.size(), std::sync::atomic::Ordering::Relaxed);
    let mut loaded = load(trace, progress);
    let line = timeline(&loaded);
    let runs = Runs::of(&loaded, &line);
    let calls = CallSeries::new(&loaded, &line, options.phase, options.pid.map(|id| id.pid));
    let pid = options.pid.or((!calls.whole.is_empty()).then(|| calls.pid.into()));
    let cut = Cut { pid, ..Cut::default() };
    let part = cut.part_of(&loaded, &line, runs)?;
    // Without suitable calls, the reason is taken from the complete recording.
    if !calls.whole.is_empty() {
        cut.apply(&part, &mut loaded);
    }
    let mut found = of_process(&mut loaded, options, part.pid)?;
    (found.other_processes, found.context) = (calls.other_processes as u64, part.context);
    found.runs = part.runs;
    Ok(found)
}

/// Computes the statistics from the loaded (part of a) trace. Its contents stay; their order may change.
///
/// # Errors
/// Those of [`stat`].
pub fn of(loaded: &mut Loaded<'_>, options: &StatOptions) -> Result<Stat, NoStatistics> {
    of_process(loaded, options, options.pid.map(|id| id.pid))
}

fn of_process(
    loaded: &mut Loaded<'_>,
    options: &StatOptions,
    pid: Option<u32>,
) -> Result<Stat, NoStatistics> {
    let pid = pid.map(|pid| Processes::of(loaded).wanted(pid)).transpose()?;
    let line = timeline(loaded);
    let idents = Idents::new(loaded);
    let calls = CallSeries::new(loaded, &line, options.phase, pid);
    if calls.whole.is_empty() {
        let of = pid.map_or_else(String::new, |pid| format!(" of process {pid}"));
        let why = crate::sums::series::why_nothing(loaded, &line, options.phase);
        return Err(NoStatistics::Calls { phase: options.phase.name(), of, why });
    }
    let kinds = kinds(loaded, &idents);
    let groups = Groups { idents: &idents, of: &kinds.of_ident, count: kinds.list.len() };
    let series = Series::new(loaded, &line, &calls.whole, &groups);
    let together = match [View::Roofline, View::Threads].iter().any(|view| options.views.contains(view)) {
        true => together(loaded, &line, &idents, &kinds, line.meant(options.phase)),
        false => Vec::new(),
    };
    if options.views.contains(&View::Reuse) {
        sort_counts(&mut loaded.causes.counts);
    }
    let loaded = &*loaded;
    let all =
        All { loaded, line: &line, idents: &idents, kinds: &kinds, series: &series, together: &together };
    let wanted = |view: View| options.views.contains(&view).then_some(());
    let threads = loaded.cpu_graphs.iter().map(|g| g.n_threads).max().unwrap_or(1);
    let ceiling = peaks::ceiling(&options.peaks, loaded, threads);
    let ops = all.ops();
    let grown = all.growth();
    let call_ns = crate::sums::time_series::mean(&series.durations);
    let forecast = (options.bandwidth.is_some() || options.context.is_some()).then(|| {
        let peak = ceiling.as_ref().map(|c| c.peak);
        let to = (options.bandwidth, options.context);
        work::forecast(call_ns, all.streaming(), grown.as_ref(), peak.as_ref(), to)
    });
    Ok(Stat {
        schema: 2,
        phase: line.meant(options.phase),
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
        models: None,
        roofline: wanted(View::Roofline).map(|()| work::roofline(&ops, ceiling.clone())),
        thread_balance: wanted(View::Threads).map(|()| all.balance(&calls.whole)),
        scaling: None,
        experts: wanted(View::Experts).map(|()| experts(loaded, &line, &[], |_| None)),
        reuse: wanted(View::Reuse).map(|()| reuse::reuse(loaded, &line, &idents, calls.pid)),
        activation: wanted(View::Activation).map(|()| reuse::activation(loaded, &line, calls.pid)),
        backends: wanted(View::Backends).map(|()| split_rows(loaded, &line, line.meant(options.phase))),
        shapes: wanted(View::Shapes).map(|()| {
            let own = shapes::side(loaded, &line, &idents, &calls.whole);
            shapes::shapes(own, options.beside.as_ref())
        }),
        forecast: forecast.transpose()?,
    })
}

/// What the threads did together in an execution, as the report counts it: means, ns.
#[derive(Default, Clone, Copy)]
struct Together {
    /// Time in which any thread computed it.
    span: f64,
    /// Time of the slowest thread, and mean over the threads.
    slowest: f64,
    mean: f64,
}

/// The same by kind; `None`: it did not run.
fn together(
    loaded: &mut Loaded<'_>,
    line: &Timeline,
    idents: &Idents,
    kinds: &Kinds<'_>,
    phase: Phase,
) -> Vec<Option<Together>> {
    let times = op_times(loaded, line, &LoadProgress::default());
    let mut sums = vec![(Together::default(), 0u64); kinds.list.len()];
    // In the order of the plans, so that sums are reproducible.
    let mut plans: Vec<_> = times.plans.iter().filter(|((_, of), _)| *of == phase).collect();
    order::by_key(&mut plans, |((plan, _), _)| ((*plan).into(), 0));
    for ((plan, _), stat) in plans {
        for (pos, ident) in stat.positions.iter().zip(idents.of_plan(*plan)) {
            let Some((sum, n)) = kinds.of_ident.get(*ident).and_then(|kind| sums.get_mut(*kind)) else {
                continue;
            };
            sum.span += pos.span as f64;
            sum.slowest += pos.slowest as f64;
            sum.mean += pos.mean;
            *n = n.saturating_add(pos.calls);
        }
    }
    let each = |(sum, n): (Together, u64)| {
        let n = (n > 0).then_some(n as f64)?;
        Some(Together { span: sum.span / n, slowest: sum.slowest / n, mean: sum.mean / n })
    };
    sums.into_iter().map(each).collect()
}

/// Distinct ops by name and form.
struct Kinds<'l> {
    list: Vec<NamedOp<'l>>,
    /// Kind of each ident.
    of_ident: Vec<usize>,
}

struct NamedOp<'l> {
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
        // Kinds beyond the maximum are counted in the last one.
        let kind = *known.entry(format!("{name}\n{form}")).or_insert(next.min(MOST_KINDS));
        if kind == next {
            let name = if kind < MOST_KINDS { name } else { OTHER_ROW.into() };
            out.list.push(NamedOp { name, form, ident });
        }
        out.of_ident.push(kind);
    }
    out
}

/// The inputs of the statistics.
struct All<'l, 'a> {
    loaded: &'l Loaded<'a>,
    line: &'l Timeline,
    idents: &'l Idents,
    kinds: &'l Kinds<'l>,
    series: &'l Series,
    /// Of each kind.
    together: &'l [Option<Together>],
}

impl All<'_, '_> {
    /// Figures of one execution of each kind that ran.
    fn ops(&self) -> Vec<OpWork> {
        let op = |(i, kind): (usize, &NamedOp<'_>)| {
            let times: Vec<f64> = self.ran(i).collect();
            let ns_a_call = crate::sums::time_series::mean(&times);
            let ns = typical(&times).map_or(ns_a_call, |e| e.value) / self.series.times_a_call(i).max(1.0);
            let work = kind.ident.work.unwrap_or_default();
            (!times.is_empty()).then(|| OpWork {
                name: kind.name.clone(),
                form: kind.form.clone(),
                weights: describe::first_type(self.loaded, kind.ident.hit),
                product: matches!(kind.ident.op.as_str(), "MUL_MAT" | "MUL_MAT_ID"),
                ns,
                ns_a_call,
                span_ns: self.of_threads(i).map(|t| t.span).filter(|ns| *ns > 0.0),
                times_a_call: self.series.times_a_call(i).max(1.0),
                bytes: work.read as f64 + work.written as f64,
                flops: work.flops as f64,
                int8: kind.ident.int8,
            })
        };
        self.kinds.list.iter().enumerate().filter_map(op).collect()
    }

    fn of_threads(&self, kind: usize) -> Option<Together> {
        self.together.get(kind).copied().flatten()
    }

    fn ran(&self, kind: usize) -> impl Iterator<Item = f64> {
        self.series.group(kind).iter().filter(|t| **t > 0.0).map(|t| f64::from(*t))
    }

    /// Time of the ops that stream their weights, and their bytes, in an average call.
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

    /// Growth by name, because the form of attention changes as the context grows.
    fn growth(&self) -> Option<Growth> {
        let widths = context::call_widths(self.loaded, self.line);
        let lengths = context::lengths(self.line, &widths);
        let of = |all: &[u64]| -> Vec<u64> {
            self.series.calls.iter().map(|call| all.get(*call).copied().unwrap_or(0)).collect()
        };
        let contexts = CallContexts { lengths: of(&lengths), widths: of(&widths) };
        let mut ops: Vec<TimedOp> = Vec::new();
        for (i, kind) in self.kinds.list.iter().enumerate() {
            let at = ops.iter().position(|op| op.name == kind.name).unwrap_or_else(|| {
                ops.push(TimedOp { name: kind.name.clone(), times: vec![0.0; contexts.lengths.len()] });
                ops.len() - 1
            });
            let times = ops.get_mut(at).map_or(&mut [][..], |op| &mut op.times);
            for (sum, time) in times.iter_mut().zip(self.series.group(i)) {
                *sum += f64::from(*time);
            }
        }
        growth(&contexts, &self.series.durations, &ops)
    }

    /// Times by thread for each name, per call; `None` without barriers, or with one thread.
    fn balance(&self, whole: &[usize]) -> Option<Vec<Balance>> {
        let sums =
            crate::sums::series::by_thread(self.loaded, self.line, whole, self.idents, &self.kinds.of_ident)?;
        let mut ops: Vec<SharedOp> = Vec::new();
        for (i, (kind, times)) in self.kinds.list.iter().zip(sums).enumerate() {
            if times.iter().all(|t| *t == 0.0) {
                continue;
            }
            let each = self.of_threads(i).unwrap_or_default();
            let n = self.series.times_a_call(i).max(1.0);
            let at = ops.iter().position(|op| op.name == kind.name).unwrap_or_else(|| {
                ops.push(SharedOp { name: kind.name.clone(), ..SharedOp::default() });
                ops.len() - 1
            });
            let Some(op) = ops.get_mut(at) else { continue };
            op.busy_ns.resize(times.len().max(op.busy_ns.len()), 0.0);
            op.busy_ns.iter_mut().zip(times).for_each(|(sum, t)| *sum += t);
            (op.slowest_ns, op.mean_ns) = (op.slowest_ns + each.slowest * n, op.mean_ns + each.mean * n);
        }
        Some(work::balance(ops))
    }
}
