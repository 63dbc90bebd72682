//! A recorder as the crew has it: whose it is, what it has, how it stands. Uses `channel`, `recorder`, `rules`, `vitals`
//! and `structure` (a limit).

use std::time::Instant;

use super::channel::Told;
use super::recorder::Recorder;
use super::rules::Rule;
use super::vitals::Vitals;
use crate::agent::maps::FileId;
use crate::agent::structure::MAX_ENGINES;

/// One of the recorders.
pub(super) struct Hand {
    pub recorder: Recorder,
    pub rule: Rule,
    /// Whose runs it has; None: it has had none yet.
    pub uid: Option<u32>,
    pub vitals: Vitals,
    pub idle: Option<Instant>,
    /// It is told to stop then; told: since then.
    pub retire: Option<Instant>,
    pub told: Option<Instant>,
    pub gone: bool,
    /// It was killed from here.
    pub killed: bool,
    /// Somebody waits for its ring.
    pub dump: bool,
    /// It learns of the machine before it records.
    pub learns: bool,
    /// It attaches to nothing more.
    pub closed: bool,
    /// Engines that it was given, by their bases.
    bases: Vec<FileId>,
}

impl Hand {
    pub fn new(recorder: Recorder, rule: &Rule, uid: Option<u32>, learns: bool) -> Hand {
        let (rule, bases, vitals) = (rule.clone(), Vec::new(), Vitals::default());
        let (idle, retire, told) = (None, None, None);
        let (gone, killed, dump, closed) = (false, false, false, false);
        Hand { recorder, rule, uid, vitals, idle, retire, told, gone, killed, dump, learns, closed, bases }
    }

    /// Whether it records runs of the rule that begin now.
    pub fn is_free(&self, rule: &Rule) -> bool {
        let works = !self.gone && self.retire.is_none() && self.told.is_none();
        works && self.rule.name == rule.name && self.rule == *rule
    }

    pub fn has(&self, base: FileId) -> bool {
        self.bases.contains(&base)
    }

    /// Whether it has room for an engine that it has not.
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
        // One that is gone has stopped.
        drop(self.recorder.tell(&Told::Stop));
    }
}
