//! What the service does about what recorders report of engines: gives them CPUs, shows events to those who watch, runs
//! programs of rules.

use std::time::Duration;

use super::Service;
use crate::affinity::RunId;
use crate::recorder::trigger::Fired;
use crate::rules::Rule;
use crate::supervisor::Reported;
use crate::watch;
use machine::usage;

impl Service<'_> {
    /// How long nothing is due for the engines' CPUs.
    pub(super) fn rest(&self) -> Duration {
        let now = usage::now();
        self.affinity
            .next(now)
            .map_or(Duration::MAX, |due| Duration::from_nanos(due.saturating_sub(now).max(1)))
    }

    /// Takes what recorders have reported.
    pub(super) fn react(&mut self) {
        self.watch_begins();
        for reported in std::mem::take(&mut self.supervisor.reported) {
            match reported {
                Reported::Engine(pid, build_id) => self.affinity.engine(pid, build_id),
                Reported::Computes((run, rule), change) if self.stopping.is_none() => {
                    if let Some(rule) = self.settings.rules.iter().find(|of| of.name == rule) {
                        self.affinity.computes(run, rule, change);
                    }
                }
                Reported::Computes(..) => {}
                Reported::File { rule, name } => {
                    self.control.show(&watch::file(&rule, &self.settings.directory.join(name)));
                }
                Reported::Triggered { rule, uid, run, fired } => self.triggered(&rule, uid, run, &fired),
            }
        }
        let supervisor = &self.supervisor;
        self.affinity.keep(&|run| supervisor.is_going(run));
        self.affinity.turn(usage::now(), &|recorder| supervisor.follows(recorder));
        if let Some(line) = self.hooks.hear() {
            self.say(&line);
        }
        self.tell_affinity();
    }

    /// Tells what has happened to engines' CPUs: in their traces, in the log, and to those who watch.
    pub(super) fn tell_affinity(&mut self) {
        for (pid, work, threads, cpus) in self.affinity.recommended() {
            self.control.show(&watch::recommended(pid, work, threads, &cpus));
        }
        for news in self.affinity.news() {
            if news.note {
                self.supervisor.note(news.recorder, news.t, &news.text);
            }
            if news.log {
                self.supervisor.log(Some(news.uid), &news.text);
            }
            self.control.show(&watch::affinity(&news.status, &news.text));
        }
    }

    /// Somebody watches, or there are triggers: their causes are those of the second before.
    fn is_watched(&self) -> bool {
        let triggers = |rule: &Rule| rule.below.is_some() || rule.p99_above.is_some();
        self.control.watchers() > 0 || self.settings.rules.iter().any(triggers)
    }

    /// Sends the events `run` and `first_token`, which come before all others of a run.
    pub(super) fn watch_begins(&mut self) {
        self.supervisor.watched(self.control.watchers() > 0);
        if self.is_watched() {
            for line in self.watch.progress(self.supervisor.runs(), usage::now()) {
                self.control.show(&line);
            }
        }
    }

    /// Once a second: looks at the engines' CPUs, and shows what happened in that second to those who watch.
    pub(super) fn watch_runs(&mut self) {
        self.watch_begins();
        self.affinity.look(usage::now());
        self.tell_affinity();
        if !self.is_watched() {
            return self.watch.forget();
        }
        let set = self.affinity.status();
        for line in self.watch.second(self.supervisor.runs(), &set, usage::now()) {
            self.control.show(&line);
        }
    }

    fn triggered(&mut self, rule: &str, uid: Option<u32>, id: Option<RunId>, fired: &Fired) {
        let same = |run: RunId| self.supervisor.runs().find(|of| (of.pid, of.start) == (run.pid, run.start));
        let event = self.watch.trigger(rule, id.and_then(same), id, fired);
        self.control.show(&event);
        let hook =
            self.settings.rules.iter().find(|of| of.name == rule).and_then(|of| of.on_trigger.as_ref());
        if let Some(hook) = hook
            && let Some(line) = self.hooks.run(rule, hook, &event)
        {
            self.supervisor.log(uid, &line);
        }
    }
}
