//! Graphs of a program that has no calls of llama.cpp, by kind: of whisper.cpp those of its convolution, encoder and
//! decoder. Graphs of one kind have as many nodes, and their result has the same name.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use crate::recorded::call::{Call, Latency, latency};
use crate::recorded::calls::{CallSource, RunWork, Timeline};
use crate::recorded::labels::share;
use crate::recorded::load::Loaded;
use common::order;

/// Kinds listed; those that took the least time are left out.
const MOST: usize = 64;

/// Graphs of one kind.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GraphKind {
    /// Name of the last node, as the program gave it; null if it gave none, or if the structure was not recorded.
    pub result: Option<String>,
    pub nodes: u32,
    /// How many ran to their end, and their time together, ns.
    pub graphs: u64,
    pub total_ns: u64,
    /// Of the time of all graphs, 0 to 1.
    pub share: f64,
    pub latency: Option<Latency>,
}

/// The kinds of graphs, most time first; none where calls were recorded.
pub fn graph_kinds(loaded: &Loaded<'_>, line: &Timeline) -> Vec<GraphKind> {
    if line.work != RunWork::Graphs {
        return Vec::new();
    }
    let results = results(loaded, line);
    let nodes: HashMap<u64, u32> = match line.source {
        CallSource::CpuGraph => loaded.cpu_graphs.iter().map(|g| (g.seq, g.n_nodes)).collect(),
        _ => loaded.graphs.iter().map(|g| (g.seq, g.n_nodes)).collect(),
    };
    let mut kinds: BTreeMap<(Option<&str>, u32), Vec<u64>> = BTreeMap::new();
    for (call, result) in line.calls.iter().zip(results).filter(|(call, _)| !call.cut) {
        let Call { seq, dur, .. } = call;
        kinds.entry((result, nodes.get(seq).copied().unwrap_or(0))).or_default().push(*dur);
    }
    let sum = |times: &[u64]| times.iter().fold(0u64, |sum, ns| sum.saturating_add(*ns));
    let all = kinds.values().map(|times| sum(times)).fold(0, u64::saturating_add);
    let kind = |((result, nodes), times): ((Option<&str>, u32), Vec<u64>)| GraphKind {
        result: result.map(str::to_owned),
        nodes,
        graphs: times.len() as u64,
        total_ns: sum(&times),
        share: share(sum(&times), all),
        latency: latency(times),
    };
    let mut out: Vec<GraphKind> = kinds.into_iter().map(kind).collect();
    order::by_key(&mut out, |kind| (!kind.total_ns, 0));
    out.truncate(MOST);
    out
}

/// Name of the result of each call; `None` if it has none but GGML's.
fn results<'l>(loaded: &'l Loaded<'_>, line: &Timeline) -> Vec<Option<&'l str>> {
    // A graph in several parts: the last one has the result.
    let mut last: Vec<Option<(i64, u32)>> = vec![None; line.calls.len()];
    for (graph, call) in loaded.cpu_graphs.iter().zip(&line.cpu_call) {
        if let (Some(slot), Some(plan)) = (call.and_then(|c| last.get_mut(c)), graph.plan) {
            *slot = Some((graph.t, plan)).max(*slot);
        }
    }
    let name = |(_, plan): (i64, u32)| {
        let (first, second) = loaded.plans.get(&plan)?.hits.last()?;
        let name = &*loaded.tensors.get(&second.unwrap_or(*first)).filter(|t| t.known)?.name;
        let given = name.strip_prefix("node_").or(name.strip_prefix("leaf_"));
        (!name.is_empty() && given.is_none_or(|n| n.parse::<u64>().is_err())).then_some(name)
    };
    last.into_iter().map(|plan| plan.and_then(name)).collect()
}
