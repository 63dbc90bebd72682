//! When a session begins another file, and when what a ring holds is written.

use std::io;

use super::{LOOK, Ordered, SessionDriver};
use crate::recorder::channel::{DumpError, WorkerEvent};
use agent::recorder::recording::{RecordingProgress, SessionCommand};

impl SessionDriver {
    /// The next file, if available.
    pub(super) fn rotate(&mut self, why: &'static str) -> Option<SessionCommand> {
        let before = self.file.as_ref().map(|(name, _)| name.clone());
        match self.place() {
            Ok(out) => {
                self.ordered = Some(Ordered::Rotate(before));
                self.turned = true;
                Some(SessionCommand::Rotate(out, why))
            }
            Err(failure) => {
                self.fail(failure.into());
                None
            }
        }
    }

    /// Files: begins one for a new run, the next one for a full one, and ends the file when nothing is recorded.
    pub(super) fn files(&mut self, now: &RecordingProgress) -> Option<SessionCommand> {
        if self.rule.ring.is_some() {
            return None;
        }
        let (_, since) = self.file.as_ref().filter(|_| !self.turned)?;
        if now.targets == 0 && !self.grew && self.waiting.is_empty() {
            self.ordered = Some(Ordered::Rotate(self.file.take().map(|(name, _)| name)));
            return Some(SessionCommand::Rotate(Box::new(io::sink()), "no engine left"));
        }
        if now.bytes.saturating_add(LOOK.min(self.settings.file_size / 2)) >= self.settings.file_size {
            return self.rotate("size reached");
        }
        if since.elapsed() >= self.settings.file_age {
            return self.rotate("age reached");
        }
        None
    }

    pub(super) fn dump(&mut self, asked: bool) -> Option<SessionCommand> {
        if self.rule.ring.is_none() {
            if asked {
                self.say(&WorkerEvent::Dumped(Err(DumpError::NoRing)));
            }
            return None;
        }
        match self.create() {
            Ok((name, out)) => {
                self.ordered = Some(Ordered::Dump { name, asked });
                Some(SessionCommand::Dump(out))
            }
            Err(why) => {
                self.dumped(Err(DumpError::Create(why.to_string())), asked);
                None
            }
        }
    }

    pub(super) fn dumped(&mut self, done: Result<String, DumpError>, asked: bool) {
        if asked {
            self.say(&WorkerEvent::Dumped(done));
            return;
        }
        match done {
            Ok(name) => self.say_message(&format!("ring written to {name}")),
            Err(why) => self.say_message(&format!("cannot write the ring: {why}")),
        }
    }
}
