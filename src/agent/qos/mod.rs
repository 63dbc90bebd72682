//! Keeps what a recording costs within what the user allows: what tokens and their hits cost, fed to the law; sampling of
//! ops in turns. It decides, the session attaches and detaches. Uses `calibrate`, `rehearsal` and `trace`.

pub mod law;

use std::time::Duration;

use self::law::{Change, Law, Rule, Step, Token, Why};
use super::calibrate::{Cost, Way};
use super::rehearsal::Spot;
use crate::trace::record::Detail;

/// A burst of sampled ops lasts at least so long, ns: probes take some ten milliseconds to come and go.
const BURST_NS: u64 = 500_000_000;
/// Hits of a token at level graph: entry and return of the call, its graph, its split and the CPU's graph.
const GRAPH_HITS: f64 = 8.0;
const TOKEN_HITS: f64 = 2.0;
const SHORTEST_WAIT: Duration = Duration::from_millis(10);

/// What a hit costs on this machine, ns.
#[derive(Debug, Clone, Copy)]
pub struct Prices {
    /// An op, alone and with its barrier, by the kind of instruction that its probe sits on: emulated, single-stepped.
    pub op: [f64; 2],
    pub with_barrier: [f64; 2],
}

impl Prices {
    /// From a calibration. None when it lacks something.
    pub fn of(costs: &[Cost]) -> Option<Prices> {
        let cost = |way, spot| costs.iter().find(|c| c.way == way && c.spot == spot).map(|c| c.ns);
        let both = |way| Some([cost(way, Spot::Emulated)?, cost(way, Spot::Stepped)?]);
        Some(Prices { op: both(Way::Op)?, with_barrier: both(Way::OpAndBarrier)? })
    }

    fn op_hit(&self, stepped: bool, barrier: bool) -> f64 {
        (if barrier { self.with_barrier } else { self.op })[usize::from(stepped)]
    }
}

/// A call that has returned, and the events of its process until then.
#[derive(Debug, Clone, Copy, Default)]
pub struct Done {
    /// When, CLOCK_MONOTONIC ns, and how long it took.
    pub t: u64,
    pub dur: u64,
    /// It decoded one token.
    pub decode: bool,
    /// Op hits on all threads, and events of calls, that were received before.
    pub ops: u64,
    pub calls: u64,
}

/// What the engine's probes are like just now.
#[derive(Debug, Clone, Copy)]
pub struct Engine {
    pub threads: u32,
    /// Nodes of a graph, 0 = not known.
    pub nodes: u32,
    /// The op's probe sits on an instruction that the kernel single-steps.
    pub stepped: bool,
    /// Barriers are probed when ops are.
    pub barrier: bool,
}

/// The controller.
pub struct Controller {
    pub rule: Rule,
    law: Law,
    prices: Prices,
    before: Option<Done>,
    /// Sampling: the ops' turn, and tokens until it is over.
    on: bool,
    left: u64,
    token_ns: u64,
    pub changes: u64,
}

impl Controller {
    /// `top` is the richest level wanted.
    pub fn new(rule: Rule, prices: Prices, top: Detail) -> Controller {
        let all = [Detail::Nothing, Detail::Token, Detail::Graph, top];
        let levels: heapless::Vec<Detail, 4> = all
            .into_iter()
            .enumerate()
            .filter(|(i, l)| *l <= top && (*i == 3 || *l != top))
            .map(|(_, l)| l)
            .collect();
        let law = Law::new(rule, &levels, top.min(Detail::Graph));
        Controller { rule, law, prices, before: None, on: true, left: 0, token_ns: 0, changes: 0 }
    }

    /// Where the law stands.
    pub fn now(&self) -> Step {
        self.law.now()
    }

    /// The level to record at just now: the law's, or while ops are sampled and it is not their turn the one below.
    pub fn wanted(&self) -> Detail {
        let Step { level, one_in } = self.law.now();
        if one_in > 1 && !self.on { Detail::Graph } else { level }
    }

    /// Takes a call, which ran at `level` from beginning to end; None = probes came or went meanwhile.
    pub fn call(&mut self, done: &Done, level: Option<Detail>, engine: &Engine) -> Option<Change> {
        let before = self.before.replace(*done).filter(|b| b.t <= done.t)?;
        let level = level.filter(|_| done.decode)?;
        self.token_ns = done.dur;
        let threads = f64::from(engine.threads.max(1));
        let barrier = engine.barrier && engine.threads > 1;
        let hit = self.prices.op_hit(engine.stepped, barrier);
        let ops = done.ops.saturating_sub(before.ops) as f64 / threads;
        let calls = done.calls.saturating_sub(before.calls) as f64;
        let cost = ops * hit + calls * self.prices.op_hit(engine.stepped, false);
        self.predict(engine.nodes, hit, engine.stepped);
        self.turn();
        let token = Token { t: done.t, dur: done.dur, cost, level };
        self.law.token(&token).map(|change| self.note(change))
    }

    /// Called where no calls are seen.
    pub fn idle(&mut self, t: u64) -> Option<Change> {
        self.law.idle(t).map(|change| self.note(change))
    }

    fn note(&mut self, change: Change) -> Change {
        self.changes += 1;
        (self.on, self.left) = (true, self.burst());
        change
    }

    /// What levels not seen yet are expected to cost: at most every node is an op.
    fn predict(&mut self, nodes: u32, hit: f64, stepped: bool) {
        let call = self.prices.op_hit(stepped, false);
        self.law.predict(Detail::Token, TOKEN_HITS * call);
        self.law.predict(Detail::Graph, GRAPH_HITS * call);
        if nodes > 0 {
            let ops = GRAPH_HITS * call + f64::from(nodes) * hit;
            self.law.predict(Detail::Op, ops);
            self.law.predict(Detail::Structure, ops);
        }
    }

    fn burst(&self) -> u64 {
        (BURST_NS / self.token_ns.max(1)).max(1)
    }

    /// Counts a token off the turn of the sampling.
    fn turn(&mut self) {
        let one_in = self.law.now().one_in;
        if one_in <= 1 {
            return;
        }
        self.left = self.left.saturating_sub(1);
        if self.left == 0 {
            self.on = !self.on;
            self.left = self.burst() * if self.on { 1 } else { u64::from(one_in) - 1 };
        }
    }

    /// How soon the recorder has to look again to notice two tokens that break the rule. Sooner than probes come and go
    /// would only cost.
    pub fn wait(&self, longest: Duration) -> Duration {
        match self.law.now().level {
            Detail::Nothing => longest,
            _ if self.token_ns == 0 => longest,
            _ => Duration::from_nanos(self.token_ns / 2).clamp(SHORTEST_WAIT.min(longest), longest),
        }
    }

    /// A change in words.
    pub fn words(&self, change: &Change) -> String {
        let percent = |share: f64| format!("{:.2} %", share * 100.0);
        match change.why {
            Why::Fits => "the richest level that fits".into(),
            Why::Calm => "calm since then: one level up".into(),
            Why::Budget(share) => format!(
                "it cost {} of a token's time, the budget is {}",
                percent(share),
                percent(self.rule.budget.unwrap_or(0.0))
            ),
            Why::Slow(speed) => {
                format!("decoding at {speed:.1} tokens/s, {:.1} are wanted", self.rule.qos.unwrap_or(0.0))
            }
        }
    }
}

/// A level's name, for people.
pub fn name(step: Step) -> String {
    let level = match step.level {
        Detail::Nothing => "nothing",
        Detail::Token => "token",
        Detail::Graph => "graph",
        Detail::Op => "op",
        Detail::Structure => "op with structure",
        Detail::Counters => "op with counters",
        Detail::Scheduler => "op with scheduler",
    };
    match step.one_in {
        1 => level.into(),
        n => format!("{level} for one token in {n}"),
    }
}
