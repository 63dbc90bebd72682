//! Time by model, phase, layer and op: the input of flame graphs. Times are those of `report`: thread 0's op times,
//! and as separate leaves its barrier waits and the rest of the graphs' durations, so that a phase's leaves add up to
//! the durations of its CPU graphs.

use std::collections::{BTreeMap, HashMap};

use crate::recorded::calls::{Phase, Timeline};
use crate::recorded::describe::NO_STRUCTURE;
use crate::recorded::idents::{Idents, OpKey};
use crate::recorded::load::Loaded;
use crate::recorded::runs::{RunRow, Runs};
use crate::streams::lanes::{Select, process_of};
use crate::sums::ops::{Edges, in_part};
use crate::sums::tables::{GAPS_ROW, WAIT_ROW};

use common::order;
use pfi::record::{CpuGraph, Slices};
use pfi::slice_iter;

/// One leaf of the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StackRow {
    /// Index in [`Stacks::models`].
    pub model: usize,
    pub phase: Phase,
    /// Index in GGML's pool.
    pub thread: u16,
    /// Layer and op; of time outside ops, `(gaps)` alone.
    pub frames: Vec<String>,
    /// Slices of the op, waits, or graphs of the gaps.
    pub calls: u64,
    /// ns.
    pub ns: u64,
}

/// All leaves, and what they belong to.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Stacks {
    /// The model file by the command line, else the program; with process and context if there are several.
    pub models: Vec<String>,
    /// By model, thread and phase; then in the order of the ops in their graphs.
    pub rows: Vec<StackRow>,
    /// Start of the first graph and end of the last one, CLOCK_MONOTONIC, ns.
    pub span: Option<(i64, i64)>,
    /// Op slices that were summed.
    pub slices: u64,
}

/// Executions and time, ns.
#[derive(Debug, Default, Clone, Copy)]
struct Sum {
    calls: u64,
    ns: u64,
}

impl Sum {
    fn add(&mut self, ns: u64) {
        self.calls += 1;
        self.ns = self.ns.saturating_add(ns);
    }
}

/// Sums of one thread in one phase of a run.
#[derive(Default)]
struct ThreadSums {
    /// Ops and the waits after them, by ident; positions outside the plan come last.
    ops: BTreeMap<usize, (Sum, Sum)>,
    graphs: Sum,
    /// The last graph added to `graphs`.
    last: Option<u64>,
}

struct Pass<'l> {
    idents: &'l Idents,
    sums: HashMap<(usize, u16, Phase), ThreadSums>,
    slices: u64,
    span: Option<(i64, i64)>,
}

/// Sums the op slices of thread 0, or of all threads. Only complete graphs that begin in `select` are included. Needs
/// the runs in the order of [`crate::sums::ops::sort_runs`].
pub fn stacks(
    loaded: &Loaded<'_>,
    line: &Timeline,
    runs: &Runs,
    idents: &Idents,
    select: &Select,
    all_threads: bool,
) -> Stacks {
    let mut pass = Pass { idents, sums: HashMap::new(), slices: 0, span: None };
    let mut index: HashMap<u64, (&CpuGraph, usize, Phase)> = HashMap::new();
    for ((g, phase), run) in loaded.cpu_graphs.iter().zip(&line.cpu_phase).zip(&runs.of_cpu) {
        index.insert(g.seq, (g, *run, *phase));
        if select.has(g.pid, g.t) && !in_part(loaded, g) {
            pass.graph((*run, 0, *phase), g.seq, g.t, g.dur);
        }
    }
    for unit in loaded.runs.chunk_by(|a, b| (a.graph, a.plan) == (b.graph, b.plan)) {
        let Some(first) = unit.first() else { continue };
        match index.get(&first.graph) {
            Some((g, run, phase)) if select.has(g.pid, g.t) && !in_part(loaded, g) => {
                pass.unit(unit, Some(g), *run, *phase, all_threads);
            }
            Some(_) => {}
            // The graph's own record was lost.
            None => {
                let run = unrecorded(loaded, first, runs);
                let pid = runs.list.get(run).map(|r| r.pid);
                if pid.map_or(select.pid.is_none(), |pid| select.has(pid, first.t)) {
                    pass.unit(unit, None, run, Phase::Unknown, all_threads);
                }
            }
        }
    }
    pass.rows(&runs.list)
}

/// The run of a graph without its own record, by its process; past the end of the list if unknown.
fn unrecorded(loaded: &Loaded<'_>, run: &Slices<'_>, runs: &Runs) -> usize {
    let pid = process_of(loaded, run);
    let mut of = (0..).zip(&runs.list).filter(|(_, r)| pid.is_none_or(|pid| pid == r.pid));
    match (of.next(), of.next()) {
        (Some((only, _)), None) => only,
        _ => runs.list.len(),
    }
}

impl Pass<'_> {
    /// Adds a graph's duration, once per thread.
    fn graph(&mut self, key: (usize, u16, Phase), seq: u64, t: i64, dur: u64) {
        let to = t.saturating_add_unsigned(dur);
        self.span = Some(self.span.map_or((t, to), |(a, b)| (a.min(t), b.max(to))));
        let sums = self.sums.entry(key).or_default();
        if sums.last != Some(seq) {
            sums.graphs.add(dur);
            sums.last = Some(seq);
        }
    }

    /// Adds the slices of one graph and plan.
    fn unit(
        &mut self,
        runs: &[Slices<'_>],
        graph: Option<&CpuGraph>,
        of: usize,
        phase: Phase,
        all_threads: bool,
    ) {
        let positions = self.idents.of_plan(runs.first().map_or(0, |r| r.plan));
        for thread in runs.chunk_by(|a, b| a.ith == b.ith) {
            let Some(first) = thread.first().filter(|r| all_threads || r.ith == 0) else { continue };
            let key = (of, first.ith, phase);
            let (mut span, mut n) = (None::<(i64, i64)>, 0);
            let sums = self.sums.entry(key).or_default();
            for (i, run) in thread.iter().enumerate() {
                let edges = Edges::new(run, thread.get(i + 1), graph);
                for (position, slice) in (run.first as usize..).zip(slice_iter(run)) {
                    let (time, wait) = edges.times(&slice);
                    let ident = positions.get(position).copied().unwrap_or(usize::MAX);
                    let (op, waits) = sums.ops.entry(ident).or_default();
                    op.add(time.unwrap_or(0));
                    wait.into_iter().for_each(|wait| waits.add(wait));
                    let to = slice.start.saturating_add_unsigned(time.unwrap_or(0));
                    span = Some(span.map_or((slice.start, to), |(a, b)| (a.min(slice.start), b.max(to))));
                    n += 1;
                }
            }
            self.slices += n;
            match (graph, span) {
                // Thread 0 has all graphs, also those without slices.
                (Some(g), _) if first.ith > 0 => self.graph(key, g.seq, g.t, g.dur),
                (None, Some((from, to))) => self.graph(key, first.graph, from, from.abs_diff(to)),
                _ => {}
            }
        }
    }

    fn rows(self, list: &[RunRow]) -> Stacks {
        let mut out = Stacks { models: models(list), span: self.span, slices: self.slices, rows: Vec::new() };
        let label =
            |ident| [OpKey::Layer, OpKey::Name].map(|key| self.idents.label(ident, key).replace("  ", " "));
        let labels: Vec<[String; 2]> = (0..self.idents.list().len()).map(label).collect();
        let beyond = [NO_STRUCTURE.to_string(), NO_STRUCTURE.to_string()];
        let mut all: Vec<_> = self.sums.into_iter().collect();
        order::by_key(&mut all, |((run, ith, phase), _)| (*run as u64, u64::from(*ith) << 8 | *phase as u64));
        for ((model, thread, phase), sums) in all {
            let mut row = |frames: Vec<String>, sum: &Sum| {
                let (calls, ns) = (sum.calls, sum.ns);
                out.rows.push(StackRow { model, phase, thread, frames, calls, ns });
            };
            let wait = WAIT_ROW.to_string();
            let of = |ident: &usize| labels.get(*ident).unwrap_or(&beyond);
            let ops = merged(sums.ops.iter().map(|(ident, (op, _))| (op, of(ident).each_ref())));
            let waits = merged(sums.ops.iter().map(|(ident, (_, sum))| (sum, [&of(ident)[0], &wait])));
            for ([layer, op], sum) in ops.iter().chain(&waits) {
                row(vec![layer.to_string(), op.to_string()], sum);
            }
            let inside = ops.iter().chain(&waits).fold(0u64, |sum, (_, s)| sum.saturating_add(s.ns));
            let gaps = Sum { calls: sums.graphs.calls, ns: sums.graphs.ns.saturating_sub(inside) };
            row(vec![GAPS_ROW.into()], &gaps);
        }
        out
    }
}

/// Adds up equal labels, in the order in which they first occur.
fn merged<'s>(all: impl Iterator<Item = (&'s Sum, [&'s String; 2])>) -> Vec<([&'s String; 2], Sum)> {
    let mut index: HashMap<[&String; 2], usize> = HashMap::new();
    let mut out: Vec<([&String; 2], Sum)> = Vec::new();
    for (sum, label) in all.filter(|(sum, _)| sum.calls > 0) {
        let at = *index.entry(label).or_insert(out.len());
        match out.get_mut(at) {
            Some((_, to)) => {
                to.calls += sum.calls;
                to.ns = to.ns.saturating_add(sum.ns);
            }
            None => out.push((label, *sum)),
        }
    }
    out
}

/// Names of the runs, and of what belongs to none of them.
fn models(list: &[RunRow]) -> Vec<String> {
    let several = list.len() > 1;
    let name = |r: &RunRow| {
        let name = model_name(&r.command);
        if several { format!("{name} ({})", r.id()) } else { name }
    };
    list.iter().map(name).chain(["(unknown process)".to_string()]).collect()
}

/// The file name of the only GGUF file on a command line; if there is none or several, that of the program.
pub fn model_name(command: &str) -> String {
    let file = |word: &str| word.rsplit(['/', '\\', '=']).next().unwrap_or(word).to_string();
    let mut models = command.split_whitespace().filter(|w| w.to_ascii_lowercase().ends_with(".gguf"));
    match (models.next(), models.next()) {
        (Some(one), None) => file(one),
        _ => command.split_whitespace().next().map_or_else(|| "(unknown program)".into(), file),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_is_named_after_its_only_file() {
        assert_eq!(model_name("/usr/bin/llama-cli -m /models/tiny-q4_0.gguf -n 8"), "tiny-q4_0.gguf");
        assert_eq!(model_name("llama-cli --model=a.GGUF"), "a.GGUF");
        // A draft model and its target: the context's own is not known.
        assert_eq!(model_name("/bin/llama-speculative -m a.gguf -md b.gguf"), "llama-speculative");
        assert_eq!(model_name(""), "(unknown program)");
    }
}
