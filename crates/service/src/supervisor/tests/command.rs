//! The command of `serve -- COMMAND`: this process is its recorder and its parent.

use std::os::unix::process::ExitStatusExt;

use super::*;
use crate::rules::settings::ServiceCommand;
use crate::supervisor::command::CommandEnd;
use machine::proc;
use rustix::process::Signal;

/// A stage with a recorder that is to start a command.
fn stage(recorder: u32) -> Stage {
    let mut stage = Stage::new();
    stage.pids.borrow_mut().push(recorder as i32);
    let program = "/bin/x".into();
    stage.settings.command = Some(ServiceCommand { argv: vec!["x".into()], program, user: None });
    stage.supervisor.start_command(&stage.settings, 0, true).expect("a recorder");
    stage
}

fn started(stage: &mut Stage, process: &Process) {
    let pid = process.0.id();
    let start = proc::stat(pid).expect("it runs").start;
    let run = Run { pid, start, rule: "a".into(), ..Run::default() };
    stage.played.borrow_mut()[0].says(&WorkerEvent::Started(Box::new(run)));
    stage.supervisor.hear();
}

#[test]
fn only_what_its_recorder_has_started_is_the_command() {
    let mut process = Process::idle();
    let mut other = stage(1);
    started(&mut other, &process);
    assert_eq!(other.supervisor.runs().count(), 0, "it is not that recorder's child");
    let mut stage = stage(std::process::id());
    assert!(stage.supervisor.signal_command(Signal::TERM, false), "when it has started");
    started(&mut stage, &process);
    assert_eq!(stage.supervisor.runs().count(), 1);
    assert_eq!(process.0.wait().expect("its end").signal(), Some(libc::SIGTERM));
    assert_eq!(stage.supervisor.command_end(), None);
    stage.played.borrow_mut()[0].says(&WorkerEvent::Exited(143));
    stage.supervisor.hear();
    assert_eq!(stage.supervisor.command_end(), Some(CommandEnd::Code(143)));
    assert!(!stage.supervisor.signal_command(Signal::TERM, false));
}

/// Its recorder has waited for it before the service heard that it was started.
#[test]
fn a_command_that_ends_at_once_was_started() {
    let mut stage = stage(std::process::id());
    let process = Process::idle();
    let pid = process.0.id();
    let start = proc::stat(pid).expect("it runs").start;
    drop(process);
    let run = Run { pid, start, rule: "a".into(), ..Run::default() };
    stage.played.borrow_mut()[0].says(&WorkerEvent::Started(Box::new(run)));
    stage.supervisor.hear();
    assert_eq!((stage.supervisor.runs().count(), stage.supervisor.command_end()), (1, None));
    stage.played.borrow_mut()[0].says(&WorkerEvent::Exited(3));
    stage.supervisor.hear();
    assert_eq!(stage.supervisor.command_end(), Some(CommandEnd::Code(3)));
}

#[test]
fn a_recorder_that_is_gone_has_no_successor() {
    let mut first = stage(std::process::id());
    first.played.borrow_mut().clear();
    first.supervisor.hear();
    assert_eq!(first.supervisor.command_end(), Some(CommandEnd::NotStarted));
    let process = Process::idle();
    let mut stage = stage(std::process::id());
    started(&mut stage, &process);
    stage.played.borrow_mut().clear();
    let said = stage.pass(10).join("\n");
    assert!(said.contains("goes on, and is not recorded any longer"), "{said}");
    assert_eq!((stage.users().len(), stage.ended().len()), (0, 1));
    assert_eq!(stage.supervisor.command_end(), None, "it still runs");
    drop(process);
    stage.pass(1);
    assert_eq!(stage.supervisor.command_end(), Some(CommandEnd::Unknown));
}
