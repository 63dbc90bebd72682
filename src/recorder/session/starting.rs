//! A command whose engine is not known from its own files: everything it starts or maps is examined before it runs.

use std::fs;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};

use super::Session;
use super::output::notice;
use crate::capture::error::RecordError;
use crate::engine::discover;
use crate::host::halt::{Halt, Halts};
use crate::host::ready;
use crate::recorder::recording::SessionObserver;
use pfi::WriteError;

impl Session {
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
            looked?;
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
            match discover::of_path(&program) {
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
