//! The runner's own record of when each call, graph and op began and ended, for comparison with a tracer's.
//!
//! The clock is CLOCK_MONOTONIC, which tracers use as well. Where it is read determines what is compared: right
//! before a call, so that a probe on the function's first instruction comes next; and as the last step inside a
//! function (for an op: before the barrier), so that a probe on the return, or on the barrier's first
//! instruction, comes next. A probe's entry into the kernel thus follows the reading at both ends, and a duration
//! contains only the difference of two such entries.
//!
//! All memory is allocated beforehand, except for the names of the nodes, which are copied when a graph is new.
//! Entries that do not fit are counted. docs/GROUND_TRUTH.md describes the file.

use std::collections::TryReserveError;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use super::abi::{GgmlGraph, GgmlTensor, accessors};

/// First line of the file.
pub const MAGIC: &str = "# ggml-runner ground truth 1";

/// CLOCK_MONOTONIC in ns. By the C library, which knows the vDSO; rustix would parse it again.
#[cfg(unix)]
#[inline]
pub fn now() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock always exists, and the pointer for the result is valid.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut t) };
    (t.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(t.tv_nsec as u64)
}

/// An arbitrary clock in ns.
#[cfg(not(unix))]
pub fn now() -> u64 {
    static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    START.get_or_init(std::time::Instant::now).elapsed().as_nanos() as u64
}

/// Median cost of reading the clock, ns.
fn reading_cost() -> u64 {
    const READINGS: u64 = 64;
    let mut laps: [u64; 33] = std::array::from_fn(|_| {
        let start = now();
        (1..READINGS).for_each(|_| {
            std::hint::black_box(now());
        });
        now().saturating_sub(start) / READINGS
    });
    laps.sort_unstable();
    laps[laps.len() / 2]
}

#[cfg(target_os = "linux")]
fn thread_id() -> u32 {
    rustix::thread::gettid().as_raw_pid().cast_unsigned()
}

#[cfg(not(target_os = "linux"))]
fn thread_id() -> u32 {
    0
}

/// What a span of the main thread covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TruthLevel {
    /// A call of `llama_decode`; `a` is the number of tokens.
    Call,
    /// A graph passed to the scheduler; `a` is the number of nodes.
    Graph,
    /// A part of a graph run on the threads; `a` is the number of threads, `b` the graph's uid.
    CpuGraph,
}

const LEVELS: usize = 3;

#[derive(Debug, Clone, Copy)]
struct TracedSpan {
    level: TruthLevel,
    /// A call made before the measurement, to warm up memory and caches.
    warm_up: bool,
    /// Index of the enclosing open span of the level above, or `NONE`.
    parent: u32,
    tid: u32,
    a: u32,
    b: u64,
    start: u64,
    end: u64,
}

const NONE: u32 = u32::MAX;
/// Words before the ids of a MUL_MAT_ID.
pub const IDS_HEAD: usize = 4;

#[derive(Debug, Clone, Copy, Default)]
struct TruthOpTime {
    /// Index of the CPU graph among the spans.
    graph: u32,
    node: u32,
    start: u64,
    end: u64,
}

struct NodeName {
    address: usize,
    op: &'static str,
    name: String,
}

#[derive(Default)]
struct Spans {
    list: Vec<TracedSpan>,
    open: [Option<usize>; LEVELS],
    /// Nodes of each graph, by uid.
    tables: Vec<(u64, Vec<NodeName>)>,
    dropped: u64,
}

#[derive(Default)]
struct TruthThread {
    tid: u32,
    ops: Vec<TruthOpTime>,
    /// For each MUL_MAT_ID that it ran: index of the CPU graph, node, experts per token, tokens; then the ids.
    chosen: Vec<u32>,
    dropped: u64,
}

/// The record. Each thread has its own lane; the locks are never contended.
pub struct Truth {
    spans: Mutex<Spans>,
    lanes: Box<[Mutex<TruthThread>]>,
    /// Index of the current CPU graph among the spans.
    graph: AtomicU32,
    /// For each level, the end time of the span that ended last.
    ends: [AtomicU64; LEVELS],
    warm_up: AtomicBool,
    /// Cost of reading the clock, ns.
    pub reading_ns: u64,
}

/// Nobody panics while holding one of the locks, and a record of half a run is still a record.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Makes a call that is recorded as a span; the callee records its [end](Truth::end) if there is a record. The
/// clock is read right before the call.
#[inline(always)]
pub fn span<R>(truth: Option<&Truth>, level: TruthLevel, a: u32, b: u64, call: impl FnOnce() -> R) -> R {
    let Some(truth) = truth else { return call() };
    let place = truth.open(level, a, b);
    let start = now();
    let result = call();
    truth.close(level, place, start);
    result
}

impl Truth {
    /// Bytes that a record with this capacity takes, at most `usize::MAX`.
    pub fn bytes(threads: usize, spans: usize, ops: usize, chosen: usize) -> usize {
        let lanes = threads.saturating_mul(ops).saturating_mul(size_of::<TruthOpTime>());
        let spans = spans.saturating_mul(size_of::<TracedSpan>());
        lanes.saturating_add(spans).saturating_add(chosen.saturating_mul(size_of::<u32>()))
    }

    /// Room for `spans` calls and graphs together, `ops` ops per thread, and `chosen` expert ids ([`IDS_HEAD`]
    /// more for each op that has ids). Fails if there is not enough memory.
    pub fn new(threads: usize, spans: usize, ops: usize, chosen: usize) -> Result<Truth, TryReserveError> {
        let mut list = Vec::new();
        list.try_reserve_exact(spans)?;
        let lane = |ith| -> Result<Mutex<TruthThread>, TryReserveError> {
            let mut lane = TruthThread::default();
            let chosen = if ith == 0 { chosen } else { 0 };
            lane.chosen.try_reserve_exact(chosen)?;
            lane.chosen.resize(chosen, 0);
            lane.chosen.clear();
            lane.ops.try_reserve_exact(ops)?;
            // Touched now, so that no page fault happens during an op.
            lane.ops.resize(ops, TruthOpTime::default());
            lane.ops.clear();
            Ok(Mutex::new(lane))
        };
        Ok(Truth {
            spans: Mutex::new(Spans { list, ..Spans::default() }),
            lanes: (0..threads).map(lane).collect::<Result<_, _>>()?,
            graph: AtomicU32::new(NONE),
            ends: Default::default(),
            warm_up: AtomicBool::new(false),
            reading_ns: reading_cost(),
        })
    }

    /// Sets whether calls from now on are part of the warm-up.
    pub fn warm_up(&self, yes: bool) {
        self.warm_up.store(yes, Ordering::Relaxed);
    }

    /// Reserves a span of the main thread, inside those that are open.
    fn open(&self, level: TruthLevel, a: u32, b: u64) -> Option<usize> {
        let mut spans = lock(&self.spans);
        let place = spans.list.len();
        if place == spans.list.capacity() {
            spans.dropped += 1;
            return None;
        }
        let above = (level as usize).checked_sub(1).and_then(|l| spans.open[l]);
        let parent = above.and_then(|p| u32::try_from(p).ok()).unwrap_or(NONE);
        let warm_up = self.warm_up.load(Ordering::Relaxed);
        spans.list.push(TracedSpan { level, warm_up, parent, tid: thread_id(), a, b, start: 0, end: 0 });
        spans.open[level as usize] = Some(place);
        Some(place)
    }

    fn close(&self, level: TruthLevel, place: Option<usize>, start: u64) {
        let end = self.ends[level as usize].swap(0, Ordering::Relaxed);
        let mut spans = lock(&self.spans);
        spans.open[level as usize] = None;
        if let Some(span) = place.and_then(|p| spans.list.get_mut(p)) {
            (span.start, span.end) = (start, end);
        }
    }

    /// Ends the span of a level; call it inside the span as the last step.
    #[inline(always)]
    pub fn end(&self, level: TruthLevel) {
        self.ends[level as usize].store(now(), Ordering::Relaxed);
    }

    /// Prepares for running a graph: copies its nodes' names if it is new, and assigns the following ops to it.
    ///
    /// # Safety
    /// The graph's nodes must be live tensors.
    pub unsafe fn graph(&self, graph: &GgmlGraph) {
        let mut spans = lock(&self.spans);
        // Latest first, as it is nearly always that one.
        if !spans.tables.iter().rev().any(|(uid, _)| *uid == graph.uid) {
            // SAFETY: guaranteed by the caller.
            let nodes = unsafe { graph.nodes() };
            let table = nodes.iter().map(|n| NodeName {
                address: (&raw const **n).addr(),
                op: accessors::description(n),
                name: n.name().replace(['\t', '\n', '\r'], " "),
            });
            let table = (graph.uid, table.collect());
            spans.tables.push(table);
        }
        let room = spans.list.len() < spans.list.capacity();
        let place = u32::try_from(spans.list.len()).ok().filter(|_| room).unwrap_or(NONE);
        self.graph.store(place, Ordering::Relaxed);
    }

    /// Records that thread `ith` ran node `node` of the current graph.
    #[inline]
    pub fn op(&self, ith: usize, node: usize, start: u64, end: u64) {
        let Some(lane) = self.lanes.get(ith) else { return };
        let mut lane = lock(lane);
        let graph = self.graph.load(Ordering::Relaxed);
        // An op of a graph without a record could not be told apart from those of other graphs.
        if graph == NONE || lane.ops.len() == lane.ops.capacity() {
            lane.dropped += 1;
            return;
        }
        if lane.tid == 0 {
            lane.tid = thread_id();
        }
        lane.ops.push(TruthOpTime { graph, node: u32::try_from(node).unwrap_or(NONE), start, end });
    }

    /// Records that thread 0 ran node `node` of the current graph, a MUL_MAT_ID with these ids.
    ///
    /// # Safety
    /// The tensor must be live, with a row of 32-bit ids for each token that nobody writes meanwhile.
    pub unsafe fn experts(&self, node: usize, ids: &GgmlTensor) {
        let Some(lane) = self.lanes.first() else { return };
        let (mut lane, graph) = (lock(lane), self.graph.load(Ordering::Relaxed));
        let [used, tokens] = [ids.ne[0], ids.ne[1]].map(|n| usize::try_from(n).unwrap_or(0));
        if graph == NONE || lane.chosen.capacity() - lane.chosen.len() < IDS_HEAD + used * tokens {
            lane.dropped += 1;
            return;
        }
        let word = |n: usize| u32::try_from(n).unwrap_or(NONE);
        lane.chosen.extend([graph, word(node), word(used), word(tokens)]);
        for token in 0..tokens {
            // SAFETY: guaranteed by the caller.
            let row = unsafe { ids.data.cast::<u8>().add(token * ids.nb[1]).cast::<u32>() };
            // SAFETY: as above.
            lane.chosen.extend_from_slice(unsafe { std::slice::from_raw_parts(row, used) });
        }
    }

    /// Writes the record.
    pub fn write(&self, out: impl Write) -> io::Result<()> {
        let mut out = io::BufWriter::new(out);
        let spans = lock(&self.spans);
        let lanes: Vec<_> = self.lanes.iter().map(lock).collect();
        let dropped = spans.dropped + lanes.iter().map(|l| l.dropped).sum::<u64>();
        writeln!(out, "{MAGIC}")?;
        writeln!(out, "# CLOCK_MONOTONIC in ns; docs/GROUND_TRUTH.md describes the lines")?;
        writeln!(out, "process\t{}", std::process::id())?;
        writeln!(out, "reading\t{}", self.reading_ns)?;
        writeln!(out, "dropped\t{dropped}")?;
        for (table, (_, nodes)) in spans.tables.iter().enumerate() {
            for (i, n) in nodes.iter().enumerate() {
                writeln!(out, "node\t{table}\t{i}\t{:x}\t{}\t{}", n.address, n.op, n.name)?;
            }
        }
        for (i, s) in spans.list.iter().enumerate().filter(|(_, s)| s.end != 0) {
            let TracedSpan { warm_up, parent, tid, a, b, start, end, .. } = *s;
            let parent = if parent == NONE { "-".to_owned() } else { parent.to_string() };
            match s.level {
                TruthLevel::Call => {
                    let kind = if warm_up { "warm-up" } else { "call" };
                    writeln!(out, "{kind}\t{i}\t{tid}\t{a}\t{start}\t{end}")?;
                }
                TruthLevel::Graph => writeln!(out, "graph\t{i}\t{parent}\t{tid}\t{a}\t{start}\t{end}")?,
                TruthLevel::CpuGraph => {
                    let table = spans.tables.iter().position(|t| t.0 == b).unwrap_or(0);
                    writeln!(out, "cpu-graph\t{i}\t{parent}\t{tid}\t{a}\t{table}\t{start}\t{end}")?;
                }
            }
        }
        for (ith, lane) in lanes.iter().enumerate() {
            for o in lane.ops.iter().filter(|o| o.graph != NONE) {
                let TruthOpTime { graph, node, start, end } = *o;
                writeln!(out, "op\t{graph}\t{ith}\t{}\t{node}\t{start}\t{end}", lane.tid)?;
            }
        }
        for lane in lanes {
            write_chosen(&lane.chosen, &mut out)?;
        }
        out.flush()
    }
}

fn write_chosen(mut chosen: &[u32], out: &mut impl Write) -> io::Result<()> {
    while let Some((&[graph, node, used, tokens], rest)) = chosen.split_first_chunk::<IDS_HEAD>() {
        let (ids, rest) = rest.split_at_checked((used * tokens) as usize).unwrap_or_default();
        for (token, row) in ids.chunks((used as usize).max(1)).enumerate() {
            let row: Vec<String> = row.iter().map(|id| id.cast_signed().to_string()).collect();
            writeln!(out, "experts\t{graph}\t{node}\t{token}\t{}", row.join(","))?;
        }
        chosen = rest;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_finds_no_room_is_counted() {
        let truth = Truth::new(1, 1, 2, 0).expect("a little memory");
        span(Some(&truth), TruthLevel::Call, 4, 0, || {
            span(Some(&truth), TruthLevel::Graph, 1, 0, || truth.end(TruthLevel::Graph));
            truth.end(TruthLevel::Call);
        });
        (0..3).for_each(|i| truth.op(0, i, 1, 2));
        let mut text = Vec::new();
        truth.write(&mut text).expect("memory takes it");
        let text = String::from_utf8(text).expect("text");
        assert!(text.starts_with(MAGIC));
        // The graph, and its ops, which could not be told apart from those of other graphs.
        assert!(text.contains("\ndropped\t4\n"), "{text}");
        assert_eq!(text.lines().filter(|l| l.starts_with("call\t0\t")).count(), 1, "{text}");
        assert!(!text.contains("\ngraph"), "{text}");
    }
}
