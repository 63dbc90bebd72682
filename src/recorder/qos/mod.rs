//! Keeps the cost of a recording within what the user allows: feeds the cost of tokens and their hits to the
//! policy, and times the sampling of ops or of their counters. It decides; the session attaches and detaches.

pub mod policy;

use std::time::Duration;

use self::policy::{ChangeReason, DecodedToken, DetailStep, LevelDecision, LevelPolicy, Policy};
use crate::capture::calibrate::{Cost, Way};
use crate::capture::calibration_target::Spot;
use pfi::record::Detail;

/// Minimum length of a burst of sampled ops, ns: adding or removing probes takes some ten milliseconds.
const BURST_NS: u64 = 500_000_000;
/// Hits of a token at level graph: entry and return of the call, its graph, its split and the CPU graph.
const GRAPH_HITS: f64 = 8.0;
const TOKEN_HITS: f64 = 2.0;
/// Extra cost of a hit in an engine, whose weights pass through the caches between two hits, over one in the
/// calibration loop; as a multiple of an op hit's price there. `make bench-cost`, `bench-causes` and `bench-budget`
/// found 0.2 (ops of a small model) to 1.6 (of a large one) for ops, and up to 3 for calls, which are far apart.
const COLD_OP: f64 = 1.5;
const COLD_CALL: f64 = 3.0;
const SHORTEST_WAIT: Duration = Duration::from_millis(10);

/// Cost of a hit on this machine, ns.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Prices {
    /// An op, alone and with its barrier, by the kind of instruction under its probe: emulated, single-stepped.
    pub op: [f64; 2],
    pub with_barrier: [f64; 2],
    /// One end of a call, entry or return, likewise by the instruction under the entry's probe.
    pub call: [f64; 2],
    /// Both with counters, alone first; None: no counters.
    pub counted: Option<[[f64; 2]; 2]>,
    /// One off-CPU interval of a thread, if these are recorded and can be dropped.
    pub offcpu: Option<f64>,
}

impl Prices {
    /// From a calibration, with counters if there are any. None if the calibration lacks something.
    pub fn of(costs: &[Cost], counters: bool, offcpu: Option<f64>) -> Option<Prices> {
        let cost = |way, spot| costs.iter().find(|c| c.way == way && c.spot == spot).map(|c| c.ns);
        let warm = cost(Way::Op, Spot::Emulated)?;
        let both = |way, cold: f64| {
            let ns = |spot| cost(way, spot).map(|ns| ns + cold * warm);
            Some([ns(Spot::Emulated)?, ns(Spot::Stepped)?])
        };
        let counted = match counters {
            true => Some([both(Way::Counted, COLD_OP)?, both(Way::CountedAndBarrier, 2.0 * COLD_OP)?]),
            false => None,
        };
        let call = both(Way::Call, 2.0 * COLD_CALL)?.map(|pair| pair / 2.0);
        Some(Prices {
            op: both(Way::Op, COLD_OP)?,
            with_barrier: both(Way::OpAndBarrier, 2.0 * COLD_OP)?,
            call,
            counted,
            offcpu,
        })
    }

    /// An op on one thread, at a level.
    fn op_hit(&self, engine: &EngineState, level: Detail) -> f64 {
        let plain = [self.op, self.with_barrier];
        let by_barrier = self.counted.filter(|_| level >= Detail::Counters).unwrap_or(plain);
        by_barrier[usize::from(engine.barrier && engine.threads > 1)][usize::from(engine.stepped)]
    }

    /// As text.
    fn words(&self) -> String {
        let counted = self.counted.map(|c| format!(" ({:.0} ns with counters)", c[0][0]));
        let offcpu = self.offcpu.map(|ns| format!(", off-CPU interval {ns:.0} ns"));
        let (counted, offcpu) = (counted.unwrap_or_default(), offcpu.unwrap_or_default());
        format!("overhead per hit: op {:.0} ns{counted}, call {:.0} ns{offcpu}", self.op[0], self.call[0])
    }
}

/// A returned call, and the events of its process until then.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReturnedCall {
    /// When it returned, CLOCK_MONOTONIC ns, and its duration.
    pub t: u64,
    pub dur: u64,
    /// It decoded one token.
    pub decode: bool,
    /// Op hits on all threads, and call events, received before it returned.
    pub ops: u64,
    pub calls: u64,
    /// Off-CPU intervals of threads, likewise.
    pub offcpu: u64,
}

/// Current properties of the engine and its probes.
#[derive(Debug, Clone, Copy)]
pub struct EngineState {
    pub threads: u32,
    /// Nodes of a graph, 0 = not known.
    pub nodes: u32,
    /// The op's probe is on an instruction that the kernel single-steps.
    pub stepped: bool,
    /// Share of the functions probed for calls whose probe is on such an instruction.
    pub calls_stepped: f64,
    /// Barriers are probed together with ops.
    pub barrier: bool,
    /// Context switches of its threads per nanosecond, while the scheduler is not recorded; None: unknown.
    pub switches: Option<f64>,
}

/// The controller.
pub struct Controller {
    pub rule: LevelPolicy,
    policy: Policy,
    prices: Prices,
    before: Option<ReturnedCall>,
    /// Op hits per token on one thread, once known.
    ops: Option<f64>,
    /// Sampling: whether ops are on, and tokens until that changes.
    on: bool,
    left: u64,
    token_ns: u64,
    pub changes: u64,
}

impl Controller {
    /// `top` is the richest level of probes wanted; counters and scheduler come on top of it, if they have a price.
    pub fn new(rule: LevelPolicy, prices: Prices, top: Detail) -> Controller {
        // Calls are always seen: whatever counts tokens and requests is exact.
        let poor = [Detail::Token, Detail::Graph].into_iter().filter(|l| *l < top);
        let counters = prices.counted.map(|_| Detail::Counters);
        let levels: heapless::Vec<Detail, 8> =
            poor.chain([top]).chain(counters).chain(prices.offcpu.map(|_| Detail::Scheduler)).collect();
        let policy = Policy::new(rule, &levels, top.min(Detail::Graph));
        let (before, ops) = (None, None);
        Controller { rule, policy, prices, before, ops, on: true, left: 0, token_ns: 0, changes: 0 }
    }

    /// Whether a level is a candidate.
    pub fn has(&self, level: Detail) -> bool {
        self.policy.has(level)
    }

    /// Removes a level that turned out to be unavailable.
    pub fn forgo(&mut self, level: Detail) {
        self.policy.forgo(level);
    }

    /// Expected cost of a level as a share of a token's time; None: no token was seen, or the cost is unknown.
    pub fn share(&self, level: Detail) -> Option<f64> {
        let cost = self.policy.cost(DetailStep { level, one_in: 1 }).filter(|c| c.is_finite())?;
        (self.token_ns > 0).then(|| cost / self.token_ns as f64)
    }

    /// Cost of the current level, likewise.
    pub fn cost(&self) -> Option<f64> {
        let cost = self.policy.cost(self.now()).filter(|c| c.is_finite())?;
        (self.token_ns > 0).then(|| cost / self.token_ns as f64)
    }

    /// The policy's current step.
    pub fn now(&self) -> DetailStep {
        self.policy.now()
    }

    /// The level to record at now: the policy's, or the one below while a sampled level is off.
    pub fn wanted(&self) -> Detail {
        let DetailStep { level, one_in } = self.policy.now();
        self.policy.below(level).filter(|_| one_in > 1 && !self.on).unwrap_or(level)
    }

    /// Takes a call that ran at `level` from beginning to end; None = probes were added or removed meanwhile.
    pub fn call(
        &mut self,
        done: &ReturnedCall,
        level: Option<Detail>,
        engine: &EngineState,
    ) -> Option<LevelDecision> {
        let before = self.before.replace(*done).filter(|b| b.t <= done.t)?;
        let level = level.filter(|_| done.decode)?;
        self.token_ns = done.dur;
        let threads = f64::from(engine.threads.max(1));
        let ops = done.ops.saturating_sub(before.ops) as f64 / threads;
        let calls = done.calls.saturating_sub(before.calls) as f64;
        // Upper bound: as if the switches of all threads came one after the other.
        let offcpu = done.offcpu.saturating_sub(before.offcpu) as f64 * self.prices.offcpu.unwrap_or(0.0);
        let cost = ops * self.prices.op_hit(engine, level) + calls * self.call_hit(engine) + offcpu;
        if ops > 0.0 {
            self.ops = Some(ops);
        }
        self.predict(engine);
        self.turn();
        let token = DecodedToken { t: done.t, dur: done.dur, cost, level };
        self.policy.token(&token).map(|change| self.note(change))
    }

    fn note(&mut self, change: LevelDecision) -> LevelDecision {
        self.changes += 1;
        (self.on, self.left) = (true, self.burst());
        change
    }

    fn call_hit(&self, engine: &EngineState) -> f64 {
        let [emulated, stepped] = self.prices.call;
        emulated + (stepped - emulated) * engine.calls_stepped
    }

    /// Predicts the cost of levels not seen yet: at most, every node is an op.
    fn predict(&mut self, engine: &EngineState) {
        let call = self.call_hit(engine);
        self.policy.predict(Detail::Token, TOKEN_HITS * call);
        self.policy.predict(Detail::Graph, GRAPH_HITS * call);
        let ops = self.ops.or((engine.nodes > 0).then(|| f64::from(engine.nodes)));
        let at = |level| ops.map(|n| GRAPH_HITS * call + n * self.prices.op_hit(engine, level));
        let (plain, counted) = (at(Detail::Op), at(Detail::Counters));
        if let Some(plain) = plain {
            self.policy.predict(Detail::Op, plain);
            self.policy.predict(Detail::Structure, plain);
        }
        self.policy.predict(Detail::Counters, counted.unwrap_or(f64::INFINITY));
        if let Some(price) = self.prices.offcpu {
            let switches = engine.switches.map(|s| s * self.token_ns as f64);
            self.policy.predict_more(Detail::Scheduler, switches.map_or(f64::INFINITY, |n| n * price));
        }
    }

    fn burst(&self) -> u64 {
        (BURST_NS / self.token_ns.max(1)).max(1)
    }

    /// Advances the sampling by one token.
    fn turn(&mut self) {
        let one_in = self.policy.now().one_in;
        if one_in <= 1 {
            return;
        }
        self.left = self.left.saturating_sub(1);
        if self.left == 0 {
            self.on = !self.on;
            self.left = self.burst() * if self.on { 1 } else { u64::from(one_in) - 1 };
        }
    }

    /// How soon the recorder must check again to notice two tokens that break the rule. Checking more often than
    /// probes can be changed would only cost time.
    pub fn wait(&self, longest: Duration) -> Duration {
        match self.token_ns {
            0 => longest,
            _ => Duration::from_nanos(self.token_ns / 2).clamp(SHORTEST_WAIT.min(longest), longest),
        }
    }

    /// The cost of hits here, as text.
    pub fn prices(&self) -> String {
        self.prices.words()
    }

    /// The reason of a change, as text.
    pub fn words(&self, change: &LevelDecision) -> String {
        let percent = |share: f64| format!("{:.2} %", share * 100.0);
        match change.why {
            ChangeReason::Fits => "the most detailed level that fits".into(),
            ChangeReason::Calm => "within limits since then: one level up".into(),
            ChangeReason::Budget(share) => format!(
                "overhead was {} of token time, the budget is {}",
                percent(share),
                percent(self.rule.budget.unwrap_or(0.0))
            ),
            ChangeReason::Slow(speed) => {
                format!("decoding at {speed:.1} tok/s, the minimum is {:.1}", self.rule.qos.unwrap_or(0.0))
            }
        }
    }
}

/// A level's name, for users.
pub fn name(step: DetailStep) -> String {
    let level = match step.level {
        Detail::Nothing => "nothing",
        Detail::Token => "token",
        Detail::Graph => "graph",
        Detail::Op => "op",
        Detail::Structure => "op with structure",
        Detail::Counters => "counters",
        Detail::Scheduler => "scheduler",
    };
    match step.one_in {
        1 => level.into(),
        n => format!("{level} for one token in {n}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn prices() -> Prices {
        let counted = Some([[3000.0, 4000.0], [4500.0, 6000.0]]);
        Prices {
            op: [1000.0, 2000.0],
            call: [1000.0, 2000.0],
            with_barrier: [1500.0, 3000.0],
            counted,
            offcpu: Some(500.0),
        }
    }

    /// A controller at level graph after two tokens of 100 ms, with a graph of 100 nodes on two threads.
    fn after_two_tokens(switches: Option<f64>) -> (Controller, EngineState, Option<LevelDecision>) {
        let rule = LevelPolicy { budget: Some(0.5), qos: None };
        let mut c = Controller::new(rule, prices(), Detail::Structure);
        let engine = EngineState {
            threads: 2,
            nodes: 100,
            stepped: false,
            calls_stepped: 0.0,
            barrier: true,
            switches,
        };
        let mut last = None;
        for i in 0..3 {
            let (t, dur, calls) = (i * 100 * MS, 100 * MS, 8 * i);
            let done = ReturnedCall { t, dur, decode: true, calls, ..ReturnedCall::default() };
            last = c.call(&done, Some(Detail::Graph), &engine);
        }
        (c, engine, last)
    }

    fn ppm(share: Option<f64>) -> Option<u32> {
        share.map(|s| (s * 1e6).round() as u32)
    }

    #[test]
    fn counters_and_scheduler_are_predicted_and_measured_at_their_price() {
        // The scheduler is not tried until the rate of context switches is known.
        let (_, _, change) = after_two_tokens(None);
        let change = change.expect("a first look");
        assert_eq!((change.to.level, ppm(change.predicted)), (Detail::Counters, Some(4580)));
        // 100 switches per token.
        let (mut c, engine, change) = after_two_tokens(Some(1e-6));
        let change = change.expect("a first look");
        assert_eq!((change.to.level, ppm(change.predicted)), (Detail::Scheduler, Some(5080)));
        let (t, dur, calls) = (300 * MS, 100 * MS, 8 * 3);
        let done = ReturnedCall { t, dur, decode: true, ops: 2 * 90, calls, offcpu: 300 };
        assert_eq!(c.call(&done, Some(Detail::Scheduler), &engine), None);
        // 90 ops, 8 calls, 300 off-CPU intervals.
        assert_eq!(ppm(c.share(Detail::Scheduler)), Some(4050 + 80 + 1500));
        assert_eq!(c.cost(), c.share(Detail::Scheduler));
    }

    #[test]
    fn only_what_has_a_price_is_a_level() {
        let rule = LevelPolicy { budget: Some(0.5), qos: None };
        let all = [Detail::Token, Detail::Graph, Detail::Op, Detail::Structure];
        let levels = |prices: Prices, top| {
            let c = Controller::new(rule, prices, top);
            let more = [Detail::Counters, Detail::Scheduler];
            all.into_iter().chain(more).filter(|l| c.has(*l)).collect::<Vec<_>>()
        };
        let bare = Prices { counted: None, offcpu: None, ..prices() };
        assert_eq!(levels(bare, Detail::Op), all[..3]);
        let offcpu = Prices { counted: None, ..prices() };
        assert_eq!(levels(offcpu, Detail::Token), [Detail::Token, Detail::Scheduler]);
        assert_eq!(levels(prices(), Detail::Structure).last(), Some(&Detail::Scheduler));
        assert!(!levels(prices(), Detail::Structure).contains(&Detail::Op));
    }
}
