//! `profinfer experts`: which experts to keep when not all fit, and what caches of each size and policy would bring.
//!
//! Every policy is replayed exactly over the recorded experts, with the rules that `ggml-runner run --expert-slots` follows
//! (`ggml::expert_cache`). Hit rates are those of decode; prompts go through the caches as well, as far as their experts were
//! recorded.

pub mod by_prompt;
pub mod device;
pub mod missed;
pub mod raster;
pub mod simulate;

use std::collections::BTreeMap;

use serde::Serialize;

use self::by_prompt::ExpertPart;
use self::device::DeviceLayers;
use self::missed::{ExpertReads, Missed};
use self::raster::Raster;
use self::simulate::{Held, ReadTimes, Replay, ranked};
use crate::recorded::calls::{Call, Phase, Timeline, requests, timeline};
use crate::recorded::describe::op_name;
use crate::recorded::load::{HitTensors, LoadProgress, Loaded, load};
use crate::recorded::runs::{RunId, Runs};
use crate::recorded::selection::{Cut, NoPart};
use crate::sums::attribution::expert_ops::{LayerOp, LayerOps, cache_sizes, expert_matrices, expert_ops};
use crate::sums::attribution::pass::EXPERTS;
use crate::sums::ops::{OpTimes, op_times};
use common::aside;
use ggml::expert_cache::ExpertPolicy;
use ggml::expert_pins::{PinError, PinFile};
use pfi::Trace;

/// What to replay.
#[derive(Debug, Clone, Default)]
pub struct CacheOptions {
    /// The list that `pin` follows; None: that of the other half of the recording.
    pub pins: Option<PinFile>,
    /// None: the process with the most calls.
    pub pid: Option<RunId>,
    /// Experts per layer to keep; if empty and no memory is given, sizes that suit the model.
    pub slots: Vec<u32>,
    /// Bytes for the experts of all layers.
    pub memory: Option<u64>,
    /// What reading experts of a layer takes; empty if that is not known.
    pub times: ReadTimes,
    /// Also request by request.
    pub by_prompt: bool,
    /// For a picture: more sizes, and the map of a layer.
    pub picture: bool,
}

/// Why nothing can be replayed.
#[derive(Debug, thiserror::Error)]
pub enum NoExperts {
    #[error(transparent)]
    Part(#[from] NoPart),
    #[error("no experts are recorded: record a mixture-of-experts model with --experts")]
    NoneRecorded,
    #[error("the experts of no token in decode are recorded: record tokens after the prompt")]
    NoDecode,
    #[error(
        "the bytes of an expert are not known, since the weights are not described: give --slots instead of --memory"
    )]
    NoBytes,
    #[error("{memory} bytes are less than one expert of each layer, {least} bytes: give more, or --slots")]
    NoRoom { memory: u64, least: u64 },
    #[error(transparent)]
    Pins(#[from] PinError),
}

/// Which experts to keep, and what it brings. `schema` is increased when a field changes its meaning.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ExpertCaches {
    pub schema: u32,
    pub pid: u32,
    pub layers: u64,
    /// Of the layer with the most.
    pub experts: u64,
    /// Chosen per token and layer.
    pub used: u32,
    /// Tokens of decode.
    pub tokens: u64,
    /// Experts that decode needed, each once an op.
    pub needed: u64,
    /// Ops whose experts were not read; caches stay as they are there.
    pub unread: u64,
    /// Parts by which hit rates vary, and what they are: `requests`, or `tenths` of the tokens where one request has
    /// more than half of them.
    pub parts: u64,
    pub parts_of: &'static str,
    /// Where `pin`'s list is from: `file`, or the other half of the recording, `half`.
    pub pins: &'static str,
    /// Bytes of each matrix of one expert, of the layer with the most bytes; empty if the weights are not described.
    pub expert_matrices: Vec<u64>,
    /// Bytes of one expert, the mean over the layers, and of all experts of all layers; null if the weights are not described.
    pub expert_bytes: Option<f64>,
    pub all_bytes: Option<u64>,
    /// Time in calls per token as recorded, ns.
    pub token_ns: Option<f64>,
    /// What reading one expert of a layer takes, two at the same time, and so on, ns; empty if not given.
    pub reads_ns: Vec<f64>,
    pub caches: Vec<ExpertCacheRow>,
    /// The policies, in the order of the caches' rows.
    pub policies: [&'static str; 5],
    /// Request by request, or tenth by tenth; empty if not asked for.
    pub by_prompt: Vec<ExpertPart>,
    /// What was read from the disk while it ran; null if that was not recorded, or no model's file was mapped.
    pub reads: Option<ExpertReads>,
    /// Whose experts a device's memory holds; null without --memory, or if the weights are not described.
    pub device: Option<DeviceLayers>,
    /// Of the layer of which most experts were missed.
    #[serde(skip)]
    pub raster: Option<Raster>,
    /// The experts of each layer, most often needed in decode first.
    pub ranking: Vec<RankedLayer>,
}

/// A policy at one number of slots.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ExpertCacheRow {
    /// Per layer.
    pub slots: u32,
    /// Bytes of the slots of all layers.
    pub bytes: Option<f64>,
    /// `lru`, `lfu`, `next`, `pin`, `optimum`.
    pub policy: &'static str,
    /// Share of the experts needed in decode that were in a slot when the op began.
    pub hit_rate: Option<f64>,
    /// The lowest and highest of the parts.
    pub by_part: Option<[f64; 2]>,
    /// Experts read per token of decode, of all layers: when they were needed, and early.
    pub reads_per_token: f64,
    pub early_per_token: f64,
    /// Tokens per second: if every read makes the token wait, early ones as well; and if the layer's other experts are computed
    /// meanwhile, and early reads cost nothing. Null without the time of a read.
    pub tokens_per_s: Option<[f64; 2]>,
}

/// The experts of a layer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RankedLayer {
    pub layer: Option<u32>,
    pub name: String,
    pub experts: Vec<RankedExpert>,
}

/// How often decode needed an expert.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct RankedExpert {
    pub expert: u16,
    pub uses: u64,
}

/// The policies that are replayed.
pub const POLICIES: [&str; 5] = ["lru", "lfu", "next", "pin", "optimum"];
/// Parts of a recording of one request.
const TENTHS: usize = 10;
/// Sizes of a curve.
const CURVE: u64 = 16;

/// Replays the caches of a recording.
///
/// # Errors
/// There is no such process, or there are no experts to replay.
pub fn experts(
    trace: &Trace,
    options: &CacheOptions,
    progress: &LoadProgress,
) -> Result<ExpertCaches, NoExperts> {
    progress.total.store(trace.size(), std::sync::atomic::Ordering::Relaxed);
    let mut loaded = load(trace, progress);
    let line = timeline(&loaded);
    let cut = Cut { pid: options.pid, ..Cut::default() };
    let runs = Runs::of(&loaded, &line);
    let part = cut.part_of(&loaded, &line, runs)?;
    cut.apply(&part, &mut loaded);
    of(&mut loaded, options, progress)
}

/// The same of a loaded (part of a) trace.
///
/// # Errors
/// There are no experts to replay.
pub fn of(
    loaded: &mut Loaded<'_>,
    options: &CacheOptions,
    progress: &LoadProgress,
) -> Result<ExpertCaches, NoExperts> {
    let line = timeline(loaded);
    let times = op_times(loaded, &line, progress);
    let loaded = &*loaded;
    let layers = expert_ops(loaded, &line);
    if layers.is_empty() {
        return Err(NoExperts::NoneRecorded);
    }
    let parts = Parts::of(loaded, &line, &layers);
    let pid = layers.first().map_or(0, |l| l.pid);
    let matrices = expert_matrices(loaded, pid);
    let whole = |bytes: &Vec<u64>| bytes.iter().fold(0, |sum: u64, b| sum.saturating_add(*b));
    let bytes = layers.iter().map(|l| matrices.get(&l.layer?).map(whole)).collect::<Option<Vec<u64>>>();
    let tokens = layers.iter().map(decoded).max().unwrap_or(0);
    if tokens == 0 {
        return Err(NoExperts::NoDecode);
    }
    let used = layers.iter().map(|l| l.used).max().unwrap_or(0);
    let most = layers.iter().map(|l| l.experts).max().unwrap_or(0);
    let sizes = sizes(options, bytes.as_deref(), used, most)?;
    let token_ns = token_ns(&line.calls);
    let ops = layers.iter().flat_map(|l| &l.ops).filter(|op| op.phase != Phase::Prefill).count();
    let compute_ns = experts_ns(loaded, &times) as f64 / ops.max(1) as f64;
    let named = layers.iter().filter_map(|l| l.layer).max().map_or(0, |last| last as usize + 1);
    let pins = options.pins.as_ref().map(|file| file.by_layer(named, most)).transpose()?;
    let per_expert = bytes.as_deref().map(|b| b.iter().sum::<u64>() as f64);
    let (mut caches, mut by_prompt) = (Vec::new(), Vec::new());
    let mut needed = 0;
    let first = sizes.first().copied().unwrap_or(used);
    let sizes = if options.picture { more_sizes(&sizes, most) } else { sizes };
    for slots in sizes {
        let times = (&options.times, compute_ns);
        let replayed = replayed(&layers, slots as usize, &parts, times, pins.as_deref());
        if options.by_prompt {
            by_prompt.extend(by_prompt::parts(&layers, slots, &parts, &replayed));
        }
        for (policy, held) in replayed {
            let mut sum = Held::default();
            held.iter().for_each(|h| sum.merge(h));
            needed = sum.needed;
            let per_token = |n: u64| n as f64 / tokens as f64;
            let known = !options.times.ns.is_empty();
            let speed = |wait: f64| token_ns.filter(|_| known).map(|ns| 1e9 / (ns + wait / tokens as f64));
            caches.push(ExpertCacheRow {
                slots,
                bytes: per_expert.map(|b| b * f64::from(slots)),
                policy,
                hit_rate: sum.hit_rate(),
                by_part: extremes(&held),
                reads_per_token: per_token(sum.needed - sum.hits),
                early_per_token: per_token(sum.early),
                tokens_per_s: speed(sum.most_ns).zip(speed(sum.least_ns)).map(|(least, most)| [least, most]),
            });
        }
    }
    let all_bytes = bytes.as_deref().map(|bytes| {
        layers.iter().zip(bytes).map(|(l, b)| b.saturating_mul(l.experts as u64)).fold(0, u64::saturating_add)
    });
    let ranking = layers.iter().map(|l| RankedLayer {
        layer: l.layer,
        name: l.name.clone(),
        experts: ranked(l, |_| true)
            .into_iter()
            .map(|(expert, uses)| RankedExpert { expert, uses })
            .collect(),
    });
    let missed = missed::of(loaded, &line, &layers, pid);
    Ok(ExpertCaches {
        schema: 1,
        pid,
        layers: layers.len() as u64,
        experts: most as u64,
        used,
        tokens,
        needed,
        unread: loaded.causes.experts.iter().filter(|r| !r.why.is_empty()).count() as u64,
        parts: parts.count as u64,
        parts_of: parts.what,
        pins: if options.pins.is_some() { "file" } else { "half" },
        expert_matrices: matrices.into_values().max_by_key(whole).unwrap_or_default(),
        expert_bytes: per_expert.map(|b| b / layers.len() as f64),
        all_bytes,
        token_ns,
        reads_ns: options.times.ns.clone(),
        caches,
        policies: POLICIES,
        by_prompt,
        device: options.memory.and_then(|memory| device::of(loaded, &times, pid, memory)),
        raster: options.picture.then(|| raster(&layers, missed.as_ref(), first)).flatten(),
        reads: missed.map(|(reads, _)| reads),
        ranking: ranking.collect(),
    })
}

/// Tokens of decode.
fn decoded(layer: &LayerOps) -> u64 {
    layer.ops.iter().filter(|op| op.phase != Phase::Prefill).map(|op| u64::from(op.tokens)).sum()
}

/// Time in calls per token of decode.
fn token_ns(calls: &[Call]) -> Option<f64> {
    let whole = calls.iter().filter(|c| c.phase == Phase::Decode && !c.cut);
    let (ns, tokens) = whole.fold((0.0, 0u64), |(ns, n), c| (ns + c.dur as f64, n + c.tokens.unwrap_or(1)));
    (tokens > 0).then(|| ns / tokens as f64)
}

/// Time in the multiplications with experts in decode, ns, of all layers and tokens.
fn experts_ns(loaded: &Loaded<'_>, times: &OpTimes) -> u64 {
    ops_with_experts(loaded, times).fold(0, |sum: u64, (_, ns)| sum.saturating_add(ns))
}

/// The multiplications with experts in decode, and their time, ns.
fn ops_with_experts<'l>(loaded: &'l Loaded<'_>, times: &'l OpTimes) -> impl Iterator<Item = (u32, u64)> {
    let of_experts =
        |hit: &HitTensors| loaded.tensors.get(&hit.0).is_some_and(|t| op_name(loaded, t.op) == EXPERTS);
    let decode = times.plans.iter().filter(|((_, phase), _)| *phase != Phase::Prefill);
    decode
        .filter_map(|((plan, _), stat)| Some((loaded.plans.get(plan)?, stat)))
        .flat_map(|(plan, stat)| plan.hits.iter().zip(&stat.positions))
        .filter(move |(hit, _)| of_experts(hit))
        .map(|(hit, at)| (hit.0, at.total.saturating_add(at.wait)))
}

fn sizes(
    options: &CacheOptions,
    bytes: Option<&[u64]>,
    used: u32,
    most: usize,
) -> Result<Vec<u32>, NoExperts> {
    let Some(memory) = options.memory else {
        return Ok(cache_sizes(&options.slots, used, most as u64));
    };
    let least: u64 = bytes.ok_or(NoExperts::NoBytes)?.iter().fold(0, |sum, b| sum.saturating_add(*b));
    match memory.checked_div(least) {
        None | Some(0) => Err(NoExperts::NoRoom { memory, least }),
        Some(slots) => Ok(vec![u32::try_from(slots.min(most as u64)).unwrap_or(u32::MAX)]),
    }
}

/// Sizes for a curve: those wanted, and more between one slot and all experts.
fn more_sizes(wanted: &[u32], most: usize) -> Vec<u32> {
    let most = u32::try_from(most).unwrap_or(u32::MAX);
    let mut all: Vec<u32> = (1..=CURVE).map(|i| (u64::from(most) * i / CURVE).max(1) as u32).collect();
    all.extend_from_slice(wanted);
    all.sort_unstable();
    all.dedup();
    all
}

/// The map of the layer of which most experts were missed, as it was; without reads, of the first layer in `slots` slots.
fn raster(layers: &[LayerOps], missed: Option<&(ExpertReads, Missed)>, slots: u32) -> Option<Raster> {
    let number = match missed {
        Some((reads, _)) => reads.layers.iter().max_by_key(|l| l.missed)?.layer,
        None => layers.iter().find_map(|l| l.layer)?,
    };
    let layer = layers.iter().find(|l| l.layer == Some(number))?;
    Some(match missed {
        Some((_, of)) => raster::as_it_was(layer, number, of),
        None => raster::simulated(layer, number, slots),
    })
}

/// What each policy held, by part.
fn replayed(
    layers: &[LayerOps],
    slots: usize,
    parts: &Parts,
    (times, compute_ns): (&ReadTimes, f64),
    pins: Option<&[Vec<u16>]>,
) -> Vec<(&'static str, Vec<Held>)> {
    let at: Vec<usize> = (0..layers.len()).collect();
    let several = std::thread::available_parallelism().map_or(1, usize::from);
    let of = |some: &[usize]| replayed_layers(layers, some, slots, parts, (times, compute_ns), pins);
    let mut sums = POLICIES.map(|name| (name, vec![Held::default(); parts.count]));
    for some in aside::each(at.chunks(at.len().div_ceil(several).max(1)), of) {
        for ((_, sum), held) in sums.iter_mut().zip(some) {
            sum.iter_mut().zip(&held).for_each(|(sum, h)| sum.merge(h));
        }
    }
    sums.into()
}

/// The same of some layers, by policy.
fn replayed_layers(
    layers: &[LayerOps],
    some: &[usize],
    slots: usize,
    parts: &Parts,
    (times, compute_ns): (&ReadTimes, f64),
    pins: Option<&[Vec<u16>]>,
) -> [Vec<Held>; 5] {
    let mut sums = POLICIES.map(|_| vec![Held::default(); parts.count]);
    let part = |op: &LayerOp| parts.of_op(op);
    for (at, layer) in some.iter().filter_map(|at| Some((*at, layers.get(*at)?))) {
        let before = at.checked_sub(1).and_then(|before| layers.get(before));
        let replay = Replay { layer, slots, parts: parts.count, part: &part, times, compute_ns };
        // Each half of the parts is served by what the other half needed most.
        let half = |op: &LayerOp| parts.number(op) % 2;
        let by = [1, 0].map(|other| match pins {
            Some(pins) => layer.layer.and_then(|l| pins.get(l as usize)).cloned().unwrap_or_default(),
            None => ranked(layer, |op| half(op) == other).into_iter().map(|(expert, _)| expert).collect(),
        });
        let of_policies = [
            replay.slots(ExpertPolicy::Lru),
            replay.slots(ExpertPolicy::Lfu),
            replay.early(before),
            replay.pinned(half, &by),
            replay.optimum(),
        ];
        for (sum, held) in sums.iter_mut().zip(of_policies) {
            sum.iter_mut().zip(&held).for_each(|(sum, h)| sum.merge(h));
        }
    }
    sums
}

fn extremes(held: &[Held]) -> Option<[f64; 2]> {
    let rates: Vec<f64> = held.iter().filter_map(Held::hit_rate).collect();
    let least = rates.iter().copied().reduce(f64::min)?;
    (rates.len() > 1).then(|| [least, rates.iter().copied().fold(least, f64::max)])
}

/// Parts of the recording that are counted separately: requests, or tenths of the tokens.
struct Parts {
    count: usize,
    what: &'static str,
    /// Part of each graph that has one.
    of_graph: BTreeMap<u64, usize>,
}

impl Parts {
    fn of(loaded: &Loaded<'_>, line: &Timeline, layers: &[LayerOps]) -> Parts {
        let ops = layers.iter().map(|l| &l.ops).max_by_key(|ops| ops.len());
        let graphs: Vec<u64> =
            ops.into_iter().flatten().filter(|op| op.phase != Phase::Prefill).map(|op| op.graph).collect();
        let starts: Vec<i64> = requests(&line.calls).list.iter().map(|r| r.start_ns).collect();
        let of = |t: i64| starts.partition_point(|s| *s <= t).saturating_sub(1);
        let of_graph: BTreeMap<u64, usize> = loaded.cpu_graphs.iter().map(|g| (g.seq, of(g.t))).collect();
        let mut sizes = vec![0usize; starts.len()];
        for part in graphs.iter().filter_map(|g| of_graph.get(g)) {
            if let Some(n) = sizes.get_mut(*part) {
                *n += 1;
            }
        }
        // A warm-up and one request are no two of a kind.
        if sizes.iter().max().is_some_and(|most| most * 2 <= graphs.len()) {
            return Parts { count: sizes.len(), what: "requests", of_graph };
        }
        let of_graph = graphs.iter().enumerate().map(|(i, g)| (*g, i * TENTHS / graphs.len())).collect();
        Parts { count: TENTHS, what: "tenths", of_graph }
    }

    fn number(&self, op: &LayerOp) -> usize {
        self.of_graph.get(&op.graph).copied().unwrap_or(0)
    }

    /// The part in which an op of decode is counted.
    fn of_op(&self, op: &LayerOp) -> Option<usize> {
        (op.phase != Phase::Prefill).then(|| self.number(op))
    }
}
