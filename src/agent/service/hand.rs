//! A recorder as the crew has it: whose it is, what it has, how it stands. Uses `channel`, `recorder`, `rules` and `structure`
//! (a limit).

use std::time::Instant;

use super::channel::Told;
use super::recorder::Recorder;
use super::rules::Rule;
use crate::agent::maps::FileId;
use crate::agent::structure::MAX_ENGINES;

/// One of the recorders.
pub(super) struct Hand {
    pub recorder: Recorder,
    pub rule: Rule,
    pub idle: Option<Instant>,
    /// It is told to stop then; told: since then.
    pub retire: Option<Instant>,
    pub told: Option<Instant>,
    pub gone: bool,
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
    pub fn new(recorder: Recorder, rule: &Rule, learns: bool) -> Hand {
        let (rule, bases) = (rule.clone(), Vec::new());
        let (idle, retire, told) = (None, None, None);
        let (gone, dump, closed) = (false, false, false);
        Hand { recorder, rule, idle, retire, told, gone, dump, learns, closed, bases }
    }

    /// Whether it records runs of the rule that begin now.
    pub fn is_free(&self, rule: &Rule) -> bool {
        self.rule == *rule && !self.gone && self.retire.is_none() && self.told.is_none()
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
