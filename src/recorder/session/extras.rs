//! What a level has beyond probes: counters and the scheduler, switched on and off with it, and how long each was
//! on.

use std::rc::Rc;
use std::thread::{Builder, JoinHandle};

use super::Session;
use super::output::notice;
use crate::capture::pmc::Counters;
use crate::capture::pmc::follow::SharedCounters;
use crate::capture::source::{FeatureStatus, Guard};
use crate::recorder::qos::Controller;
use crate::recorder::qos::policy::LevelDecision;
use crate::recorder::recording::SessionObserver;
use machine::{target, usage};
use pfi::WriteError;
use pfi::record::{Availability, Detail};

/// Interval between readings of the threads' context switches, ns.
const LOOK_NS: u64 = 1_000_000_000;

/// The time during which something is on.
#[derive(Default)]
struct Spell {
    since: Option<u64>,
    ns: u64,
}

impl Spell {
    fn switch(&mut self, on: bool, now: u64) {
        match (on, self.since) {
            (true, None) => self.since = Some(now),
            (false, Some(since)) => {
                self.ns += now.saturating_sub(since);
                self.since = None;
            }
            _ => {}
        }
    }
}

/// The state of both.
#[derive(Default)]
pub(super) struct Extras {
    counters: Spell,
    sched: Spell,
    /// Links being removed.
    leaving: Vec<JoinHandle<()>>,
    /// Threads that were off-CPU when the scheduler was switched off have still to be written.
    untold: bool,
    /// Why the scheduler is not a level, though it was requested.
    pub unfit: Option<String>,
    /// Last reading of the threads' context switches: when and how many; and the resulting rate per nanosecond.
    looked: Option<(u64, u64)>,
    rate: Option<f64>,
    /// A level with the scheduler is written once the scheduler is watched: only then is a thread without a record
    /// on-CPU.
    pub announced: Option<(LevelDecision, String)>,
}

impl Extras {
    fn remove(&mut self, links: Vec<Guard>) {
        let aside = Builder::new().name("detach".into()).spawn(move || drop(links));
        // If no thread can be started, the closure is dropped here, and the links with it.
        self.leaving.extend(aside.ok());
    }
}

impl Session {
    /// Switches both off before anything is recorded.
    pub(super) fn extras_off(&mut self) {
        if let Some(shared) = self.shared_counters() {
            drop(shared.end());
        }
        drop(self.source.unwatch());
    }

    fn targets(&self) -> Vec<u32> {
        self.pids.keys().copied().collect()
    }

    fn shared_counters(&self) -> Option<Rc<SharedCounters>> {
        self.counters.as_ref().and_then(Counters::shared)
    }

    /// Sets both as `to` requires.
    pub(super) fn extras_to(
        &mut self,
        to: Detail,
        watch: &mut dyn SessionObserver,
    ) -> Result<(), WriteError> {
        let steers = |level| self.qos.as_ref().is_some_and(|c| c.has(level));
        let (counters, sched) = (steers(Detail::Counters), steers(Detail::Scheduler));
        if let Some(shared) = self.shared_counters().filter(|_| counters) {
            let on = to >= Detail::Counters;
            let refused = if on { shared.begin().err() } else { None };
            self.extras.counters.switch(on && refused.is_none(), usage::now());
            if let Some(link) = if on { None } else { shared.end() } {
                self.extras.remove(vec![link]);
            }
            if let Some(why) = refused {
                self.forgo(Detail::Counters, &why.to_string(), watch)?;
            }
        }
        let on = sched && to >= Detail::Scheduler;
        if on && self.extras.sched.since.is_none() {
            match self.source.watch(&self.targets()) {
                Ok(()) => self.extras.sched.switch(true, usage::now()),
                Err(why) => self.forgo(Detail::Scheduler, &why.to_string(), watch)?,
            }
        } else if !on && self.extras.sched.since.is_some() {
            let links = self.source.unwatch();
            self.extras.sched.switch(false, usage::now());
            self.extras.remove(links);
            self.extras.untold = true;
        }
        Ok(())
    }

    fn forgo(&mut self, level: Detail, why: &str, watch: &mut dyn SessionObserver) -> Result<(), WriteError> {
        if level == Detail::Scheduler {
            (self.extras.unfit, self.extras.announced) = (Some(why.into()), None);
        }
        self.qos.iter_mut().for_each(|c| c.forgo(level));
        notice(
            &self.drain,
            &format!("level {} is not available: {why}", super::calibration::name(level)),
            watch,
        )
    }

    /// Whether no removal is in progress; if so, writes what was pending.
    pub(super) fn extras_settled(&mut self) -> bool {
        self.extras.leaving.retain(|aside| !aside.is_finished());
        let settled = self.extras.leaving.is_empty();
        if settled && std::mem::take(&mut self.extras.untold) {
            self.source.unwatched();
        }
        settled
    }

    /// Waits for all removals to finish.
    pub(super) fn extras_gone(&mut self, now: u64) {
        // A thread that only drops has no result and cannot fail.
        self.extras.leaving.drain(..).for_each(|aside| drop(aside.join()));
        self.extras.counters.switch(false, now);
        self.extras.sched.switch(false, now);
    }

    /// Context switches of the target's threads per nanosecond, while /proc is the only source.
    pub(super) fn switches(&mut self, controller: &Controller) -> Option<f64> {
        if !controller.has(Detail::Scheduler) || self.extras.sched.since.is_some() {
            self.extras.looked = None;
            return None;
        }
        let now = usage::now();
        let before = self.extras.looked;
        if before.is_none_or(|(t, _)| now - t >= LOOK_NS) {
            let n = self.targets().into_iter().map(target::switches).sum();
            self.extras.looked = Some((now, n));
            // The switches of ended threads are gone.
            let rate = before.filter(|b| b.1 <= n).map(|(t, old)| (n - old) as f64 / (now - t) as f64);
            self.extras.rate = rate.or(self.extras.rate);
        }
        self.extras.rate
    }

    /// Status of the scheduler feature under a budget.
    pub(super) fn scheduler(&self) -> Option<FeatureStatus> {
        let whole = self.source.scheduler()?;
        let steered = self.qos.is_some() && self.source.can_unwatch() && whole.state != Availability::None;
        let part = steered.then(|| self.part_of(Detail::Scheduler, &self.extras.sched, &whole.why));
        Some(part.unwrap_or(whole))
    }

    /// Status of the counters, likewise; None: as the counters report it themselves.
    pub(super) fn counted(&self) -> Option<FeatureStatus> {
        self.qos.as_ref().zip(self.shared_counters())?;
        Some(self.part_of(Detail::Counters, &self.extras.counters, "per-CPU counters"))
    }

    fn part_of(&self, level: Detail, spell: &Spell, by: &str) -> FeatureStatus {
        let now = usage::now();
        let on = spell.ns + spell.since.map_or(0, |since| now.saturating_sub(since));
        if on > 0 {
            let seconds = |ns: u64| ns as f64 / 1e9;
            let all = seconds(now.saturating_sub(self.started));
            let why = format!("{by}; on for {:.1} s of {all:.1} s, as the budget allowed", seconds(on));
            return FeatureStatus { state: Availability::Partly, why };
        }
        let cost = self.qos.as_ref().and_then(|c| c.share(level));
        let why = match (&self.extras.unfit, cost) {
            (Some(why), _) if level == Detail::Scheduler => why.clone(),
            (_, Some(share)) => {
                format!("never on within the budget: it would take {:.3} % of token time", share * 100.0)
            }
            _ => "its overhead was not known in time".into(),
        };
        FeatureStatus { state: Availability::None, why }
    }

    /// The part of the recording that the budget does not control, as text.
    pub(super) fn not_ruled(&self) -> Option<&str> {
        self.extras.unfit.as_deref().filter(|_| !self.source.can_unwatch())
    }
}
