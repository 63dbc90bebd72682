//! Predicts the slowdown of an engine while it is recorded: hits of one thread per token, times the cost of a
//! hit, divided by the time of a token.

use serde::Serialize;

use crate::recorded::calls::{Phase, Timeline, timeline};
use crate::recorded::load::{LoadProgress, load};
use pfi::Trace;

/// Probe hits of one thread while a token is decoded. A call counts once here but has two hits, at entry and
/// return.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PredictedHits {
    /// Calls of the token functions.
    pub token_calls: f64,
    /// Calls for graphs and their splits.
    pub graph_calls: f64,
    pub ops: f64,
    pub barriers: f64,
}

/// A trace from which nothing can be predicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("has no op hits: record with --level op, or pass their number with --ops")]
pub struct NoOpHits;

impl PredictedHits {
    /// A token with `ops` op hits in one graph of one split, with a barrier after each op.
    pub fn of_ops(ops: u32) -> PredictedHits {
        PredictedHits { token_calls: 1.0, graph_calls: 3.0, ops: ops.into(), barriers: ops.into() }
    }

    /// Hits per decode call in a trace of level op; if it has no decode calls, per call of any kind.
    ///
    /// # Errors
    /// The trace has no such hits.
    pub fn of_trace(trace: &Trace) -> Result<PredictedHits, NoOpHits> {
        let loaded = load(trace, &LoadProgress::default());
        let line = timeline(&loaded);
        let phase = if has(&line, Phase::Decode) { Phase::Decode } else { Phase::Unknown };
        let in_phase = |p: Phase| phase == Phase::Unknown || p == phase;
        let calls = line.calls.iter().filter(|c| in_phase(c.phase)).count();
        let ops: f64 = loaded
            .cpu_graphs
            .iter()
            .zip(&line.cpu_phase)
            .filter(|(g, p)| in_phase(**p) && !g.cut)
            .map(|(g, _)| f64::from(g.seen) / f64::from(g.n_threads.max(1)))
            .sum();
        if calls == 0 || ops == 0.0 {
            return Err(NoOpHits);
        }
        let per_call = |n: usize| n as f64 / line.calls.len().max(1) as f64;
        let kind = |name: &str| {
            let kinds = loaded.footer.iter().flat_map(|f| &f.kinds);
            kinds.filter(|k| k.kind == name).map(|k| k.seen).sum::<u64>() as f64
        };
        let ops = ops / calls as f64;
        // With fewer than one barrier per op, the barrier was probed for part of the run only, or not at all.
        let barriers = if kind("op") > 0.0 { (kind("barrier") / kind("op")).max(1.0) } else { 1.0 };
        Ok(PredictedHits {
            token_calls: 1.0,
            graph_calls: per_call(loaded.graphs.len())
                + per_call(loaded.splits.len())
                + per_call(loaded.cpu_graphs.len()),
            ops,
            barriers: ops * barriers,
        })
    }
}

fn has(line: &Timeline, phase: Phase) -> bool {
    line.calls.iter().any(|c| c.phase == phase)
}

/// Minimum and maximum, in the unit of the quantity.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Range {
    pub least: f64,
    pub most: f64,
}

/// Cost of hits in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct HitCosts {
    /// Entry and return of a call.
    pub call: Range,
    pub op: Range,
    pub barrier: Range,
}

/// A 2.4 GHz Arm core (Kunpeng 916) with a nearly empty program: entry probe on an emulated and on a
/// single-stepped instruction, return probe with either. From lists.infradead.org/pipermail/linux-arm-kernel
/// 2024-August/950794.html and 2024-September/959989.html.
const CORE_ENTRY: Range = Range { least: 540.0, most: 1090.0 };
const CORE_RETURN: Range = Range { least: 1040.0, most: 1560.0 };
/// Additional cost of our programs: guest instructions relative to a hit with an empty program, the largest of
/// kernels 5.10 to 7.2 (make bench-arm-cost), on an emulated and on a single-stepped instruction.
const OP_OVER_EMPTY: Range = Range { least: 1.6, most: 1.35 };
const BARRIER_OVER_EMPTY: Range = Range { least: 1.25, most: 1.15 };

impl HitCosts {
    /// For boards in general.
    pub fn of_boards() -> HitCosts {
        let times = |a: Range, b: Range| Range { least: a.least * b.least, most: a.most * b.most };
        let (op, barrier) = (times(CORE_ENTRY, OP_OVER_EMPTY), times(CORE_ENTRY, BARRIER_OVER_EMPTY));
        let call = Range { least: op.least + CORE_RETURN.least, most: op.most + CORE_RETURN.most };
        HitCosts { call, op, barrier }
    }
}

/// One level of recording.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PredictedLevel {
    pub level: &'static str,
    /// Hits of one thread per token.
    pub hits: f64,
    /// Added time as a share of the time of a token; may exceed 1. None: not measured on this machine.
    pub here: Option<Range>,
    pub boards: Range,
}

/// The prediction; `profinfer doctor --predict --json` prints it as `prediction`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Prediction {
    pub tokens_per_s: f64,
    /// Where the hits come from.
    pub source: String,
    pub hits: PredictedHits,
    pub here_ns: Option<HitCosts>,
    pub boards_ns: HitCosts,
    pub levels: Vec<PredictedLevel>,
    pub assumptions: Vec<&'static str>,
}

/// For an engine that runs at this speed when not recorded.
pub fn predict(
    tokens_per_s: f64,
    source: String,
    hits: PredictedHits,
    here_ns: Option<HitCosts>,
) -> Prediction {
    let boards_ns = HitCosts::of_boards();
    let row = |level, graph: bool, ops: f64, barriers: f64| {
        let calls = hits.token_calls + if graph { hits.graph_calls } else { 0.0 };
        let share = |of: fn(&Range) -> f64, c: &HitCosts| {
            (calls * of(&c.call) + ops * of(&c.op) + barriers * of(&c.barrier)) * tokens_per_s / 1e9
        };
        let range = |c: &HitCosts| Range { least: share(|r| r.least, c), most: share(|r| r.most, c) };
        PredictedLevel {
            level,
            hits: 2.0 * calls + ops + barriers,
            here: here_ns.as_ref().map(range),
            boards: range(&boards_ns),
        }
    };
    let levels = vec![
        row("token", false, 0.0, 0.0),
        row("graph", true, 0.0, 0.0),
        row("op, one thread", true, hits.ops, 0.0),
        row("op, with barriers", true, hits.ops, hits.barriers),
    ];
    let assumptions = ASSUMPTIONS.to_vec();
    Prediction { tokens_per_s, source, hits, here_ns, boards_ns, levels, assumptions }
}

const ASSUMPTIONS: [&str; 6] = [
    "threads pay at the same time, so only one thread's hits delay the token",
    "all of its hits delay it: none falls into a wait that would occur anyway",
    "a hit costs as much as in a loop: cold caches and other threads' hits on the same probe are not counted",
    "least: the kernel emulates the instructions probed; most: it single-steps them",
    "structure is unchanged; tokens that rebuild the graph cost more",
    "boards: 0.54 to 1.56 us per hit as published for a 2.4 GHz Arm core, plus the BPF programs' share by instructions",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hits_times_cost_over_the_time_of_a_token() {
        let flat = |ns| Range { least: ns, most: 2.0 * ns };
        let costs = HitCosts { call: flat(4000.0), op: flat(1000.0), barrier: flat(500.0) };
        let p = predict(10.0, "--ops".into(), PredictedHits::of_ops(400), Some(costs));
        let least: Vec<f64> = p.levels.iter().map(|r| r.here.expect("measured").least).collect();
        // Per token of 100 ms: 4 us; 16 us; 416 us; 616 us.
        for (got, want) in least.iter().zip([4e-5, 16e-5, 416e-5, 616e-5]) {
            assert!((got - want).abs() < 1e-12, "{got} is not {want}");
        }
        assert_eq!(p.levels.iter().map(|r| r.hits).collect::<Vec<_>>(), [2.0, 8.0, 408.0, 808.0]);
        assert!(p.levels.iter().all(|r| r.boards.least < r.boards.most));
    }

    #[test]
    fn what_was_not_measured_is_not_zero() {
        let p = predict(10.0, "--ops".into(), PredictedHits::of_ops(1), None);
        assert!(p.levels.iter().all(|r| r.here.is_none()));
    }
}
