//! Which experts were read from the disk while the recording ran: the model did not fit, and its file is mapped.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use crate::recorded::calls::{Phase, Timeline};
use crate::recorded::load::Loaded;
use crate::sums::attribution::expert_ops::{ExpertWeights, LayerOps, expert_weights};
use crate::sums::file_reads::in_calls;
use common::order;

/// Name of the feature that says whether reads were recorded.
const FEATURE: &str = "file reads";

/// Reads of the process's mapped files. Experts, hits and bytes are those of decode, where not named otherwise.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ExpertReads {
    /// How reads were recorded, or how far.
    pub how: String,
    /// Of the whole recording, bytes: all, and those of experts.
    pub all_bytes: u64,
    pub all_expert_bytes: u64,
    /// During calls, bytes: the verdict has the same.
    pub storage_bytes: u64,
    /// Experts needed by ops, each once an op, and those of which a part was read in the op's graph.
    pub needed: u64,
    pub missed: u64,
    /// Share of those needed of which nothing was read.
    pub hit_rate: Option<f64>,
    /// The parts of these bytes: of experts that the graph needed; of other experts; and of anything else.
    pub needed_bytes: u64,
    pub ahead_bytes: u64,
    pub other_bytes: u64,
    pub layers: Vec<ReadLayer>,
}

/// A layer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReadLayer {
    pub layer: u32,
    pub needed: u64,
    pub missed: u64,
    pub needed_bytes: u64,
    pub ahead_bytes: u64,
    /// Those of which most bytes were read first.
    pub experts: Vec<ReadExpert>,
}

/// An expert of which something was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ReadExpert {
    pub expert: u16,
    /// Ops that needed it and during whose graph a part of it was read.
    pub misses: u64,
    /// Needed or not.
    pub bytes: u64,
}

/// More experts than any layer has.
const MOST: u64 = 1024;

/// Bytes read in graphs of decode, by graph, layer and expert.
pub type Missed = HashMap<(u64, u32, u16), u64>;

/// What was read. None: the recording has no reads, or no weights to which they belong.
pub fn of(
    loaded: &Loaded<'_>,
    line: &Timeline,
    layers: &[LayerOps],
    pid: u32,
) -> Option<(ExpertReads, Missed)> {
    let told = loaded.causes.features.iter().find(|f| f.name == FEATURE)?;
    let at = placed(loaded, pid);
    if at.is_empty() || loaded.causes.file_reads.is_empty() {
        return None;
    }
    let graphs = Graphs::of(loaded, layers, pid);
    let mut found = ExpertReads {
        how: told.why.to_owned(),
        all_bytes: 0,
        all_expert_bytes: 0,
        storage_bytes: 0,
        needed: 0,
        missed: 0,
        hit_rate: None,
        needed_bytes: 0,
        ahead_bytes: 0,
        other_bytes: 0,
        layers: Vec::new(),
    };
    let within = in_calls(line, |phase| phase != Phase::Prefill);
    let mut read = Missed::new();
    for r in loaded.causes.file_reads.iter().filter(|r| r.pid == pid) {
        found.all_bytes = found.all_bytes.saturating_add(r.bytes);
        let in_call = within(r);
        let graph = graphs.at(r.t).filter(|_| in_call);
        let mut of_experts: u64 = 0;
        if r.addr != 0 {
            pieces(&at, r.addr, r.bytes, &mut |layer, expert, bytes| {
                of_experts = of_experts.saturating_add(bytes);
                if let (Some(graph), Ok(expert)) = (graph, u16::try_from(expert)) {
                    let sum = read.entry((graph, layer, expert)).or_default();
                    *sum = sum.saturating_add(bytes);
                }
            });
        }
        found.all_expert_bytes = found.all_expert_bytes.saturating_add(of_experts);
        if in_call {
            found.storage_bytes = found.storage_bytes.saturating_add(r.bytes);
        }
    }
    for layer in layers {
        if let Some(of) = layer.layer.map(|number| of_layer(layer, number, &read)) {
            found.needed += of.needed;
            found.missed += of.missed;
            found.needed_bytes = found.needed_bytes.saturating_add(of.needed_bytes);
            found.ahead_bytes = found.ahead_bytes.saturating_add(of.ahead_bytes);
            found.layers.push(of);
        }
    }
    let of_experts = found.needed_bytes.saturating_add(found.ahead_bytes);
    found.other_bytes = found.storage_bytes.saturating_sub(of_experts);
    found.hit_rate = (found.needed > 0).then(|| 1.0 - found.missed as f64 / found.needed as f64);
    Some((found, read))
}

fn of_layer(layer: &LayerOps, number: u32, read: &Missed) -> ReadLayer {
    let mut of = ReadLayer {
        layer: number,
        needed: 0,
        missed: 0,
        needed_bytes: 0,
        ahead_bytes: 0,
        experts: Vec::new(),
    };
    let mut experts: BTreeMap<u16, (u64, u64)> = BTreeMap::new();
    for (&(_, _, expert), &bytes) in read.iter().filter(|(place, _)| place.1 == number) {
        let (_, sum) = experts.entry(expert).or_default();
        *sum = sum.saturating_add(bytes);
        of.ahead_bytes = of.ahead_bytes.saturating_add(bytes);
    }
    for op in layer.ops.iter().filter(|op| op.phase != Phase::Prefill) {
        for &expert in layer.needed(op) {
            of.needed += 1;
            let Some(bytes) = read.get(&(op.graph, number, expert)) else { continue };
            of.missed += 1;
            of.needed_bytes = of.needed_bytes.saturating_add(*bytes);
            experts.entry(expert).or_default().0 += 1;
        }
    }
    of.ahead_bytes = of.ahead_bytes.saturating_sub(of.needed_bytes);
    of.experts =
        experts.into_iter().map(|(expert, (misses, bytes))| ReadExpert { expert, misses, bytes }).collect();
    order::by_key(&mut of.experts, |e| (u64::MAX - e.bytes, e.expert.into()));
    of
}

/// Where the weights of experts are in the process's memory, by address.
fn placed(loaded: &Loaded<'_>, pid: u32) -> Vec<ExpertWeights> {
    let data: HashMap<u64, u64> = (loaded.causes.tensor_data.iter())
        .filter_map(|d| Some((loaded.tensors.get(&d.tensor).filter(|t| t.pid == pid)?.addr, d.addr)))
        .collect();
    let mut at: Vec<ExpertWeights> = (expert_weights(loaded, pid).into_iter())
        .filter(|w| w.bytes > 0)
        // A damaged file may name any number of experts: each is looked at.
        .filter_map(|w| Some(ExpertWeights { addr: *data.get(&w.addr)?, experts: w.experts.min(MOST), ..w }))
        .collect();
    order::by_key(&mut at, |w| (w.addr, 0));
    at
}

/// The experts of which a part is in these bytes: layer, expert, and how many.
fn pieces(at: &[ExpertWeights], addr: u64, bytes: u64, piece: &mut dyn FnMut(u32, u64, u64)) {
    let end = addr.saturating_add(bytes);
    let ends = |w: &ExpertWeights| w.addr.saturating_add(w.bytes.saturating_mul(w.experts));
    for w in at.iter().skip(at.partition_point(|w| ends(w) <= addr)).take_while(|w| w.addr < end) {
        let (mut from, until) = (addr.max(w.addr), end.min(ends(w)));
        while from < until {
            let expert = (from - w.addr) / w.bytes;
            let next = w.addr.saturating_add(w.bytes.saturating_mul(expert.saturating_add(1))).min(until);
            piece(w.layer, expert, next - from);
            from = next;
        }
    }
}

/// The graphs of decode in which experts were needed.
struct Graphs {
    /// Ends and numbers of all graphs of the process, in the order of time; true: of decode.
    ends: Vec<(i64, u64, bool)>,
}

impl Graphs {
    fn of(loaded: &Loaded<'_>, layers: &[LayerOps], pid: u32) -> Graphs {
        let ops = layers.iter().flat_map(|l| &l.ops).filter(|op| op.phase != Phase::Prefill);
        let decode: std::collections::HashSet<u64> = ops.map(|op| op.graph).collect();
        let of = loaded.cpu_graphs.iter().filter(|g| g.pid == pid);
        let mut ends: Vec<(i64, u64, bool)> =
            of.map(|g| (g.t.saturating_add_unsigned(g.dur), g.seq, decode.contains(&g.seq))).collect();
        order::by(&mut ends, |a, b| a.0.cmp(&b.0));
        Graphs { ends }
    }

    /// The graph of decode that ran at a time, or that came next.
    fn at(&self, t: i64) -> Option<u64> {
        let (_, seq, decode) = self.ends.get(self.ends.partition_point(|end| end.0 < t))?;
        decode.then_some(*seq)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_are_cut_at_the_ends_of_experts() {
        let w = |addr, layer| ExpertWeights { addr, layer, bytes: 10, experts: 4 };
        let at = [w(100, 0), w(140, 1)];
        let of = |addr, bytes| {
            let mut found = Vec::new();
            pieces(&at, addr, bytes, &mut |layer, expert, bytes| found.push((layer, expert, bytes)));
            found
        };
        assert_eq!(of(90, 15), [(0, 0, 5)]);
        assert_eq!(of(125, 10), [(0, 2, 5), (0, 3, 5)]);
        assert_eq!(of(135, 10), [(0, 3, 5), (1, 0, 5)]);
        assert_eq!(of(175, 100), [(1, 3, 5)]);
        assert_eq!((of(180, 10), of(0, 100)), (vec![], vec![]));
        assert_eq!(of(u64::MAX - 1, u64::MAX), vec![]);
    }
}
