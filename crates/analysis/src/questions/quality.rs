//! Recording quality: hits expected and seen, losses, damage, and the cost of the recording itself. A missing
//! number comes with its reason.

use serde::Serialize;

use crate::questions::invariants::{Invariants, invariants};
use crate::recorded::calls::Timeline;
use crate::recorded::labels::{share, state};
use crate::recorded::load::Loaded;
use crate::sums::op_cpus::{CpuSum, ThreadCpus};
use crate::sums::ops::{OpTimes, in_part};
use common::order;
use pfi::record::{Detail, Feature, Footer, Level, ProbeRecord, SourceKind};

/// A number, or the reason why it is missing.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figure {
    pub value: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unknown: Option<String>,
}

impl Figure {
    fn known(value: f64) -> Figure {
        Figure { value: Some(value), unknown: None }
    }

    fn unknown(why: &str) -> Figure {
        Figure { value: None, unknown: Some(why.to_string()) }
    }
}

/// One rung of the probe ladder.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RungRow {
    pub engine: u32,
    pub role: String,
    pub name: String,
    pub used: bool,
    pub expected: Option<u64>,
    pub seen: u64,
    pub why: String,
}

/// A probe as attached.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProbeRow {
    pub engine: u32,
    pub symbol: String,
    pub module: String,
    /// True for a return probe.
    #[serde(rename = "return")]
    pub ret: bool,
    /// Offset from the symbol, bytes.
    pub offset: u32,
    /// The instruction at the probe point, and why it was chosen.
    pub why: String,
}

/// Op hits over the complete run, from the CPU graphs' own records.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct OpHits {
    pub graphs: u64,
    /// Graphs whose nodes could be read and which ended before the recording did; the sums below are over these.
    pub checked_graphs: u64,
    /// Graphs cut off by the end of the recording: they did not run all their ops, so they are not checked.
    #[serde(skip_serializing_if = "common::is_default")]
    pub cut_graphs: u64,
    pub expected: u64,
    pub seen: u64,
    /// Checked graphs in which expected and seen differ.
    pub graphs_off: u64,
    /// Op slices in the file.
    pub slices: u64,
    /// Graphs with fewer or more slices in the file than hits were seen.
    pub graphs_slices_off: u64,
    /// Graphs in which thread 0's ops and waits, or one op of any thread, take longer than the graph.
    pub graphs_overfull: u64,
    /// Graphs with slices in the file but without their own record.
    pub graphs_without_record: u64,
}

/// Events of one kind. The counts are consistent if `seen = recorded + lost`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct KindRow {
    pub kind: String,
    pub seen: u64,
    pub recorded: u64,
    pub lost: u64,
    /// False: `seen` is not `recorded + lost`.
    pub closes: bool,
}

/// A requested feature beyond tokens, graphs and ops.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FeatureRow {
    pub name: String,
    /// `whole`, `partly` or `none`.
    pub state: &'static str,
    /// How it was recorded, or why it was not.
    pub why: String,
}

/// A recording whose level changed to keep a budget: it may be complete and yet lack ops of some graphs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct SampledGraphs {
    /// CPU graphs, and those of them with all their ops.
    pub graphs: u64,
    pub with_ops: u64,
    /// Ops were recorded of one token in this many; null if the rate changed, or if none were.
    pub one_in: Option<u32>,
}

/// The recording quality section of the report.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RecordingQuality {
    /// True only if nothing is lost, damaged, without an end, or missing compared with what the graphs require.
    pub complete: bool,
    /// Graphs that a recorder without BPF could not read in time: their expected hits are not known.
    #[serde(skip)]
    pub unread: bool,
    /// `complete`, perhaps with what cannot be checked; or what is missing.
    pub verdict: String,
    /// What a budget left in; null if the level never changed.
    pub sampled: Option<SampledGraphs>,
    /// Omitted if no additional feature was requested.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub features: Vec<FeatureRow>,
    pub rungs: Vec<RungRow>,
    pub probes: Vec<ProbeRow>,
    pub hits: OpHits,
    pub invariants: Invariants,
    pub events: Vec<KindRow>,
    /// Share of the events seen by the kernel side, 0 to 1.
    pub lost_share: Figure,
    /// Lost events per CPU; empty if none were lost or nothing is known.
    pub lost_per_cpu: Vec<u64>,
    /// Op hits outside any graph whose start was seen.
    pub orphans: Figure,
    pub read_errors: Figure,
    /// Descriptions of what the file lost.
    pub damage: Vec<String>,
    /// Null: the recording did not end cleanly.
    pub end: Option<String>,
    pub notices: Vec<String>,
    pub agent_cpu_ms: Figure,
    /// Share of one core, 0 to 1.
    pub agent_cpu_share: Figure,
    pub agent_peak_rss_bytes: Figure,
    /// Cost of one probe hit, measured at the start of the recording, ns: trap, program and event.
    pub hit_ns: Figure,
    /// The part of it spent in our BPF programs according to the kernel, ns per run.
    pub bpf_ns: Figure,
    /// Hits on the busiest thread.
    pub busiest_thread_hits: u64,
    /// Cost of those hits as a share of the time of all calls, 0 to 1.
    pub predicted_slowdown: Figure,
    /// Omitted if no op's CPU is known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub probe_load: Vec<CpuProbes>,
}

/// The probes of ops that were hit on one CPU (ProfInfer, table 5).
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CpuProbes {
    pub cpu: u16,
    pub hits: u64,
    /// Cost of the hits as a share of the time of all calls, 0 to 1.
    pub share: Figure,
}

const NO_FOOTER: &str = "the recording did not end cleanly";

/// Computes the recording quality.
pub fn quality(loaded: &Loaded<'_>, line: &Timeline, times: &OpTimes) -> RecordingQuality {
    let footer = loaded.footer.as_ref();
    let figure =
        |get: fn(&Footer<'_>) -> f64| footer.map_or(Figure::unknown(NO_FOOTER), |f| Figure::known(get(f)));
    let hits = hits(loaded, times);
    let invariants = invariants(loaded, line);
    let events = events(footer);
    let lost_share = lost_share(footer, &events);
    let mut faults = faults(loaded, &hits, &events, &lost_share);
    faults.extend(broken(loaded, &invariants));
    let unchecked = unchecked(loaded, &hits);
    // What was not recorded on purpose is not missing: it cannot be checked, and nothing else was lost.
    let without_bpf = loaded.header.as_ref().is_some_and(|h| h.source == SourceKind::Perf);
    let unread = without_bpf && unchecked.is_some();
    let complete = match &unchecked {
        Some(unread) if without_bpf => format!("complete; {unread} without BPF"),
        _ => "complete".into(),
    };
    faults.extend(unchecked.filter(|_| !without_bpf));
    let (bpf_ns, hit_ns) = hit_cost(loaded);
    let busiest_thread_hits = busiest(loaded, times);
    RecordingQuality {
        complete: faults.is_empty(),
        unread,
        verdict: if faults.is_empty() { complete } else { faults.join("; ") },
        sampled: sampled(loaded),
        features: features(loaded),
        rungs: rungs(loaded),
        probes: probes(loaded),
        lost_per_cpu: lost_per_cpu(footer),
        orphans: figure(|f| f.orphans as f64),
        read_errors: figure(|f| f.read_errors as f64),
        damage: loaded.damage.clone(),
        end: footer.map(|f| f.end.to_string()),
        notices: loaded.notices.iter().map(|n| n.text.to_string()).collect(),
        agent_cpu_ms: figure(|f| agent_us(f) / 1e3),
        agent_cpu_share: match footer {
            Some(f) if f.wall_ns == 0 => Figure::unknown("the duration of the recording was not measured"),
            _ => figure(|f| agent_us(f) * 1e3 / f.wall_ns as f64),
        },
        agent_peak_rss_bytes: figure(|f| f.agent_peak_rss as f64),
        predicted_slowdown: slowdown(line, &hit_ns, busiest_thread_hits),
        probe_load: probe_load(loaded, times, |hits| slowdown(line, &hit_ns, hits)),
        hits,
        invariants,
        events,
        lost_share,
        bpf_ns,
        hit_ns,
        busiest_thread_hits,
    }
}

fn sampled(loaded: &Loaded<'_>) -> Option<SampledGraphs> {
    let with_ops = loaded.cpu_graphs.iter().filter(|g| !in_part(loaded, g)).count() as u64;
    let graphs = loaded.cpu_graphs.len() as u64;
    let mut rates = loaded.causes.levels.iter().filter(|l| l.to >= Detail::Op).map(|l| l.one_in.max(1));
    let first = rates.next();
    let one_in = first.filter(|first| rates.all(|rate| rate == *first));
    (!loaded.causes.levels.is_empty()).then_some(SampledGraphs { graphs, with_ops, one_in })
}

fn agent_us(f: &Footer<'_>) -> f64 {
    f.agent_user_us as f64 + f.agent_sys_us as f64
}

fn features(loaded: &Loaded<'_>) -> Vec<FeatureRow> {
    let row = |f: &Feature<'_>| FeatureRow { name: f.name.into(), state: state(f.state), why: f.why.into() };
    loaded.causes.features.iter().map(row).collect()
}

fn rungs(loaded: &Loaded<'_>) -> Vec<RungRow> {
    let mut rows: Vec<RungRow> = loaded
        .rungs
        .iter()
        .map(|r| RungRow {
            engine: r.engine,
            role: r.role.into(),
            name: r.name.into(),
            used: r.used,
            expected: r.expected,
            seen: r.seen,
            why: r.why.into(),
        })
        .collect();
    order::by_key(&mut rows, |r| (r.engine.into(), (!r.used).into()));
    rows
}

fn probes(loaded: &Loaded<'_>) -> Vec<ProbeRow> {
    let row = |p: &ProbeRecord<'_>| ProbeRow {
        engine: p.engine,
        symbol: p.symbol.into(),
        module: p.module.into(),
        ret: p.ret,
        offset: p.offset,
        why: p.why.into(),
    };
    loaded.probes.iter().map(row).collect()
}

fn hits(loaded: &Loaded<'_>, times: &OpTimes) -> OpHits {
    let mut h = OpHits { graphs: loaded.cpu_graphs.len() as u64, slices: times.slices, ..OpHits::default() };
    for (g, sum) in loaded.cpu_graphs.iter().zip(&times.graphs) {
        // Below level op there is no plan, and no slices are expected; those of a change of level are in no sum.
        let whole = g.plan.is_some() && !in_part(loaded, g);
        h.graphs_slices_off += u64::from(whole && sum.slices != u64::from(g.seen));
        h.graphs_overfull += u64::from(sum.ops.saturating_add(sum.wait) > g.dur || sum.longest > g.dur);
        h.cut_graphs += u64::from(g.cut);
        if let (Some(expected), false) = (g.expected, g.cut) {
            h.checked_graphs += 1;
            h.expected += u64::from(expected);
            h.seen += u64::from(g.seen);
            h.graphs_off += u64::from(expected != g.seen);
        }
    }
    h.graphs_without_record = times.phases.values().map(|p| p.unrecorded).sum();
    h
}

fn events(footer: Option<&Footer<'_>>) -> Vec<KindRow> {
    let kinds = footer.map_or(&[][..], |f| &f.kinds);
    kinds
        .iter()
        .filter(|k| k.kind != BARRIER)
        .map(|k| KindRow {
            kind: k.kind.into(),
            seen: k.seen,
            recorded: k.recorded,
            lost: k.lost,
            closes: k.recorded.checked_add(k.lost) == Some(k.seen),
        })
        .collect()
}

fn lost_share(footer: Option<&Footer<'_>>, events: &[KindRow]) -> Figure {
    if footer.is_none() {
        return Figure::unknown(NO_FOOTER);
    }
    let sum = |get: fn(&KindRow) -> u64| events.iter().map(get).fold(0, u64::saturating_add);
    Figure::known(share(sum(|e| e.lost), sum(|e| e.seen)))
}

fn lost_per_cpu(footer: Option<&Footer<'_>>) -> Vec<u64> {
    let lost = footer.map_or(&[][..], |f| &f.lost_cpu);
    if lost.iter().all(|n| *n == 0) { Vec::new() } else { lost.to_vec() }
}

/// All reasons why a recording is not complete.
fn faults(loaded: &Loaded<'_>, hits: &OpHits, events: &[KindRow], lost: &Figure) -> Vec<String> {
    let mut faults = Vec::new();
    match lost.value {
        None => faults.push("did not end cleanly, so the loss is unknown".to_string()),
        Some(share) if share > 0.0 => faults.push(format!("{} of the events lost", percent(share))),
        Some(_) => {}
    }
    for kind in events.iter().filter(|k| !k.closes) {
        let KindRow { kind, seen, recorded, lost, .. } = kind;
        faults.push(format!("`{kind}` counts disagree: {seen} seen != {recorded} recorded + {lost} lost"));
    }
    if hits.graphs_off > 0 {
        let gone = share(hits.expected.saturating_sub(hits.seen), hits.expected);
        let what = if hits.seen > hits.expected {
            format!("{} op hits more than expected", hits.seen - hits.expected)
        } else {
            format!("{} of the expected op hits missing", percent(gone))
        };
        faults.push(format!("{what} ({} of {} graphs differ)", hits.graphs_off, hits.checked_graphs));
    }
    if hits.graphs_slices_off > 0 {
        faults.push(format!(
            "some slices of {} are missing from the file",
            count(hits.graphs_slices_off, "graph")
        ));
    }
    if hits.graphs_overfull > 0 {
        let graphs = count(hits.graphs_overfull, "graph");
        faults.push(format!("times of {graphs} are inconsistent: the ops take longer than the graph"));
    }
    if !loaded.damage.is_empty() {
        faults.push(format!("file damaged in {}", count(loaded.damage.len() as u64, "place")));
    }
    if hits.graphs_without_record > 0 {
        faults.push(format!("{} without a record", count(hits.graphs_without_record, "graph")));
    }
    faults
}

/// Violated invariants.
fn broken(loaded: &Loaded<'_>, i: &Invariants) -> Vec<String> {
    let missing = |roles: [&str; 2]| {
        let mut left = loaded.rungs.iter().filter(|r| roles.contains(&r.role));
        let why =
            left.find(|r| r.seen == 0 && !r.why.is_empty()).map(|r| format!(" ({}: {})", r.role, r.why));
        why.unwrap_or_default()
    };
    let mut faults = Vec::new();
    if i.calls_without_graphs > 0 {
        let why = missing(["graph", "cpu-graph"]);
        faults.push(format!("{} of {} without a graph{why}", i.calls_without_graphs, count(i.calls, "call")));
    }
    if i.graphs_without_work > 0 {
        let why = missing(["split", "cpu-graph"]);
        let of = count(i.graphs, "scheduler graph");
        faults.push(format!("{} of {of} without a split or a CPU graph{why}", i.graphs_without_work));
    }
    if i.cpu_splits_without_ops > 0 {
        let why = missing(["cpu-graph", "op"]);
        let of = count(i.cpu_splits, "split");
        faults.push(format!("{} of {of} on the CPU without its ops{why}", i.cpu_splits_without_ops));
    }
    if i.calls_unseen > 0 {
        faults.push(format!("the completion of {} on a device was not seen", count(i.calls_unseen, "call")));
    }
    if i.batches_apart > 0 {
        let of = count(i.batches, "call");
        faults.push(format!(
            "the batches of {} of {of} have other numbers of tokens than their graphs",
            i.batches_apart
        ));
    }
    if i.misplaced > 0 {
        let graphs = count(i.misplaced, "graph");
        faults.push(format!("times of {graphs} are inconsistent: not within the enclosing call or graph"));
    }
    faults
}

/// Complete graphs whose expected hits are not known, where the structure of graphs was to be recorded.
fn unchecked(loaded: &Loaded<'_>, hits: &OpHits) -> Option<String> {
    // What was recorded below level op to keep a budget is in no need of a check.
    let whole = loaded.cpu_graphs.iter().filter(|g| !g.cut && !in_part(loaded, g)).count() as u64;
    let wanted = loaded.header.as_ref().is_none_or(|h| h.level == Level::Op && h.structure);
    let n = whole.saturating_sub(hits.checked_graphs);
    (wanted && n > 0).then(|| format!("{} could not be checked for missing hits", count(n, "graph")))
}

fn count(n: u64, noun: &str) -> String {
    if n == 1 { format!("1 {noun}") } else { format!("{n} {noun}s") }
}

/// A share as a percentage; a loss too small to show is never shown as zero.
pub fn percent(share: f64) -> String {
    let p = share * 100.0;
    if p > 0.0 && p < 0.01 { "< 0.01 %".into() } else { format!("{p:.2} %") }
}

fn hit_cost(loaded: &Loaded<'_>) -> (Figure, Figure) {
    let hit = match loaded.header.as_ref() {
        None => Figure::unknown("the header is lost"),
        Some(h) if h.hit_ns == 0 => Figure::unknown("not measured at the start of the recording"),
        Some(h) => Figure::known(f64::from(h.hit_ns)),
    };
    let bpf = match loaded.footer.as_ref() {
        None => Figure::unknown(NO_FOOTER),
        Some(_) if loaded.header.as_ref().is_some_and(|h| h.source == SourceKind::Perf) => {
            Figure::unknown("recorded without BPF")
        }
        Some(f) if f.bpf_runs == 0 => Figure::unknown("kernel.bpf_stats_enabled was off"),
        Some(f) => Figure::known(f.bpf_ns as f64 / f.bpf_runs as f64),
    };
    (bpf, hit)
}

/// Probe hits of the busiest thread index: its ops and its share of the barriers; on thread 0 also the entries
/// and returns of calls, graphs and splits.
/// How often events of this kind were seen.
fn seen(loaded: &Loaded<'_>, kind: &str) -> u64 {
    let mut kinds = loaded.footer.iter().flat_map(|f| &f.kinds);
    kinds.find(|k| k.kind == kind).map_or(0, |k| k.seen)
}

/// The hits of some of all ops, with their share of those at barriers.
fn hits_of(ops: u64, all: u64, barriers: u64) -> u64 {
    ops.saturating_add((u128::from(barriers) * u128::from(ops) / u128::from(all.max(1))) as u64)
}

fn busiest(loaded: &Loaded<'_>, times: &OpTimes) -> u64 {
    let mut by_ith = std::collections::HashMap::<u16, u64>::new();
    for ((ith, _), t) in &times.threads {
        *by_ith.entry(*ith).or_default() += t.slices;
    }
    let (ops, barriers) =
        (by_ith.values().fold(0u64, |sum, n| sum.saturating_add(*n)), seen(loaded, BARRIER));
    by_ith.values_mut().for_each(|hits| *hits = hits_of(*hits, ops, barriers));
    let outer = loaded.tokens.len() + loaded.graphs.len() + loaded.splits.len() + loaded.cpu_graphs.len();
    // A wait has an event for its return only; what a device enqueues, thread 0 enqueues.
    *by_ith.entry(0).or_default() += 2 * (outer as u64 + seen(loaded, "wait")) + seen(loaded, "node");
    by_ith.into_values().max().unwrap_or(0)
}

/// By CPU, without those of calls, graphs and splits, which are few.
fn probe_load(loaded: &Loaded<'_>, times: &OpTimes, share: impl Fn(u64) -> Figure) -> Vec<CpuProbes> {
    let mut all = ThreadCpus::default();
    times.threads.values().for_each(|t| all.merge(t.cpus.clone()));
    let ops = all.by_cpu.values().fold(0u64, |n, sum| n.saturating_add(sum.ops));
    let barriers = seen(loaded, BARRIER);
    let row = |(cpu, sum): (&Option<u16>, &CpuSum)| {
        let hits = hits_of(sum.ops, ops, barriers);
        Some(CpuProbes { cpu: (*cpu)?, hits, share: share(hits) })
    };
    all.by_cpu.iter().filter_map(row).collect()
}

/// Hits that are counted but produce no separate event (one of the footer's kinds).
const BARRIER: &str = "barrier";

fn slowdown(line: &Timeline, hit_ns: &Figure, hits: u64) -> Figure {
    let wall = line.calls.iter().fold(0u64, |sum, c| sum.saturating_add(c.dur));
    match hit_ns.value {
        None => Figure::unknown("the cost of a hit is unknown"),
        Some(_) if wall == 0 => Figure::unknown("no calls were recorded"),
        Some(ns) => Figure::known(hits as f64 * ns / wall as f64),
    }
}
