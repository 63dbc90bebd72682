//! What the recorders know of the cost of their probes: it is measured once, before the first engine comes if there is time.

use super::Supervisor;
use super::worker::WorkerHandle;
use crate::recorder::Calibrated;
use crate::recorder::channel::RecorderCommand;
use crate::rules::Rule;
use crate::rules::settings::ServiceSettings;
use crate::store::calibration_cache::{self, Kind};
use agent::recorder::recording::Calibration;

impl Supervisor {
    /// What a new recorder knows: one for a run begins to record at once, while another calibrates, if there is a place
    /// for both.
    pub(super) fn calibrated(
        &mut self,
        rule: &Rule,
        uid: Option<u32>,
        settings: &ServiceSettings,
    ) -> Calibrated {
        if let Some(known) = self.calibration_of(rule) {
            return Calibrated::Known(Box::new(known));
        }
        if uid.is_some() {
            self.prepare(settings);
        }
        let learning = self.workers.iter().any(|h| h.learns && !h.gone);
        if uid.is_some() && learning { Calibrated::Later } else { Calibrated::First }
    }

    pub(super) fn calibration_of(&self, rule: &Rule) -> Option<Calibration> {
        self.calibration_cache.of(&calibration_cache::kind(&rule.record, self.inside)).cloned()
    }

    /// Lets recorders calibrate before the first engine comes; one at a time, because they would disturb each
    /// other.
    pub(super) fn prepare(&mut self, settings: &ServiceSettings) {
        if self.command.is_some() || self.workers.iter().any(|h| h.learns && !h.gone) {
            return;
        }
        let now = self.now();
        let unknown = settings.rules.iter().find(|rule| {
            let known = || self.calibration_cache.of(&calibration_cache::kind(&rule.record, false)).is_some();
            !rule.ignore && !known() && self.later.why(&rule.name, None, now).is_none()
        });
        if let Some(rule) = unknown {
            self.hire(rule, None, settings);
        }
    }

    /// A calibration of this kind is known now: recorders that began before it was get it.
    pub(super) fn pass_on(&mut self, kind: &Kind, calibration: &Calibration) {
        let awaiting = |h: &&mut WorkerHandle| {
            h.awaits && !h.gone && calibration_cache::kind(&h.rule.record, false) == *kind
        };
        for worker in self.workers.iter_mut().filter(awaiting) {
            let told = worker.recorder.tell(&RecorderCommand::Calibrated(Box::new(calibration.clone())));
            worker.awaits = told.is_err();
        }
    }
}
