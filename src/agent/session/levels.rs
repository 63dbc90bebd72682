//! A session under a budget: asks the controller what to record, attaches and detaches, tells the trace. Uses what the
//! session uses, and `qos`.

use std::rc::Rc;
use std::time::Duration;

use super::Session;
use super::extras::price_of_turns;
use super::setup::roles;
use crate::agent::attached::{Attached, Role};
use crate::agent::drain::Shown;
use crate::agent::pmc::Counters;
use crate::agent::pmc::follow::Shared;
use crate::agent::prologue::Cost;
use crate::agent::qos::law::{Change, Step};
use crate::agent::qos::{self, Controller, Prices};
use crate::agent::recording::{Learnt, Options, RecordError, Watch};
use crate::agent::road::Road;
use crate::agent::verify::OpEnd;
use crate::agent::{calibrate, refusal, usage};
use crate::trace::WriteError;
use crate::trace::record::{Availability, Detail, Feature, Level, LevelChange};

/// The richest level that the options ask for.
pub(super) fn top(level: Level, structure: bool) -> Detail {
    match level {
        Level::Token => Detail::Token,
        Level::Graph => Detail::Graph,
        Level::Op if structure => Detail::Structure,
        Level::Op => Detail::Op,
    }
}

/// A level's name.
pub(super) fn name(level: Detail) -> String {
    qos::name(Step { level, one_in: 1 })
}

impl Session {
    /// What the probes are to show just now: a level without its counters and scheduler.
    pub(super) fn probed(&self) -> Detail {
        self.detail.min(top(self.options.level, self.options.structure))
    }

    /// Begins to keep the budget, if one is asked for: with a cheap level, until tokens have been seen.
    pub(super) fn keep_budget(&mut self, watch: &mut dyn Watch) -> Result<(), RecordError> {
        let Some(rule) = self.options.budget else { return Ok(()) };
        let shared = self.counters.as_ref().and_then(Counters::shared);
        let learnt = self.options.learnt.take();
        let learnt = learnt.map(|l| (l.prices, l.unfit));
        let (prices, unfit) =
            learnt.unwrap_or_else(|| prices(&self.road, shared.as_ref(), self.options.sched));
        self.extras.unfit = unfit;
        let Some(prices) = prices else {
            let why = "what a hit costs cannot be measured on this machine: the level stays as asked for";
            watch.tell(&format!("budget: {why}"));
            return Ok(self.feature(Availability::None, why)?);
        };
        let controller = Controller::new(rule, prices, self.detail);
        let step = controller.now();
        self.detail = step.level;
        self.qos = Some(controller);
        self.extras_off();
        let change = Change { to: step, why: qos::law::Why::Fits, predicted: None, measured: None };
        Ok(self.write_change(&change, "the first tokens are looked at")?)
    }

    /// Looks at the calls that have returned, and follows the law.
    pub(super) fn steer(&mut self, watch: &mut dyn Watch) -> Result<(), WriteError> {
        self.settle();
        let Some(mut controller) = self.qos.take() else { return Ok(()) };
        controller.count(usage::now(), self.detail);
        let told = self.changes(&mut controller);
        let wanted = controller.wanted();
        for (change, why) in told {
            watch.tell(&format!("level now {}: {why}", qos::name(change.to)));
            self.announced()?;
            match change.to.level {
                Detail::Scheduler => self.extras.announced = Some((change, why)),
                _ => self.write_change(&change, &why)?,
            }
        }
        self.qos = Some(controller);
        if wanted != self.detail && self.drain.borrow().murky_since().is_none() {
            self.move_to(wanted, watch)?;
            self.announced()?;
        }
        Ok(())
    }

    /// A trace that goes on where another ended says at what level.
    pub(super) fn write_level(&mut self) -> Result<(), WriteError> {
        let Some(now) = self.qos.as_ref().map(Controller::now) else { return Ok(()) };
        let change = Change { to: now, why: qos::law::Why::Fits, predicted: None, measured: None };
        self.write_change(&change, "as in the trace before")
    }

    /// How long to wait for events at most.
    pub(super) fn wait(&self, longest: Duration) -> Duration {
        self.qos.as_ref().map_or(longest, |c| c.wait(longest))
    }

    /// The changes that the calls since the last time bring about, and why.
    fn changes(&mut self, controller: &mut Controller) -> Vec<(Change, String)> {
        let mut told = Vec::new();
        let engine = self.engine_now(controller);
        let mut take = |change: Option<Change>, controller: &Controller| {
            told.extend(change.map(|c| (c, controller.words(&c))));
        };
        if self.detail == Detail::Nothing {
            let change = controller.idle(usage::now());
            take(change, controller);
        }
        loop {
            let mut drain = self.drain.borrow_mut();
            let Some(done) = drain.done.pop_front() else { break };
            let clear = !drain.is_murky(done.t.saturating_sub(done.dur), done.t);
            drop(drain);
            let change = controller.call(&done, clear.then_some(self.detail), &engine);
            take(change, controller);
        }
        told
    }

    fn announced(&mut self) -> Result<(), WriteError> {
        let announced = self.extras.announced.take();
        announced.map_or(Ok(()), |(change, why)| self.write_change(&change, &why))
    }

    fn engine_now(&mut self, controller: &Controller) -> qos::Engine {
        let switches = self.switches(controller);
        let drain = self.drain.borrow();
        let shown = drain.shown.iter().max_by_key(|s| s.graphs).copied().unwrap_or(Shown::default());
        let busiest = drain.shown.iter().position(|s| s.graphs == shown.graphs).unwrap_or(0);
        let attached = self.engines.get(busiest);
        let points =
            |role| attached.and_then(|a| a.rung(role)).map(|r| r.points.as_slice()).unwrap_or_default();
        let stepped = |role| points(role).iter().any(|p| p.entry.cost == Cost::SingleStepped);
        let calls = [Role::Token, Role::Graph, Role::Split, Role::CpuGraph];
        let probed = calls.iter().filter(|r| !points(**r).is_empty()).count();
        qos::Engine {
            threads: shown.threads,
            nodes: shown.nodes,
            stepped: stepped(Role::Op),
            calls_stepped: calls.iter().filter(|r| stepped(**r)).count() as f64 / probed.max(1) as f64,
            barrier: self.options.op_end != OpEnd::Interval
                && attached.is_some_and(|a| a.rung(Role::OpEnd).is_some_and(|r| !r.points.is_empty())),
            switches,
        }
    }

    /// Attaches what `to` has and the present level has not, detaches what it has not; likewise what comes beyond probes.
    fn move_to(&mut self, to: Detail, watch: &mut dyn Watch) -> Result<(), WriteError> {
        self.drain.borrow_mut().begin_change(usage::now());
        let from = self.probed();
        self.detail = to;
        if self.probed() != from {
            self.probe(from, watch);
        }
        self.extras_to(to, watch)
    }

    fn probe(&mut self, from: Detail, watch: &mut dyn Watch) {
        let to = self.probed();
        let wanted = roles(to, self.options.phases);
        for (i, a) in self.engines.iter_mut().enumerate() {
            // Those that begin a call leave before those inside it, and come after them.
            Role::ALL.iter().rev().filter(|r| !wanted.contains(r)).for_each(|r| a.detach(*r));
            let one_thread = self.drain.borrow().shown.get(i).is_some_and(|s| s.threads == 1);
            for role in wanted {
                let of_no_use = *role == Role::OpEnd && one_thread;
                if !of_no_use && !a.probed(*role) {
                    attach(a, *role, watch);
                }
            }
            if let Some(shown) = self.drain.borrow_mut().shown.get_mut(i) {
                shown.silent = 0;
            }
        }
        if from < Detail::Op && to >= Detail::Op {
            self.source.ops_begin();
        }
    }

    /// Ends a change of level once the last probe has left.
    fn settle(&mut self) {
        let settled = self.extras_settled() && !self.engines.iter_mut().any(Attached::leaving);
        if settled && self.drain.borrow().murky_since().is_some() {
            self.drain.borrow_mut().end_change(usage::now());
        }
    }

    fn write_change(&mut self, change: &Change, why: &str) -> Result<(), WriteError> {
        let ppm = |share: Option<f64>| share.map(|s| (s * 1e6).clamp(0.0, f64::from(u32::MAX)) as u32);
        let Step { level, one_in } = change.to;
        self.drain.borrow_mut().enc.level_change(&LevelChange {
            t: usage::now() as i64,
            to: level,
            one_in,
            predicted_ppm: ppm(change.predicted),
            measured_ppm: ppm(change.measured),
            why,
        })
    }

    /// How the budget was kept until now.
    pub(super) fn budget_kept(&self) -> Result<(), WriteError> {
        let Some(controller) = &self.qos else { return Ok(()) };
        let rule = controller.rule;
        let budget = rule.budget.map_or(String::new(), |b| format!("own cost at most {} % ", b * 100.0));
        let qos = rule.qos.map_or(String::new(), |q| format!("at least {q} tokens/s "));
        let (n, now) = (controller.changes, qos::name(controller.now()));
        let (prices, beside) = (controller.prices(), self.not_ruled());
        let unseen = self.drain.borrow().waiting.unseen;
        let state = match (controller.now().level, beside) {
            (Detail::Nothing, _) | (_, Some(_)) => Availability::Partly,
            _ if controller.seen() < 1.0 || unseen > 0 => Availability::Partly,
            _ => Availability::Whole,
        };
        let beside = beside.map_or(String::new(), |why| format!("; not in it: {why}"));
        let seen = match controller.seen() {
            all if all >= 1.0 => String::new(),
            part => format!("; calls were recorded {:.1} % of the time", part * 100.0),
        };
        let blind = match unseen {
            0 => String::new(),
            n => format!("; {n} calls excluded: completion on the device was not observed"),
        };
        let why =
            format!("{budget}{qos}({n} changes of level, at the end {now}; {prices}){seen}{blind}{beside}");
        self.feature(state, &why)
    }

    fn feature(&self, state: Availability, why: &str) -> Result<(), WriteError> {
        self.drain.borrow_mut().enc.feature(&Feature { name: "budget", state, why })
    }
}

/// What a cheap hit costs, ns. What stands in the way is told when the engine's own programs are loaded; the trace says "not
/// measured".
pub(super) fn hit_ns(road: &Road) -> u32 {
    calibrate::cheap_hit(road).unwrap_or(0)
}

/// What a budget goes by, and why the scheduler is no level of it, if it is not.
fn prices(road: &Road, counters: Option<&Rc<Shared>>, sched: bool) -> (Option<Prices>, Option<String>) {
    let costs = calibrate::costs(road, counters, false).ok();
    let (away, unfit) = price_of_turns(road, sched);
    (costs.and_then(|costs| Prices::of(&costs, counters.is_some(), away)), unfit)
}

/// Learns what a recording with these options needs to know of the machine.
///
/// # Errors
/// As those of a recording.
pub fn learn(options: &Options) -> Result<Learnt, RecordError> {
    refusal::hush();
    let road = Road::choose(options.source)?;
    let counters = Counters::open(&options.counters, road == Road::Bpf).map_err(RecordError::Counters)?;
    let shared = counters.as_ref().and_then(Counters::shared);
    let none = (None, None);
    let (prices, unfit) = options.budget.map_or(none, |_| prices(&road, shared.as_ref(), options.sched));
    Ok(Learnt { hit_ns: hit_ns(&road), prices, unfit })
}

/// Attaches a role's probes; one that cannot be had is told the first time.
fn attach(a: &mut Attached, role: Role, watch: &mut dyn Watch) {
    let known = a.failures.len();
    a.attach(role, 0);
    for why in a.failures.split_off(known) {
        if !a.failures.contains(&why) {
            watch.tell(&format!("probe not attached: {why}"));
            a.failures.push(why);
        }
    }
}
