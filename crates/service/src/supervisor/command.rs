//! The command that the service was given: its recorder starts it, and is its parent. If that recorder ends first, the
//! command becomes a child of the service, and is not recorded any longer.

use std::io;

use rustix::process::{Pid, Signal, WaitStatus, kill_process};

use super::Supervisor;
use crate::recorder::Calibrated;
use crate::rules::settings::{ServiceCommand, ServiceSettings};
use crate::run::Run;
use crate::supervisor::run_table::{KnownRun, Met, RunPhase};
use crate::supervisor::worker::WorkerHandle;
use machine::proc::{self, StatFields};

/// How far the command is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Its recorder has yet to start it; a signal that it is to get then.
    Starts(Option<Signal>),
    Runs {
        pid: u32,
        start: u64,
    },
    Ended(CommandEnd),
}

/// How the command has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandEnd {
    /// With this exit code, as a shell shows it.
    Code(i32),
    /// Its exit status was not seen.
    Unknown,
    /// It was not started.
    NotStarted,
}

/// The command, and the recorder that starts it.
#[derive(Debug)]
pub(super) struct Command {
    recorder: i32,
    phase: Phase,
}

impl Supervisor {
    /// Starts the recorder that starts the command, for the rule at this place. To be called while this process has the
    /// privileges that it was started with: the command gets them.
    ///
    /// # Errors
    /// No more processes or descriptors are available.
    pub fn start_command(&mut self, settings: &ServiceSettings, rule: usize, inside: bool) -> io::Result<()> {
        let Some(rule) = settings.rules.get(rule) else { return Ok(()) };
        self.inside = inside;
        let calibration = self.calibration_of(rule).map(Box::new);
        let learns = calibration.is_none();
        let calibration = calibration.map_or(Calibrated::First, Calibrated::Known);
        let recorder = (self.hire)(settings, rule, calibration)?;
        self.command = Some(Command { recorder: recorder.pid, phase: Phase::Starts(None) });
        self.workers.push(WorkerHandle::new(
            recorder,
            rule,
            settings.command.as_ref().map(ServiceCommand::uid),
            learns,
        ));
        Ok(())
    }

    /// How the command has ended; None: it has not, or there is none.
    pub fn command_end(&self) -> Option<CommandEnd> {
        match self.command.as_ref()?.phase {
            Phase::Ended(end) => Some(end),
            Phase::Starts(_) | Phase::Runs { .. } => None,
        }
    }

    /// Passes a signal on to the command, which may have it already; false: there is none, or it has ended.
    pub fn signal_command(&mut self, signal: Signal, has: bool) -> bool {
        match self.command.as_mut().map(|command| &mut command.phase) {
            Some(Phase::Starts(later)) => *later = Some(signal),
            Some(Phase::Runs { pid, start }) if !has => send(*pid, *start, signal),
            Some(Phase::Runs { .. }) => {}
            Some(Phase::Ended(_)) | None => return false,
        }
        true
    }

    /// Whether this recorder has yet to start the command.
    pub(super) fn starts_command(&self, recorder: i32) -> bool {
        self.command.as_ref().is_some_and(|c| c.recorder == recorder && matches!(c.phase, Phase::Starts(_)))
    }

    /// A recorder says that it has started the command.
    pub(super) fn command_started(&mut self, recorder: i32, run: Run) {
        let parent = u32::try_from(recorder).ok();
        let (pid, start) = (run.pid, run.start);
        let Some(Command { phase: Phase::Starts(signal), .. }) = self.command else { return };
        // It may have ended, and may have been waited for: then it is nobody's any longer.
        let is_its =
            StatFields::of(pid).is_none_or(|stat| stat.number(4) == parent && stat.number(22) == Some(start));
        if !self.starts_command(recorder) || !is_its {
            return;
        }
        if let Some(command) = &mut self.command {
            command.phase = Phase::Runs { pid, start };
        }
        signal.into_iter().for_each(|signal| send(pid, start, signal));
        let Run { uid, .. } = run;
        let exe = run.exe.clone().into_bytes();
        let met = Met { pid, start, exe, uid, cgroup: proc::cgroup(pid), base: (0, 0), parent: None };
        let run = Run { recorder: parent, ..run };
        self.counts.seen += 1;
        self.tally.push((run.rule.clone(), 1));
        self.say(Some(uid), &format!("rule {}: process {pid} was started, and is recorded", run.rule));
        let mut known = KnownRun::new(run, met, RunPhase::With(recorder));
        known.given = Some(self.now());
        self.table.push(known);
    }

    /// A recorder says that the command has ended.
    pub(super) fn command_exited(&mut self, recorder: i32, code: i32) {
        if let Some(command) = self.command.as_mut().filter(|c| c.recorder == recorder)
            && !matches!(command.phase, Phase::Ended(_))
        {
            command.phase = Phase::Ended(CommandEnd::Code(code.clamp(0, 255)));
        }
    }

    /// A child was waited for; true: it is the command.
    pub(super) fn command_reaped(&mut self, pid: i32, status: WaitStatus) -> bool {
        let Some(command) = &mut self.command else { return false };
        let is_it = matches!(command.phase, Phase::Runs { pid: of, .. } if i32::try_from(of) == Ok(pid));
        if is_it {
            let code =
                status.exit_status().or_else(|| status.terminating_signal().map(|signal| 128 + signal));
            command.phase = Phase::Ended(code.map_or(CommandEnd::Unknown, CommandEnd::Code));
        }
        is_it
    }

    /// A recorder is gone: what it was to start was not started, what it has started goes on without it.
    pub(super) fn command_lost(&mut self, recorder: i32) {
        if self.starts_command(recorder)
            && let Some(command) = &mut self.command
        {
            command.phase = Phase::Ended(CommandEnd::NotStarted);
        }
        let with = |k: &&mut KnownRun| k.is_with(recorder);
        let runs: Vec<Run> = (self.table.all.iter_mut().filter(with))
            .map(|known| {
                known.phase = RunPhase::Done;
                Run { ended: Some("its recorder has ended".into()), ..known.run.clone() }
            })
            .collect();
        for run in runs {
            let text =
                format!("rule {}: process {} goes on, and is not recorded any longer", run.rule, run.pid);
            self.say(Some(run.uid), &text);
            self.end(run);
        }
    }

    /// Call about once a second: a recorder may have waited for the command without telling.
    pub(super) fn look_for_command(&mut self) {
        let Some(command) = &mut self.command else { return };
        let gone = || self.workers.iter().all(|w| w.recorder.pid != command.recorder);
        if let Phase::Runs { pid, .. } = command.phase
            && gone()
            && StatFields::of(pid).is_none()
        {
            command.phase = Phase::Ended(CommandEnd::Unknown);
        }
    }
}

fn send(pid: u32, start: u64, signal: Signal) {
    // Its number may be another process's by now.
    let is_it = StatFields::of(pid).is_some_and(|stat| stat.number(22) == Some(start));
    if is_it && let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // One that has just ended needs no signal.
        let _ = kill_process(pid, signal);
    }
}
