//! Compares the same ops on different backends: the splits of one trace, or two traces.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use crate::recorded::calls::{Phase, Timeline, timeline};
use crate::recorded::describe::{Ident, first_elements, form};
use crate::recorded::idents::Idents;
use crate::recorded::load::{LoadProgress, Loaded, load};
use crate::sums::device_kernels;
use crate::sums::ops::{Edges, sort_runs};
use crate::sums::series::CallSeries;
use crate::sums::tables::backend_name;
use crate::sums::time_series::median;
use common::order;
use pfi::Trace;
use pfi::record::CpuGraph;
use pfi::slice_iter;

/// Ops of the same kind and shape, side by side.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Shapes {
    /// Names of the traces, where there are two.
    pub files: Vec<String>,
    /// Where they ran.
    pub places: Vec<TraceBackend>,
    /// Ops that ran in at least two places; most time first.
    pub rows: Vec<ShapedOp>,
}

/// A range of matrix sizes in which one place is the fastest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Faster {
    /// Index of the place.
    pub place: usize,
    /// Smallest and largest matrix, elements.
    pub elements: [u64; 2],
    pub shapes: u64,
}

impl Shapes {
    /// The multiplications.
    pub fn products(&self) -> impl Iterator<Item = &ShapedOp> {
        self.rows.iter().filter(|r| matches!(r.op.as_str(), "MUL_MAT" | "MUL_MAT_ID"))
    }

    /// Which place computes the multiplications fastest, by the size of their matrix, smallest first. Those with a matrix of the
    /// same size are decided together, by the sum of their medians.
    pub fn fastest(&self) -> Vec<Faster> {
        let mut by_size: BTreeMap<u64, (u64, Vec<f64>)> = BTreeMap::new();
        for (row, size) in self.products().filter_map(|r| Some((r, r.elements?))) {
            // Only what ran everywhere can be compared by sums.
            let times: Option<Vec<f64>> = row.cells.iter().map(|c| c.map(|c| c.median_ns)).collect();
            let Some(times) = times else { continue };
            let (n, sums) = by_size.entry(size).or_insert_with(|| (0, vec![0.0; times.len()]));
            *n += 1;
            sums.iter_mut().zip(times).for_each(|(sum, ns)| *sum += ns);
        }
        let mut out: Vec<Faster> = Vec::new();
        for (size, (shapes, sums)) in by_size {
            let best = sums.iter().enumerate().min_by(|a, b| a.1.total_cmp(b.1));
            let Some((place, _)) = best else { continue };
            match out.last_mut().filter(|f| f.place == place) {
                Some(f) => (f.elements[1], f.shapes) = (size, f.shapes + shapes),
                None => out.push(Faster { place, elements: [size, size], shapes }),
            }
        }
        out
    }
}

/// A backend of a trace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TraceBackend {
    /// 0: the trace itself; 1: the trace it is compared with.
    pub trace: u32,
    pub backend: String,
}

/// An op, identified by its kind and its tensors' types and dimensions.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ShapedOp {
    pub op: String,
    pub form: String,
    /// Elements of its first source, the matrix of a multiplication; null if not known.
    pub elements: Option<u64>,
    /// One per place; null if it did not run there.
    pub cells: Vec<Option<Ran>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Ran {
    pub executions: u64,
    /// Median, ns. On the CPU: from its start to the next op's on thread 0. On a device: of its kernels.
    pub median_ns: f64,
    /// Relative to the first place where it ran.
    pub ratio: f64,
}

/// Maximum times kept of an op in one place; each time it is reached, every second one is dropped.
const MOST: usize = 4096;
/// Maximum number of distinct op kinds.
const MOST_KINDS: usize = 4096;
/// Maximum number of distinct backends per trace.
const MOST_PLACES: usize = 16;

/// Times, evenly thinned out.
#[derive(Debug, Clone, Default)]
struct TimeSample {
    seen: u64,
    each: u64,
    times: Vec<f64>,
}

impl TimeSample {
    fn take(&mut self, ns: u64) {
        if self.seen.is_multiple_of(self.each.max(1)) {
            self.times.push(ns as f64);
        }
        self.seen += 1;
        if self.times.len() >= MOST {
            let mut place = 0u8;
            self.times.retain(|_| {
                place ^= 1;
                place == 1
            });
            self.each = self.each.max(1) * 2;
        }
    }
}

/// The ops of one trace.
#[derive(Debug, Clone, Default)]
pub struct TraceOps {
    backends: Vec<String>,
    kinds: Vec<ShapeKind>,
}

#[derive(Debug, Clone)]
struct ShapeKind {
    op: String,
    form: String,
    elements: Option<u64>,
    /// Per backend.
    samples: Vec<TimeSample>,
}

impl ShapeKind {
    fn take(&mut self, place: usize, ns: u64) {
        if self.samples.len() <= place {
            self.samples.resize(place + 1, TimeSample::default());
        }
        if let Some(sample) = self.samples.get_mut(place) {
            sample.take(ns);
        }
    }
}

/// Reads the ops of a phase from a trace, for the process with the most such calls.
pub fn of_trace(trace: &Trace, phase: Phase, progress: &LoadProgress) -> TraceOps {
    let mut loaded = load(trace, progress);
    let line = timeline(&loaded);
    let calls = CallSeries::new(&loaded, &line, phase, None);
    sort_runs(&mut loaded);
    side(&loaded, &line, &Idents::new(&loaded), &calls.whole)
}

/// The ops of the calls with these indices. Requires `loaded.runs` to be sorted.
pub fn side(loaded: &Loaded<'_>, line: &Timeline, idents: &Idents, calls: &[usize]) -> TraceOps {
    let mut out = TraceOps::default();
    let kind_of = kinds(loaded, idents, &mut out.kinds);
    let mut place_of = SplitBackends::new(loaded);
    let index: HashMap<u64, usize> = loaded.cpu_graphs.iter().enumerate().map(|(i, g)| (g.seq, i)).collect();
    for (i, run) in loaded.runs.iter().enumerate().filter(|(_, run)| run.ith == 0) {
        let Some(&at) = index.get(&run.graph) else { continue };
        let call = line.cpu_call.get(at).copied().flatten();
        let wanted = call.is_some_and(|c| calls.binary_search(&c).is_ok());
        let Some(graph) = loaded.cpu_graphs.get(at).filter(|_| wanted) else { continue };
        let Some(place) = place_of.graph(graph, &mut out.backends) else { continue };
        let next = loaded.runs.get(i + 1).filter(|n| (n.graph, n.plan) == (run.graph, run.plan));
        let edges = Edges::new(run, next, Some(graph));
        let positions = idents.of_plan(run.plan).iter().skip(run.first as usize);
        for (slice, ident) in slice_iter(run).zip(positions) {
            let kind = kind_of.get(*ident).copied().flatten().and_then(|k| out.kinds.get_mut(k));
            let (Some(kind), (Some(time), wait)) = (kind, edges.times(&slice)) else { continue };
            kind.take(place, time.saturating_add(wait.unwrap_or(0)));
        }
    }
    on_devices(loaded, line, idents, calls, &kind_of, &mut out);
    out
}

/// Adds the ops that devices executed, where a layer has handed over the times of their kernels. Nodes that were fused
/// have no time of their own and are left out.
fn on_devices(
    loaded: &Loaded<'_>,
    line: &Timeline,
    idents: &Idents,
    calls: &[usize],
    kind_of: &[Option<usize>],
    out: &mut TraceOps,
) {
    let mut groups: Vec<_> =
        device_kernels::of_groups(loaded).into_iter().filter(|(_, g)| g.nodes == 1).collect();
    order::by_key(&mut groups, |((split, first), _)| (*split, (*first).into()));
    let mut place_of = SplitBackends::new(loaded);
    for ((_, first), group) in groups {
        let call = group.split.graph.and_then(|g| line.graph_call.get(&g));
        if call.is_none_or(|c| calls.binary_search(c).is_err()) {
            continue;
        }
        let Some(place) = place_of.backend(Some(group.split.backend), &mut out.backends) else { continue };
        let ident = idents.of_plan(group.plan).get(first as usize);
        let kind = ident.and_then(|i| kind_of.get(*i).copied().flatten());
        if let Some(kind) = kind.and_then(|k| out.kinds.get_mut(k)) {
            kind.take(place, group.ns);
        }
    }
}

/// Kind of each ident; `None` if not known, or beyond the limit.
fn kinds(loaded: &Loaded<'_>, idents: &Idents, list: &mut Vec<ShapeKind>) -> Vec<Option<usize>> {
    let mut known: HashMap<String, usize> = HashMap::new();
    let mut of = |ident: &Ident| {
        let form = form(loaded, ident.hit.filter(|_| ident.known));
        if form.is_empty() {
            return None;
        }
        let key = format!("{}\n{form}", ident.op);
        if let Some(kind) = known.get(&key) {
            return Some(*kind);
        }
        if list.len() == MOST_KINDS {
            return None;
        }
        known.insert(key, list.len());
        let elements = first_elements(loaded, ident.hit);
        list.push(ShapeKind { op: ident.op.clone(), form, elements, samples: Vec::new() });
        Some(list.len() - 1)
    };
    idents.list().iter().map(&mut of).collect()
}

/// Finds the backend of a split.
struct SplitBackends<'l, 'a> {
    loaded: &'l Loaded<'a>,
    /// Split number to backend.
    splits: HashMap<u64, u32>,
    /// Backend to its index in the list.
    known: HashMap<u32, Option<usize>>,
}

impl<'l, 'a> SplitBackends<'l, 'a> {
    fn new(loaded: &'l Loaded<'a>) -> Self {
        let splits = loaded.splits.iter().map(|s| (s.seq, s.backend)).collect();
        SplitBackends { loaded, splits, known: HashMap::new() }
    }

    fn graph(&mut self, graph: &CpuGraph, list: &mut Vec<String>) -> Option<usize> {
        let backend = graph.split.and_then(|s| self.splits.get(&s)).copied();
        self.backend(backend, list)
    }

    fn backend(&mut self, backend: Option<u32>, list: &mut Vec<String>) -> Option<usize> {
        let loaded = self.loaded;
        *self.known.entry(backend.unwrap_or(u32::MAX)).or_insert_with(|| {
            // Without a split, an op ran in the library of the CPU backend.
            let name = backend.map_or_else(|| "CPU".into(), |id| backend_name(loaded, id));
            list.iter().position(|n| *n == name).or_else(|| {
                (list.len() < MOST_PLACES).then(|| {
                    list.push(name);
                    list.len() - 1
                })
            })
        })
    }
}

/// Aligns the ops of one trace, and those of another; `None` if no op ran in two places.
pub fn shapes(own: TraceOps, beside: Option<&TraceOps>) -> Option<Shapes> {
    let places = |side: &TraceOps, trace: u32| -> Vec<TraceBackend> {
        side.backends.iter().map(|b| TraceBackend { trace, backend: b.clone() }).collect()
    };
    let mut all = places(&own, 0);
    let first = all.len();
    all.extend(beside.map(|b| places(b, 1)).unwrap_or_default());
    let theirs = beside.map_or(&[][..], |b| &b.kinds);
    let index: HashMap<(&str, &str), &ShapeKind> =
        theirs.iter().map(|k| ((k.op.as_str(), k.form.as_str()), k)).collect();
    let mut rows = Vec::new();
    for kind in &own.kinds {
        let mut samples: Vec<Option<&TimeSample>> = (0..all.len()).map(|i| kind.samples.get(i)).collect();
        if let Some(other) = index.get(&(kind.op.as_str(), kind.form.as_str())) {
            for (i, sample) in other.samples.iter().enumerate() {
                if let Some(slot) = samples.get_mut(first + i) {
                    *slot = Some(sample);
                }
            }
        }
        rows.extend(shape(kind, &samples));
    }
    let time =
        |r: &ShapedOp| r.cells.iter().flatten().map(|c| c.median_ns * c.executions as f64).sum::<f64>();
    order::by_key(&mut rows, |r| (!order::fraction(time(r)), 0));
    (!rows.is_empty()).then_some(Shapes { files: Vec::new(), places: all, rows })
}

fn shape(kind: &ShapeKind, samples: &[Option<&TimeSample>]) -> Option<ShapedOp> {
    let ran = |s: &Option<&TimeSample>| {
        let s = s.filter(|s| s.seen > 0)?;
        Some(Ran { executions: s.seen, median_ns: median(&s.times), ratio: 1.0 })
    };
    let mut cells: Vec<Option<Ran>> = samples.iter().map(ran).collect();
    let first = cells.iter().flatten().next()?.median_ns;
    if cells.iter().flatten().count() < 2 || first <= 0.0 {
        return None;
    }
    cells.iter_mut().flatten().for_each(|c| c.ratio = c.median_ns / first);
    Some(ShapedOp { op: kind.op.clone(), form: kind.form.clone(), elements: kind.elements, cells })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thinned_out_sample_keeps_its_middle() {
        let mut s = TimeSample::default();
        (0..100_000u64).for_each(|i| s.take(i % 1000));
        assert!(s.seen == 100_000 && s.times.len() < MOST && s.times.len() >= MOST / 4);
        assert!((median(&s.times) - 500.0).abs() < 30.0);
    }

    fn side(backend: &str, ns: u64) -> TraceOps {
        let mut sample = TimeSample::default();
        (0..9).for_each(|_| sample.take(ns));
        let kind = |op: &str| ShapeKind {
            op: op.into(),
            form: "f32 4 of f32 4".into(),
            elements: Some(4),
            samples: vec![sample.clone()],
        };
        TraceOps { backends: vec![backend.into()], kinds: vec![kind("ADD"), kind(backend)] }
    }

    #[test]
    fn the_faster_place_is_known_by_size() {
        let cell = |ns| Some(Ran { executions: 1, median_ns: ns, ratio: 1.0 });
        let row = |elements, a, b| ShapedOp {
            op: "MUL_MAT".into(),
            form: String::new(),
            elements: Some(elements),
            cells: vec![cell(a), cell(b)],
        };
        let other = ShapedOp { op: "ADD".into(), ..row(1, 9.0, 1.0) };
        // Of the two with 20 elements together, the first place is faster.
        let rows = vec![row(40, 9.0, 2.0), row(10, 1.0, 5.0), row(20, 1.0, 9.0), row(20, 3.0, 2.0), other];
        let found = Shapes { files: Vec::new(), places: Vec::new(), rows };
        let faster = |place, elements, shapes| Faster { place, elements, shapes };
        assert_eq!(found.fastest(), [faster(0, [10, 20], 3), faster(1, [40, 40], 1)]);
    }

    #[test]
    fn what_ran_in_two_traces_stands_side_by_side() {
        let found = shapes(side("CPU", 100), Some(&side("BLAS", 250))).unwrap();
        assert_eq!(
            found.places.iter().map(|p| (p.trace, &*p.backend)).collect::<Vec<_>>(),
            [(0, "CPU"), (1, "BLAS")]
        );
        assert_eq!(found.rows.len(), 1);
        let cells: Vec<_> = found.rows[0].cells.iter().flatten().map(|c| (c.median_ns, c.ratio)).collect();
        assert_eq!(cells, [(100.0, 1.0), (250.0, 2.5)]);
        assert_eq!(shapes(side("CPU", 100), None), None);
    }
}
