//! Publishes the service's state, and applies settings that are reloaded.

use super::{Service, ServiceError, command, of_recorders, self_usage, sizes};
use crate::rules::Rule;
use crate::rules::settings::ServiceSettings;
use crate::run::Run;
use crate::socket::Control;
use crate::status::{self, ServicePhase, StateFiles};
use crate::store::Store;
use inspector::finder::Finder;

impl Service<'_> {
    /// Updates the state.
    pub(super) fn refresh(&mut self) {
        let supervisor = &mut self.supervisor;
        for run in supervisor.ended.drain(..) {
            self.control.show(&self.watch.ended(&run));
            self.state.run(&run);
        }
        self.state.affinity = self.affinity.status();
        self.state.on_trigger = self.hooks.counts.clone();
        supervisor.runs().for_each(|run| self.state.run(run));
        // A run that was taken from its recorder without being ended belongs to none.
        let going = |r: &Run| supervisor.runs().any(|k| (k.pid, k.start) == (r.pid, r.start));
        self.state.runs.retain(|r| r.ended.is_some() || going(r));
        let c = supervisor.counts;
        self.state.counts = status::StatusCounts {
            seen: c.seen,
            recorded: c.recorded,
            empty: c.empty,
            by_rule: c.ignored,
            sample_one_in: c.left_out,
            max_concurrent: c.too_many,
            missed: c.missed,
            waiting: supervisor.waiting(),
        };
        self.state.quarantined = supervisor.quarantined();
        let rule = |rule: &Rule| status::RuleStatus {
            name: rule.name.clone(),
            runs: supervisor.runs_of(&rule.name),
            recorder: supervisor.recorder_for(&rule.name),
        };
        self.state.rules = self.settings.rules.iter().map(rule).collect();
        let (held_back, files_put_off) = self.finder.as_ref().map(Finder::held_back).unwrap_or_default();
        let files_too_large = self.finder.as_ref().map_or(0, |finder| finder.large);
        let backend = self.finder.as_ref().map_or_else(|| command::NO_FINDER.to_owned(), Finder::backend);
        let why = self.state.finder.why.take();
        self.state.finder = status::FinderStatus { backend, why, held_back, files_put_off, files_too_large };
        let own = self_usage::together(
            supervisor.pids().chain(self.finder.iter().flat_map(Finder::pids)).chain(self.network.pid()),
        );
        // Between the end of a process and its being waited for, its time is nowhere.
        let cpu = own.map(|o| o.1.max(self.state.own.cpu_seconds.unwrap_or(0.0)));
        self.state.own = status::ServiceUsage { resident_bytes: own.map(|o| o.0), cpu_seconds: cpu };
        self.state.totals = supervisor.totals();
        self.state.network = self.network.status();
        let going = self.state.going().next().is_some();
        self.state.state = match (self.stopping.is_some(), going) {
            (true, _) => ServicePhase::Stopping,
            (_, true) => ServicePhase::Recording,
            _ => ServicePhase::Waiting,
        };
    }

    /// Publishes the service's state to all readers.
    pub(super) fn tell(&mut self) {
        self.refresh();
        let n = self.state.going().count();
        self.notify.status(&match n {
            0 => format!("waiting for engines; {} runs recorded so far", self.state.counts.recorded),
            n => format!("recording {n} runs; {} so far", self.state.counts.recorded),
        });
        if let Err(why) = self.files.tell(&mut self.state) {
            self.say(&why.to_string());
        }
    }

    /// Reloads the configuration; false: it is wrong, or cannot be used.
    pub(super) fn reload(&mut self) -> bool {
        self.notify.reloading();
        let wrong = match (self.load)() {
            Err(wrong) => wrong,
            Ok(settings) if settings == self.settings => Vec::new(),
            Ok(settings) => self.take(settings).err().map(|e| e.to_string()).into_iter().collect(),
        };
        let holds = wrong.is_empty();
        match holds {
            true => {
                self.say("the configuration was reloaded");
                self.settings.warnings.clone().iter().for_each(|warning| self.say(warning));
            }
            false => {
                self.say("the new configuration is invalid; the previous one stays in effect:");
                wrong.iter().for_each(|line| self.say(line));
            }
        }
        self.read_now(wrong);
        self.notify.ready();
        holds
    }

    pub(super) fn take(&mut self, settings: ServiceSettings) -> Result<(), ServiceError> {
        let old = &self.settings;
        command::stays(old, &settings)?;
        let moved = old.directory != settings.directory;
        // First everything that may fail: either all of it takes effect or none.
        let control = (old.socket != settings.socket).then(|| Control::bind(&settings.socket)).transpose()?;
        let network = (old.net != settings.net).then(|| self.network.prepare(&settings.net)).transpose()?;
        let elsewhere = (&old.status, &old.metrics) != (&settings.status, &settings.metrics);
        let files =
            elsewhere.then(|| StateFiles::new(&settings.status, settings.metrics.as_deref())).transpose()?;
        if moved || sizes(old) != sizes(&settings) {
            let store = Store::open(&settings.directory, settings.quota, settings.file_size, settings.keep)?;
            if moved {
                self._only = store.only()?;
            }
            self.store = store;
            if moved {
                self.removed = (None, self.state.files_removed);
                self.affinity.moved(self.store.place_shared());
            }
        }
        if let Some(control) = control {
            self.control = control;
        }
        if let Some((files, _)) = files {
            self.files.remove();
            self.files = files;
        }
        self.files.per_process = settings.per_process;
        let said = network.map(|network| self.network.apply(network)).unwrap_or_default();
        let same = !moved && of_recorders(old) == of_recorders(&settings);
        let rules = std::mem::replace(&mut self.settings, settings).rules;
        let kept = |name: &str| {
            let of = |rules: &[Rule]| rules.iter().find(|rule| rule.name == name).cloned();
            same && of(&rules) == of(&self.settings.rules)
        };
        self.affinity.change(&kept);
        said.iter().for_each(|line| self.say(line));
        self.tell_affinity();
        self.supervisor.change(&self.settings, same);
        Ok(())
    }
}
