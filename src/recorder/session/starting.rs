//! A command whose engine is not known from its own files: everything it starts or maps is examined before it runs.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::process::Child;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};

use super::Session;
use super::output::notice;
use crate::capture::backend::CaptureBackend;
use crate::capture::error::RecordError;
use crate::capture::inside::refused::{self, Refused};
use crate::recorder::recording::SessionObserver;
use engine::discover::{self, DiscoverError};
use engine::elf::ElfError;
use engine::layer;
use engine::search::Launch;
use machine::halt::{Halt, Halts};
use machine::{ready, target};
use pfi::WriteError;

impl Session {
    /// Starts the command, held until its engine's files are probed.
    pub(super) fn launch(
        &mut self,
        argv: &[OsString],
        watch: &mut dyn SessionObserver,
    ) -> Result<Child, RecordError> {
        let failed =
            |source| RecordError::Command { command: argv[0].to_string_lossy().into_owned(), source };
        let mut layers = layer::variables(&self.options.layers, |name| std::env::var_os(name));
        for (runtime, variable) in layers.kept {
            watch.tell(&format!(
                "{variable} is set and holds one library only: it stays, and device times of {runtime} are not recorded"
            ));
        }
        let inside = matches!(self.backend, CaptureBackend::Inside(_));
        if inside && self.options.user.is_some() {
            return Err(Refused::OtherUser.into());
        }
        if inside && let Some(launch) = Launch::of_command(argv) {
            refused::check(&launch.program)?;
        }
        let found = discover::of_command(argv);
        let wrapped = !found.as_ref().is_ok_and(|engines| !engines.is_empty());
        layers.set.extend(self.source.environment(wrapped)?);
        let user = self.options.user.clone();
        let held =
            target::hold(argv, self.options.streams, self.origin, user, &layers.set).map_err(failed)?;
        if self.managed {
            self.drain.borrow_mut().process_tree.begin(held.pid);
            watch.launching(held.pid);
        }
        self.follow(held.pid);
        let (pid, called) = (held.pid, target::shown(argv.iter().map(|a| a.as_bytes())));
        // Nothing that it does could be recorded; it has not been started yet.
        if let Err(e @ DiscoverError::Elf(ElfError::Class32 { .. })) = found {
            return Err(e.into());
        }
        // What the files alone do not show is found in the maps of the running process.
        self.add_all(found, Some(held.pid), watch)?;
        // The engine may be a child's: follow children from the first one on, whatever is known by then.
        self.source.start()?;
        self.hear(watch)?;
        if self.engines.is_empty() && !inside {
            self.halt(held.pid, watch)?;
        }
        if self.managed {
            let now = self.progress();
            self.obey(&now, watch)?;
        }
        let child = held.start().map_err(failed)?;
        if self.managed {
            watch.launched();
        }
        // It may end before anything of it is read.
        self.launched = Some((pid, (target::describe(pid).0, called)));
        Ok(child)
    }

    /// From now on the command stops where it may begin to run an engine.
    pub(super) fn halt(&mut self, pid: u32, watch: &mut dyn SessionObserver) -> Result<(), WriteError> {
        match Halts::start(pid) {
            Ok(halts) => self.halts = Some(halts),
            Err(e) => {
                let text = format!(
                    "cannot stop the command while searching for its engine ({e}): anything it computes \
                     before it is probed is missing"
                );
                notice(&self.drain, &text, watch)?;
            }
        }
        Ok(())
    }

    /// Waits for events or for a stopped process, at most this long.
    pub(super) fn wait_for_halts(&mut self, most: Duration) {
        let Some(halts) = &self.halts else { return };
        ready::wait(&mut [PollFd::from_borrowed_fd(halts.fd(), PollFlags::IN)], most);
        self.source.poll(Duration::ZERO);
    }

    /// Examines stopped processes and lets them continue with their probes.
    pub(super) fn attend(&mut self, watch: &mut dyn SessionObserver) -> Result<(), RecordError> {
        while let Some(halt) = self.source.halted() {
            let looked = self.look_at(Halt { exec: 0, ..halt }, watch);
            self.source.go_on(halt);
            self.halted.remove(&halt.pid);
            self.or_refuse(halt.pid, looked, watch)?;
            self.hear(watch)?;
        }
        loop {
            let halt = match self.halts.as_ref().map(Halts::next) {
                None | Some(Ok(None)) => break,
                Some(Ok(Some(halt))) => halt,
                Some(Err(_)) => {
                    self.halts = None;
                    break;
                }
            };
            let looked = self.look_at(halt, watch);
            let done = self.is_at_work(halt.pid) || looked.as_ref().is_ok_and(|done| *done);
            if let Some(halts) = &self.halts {
                halts.go_on(halt, done);
            }
            self.or_refuse(halt.pid, looked, watch)?;
        }
        // A process that computes is known; what it maps later is part of what was found.
        if let Some(halts) = &self.halts {
            for pid in self.halted.iter().copied().filter(|&pid| self.is_at_work(pid)) {
                halts.leave(pid);
            }
        }
        let drain = &self.drain;
        self.halted.retain(|pid| !drain.borrow().process_tree.is_met(*pid));
        Ok(())
    }

    /// Whether a process's engine has been seen at work.
    fn is_at_work(&self, pid: u32) -> bool {
        self.drain.borrow().process_tree.is_met(pid)
    }

    /// True: everything that the process can run of an engine is known.
    fn look_at(&mut self, halt: Halt, watch: &mut dyn SessionObserver) -> Result<bool, RecordError> {
        let Halt { pid, exec, .. } = halt;
        self.halted.insert(pid);
        if !self.pids.contains_key(&pid) {
            self.follow(pid);
        }
        if exec != 0
            && let Ok(program) = fs::read_link(format!("/proc/{pid}/exe"))
        {
            // Including linked libraries, which are not mapped yet.
            match discover::of_program(&program) {
                Ok(engines) if !engines.is_empty() => {
                    self.add_all(Ok(engines), Some(pid), watch)?;
                    return Ok(true);
                }
                // What it opens itself is seen when it is mapped.
                _ => {}
            }
        }
        self.scan_one(pid, watch)?;
        Ok(false)
    }
}
