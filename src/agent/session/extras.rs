//! What a level has beyond probes: counters and the scheduler, switched on and off with it, and how long each was on. Uses
//! what the session uses, and `turns`.

use std::rc::Rc;
use std::thread::{Builder, JoinHandle};

use super::Session;
use super::writing::notice;
use crate::agent::pmc::Counters;
use crate::agent::pmc::follow::Shared;
use crate::agent::qos::Controller;
use crate::agent::qos::law::Change;
use crate::agent::recording::Watch;
use crate::agent::road::Road;
use crate::agent::source::{Guard, Standing};
use crate::agent::{target, turns, usage};
use crate::trace::WriteError;
use crate::trace::record::{Availability, Detail};

/// Between two looks at how often threads are switched, ns.
const LOOK_NS: u64 = 1_000_000_000;

/// Something that is on for some of the time.
#[derive(Default)]
struct Spell {
    since: Option<u64>,
    ns: u64,
}

impl Spell {
    fn turn(&mut self, on: bool, now: u64) {
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
    /// Being removed.
    leaving: Vec<JoinHandle<()>>,
    /// Threads that were away when the scheduler was left have still to be told.
    untold: bool,
    /// Why the scheduler is no level, though it was asked for.
    pub unfit: Option<String>,
    /// The last look at the threads' switches: when, how many; and how many a nanosecond that made.
    looked: Option<(u64, u64)>,
    rate: Option<f64>,
    /// A level with the scheduler is told once that is watched: not before is a thread without a record on its CPU.
    pub announced: Option<(Change, String)>,
}

impl Extras {
    fn remove(&mut self, links: Vec<Guard>) {
        let aside = Builder::new().name("detach".into()).spawn(move || drop(links));
        // Where no thread can be had the closure is dropped at once, and the links with it.
        self.leaving.extend(aside.ok());
    }
}

/// What a thread's time off the CPU costs, or why the scheduler can be no level; neither: it is not asked for.
pub(super) fn price_of_turns(road: &Road, sched: bool) -> (Option<f64>, Option<String>) {
    match (sched, road) {
        (false, _) => (None, None),
        (true, Road::Perf(_)) => (None, Some("perf events of the scheduler stay on at every level".into())),
        (true, Road::Bpf) => match turns::price(road) {
            Ok(price) => (Some(price), None),
            Err(why) => (None, Some(format!("what it costs is not known: {why}"))),
        },
    }
}

impl Session {
    /// Both off, before anything is recorded.
    pub(super) fn extras_off(&mut self) {
        if let Some(shared) = self.shared_counters() {
            drop(shared.end());
        }
        drop(self.source.unwatch());
    }

    fn targets(&self) -> Vec<u32> {
        self.pids.keys().copied().collect()
    }

    fn shared_counters(&self) -> Option<Rc<Shared>> {
        self.counters.as_ref().and_then(Counters::shared)
    }

    /// Both as `to` has them.
    pub(super) fn extras_to(&mut self, to: Detail, watch: &mut dyn Watch) -> Result<(), WriteError> {
        let steers = |level| self.qos.as_ref().is_some_and(|c| c.has(level));
        let (counters, sched) = (steers(Detail::Counters), steers(Detail::Scheduler));
        if let Some(shared) = self.shared_counters().filter(|_| counters) {
            let on = to >= Detail::Counters;
            let refused = if on { shared.begin().err() } else { None };
            self.extras.counters.turn(on && refused.is_none(), usage::now());
            if let Some(link) = if on { None } else { shared.end() } {
                self.extras.remove(vec![link]);
            }
            if let Some(why) = refused {
                self.forgo(Detail::Counters, &why, watch)?;
            }
        }
        let on = sched && to >= Detail::Scheduler;
        if on && self.extras.sched.since.is_none() {
            match self.source.watch(&self.targets()) {
                Ok(()) => self.extras.sched.turn(true, usage::now()),
                Err(why) => self.forgo(Detail::Scheduler, &why, watch)?,
            }
        } else if !on && self.extras.sched.since.is_some() {
            let links = self.source.unwatch();
            self.extras.sched.turn(false, usage::now());
            self.extras.remove(links);
            self.extras.untold = true;
        }
        Ok(())
    }

    fn forgo(&mut self, level: Detail, why: &str, watch: &mut dyn Watch) -> Result<(), WriteError> {
        if level == Detail::Scheduler {
            (self.extras.unfit, self.extras.announced) = (Some(why.into()), None);
        }
        self.qos.iter_mut().for_each(|c| c.forgo(level));
        notice(
            &self.drain,
            &format!("the level {} is not to be had: {why}", super::levels::name(level)),
            watch,
        )
    }

    /// Whether nothing of them is being removed; tells what there is to tell then.
    pub(super) fn extras_settled(&mut self) -> bool {
        self.extras.leaving.retain(|aside| !aside.is_finished());
        let settled = self.extras.leaving.is_empty();
        if settled && std::mem::take(&mut self.extras.untold) {
            self.source.unwatched();
        }
        settled
    }

    /// Waits until all that is being removed is.
    pub(super) fn extras_gone(&mut self, now: u64) {
        // A thread that only drops has no result and cannot fail.
        self.extras.leaving.drain(..).for_each(|aside| drop(aside.join()));
        self.extras.counters.turn(false, now);
        self.extras.sched.turn(false, now);
    }

    /// Switches of the target's threads, a nanosecond, while only /proc tells.
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
            // Threads that ended took theirs with them.
            let rate = before.filter(|b| b.1 <= n).map(|(t, old)| (n - old) as f64 / (now - t) as f64);
            self.extras.rate = rate.or(self.extras.rate);
        }
        self.extras.rate
    }

    /// How it stands with the scheduler, under a budget.
    pub(super) fn scheduler(&self) -> Option<Standing> {
        let whole = self.source.scheduler()?;
        let steered = self.qos.is_some() && self.source.can_unwatch() && whole.state != Availability::None;
        let part = steered.then(|| self.part_of(Detail::Scheduler, &self.extras.sched, &whole.why));
        Some(part.unwrap_or(whole))
    }

    /// How it stands with the counters, likewise; None: as they themselves say.
    pub(super) fn counted(&self) -> Option<Standing> {
        self.qos.as_ref().zip(self.shared_counters())?;
        Some(self.part_of(Detail::Counters, &self.extras.counters, "counters of each CPU"))
    }

    fn part_of(&self, level: Detail, spell: &Spell, by: &str) -> Standing {
        let now = usage::now();
        let on = spell.ns + spell.since.map_or(0, |since| now.saturating_sub(since));
        if on > 0 {
            let seconds = |ns: u64| ns as f64 / 1e9;
            let all = seconds(now.saturating_sub(self.started));
            let why = format!("{by}; on for {:.1} s of {all:.1} s, as the budget allowed", seconds(on));
            return Standing { state: Availability::Partly, why };
        }
        let cost = self.qos.as_ref().and_then(|c| c.share(level));
        let why = match (&self.extras.unfit, cost) {
            (Some(why), _) if level == Detail::Scheduler => why.clone(),
            (_, Some(share)) => format!(
                "never on within the budget: a level with it would take {:.3} % of a token's time",
                share * 100.0
            ),
            _ => "what it would take of a token's time was not known in time".into(),
        };
        Standing { state: Availability::None, why }
    }

    /// What of the recording the budget does not rule, in words.
    pub(super) fn not_ruled(&self) -> Option<&str> {
        self.extras.unfit.as_deref().filter(|_| !self.source.can_unwatch())
    }
}
