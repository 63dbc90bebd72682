//! A command whose engine is not known from its own files: whatever it starts or maps is looked at before it runs. Uses what the
//! session uses, and `halt`.

use std::fs;
use std::os::fd::AsRawFd;
use std::time::Duration;

use super::Session;
use super::writing::notice;
use crate::agent::discover;
use crate::agent::halt::{Halt, Halts};
use crate::agent::recording::{RecordError, Watch};
use crate::trace::WriteError;

impl Session {
    /// From now on the command waits where it may begin to run an engine.
    pub(super) fn halt(&mut self, pid: u32, watch: &mut dyn Watch) -> Result<(), WriteError> {
        match Halts::start(pid) {
            Ok(halts) => self.halts = Some(halts),
            Err(e) => {
                let text = format!(
                    "the command cannot be halted while its engine is looked for ({e}): what it computes before that is missing"
                );
                notice(&self.drain, &text, watch)?;
            }
        }
        Ok(())
    }

    /// Waits for events or for something that is halted, at most so long.
    pub(super) fn wait_for_halts(&mut self, most: Duration) {
        let Some(halts) = &self.halts else { return };
        let mut fd = libc::pollfd { fd: halts.fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let ms = i32::try_from(most.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: one descriptor, as said.
        unsafe { libc::poll(&raw mut fd, 1, ms) };
        self.source.poll(Duration::ZERO);
    }

    /// Looks at what is halted, and lets it go on with the probes that it is to have.
    pub(super) fn attend(&mut self, watch: &mut dyn Watch) -> Result<(), RecordError> {
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
        // One that computes is known; what it maps later is a part of what was found.
        if let Some(halts) = &self.halts {
            for pid in self.halted.iter().copied().filter(|&pid| self.is_at_work(pid)) {
                halts.leave(pid);
            }
        }
        let drain = &self.drain;
        self.halted.retain(|pid| !drain.borrow().kin.is_met(*pid));
        Ok(())
    }

    /// Whether the engine of a process has been seen at work.
    fn is_at_work(&self, pid: u32) -> bool {
        self.drain.borrow().kin.is_met(pid)
    }

    /// True: all that the process can run of an engine is known.
    fn look_at(&mut self, halt: Halt, watch: &mut dyn Watch) -> Result<bool, RecordError> {
        let Halt { pid, exec, .. } = halt;
        self.halted.insert(pid);
        if !self.pids.contains_key(&pid) {
            self.follow(pid);
        }
        if exec != 0
            && let Ok(program) = fs::read_link(format!("/proc/{pid}/exe"))
        {
            // With what it is linked with, which is not mapped yet.
            match discover::of_path(&program) {
                Ok(engines) if !engines.is_empty() => {
                    self.add_all(Ok(engines), Some(pid), watch)?;
                    return Ok(true);
                }
                // What it opens by itself is seen when it is mapped.
                _ => {}
            }
        }
        self.scan_one(pid, watch)?;
        Ok(false)
    }
}
