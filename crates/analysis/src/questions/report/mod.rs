//! The data behind `profinfer report`. The field names of these structs are the names of the JSON report and do
//! not change; all times are nanoseconds and end in `_ns`, all shares are 0 to 1.

pub(crate) mod data;

pub use self::data::{By, FirstCall, OpTime, OtherRun, PhaseReport, Report, ReportOptions};
use crate::questions::quality::quality;
use crate::questions::verdict::facts::FactInput;
use crate::questions::verdict::verdict;
use crate::recorded::calls::{
    Call, Phase, Request, Requests, RunWork, Steps, Timeline, latency, requests, timeline, weighted,
};
use crate::recorded::graph_kinds::graph_kinds;
use crate::recorded::idents::*;
use crate::recorded::load::{LoadProgress, Loaded, load};
use crate::recorded::model::model;
pub use crate::recorded::run_facts::{EngineFacts, ModuleFacts, ProcessFacts, RunFacts, run};
use crate::recorded::runs::{RunId, RunRow};
use crate::recorded::selection::{self, Cut, NoPart};
use crate::recorded::sequences;
use crate::recorded::server::batches;
use crate::recorded::target_state::states;
use crate::sums::attribution::Attribution;
use crate::sums::attribution::energy::energy;
use crate::sums::attribution::experts::experts;
use crate::sums::attribution::levels::{levels, within};
use crate::sums::attribution::phases::stages;
use crate::sums::attribution::sampling::sampling;
use crate::sums::attribution::verdict::{Ceiling, Peak, best_of_trace};
use crate::sums::offload::offload;
use crate::sums::op_cpus::cpu_table;
use crate::sums::ops::{OpTimes, PhaseSum, op_times};
use crate::sums::peaks;
use crate::sums::submissions::device_submissions;
use crate::sums::tables::*;
use crate::sums::usage::usage;
use pfi::reader::Trace;

/// Maximum number of other runs analysed: each takes another pass over the trace.
const OTHERS: usize = 64;

/// Reads `trace` and builds the report for the busiest run, ignoring [`ReportOptions::pid`].
pub fn report(trace: &Trace, options: &ReportOptions, progress: &LoadProgress) -> Report {
    let busiest = ReportOptions { pid: None, ..options.clone() };
    let found = try_report(trace, &busiest, progress);
    found.unwrap_or_else(|_| of(&mut load(trace, progress), options, progress))
}

/// Reads `trace` and builds the report for one run at a time; only the recording quality covers the complete
/// recording.
///
/// # Errors
/// The requested run does not exist.
pub fn try_report(trace: &Trace, options: &ReportOptions, progress: &LoadProgress) -> Result<Report, NoPart> {
    // Every byte is read at most twice: once as records, once as slices.
    progress.total.store(trace.size().saturating_mul(2), std::sync::atomic::Ordering::Relaxed);
    let mut loaded = load(trace, progress);
    let cut = Cut { pid: options.pid, ..Cut::default() };
    let part = cut.part(&loaded)?;
    let own = options.others && part.is_cut();
    let wanted = |r: &&RunRow| own && !r.shown && r.calls > 0 && options.pid.is_none_or(|id| id.pid == r.pid);
    let others: Vec<RunId> = part.runs.iter().filter(wanted).map(RunRow::id).collect();
    let more = u64::from(part.is_cut()) + 2 * others.len().min(OTHERS) as u64;
    progress.total.fetch_add(trace.size().saturating_mul(more), std::sync::atomic::Ordering::Relaxed);
    // Hits and events are counted for all processes.
    let quality = part.is_cut().then(|| of(&mut loaded, &ReportOptions::default(), progress).quality);
    cut.apply(&part, &mut loaded);
    let mut report = of(&mut loaded, options, progress);
    drop(loaded);
    report.quality = quality.unwrap_or(report.quality);
    for pid in others.iter().take(OTHERS) {
        let mut loaded = load(trace, progress);
        selection::leave_only(&mut loaded, *pid);
        report.others.push(OtherRun::new(*pid, of(&mut loaded, options, progress)));
    }
    report.others_left_out = others.len().saturating_sub(OTHERS) as u64;
    report.runs = part.runs;
    Ok(report)
}

impl OtherRun {
    fn new(RunId { pid, context }: RunId, r: Report) -> OtherRun {
        OtherRun {
            pid,
            context,
            model: r.model,
            call_source: r.call_source,
            work: r.work,
            graph_kinds: r.graph_kinds,
            ttft: r.ttft,
            requests: r.requests,
            sequences: r.sequences,
            phases: r.phases,
            ceiling: r.ceiling,
            experts: r.experts,
            stages: r.stages,
            sampling: r.sampling,
        }
    }
}

/// Builds the report from the loaded (part of a) trace. Its contents stay; their order may change.
pub fn of(loaded: &mut Loaded<'_>, options: &ReportOptions, progress: &LoadProgress) -> Report {
    let line = timeline(loaded);
    let times = op_times(loaded, &line, progress);
    let idents = Idents::new(loaded);
    let why = Attribution::new(loaded, &line, &idents);
    // Read-only from here on.
    let loaded = &*loaded;
    let mut requests = requests(&line.calls);
    let known = line.sequences.as_ref();
    if let Some(known) = known {
        requests.list = sequences::requests(known);
    }
    let blind = |r: &&mut Request| known.is_none() && r.prefill_calls > 0 && batches(loaded, &line, r.pid);
    for request in requests.list.iter_mut().filter(blind) {
        // It is not known which prompt a batch belongs to.
        (request.ttft_ns, request.prompt_tokens) = (None, None);
    }
    // A request asks for tokens.
    if line.work != RunWork::Tokens {
        requests.list.clear();
    }
    let all = Phase::ALL.iter().filter(|p| options.phase.is_none_or(|only| only == **p));
    let misses = |layer| why.as_ref()?.misses(&idents, layer);
    let wanted = |by| options.tables.contains(&by).then_some(());
    let experts = wanted(By::Expert).and_then(|()| experts(loaded, &line, &options.expert_cache, misses));
    let judged = why.is_some() || !options.peaks.is_empty() || !loaded.peaks.is_empty();
    let ceiling = if judged { ceiling(loaded, &times, &idents, &options.peaks) } else { None };
    let reasons = Reasons { why: why.as_ref(), judged, ceiling: ceiling.as_ref() };
    let about = About { loaded, line: &line, times: &times, idents: &idents, reasons };
    let in_the_way = why
        .as_ref()
        .filter(|w| w.scheduler && options.tables.contains(&By::Interference))
        .map(|w| w.interference.clone());
    let mut report = Report {
        schema: 2,
        verdict: None,
        run: run(loaded),
        state: states(loaded),
        usage: usage(loaded, &line, &requests.list),
        runs: Vec::new(),
        others: Vec::new(),
        others_left_out: 0,
        model: model(loaded),
        call_source: line.source,
        work: line.work,
        graph_kinds: graph_kinds(loaded, &line),
        ttft: latency(requests.list.iter().filter_map(|r| r.ttft_ns).collect()),
        phases: all.filter_map(|p| phase(&about, &requests, *p, options)).collect(),
        requests: requests.list,
        sequences: known.map(|known| sequences::report(loaded, &line.calls, known, options.top)),
        sequences_unknown: known.is_none().then(|| sequences::why_unknown(loaded)),
        unseen: line.calls.iter().any(|c| c.unseen).then(|| unseen(loaded)),
        quality: quality(loaded, &line, &times),
        counters: why.as_ref().map(|w| w.counters.facts().to_vec()).filter(|c| !c.is_empty()),
        interference_left_out: beyond(in_the_way.as_deref(), options.top),
        interference: in_the_way.map(|rows| first(rows, options.top)),
        experts,
        stages: wanted(By::Phase).and_then(|()| stages(loaded, &line, &times)),
        sampling: sampling(loaded),
        submissions: device_submissions(loaded, &line),
        energy: wanted(By::Energy).and_then(|()| energy(loaded, &line)),
        levels: wanted(By::Level).and_then(|()| levels(loaded, &line)),
        ceiling: ceiling.clone(),
        tables: options.tables.clone(),
        top: options.top,
    };
    let input = FactInput { loaded, line: &line, times: &times, idents: &idents, why: why.as_ref(), reasons };
    report.verdict = options.verdict.then(|| match options.peaks.as_slice() {
        [] => verdict(input, &report, &peaks::measured(loaded).map(|(all, _)| all).unwrap_or_default()),
        given => verdict(input, &report, given),
    });
    report
}

/// The peak given or measured for the threads of the run, else the best bandwidth of its ops.
fn ceiling(loaded: &Loaded<'_>, times: &OpTimes, idents: &Idents, peaks: &[Peak]) -> Option<Ceiling> {
    let threads = loaded.cpu_graphs.iter().map(|g| g.n_threads).max().unwrap_or(1);
    peaks::ceiling(peaks, loaded, threads).or_else(|| {
        let ops: Vec<_> = Phase::ALL.iter().flat_map(|p| facts(times, idents, *p)).collect();
        best_of_trace(ops.iter().map(|(name, facts)| (name.as_str(), *facts)))
    })
}

/// The inputs of a phase report.
struct About<'l, 'a> {
    loaded: &'l Loaded<'a>,
    line: &'l Timeline,
    times: &'l OpTimes,
    idents: &'l Idents,
    reasons: Reasons<'l>,
}

fn phase(
    about: &About<'_, '_>,
    requests: &Requests,
    phase: Phase,
    options: &ReportOptions,
) -> Option<PhaseReport> {
    let &About { loaded, line, times, idents, reasons } = about;
    let sum = times.phases.get(&phase).copied().unwrap_or_default();
    let splits = split_rows(loaded, line, phase);
    let calls: Vec<_> = line.calls.iter().filter(|c| c.phase == phase).collect();
    if calls.is_empty() && sum.graphs + sum.below == 0 && splits.is_empty() {
        return None;
    }
    let whole: Vec<_> = calls.iter().copied().filter(|c| !c.cut).collect();
    let in_call_ns = whole.iter().fold(0u64, |a, c| a.saturating_add(c.dur));
    let tokens = whole.iter().try_fold(0u64, |a, c| a.checked_add(c.tokens?));
    let unseen_calls = calls.iter().filter(|c| c.unseen).count() as u64;
    // If no call has a time, the number of tokens is unknown, not 0.
    let tokens = tokens.filter(|_| unseen_calls == 0 || !whole.is_empty());
    let decode = phase == Phase::Decode;
    let (steps, all_steps) =
        if decode { (&*requests.decode_steps, requests.steps) } else { (&[][..], Steps::default()) };
    let steps_ns = steps.iter().fold(0u64, |a, s| a.saturating_add(s.ns));
    let step_tokens = steps.iter().try_fold(0u64, |a, s| a.checked_add(s.tokens?));
    let token = |ns: u64, tokens: Option<u64>| tokens.map(|n| (ns.checked_div(n).unwrap_or(0), n));
    let each = |all: Option<Vec<(u64, u64)>>| all.filter(|_| decode).and_then(weighted);
    let any_cause = reasons.judged && (options.only(By::Cause) || options.only(By::Counter));
    let wanted = |by: By| options.tables.contains(&by) || any_cause;
    let ops = |by: By, key: OpKey| {
        wanted(by).then(|| top_ops(op_rows(times, reasons, idents, phase, key), options.top))
    };
    let threads = wanted(By::Thread).then(|| thread_rows(times, reasons.why, phase));
    let by_token = options.tables.contains(&By::Token).then(|| token_rows(line, times, phase));
    let mut report = PhaseReport {
        phase,
        threads_left_out: beyond(threads.as_deref(), options.top),
        calls_left_out: beyond(by_token.as_deref(), options.top),
        calls: calls.len() as u64,
        cut_calls: (calls.len() - whole.len()) as u64 - unseen_calls,
        unseen_calls,
        device_ns: whole.iter().fold(0u64, |a, c| a.saturating_add(c.device)),
        tokens,
        in_call_ns,
        latency: latency(whole.iter().map(|c| c.dur).collect()),
        start_to_start: latency(steps.iter().map(|s| s.ns).collect()),
        tpot: each(whole.iter().map(|c| token(c.dur, c.tokens)).collect()),
        tpot_start_to_start: each(steps.iter().map(|s| token(s.ns, s.tokens)).collect()),
        batched: phase == Phase::Prefill
            && line.sequences.is_none()
            && calls.iter().any(|c| batches(loaded, line, c.pid)),
        runs_per_s: (line.work != RunWork::Tokens && in_call_ns > 0)
            .then(|| whole.len() as f64 * 1e9 / in_call_ns as f64),
        tokens_per_s: tokens.filter(|_| in_call_ns > 0).map(|t| t as f64 * 1e9 / in_call_ns as f64),
        first_call: first_call(&whole),
        tokens_per_s_wall: step_tokens.filter(|_| steps_ns > 0).map(|n| n as f64 * 1e9 / steps_ns as f64),
        between_calls: None,
        cpu_graphs: sum.graphs,
        graphs_below_ops: sum.below,
        level_changes: within(loaded, line, phase),
        graph_ns: sum.graph_ns,
        op_ns: sum.op_ns,
        wait_ns: (sum.barrier > 0).then_some(sum.wait_ns),
        gaps_ns: gaps(&sum),
        op_time: op_time(&sum),
        by_op: ops(By::Op, OpKey::Op),
        by_name: ops(By::Name, OpKey::Name),
        by_layer: ops(By::Layer, OpKey::Layer),
        by_thread: threads.map(|rows| first(rows, options.top)),
        by_cpu: options.tables.contains(&By::Cpu).then(|| cpu_table(loaded, times, phase)).flatten(),
        by_token: by_token.map(|rows| first(rows, options.top)),
        offload: if splits.is_empty() { None } else { offload(loaded, line, times, idents, phase) },
        splits,
    };
    report.between_calls = all_steps.between_share(report.on_devices_ns());
    Some(report)
}

/// A first call counts as slow if it took this many times the others' time per token, and if the rest is that much faster
/// without it.
const SLOWER: f64 = 1.5;
const FASTER: f64 = 1.05;

/// Of calls in order of their starts.
fn first_call(calls: &[&Call]) -> Option<FirstCall> {
    let (first, others) = calls.split_first()?;
    let sum = |calls: &[&Call]| -> Option<(f64, f64)> {
        let tokens = calls.iter().try_fold(0u64, |n, c| n.checked_add(c.tokens?))?;
        let ns = calls.iter().fold(0u64, |ns, c| ns.saturating_add(c.dur));
        (tokens > 0 && ns > 0).then_some((tokens as f64, ns as f64))
    };
    let (rest, all) = (sum(others)?, sum(calls)?);
    let tokens = first.tokens.filter(|n| *n > 0)?;
    let each = |(tokens, ns): (f64, f64)| ns / tokens;
    let is_slow = first.dur as f64 / tokens as f64 >= SLOWER * each(rest) && each(all) >= FASTER * each(rest);
    is_slow.then(|| FirstCall { ns: first.dur, tokens, others_tokens_per_s: 1e9 / each(rest) })
}

/// Why the completion of a device was not seen.
fn unseen(loaded: &Loaded<'_>) -> String {
    let told = loaded.causes.features.iter().find(|f| f.name == "device");
    told.map_or("the recorder did not probe it", |f| f.why).into()
}

pub(crate) fn op_time(sum: &PhaseSum) -> Option<OpTime> {
    match (sum.barrier, sum.interval) {
        (0, 0) => None,
        (_, 0) => Some(OpTime::Busy),
        (0, _) => Some(OpTime::Wall),
        _ => Some(OpTime::Mixed),
    }
}

/// Number of rows that [`first`] leaves out.
fn beyond<T>(rows: Option<&[T]>, top: Option<usize>) -> u64 {
    rows.map_or(0, |rows| rows.len().saturating_sub(top.unwrap_or(usize::MAX)) as u64)
}

fn first<T>(mut rows: Vec<T>, top: Option<usize>) -> Vec<T> {
    rows.truncate(top.unwrap_or(usize::MAX));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_first_call_is_told_if_it_matters() {
        let of = |calls: &[(u64, Option<u64>)]| {
            let call = |&(dur, tokens): &(u64, Option<u64>)| Call {
                seq: 0,
                pid: 1,
                tid: 1,
                entry: None,
                start: 0,
                dur,
                tokens,
                phase: Phase::Prefill,
                graphs: 1,
                cut: false,
                unseen: false,
                device: 0,
            };
            let calls: Vec<Call> = calls.iter().map(call).collect();
            first_call(&calls.iter().collect::<Vec<_>>()).map(|f| (f.ns, f.tokens, f.others_tokens_per_s))
        };
        // A warm-up of two tokens takes as long as the prompt after it.
        assert_eq!(of(&[(1000, Some(2)), (1000, Some(100))]), Some((1000, 2, 1e8)));
        // As long for a token; alone; without its tokens; and of many, where it does not matter.
        assert_eq!(of(&[(1000, Some(100)), (1000, Some(100))]), None);
        assert_eq!(of(&[(1000, Some(2))]), None);
        assert_eq!(of(&[(1000, None), (1000, Some(100))]), None);
        assert_eq!(of(&[(1000, Some(2)), (1000, None)]), None);
        let many: Vec<_> = std::iter::once((20, Some(1))).chain((0..1000).map(|_| (10, Some(1)))).collect();
        assert_eq!(of(&many), None);
        assert_eq!(of(&[(0, Some(0)), (0, Some(0))]), None);
    }
}
