//! A recorder as seen by the supervisor: its user, its runs, its state.

use std::time::Instant;

use crate::recorder::Recorder;
use crate::recorder::channel::RecorderCommand;
use crate::rules::Rule;
use crate::supervisor::vitals::Vitals;
use agent::capture::structure::MAX_ENGINES;
use machine::maps::FileId;

/// One of the recorders.
pub(crate) struct WorkerHandle {
    pub recorder: Recorder,
    pub rule: Rule,
    /// The user of its runs; None: it has had none yet.
    pub uid: Option<u32>,
    pub vitals: Vitals,
    pub idle: Option<Instant>,
    /// When to stop it; and when it was asked to stop.
    pub retire: Option<Instant>,
    pub told: Option<Instant>,
    pub gone: bool,
    /// It was killed by the service.
    pub killed: bool,
    /// Its ring was requested.
    pub dump: bool,
    /// It calibrates before it records.
    pub learns: bool,
    /// It records, and the calibration is still to be passed on to it.
    pub awaits: bool,
    /// It attaches to nothing more.
    pub closed: bool,
    /// It knows that somebody watches.
    pub watched: bool,
    /// Events of its recording, and lost ones of them, as last reported.
    pub events: (u64, u64),
    /// Engines that it was given, by base.
    bases: Vec<FileId>,
}

impl WorkerHandle {
    pub fn new(recorder: Recorder, rule: &Rule, uid: Option<u32>, learns: bool) -> WorkerHandle {
        let (rule, bases, vitals) = (rule.clone(), Vec::new(), Vitals::default());
        let (idle, retire, told) = (None, None, None);
        let (gone, killed, dump, closed, watched) = (false, false, false, false, false);
        WorkerHandle {
            recorder,
            rule,
            uid,
            vitals,
            idle,
            retire,
            told,
            gone,
            killed,
            dump,
            learns,
            awaits: false,
            closed,
            watched,
            events: (0, 0),
            bases,
        }
    }

    /// Whether it takes new runs of the rule.
    pub fn is_free(&self, rule: &Rule) -> bool {
        let works = !self.gone && self.retire.is_none() && self.told.is_none();
        works && self.rule.name == rule.name && self.rule == *rule
    }

    pub fn has(&self, base: FileId) -> bool {
        self.bases.contains(&base)
    }

    /// Whether it has room for a new engine.
    pub fn takes_more(&self) -> bool {
        !self.closed && self.bases.len() < MAX_ENGINES
    }

    /// It was given a run of this engine.
    pub fn give(&mut self, base: FileId) {
        if !self.has(base) {
            self.bases.push(base);
        }
    }

    pub fn stop(&mut self, now: Instant) {
        self.told = Some(now);
        // One that is gone has stopped already.
        drop(self.recorder.tell(&RecorderCommand::Stop));
    }
}
