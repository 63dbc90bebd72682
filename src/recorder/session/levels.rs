//! A session under a budget: asks the controller what to record, attaches and detaches, writes level changes to the
//! trace.

use std::time::Duration;

use super::Session;
use super::calibration::{prices, top};
use super::setup::roles;
use crate::capture::error::RecordError;
use crate::capture::pmc::Counters;
use crate::recorder::attached::AttachedEngine;
use crate::recorder::drain::Shown;
use crate::recorder::qos::policy::{DetailStep, LevelDecision};
use crate::recorder::qos::{self, Controller};
use crate::recorder::recording::{Calibration, SessionObserver};
use crate::recorder::verify::OpEnd;
use engine::probes::Role;
use engine::prologue::InsnHandling;
use machine::usage;
use pfi::WriteError;
use pfi::record::{Availability, Detail, Feature, LevelChange};

impl Session {
    /// The level for the probes now, without counters and scheduler.
    pub(super) fn probed(&self) -> Detail {
        self.detail.min(top(self.options.level, self.options.capture.structure))
    }

    /// Prepares what may be probed at any level, for the modules of an engine from position `from` on.
    pub(super) fn reserve(&self, engine: &AttachedEngine, from: usize) {
        engine.reserve(&roles(top(self.options.level, self.options.capture.structure), &self.options), from);
    }

    /// Begins to keep the budget, if there is one: at a cheap level until tokens have been seen, and with calls alone until
    /// the cost of a hit is known.
    pub(super) fn keep_budget(&mut self, watch: &mut dyn SessionObserver) -> Result<(), WriteError> {
        if self.options.budget.is_none() {
            return Ok(());
        }
        let to = match self.options.calibrated_later {
            false => self.budget(watch)?,
            true => Some((Detail::Token, "the cost of a probe hit is being measured")),
        };
        let Some((level, why)) = to else { return Ok(()) };
        self.detail = level;
        self.extras_off();
        self.change(&fitting(level), why, watch)
    }

    /// The calibration has come.
    pub(super) fn calibrated(
        &mut self,
        calibration: Calibration,
        watch: &mut dyn SessionObserver,
    ) -> Result<(), RecordError> {
        if !std::mem::take(&mut self.options.calibrated_later) {
            return Ok(());
        }
        self.hit_ns = calibration.hit_ns;
        self.drain.borrow_mut().enc.hit_cost(self.hit_ns)?;
        self.options.calibration = Some(calibration);
        if self.options.budget.is_none() {
            return Ok(());
        }
        let (level, why) = match self.budget(watch)? {
            Some(begin) => begin,
            None => (top(self.options.level, self.options.capture.structure), "as requested"),
        };
        self.move_to(level, watch)?;
        Ok(self.change(&fitting(level), why, watch)?)
    }

    /// Begins to steer. The level to begin at, and why; `None`: the overhead cannot be measured.
    fn budget(
        &mut self,
        watch: &mut dyn SessionObserver,
    ) -> Result<Option<(Detail, &'static str)>, WriteError> {
        let Some(rule) = self.options.budget else { return Ok(None) };
        let shared = self.counters.as_ref().and_then(Counters::shared);
        let calibration = self.options.calibration.take();
        let calibration = calibration.map(|l| (l.prices, l.unfit));
        let (prices, unfit) =
            calibration.unwrap_or_else(|| prices(&self.backend, shared.as_ref(), self.options.capture.sched));
        self.extras.unfit = unfit;
        let Some(prices) = prices else {
            let why = "probe overhead cannot be measured on this machine: the level stays as requested";
            watch.tell(&format!("budget: {why}"));
            self.feature(Availability::None, why)?;
            return Ok(None);
        };
        let most = top(self.options.level, self.options.capture.structure);
        let controller = Controller::new(rule, prices, most);
        let step = controller.now();
        self.qos = Some(controller);
        Ok(Some((step.level, "the first tokens are being measured")))
    }

    /// Gives the returned calls to the controller and follows the policy.
    pub(super) fn steer(&mut self, watch: &mut dyn SessionObserver) -> Result<(), WriteError> {
        self.settle();
        let Some(mut controller) = self.qos.take() else { return Ok(()) };
        let told = self.changes(&mut controller);
        let wanted = controller.wanted();
        for (change, why) in told {
            watch.tell(&format!("level now {}: {why}", qos::name(change.to)));
            self.announced(watch)?;
            match change.to.level {
                Detail::Scheduler => self.extras.announced = Some((change, why)),
                _ => self.change(&change, &why, watch)?,
            }
        }
        self.qos = Some(controller);
        if wanted != self.detail && self.drain.borrow().reconfiguring_since().is_none() {
            self.move_to(wanted, watch)?;
            self.announced(watch)?;
        }
        Ok(())
    }

    /// Writes the level at the start of a trace that continues another.
    pub(super) fn write_level(&mut self) -> Result<(), WriteError> {
        let Some(now) = self.qos.as_ref().map(Controller::now) else { return Ok(()) };
        self.write_change(&LevelDecision { to: now, ..fitting(now.level) }, "as in the previous trace")
    }

    /// Maximum wait for events.
    pub(super) fn wait(&self, longest: Duration) -> Duration {
        self.qos.as_ref().map_or(longest, |c| c.wait(longest))
    }

    /// The changes caused by the calls since the last time, with reasons.
    fn changes(&mut self, controller: &mut Controller) -> Vec<(LevelDecision, String)> {
        let mut told = Vec::new();
        let engine = self.engine_now(controller);
        let mut take = |change: Option<LevelDecision>, controller: &Controller| {
            told.extend(change.map(|c| (c, controller.words(&c))));
        };
        loop {
            let mut drain = self.drain.borrow_mut();
            let Some(done) = drain.done.pop_front() else { break };
            let clear = !drain.is_reconfiguring(done.t.saturating_sub(done.dur), done.t);
            let level = drain.level_before(done.t).unwrap_or(self.detail);
            drop(drain);
            let change = controller.call(&done, clear.then_some(level), &engine);
            take(change, controller);
        }
        told
    }

    fn announced(&mut self, watch: &mut dyn SessionObserver) -> Result<(), WriteError> {
        let announced = self.extras.announced.take();
        announced.map_or(Ok(()), |(change, why)| self.change(&change, &why, watch))
    }

    /// The level has changed.
    fn change(
        &mut self,
        change: &LevelDecision,
        why: &str,
        watch: &mut dyn SessionObserver,
    ) -> Result<(), WriteError> {
        self.write_change(change, why)?;
        watch.level(&qos::name(change.to), why);
        Ok(())
    }

    fn engine_now(&mut self, controller: &Controller) -> qos::EngineState {
        let switches = self.switches(controller);
        let drain = self.drain.borrow();
        let shown = drain.shown.iter().max_by_key(|s| s.graphs).copied().unwrap_or(Shown::default());
        let busiest = drain.shown.iter().position(|s| s.graphs == shown.graphs).unwrap_or(0);
        let attached = self.engines.get(busiest);
        let points =
            |role| attached.and_then(|a| a.rung(role)).map(|r| r.points.as_slice()).unwrap_or_default();
        let stepped = |role| points(role).iter().any(|p| p.entry.cost == InsnHandling::SingleStepped);
        let calls = [Role::Token, Role::Graph, Role::Split, Role::CpuGraph];
        let probed = calls.iter().filter(|r| !points(**r).is_empty()).count();
        qos::EngineState {
            threads: shown.threads,
            nodes: shown.nodes,
            stepped: stepped(Role::Op),
            calls_stepped: calls.iter().filter(|r| stepped(**r)).count() as f64 / probed.max(1) as f64,
            barrier: self.options.op_end != OpEnd::Interval
                && attached.is_some_and(|a| a.rung(Role::OpEnd).is_some_and(|r| !r.points.is_empty())),
            switches,
        }
    }

    /// Attaches what `to` has and the current level lacks, detaches what `to` lacks; likewise beyond probes.
    fn move_to(&mut self, to: Detail, watch: &mut dyn SessionObserver) -> Result<(), WriteError> {
        self.drain.borrow_mut().begin_change(usage::now(), self.detail);
        let from = self.probed();
        self.detail = to;
        if self.probed() != from {
            self.probe(from, watch);
        }
        self.extras_to(to, watch)
    }

    fn probe(&mut self, from: Detail, watch: &mut dyn SessionObserver) {
        let to = self.probed();
        let wanted = roles(to, &self.options);
        for (i, a) in self.engines.iter_mut().enumerate() {
            // Probes at the start of a call are removed before those inside it, and added after them.
            Role::ALL.iter().rev().filter(|r| !wanted.contains(r)).for_each(|r| a.detach(*r));
            let one_thread = self.drain.borrow().shown.get(i).is_some_and(|s| s.threads == 1);
            for role in &wanted {
                let of_no_use = *role == Role::OpEnd && one_thread;
                if !of_no_use && !a.probed(*role) {
                    attach(a, *role, watch);
                }
            }
            if let Some(shown) = self.drain.borrow_mut().shown.get_mut(i) {
                shown.silent = 0;
                a.tell(shown);
            }
        }
        if from < Detail::Op && to >= Detail::Op {
            self.source.ops_begin();
        }
    }

    /// Ends a change of level once the last probe has left.
    fn settle(&mut self) {
        let settled = self.extras_settled() && !self.engines.iter_mut().any(AttachedEngine::leaving);
        if settled && self.drain.borrow().reconfiguring_since().is_some() {
            self.drain.borrow_mut().end_change(usage::now());
        }
    }

    fn write_change(&mut self, change: &LevelDecision, why: &str) -> Result<(), WriteError> {
        let ppm = |share: Option<f64>| share.map(|s| (s * 1e6).clamp(0.0, f64::from(u32::MAX)) as u32);
        let DetailStep { level, one_in } = change.to;
        self.drain.borrow_mut().enc.level_change(&LevelChange {
            t: usage::now() as i64,
            to: level,
            one_in,
            predicted_ppm: ppm(change.predicted),
            measured_ppm: ppm(change.measured),
            why,
        })
    }

    /// How well the budget was kept so far.
    pub(super) fn budget_kept(&self) -> Result<(), WriteError> {
        let Some(controller) = &self.qos else { return Ok(()) };
        let rule = controller.rule;
        let budget = rule.budget.map_or(String::new(), |b| format!("overhead at most {} % ", b * 100.0));
        let qos = rule.qos.map_or(String::new(), |q| format!("at least {q} tok/s "));
        let (n, now) = (controller.changes, qos::name(controller.now()));
        let (prices, beside) = (controller.prices(), self.not_ruled());
        let unseen = self.drain.borrow().waiting.unseen;
        // At the level of calls, nothing is left to be left out.
        let more = rule
            .budget
            .zip(controller.cost())
            .filter(|(budget, cost)| cost > budget && controller.now().level == Detail::Token);
        let state = match beside.is_some() || unseen > 0 || more.is_some() {
            true => Availability::Partly,
            false => Availability::Whole,
        };
        let beside = beside.map_or(String::new(), |why| format!("; not controlled by the budget: {why}"));
        let more = more.map_or(String::new(), |(_, cost)| {
            format!("; calls are recorded at any cost: they take {:.2} %", cost * 100.0)
        });
        let blind = match unseen {
            0 => String::new(),
            n => format!("; {n} calls excluded: completion on the device was not observed"),
        };
        let why =
            format!("{budget}{qos}({n} level changes, final level {now}; {prices}){more}{blind}{beside}");
        self.feature(state, &why)
    }

    fn feature(&self, state: Availability, why: &str) -> Result<(), WriteError> {
        self.drain.borrow_mut().enc.feature(&Feature { name: "budget", state, why })
    }
}

/// The change to a level that a budget begins with.
fn fitting(level: Detail) -> LevelDecision {
    let to = DetailStep { level, one_in: 1 };
    LevelDecision { to, why: qos::policy::ChangeReason::Fits, predicted: None, measured: None }
}

/// Attaches a role's probes; a failure is reported the first time.
fn attach(a: &mut AttachedEngine, role: Role, watch: &mut dyn SessionObserver) {
    let known = a.failures.len();
    a.attach(role, 0);
    for why in a.failures.split_off(known) {
        let text = why.to_string();
        if a.failures.iter().all(|f| f.to_string() != text) {
            watch.tell(&format!("probe not attached: {text}"));
            a.failures.push(why);
        }
    }
}
