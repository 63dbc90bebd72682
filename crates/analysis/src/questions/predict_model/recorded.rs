//! What a recording says about its machine: the times of its products by type and size, of attention by context, of
//! small ops, and of the rest of a call.

use std::collections::{BTreeSet, HashMap};

use crate::questions::stat::context::contexts;
use crate::recorded::calls::{Phase, Timeline, timeline};
use crate::recorded::describe::{Ident, is_leaf, op_name, source, weight};
use crate::recorded::idents::{Idents, OpKey};
use crate::recorded::load::{LoadProgress, Loaded, load};
use crate::sums::series::{CallSeries, Groups, Series, why_nothing};
use crate::sums::tables::split_rows;
use crate::sums::time_series::{mean, median, sorted, steady_line};
use crate::{sums::attribution::verdict::Peak, sums::peaks};
use common::order;
use ggml::backend_guid;
use ggml::gguf::types::StoredType;
use ggml::names::fold;
use pfi::Trace;
use pfi::record::Tensor;

/// Why nothing can be predicted from a recording.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoRates {
    #[error("no decode call has all of its ops: {0}")]
    Calls(&'static str),
    #[error(
        "its tensors are not described, so the products' types and sizes are not known: record without --no-str"
    )]
    Structure,
    #[error("a part of its model ran on {0}: only recordings of the CPU alone can be used")]
    Device(String),
}

/// Fewest decode calls; below, times are too uncertain.
const FEWEST: usize = 8;

/// The times of a recording.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Recorded {
    /// CPU model and host name; empty if the header is lost.
    pub machine: String,
    pub cpu_model: String,
    /// CPUs online; 0 if not known.
    pub cpus: u32,
    pub threads: u32,
    /// Layers with products, and the width of the model; 0 if not known.
    pub layers: u64,
    pub embd: u64,
    /// Names of all weights, with `{L}` for the layer.
    pub tensors: BTreeSet<String>,
    pub decode: PhaseTimes,
    /// The calls with the widest batch; `None` if no prompt was recorded.
    pub prefill: Option<PhaseTimes>,
    /// Measured on the machine before the recording, for any number of threads.
    pub peaks: Vec<Peak>,
}

/// Times of a phase, ns. The cost of the recorder's own hits is taken out.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PhaseTimes {
    pub calls: usize,
    /// Tokens of a call.
    pub tokens: u64,
    /// Median of a call, and half of the middle half's width as a share of it.
    pub call_ns: f64,
    pub spread: f64,
    /// Share of a call that the recorder's hits took.
    pub recorder: f64,
    pub products: Vec<ProductTime>,
    /// Attention in a call.
    pub attention: AttentionTime,
    /// All other ops of the layers, and those outside of layers, in a call.
    pub layer_ops_ns: f64,
    pub other_ops_ns: f64,
    /// The part of a call outside of ops.
    pub rest_ns: f64,
}

/// Products of one type and size.
#[derive(Debug, Clone, PartialEq)]
pub struct ProductTime {
    pub ty: StoredType,
    pub k: u64,
    pub m: u64,
    /// Experts in the weights, and how many of them a call uses; 1 without experts.
    pub experts: u64,
    pub used: u64,
    /// Tokens that are multiplied at once.
    pub columns: u64,
    /// Executions in a call, and the time of one.
    pub count: f64,
    pub ns: f64,
}

impl ProductTime {
    /// Bytes of weights read.
    pub fn bytes(&self) -> f64 {
        self.k as f64 * self.m as f64 * self.ty.bytes_each() * self.used as f64
    }
}

/// Attention.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AttentionTime {
    pub ns: f64,
    /// Elements of all query heads of a layer, summed over layers; 0 if no attention was found.
    pub width: f64,
    /// Shortest, middle and longest context of the calls; 0 if not known.
    pub contexts: [f64; 3],
    /// ns per position, if the calls show how it grows.
    pub slope: Option<f64>,
}

/// How an op counts.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Kind {
    Product { ty: u32, k: u64, m: u64, experts: u64, used: u64, columns: u64 },
    Attention,
    Small(String),
}

/// Reads the times from a trace, of the process with the most decode calls.
///
/// # Errors
/// The trace does not have what is needed.
pub fn recorded(trace: &Trace, progress: &LoadProgress) -> Result<Recorded, NoRates> {
    progress.total.store(trace.size(), std::sync::atomic::Ordering::Relaxed);
    let mut loaded = load(trace, progress);
    let line = timeline(&loaded);
    let idents = Idents::new(&loaded);
    if let Some(device) = devices(&loaded, &line) {
        return Err(NoRates::Device(device));
    }
    let decode = CallSeries::new(&loaded, &line, Phase::Decode, None);
    if decode.whole.len() < FEWEST {
        let few = "it has fewer than 8 such calls";
        let none = decode.whole.is_empty();
        return Err(NoRates::Calls(if none { why_nothing(&loaded, &line, Phase::Decode) } else { few }));
    }
    let widths = Widths::new(&loaded, &idents);
    let kinds = Kinds::new(&loaded, &idents);
    if !kinds.list.iter().any(|k| matches!(k, Kind::Product { .. })) {
        return Err(NoRates::Structure);
    }
    let undisturbed = undisturbed(&line, &decode.whole);
    let spread = spread(&line, &decode.whole);
    let prompt = widest(&line, CallSeries::new(&loaded, &line, Phase::Prefill, Some(decode.pid)).whole);
    let mut times = |calls: &[usize]| phase_times(&mut loaded, &line, &idents, &kinds, widths.layers, calls);
    let (decode, prefill) = (times(&undisturbed), (!prompt.is_empty()).then(|| times(&prompt)));
    let header = loaded.header.as_ref();
    Ok(Recorded {
        machine: header.map_or_else(String::new, |h| format!("{} ({})", h.cpu_model, h.host)),
        cpu_model: header.map_or_else(String::new, |h| h.cpu_model.to_owned()),
        cpus: header.map_or(0, |h| h.topology.split(';').filter(|s| !s.is_empty()).count() as u32),
        threads: loaded.cpu_graphs.iter().map(|g| g.n_threads).max().unwrap_or(1),
        layers: widths.layers,
        embd: widths.embd,
        decode: PhaseTimes {
            tokens: 1,
            spread,
            attention: widths.attention(decode.attention.clone()),
            ..decode
        },
        prefill: prefill.map(|p| PhaseTimes { attention: widths.attention(p.attention.clone()), ..p }),
        tensors: widths.tensors,
        peaks: peaks::measured(&loaded).map(|(peaks, _)| peaks).unwrap_or_default(),
    })
}

/// Calls of which the slower half is left out, because other work may have disturbed them.
const WINDOW: usize = 8;

/// Of each few calls in a row, the faster half: over the whole recording, so that all contexts are represented.
fn undisturbed(line: &Timeline, calls: &[usize]) -> Vec<usize> {
    let time = |call: &usize| line.calls.get(*call).map_or(u64::MAX, |c| c.dur);
    let half = |calls: &[usize]| {
        let mut calls = calls.to_vec();
        order::by_key(&mut calls, |c| (time(c), *c as u64));
        calls.truncate(calls.len().div_ceil(2));
        calls
    };
    let mut kept: Vec<usize> = calls.chunks(WINDOW).flat_map(half).collect();
    order::by_key(&mut kept, |c| (*c as u64, 0));
    kept
}

/// Half of the width of the calls' middle half, as a share of the median.
fn spread(line: &Timeline, calls: &[usize]) -> f64 {
    let times: Vec<f64> = calls.iter().filter_map(|c| Some(line.calls.get(*c)?.dur as f64)).collect();
    let times = sorted(&times);
    let at = |share: f64| times.get((times.len() as f64 * share) as usize).copied().unwrap_or(0.0);
    (at(0.75) - at(0.25)) / 2.0 / at(0.5).max(1.0)
}

/// A backend other than the CPU's that computed something.
fn devices(loaded: &Loaded<'_>, line: &Timeline) -> Option<String> {
    let splits = split_rows(loaded, line, Phase::Decode);
    splits.into_iter().map(|s| s.backend).find(|name| !backend_guid::is_host(name))
}

/// The calls with the most tokens that were computed as one batch.
fn widest(line: &Timeline, calls: Vec<usize>) -> Vec<usize> {
    let tokens = |call: &usize| {
        let call = line.calls.get(*call)?;
        call.tokens.filter(|_| call.graphs <= 1)
    };
    let most = calls.iter().filter_map(tokens).max();
    calls.into_iter().filter(|call| most.is_some() && tokens(call) == most).collect()
}

/// What the weights and queries show of the model.
struct Widths {
    layers: u64,
    embd: u64,
    tensors: BTreeSet<String>,
    /// Elements of the query heads of all layers.
    queries: f64,
}

impl Widths {
    fn new(loaded: &Loaded<'_>, idents: &Idents) -> Widths {
        let mut out = Widths { layers: 0, embd: 0, tensors: BTreeSet::new(), queries: 0.0 };
        let weight =
            |t: &&Tensor| is_leaf(loaded, t) && (t.name.ends_with(".weight") || t.name.ends_with(".bias"));
        for t in loaded.tensors.values().filter(weight) {
            let folded = fold(&t.name);
            if let Some(layer) = folded.layer {
                out.layers = out.layers.max(u64::from(layer) + 1);
            } else if &*t.name == "token_embd.weight" {
                out.embd = t.ne[0];
            }
            out.tensors.insert(folded.pattern.into_owned());
        }
        let widths = idents.list().iter().filter_map(|ident| query_width(loaded, ident));
        out.queries = widths.fold(0.0, f64::max) * out.layers as f64;
        out
    }

    fn attention(&self, found: AttentionTime) -> AttentionTime {
        AttentionTime { width: if found.ns > 0.0 { self.queries } else { 0.0 }, ..found }
    }
}

/// Elements of all query heads of a layer.
fn query_width(loaded: &Loaded<'_>, ident: &Ident) -> Option<f64> {
    let t = loaded.tensors.get(&ident.hit?.0).filter(|t| t.known)?;
    let queries = match op_name(loaded, t.op) {
        "FLASH_ATTN_EXT" => source(loaded, t, 0)?,
        // The product of keys and queries.
        "MUL_MAT" if !source(loaded, t, 0).is_some_and(|w| is_leaf(loaded, w)) => source(loaded, t, 1)?,
        _ => return None,
    };
    Some(queries.ne[0] as f64 * queries.ne[2] as f64)
}

struct Kinds {
    list: Vec<Kind>,
    of_ident: Vec<usize>,
}

/// Maximum number of kinds; the rest shares one.
const MOST_KINDS: usize = 4096;

impl Kinds {
    fn new(loaded: &Loaded<'_>, idents: &Idents) -> Kinds {
        let mut known: HashMap<Kind, usize> = HashMap::new();
        let mut out = Kinds { list: Vec::new(), of_ident: Vec::new() };
        for (i, ident) in idents.list().iter().enumerate() {
            let full = out.list.len() >= MOST_KINDS;
            let small = || if full { String::new() } else { idents.label(i, OpKey::Name) };
            let kind = kind(loaded, ident).unwrap_or_else(|| Kind::Small(small()));
            let next = out.list.len();
            let at = *known.entry(kind.clone()).or_insert(next);
            if at == next {
                out.list.push(kind);
            }
            out.of_ident.push(at);
        }
        out
    }
}

/// `None`: a small op.
fn kind(loaded: &Loaded<'_>, ident: &Ident) -> Option<Kind> {
    let t = loaded.tensors.get(&ident.hit?.0).filter(|t| t.known)?;
    match op_name(loaded, t.op) {
        "FLASH_ATTN_EXT" => Some(Kind::Attention),
        // The softmax over experts has no mask.
        "SOFT_MAX" => source(loaded, t, 1).map(|_| Kind::Attention),
        op @ ("MUL_MAT" | "MUL_MAT_ID") => {
            let weights = source(loaded, t, 0)?;
            if weight(loaded, t).is_none() {
                return (op == "MUL_MAT").then_some(Kind::Attention);
            }
            let [k, m, stacked, last] = weights.ne;
            let ty = StoredType::named(loaded.types.get(&weights.ty)?.name)?;
            if m < 2 || last != 1 {
                return None;
            }
            let (experts, used, columns) = if op == "MUL_MAT" {
                (1, 1, t.ne[1].saturating_mul(t.ne[2]))
            } else {
                let ids = source(loaded, t, 2)?;
                (stacked, ids.ne[0].saturating_mul(ids.ne[1]).min(stacked), ids.ne[1])
            };
            Some(Kind::Product { ty: ty.id, k, m, experts, used, columns })
        }
        _ => None,
    }
}

/// The cost of the recorder's hits on thread 0, ns.
struct HitCosts {
    /// Of an execution of an op.
    op: f64,
    /// Of a product, in which threads wait for each other more than once.
    product: f64,
    /// Of a call outside of ops: entries and returns of calls, graphs and splits.
    call: f64,
}

impl HitCosts {
    fn new(loaded: &Loaded<'_>, series: &Series, kinds: &Kinds) -> HitCosts {
        let hit = loaded.header.as_ref().map_or(0.0, |h| f64::from(h.hit_ns));
        let (mut ops, mut products) = (0.0, 0.0);
        for (i, kind) in kinds.list.iter().enumerate() {
            let ran = series.group(i).iter().filter(|t| **t > 0.0).count() as f64;
            let n = ran * series.times_a_call(i);
            ops += n;
            products += if matches!(kind, Kind::Product { .. }) { n } else { 0.0 };
        }
        let slices = loaded.runs.iter().map(|r| u64::from(r.n)).sum::<u64>() as f64;
        let kinds = loaded.footer.iter().flat_map(|f| &f.kinds);
        let barriers = kinds.filter(|k| k.kind == "barrier").map(|k| k.seen).sum::<u64>() as f64;
        // Barrier hits for each op hit: one after each op, more within products.
        let barriers = if slices > 0.0 { barriers / slices } else { 0.0 };
        let more = ((barriers - 1.0).max(0.0) * ops / f64::max(products, 1.0)).min(4.0);
        let op = 1.0 + barriers.min(1.0);
        let outer = loaded.tokens.len() + loaded.graphs.len() + loaded.splits.len() + loaded.cpu_graphs.len();
        let calls = loaded.tokens.len().max(loaded.graphs.len()).max(1);
        let call = 2.0 * outer as f64 / calls as f64;
        HitCosts { op: op * hit, product: (op + more) * hit, call: call * hit }
    }

    fn of(&self, kind: &Kind) -> f64 {
        if matches!(kind, Kind::Product { .. }) { self.product } else { self.op }
    }
}

fn phase_times(
    loaded: &mut Loaded<'_>,
    line: &Timeline,
    idents: &Idents,
    kinds: &Kinds,
    layers: u64,
    calls: &[usize],
) -> PhaseTimes {
    let groups = Groups { idents, of: &kinds.of_ident, count: kinds.list.len() };
    let series = Series::new(loaded, line, calls, &groups);
    let cost = HitCosts::new(loaded, &series, kinds);
    let times = |group: usize| series.group(group).iter().map(|t| f64::from(*t)).collect::<Vec<f64>>();
    let lengths = contexts(loaded, line);
    let lengths: Vec<f64> =
        series.calls.iter().map(|c| lengths.get(*c).copied().unwrap_or(0) as f64).collect();
    let mut left = series.durations.clone();
    let mut attention = vec![0.0; left.len()];
    let mut out = PhaseTimes { calls: calls.len(), ..PhaseTimes::default() };
    out.tokens = calls.first().and_then(|c| line.calls.get(*c)?.tokens).unwrap_or(0);
    let mut hits_ns = cost.call;
    for (i, kind) in kinds.list.iter().enumerate() {
        let all = times(i);
        let ran: Vec<f64> = all.iter().copied().filter(|t| *t > 0.0).collect();
        if ran.is_empty() {
            continue;
        }
        left.iter_mut().zip(&all).for_each(|(left, t)| *left -= t);
        let count = series.times_a_call(i);
        // A kind that runs in some calls only counts by its share.
        let part = ran.len() as f64 / all.len() as f64;
        let hits = count * cost.of(kind);
        hits_ns += hits * part;
        // Something is left of it: the cost of a hit is an estimate.
        let net = |ns: f64| (ns - hits).max(ns / 10.0);
        match kind {
            Kind::Attention => attention.iter_mut().zip(&all).for_each(|(sum, t)| {
                *sum += if *t > 0.0 { net(*t) } else { 0.0 };
            }),
            Kind::Small(_) if layers > 0 && count * part >= 0.9 * layers as f64 => {
                out.layer_ops_ns += net(median(&ran)) * part;
            }
            Kind::Small(_) => out.other_ops_ns += net(median(&ran)) * part,
            Kind::Product { ty, k, m, experts, used, columns } => {
                let Some(ty) = StoredType::from_id(*ty) else { continue };
                let ns = net(median(&ran)) / count.max(1.0);
                let [k, m, experts, used, columns] = [*k, *m, *experts, *used, *columns];
                out.products.push(ProductTime { ty, k, m, experts, used, columns, count: count * part, ns });
            }
        }
    }
    let call_ns = median(&series.durations);
    out.recorder = (hits_ns / call_ns.max(1.0)).min(0.9);
    out.call_ns = call_ns * (1.0 - out.recorder);
    // That of calls with different work, or of one, is not known.
    out.spread = 0.1;
    let rest = median(&left).max(0.0);
    out.rest_ns = (rest - cost.call).max(rest / 10.0);
    out.attention = grown(&lengths, &attention);
    out
}

/// Attention in the calls, and how it grows with the context.
fn grown(contexts: &[f64], times: &[f64]) -> AttentionTime {
    let points: Vec<(f64, f64)> =
        contexts.iter().copied().zip(times.iter().copied()).filter(|(x, y)| *x > 0.0 && *y > 0.0).collect();
    // The fit takes quadratic time.
    let step = points.len().div_ceil(400).max(1);
    let some: Vec<(f64, f64)> = points.iter().copied().step_by(step).collect();
    let known = sorted(&points.iter().map(|p| p.0).collect::<Vec<f64>>());
    let (from, to) = (known.first().copied().unwrap_or(0.0), known.last().copied().unwrap_or(0.0));
    // Over a narrow range, noise is larger than growth.
    let wide = to - from >= 32.0 && to >= 1.25 * from;
    let slope = steady_line(&some).filter(|_| wide).map(|(_, slope, _)| slope).filter(|s| *s > 0.0);
    let middle = if known.is_empty() { 0.0 } else { mean(&known) };
    AttentionTime { ns: median(times), width: 0.0, contexts: [from, middle, to], slope }
}
