//! Engine calls over time: which ones are prefill, which are decode, and how long they took.
//!
//! A call is one `llama_process`, `llama_decode` or `llama_encode`. If no such call was recorded, the scheduler's
//! graphs take their place; if there are none either, the CPU graphs do.

use std::collections::{HashMap, HashSet};

use serde::{Deserialize, Serialize};

pub use crate::recorded::call::{Call, Latency, Phase, Request, latency, weighted};
use crate::recorded::load::Loaded;
use crate::recorded::sequences::Sequences;
use common::order;
use ggml::backend_guid;
use pfi::record::{Backend, CpuGraph, Device, Entry, Graph, Tensor};

/// What serves as a call in this trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CallSource {
    Token,
    SchedulerGraph,
    CpuGraph,
}

/// What the calls are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RunWork {
    /// They read and generate tokens.
    Tokens,
    /// Each call reads a text and gives its embedding: it is a run of the model, and counts as prefill.
    Embeddings,
    /// Graphs of a program without calls of llama.cpp, as whisper.cpp: what they are given are not tokens, and they have no
    /// phase.
    Graphs,
}

/// The calls in time order, and the call that each graph belongs to.
pub struct Timeline {
    pub source: CallSource,
    pub work: RunWork,
    /// Sorted by start.
    pub calls: Vec<Call>,
    /// Phase of each of [`Loaded::cpu_graphs`].
    pub cpu_phase: Vec<Phase>,
    /// Index of the call of each of [`Loaded::cpu_graphs`].
    pub cpu_call: Vec<Option<usize>>,
    /// Phase by the seq of a scheduler graph.
    pub graph_phase: HashMap<u64, Phase>,
    /// Index of the call by the seq of a scheduler graph.
    pub graph_call: HashMap<u64, usize>,
    /// What each call was given to compute; none if no batch was recorded.
    pub sequences: Option<Sequences>,
}

/// Widths seen for one call while its graphs are collected.
#[derive(Default, Clone)]
pub(crate) struct Width {
    pub widest: u64,
    sum: u64,
    graphs: u32,
    /// A graph of unknown width was found, so the sum is not valid.
    incomplete: bool,
}

impl Width {
    pub fn add(&mut self, ubatch: u64) {
        self.widest = self.widest.max(ubatch);
        self.sum = self.sum.saturating_add(ubatch);
        self.graphs = self.graphs.saturating_add(1);
        self.incomplete |= ubatch == 0;
    }
}

/// Orders the calls, assigns each its phase, and links the graphs to them.
pub fn timeline(loaded: &Loaded<'_>) -> Timeline {
    let source = match (loaded.tokens.is_empty(), loaded.graphs.is_empty()) {
        (false, _) => CallSource::Token,
        (true, false) => CallSource::SchedulerGraph,
        (true, true) => CallSource::CpuGraph,
    };
    let mut calls = bare_calls(loaded, source);
    order::by_key(&mut calls, |c| (order::time(c.start), c.seq));
    let finder = CallIndex::new(&calls);
    let mut widths = vec![Width::default(); calls.len()];
    let graphs = link_graphs(loaded, source, &calls, &finder, &mut widths);
    let cpu_call = link_cpu_graphs(loaded, source, &calls, &finder, &graphs, &mut widths);
    for (call, width) in calls.iter_mut().zip(&widths) {
        settle(call, width);
    }
    let work = work(loaded, source, &calls);
    let mut sequences = Sequences::of(loaded, &calls).filter(|_| source == CallSource::Token);
    if let Some(known) = &sequences {
        calls.iter_mut().enumerate().for_each(|(i, call)| settle_known(call, i, known));
    }
    match work {
        RunWork::Tokens => {}
        RunWork::Embeddings => {
            calls.iter_mut().for_each(|call| call.phase = Phase::Prefill);
            sequences.iter_mut().for_each(Sequences::generate_nothing);
        }
        RunWork::Graphs => {
            calls.iter_mut().for_each(|call| (call.phase, call.tokens) = (Phase::Unknown, None));
        }
    }
    let of_width = |width| if work == RunWork::Graphs { Phase::Unknown } else { Phase::of_width(width) };
    let phase_of = |call: Option<usize>| call.and_then(|c| calls.get(c)).map(|c| c.phase);
    let graph_phase: HashMap<u64, Phase> =
        graphs.iter().map(|(seq, g)| (*seq, phase_of(g.call).unwrap_or(of_width(g.width)))).collect();
    let cpu_phase = loaded
        .cpu_graphs
        .iter()
        .zip(&cpu_call)
        .map(|(g, call)| {
            phase_of(*call)
                .or_else(|| g.graph.and_then(|s| graph_phase.get(&s).copied()))
                .unwrap_or_else(|| of_width(u64::from(g.ubatch)))
        })
        .collect();
    let graph_call = graphs.iter().filter_map(|(seq, g)| Some((*seq, g.call?))).collect();
    Timeline { source, work, calls, cpu_phase, cpu_call, graph_phase, graph_call, sequences }
}

impl Timeline {
    /// The phase that is meant by another: where all calls are of one kind, they are what every phase means.
    pub fn meant(&self, phase: Phase) -> Phase {
        match self.work {
            RunWork::Tokens => phase,
            RunWork::Embeddings => Phase::Prefill,
            RunWork::Graphs => Phase::Unknown,
        }
    }
}

/// Names of llama.cpp's tensors: what its graphs read and give, and what they give where embeddings are pooled
/// (llama-graph.cpp).
const OF_TOKENS: [&str; 2] = ["inp_tokens", "result_output"];
const POOLED: &str = "result_embd_pooled";

/// Whether a tensor is one that only graphs of llama.cpp have.
pub(crate) fn reads_or_gives_tokens(t: &Tensor) -> bool {
    t.known && OF_TOKENS.contains(&&*t.name)
}

fn work(loaded: &Loaded<'_>, source: CallSource, calls: &[Call]) -> RunWork {
    let pooled = || loaded.tensors.values().any(|t| t.known && POOLED == &*t.name);
    let encodes = |call: &Call| call.entry == Some(Entry::Encode);
    match source {
        CallSource::Token if !calls.is_empty() && (calls.iter().all(encodes) || pooled()) => {
            RunWork::Embeddings
        }
        CallSource::Token => RunWork::Tokens,
        _ if loaded.graphs.is_empty() && loaded.cpu_graphs.is_empty()
            || loaded.tensors.values().any(reads_or_gives_tokens) =>
        {
            RunWork::Tokens
        }
        _ => RunWork::Graphs,
    }
}

/// A scheduler graph: the call it belongs to and its ubatch (0: not read).
struct Linked {
    call: Option<usize>,
    width: u64,
}

/// Links scheduler graphs, by seq, and adds their widths to their calls.
fn link_graphs(
    loaded: &Loaded<'_>,
    source: CallSource,
    calls: &[Call],
    finder: &CallIndex,
    widths: &mut [Width],
) -> HashMap<u64, Linked> {
    let cpu_width = cpu_widths(&loaded.cpu_graphs);
    let mut graphs = HashMap::with_capacity(loaded.graphs.len());
    for g in &loaded.graphs {
        let call = match (source, g.token) {
            (CallSource::Token, Some(token)) => finder.by_seq(token),
            (CallSource::Token, None) => finder.at(calls, g.pid, g.tid, g.t),
            _ => finder.by_seq(g.seq),
        };
        let width = graph_ubatch(g, &cpu_width);
        if let Some(of_call) = call.and_then(|c| widths.get_mut(c)) {
            of_call.add(width);
        }
        graphs.insert(g.seq, Linked { call, width });
    }
    graphs
}

/// The call of each CPU graph. One without a scheduler graph adds its own width to its call's.
fn link_cpu_graphs(
    loaded: &Loaded<'_>,
    source: CallSource,
    calls: &[Call],
    finder: &CallIndex,
    graphs: &HashMap<u64, Linked>,
    widths: &mut [Width],
) -> Vec<Option<usize>> {
    let link = |g: &CpuGraph| {
        if let Some(graph) = g.graph.and_then(|seq| graphs.get(&seq)) {
            return graph.call;
        }
        let call = match source {
            CallSource::CpuGraph => finder.by_seq(g.seq),
            _ => finder.at(calls, g.pid, g.tid, g.t),
        };
        if let Some(of_call) = call.and_then(|c| widths.get_mut(c)) {
            of_call.add(u64::from(g.ubatch));
        }
        call
    };
    loaded.cpu_graphs.iter().map(link).collect()
}

fn bare_calls(loaded: &Loaded<'_>, source: CallSource) -> Vec<Call> {
    let call = |seq, pid, tid, entry, start, dur, tokens: Option<u32>, cut, device: Device| Call {
        seq,
        pid,
        tid,
        entry,
        start,
        dur,
        tokens: tokens.map(u64::from),
        phase: Phase::Unknown,
        graphs: 0,
        cut: cut || device == Device::Unseen,
        unseen: !cut && device == Device::Unseen,
        device: device.waited(),
    };
    // Before format 1.3 the completion time of a device was not recorded.
    let splits = loaded.splits.iter().filter(|s| s.device == Device::Idle && on_device(loaded, s.backend));
    let graphs: HashSet<u64> = splits.filter_map(|s| s.graph).collect();
    let of_graphs = loaded.graphs.iter().filter(|g| graphs.contains(&g.seq));
    let tokens: HashSet<u64> = of_graphs.filter_map(|g| g.token).collect();
    let told = |device: Device, early: bool| match device {
        Device::Idle if early => Device::Unseen,
        device => device,
    };
    match source {
        CallSource::Token => loaded
            .tokens
            .iter()
            .map(|t| {
                call(
                    t.seq,
                    t.pid,
                    t.tid,
                    Some(t.entry),
                    t.t,
                    t.dur,
                    t.n_tokens,
                    t.cut,
                    told(t.device, tokens.contains(&t.seq)),
                )
            })
            .collect(),
        CallSource::SchedulerGraph => {
            let of = |g: &Graph| told(g.device, graphs.contains(&g.seq));
            loaded
                .graphs
                .iter()
                .map(|g| call(g.seq, g.pid, g.tid, None, g.t, g.dur, None, g.cut, of(g)))
                .collect()
        }
        CallSource::CpuGraph => loaded
            .cpu_graphs
            .iter()
            .map(|g| call(g.seq, g.pid, g.tid, None, g.t, g.dur, None, g.cut, Device::Idle))
            .collect(),
    }
}

/// Whether a backend computes on a device other than the CPU.
pub fn on_device(loaded: &Loaded<'_>, backend: u32) -> bool {
    let device = |b: &Backend<'_>| backend_guid::is_device(&b.guid) && !backend_guid::is_host(b.name);
    loaded.backends.get(&backend).is_some_and(device)
}

/// Ubatch of the first CPU graph of each scheduler graph, for graphs whose own was not read.
fn cpu_widths(cpu_graphs: &[CpuGraph]) -> HashMap<u64, (i64, u64)> {
    let mut first: HashMap<u64, (i64, u64)> = HashMap::new();
    for g in cpu_graphs {
        if let (Some(seq), true) = (g.graph, g.ubatch != 0) {
            let new = (g.t, u64::from(g.ubatch));
            first.entry(seq).and_modify(|old| *old = (*old).min(new)).or_insert(new);
        }
    }
    first
}

fn graph_ubatch(g: &Graph, cpu: &HashMap<u64, (i64, u64)>) -> u64 {
    match g.ubatch {
        0 => cpu.get(&g.seq).map_or(0, |(_, width)| *width),
        width => u64::from(width),
    }
}

/// Sets a call's phase from its graphs, and its tokens if the batch does not say.
pub(crate) fn settle(call: &mut Call, width: &Width) {
    call.graphs = width.graphs;
    call.phase = match Phase::of_width(width.widest) {
        // The batch's own width decides only if no graph has one.
        Phase::Unknown => Phase::of_width(call.tokens.unwrap_or(0)),
        phase => phase,
    };
    if call.tokens.is_none() && width.graphs > 0 && !width.incomplete {
        call.tokens = Some(width.sum);
    }
}

/// Sets a call's phase and tokens from its batch: several sequences may each have a token, and of a draft only some tokens
/// are accepted.
fn settle_known(call: &mut Call, index: usize, known: &Sequences) {
    if let Some(work) = known.works.get(index).and_then(Option::as_ref) {
        call.phase = work.phase().unwrap_or(call.phase);
        call.tokens = known.tokens(index).or(call.tokens);
    }
}

/// Finds calls by their seq, and by what ran on a thread at a given time.
struct CallIndex {
    by_seq: HashMap<u64, usize>,
    /// (pid, tid) to the indices of its calls, in time order.
    by_thread: HashMap<(u32, u32), Vec<usize>>,
}

impl CallIndex {
    fn new(calls: &[Call]) -> Self {
        let mut by_thread: HashMap<(u32, u32), Vec<usize>> = HashMap::new();
        for (i, c) in calls.iter().enumerate() {
            by_thread.entry((c.pid, c.tid)).or_default().push(i);
        }
        let by_seq = calls.iter().enumerate().map(|(i, c)| (c.seq, i)).collect();
        CallIndex { by_seq, by_thread }
    }

    fn by_seq(&self, seq: u64) -> Option<usize> {
        self.by_seq.get(&seq).copied()
    }

    fn at(&self, calls: &[Call], pid: u32, tid: u32, t: i64) -> Option<usize> {
        let list = self.by_thread.get(&(pid, tid))?;
        let after = list.partition_point(|i| calls.get(*i).is_some_and(|c| c.start <= t));
        let index = *list.get(after.checked_sub(1)?)?;
        calls.get(index).filter(|c| t <= c.end()).map(|_| index)
    }
}

/// A longer pause than this between prefill calls is idle time between two requests, ns. An engine goes from one
/// part of a prompt to the next without delay.
const IDLE_NS: i64 = 10_000_000;

/// Requests, and the start-to-start times of decode calls within them.
#[derive(Default)]
pub struct Requests {
    pub list: Vec<Request>,
    pub decode_steps: Vec<DecodeStep>,
    pub steps: Steps,
}

/// From the start of a decode call to the start of the next one in the same request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodeStep {
    pub ns: u64,
    /// Tokens of the call at its start; `None` if the width of the batch was not recorded.
    pub tokens: Option<u64>,
}

/// Sums of the steps of decode calls. Times are ns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Steps {
    /// From the start of a call to the start of the next one.
    pub ns: u64,
    /// The part of it after the call's end.
    pub between_ns: u64,
}

impl Steps {
    /// Adds a step from a call's start and duration to the start of the next one.
    pub fn add(&mut self, (start, dur): (i64, u64), next: i64) {
        let ns = start.abs_diff(next);
        self.ns = self.ns.saturating_add(ns);
        self.between_ns = self.between_ns.saturating_add(ns.saturating_sub(dur));
    }

    /// Each number combined with the corresponding number of `o`.
    pub fn combined(&self, o: &Steps, f: impl Fn(u64, u64) -> u64) -> Steps {
        Steps { ns: f(self.ns, o.ns), between_ns: f(self.between_ns, o.between_ns) }
    }

    /// Share of the time that is between calls; `None` if it is not known: there is no step, or a device, which computed
    /// for `device_ns`, may do so after a call has returned.
    pub fn between_share(&self, device_ns: u64) -> Option<f64> {
        (device_ns == 0 && self.ns > 0).then(|| self.between_ns as f64 / self.ns as f64)
    }
}

struct OpenRequest {
    request: Request,
    last_decode: Option<(i64, u64, Option<u64>)>,
    /// End and tokens of the last prefill call.
    last_prefill: Option<(i64, Option<u64>)>,
    cut: bool,
}

/// Splits the calls of each process into requests.
pub fn requests(calls: &[Call]) -> Requests {
    let mut out = Requests::default();
    let mut open: HashMap<u32, OpenRequest> = HashMap::new();
    for call in calls {
        match call.phase {
            Phase::Prefill => {
                if open.get(&call.pid).is_some_and(|o| o.request.decode_calls > 0 || o.is_over(call)) {
                    out.list.extend(open.remove(&call.pid).map(|o| o.request));
                }
                open.entry(call.pid).or_insert_with(|| OpenRequest::at(call)).prefill(call);
            }
            Phase::Decode => {
                let o = open.entry(call.pid).or_insert_with(|| OpenRequest::at(call));
                o.request.decode_calls += 1;
                let seen = (!call.unseen).then_some((call.start, call.dur, call.tokens));
                let before = std::mem::replace(&mut o.last_decode, seen);
                if let Some(((before, dur, tokens), (now, ..))) = before.zip(seen) {
                    out.decode_steps.push(DecodeStep { ns: before.abs_diff(now), tokens });
                    out.steps.add((before, dur), now);
                }
            }
            // The call's phase is not known, so it ends the open request instead of being counted in it.
            Phase::Unknown => out.list.extend(open.remove(&call.pid).map(|o| o.request)),
        }
    }
    out.list.extend(open.into_values().map(|o| o.request));
    order::by_key(&mut out.list, |r| (order::time(r.start_ns), r.pid.into()));
    out
}

impl OpenRequest {
    fn at(call: &Call) -> OpenRequest {
        let request = Request {
            pid: call.pid,
            start_ns: call.start,
            prefill_calls: 0,
            prompt_tokens: Some(0),
            ttft_ns: None,
            prefill_ns: 0,
            decode_calls: 0,
        };
        OpenRequest { request, last_decode: None, last_prefill: None, cut: false }
    }

    /// Whether this prefill call cannot belong to the open prompt any more.
    fn is_over(&self, call: &Call) -> bool {
        let Some((end, tokens)) = self.last_prefill else { return false };
        let larger = tokens.zip(call.tokens).is_some_and(|(before, now)| now > before);
        larger || call.start.saturating_sub(end) > IDLE_NS
    }

    fn prefill(&mut self, call: &Call) {
        let r = &mut self.request;
        r.prefill_calls += 1;
        r.prompt_tokens = r.prompt_tokens.zip(call.tokens).map(|(a, b)| a.saturating_add(b));
        r.prefill_ns = r.prefill_ns.saturating_add(call.dur);
        self.cut |= call.cut;
        self.last_prefill = Some((call.end(), call.tokens));
        r.ttft_ns = (!self.cut).then(|| r.start_ns.abs_diff(call.end()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_rank() {
        let l = latency((1..=200).rev().collect()).unwrap();
        assert_eq!((l.n, l.p50_ns, l.p95_ns, l.p99_ns, l.max_ns), (200, 100, 190, 198, 200));
        assert_eq!(l.mean_ns, 100.5);
        assert_eq!(latency(vec![7]).unwrap().p50_ns, 7);
        assert_eq!(latency(vec![]), None);
    }

    fn call(start: i64, dur: u64, phase: Phase) -> Call {
        let tokens = Some(if phase == Phase::Decode { 1 } else { 8 });
        let entry = Some(Entry::Decode);
        let (cut, unseen, device) = (false, false, 0);
        Call { seq: 0, pid: 1, tid: 1, entry, start, dur, tokens, phase, graphs: 1, cut, unseen, device }
    }

    #[test]
    fn a_request_is_prefills_and_the_decodes_after_them() {
        use Phase::*;
        let calls = [
            call(0, 10, Prefill),
            call(20, 10, Prefill),
            call(40, 5, Decode),
            call(50, 5, Decode),
            call(70, 5, Decode),
            call(100, 30, Prefill),
            call(140, 5, Decode),
        ];
        let r = requests(&calls);
        assert_eq!(r.steps, Steps { ns: 30, between_ns: 20 });
        let steps: Vec<_> = r.decode_steps.iter().map(|s| (s.ns, s.tokens)).collect();
        assert_eq!(steps, [(10, Some(1)), (20, Some(1))]);
        let seen: Vec<_> = r
            .list
            .iter()
            .map(|r| (r.prefill_calls, r.prompt_tokens, r.ttft_ns, r.prefill_ns, r.decode_calls))
            .collect();
        assert_eq!(seen, [(2, Some(16), Some(30), 20, 3), (1, Some(8), Some(30), 30, 1)]);
    }

    /// A warm-up, six seconds without a request, and a prompt in two parts.
    #[test]
    fn idle_time_is_in_no_ttft() {
        let of = |start, dur, tokens| Call { tokens: Some(tokens), ..call(start, dur, Phase::Prefill) };
        let ms = 1_000_000;
        let calls = [
            of(0, 500_000, 2),
            of(6_000 * ms, 2_000_000, 512),
            of(6_002 * ms + 100_000, 400_000, 80),
            call(6_003 * ms, 5, Phase::Decode),
        ];
        let ttft =
            |calls: &[Call]| requests(calls).list.iter().map(|r| r.ttft_ns.unwrap()).collect::<Vec<_>>();
        assert_eq!(ttft(&calls), [500_000, 2_500_000]);
        // A warm-up immediately before the prompt is not part of it either.
        assert_eq!(ttft(&[of(0, 10, 2), of(20, 10, 64)]), [10, 10]);
        // Prompts of equal size with a pause in between.
        assert_eq!(ttft(&[of(0, 10, 64), of(100 * ms, 10, 64)]), [10, 10]);
    }

    #[test]
    fn a_value_counts_as_often_as_it_is_said() {
        assert_eq!(weighted(vec![(7, 3), (1, 1)]), latency(vec![7, 1, 7, 7]));
        assert_eq!(weighted(vec![(7, 0)]), None);
    }

    #[test]
    fn calls_whose_end_on_a_device_was_not_seen_have_no_time() {
        let unseen = |start, phase| Call { cut: true, unseen: true, ..call(start, 5, phase) };
        let calls = [unseen(0, Phase::Prefill), unseen(10, Phase::Decode), unseen(20, Phase::Decode)];
        let r = requests(&calls);
        assert_eq!((r.list[0].ttft_ns, r.decode_steps.len(), r.list[0].decode_calls), (None, 0, 2));
    }

    #[test]
    fn no_ttft_without_a_whole_prefill() {
        let mut cut = call(0, 10, Phase::Prefill);
        cut.cut = true;
        assert_eq!(requests(&[cut]).list[0].ttft_ns, None);
        assert_eq!(requests(&[call(0, 10, Phase::Decode)]).list[0].ttft_ns, None);
    }
}
