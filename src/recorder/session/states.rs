//! Writes what the machine reaches, and what the targets may use of it: when a process is first seen at work, when a setting has changed, and
//! at the end.

use std::time::Instant;

use super::Session;
use super::output::notice;
use crate::recorder::recording::SessionObserver;
use crate::recorder::watched_states::{WatchedState, next};
use machine::peaks;
use machine::target_state::ReadState;
use machine::{target, usage};
use pfi::WriteError;
use pfi::record::{self, StateAt};

impl Session {
    /// Writes what this machine reaches, if it was measured before.
    pub(super) fn write_peaks(&mut self, watch: &mut dyn SessionObserver) -> Result<(), WriteError> {
        let mut told = Vec::new();
        let all = peaks::find(&mut |text| told.push(text));
        for text in told {
            notice(&self.drain, &text, watch)?;
        }
        peaks::write(&mut self.drain.borrow_mut().enc, &all)
    }

    /// A process was seen at work.
    pub(super) fn begin_state(&mut self, pid: u32) -> Result<(), WriteError> {
        let mut state = self.states.reader.read(pid);
        let huge_at = self.states.read_huge(pid, &mut state);
        self.write_state(pid, StateAt::Start, &state)?;
        self.write_usage(pid, &state)?;
        self.states.all.insert(pid, WatchedState { first: state.clone(), state, huge_at });
        Ok(())
    }

    /// The same for all known ones, in a trace that begins.
    pub(super) fn begin_states(&mut self) -> Result<(), WriteError> {
        let pids: Vec<u32> = self.states.pids().collect();
        pids.into_iter().try_for_each(|pid| self.begin_state(pid))
    }

    /// Reads the states again if it is time to; writes those with a changed setting.
    pub(super) fn watch_states(&mut self) -> Result<(), WriteError> {
        let begin = Instant::now();
        if self.states.next.is_some_and(|next| begin < next) || self.states.all.is_empty() {
            return Ok(());
        }
        let pids: Vec<u32> = self.states.pids().collect();
        for pid in pids {
            let mut now = self.states.reader.read(pid);
            let Some(mut watched) = self.states.all.remove(&pid) else { continue };
            if watched.huge_at <= begin {
                watched.huge_at = self.states.read_huge(pid, &mut now);
            }
            self.write_usage(pid, &now)?;
            now.fill(&watched.state);
            let changed = now.differs(&watched.state);
            watched.state = now;
            if changed {
                self.write_state(pid, StateAt::Change, &watched.state)?;
            }
            self.states.all.insert(pid, watched);
        }
        self.states.next = Some(next(begin.elapsed()));
        Ok(())
    }

    /// A process has ended, or is not recorded any longer.
    pub(super) fn end_state(&mut self, pid: u32) -> Result<(), WriteError> {
        let written = self.write_end(pid);
        self.states.all.remove(&pid);
        written
    }

    /// The trace ends.
    pub(super) fn end_states(&mut self) -> Result<(), WriteError> {
        let pids: Vec<u32> = self.states.pids().collect();
        for pid in pids {
            self.write_end(pid)?;
        }
        Ok(())
    }

    fn write_end(&mut self, pid: u32) -> Result<(), WriteError> {
        let Some(watched) = self.states.all.get(&pid) else { return Ok(()) };
        let mut state = self.states.reader.read(pid);
        self.states.reader.read_huge(pid, &mut state);
        self.write_usage(pid, &state)?;
        state.fill(&watched.state);
        self.write_state(pid, StateAt::End, &state)?;
        match state.killed_since(&watched.first).filter(|_| !target::alive(pid)) {
            None => Ok(()),
            Some(why) => {
                let text = format!("process {pid} has ended, and {why}");
                self.drain.borrow_mut().enc.notice(&record::Notice { t: usage::now() as i64, text: &text })
            }
        }
    }

    /// Of a state as it was read.
    fn write_usage(&self, pid: u32, state: &ReadState) -> Result<(), WriteError> {
        let mut drain = self.drain.borrow_mut();
        let usage = state.usage(pid, usage::now() as i64, &drain.team_of(pid));
        usage.map_or(Ok(()), |usage| drain.enc.usage(&usage))
    }

    fn write_state(&self, pid: u32, at: StateAt, state: &ReadState) -> Result<(), WriteError> {
        self.drain.borrow_mut().enc.target_state(&state.record(pid, at, usage::now()))
    }
}
