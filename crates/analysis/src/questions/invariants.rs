//! Checks invariants that hold in every recording: calls have graphs, graphs have work, splits
//! on the CPU have ops, and nothing begins before its parent or ends after it. docs/TRUST.md lists them.

use std::collections::{HashMap, HashSet};

use serde::Serialize;

use crate::recorded::calls::{CallSource, Timeline};
use crate::recorded::load::Loaded;
use pfi::record::Level;

/// How often each invariant was checked, and how often it was violated. Only completely recorded items are
/// checked.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Invariants {
    pub calls: u64,
    pub calls_without_graphs: u64,
    pub graphs: u64,
    /// Graphs without any known split or CPU graph.
    pub graphs_without_work: u64,
    /// Splits on the CPU backend.
    pub cpu_splits: u64,
    pub cpu_splits_without_ops: u64,
    /// Graphs, splits and CPU graphs that begin before their parent, or end after it.
    pub misplaced: u64,
    /// Calls that returned while a device was still computing, and whose end was not seen.
    pub calls_unseen: u64,
    /// Calls whose batch was read completely, and those of them with other numbers of tokens than their graphs, or than the
    /// call itself says.
    pub batches: u64,
    pub batches_apart: u64,
    /// Why the first three pairs were not checked, if they were not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unchecked: Option<String>,
}

/// Name of the backend whose graphs have ops (src/ggml/backend_guid.rs).
const CPU: &str = "CPU";

/// Checks all invariants.
pub fn invariants(loaded: &Loaded<'_>, line: &Timeline) -> Invariants {
    let calls_unseen = line.calls.iter().filter(|c| c.unseen).count() as u64;
    let mut found = Invariants { misplaced: misplaced(loaded, line), calls_unseen, ..Invariants::default() };
    batches(loaded, line, &mut found);
    let level = loaded.header.as_ref().map(|h| h.level);
    found.unchecked = match level {
        None => Some("the header is lost".into()),
        Some(Level::Token) => Some("only calls were recorded".into()),
        _ if !loaded.causes.levels.is_empty() => Some("the recording level changed during the run".into()),
        _ => None,
    };
    if found.unchecked.is_none() {
        calls(loaded, line, &mut found);
        graphs(loaded, &mut found);
        splits(loaded, &mut found);
    }
    found
}

fn calls(loaded: &Loaded<'_>, line: &Timeline, found: &mut Invariants) {
    if line.source != CallSource::Token {
        return;
    }
    let graphs = loaded.graphs.iter().map(|g| (g.pid, g.t));
    let begun = BeginTimes::new(loaded, graphs.chain(loaded.cpu_graphs.iter().map(|g| (g.pid, g.t))));
    for call in line.calls.iter().filter(|c| !c.cut && begun.whole(c.pid, c.start)) {
        found.calls += 1;
        found.calls_without_graphs += u64::from(call.graphs == 0);
    }
}

fn batches(loaded: &Loaded<'_>, line: &Timeline, found: &mut Invariants) {
    let Some(known) = &line.sequences else { return };
    // Of each call: tokens of its graphs, if all are known.
    let mut graphs: HashMap<u64, Option<u64>> = HashMap::new();
    for g in loaded.graphs.iter().filter(|g| !g.cut) {
        let Some(call) = g.token else { continue };
        let sum = graphs.entry(call).or_insert(Some(0));
        *sum = sum.filter(|_| g.ubatch > 0).and_then(|n| n.checked_add(g.ubatch.into()));
    }
    let said: HashMap<u64, u32> = loaded.tokens.iter().filter_map(|t| Some((t.seq, t.n_tokens?))).collect();
    // Of a call that was in progress when the file began, some parts are not in it.
    let mut first: HashMap<u32, i64> = HashMap::new();
    for u in &loaded.causes.ubatches {
        first.entry(u.pid).and_modify(|t| *t = (*t).min(u.t)).or_insert(u.t);
    }
    let begun = |pid: u32, t: i64| first.get(&pid).is_some_and(|first| *first < t);
    let whole = line.calls.iter().zip(&known.works).filter(|(c, _)| !c.cut && begun(c.pid, c.start));
    for (call, work) in whole.filter_map(|(c, w)| Some((c, w.as_ref().filter(|w| w.unread == 0)?))) {
        let own = work.chunks.iter().fold(0u64, |n, c| n.saturating_add(c.0.tokens));
        let of_graphs = graphs.get(&call.seq).copied().flatten();
        let of_call = said.get(&call.seq).map(|n| u64::from(*n));
        found.batches += 1;
        found.batches_apart += u64::from([of_graphs, of_call].into_iter().flatten().any(|n| n != own));
    }
}

fn graphs(loaded: &Loaded<'_>, found: &mut Invariants) {
    let splits = loaded.splits.iter().map(|s| (s.pid, s.t));
    let begun = BeginTimes::new(loaded, splits.chain(loaded.cpu_graphs.iter().map(|g| (g.pid, g.t))));
    let of_split = loaded.splits.iter().filter_map(|s| s.graph);
    let with_work: HashSet<u64> = of_split.chain(loaded.cpu_graphs.iter().filter_map(|g| g.graph)).collect();
    for g in loaded.graphs.iter().filter(|g| !g.cut && g.n_nodes > 0 && begun.whole(g.pid, g.t)) {
        found.graphs += 1;
        found.graphs_without_work += u64::from(!with_work.contains(&g.seq));
    }
}

fn splits(loaded: &Loaded<'_>, found: &mut Invariants) {
    let begun = BeginTimes::new(loaded, loaded.cpu_graphs.iter().map(|g| (g.pid, g.t)));
    let with_ops: HashSet<u64> = loaded.cpu_graphs.iter().filter_map(|g| g.split).collect();
    let on_cpu = |backend: u32| loaded.backends.get(&backend).is_some_and(|b| b.name == CPU);
    let whole = loaded.splits.iter().filter(|s| !s.cut && on_cpu(s.backend) && begun.whole(s.pid, s.t));
    for s in whole {
        found.cpu_splits += 1;
        found.cpu_splits_without_ops += u64::from(!with_ops.contains(&s.seq));
    }
}

/// If a file continues a recording, the parts of what began earlier are in the previous file.
struct BeginTimes {
    /// When the file began, CLOCK_MONOTONIC ns.
    file: i64,
    /// When the first part of each process began.
    first: HashMap<u32, i64>,
}

impl BeginTimes {
    fn new(loaded: &Loaded<'_>, parts: impl Iterator<Item = (u32, i64)>) -> BeginTimes {
        let file = loaded.header.as_ref().map_or(0, |h| i64::try_from(h.mono_ns).unwrap_or(i64::MAX));
        let mut first = HashMap::new();
        for (pid, t) in parts {
            first.entry(pid).and_modify(|old: &mut i64| *old = (*old).min(t)).or_insert(t);
        }
        BeginTimes { file, first }
    }

    /// Whether the parts of an item that began at `t` would be in this file.
    fn whole(&self, pid: u32, t: i64) -> bool {
        t >= self.file || self.first.get(&pid).is_some_and(|first| *first <= t)
    }
}

/// First and last time, ns.
type TimeSpan = (i64, i64);

fn span(t: i64, dur: u64) -> TimeSpan {
    (t, t.saturating_add_unsigned(dur))
}

fn misplaced(loaded: &Loaded<'_>, line: &Timeline) -> u64 {
    let of_call: HashMap<u64, TimeSpan> = match line.source {
        CallSource::Token => line.calls.iter().map(|c| (c.seq, span(c.start, c.dur))).collect(),
        _ => HashMap::new(),
    };
    let of_graph: HashMap<u64, TimeSpan> = loaded.graphs.iter().map(|g| (g.seq, span(g.t, g.dur))).collect();
    let of_split: HashMap<u64, TimeSpan> = loaded.splits.iter().map(|s| (s.seq, span(s.t, s.dur))).collect();
    let beyond = |outer: &HashMap<u64, TimeSpan>, seq: Option<u64>, (from, to): TimeSpan| {
        let outer = seq.and_then(|seq| outer.get(&seq));
        u64::from(outer.is_some_and(|(begin, end)| from < *begin || to > *end))
    };
    // While probes are added or removed, an end may not be seen.
    let seen = |cut: bool| loaded.causes.levels.is_empty() || !cut;
    let graphs = loaded.graphs.iter().filter(|g| seen(g.cut));
    let graphs = graphs.map(|g| beyond(&of_call, g.token, span(g.t, g.dur)));
    let splits = loaded.splits.iter().filter(|s| seen(s.cut));
    let splits = splits.map(|s| beyond(&of_graph, s.graph, span(s.t, s.dur)));
    let ops = loaded.cpu_graphs.iter().filter(|g| seen(g.cut)).map(|g| {
        let own = span(g.t, g.dur);
        beyond(&of_graph, g.graph, own).max(beyond(&of_split, g.split, own))
    });
    graphs.chain(splits).chain(ops).sum()
}
