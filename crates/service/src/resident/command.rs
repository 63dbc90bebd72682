//! The service of one command (`serve -- COMMAND`): whether it can be recorded, its signals, its end.

use super::signals::StopSignal;
use super::{Service, ServiceError, of_recorders};
use crate::rules::Rule;
use crate::rules::settings::{ServiceCommand, ServiceSettings};
use crate::supervisor::command::CommandEnd;
use agent::capture::backend::CaptureBackend;
use machine::proc;

/// In place of how engines are found.
pub(super) const NO_FINDER: &str = "no search: only COMMAND and what it starts is recorded";

/// The command's rule, and whether it is recorded from inside its process.
pub(super) fn choose(
    command: &ServiceCommand,
    settings: &ServiceSettings,
) -> Result<(usize, bool), ServiceError> {
    let exe = command.program.as_os_str().as_encoded_bytes();
    let cgroup = proc::cgroup(std::process::id());
    let place = settings.rule_for(exe, command.uid(), cgroup.as_deref());
    let found = place.and_then(|i| Some((i, settings.rules.get(i).filter(|rule| !rule.ignore)?)));
    let (i, Rule { record, .. }) = found.ok_or_else(|| ServiceError::NoRule(command.program.clone()))?;
    let backend = CaptureBackend::choose(record.source, true)?;
    Ok((i, matches!(backend, CaptureBackend::Inside(_))))
}

/// What the recorder of a command was started with stays as it is.
pub(super) fn stays(old: &ServiceSettings, new: &ServiceSettings) -> Result<(), ServiceError> {
    let same =
        old.rules == new.rules && old.directory == new.directory && of_recorders(old) == of_recorders(new);
    if old.command.is_none() || same {
        return Ok(());
    }
    let why = "rules, directory, sizes and limits of recordings apply from COMMAND's start to its end: start it anew";
    Err(ServiceError::Settings(vec![why.into()]))
}

impl Service<'_> {
    /// A request to stop: if there is a command, it gets the signal, and the service ends with it.
    pub(super) fn stop_by(&mut self, by: StopSignal) {
        if !self.supervisor.signal_command(by.signal, by.shared) {
            self.stop();
        } else if !by.shared {
            self.say(&format!("signal {} is passed on to the command", by.signal.as_raw()));
        }
    }

    /// The service ends with its command.
    pub(super) fn end_with_command(&mut self) {
        let Some(end) = self.supervisor.command_end().filter(|_| self.stopping.is_none()) else { return };
        let text = match end {
            CommandEnd::Code(0) => "the command has ended".to_owned(),
            CommandEnd::Code(code) => format!("the command has ended with status {code}"),
            CommandEnd::Unknown => "the command has ended; its exit status is not known".to_owned(),
            CommandEnd::NotStarted => "the command was not started".to_owned(),
        };
        self.say(&text);
        self.stop();
    }
}
