//! A session that starts the service's command: its run, its file, its end.

use std::process::Child;

use super::SessionDriver;
use crate::recorder::channel::WorkerEvent;
use crate::recorder::{Failure, UNUSED};
use crate::run::{self, Run};
use agent::recorder::recording::Summary;
use machine::{capset, proc, target};

/// What is still to be done at the command's start.
#[derive(Default)]
pub(super) struct Beginning {
    /// Its file has yet to be made.
    pub file: bool,
    /// Its run, which the service does not know yet.
    told: Option<Run>,
    /// Its exit code, which the service does not know yet.
    exit: Option<i32>,
}

impl SessionDriver {
    /// The command has a process, which has not begun: it is a run, and the file is named for it.
    pub(super) fn begin_command(&mut self, pid: u32) {
        let Some(command) = &self.settings.command else { return };
        let start = proc::stat(pid).map_or(0, |stat| stat.start);
        let exe = command.program.to_string_lossy().chars().take(run::EXE).collect();
        let rule = self.rule.name.clone();
        let run = Run { pid, start, uid: command.uid(), exe, rule, ..Run::default() };
        self.last = (run.exe.clone(), run.uid, pid);
        self.figures.follow(pid);
        self.runs.push(run);
        (self.grew, self.beginning.file) = (true, true);
    }

    /// The command has begun. It has the privileges that the service was started with; this process gives them up.
    pub(super) fn command_runs(&mut self) {
        drop(capset::keep(!UNUSED));
        self.beginning.told = self.runs.first().cloned();
        self.tell_runs();
    }

    /// Reports the run of the command to the service. False: it was not heard, and is to be reported again, before
    /// anything else about the run.
    pub(super) fn tell_command(&mut self) -> bool {
        let Some(run) = self.beginning.told.take() else { return true };
        let told = self.say(&WorkerEvent::Started(Box::new(run.clone())));
        self.beginning.told = Some(run).filter(|_| !told);
        told
    }

    /// The recording of the command has ended.
    pub fn recorded(&mut self, done: &Summary) {
        if !done.worked && self.failure.is_none() {
            let why = done.missing.as_deref().unwrap_or("its engine computed nothing");
            self.say_message(&format!("nothing was recorded: {why}"));
        }
        done.status.into_iter().for_each(|code| self.tell_exit(code));
    }

    /// The command outlives its recording, if only by a moment.
    pub(super) fn command_left(&mut self, mut command: Child) {
        if let Ok(Some(status)) = command.try_wait() {
            self.tell_exit(target::shell_code(status));
        }
    }

    fn tell_exit(&mut self, code: i32) {
        let told = self.say(&WorkerEvent::Exited(code));
        self.beginning.exit = Some(code).filter(|_| !told);
    }

    /// No other recorder goes on with the command.
    pub(super) fn end_command(&mut self, failure: Option<&Failure>) {
        if let Some(code) = self.beginning.exit.take() {
            self.tell_exit(code);
        }
        if self.settings.command.is_some() {
            let why = failure
                .map_or("the process has ended".to_owned(), |why| format!("its recording ended: {why}"));
            self.runs.iter_mut().for_each(|run| _ = run.ended.get_or_insert_with(|| why.clone()));
        }
    }
}
