//! The graph that an engine computed, built from the tensors of a trace: executed ops as nodes in execution
//! order, their sources as edges, and figures for each node.
//!
//! The construction, for the graphs of one batch: each op hit, in the order of thread 0, becomes a node. Each of
//! its sources is the node for the tensor's address: one that ran earlier, or one that another op already uses
//! (so that a source has all its users). A tensor that nothing computed becomes a node at its first use: a view
//! brings its own sources along, a constant (weight, cache, input) has none. Nodes are numbered after their
//! sources, so that every edge goes from a lower number to a higher one.

pub mod build;
pub mod compare;
pub mod fold;
pub mod measure;
pub mod pick;
mod typical;

use crate::recorded::calls::{Phase, timeline};
use crate::recorded::idents::Idents;
use crate::recorded::load::{LoadProgress, Loaded, load};
use crate::recorded::processes::NoProcess;
use crate::recorded::runs::RunId;
use crate::recorded::selection::{Cut, NoPart};
use crate::sums::attribution::Attribution;
use crate::sums::ops::op_times;
use pfi::record::Level;
use pfi::{Damage, DamageKind, Trace};
use serde::{Serialize, Serializer};

/// Kind of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NodeRole {
    /// Something that was computed.
    Op,
    /// A different view of a tensor: VIEW, RESHAPE, PERMUTE, TRANSPOSE. Older engines run it like an op.
    View,
    Weight,
    /// Keys, values or states kept between batches.
    Cache,
    Input,
    /// Copied from the memory of another backend.
    Copy,
    /// Computed, but not by a recorded op: on another backend, or lost.
    Elsewhere,
    /// Not described.
    Unknown,
}

impl NodeRole {
    pub fn name(self) -> &'static str {
        match self {
            NodeRole::Op => "op",
            NodeRole::View => "view",
            NodeRole::Weight => "weight",
            NodeRole::Cache => "cache",
            NodeRole::Input => "input",
            NodeRole::Copy => "copy",
            NodeRole::Elsewhere => "elsewhere",
            NodeRole::Unknown => "unknown",
        }
    }

    /// True for tensors that no op computes.
    pub fn is_constant(self) -> bool {
        matches!(self, NodeRole::Weight | NodeRole::Cache | NodeRole::Input)
    }
}

/// A tensor of a node as shown: names instead of the ids of a [`pfi::record::Tensor`], and one for all folded layers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NodeTensor {
    /// Name as in `report`; empty if the tensor is not described.
    pub op: String,
    /// Folded: with `{L}` for the layer.
    pub name: String,
    /// Folded: joined by a bar if layers differ.
    #[serde(rename = "type")]
    pub ty: String,
    pub ne: [u64; 4],
    #[serde(serialize_with = "hex")]
    pub addr: u64,
}

/// Lowest, middle and highest value: over the folded layers, or three equal values for a single node.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    #[serde(serialize_with = "short")]
    pub min: f64,
    #[serde(serialize_with = "short")]
    pub median: f64,
    #[serde(serialize_with = "short")]
    pub max: f64,
}

fn hex<S: Serializer>(n: &u64, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&format_args!("{n:#x}"))
}

/// An integer without a fraction.
fn short<S: Serializer>(x: &f64, to: S) -> Result<S::Ok, S::Error> {
    const EXACT: f64 = (1_u64 << 53) as f64;
    if x.fract() == 0.0 && x.abs() <= EXACT { to.serialize_i64(*x as i64) } else { to.serialize_f64(*x) }
}

impl Spread {
    pub fn one(value: f64) -> Spread {
        Spread { min: value, median: value, max: value }
    }
}

/// The metrics of a node; the values of [`Node::figures`] are in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Metric {
    Median,
    Time,
    Gbps,
    Bytes,
    Flops,
    Stall,
    Faults,
    Imbalance,
    Counted,
    Spread,
}

/// Description of a metric.
pub struct MetricFacts {
    pub metric: Metric,
    /// The flag's value.
    pub name: &'static str,
    /// In JSON and GraphML.
    pub key: &'static str,
    /// What it measures; its unit is in the key.
    pub what: &'static str,
    /// Why it may be missing, and how to get it.
    pub needs: &'static str,
}

pub static METRICS: [MetricFacts; 10] = [
    MetricFacts {
        metric: Metric::Median,
        name: "median",
        key: "median_ns",
        what: "median time of a call on thread 0",
        needs: "no op end was recorded",
    },
    MetricFacts {
        metric: Metric::Time,
        name: "time",
        key: "time_ns",
        what: "mean time of a call on thread 0",
        needs: "no op end was recorded",
    },
    MetricFacts {
        metric: Metric::Gbps,
        name: "gbps",
        key: "gb_per_s",
        what: "bytes of the cost model over the time in which any thread computed (thread 0's without barriers)",
        needs: "no time was recorded, or the cost model knows none of these ops",
    },
    MetricFacts {
        metric: Metric::Bytes,
        name: "bytes",
        key: "bytes",
        what: "bytes read and written in a call, by the cost model",
        needs: "the cost model knows none of these ops",
    },
    MetricFacts {
        metric: Metric::Flops,
        name: "flops",
        key: "flops",
        what: "operations of a call, by the cost model",
        needs: "the cost model knows none of these ops",
    },
    MetricFacts {
        metric: Metric::Stall,
        name: "stall",
        key: "stalled_share",
        what: "share of the cycles in which the back end was stalled",
        needs: "not recorded: `profinfer record --pmc cycles,stalled-cycles-backend` counts it if the CPU supports it",
    },
    MetricFacts {
        metric: Metric::Faults,
        name: "faults",
        key: "page_faults",
        what: "page faults of a call, all threads",
        needs: "not recorded: `profinfer record --faults` counts them",
    },
    MetricFacts {
        metric: Metric::Imbalance,
        name: "imbalance",
        key: "imbalance",
        what: "slowest thread's time over the mean of the threads",
        needs: "not recorded: it needs two threads and a probed barrier",
    },
    MetricFacts {
        metric: Metric::Counted,
        name: "counted",
        key: "counted_bytes",
        what: "bytes of missed cache lines in a call, all threads",
        needs: "not recorded: `profinfer record --pmc ll_cache_miss` or `--pmc cache-misses` counts them if the CPU supports it",
    },
    MetricFacts {
        metric: Metric::Spread,
        name: "spread",
        key: "spread",
        what: "95th percentile of the time of a call over the median",
        needs: "no op end was recorded",
    },
];

/// Values of a node in the order of [`METRICS`].
pub type Figures = [Option<Spread>; METRICS.len()];

#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    pub role: NodeRole,
    /// One; two if the engine computes them as one op. The last one is the result.
    pub tensors: Vec<NodeTensor>,
    /// Position in the execution order, from 0; none if it did not run. Folded: that of the first layer.
    pub order: Option<u32>,
    /// Folded: the first layer.
    pub layer: Option<u32>,
    /// Index in [`Dag::blocks`] if layers were folded.
    pub block: Option<usize>,
    /// The backend that computes it, or to which it is copied, if several take part or it is not the CPU.
    pub backend: Option<String>,
    pub figures: Figures,
    /// Share of the time of all nodes, 0 to 1; folded: of all its layers together. None if it has no time.
    pub time_share: Option<f64>,
}

impl Node {
    /// `MUL_MAT`, `RMS_NORM+MUL`.
    pub fn op(&self) -> String {
        let ops = self.tensors.iter().map(|t| if t.op.is_empty() { "?" } else { t.op.as_str() });
        let ops: Vec<&str> = ops.collect();
        ops.join("+")
    }

    /// The result tensor.
    pub fn result(&self) -> Option<&NodeTensor> {
        self.tensors.last()
    }

    /// Name of the result.
    pub fn name(&self) -> &str {
        self.result().map_or("", |t| &t.name)
    }
}

/// `to` has `from` as a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Edge {
    pub from: usize,
    /// Equal to `from` if a tensor is its own source, or if the second of two fused tensors uses the first.
    pub to: usize,
    /// Which tensor of `to` has the source, and in which source slot.
    pub tensor: u8,
    pub slot: u8,
    /// Folded: it comes from the layer before, or from an earlier layer of another kind.
    pub back: bool,
}

/// Identical layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerGroup {
    /// Ascending.
    pub layers: Vec<u32>,
}

#[derive(Debug, Clone)]
pub struct Dag {
    pub pid: u32,
    pub phase: Phase,
    /// The requested batch.
    pub token: Option<u64>,
    /// Number of graphs that the figures are averaged over.
    pub graphs: u64,
    pub nodes: Vec<Node>,
    /// Sorted by target node.
    pub edges: Vec<Edge>,
    /// Empty unless folded.
    pub blocks: Vec<LayerGroup>,
    /// The counter behind [`Metric::Counted`].
    pub counter: Option<String>,
    /// Notes for the reader: what is missing, and what was left out.
    pub notes: Vec<String>,
}

impl Dag {
    /// True if any node has a value.
    pub fn has(&self, metric: Metric) -> bool {
        self.nodes.iter().any(|n| n.figures[metric as usize].is_some())
    }

    /// Sets each node's share of the time.
    pub(crate) fn share_time(&mut self) {
        let time = |n: &Node| n.figures[Metric::Time as usize].map(|s| s.median);
        let all: f64 = self.nodes.iter().filter_map(time).sum();
        for node in &mut self.nodes {
            node.time_share = time(node).filter(|_| all > 0.0).map(|ns| ns / all);
        }
    }

    /// The edges to a node, by tensor and slot.
    pub fn sources(&self, node: usize) -> &[Edge] {
        let from = self.edges.partition_point(|e| e.to < node);
        let rest = self.edges.get(from..).unwrap_or_default();
        rest.get(..rest.partition_point(|e| e.to <= node)).unwrap_or_default()
    }

    /// Layers of the nodes, ascending.
    pub fn layers(&self) -> Vec<u32> {
        let mut all: Vec<u32> = self.nodes.iter().filter_map(|n| n.layer).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

/// What to draw.
#[derive(Debug, Clone, Copy, Default)]
pub struct DagOptions {
    /// None: the only process.
    pub pid: Option<RunId>,
    /// One batch, by its number in `report --by token`.
    pub token: Option<u64>,
    /// None: decode, else prefill, else any phase.
    pub phase: Option<Phase>,
}

/// Why there is no graph to draw.
#[derive(Debug, thiserror::Error)]
pub enum DagError {
    #[error("it has no graph whose nodes are known, so there is nothing to draw")]
    NoGraphs,
    #[error("it has no ops (recorded at level {0}); use `profinfer record --level op`")]
    NoOps(String),
    #[error("it was recorded without structure (--no-str); record again without that flag")]
    NoStructure,
    #[error("the descriptions of its ops are lost; record again")]
    Lost,
    #[error("it has several processes; select one with --pid: {0}")]
    Processes(String),
    #[error(transparent)]
    NoProcess(#[from] NoProcess),
    #[error(transparent)]
    NoPart(#[from] NoPart),
    #[error(
        "process {pid} has several contexts, each with its own graphs; select one with --pid: {pid}:1 to {pid}:{n}"
    )]
    Contexts { pid: u32, n: usize },
    #[error("it has no graph of batch {0}; `profinfer report --by token` lists them ({1})")]
    NoToken(u64, String),
    #[error("it has no ops in {0}, only in {1}")]
    NoPhase(&'static str, String),
    #[error("its graph has more than {0} {1}")]
    TooLarge(usize, &'static str),
    #[error("no op of layer {layer} was recorded; recorded layers: {there}")]
    NoLayer { layer: u32, there: String },
}

/// Builds the graph that `options` ask for.
///
/// # Errors
/// The trace does not contain it; the error says what to do.
pub fn dag(trace: &Trace, options: &DagOptions, progress: &LoadProgress) -> Result<Dag, DagError> {
    progress.total.store(trace.size().saturating_mul(2), std::sync::atomic::Ordering::Relaxed);
    let mut loaded = load(trace, progress);
    let pid = pick::process(&loaded, options.pid.map(|id| id.pid))?;
    let cut =
        Cut { pid: Some(RunId { pid, context: options.pid.and_then(|id| id.context) }), ..Cut::default() };
    let part = cut.part(&loaded)?;
    if let (Some(RunId { context: None, .. }), Some(_)) = (cut.pid, part.context) {
        return Err(DagError::Contexts { pid, n: part.runs.iter().filter(|r| r.pid == pid).count() });
    }
    // Other processes do not affect the result and need not be removed.
    if part.context.is_some() {
        cut.apply(&part, &mut loaded);
    }
    of(trace, loaded, options, progress)
}

/// Builds the graph that `options` ask for from `loaded`, which may be a part of `trace`.
///
/// # Errors
/// Those of [`dag`].
pub fn of(
    trace: &Trace,
    mut loaded: Loaded<'_>,
    options: &DagOptions,
    progress: &LoadProgress,
) -> Result<Dag, DagError> {
    let line = timeline(&loaded);
    let pick = pick::pick(&loaded, &line, options)?;
    let mut dag = build::build(&loaded, &pick)?;
    dag.notes.extend(state(trace, &loaded));
    pick::keep(&mut loaded, &pick);
    let line = timeline(&loaded);
    let times = op_times(&mut loaded, &line, progress);
    let idents = Idents::new(&loaded);
    let why = Attribution::new(&mut loaded, &line, &idents);
    measure::measure(&mut dag, &loaded, &pick, &times, why.as_ref());
    dag.share_time();
    Ok(dag)
}

/// Problems of the recording as a whole.
fn state(trace: &Trace, loaded: &Loaded<'_>) -> Vec<String> {
    let cut = trace.damage().iter().any(|d: &Damage| d.kind == DamageKind::NoFooter);
    let mut notes = Vec::new();
    if cut {
        notes.push("the recording was cut off: later data is missing".to_owned());
    }
    let n = loaded.damage.len();
    if let Some(first) = loaded.damage.first() {
        let more = if n > 1 { format!(" (and {} more)", n - 1) } else { String::new() };
        notes.push(format!("the file is damaged: {first}{more}"));
    }
    notes
}

/// The level of a recording, for messages.
fn level(loaded: &Loaded<'_>) -> String {
    let level = loaded.header.as_ref().map(|h| h.level);
    match level {
        Some(Level::Token) => "token",
        Some(Level::Graph) => "graph",
        Some(Level::Op) => "op, but no ops were seen",
        None => "unknown",
    }
    .to_owned()
}
